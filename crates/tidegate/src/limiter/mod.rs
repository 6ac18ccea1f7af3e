//! The limiter: it finds the rule and the slot of each key, runs one atomic step, and counts the
//! verdict once.
//!
//! Doors hand it requests and get verdicts. It knows no bytes of any protocol, reads no socket, and
//! takes no lock that a reload holds: a reload swaps the rules behind an atomic pointer.

mod catalog;
mod decide;
mod delayed;
mod evaluate;
mod export;
mod fast;
mod given;
mod handle;
mod plan;
mod remote;
mod request;
#[cfg(test)]
mod tests;
mod verdict;

use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tidegate_core::Now;
use tidegate_core::rules::RuleSet;

use self::catalog::Catalog;
pub(crate) use self::catalog::keeps_counts;
pub use self::delayed::{DelayedPage, DelayedSearch};
pub(crate) use self::export::{Import, KeptCount};
pub use self::given::{Bucket, BucketLeft, StoreAway, left_of};
pub use self::handle::LimiterHandle;
pub use self::request::{
    InvalidRequest, KEYS_MAX, Key, KeyOp, LimitSource, Request, Together, WaitAttempt,
};
pub(crate) use self::verdict::Answered;
pub use self::verdict::{
    Basis, Decision, HeldKey, LimitRow, Outcome, PendingVerdict, Rows, Verdict,
};
use crate::budget::Budget;
use crate::clock::Clock;
use crate::metrics::{Door, Metrics, RuleLabels};
use crate::stores::memory::{self, Memory, SlotAddress, StatsBucket};
pub use crate::stores::memory::{KeyStats, TableSize, TakenFrom};
use crate::stores::remote::Remote;

/// What uses are taken from: a key's own count, or the one that all keys of a rule share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Count<'a> {
    pub(crate) rule: u32,
    /// Empty for a count that keys share.
    pub(crate) name: &'a [u8],
    /// The same for equal counts.
    pub(crate) hash: u64,
}

impl<'a> Count<'a> {
    #[inline]
    fn of(address: &SlotAddress<'a>) -> Self {
        Self { rule: address.rule, name: address.name, hash: address.hash }
    }
}

/// Which keys come first in [`Limiter::top`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopBy {
    /// Those asked for most.
    Used,
    /// Those refused most.
    Refused,
}

/// One of the busiest keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopKey {
    /// The key; the rule's name where all its keys share one count.
    pub key: Vec<u8>,
    /// The rule's name.
    pub rule: Arc<str>,
    /// Its statistics.
    pub stats: KeyStats,
}

/// The number of no rule: for keys that nothing limits.
const NO_RULE: u32 = u32::MAX;

/// The requests that wait for a count, as the limiter sees them. It calls them with no lock held.
pub(crate) trait Waiters: Send + Sync {
    /// Whether no request is in line for this count.
    fn is_free(&self, count: &Count<'_>) -> bool;
    /// Something was given back to this count.
    fn freed(&self, count: &Count<'_>);
    /// Something was given back to what keys of this rule share because the table is full.
    fn freed_anywhere(&self, rule: u32);
    /// There are new rules.
    fn renewed(&self, limiter: &Limiter);
}

/// One limiter behind all doors.
pub struct Limiter {
    clock: Clock,
    metrics: Arc<Metrics>,
    catalog: ArcSwap<Catalog>,
    /// Held while rules are installed; the last number given to a rule.
    numbers: Mutex<u32>,
    store: Memory,
    /// Where the counts of some rules lie. Statistics of all keys stay in memory.
    remote: OnceLock<Remote>,
    waiters: OnceLock<Arc<dyn Waiters>>,
}

impl Limiter {
    /// A limiter that remembers nothing yet.
    #[must_use]
    pub fn new(
        clock: Clock,
        metrics: Arc<Metrics>,
        rules: RuleSet,
        memory: memory::Settings,
    ) -> Arc<Self> {
        let mut number = 0;
        let counts = metrics.counts(labels(&rules));
        let catalog = Catalog::new(rules, None, &mut number, counts, None);
        Arc::new(Self {
            clock,
            metrics,
            catalog: ArcSwap::from_pointee(catalog),
            numbers: Mutex::new(number),
            store: Memory::new(memory),
            remote: OnceLock::new(),
            waiters: OnceLock::new(),
        })
    }

    /// Puts new rules in force at once. Counts survive where a rule's name, algorithms and
    /// periods are the same.
    pub fn install(&self, rules: RuleSet) {
        let mut number = self.numbers.lock();
        let before = self.catalog.load_full();
        let counts = self.metrics.counts(labels(&rules));
        self.catalog.store(Arc::new(Catalog::new(
            rules,
            Some(&before),
            &mut number,
            counts,
            self.prefix(),
        )));
        // Still under the lock: two reloads arrange the waiters one after the other.
        if let Some(waiters) = self.waiters.get() {
            waiters.renewed(self);
        }
    }

    /// Sets the waiters to wake when something can be taken again. The first ones set stay.
    pub(crate) fn set_waiters(&self, waiters: Arc<dyn Waiters>) {
        let _ = self.waiters.set(waiters);
    }

    /// Wakes a waiter for what was given back.
    fn wake_waiter(&self, freed: &SlotAddress<'_>) {
        if let Some(waiters) = self.waiters.get() {
            match freed.gives_back {
                Some(TakenFrom::Shared) => waiters.freed_anywhere(freed.rule),
                _ => waiters.freed(&Count::of(freed)),
            }
        }
    }

    /// What uses of `key` are taken from under the rules in force.
    pub(crate) fn count_of<'k>(&self, key: &'k [u8]) -> Count<'k> {
        let catalog = self.catalog.load();
        let Some(slot) = catalog.slot_of(self.memory(), key) else {
            return Count { rule: NO_RULE, name: key, hash: self.memory().hash(key) };
        };
        // Keys that share a count have no name there.
        let name = if slot.name.is_empty() { b"" } else { key };
        Count { rule: slot.rule, name, hash: slot.hash }
    }

    /// Changes the bounds of the table; `false` if `max_keys` stays until a restart.
    pub fn resize(&self, memory: memory::Settings) -> bool {
        self.memory().resize(memory)
    }

    /// The rules in force.
    #[must_use]
    pub fn rules(&self) -> Arc<RuleSet> {
        self.catalog.load().set().clone()
    }

    /// A handle for one loop of a door.
    #[must_use]
    pub fn handle(self: &Arc<Self>, door: Door) -> LimiterHandle {
        let counter_stripe = self.metrics.counter_stripe(door);
        LimiterHandle { limiter: self.clone(), door, counter_stripe, pending: Arc::default() }
    }

    /// The clock that decisions are made by.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Where decisions are counted.
    #[must_use]
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Forgets one key. `false` if it was not remembered.
    ///
    /// Uses in flight that the key holds are forgiven with it. When they end they give nothing
    /// back: their start, and where they were taken from, tell them from uses taken after the
    /// reset.
    pub fn reset(&self, key: &[u8]) -> bool {
        let catalog = self.catalog.load();
        catalog.slot_of(self.memory(), key).is_some_and(|address| {
            let known = self.memory().remove(&address);
            self.wake_waiter(&address);
            known
        })
    }

    /// The statistics of one key; zeros if it is not remembered.
    #[must_use]
    pub fn stats(&self, key: &[u8], now: Now) -> KeyStats {
        let catalog = self.catalog.load();
        let bucket = StatsBucket::of(now);
        let slot = catalog.slot_of(self.memory(), key);
        slot.map_or_else(KeyStats::default, |slot| self.memory().stats(&slot, bucket))
    }

    /// How full the table is.
    #[must_use]
    pub fn size(&self) -> TableSize {
        self.memory().size()
    }

    /// The most keys that it remembers.
    pub(crate) fn keys_max(&self) -> usize {
        self.memory().keys_max()
    }

    /// Bytes that its keys take.
    pub(crate) fn bytes(&self) -> usize {
        self.memory().bytes()
    }

    /// The bytes that it shares with the records.
    pub(crate) fn budget(&self) -> &Arc<Budget> {
        self.memory().budget()
    }

    /// The keys with the most uses or refusals, most first. Walks the table, a shard at a time.
    #[must_use]
    pub fn top(&self, by: TopBy, count: usize) -> Vec<TopKey> {
        let catalog = self.catalog.load_full();
        let bucket = StatsBucket::of(self.clock.now());
        let figure = |stats: &KeyStats| match by {
            TopBy::Used => stats.requests,
            TopBy::Refused => stats.over,
        };
        let mut top: Vec<TopKey> = Vec::new();
        self.memory().scan(|name, body| {
            let stats = body.tally.stats(bucket);
            let least =
                if top.len() < count { 0 } else { top.last().map_or(0, |k| figure(&k.stats)) };
            if figure(&stats) <= least {
                return;
            }
            let Some(rule) = catalog.rule_of(body.tally.rule()) else { return };
            let key = name.filter(|_| !rule.shared).unwrap_or(rule.name.as_bytes());
            let at = top.partition_point(|k| figure(&k.stats) >= figure(&stats));
            top.insert(at, TopKey { key: key.to_vec(), rule: rule.name.clone(), stats });
            top.truncate(count);
        });
        top
    }

    /// Looks at `budget` more slots and forgets those that no longer say anything.
    pub fn sweep(&self, budget: usize) -> usize {
        let catalog = self.catalog.load();
        let now = self.clock.now();
        let bucket = StatsBucket::of(now);
        self.memory().sweep(budget, |body, pressed| catalog.dead(body, pressed, bucket, now))
    }

    fn memory(&self) -> &Memory {
        &self.store
    }
}

fn labels(rules: &RuleSet) -> Vec<RuleLabels> {
    rules.rules().iter().map(|rule| (rule.name.clone(), rule.on_store_error.name())).collect()
}
