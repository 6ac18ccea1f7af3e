//! The limiter: which rule, which slot, one atomic step, one verdict, counted once.
//!
//! Doors come to it with keys and leave with verdicts. It chooses no bytes of any protocol, reads
//! no socket, and takes no lock that a reload holds: the rules are swapped behind an atomic.

mod attempt;
mod catalog;
mod decision;
mod delayed;
mod desk;
mod elsewhere;
mod keep;
mod record;
#[cfg(test)]
mod tests;
mod without_slot;

use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tidegate_core::rules::RuleSet;
use tidegate_core::{Limit, LimitVerdict, Nanos, Now};

pub(crate) use self::attempt::{Count, Take, TakeAnswer, Taken, Tried};
use self::catalog::Catalog;
pub(crate) use self::catalog::keeps_counts;
pub use self::decision::LIMITS_MAX;
pub use self::delayed::Search;
pub use self::desk::Desk;
pub(crate) use self::keep::{Import, Kept};
pub use self::record::{Recording, Told, When};
use crate::budget::Budget;
use crate::clock::Clock;
use crate::metrics::{Door, Metrics, RuleLabels};
pub(crate) use crate::stores::memory::Aim;
use crate::stores::memory::{self, Address, Bucket, Memory};
pub use crate::stores::memory::{KeyStats, Size, TakenFrom};
use crate::stores::remote::Remote;

/// The most keys that one request may carry.
pub const KEYS_MAX: usize = 32;

/// Why a request cannot be decided at all: bad input, never a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// The key is longer than keys may be.
    #[error("the key is longer than {} bytes", tidegate_core::key::KEY_BYTES_MAX)]
    KeyTooLong,
    /// There are more keys than a request may carry, or none.
    #[error("a request carries 1 to {KEYS_MAX} keys")]
    TooManyKeys,
    /// Nothing is asked for.
    #[error("the cost must be at least 1")]
    CostZero,
    /// More is asked for than can ever be had.
    #[error("the cost can never be had: at most {limit} fit at once")]
    CostAboveLimit {
        /// The most that can be had at once.
        limit: u64,
    },
    /// The key's limit is on uses in flight, and this door cannot say when a use ends.
    #[error("this key limits uses in flight: ask where the end of a use can be told")]
    NeedsEnd,
}

impl Unfit {
    /// The reason in metrics.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Unfit::KeyTooLong => "key_too_long",
            Unfit::TooManyKeys => "too_many_keys",
            Unfit::CostZero => "cost_zero",
            Unfit::CostAboveLimit { .. } => "cost_above_limit",
            Unfit::NeedsEnd => "in_flight_key",
        }
    }
}

/// A verdict on one key in the few words that a text line has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// Whether the key is over its limit.
    pub over: bool,
    /// Its use in requests per period.
    pub rate: f64,
    /// The amount of the limit shown.
    pub limit: u64,
    /// The period of the limit shown.
    pub period: Nanos,
}

impl Line {
    /// What is said of a key that nothing limits.
    pub const UNLIMITED: Line =
        Line { over: false, rate: 0.0, limit: 1, period: tidegate_core::time::SECOND };
}

/// How long the caller of one key must wait before it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delay {
    /// Nothing, if it may go at once.
    pub span: Nanos,
    /// Whether a caller that goes a little too early breaks a limit. Not so under the formula of
    /// `jarl`'s document, which promises nothing.
    pub firm: bool,
}

impl Delay {
    /// What is said of a key that nothing limits.
    pub const NONE: Delay = Delay { span: 0, firm: false };
}

/// A verdict on all keys of a request.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Whether the request may go.
    pub allowed: bool,
    /// The time by which it was decided: the start to give to [`Desk::release`] when a use ends.
    pub at: Now,
    /// How long until it could, as far as can be told now; [`Nanos::MAX`] if never.
    pub delay: Nanos,
    /// The rule that refused.
    pub refused_by: Option<Arc<str>>,
    /// Which of the request's keys hold uses in flight that must be released; the others must
    /// not be, since what would be given back is somebody else's.
    pub held: Vec<HeldKey>,
    /// What each limit of each key says.
    pub limits: Vec<LimitAnswer>,
}

/// Answers are the same when they say the same, whenever that was.
impl PartialEq for Answer {
    fn eq(&self, other: &Self) -> bool {
        (self.allowed, self.delay, &self.refused_by)
            == (other.allowed, other.delay, &other.refused_by)
            && (&self.held, &self.limits) == (&other.held, &other.limits)
    }
}

/// A key of a request that holds uses in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldKey {
    /// Which of the request's keys.
    pub key: usize,
    /// Where its end must give it back.
    pub from: TakenFrom,
}

/// What one limit of one key says.
#[derive(Clone, Debug, PartialEq)]
pub struct LimitAnswer {
    /// Which of the request's keys.
    pub key: usize,
    /// The rule's name.
    pub rule: Arc<str>,
    /// The limit.
    pub limit: Limit,
    /// Its verdict.
    pub verdict: LimitVerdict,
    /// What the verdict rests on.
    pub basis: Basis,
}

/// What a limit's verdict rests on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Basis {
    /// The counts where they belong: in this process' memory, or in the remote store.
    #[default]
    Counts,
    /// What this node has counted by itself, because the remote store was not there.
    LocalCounts,
    /// No counts: the remote store was not there, and the rule's `on_store_error` has decided.
    Policy,
}

impl LimitAnswer {
    /// Whether it was decided without the remote store that has its counts.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        self.basis != Basis::Counts
    }
}

impl Answer {
    /// Whether some limit was decided without the remote store that has its counts.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        self.limits.iter().any(LimitAnswer::is_degraded)
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

/// Who wants to be told that there may be something to take. Rung with no lock held.
pub(crate) trait Bell: Send + Sync {
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
    /// Where counts lie if not here; statistics do in any case.
    remote: OnceLock<Remote>,
    bell: OnceLock<Arc<dyn Bell>>,
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
            bell: OnceLock::new(),
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
        // Still under the lock: two reloads arrange those who wait one after the other.
        if let Some(bell) = self.bell.get() {
            bell.renewed(self);
        }
    }

    /// Lets somebody hear of whatever may be taken again. The first who asks stays.
    pub(crate) fn watch(&self, bell: Arc<dyn Bell>) {
        let _ = self.bell.set(bell);
    }

    fn ring(&self, freed: &Address<'_>) {
        if let Some(bell) = self.bell.get() {
            match freed.gives_back {
                Some(TakenFrom::Shared) => bell.freed_anywhere(freed.rule),
                _ => bell.freed(&Count::of(freed)),
            }
        }
    }

    /// Changes the bounds of the table; `false` if it takes a restart to make it larger.
    pub fn resize(&self, memory: memory::Settings) -> bool {
        self.memory().resize(memory)
    }

    /// The rules in force.
    #[must_use]
    pub fn rules(&self) -> Arc<RuleSet> {
        self.catalog.load().set().clone()
    }

    /// A place for one loop of a door to ask from.
    #[must_use]
    pub fn desk(self: &Arc<Self>, door: Door) -> Desk {
        Desk::new(self.clone(), door)
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
    /// Uses in flight that the key holds are forgiven with it: when they end, they are told from
    /// uses taken after the reset by their start and by where they were taken from, and give
    /// nothing back.
    pub fn reset(&self, key: &[u8]) -> bool {
        let slot = self.catalog.load().slot_of(self.memory(), key);
        slot.is_some_and(|address| {
            let known = self.memory().remove(&address);
            self.ring(&address);
            known
        })
    }

    /// The statistics of one key; zeros if it is not remembered.
    #[must_use]
    pub fn stats(&self, key: &[u8], now: Now) -> KeyStats {
        let catalog = self.catalog.load();
        let bucket = Bucket::of(now);
        let Some(address) = catalog.slot_of(self.memory(), key) else {
            return KeyStats::default();
        };
        self.memory().one(
            &address,
            bucket,
            |body, pressed| catalog.dead(body, pressed, bucket, now),
            |body, _| body.tally.stats(bucket),
        )
    }

    /// How full the table is.
    #[must_use]
    pub fn size(&self) -> Size {
        self.memory().size()
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
        let bucket = Bucket::of(self.clock.now());
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
        let bucket = Bucket::of(now);
        self.memory().sweep(budget, |body, pressed| catalog.dead(body, pressed, bucket, now))
    }

    fn memory(&self) -> &Memory {
        &self.store
    }
}

fn labels(rules: &RuleSet) -> Vec<RuleLabels> {
    rules.rules().iter().map(|rule| (rule.name.clone(), rule.on_store_error.name())).collect()
}
