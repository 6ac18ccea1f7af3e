//! Room for records: making, removing, sweeping, and what all of them take.
//!
//! No lock is held for more than a bounded number of cells, however many records expire at once.

use std::mem;
use std::sync::atomic::Ordering::Relaxed;

use tidegate_core::Now;

use super::record::{Kind, Name, Record, Value};
use super::{Life, Records, Settings};
use crate::table::{Locked, Spot};

/// Cells looked at for each new record, so that dead ones are found faster than new ones come.
const SWEEP_PER_INSERT: usize = 4;
/// Cells looked at for a new record that finds the table full.
const SWEEP_WHEN_FULL: usize = 256;
/// Cells looked at under one lock by the background sweep.
const SWEEP_STRIDE: usize = 64;

/// A record and its share of an index that is a little over half full.
pub(super) const SLOT_BYTES: usize = size_of::<Record>() + 8;

/// How many records there are, expired ones that are not swept yet included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Counters.
    pub counters: usize,
    /// Buffers.
    pub buffers: usize,
    /// Bytes that counters take, all included.
    pub counter_bytes: usize,
    /// Bytes that buffers take, all included.
    pub buffer_bytes: usize,
    /// Allocated places of the index.
    pub cells: usize,
}

/// The places to ask of a table for so many records: shards keep a few places for themselves.
pub(super) fn capacity(max_records: usize) -> usize {
    max_records.saturating_add(max_records / 16).saturating_add(128)
}

impl Records {
    /// Changes the bounds; `false` if that needs a larger table than was reserved.
    pub fn resize(&self, settings: Settings) -> bool {
        if settings.max_records > self.reserved_records {
            return false;
        }
        self.max_records.store(settings.max_records, Relaxed);
        self.max_bytes.store(settings.max_bytes, Relaxed);
        true
    }

    /// Looks at `budget` more cells and forgets what has expired. Returns how many records that
    /// were.
    pub fn sweep(&self, budget: usize, now: Now) -> usize {
        let mut removed = 0;
        let mut dead = Vec::with_capacity(SWEEP_STRIDE);
        for _ in 0..budget.div_ceil(SWEEP_STRIDE) {
            let number = self.swept.fetch_add(1, Relaxed) % self.table.shards();
            let mut shard = self.table.lock(number);
            self.sweep_shard(&mut shard, SWEEP_STRIDE, now, |record| dead.push(record));
            drop(shard);
            removed += dead.len();
            dead.clear();
        }
        removed
    }

    /// How many records there are, and what they take.
    #[must_use]
    pub fn size(&self) -> Size {
        let buffers = self.buffers.load(Relaxed);
        let counters = self.table.len().saturating_sub(buffers);
        let (heap, buffer_heap) = (self.heap.load(Relaxed), self.buffer_heap.load(Relaxed));
        Size {
            counters,
            buffers,
            counter_bytes: counters * SLOT_BYTES + heap.saturating_sub(buffer_heap),
            buffer_bytes: buffers * SLOT_BYTES + buffer_heap,
            cells: self.table.cells(),
        }
    }

    /// Makes a record where `found` holds an expired one of the same key, or there is none.
    /// `false` if there is no room.
    #[expect(clippy::too_many_arguments, reason = "a private step of one request, spelt out")]
    pub(super) fn make(
        &self,
        shard: &mut Locked<'_, Record>,
        found: Option<Spot>,
        key: &[u8],
        hash: u64,
        value: Value,
        life: Life,
        now: Now,
    ) -> bool {
        if life.amount == 0 {
            // It has expired before anybody can ask for it.
            return true;
        }
        if let Some(spot) = found {
            let record = shard.entry(spot);
            let before = (record.value.kind(), record.heap_bytes());
            let after = (value.kind(), record.name.heap_bytes() + value.heap_bytes());
            if !self.can_grow(before.1, after.1) {
                return false;
            }
            let name = mem::replace(&mut record.name, Name::new(&[]));
            *record = Record::new(name, value, life, self.sequence.fetch_add(1, Relaxed), now);
            self.account(Some(before), Some(after));
            return true;
        }
        self.sweep_shard(shard, SWEEP_PER_INSERT, now, drop);
        let name = Name::new(key);
        let heap = name.heap_bytes() + value.heap_bytes();
        if !self.has_room(heap) {
            self.sweep_shard(shard, SWEEP_WHEN_FULL, now, drop);
            if !self.has_room(heap) {
                return false;
            }
        }
        let kind = value.kind();
        let record = Record::new(name, value, life, self.sequence.fetch_add(1, Relaxed), now);
        let made = shard.insert(hash, record, |record| self.hash_of(record)).is_ok();
        if made {
            self.account(None, Some((kind, heap)));
        }
        made
    }

    /// Takes a record out.
    pub(super) fn remove(&self, shard: &mut Locked<'_, Record>, spot: Spot) -> Record {
        let record = shard.remove(spot, |record| self.hash_of(record));
        self.account(Some((record.value.kind(), record.heap_bytes())), None);
        record
    }

    fn sweep_shard(
        &self,
        shard: &mut Locked<'_, Record>,
        budget: usize,
        now: Now,
        mut buried: impl FnMut(Record),
    ) {
        shard.sweep(
            budget,
            |record| self.hash_of(record),
            |record| record.expired(now),
            |record| {
                self.account(Some((record.value.kind(), record.heap_bytes())), None);
                buried(record);
            },
        );
    }

    /// Whether a record may come to hold `after` bytes where it held `before`.
    pub(super) fn can_grow(&self, before: usize, after: usize) -> bool {
        after <= before || self.bytes() + (after - before) <= self.max_bytes.load(Relaxed)
    }

    fn has_room(&self, heap: usize) -> bool {
        self.table.len() < self.max_records.load(Relaxed)
            && self.bytes() + SLOT_BYTES + heap <= self.max_bytes.load(Relaxed)
    }

    fn bytes(&self) -> usize {
        self.table.len() * SLOT_BYTES + self.heap.load(Relaxed)
    }

    /// Books that a record of a kind and so many bytes outside of its slot became another one,
    /// came, or went.
    pub(super) fn account(&self, before: Option<(Kind, usize)>, after: Option<(Kind, usize)>) {
        let heap = |side: Option<(Kind, usize)>| side.map_or(0, |(_, heap)| heap);
        let buffer = |side: Option<(Kind, usize)>| side.filter(|(kind, _)| *kind == Kind::Buffer);
        let changes = [
            (&self.heap, heap(before), heap(after)),
            (&self.buffer_heap, heap(buffer(before)), heap(buffer(after))),
            (
                &self.buffers,
                usize::from(buffer(before).is_some()),
                usize::from(buffer(after).is_some()),
            ),
        ];
        for (figure, before, after) in changes {
            if after > before {
                figure.fetch_add(after - before, Relaxed);
            } else if before > after {
                figure.fetch_sub(before - after, Relaxed);
            }
        }
    }
}
