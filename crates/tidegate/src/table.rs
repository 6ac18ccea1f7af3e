//! A sharded, bounded table of fixed-size slots: what the limiter's keys are kept in.
//!
//! Each shard is a dense `Vec` of slots behind a lock, found through an index of 32-bit cells
//! (8 bits of the hash, 24 bits of position) with linear probing. Slots and indexes are reserved
//! at their largest size when the table is made, but only what is used is ever touched, so only
//! that is resident; and since neither ever moves, a batch can prefetch both without a lock.
//!
//! It knows nothing of limits: which slot is dead is the caller's word.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

use parking_lot::{Mutex, MutexGuard};

use crate::prefetch::prefetch;

/// The most shards: enough that loops on many cores seldom meet.
const SHARDS_MAX: usize = 1024;
/// A shard is worth its lock from about so many slots on.
const SHARD_SLOTS_MIN: usize = 4096;
/// The largest number of slots of a shard that a cell's 24 bits can name.
const SHARD_SLOTS_MAX: usize = (1 << POSITION_BITS) - 2;
const POSITION_BITS: u32 = 24;
const POSITION_MASK: u32 = (1 << POSITION_BITS) - 1;
/// The cells of an index before its first growth.
const CELLS_MIN: usize = 64;
const CACHE_LINE: usize = 64;

/// A sharded table of `E`.
pub(crate) struct Table<E> {
    shards: Box<[Shard<E>]>,
    /// The index cells of all shards, `stride` for each. Zero is an empty cell.
    cells: Box<[AtomicU32]>,
    stride: usize,
    len: AtomicUsize,
}

// Two shards in one line would make two cores fight over locks that have nothing in common.
#[repr(align(128))]
struct Shard<E> {
    slots: Mutex<Slots<E>>,
    /// The cells in use less one; they are the first of the shard's stride.
    mask: AtomicU32,
    /// Where the slots lie, for prefetching alone.
    base: usize,
}

struct Slots<E> {
    entries: Vec<E>,
    /// Where the next sweep goes on.
    cursor: usize,
}

impl<E> Table<E> {
    /// A table for up to about `max` entries.
    pub(crate) fn new(max: usize) -> Self {
        let shards = (max / SHARD_SLOTS_MIN).clamp(1, SHARDS_MAX).next_power_of_two();
        let shards = if shards > SHARDS_MAX { SHARDS_MAX } else { shards };
        let mean = max.div_ceil(shards);
        // Hashing fills shards unevenly: eight standard deviations never happen.
        let slack = if shards == 1 { 0 } else { 8 * (mean as f64).sqrt() as usize + 64 };
        let capacity = (mean + slack).min(SHARD_SLOTS_MAX);
        let stride = (capacity * 8 / 7 + 1).next_power_of_two().max(CELLS_MIN);
        let shards = (0..shards)
            .map(|_| {
                let entries = Vec::with_capacity(capacity);
                Shard {
                    base: entries.as_ptr() as usize,
                    slots: Mutex::new(Slots { entries, cursor: 0 }),
                    mask: AtomicU32::new(CELLS_MIN as u32 - 1),
                }
            })
            .collect::<Box<[_]>>();
        let cells = bytemuck::allocation::zeroed_slice_box(stride * shards.len());
        Self { shards, cells, stride, len: AtomicUsize::new(0) }
    }

    /// The number of entries.
    pub(crate) fn len(&self) -> usize {
        self.len.load(Relaxed)
    }

    /// The number of shards.
    pub(crate) fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Index cells in use by all shards, occupied or not.
    pub(crate) fn cells(&self) -> usize {
        self.shards.iter().map(|shard| shard.mask.load(Relaxed) as usize + 1).sum()
    }

    /// Which shard holds entries of this hash.
    pub(crate) fn shard_of(&self, hash: u64) -> usize {
        (hash >> 32) as usize & (self.shards.len() - 1)
    }

    fn cells_of(&self, shard: usize) -> &[AtomicU32] {
        let mask = self.shards[shard].mask.load(Relaxed) as usize;
        &self.cells[shard * self.stride..][..mask + 1]
    }

    /// Brings the index cell of a hash closer. First half of a batch's look-ahead.
    pub(crate) fn prefetch_cell(&self, hash: u64) {
        let shard = self.shard_of(hash);
        let cells = self.cells_of(shard);
        prefetch(&raw const cells[hash as usize & (cells.len() - 1)] as usize);
        prefetch(&raw const self.shards[shard].slots as usize);
    }

    /// Brings the slot that a hash most likely leads to closer. Second half of the look-ahead.
    pub(crate) fn prefetch_slot(&self, hash: u64) {
        let shard = self.shard_of(hash);
        let cells = self.cells_of(shard);
        let mut at = hash as usize & (cells.len() - 1);
        for _ in 0..4 {
            // Only a guess to prefetch by: another thread may change the cell at any time.
            let cell = cells[at].load(Relaxed);
            if cell == 0 {
                return;
            }
            if cell >> POSITION_BITS == tag(hash) {
                let position = (cell & POSITION_MASK) as usize - 1;
                let address = self.shards[shard].base + position * size_of::<E>();
                prefetch(address);
                prefetch(address + CACHE_LINE);
                return;
            }
            at = (at + 1) & (cells.len() - 1);
        }
    }

    /// Locks the shard at this position.
    pub(crate) fn lock(&self, shard: usize) -> Locked<'_, E> {
        Locked { table: self, shard, slots: self.shards[shard].slots.lock() }
    }
}

fn tag(hash: u64) -> u32 {
    (hash >> 56) as u32
}

/// One shard, locked.
pub(crate) struct Locked<'a, E> {
    table: &'a Table<E>,
    shard: usize,
    slots: MutexGuard<'a, Slots<E>>,
}

impl<'a, E> Locked<'a, E> {
    fn cells(&self) -> &'a [AtomicU32] {
        self.table.cells_of(self.shard)
    }

    /// The position of the entry with this hash that `is` recognises.
    #[inline]
    pub(crate) fn find(&self, hash: u64, is: impl Fn(&E) -> bool) -> Option<usize> {
        let cells = self.cells();
        let mut at = hash as usize & (cells.len() - 1);
        loop {
            let cell = cells[at].load(Relaxed);
            if cell == 0 {
                return None;
            }
            if cell >> POSITION_BITS == tag(hash) {
                let position = (cell & POSITION_MASK) as usize - 1;
                if is(&self.slots.entries[position]) {
                    return Some(position);
                }
            }
            at = (at + 1) & (cells.len() - 1);
        }
    }

    /// The entries of this shard, in no order.
    pub(crate) fn entries(&self) -> &[E] {
        &self.slots.entries
    }

    /// The entry at a position that `find` or `insert` gave.
    pub(crate) fn entry(&mut self, position: usize) -> &mut E {
        &mut self.slots.entries[position]
    }

    /// Whether the shard has room for one more.
    pub(crate) fn has_room(&self) -> bool {
        self.slots.entries.len() < self.slots.entries.capacity()
    }

    /// Adds an entry that is not there yet. The caller has made sure of room.
    pub(crate) fn insert(&mut self, hash: u64, entry: E, hash_of: impl Fn(&E) -> u64) -> usize {
        assert!(self.has_room(), "a shard never grows past its reservation");
        if (self.slots.entries.len() + 1) * 8 > self.cells().len() * 7 {
            self.grow(hash_of);
        }
        let position = self.slots.entries.len();
        self.slots.entries.push(entry);
        self.place(hash, position);
        self.table.len.fetch_add(1, Relaxed);
        position
    }

    /// Removes the entry at `position`; the last entry takes its place.
    pub(crate) fn remove(&mut self, position: usize, hash_of: impl Fn(&E) -> u64) -> E {
        let hash = hash_of(&self.slots.entries[position]);
        self.unplace(hash, position, &hash_of);
        let last = self.slots.entries.len() - 1;
        if position != last {
            let moved = hash_of(&self.slots.entries[last]);
            let at = self.cell_of(moved, last);
            self.cells()[at].store(cell(moved, position), Relaxed);
        }
        self.table.len.fetch_sub(1, Relaxed);
        self.slots.entries.swap_remove(position)
    }

    /// Looks at up to `budget` entries from where the last sweep stopped, and removes those that
    /// `dead` names, handing each to `buried`. Returns how many were removed.
    pub(crate) fn sweep(
        &mut self,
        budget: usize,
        hash_of: impl Fn(&E) -> u64,
        mut dead: impl FnMut(&E) -> bool,
        mut buried: impl FnMut(E),
    ) -> usize {
        let mut removed = 0;
        for _ in 0..budget.min(self.slots.entries.len()) {
            let position =
                if self.slots.cursor < self.slots.entries.len() { self.slots.cursor } else { 0 };
            let Some(entry) = self.slots.entries.get(position) else { break };
            if dead(entry) {
                buried(self.remove(position, &hash_of));
                removed += 1;
                self.slots.cursor = position;
            } else {
                self.slots.cursor = position + 1;
            }
        }
        removed
    }

    fn place(&self, hash: u64, position: usize) {
        let cells = self.cells();
        let mut at = hash as usize & (cells.len() - 1);
        while cells[at].load(Relaxed) != 0 {
            at = (at + 1) & (cells.len() - 1);
        }
        cells[at].store(cell(hash, position), Relaxed);
    }

    fn cell_of(&self, hash: u64, position: usize) -> usize {
        let cells = self.cells();
        let mut at = hash as usize & (cells.len() - 1);
        while cells[at].load(Relaxed) != cell(hash, position) {
            at = (at + 1) & (cells.len() - 1);
        }
        at
    }

    /// Empties the cell of an entry and moves those behind it up, so that no gap breaks a probe.
    fn unplace(&self, hash: u64, position: usize, hash_of: &impl Fn(&E) -> u64) {
        let cells = self.cells();
        let mask = cells.len() - 1;
        let mut gap = self.cell_of(hash, position);
        let mut at = gap;
        loop {
            at = (at + 1) & mask;
            let cell = cells[at].load(Relaxed);
            if cell == 0 {
                break;
            }
            let home =
                hash_of(&self.slots.entries[(cell & POSITION_MASK) as usize - 1]) as usize & mask;
            // It may move up only if that does not put it before its home.
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(gap) & mask {
                cells[gap].store(cell, Relaxed);
                gap = at;
            }
        }
        cells[gap].store(0, Relaxed);
    }

    /// Doubles the cells in use and places every entry anew.
    fn grow(&mut self, hash_of: impl Fn(&E) -> u64) {
        self.cells().iter().for_each(|cell| cell.store(0, Relaxed));
        let cells = self.cells().len() * 2;
        self.table.shards[self.shard].mask.store(cells as u32 - 1, Relaxed);
        for (position, entry) in self.slots.entries.iter().enumerate() {
            self.place(hash_of(entry), position);
        }
    }
}

fn cell(hash: u64, position: usize) -> u32 {
    tag(hash) << POSITION_BITS | (position as u32 + 1)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    /// Hashes that collide a lot: few homes, few tags.
    fn hash_of(key: &u16) -> u64 {
        u64::from(*key % 7) << 56 | u64::from(*key % 3) << 32 | u64::from(*key % 13)
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u16),
        Remove(u16),
        Sweep(u16),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (0..600u16).prop_map(Step::Insert),
            2 => (0..600u16).prop_map(Step::Remove),
            1 => (0..600u16).prop_map(Step::Sweep),
        ];
        prop::collection::vec(step, 0..800)
    }

    proptest! {
        #[test]
        fn it_holds_what_a_map_holds(steps in steps()) {
            let table = Table::<u16>::new(20_000);
            let mut model = HashMap::new();
            for step in steps {
                match step {
                    Step::Insert(key) => {
                        let mut shard = table.lock(table.shard_of(hash_of(&key)));
                        if shard.find(hash_of(&key), |e| *e == key).is_none() {
                            shard.insert(hash_of(&key), key, hash_of);
                        }
                        model.insert(key, ());
                    }
                    Step::Remove(key) => {
                        let mut shard = table.lock(table.shard_of(hash_of(&key)));
                        let found = shard.find(hash_of(&key), |e| *e == key);
                        prop_assert_eq!(found.is_some(), model.remove(&key).is_some());
                        if let Some(position) = found {
                            prop_assert_eq!(shard.remove(position, hash_of), key);
                        }
                    }
                    Step::Sweep(below) => {
                        for shard in 0..table.shards() {
                            let mut shard = table.lock(shard);
                            let all = shard.entries().len();
                            shard.sweep(2 * all, hash_of, |e| *e < below, drop);
                        }
                        model.retain(|key, ()| *key >= below);
                    }
                }
                prop_assert_eq!(table.len(), model.len());
            }
            for key in 0..600u16 {
                let shard = table.lock(table.shard_of(hash_of(&key)));
                let found = shard.find(hash_of(&key), |e| *e == key).is_some();
                prop_assert_eq!(found, model.contains_key(&key));
                table.prefetch_cell(hash_of(&key));
                table.prefetch_slot(hash_of(&key));
            }
        }
    }
}
