//! A sharded, bounded table of fixed-size slots: it holds the limiter's keys, and the records.
//!
//! A shard is a lock and an index of lines, each with a lock of its own and 32-bit cells: a few
//! bits of the hash and the place of a slot in the arena that all shards share. Indexes double
//! within a reservation of which only the used part is resident. Since no memory is ever given
//! away, a batch can prefetch lines and slots without a lock. It knows nothing of limits: which
//! slot is dead is the caller's word.
//!
//! Most of what is asked is about an entry that lies in the line that its hash leads to: that
//! takes the line's lock and no other. All else holds the shard's lock, and the locks of the
//! lines whose entries it uses. A thread that has a line's lock alone never waits for another.
//!
//! The proof behind each `unsafe` here: a cell that is not empty names a place that the arena
//! gave to this shard, that holds an entry, and that no other cell names. Cells are written only
//! under both locks. A thread that reads or writes an entry holds the lock of the line that names
//! it.
#![allow(unsafe_code, reason = "slots of all shards lie in one mapping, see above")]

mod arena;
mod cells;
mod line;
mod lock;
mod locked;
mod name;
mod probe;
mod sync;
#[cfg(test)]
mod tests;
mod walk;

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Acquire, Ordering::Relaxed};
use std::thread;

use self::arena::Arena;
use self::cells::IndexLevels;
use self::line::{CELLS, IndexLine};
use self::lock::Lock;
pub(crate) use self::locked::{Locked, Spot};
pub(crate) use self::name::Name;
pub(crate) use self::probe::{LockedEntry, TableProbe};
pub(crate) use self::walk::WalkStep;

/// Shards for each core: enough that two loops rarely lock the same one.
const SHARDS_PER_CORE: usize = 256;
/// The most shards.
const SHARDS_MAX: usize = 2048;
/// A shard is worth its lock from about so many slots on.
const SHARD_SLOTS_MIN: usize = 4096;
/// The lines of an index before its first growth.
const LINES_MIN: usize = 4;
/// Entries for each line from which on an index grows: few then lie beyond their line.
const CROWD: usize = 11;
/// The most entries of a table: a cell keeps at least two bits for the hash.
pub(crate) const ENTRIES_MAX: usize = (1 << 30) - 2;

/// A sharded table of `E`.
pub(crate) struct Table<E> {
    shards: Box<[Shard]>,
    /// The lines of each shard's index less one. Apart from the locks, which others write.
    masks: Box<[AtomicU32]>,
    cells: IndexLevels,
    /// The most lines of a shard's index.
    lines_max: usize,
    /// The low bits of a cell, which name a place (plus one); the rest are bits of the hash.
    place_mask: u32,
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
        let lines_max = ((mean + slack) / CROWD + 1).next_power_of_two().max(LINES_MIN);
        let shards: Box<[Shard]> = (0..shards)
            .map(|_| Shard { slots: Lock::new(Slots { free: Vec::new(), cursor: 0, len: 0 }) })
            .collect();
        let masks = shards.iter().map(|_| AtomicU32::new(LINES_MIN as u32 - 1)).collect();
        Self {
            cells: IndexLevels::new(shards.len(), LINES_MIN, lines_max),
            shards,
            masks,
            lines_max,
            place_mask: u32::MAX >> (u32::try_from(max + 1).unwrap_or(u32::MAX)).leading_zeros(),
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
        let lines = |mask: &AtomicU32| mask.load(Relaxed) as usize + 1;
        self.masks.iter().map(|mask| lines(mask) * CELLS).sum()
    }

    /// Which shard holds entries of this hash.
    #[inline]
    pub(crate) fn shard_of(&self, hash: u64) -> usize {
        (hash >> 32) as usize & (self.shards.len() - 1)
    }

    #[inline]
    fn lines_of(&self, shard: usize) -> &[IndexLine] {
        self.cells.of(shard, self.masks[shard].load(Acquire) as usize + 1)
    }

    /// Where an entry of this hash lies, if it lies where most do. Nothing is read yet.
    #[inline(always)]
    pub(crate) fn probe(&self, hash: u64) -> TableProbe<'_, E> {
        let lines = self.lines_of(self.shard_of(hash));
        TableProbe::new(self, hash, &lines[hash as usize & (lines.len() - 1)])
    }

    /// The cell that names `place` for an entry of this hash.
    #[inline]
    fn cell(&self, hash: u64, place: u32) -> u32 {
        self.tag(hash) | (place + 1)
    }

    #[inline]
    fn tag(&self, hash: u64) -> u32 {
        (hash >> 32) as u32 & !self.place_mask
    }

    /// Whether a cell may name an entry of a hash with this tag.
    #[inline]
    fn fits(&self, cell: u32, tag: u32) -> bool {
        cell & !self.place_mask == tag && cell != 0
    }

    #[inline]
    fn place(&self, cell: u32) -> u32 {
        (cell & self.place_mask).wrapping_sub(1)
    }

    /// Locks the shard of this number.
    #[inline(always)]
    pub(crate) fn lock(&self, shard: usize) -> Locked<'_, E> {
        Locked::new(self, shard, self.shards[shard].slots.lock())
    }
}

impl<E> Drop for Table<E> {
    fn drop(&mut self) {
        for number in 0..self.shards.len() {
            for line in self.lines_of(number) {
                for cell in line.used() {
                    // SAFETY: the cell names a live entry, no other cell does, and `&mut self`
                    // is the last that can reach it.
                    unsafe { self.arena.at(self.place(cell)).drop_in_place() };
                }
            }
        }
    }
}
