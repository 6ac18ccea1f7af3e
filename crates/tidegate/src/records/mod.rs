//! Records: counters and buffers with a time to live, in a table of their own.
//!
//! They are not limits. Whether a record has expired is judged at each access, on the monotonic
//! clock; the memory of expired ones comes back a little at each insertion and by a background
//! sweep. A live record is never evicted: when the bounds are reached, new keys are refused. Kinds,
//! units and changes are those of the Throttr protocol; its bytes are not known here.

mod capacity;
mod earliest;
mod edit;
mod export;
mod life;
mod listing;
mod record;
mod several;
mod tally;
#[cfg(test)]
mod tests;

use std::hash::{BuildHasher, Hasher};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize};

use foldhash::SharedSeed;
use foldhash::quality::SeedableRandomState;
use tidegate_core::key::same;
use tidegate_core::{Nanos, Now};
pub use tidegate_wire::throttr::fragments::RecordKind;
pub use tidegate_wire::throttr::reply::Stat;
pub use tidegate_wire::throttr::{Unit, UpdateChange};

pub use self::capacity::RecordsSize;
use self::capacity::{Footprint, MemoryUse};
use self::earliest::Earliest;
pub use self::edit::{AddRefusal, Content, RecordEdit, SeenRecord};
pub(crate) use self::export::KeptRecord;
pub use self::life::Life;
use self::life::units_left;
pub use self::listing::ListedRecord;
use self::record::RecordEntry;
pub(crate) use self::record::RecordValue;
pub use self::several::RecordTake;
use self::tally::Use;
use crate::budget::Budget;
use crate::limiter::Limiter;
use crate::table::{self, Locked, Spot, Table};

/// The longest key, in bytes.
pub const KEY_BYTES_MAX: usize = 255;

/// The bounds of all records together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The most records at once.
    pub max_records: usize,
    /// The most bytes that they may take, all included.
    pub max_bytes: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self { max_records: 10_000_000, max_bytes: 4 << 30 }
    }
}

/// What a counter reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterReading {
    /// What can still be taken.
    pub quota: u64,
    /// The unit of the record's life.
    pub unit: Unit,
    /// Whole units that are left of it.
    pub left: u64,
}

/// Why nothing was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConsumeRefusal {
    /// The quota is smaller than the cost.
    Short,
    /// The key holds a buffer.
    Buffer,
    /// There was no record, and there is no room for one.
    Full,
}

/// What became of [`Records::consume`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConsumeOutcome {
    /// Whether the cost was taken.
    pub taken: bool,
    /// Why not.
    pub refusal: Option<ConsumeRefusal>,
    /// What can still be taken.
    pub remaining: u64,
    /// What is left of the record's life, in whole units of the request: the answer names none.
    pub left: u64,
    /// The same in nanoseconds; 0 where there is no record, [`Nanos::MAX`] if it never expires.
    pub left_nanos: Nanos,
}

/// Where the record of a key most likely lies, if there is one.
#[derive(Clone, Copy)]
pub struct RecordProbe<'r>(table::TableProbe<'r, RecordEntry>);

impl RecordProbe<'_> {
    /// Prefetches the index line. A batch does this for all its probes first.
    #[inline]
    pub fn prefetch(&self) {
        self.0.prefetch();
    }

    /// Prefetches the record. A batch does this for all its probes once their lines are there.
    #[inline]
    pub fn prefetch_slot(&mut self) {
        self.0.prefetch_slot();
    }

    #[inline]
    fn hash(&self) -> u64 {
        self.0.hash()
    }
}

/// All records of the process.
pub struct Records {
    table: Table<RecordEntry>,
    hasher: SeedableRandomState,
    /// The number of the next record in the order of insertion.
    sequence: AtomicU64,
    max_records: AtomicUsize,
    /// The most records that the table was made for.
    reserved_records: usize,
    memory: MemoryUse,
    earliest: Earliest,
    swept: AtomicUsize,
}

impl Records {
    /// No records, and these bounds.
    #[must_use]
    pub fn new(settings: Settings) -> Arc<Self> {
        let budget = Arc::new(Budget::new(settings.max_bytes));
        Self::with(settings.max_records, MemoryUse::new(budget, None))
    }

    /// No records yet; their bytes and those of the limiter's keys are bounded together.
    #[must_use]
    pub fn beside(limiter: &Arc<Limiter>, max_records: usize) -> Arc<Self> {
        Self::with(max_records, MemoryUse::new(limiter.budget().clone(), Some(limiter.clone())))
    }

    fn with(max_records: usize, memory: MemoryUse) -> Arc<Self> {
        // Clients choose the keys: without a secret seed they could make all of them collide.
        let seed = getrandom::u64().unwrap_or(0x7265_636f_7264_7321);
        let shared = getrandom::u64().unwrap_or(0x7468_726f_7474_6c65);
        // The shared part is made once for each table, and a process has one: nothing leaks.
        let shared: &'static SharedSeed = Box::leak(Box::new(SharedSeed::from_u64(shared)));
        Arc::new(Self {
            table: Table::new(capacity::slots_for(max_records)),
            hasher: SeedableRandomState::with_seed(seed, shared),
            sequence: AtomicU64::new(0),
            max_records: max_records.into(),
            reserved_records: max_records,
            memory,
            earliest: Earliest::new(),
            swept: AtomicUsize::new(0),
        })
    }

    /// Where a key's record most likely lies. Every operation takes this, so that a batch can make
    /// and prefetch all its probes first.
    #[inline]
    #[must_use]
    pub fn probe(&self, key: &[u8]) -> RecordProbe<'_> {
        RecordProbe(self.table.probe(self.hash(key)))
    }

    #[inline]
    fn hash(&self, key: &[u8]) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(key);
        hasher.finish()
    }

    /// Makes a counter. `false` if the key holds a live record of either kind, or there is no
    /// room.
    pub fn insert(
        &self,
        key: &[u8],
        probe: RecordProbe<'_>,
        quota: u64,
        life: Life,
        now: Now,
    ) -> bool {
        let hash = probe.hash();
        let mut shard = self.lock(hash);
        match find(&mut shard, hash, key) {
            Some(spot) if !shard.entry(spot).expired(now) => false,
            found => {
                self.make(&mut shard, found, key, hash, RecordValue::Counter(quota), life, now)
            }
        }
    }

    /// Reads a counter. `None` if there is no live one.
    #[inline]
    pub fn query(&self, key: &[u8], probe: RecordProbe<'_>, now: Now) -> Option<CounterReading> {
        self.live(key, probe, now, |record| {
            let RecordValue::Counter(quota) = record.value else { return None };
            record.count(Use::Read, now);
            Some(CounterReading { quota, unit: record.unit, left: record.left(now) })
        })
    }

    /// Changes a counter's quota, unless it would fall below zero or rise above `max`.
    #[inline]
    pub fn update_quota(
        &self,
        key: &[u8],
        probe: RecordProbe<'_>,
        change: UpdateChange,
        value: u64,
        max: u64,
        now: Now,
    ) -> bool {
        let changed = self.live(key, probe, now, |record| {
            let RecordValue::Counter(quota) = &mut record.value else { return None };
            *quota = match change {
                UpdateChange::Patch => value,
                UpdateChange::Increase => quota.checked_add(value).filter(|sum| *sum <= max)?,
                UpdateChange::Decrease => quota.checked_sub(value)?,
            };
            record.count(Use::Write, now);
            Some(())
        });
        changed.is_some()
    }

    /// Changes a record's life by `value` of its own units.
    pub fn update_ttl(
        &self,
        key: &[u8],
        probe: RecordProbe<'_>,
        change: UpdateChange,
        value: u64,
        now: Now,
    ) -> bool {
        let changed = self.live(key, probe, now, |record| {
            let life = Life { unit: record.unit, amount: value };
            record.expiry = life.changed(change, record.expiry, now);
            self.earliest.note(record.expiry);
            record.count(Use::Write, now);
            Some(())
        });
        changed.is_some()
    }

    /// Removes a record. `false` if there is no live one.
    pub fn purge(&self, key: &[u8], probe: RecordProbe<'_>, now: Now) -> bool {
        let hash = probe.hash();
        let mut shard = self.lock(hash);
        let Some(spot) = find(&mut shard, hash, key) else { return false };
        let record = self.remove(&mut shard, spot);
        drop(shard);
        !record.expired(now)
    }

    /// Makes a buffer, or overwrites a live one with its life and unit. `false` if the key holds a
    /// live counter, or there is no room.
    pub fn set(
        &self,
        key: &[u8],
        probe: RecordProbe<'_>,
        value: &[u8],
        life: Life,
        now: Now,
    ) -> bool {
        // What takes longer, allocating and freeing, happens outside of the lock.
        let value = RecordValue::Buffer(value.into());
        let hash = probe.hash();
        let mut shard = self.lock(hash);
        let Some(spot) = find(&mut shard, hash, key) else {
            return self.make(&mut shard, None, key, hash, value, life, now);
        };
        let record = shard.entry(spot);
        if record.expired(now) {
            return self.make(&mut shard, Some(spot), key, hash, value, life, now);
        }
        if record.value.kind() == RecordKind::Counter {
            return false;
        }
        if life.amount == 0 {
            // Overwritten, and over at once.
            self.remove(&mut shard, spot);
            return true;
        }
        let after = Footprint::new(&record.name, &value);
        let Some(record) = self.regrow(&mut shard, hash, key, after, now) else { return false };
        let old = mem::replace(&mut record.value, value);
        self.begin_life(record, life, now);
        drop(shard);
        drop(old);
        true
    }

    /// Shows a buffer's value, unit and whole units left to `see`, under its lock. `None` if there
    /// is no live one.
    pub fn get<R>(
        &self,
        key: &[u8],
        probe: RecordProbe<'_>,
        now: Now,
        see: impl FnOnce(&[u8], Unit, u64) -> R,
    ) -> Option<R> {
        self.live(key, probe, now, |record| {
            if record.value.kind() == RecordKind::Buffer {
                record.count(Use::Read, now);
            }
            match &record.value {
                RecordValue::Buffer(value) => Some(see(value, record.unit, record.left(now))),
                RecordValue::Counter(_) => None,
            }
        })
    }

    /// Takes `cost` from a counter if it has as much, in one step. A counter that is absent or has
    /// expired is first made with this quota and life.
    pub fn consume(
        &self,
        key: &[u8],
        probe: RecordProbe<'_>,
        cost: u64,
        quota: u64,
        life: Life,
        now: Now,
    ) -> ConsumeOutcome {
        if let Some(mut record) = probe.0.find(|record| is(record, key))
            && !record.expired(now)
        {
            return record.consume(cost, life, now);
        }
        let hash = probe.hash();
        let mut shard = self.lock(hash);
        let found = find(&mut shard, hash, key);
        let live = found.filter(|spot| !shard.entry(*spot).expired(now));
        let Some(spot) = live else {
            let rest = quota.checked_sub(cost);
            let value = RecordValue::Counter(rest.unwrap_or(quota));
            if !self.make(&mut shard, found, key, hash, value, life, now) {
                return ConsumeOutcome::new(Err(ConsumeRefusal::Full), 0, life.unit, now.mono, now);
            }
            let outcome = rest.map(|_| ()).ok_or(ConsumeRefusal::Short);
            return ConsumeOutcome::new(
                outcome,
                rest.unwrap_or(quota),
                life.unit,
                life.expiry(now),
                now,
            );
        };
        shard.entry(spot).consume(cost, life, now)
    }

    /// The statistics of a record. Asking for them counts as no use.
    pub fn stat(&self, key: &[u8], probe: RecordProbe<'_>, now: Now) -> Option<Stat> {
        self.live(key, probe, now, |record| Some(record.stat(now)))
    }

    #[inline]
    fn lock(&self, hash: u64) -> Locked<'_, RecordEntry> {
        self.table.lock(self.table.shard_of(hash))
    }

    /// One step on a live record.
    #[inline(always)]
    fn live<R>(
        &self,
        key: &[u8],
        probe: RecordProbe<'_>,
        now: Now,
        act: impl FnOnce(&mut RecordEntry) -> Option<R>,
    ) -> Option<R> {
        let step = |record: &mut RecordEntry| if record.expired(now) { None } else { act(record) };
        match probe.0.find(|record| is(record, key)) {
            Some(mut record) => step(&mut record),
            None => self.live_anywhere(key, probe.hash(), step),
        }
    }

    /// As [`Self::live`], for a record that does not lie where its hash leads to.
    #[cold]
    #[inline(never)]
    fn live_anywhere<R>(
        &self,
        key: &[u8],
        hash: u64,
        step: impl FnOnce(&mut RecordEntry) -> Option<R>,
    ) -> Option<R> {
        let mut shard = self.lock(hash);
        let spot = find(&mut shard, hash, key)?;
        step(shard.entry(spot))
    }

    fn hash_of(&self, record: &RecordEntry) -> u64 {
        self.hash(record.name.as_bytes())
    }
}

impl RecordEntry {
    /// Takes `cost` if there is as much.
    fn consume(&mut self, cost: u64, life: Life, now: Now) -> ConsumeOutcome {
        let (outcome, remaining) = match &mut self.value {
            RecordValue::Buffer(_) => (Err(ConsumeRefusal::Buffer), 0),
            RecordValue::Counter(quota) => match quota.checked_sub(cost) {
                None => (Err(ConsumeRefusal::Short), *quota),
                Some(rest) => {
                    *quota = rest;
                    (Ok(()), rest)
                }
            },
        };
        self.count(if outcome.is_ok() { Use::Write } else { Use::Read }, now);
        ConsumeOutcome::new(outcome, remaining, life.unit, self.expiry, now)
    }
}

impl ConsumeOutcome {
    fn new(
        outcome: Result<(), ConsumeRefusal>,
        remaining: u64,
        unit: Unit,
        expiry: Nanos,
        now: Now,
    ) -> Self {
        Self {
            taken: outcome.is_ok(),
            refusal: outcome.err(),
            remaining,
            left: units_left(unit, expiry, now),
            left_nanos: life::left_nanos(expiry, now),
        }
    }
}

#[inline]
fn find(shard: &mut Locked<'_, RecordEntry>, hash: u64, key: &[u8]) -> Option<Spot> {
    shard.find(hash, |record| is(record, key))
}

#[inline(always)]
fn is(record: &RecordEntry, key: &[u8]) -> bool {
    same(record.name.as_bytes(), key)
}
