//! Statistics by the names of envoyproxy/ratelimit, if `erl_metrics` is set: what became of the
//! hits of descriptors that its configuration limits.
//!
//! A name that is known is found and counted without a lock and without an allocation. Clients
//! choose values, and values may be in names: there are so many names, and one for all others.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tidegate_envoy::config::{Configuration, Rule, sanitised};
use tidegate_envoy::proto::ratelimit::RateLimitRequest;

use super::asked::{AskedCall, Hits, Limited};
use super::statuses::{DescriptorVerdict, LimitUsage};

/// The most names of one domain.
const NAMES_MAX: usize = 1_000;
/// The most domains that nothing is known of.
const UNKNOWN_DOMAINS_MAX: usize = 1_000;
/// The longest name; what has a longer one is counted with the rest.
const NAME_BYTES_MAX: usize = 256;
/// What is kept of a thread's text for the next name.
const TEXT_BYTES_KEPT: usize = 4 << 10;
/// The name of the rest.
const REST: &str = "other";
/// Threads that count apart; of more, some count together.
const STRIPES: usize = 4;

/// What is counted of hits, in the order of [`HitCounts`].
pub(super) const COUNTED: [&str; 6] = [
    "total_hits",
    "over_limit",
    "near_limit",
    "within_limit",
    "shadow_mode",
    // There is no such cache, and so nothing to count.
    "over_limit_with_local_cache",
];

/// Where `shadow_mode` is among them.
const SHADOW_MODE: usize = 4;

/// What became of hits.
pub(super) type HitCounts = [u64; COUNTED.len()];

thread_local! {
    static STRIPE: Cell<Option<usize>> = const { Cell::new(None) };
    static TEXT: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Everything that is counted.
#[derive(Default)]
pub(crate) struct Statistics {
    domains: Named<Domain>,
    unknown_domains: Named<AtomicU64>,
    global_shadow: AtomicU64,
}

/// The names of one domain, which they begin with and which is left out.
#[derive(Default)]
struct Domain(Named<Series>);

/// The counts of one name.
#[derive(Default)]
struct Series([Stripe; STRIPES]);

/// Apart from others in memory, so that two cores do not meet.
#[derive(Default)]
#[repr(align(64))]
struct Stripe([AtomicU64; COUNTED.len()]);

impl Series {
    fn add(&self, counts: &HitCounts) {
        let Stripe(sums) = &self.0[stripe()];
        for (sum, count) in sums.iter().zip(counts).filter(|(_, count)| **count > 0) {
            sum.fetch_add(*count, Relaxed);
        }
    }

    fn counts(&self) -> HitCounts {
        let mut counts = HitCounts::default();
        for Stripe(sums) in &self.0 {
            counts.iter_mut().zip(sums).for_each(|(count, sum)| *count += sum.load(Relaxed));
        }
        counts
    }
}

/// The place of this thread.
fn stripe() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let given = || NEXT.fetch_add(1, Relaxed) % STRIPES;
    STRIPE.with(|stripe| {
        let at = stripe.get().unwrap_or_else(given);
        stripe.set(Some(at));
        at
    })
}

/// Values by name. They are read far more often than one is added.
struct Named<T> {
    values: ArcSwap<HashMap<Box<str>, Arc<T>>>,
    /// Held while one is added or removed.
    writing: Mutex<()>,
}

impl<T> Default for Named<T> {
    fn default() -> Self {
        Self { values: ArcSwap::default(), writing: Mutex::default() }
    }
}

impl<T: Default> Named<T> {
    /// Shows the value of a name to `see`. A new one is made if there `has_room` for it among so
    /// many; otherwise it is the value of the rest.
    fn see(&self, name: &str, has_room: impl Fn(usize) -> bool, see: impl FnOnce(&T)) {
        let values = self.values.load();
        match values.get(name) {
            Some(value) => return see(value),
            None if !has_room(values.len()) => {
                if let Some(rest) = values.get(REST) {
                    return see(rest);
                }
            }
            None => {}
        }
        drop(values);
        see(&self.add(name, has_room));
    }

    #[cold]
    fn add(&self, name: &str, has_room: impl Fn(usize) -> bool) -> Arc<T> {
        let _turn = self.writing.lock();
        let values = self.values.load_full();
        let name = if has_room(values.len()) { name } else { REST };
        if let Some(value) = values.get(name) {
            return value.clone();
        }
        let value = Arc::<T>::default();
        let mut more = HashMap::clone(&values);
        more.insert(name.into(), value.clone());
        self.values.store(Arc::new(more));
        value
    }

    fn retain(&self, keep: impl Fn(&str) -> bool) {
        let _turn = self.writing.lock();
        let mut fewer = HashMap::clone(&self.values.load());
        fewer.retain(|name, _| keep(name));
        self.values.store(Arc::new(fewer));
    }

    /// Each value, by name.
    fn sorted(&self) -> Vec<(Box<str>, Arc<T>)> {
        let values = self.values.load();
        let mut values: Vec<_> =
            values.iter().map(|(name, it)| (name.clone(), it.clone())).collect();
        values.sort_by(|(one, _), (other, _)| one.cmp(other));
        values
    }
}

impl Statistics {
    /// Forgets what the configuration in force does not have.
    pub(super) fn retain(&self, configuration: Option<&Configuration>) {
        let has = |domain: &str| configuration.is_some_and(|it| it.has_domain(domain));
        self.domains.retain(has);
        self.unknown_domains.retain(|domain| configuration.is_some() && !has(domain));
    }

    /// Counts what was decided on a call.
    pub(super) fn count(
        &self,
        call: &RateLimitRequest,
        asked: &AskedCall<'_>,
        verdicts: &[DescriptorVerdict],
        configuration: Option<&Configuration>,
    ) {
        let all = call.descriptors.iter().zip(&asked.descriptors).zip(verdicts);
        for ((descriptor, asked), verdict) in all {
            match (asked.limited, configuration) {
                (Limited::Configured(rule), Some(configuration)) if rule.limit.is_some() => {
                    let Hits::Take(hits) = asked.hits else { continue };
                    let counts = counts(rule, hits, verdict);
                    let entries = descriptor.entries.iter();
                    let entries = entries.map(|entry| (&entry.key[..], &entry.value[..]));
                    TEXT.with_borrow_mut(|text| {
                        configuration.write_statistic(&call.domain, entries, text);
                        self.add(&call.domain, text, &counts);
                        text.clear();
                        text.shrink_to(TEXT_BYTES_KEPT);
                    });
                }
                // No file has the domain, and no rule of ours is for the key.
                (Limited::ByRule, _) if verdict.rule.is_none() => self.not_found(&call.domain),
                _ => {}
            }
        }
    }

    /// Counts a call that was over its limit and passed, because nothing is refused.
    pub(super) fn count_global_shadow(&self) {
        self.global_shadow.fetch_add(1, Relaxed);
    }

    /// `name` begins with the domain, in which other characters may stand.
    fn add(&self, domain: &str, name: &str, counts: &HitCounts) {
        let name = name.get(domain.len() + 1..).filter(|name| name.len() <= NAME_BYTES_MAX);
        let add = |series: &Series| series.add(counts);
        // The number of domains needs no bound: the files have them.
        let has_room = |names| names < NAMES_MAX;
        self.domains.see(
            domain,
            |_| true,
            |Domain(named)| match name {
                Some(name) => named.see(name, has_room, add),
                None => named.see(REST, |_| true, add),
            },
        );
    }

    fn not_found(&self, domain: &str) {
        let domain = if domain.len() <= NAME_BYTES_MAX { domain } else { REST };
        let has_room = |domains| domains < UNKNOWN_DOMAINS_MAX;
        self.unknown_domains.see(domain, has_room, |count| _ = count.fetch_add(1, Relaxed));
    }

    /// Calls that were over their limits and passed, because nothing is refused.
    pub(super) fn global_shadow(&self) -> u64 {
        self.global_shadow.load(Relaxed)
    }

    /// Shows each domain, each name in it without the domain, and what was counted, in order.
    pub(super) fn each(&self, mut see: impl FnMut(&str, &str, &HitCounts)) {
        for (domain, named) in self.domains.sorted() {
            let domain = sanitised(&domain);
            for (name, series) in named.0.sorted() {
                see(&domain, &name, &series.counts());
            }
        }
    }

    /// Shows each domain that nothing is known of, and how many descriptors asked for it.
    pub(super) fn each_unknown(&self, mut see: impl FnMut(&str, u64)) {
        // Domains that differ may look alike when they are shown.
        let mut shown: BTreeMap<String, u64> = BTreeMap::new();
        for (domain, count) in self.unknown_domains.sorted() {
            *shown.entry(sanitised(&domain)).or_default() += count.load(Relaxed);
        }
        shown.iter().for_each(|(domain, count)| see(domain, *count));
    }
}

/// What became of the hits of one descriptor.
fn counts(rule: &Rule, hits: u64, verdict: &DescriptorVerdict) -> HitCounts {
    // Where nothing is known of the count, the store being away, hits are hits alone.
    let Some(used) = verdict.counted else { return [hits, 0, 0, 0, 0, 0] };
    let mut counts = divided(rule.limit.map_or(0, |limit| limit.amount), hits, used);
    if used.is_over && rule.shadow {
        counts[SHADOW_MODE] = hits;
    }
    counts
}

/// Divides hits: a part of them may be near the limit, and a part over it.
fn divided(amount: u64, hits: u64, LimitUsage { used_before, is_over }: LimitUsage) -> HitCounts {
    // As there: a number of 32 bits, rounded down.
    let near_from = (amount as f32 * 0.8).floor() as u64;
    let after = used_before.saturating_add(hits);
    let above = |from: u64, to: u64| to.saturating_sub(from.max(used_before));
    match is_over {
        false => [hits, 0, above(near_from, after), hits, 0, 0],
        // An algorithm without windows refuses also what would fit into one.
        true if after <= amount => [hits, hits, 0, 0, 0, 0],
        true => [hits, above(amount, after), above(near_from, amount), 0, 0, 0],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is used before, hits, the amount; then hits over it, near it and within it.
    const FACTS: [([u64; 3], [u64; 3]); 17] = [
        ([0, 1, 15], [0, 0, 1]),
        ([11, 1, 15], [0, 0, 1]),
        ([12, 1, 15], [0, 1, 1]),
        ([14, 1, 15], [0, 1, 1]),
        ([15, 1, 15], [1, 0, 0]),
        ([100, 1, 15], [1, 0, 0]),
        ([2, 5, 5], [2, 1, 0]),
        ([2, 3, 20], [0, 0, 3]),
        ([5, 2, 8], [0, 1, 2]),
        ([16, 3, 20], [0, 3, 3]),
        ([19, 3, 20], [2, 1, 0]),
        ([15, 7, 20], [2, 4, 0]),
        ([7, 3, 10], [0, 2, 3]),
        ([27, 3, 10], [3, 0, 0]),
        ([0, 3, 0], [3, 0, 0]),
        ([0, 30, 10], [20, 2, 0]),
        ([1 << 53, 3, 10], [3, 0, 0]),
    ];

    #[test]
    fn hits_of_one_call_are_divided() {
        for ([used_before, hits, amount], expected) in FACTS {
            let is_over = used_before.saturating_add(hits) > amount;
            let [_, over, near, within, ..] =
                divided(amount, hits, LimitUsage { used_before, is_over });
            assert_eq!([over, near, within], expected, "{used_before} {hits} {amount}");
        }
        // A token bucket refuses what would fit into a window.
        let divided = divided(10, 3, LimitUsage { used_before: 2, is_over: true });
        assert_eq!(divided, [3, 3, 0, 0, 0, 0]);
    }

    #[test]
    fn names_are_made_once_and_the_rest_has_one() {
        let named = Named::<AtomicU64>::default();
        let add = |name: &str| {
            named.see(name, |names| names < 2, |count| _ = count.fetch_add(1, Relaxed))
        };
        ["a", "b", "a", "c", "other", "d"].into_iter().for_each(add);
        let shown = |named: &Named<AtomicU64>| {
            let all = named.sorted().into_iter();
            all.map(|(name, count)| format!("{name}={}", count.load(Relaxed))).collect::<Vec<_>>()
        };
        assert_eq!(shown(&named), ["a=2", "b=1", "other=3"]);
        named.retain(|name| name == "b");
        assert_eq!(shown(&named), ["b=1"]);
    }
}
