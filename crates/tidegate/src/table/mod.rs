//! A sharded, bounded table of fixed-size slots: what the limiter's keys are kept in.
//!
//! A shard is a lock and an index of 32-bit cells with linear probing: a few bits of the hash and
//! the place of a slot in the arena that all shards share. Indexes double within a reservation of
//! which only the used part is resident. Since no memory is ever given away, a batch can prefetch
//! cells and slots without a lock. It knows nothing of limits: which slot is dead is the caller's
//! word.
//!
//! The proof behind each `unsafe` here: a cell that is not empty names a place that the arena
//! gave to this shard, that holds an entry, and that no other cell names. Cells are written only
//! under the shard's lock, and whoever reads or writes entries holds it.
#![allow(unsafe_code, reason = "slots of all shards lie in one mapping, see above")]

mod arena;
mod cells;
mod lock;
mod name;
mod walk;

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::thread;

use self::arena::{Arena, prefetch, prefetch_to_write};
use self::cells::Cells;
use self::lock::{Guard, Lock};
pub(crate) use self::name::Name;
pub(crate) use self::walk::Step;

/// Shards for each core: enough that loops seldom meet.
const SHARDS_PER_CORE: usize = 256;
/// The most shards.
const SHARDS_MAX: usize = 2048;
/// A shard is worth its lock from about so many slots on.
const SHARD_SLOTS_MIN: usize = 4096;
/// The cells of an index before its first growth.
const CELLS_MIN: usize = 64;
/// Cells looked at ahead of a decision.
const PROBES_AHEAD: usize = 4;
/// The most entries of a table: a cell keeps at least two bits for the hash.
pub(crate) const ENTRIES_MAX: usize = (1 << 30) - 2;

/// A sharded table of `E`.
pub(crate) struct Table<E> {
    shards: Box<[Shard]>,
    /// The cells of each shard's index less one. Apart from the locks: a batch looks here well
    /// before it needs the lock, whose line another core may have.
    masks: Box<[AtomicU32]>,
    cells: Cells,
    /// The most cells of a shard's index.
    cells_max: usize,
    /// How many low bits of a cell name a place (plus one); the rest are bits of the hash.
    place_bits: u32,
    len: AtomicUsize,
    arena: Arena<E>,
}

// Two shards in one line would make two cores fight over locks that have nothing in common.
#[repr(align(64))]
struct Shard {
    slots: Lock<Slots>,
}

struct Slots {
    /// Places that this shard may fill.
    free: Vec<u32>,
    /// Where the next sweep goes on.
    cursor: usize,
    len: usize,
}

/// Where in its shard an entry was found. Good until something is inserted or removed there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spot(usize);

impl<E> Table<E> {
    /// A table for up to `max` entries.
    pub(crate) fn new(max: usize) -> Self {
        let max = max.clamp(1, ENTRIES_MAX);
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let most = (cores * SHARDS_PER_CORE).next_power_of_two().min(SHARDS_MAX);
        let shards = (max / SHARD_SLOTS_MIN + 1).next_power_of_two().min(most);
        let mean = max.div_ceil(shards);
        // Hashing fills shards unevenly: eight standard deviations never happen.
        let slack = if shards == 1 { 0 } else { 8 * (mean as f64).sqrt() as usize + 64 };
        let cells_max = ((mean + slack) * 8 / 7 + 1).next_power_of_two().max(CELLS_MIN);
        let shards: Box<[Shard]> = (0..shards)
            .map(|_| Shard { slots: Lock::new(Slots { free: Vec::new(), cursor: 0, len: 0 }) })
            .collect();
        let masks = shards.iter().map(|_| AtomicU32::new(CELLS_MIN as u32 - 1)).collect();
        Self {
            cells: Cells::new(shards.len(), CELLS_MIN, cells_max),
            shards,
            masks,
            cells_max,
            place_bits: usize::BITS - (max + 1).leading_zeros(),
            len: AtomicUsize::new(0),
            arena: Arena::new(max),
        }
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
        self.masks.iter().map(|mask| mask.load(Relaxed) as usize + 1).sum()
    }

    /// Which shard holds entries of this hash.
    #[inline]
    pub(crate) fn shard_of(&self, hash: u64) -> usize {
        (hash >> 32) as usize & (self.shards.len() - 1)
    }

    #[inline]
    fn cells_of(&self, shard: usize) -> &[AtomicU32] {
        self.cells.of(shard, self.masks[shard].load(Relaxed) as usize + 1)
    }

    /// The cell that names `place` for an entry of this hash.
    #[inline]
    fn cell(&self, hash: u64, place: u32) -> u32 {
        self.tag(hash) | (place + 1)
    }

    #[inline]
    fn tag(&self, hash: u64) -> u32 {
        (hash >> 32) as u32 >> self.place_bits << self.place_bits
    }

    #[inline]
    fn place(&self, cell: u32) -> u32 {
        (cell & ((1 << self.place_bits) - 1)).wrapping_sub(1)
    }

    /// Brings the index cell of a hash closer. First half of a batch's look-ahead.
    #[inline]
    pub(crate) fn prefetch_cell(&self, hash: u64) {
        let shard = self.shard_of(hash);
        // Every other time it was another core that last had the lock.
        prefetch_to_write(&raw const self.shards[shard] as usize);
        let cells = self.cells_of(shard);
        prefetch(&raw const cells[hash as usize & (cells.len() - 1)] as usize);
    }

    /// Brings the slot that a hash most likely leads to closer. Second half of the look-ahead.
    #[inline]
    pub(crate) fn prefetch_slot(&self, hash: u64) {
        let cells = self.cells_of(self.shard_of(hash));
        let tag = self.tag(hash);
        for probe in 0..PROBES_AHEAD {
            // Only a guess to prefetch by: another thread may change the cell at any time.
            let cell = cells[(hash as usize + probe) & (cells.len() - 1)].load(Relaxed);
            if cell == 0 {
                return;
            }
            if cell >> self.place_bits << self.place_bits == tag {
                self.arena.prefetch(self.place(cell));
                return;
            }
        }
    }

    /// Locks the shard of this number.
    #[inline(always)]
    pub(crate) fn lock(&self, shard: usize) -> Locked<'_, E> {
        Locked { table: self, shard, slots: self.shards[shard].slots.lock() }
    }
}

impl<E> Drop for Table<E> {
    fn drop(&mut self) {
        for number in 0..self.shards.len() {
            for cell in self.cells_of(number) {
                let cell = cell.load(Relaxed);
                if cell != 0 {
                    // SAFETY: the cell names a live entry, no other cell does, and `&mut self`
                    // is the last that can reach it.
                    unsafe { self.arena.at(self.place(cell)).drop_in_place() };
                }
            }
        }
    }
}

/// One shard, locked.
pub(crate) struct Locked<'a, E> {
    table: &'a Table<E>,
    shard: usize,
    slots: Guard<'a, Slots>,
}

impl<'a, E> Locked<'a, E> {
    #[inline]
    fn cells(&self) -> &'a [AtomicU32] {
        self.table.cells_of(self.shard)
    }

    #[inline]
    fn named_by(&self, cell: u32) -> &E {
        assert!(cell != 0, "only cells in use name an entry");
        // SAFETY: the cell is of this shard, whose lock is held, and is not empty.
        unsafe { self.table.arena.at(self.table.place(cell)).as_ref() }
    }

    /// The entry with this hash that `is` recognises.
    #[inline(always)]
    pub(crate) fn find(&self, hash: u64, is: impl Fn(&E) -> bool) -> Option<Spot> {
        let cells = self.cells();
        let tag = self.table.tag(hash);
        let mut at = hash as usize & (cells.len() - 1);
        loop {
            let cell = cells[at].load(Relaxed);
            if cell == 0 {
                return None;
            }
            let tagged = cell >> self.table.place_bits << self.table.place_bits;
            if tagged == tag && is(self.named_by(cell)) {
                return Some(Spot(at));
            }
            at = (at + 1) & (cells.len() - 1);
        }
    }

    /// The entries of this shard, in no order.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &E> {
        let used = self.cells().iter().map(|cell| cell.load(Relaxed)).filter(|cell| *cell != 0);
        used.map(|cell| self.named_by(cell))
    }

    /// The entry at a spot.
    #[inline(always)]
    pub(crate) fn entry(&mut self, spot: Spot) -> &mut E {
        let cell = self.cells()[spot.0].load(Relaxed);
        assert!(cell != 0, "a spot is good until something is inserted or removed");
        // SAFETY: as in `named_by`, and `&mut self` is the right to write.
        unsafe { self.table.arena.at(self.table.place(cell)).as_mut() }
    }

    /// Adds an entry that is not there yet; gives it back if there is no place for it.
    pub(crate) fn insert(
        &mut self,
        hash: u64,
        entry: E,
        hash_of: impl Fn(&E) -> u64,
    ) -> Result<Spot, E> {
        let crowded = (self.slots.len + 1) * 8 > self.cells().len() * 7;
        if crowded && !self.grow(hash_of) {
            return Err(entry);
        }
        let Some(place) = self.table.arena.take(&mut self.slots.free) else { return Err(entry) };
        // SAFETY: the arena gives a place to one owner, and there is no entry in it.
        unsafe { self.table.arena.at(place).write(entry) };
        self.slots.len += 1;
        self.table.len.fetch_add(1, Relaxed);
        Ok(self.index(hash, self.table.cell(hash, place)))
    }

    /// Takes the entry at a spot out.
    pub(crate) fn remove(&mut self, spot: Spot, hash_of: impl Fn(&E) -> u64) -> E {
        let cell = self.cells()[spot.0].load(Relaxed);
        assert!(cell != 0, "a spot is good until something is inserted or removed");
        self.unindex(spot.0, hash_of);
        let place = self.table.place(cell);
        // SAFETY: the cell named a live entry of this shard and no longer exists, so that the
        // entry is read out once.
        let entry = unsafe { self.table.arena.at(place).read() };
        self.table.arena.give_back(place, &mut self.slots.free);
        self.slots.len -= 1;
        self.table.len.fetch_sub(1, Relaxed);
        entry
    }

    /// Looks at up to `budget` cells from where the last sweep stopped, and removes the entries
    /// that `dead` names, handing each to `buried`. Returns how many were removed.
    pub(crate) fn sweep(
        &mut self,
        budget: usize,
        hash_of: impl Fn(&E) -> u64,
        mut dead: impl FnMut(&E) -> bool,
        mut buried: impl FnMut(E),
    ) -> usize {
        let cells = self.cells();
        let mut removed = 0;
        for _ in 0..budget.min(2 * cells.len()) {
            let at = self.slots.cursor & (cells.len() - 1);
            let cell = cells[at].load(Relaxed);
            if cell != 0 && dead(self.named_by(cell)) {
                // What moves up into the gap is looked at next.
                buried(self.remove(Spot(at), &hash_of));
                removed += 1;
            } else {
                self.slots.cursor = at + 1;
            }
        }
        removed
    }

    /// Puts a cell where a probe for the hash will come by.
    fn index(&self, hash: u64, cell: u32) -> Spot {
        let cells = self.cells();
        let mut at = hash as usize & (cells.len() - 1);
        while cells[at].load(Relaxed) != 0 {
            at = (at + 1) & (cells.len() - 1);
        }
        cells[at].store(cell, Relaxed);
        Spot(at)
    }

    /// Empties a cell and moves those behind it up, so that no gap breaks a probe.
    fn unindex(&self, mut gap: usize, hash_of: impl Fn(&E) -> u64) {
        let cells = self.cells();
        let mask = cells.len() - 1;
        let mut at = gap;
        loop {
            at = (at + 1) & mask;
            let cell = cells[at].load(Relaxed);
            if cell == 0 {
                break;
            }
            let home = hash_of(self.named_by(cell)) as usize & mask;
            // It may move up only if that does not put it before its home.
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(gap) & mask {
                cells[gap].store(cell, Relaxed);
                gap = at;
            }
        }
        cells[gap].store(0, Relaxed);
    }

    /// Doubles the cells in use and places every cell anew; `false` at the largest size.
    fn grow(&mut self, hash_of: impl Fn(&E) -> u64) -> bool {
        let doubled = self.cells().len() * 2;
        if doubled > self.table.cells_max {
            return false;
        }
        let before = self.cells();
        let used: Vec<u32> =
            before.iter().map(|cell| cell.swap(0, Relaxed)).filter(|cell| *cell != 0).collect();
        self.table.masks[self.shard].store(doubled as u32 - 1, Relaxed);
        self.table.cells.left(before.len());
        for cell in used {
            self.index(hash_of(self.named_by(cell)), cell);
        }
        true
    }
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
                            prop_assert!(shard.insert(hash_of(&key), key, hash_of).is_ok());
                        }
                        model.insert(key, ());
                    }
                    Step::Remove(key) => {
                        let mut shard = table.lock(table.shard_of(hash_of(&key)));
                        let found = shard.find(hash_of(&key), |e| *e == key);
                        prop_assert_eq!(found.is_some(), model.remove(&key).is_some());
                        if let Some(spot) = found {
                            prop_assert_eq!(shard.remove(spot, hash_of), key);
                        }
                    }
                    Step::Sweep(below) => {
                        for shard in 0..table.shards() {
                            let mut shard = table.lock(shard);
                            shard.sweep(usize::MAX, hash_of, |e| *e < below, drop);
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
