//! The index lines of all shards, in levels that double.
//!
//! A level holds the indexes of one size of all shards side by side, so that a table of any size
//! has its cells close together and large levels fit huge pages. A shard that has outgrown a
//! level leaves zeroes behind; when the last has left, the level's memory goes back to the system.
#![allow(unsafe_code, reason = "cells in one mapping that is given back in parts, see above")]

use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::{AtomicUsize, Ordering::AcqRel};

use rustix::mm::{Advice, madvise, munmap};

use super::arena::{advise_huge, reserve};
use super::line::IndexLine;

/// Levels of at least this size ask for huge pages.
const HUGE_BYTES: usize = 8 << 20;
const PAGE_BYTES: usize = 4096;

const _: () = assert!(size_of::<IndexLine>() == 64);

/// The lines. Zeroes are empty ones.
pub(super) struct IndexLevels {
    base: NonNull<IndexLine>,
    shards: usize,
    smallest: usize,
    largest: usize,
    /// How many shards have left each level.
    gone: Box<[AtomicUsize]>,
}

// SAFETY: lines are made of atomics, and the mapping lives as long as this.
unsafe impl Send for IndexLevels {}
// SAFETY: as above.
unsafe impl Sync for IndexLevels {}

impl IndexLevels {
    /// Room for indexes of `smallest` to `largest` lines, both powers of two, for each shard.
    pub(super) fn new(shards: usize, smallest: usize, largest: usize) -> Self {
        let levels = (largest / smallest).ilog2() as usize + 1;
        let gone = (0..levels).map(|_| AtomicUsize::new(0)).collect();
        let bytes = bytes(shards, smallest, largest);
        let cells = Self { base: reserve(bytes).cast(), shards, smallest, largest, gone };
        for level in 0..levels {
            let (start, bytes) = cells.level(smallest << level);
            if bytes >= HUGE_BYTES {
                advise_huge(start, bytes);
            }
        }
        cells
    }

    /// The index of a shard at this size.
    #[inline]
    pub(super) fn of(&self, shard: usize, size: usize) -> &[IndexLine] {
        assert!(shard < self.shards && size >= self.smallest && size <= self.largest);
        let start = self.shards * (size - self.smallest) + shard * size;
        // SAFETY: the levels before this one hold `shards * (size - smallest)` lines, since sizes
        // double; the mapping holds all levels. Zeroed memory is a valid line, and memory that
        // was given back reads as zeroes.
        unsafe { slice::from_raw_parts(self.base.add(start).as_ptr(), size) }
    }

    /// A shard has emptied its index of this size and will not come back to it.
    pub(super) fn left(&self, size: usize) {
        let level = (size / self.smallest).ilog2() as usize;
        if self.gone[level].fetch_add(1, AcqRel) + 1 < self.shards {
            return;
        }
        let (start, bytes) = self.level(size);
        // Neighbouring levels share the pages at the ends.
        let skip = start.as_ptr().align_offset(PAGE_BYTES);
        let whole = bytes.saturating_sub(skip) / PAGE_BYTES * PAGE_BYTES;
        if whole > 0 {
            // SAFETY: the range lies within this level, whose lines are all empty. A thread that
            // still has the old size may lock one and find nothing; in the zeroes that pages
            // given back read as, it finds the same.
            let _ =
                unsafe { madvise(start.add(skip).as_ptr().cast(), whole, Advice::LinuxDontNeed) };
        }
    }

    /// Where a level starts, and its bytes.
    fn level(&self, size: usize) -> (NonNull<u8>, usize) {
        let cells = self.of(0, size);
        (NonNull::from(&cells[0]).cast(), self.shards * size * size_of::<IndexLine>())
    }
}

fn bytes(shards: usize, smallest: usize, largest: usize) -> usize {
    shards * (2 * largest - smallest) * size_of::<IndexLine>()
}

impl Drop for IndexLevels {
    fn drop(&mut self) {
        let bytes = bytes(self.shards, self.smallest, self.largest);
        // SAFETY: exactly the mapping of `new`; slices of it borrow from this.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), bytes) };
    }
}
