//! How many records there may be and what they may take: making, removing, sweeping.
//!
//! No lock is held for more than a bounded number of cells, however many records expire at once.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tidegate_core::{Nanos, Now};

use super::record::{RecordEntry, RecordValue};
use super::{Life, RecordKind, Records, Settings, find};
use crate::budget::Budget;
use crate::limiter::Limiter;
use crate::table::{Locked, Name, Spot};

/// Cells looked at for each new record, so that dead ones are found faster than new ones come.
const SWEEP_PER_INSERT: usize = 4;
/// Cells looked at for a new record that finds the table full.
const SWEEP_WHEN_FULL: usize = 256;
/// Cells looked at under one lock by the background sweep.
const SWEEP_STRIDE: usize = 64;

/// A record and its share of an index that is a little over half full.
pub(super) const SLOT_BYTES: usize = size_of::<RecordEntry>() + 8;

/// How many records there are, expired ones that are not swept yet included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordsSize {
    /// Counters.
    pub counters: usize,
    /// Buffers.
    pub buffers: usize,
    /// Bytes that all of them take, all included.
    pub bytes: usize,
    /// Bytes of the buffers' values alone.
    pub value_bytes: usize,
    /// Allocated places of the index.
    pub cells: usize,
}

impl RecordsSize {
    /// Records of either kind.
    #[must_use]
    pub fn records(&self) -> usize {
        self.counters + self.buffers
    }
}

/// The places to ask of a table for so many records: shards keep a few places for themselves.
pub(super) fn slots_for(max_records: usize) -> usize {
    max_records.saturating_add(max_records / 16).saturating_add(128)
}

/// The bytes that the records take, within their budget.
pub(super) struct MemoryUse {
    budget: Arc<Budget>,
    /// Whose keys share the budget.
    limiter: Option<Arc<Limiter>>,
    buffers: AtomicUsize,
    value_bytes: AtomicUsize,
}

/// What one record takes, all included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Footprint {
    kind: RecordKind,
    bytes: usize,
    value_bytes: usize,
}

impl Footprint {
    pub(super) fn new(name: &Name, value: &RecordValue) -> Self {
        let value_bytes = value.heap_bytes();
        let bytes = SLOT_BYTES + name.heap_bytes() + value_bytes;
        Self { kind: value.kind(), bytes, value_bytes }
    }
}

impl MemoryUse {
    pub(super) fn new(budget: Arc<Budget>, limiter: Option<Arc<Limiter>>) -> Self {
        let (buffers, value_bytes) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { budget, limiter, buffers, value_bytes }
    }

    /// Counts that a record became another one, came, or went. `false`, and nothing is counted, if
    /// that would take more bytes than there are.
    pub(super) fn change(&self, before: Option<Footprint>, after: Option<Footprint>) -> bool {
        let bytes = |side: Option<Footprint>| side.map_or(0, |footprint| footprint.bytes);
        if bytes(after) > bytes(before) {
            let keys = self.limiter.as_ref().map_or(0, |limiter| limiter.bytes());
            if !self.budget.take(bytes(after) - bytes(before), keys) {
                return false;
            }
        } else if bytes(before) > bytes(after) {
            self.budget.give_back(bytes(before) - bytes(after));
        }
        let buffer = |side: &Footprint| side.kind == RecordKind::Buffer;
        if let Some(footprint) = before.filter(buffer) {
            self.buffers.fetch_sub(1, Relaxed);
            self.value_bytes.fetch_sub(footprint.value_bytes, Relaxed);
        }
        if let Some(footprint) = after.filter(buffer) {
            self.buffers.fetch_add(1, Relaxed);
            self.value_bytes.fetch_add(footprint.value_bytes, Relaxed);
        }
        true
    }
}

impl Records {
    /// Changes the bounds; `false` if `max_records` stays, because the table was reserved for
    /// fewer.
    pub fn resize(&self, settings: Settings) -> bool {
        self.memory.budget.set_max_bytes(settings.max_bytes);
        let fits = settings.max_records <= self.reserved_records;
        if fits {
            self.max_records.store(settings.max_records, Relaxed);
        }
        fits
    }

    /// Looks at `budget` more cells and forgets what has expired. Returns how many records that
    /// were.
    pub fn sweep(&self, budget: usize, now: Now) -> usize {
        let (mut removed, mut looked, mut earliest) = (0, 0, Nanos::MAX);
        let mut dead = Vec::with_capacity(SWEEP_STRIDE);
        for _ in 0..budget.div_ceil(SWEEP_STRIDE) {
            let number = self.swept.fetch_add(1, Relaxed) % self.table.shards();
            let mut shard = self.table.lock(number);
            let live = self.sweep_shard(&mut shard, SWEEP_STRIDE, now, |record| dead.push(record));
            drop(shard);
            looked += SWEEP_STRIDE;
            earliest = earliest.min(live);
            removed += dead.len();
            // What they held is freed outside of the lock.
            dead.clear();
        }
        self.earliest.looked(looked, self.table.cells(), earliest);
        removed
    }

    /// How many records there are, and what they take.
    #[must_use]
    pub fn size(&self) -> RecordsSize {
        let buffers = self.memory.buffers.load(Relaxed);
        RecordsSize {
            counters: self.table.len().saturating_sub(buffers),
            buffers,
            bytes: self.memory.budget.records(),
            value_bytes: self.memory.value_bytes.load(Relaxed),
            cells: self.table.cells(),
        }
    }

    /// The most records of either kind.
    pub(crate) fn records_max(&self) -> usize {
        self.max_records.load(Relaxed)
    }

    /// Makes a record where `found` holds an expired one of the same key, or there is none.
    /// `false` if there is no room.
    #[expect(clippy::too_many_arguments, reason = "a private step of one request, spelt out")]
    pub(super) fn make(
        &self,
        shard: &mut Locked<'_, RecordEntry>,
        found: Option<Spot>,
        key: &[u8],
        hash: u64,
        value: RecordValue,
        life: Life,
        now: Now,
    ) -> bool {
        if life.amount == 0 {
            // It has expired before any request can ask for it.
            return true;
        }
        let Some(spot) = found else {
            let name = Name::new(key);
            let record =
                RecordEntry::new(name, value, life, self.sequence.fetch_add(1, Relaxed), now);
            return self.add(shard, hash, record, now);
        };
        let record = shard.entry(spot);
        let sequence = self.sequence.fetch_add(1, Relaxed);
        let after = Footprint::new(&record.name, &value);
        if !self.memory.change(Some(record.footprint()), Some(after)) {
            // Among others that have expired there may be room.
            let name = self.remove(shard, spot).name;
            return self.add(shard, hash, RecordEntry::new(name, value, life, sequence, now), now);
        }
        let name = mem::replace(&mut record.name, Name::new(&[]));
        *record = RecordEntry::new(name, value, life, sequence, now);
        self.earliest.note(record.expiry);
        true
    }

    /// Counts that a live record will take as much as `after`, sweeping first if it must.
    pub(super) fn regrow<'a>(
        &self,
        shard: &'a mut Locked<'_, RecordEntry>,
        hash: u64,
        key: &[u8],
        after: Footprint,
        now: Now,
    ) -> Option<&'a mut RecordEntry> {
        let spot = find(shard, hash, key)?;
        if self.memory.change(Some(shard.entry(spot).footprint()), Some(after)) {
            return Some(shard.entry(spot));
        }
        self.sweep_shard(shard, SWEEP_WHEN_FULL, now, drop);
        let spot = find(shard, hash, key)?;
        let fits = self.memory.change(Some(shard.entry(spot).footprint()), Some(after));
        fits.then(|| shard.entry(spot))
    }

    /// Adds a record whose key has none, sweeping a little first. `false` if there is no room.
    pub(super) fn add(
        &self,
        shard: &mut Locked<'_, RecordEntry>,
        hash: u64,
        record: RecordEntry,
        now: Now,
    ) -> bool {
        if self.earliest.passed(now) {
            self.sweep_shard(shard, SWEEP_PER_INSERT, now, drop);
        }
        self.earliest.note(record.expiry);
        let footprint = record.footprint();
        let most = self.max_records.load(Relaxed);
        let fits = || self.table.len() < most && self.memory.change(None, Some(footprint));
        if !fits() {
            self.sweep_shard(shard, SWEEP_WHEN_FULL, now, drop);
            if !fits() {
                return false;
            }
        }
        let Ok(spot) = shard.insert(hash, record, |record| self.hash_of(record)) else {
            self.memory.change(Some(footprint), None);
            return false;
        };
        if self.table.len() > most {
            // Another loop had the last place at the same time.
            self.remove(shard, spot);
            return false;
        }
        true
    }

    /// Takes a record out.
    pub(super) fn remove(&self, shard: &mut Locked<'_, RecordEntry>, spot: Spot) -> RecordEntry {
        let record = shard.remove(spot, |record| self.hash_of(record));
        self.memory.change(Some(record.footprint()), None);
        record
    }

    /// Looks at `budget` more cells of a shard. Returns the earliest expiry of what lives there.
    fn sweep_shard(
        &self,
        shard: &mut Locked<'_, RecordEntry>,
        budget: usize,
        now: Now,
        mut removed: impl FnMut(RecordEntry),
    ) -> Nanos {
        let mut earliest = Nanos::MAX;
        shard.sweep(
            budget,
            |record| self.hash_of(record),
            |record| {
                let expired = record.expired(now);
                if !expired {
                    earliest = earliest.min(record.expiry);
                }
                expired
            },
            |record| {
                self.memory.change(Some(record.footprint()), None);
                removed(record);
            },
        );
        earliest
    }
}
