//! One line of the index: fifteen cells behind a lock of their own, in one cache line.
//!
//! What a decision reads first and what it locks are the same 64 bytes, so the lock is there when
//! the cells are, and two cores meet at it only when they want keys that are neighbours. It knows
//! nothing of what a cell names.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::lock::wait_for;
use super::sync::{AtomicBool, AtomicU16, AtomicU32};

/// The cells of a line.
pub(super) const CELLS: usize = 15;
/// The most that `passed` counts: from there on it is not known any more, and stays.
const PASSED_MAX: u16 = u16::MAX;

/// A line. All zeroes is an empty one that is free.
#[repr(C, align(64))]
#[derive(Default)]
pub(super) struct IndexLine {
    taken: AtomicBool,
    /// How many entries found no cell here and lie in a later line. Guarded by the shard's lock.
    passed: AtomicU16,
    cells: [AtomicU32; CELLS],
}

/// A line that is locked until this is dropped.
pub(super) struct LockedLine<'a>(&'a IndexLine);

impl IndexLine {
    /// Waits until no other thread has the line.
    #[inline(always)]
    pub(super) fn lock(&self) -> LockedLine<'_> {
        if self.taken.swap(true, Acquire) {
            wait_for(&self.taken);
        }
        LockedLine(self)
    }

    /// The cell at a place of the line.
    #[inline(always)]
    pub(super) fn cell(&self, at: usize) -> &AtomicU32 {
        &self.cells[at]
    }

    /// The cell that is the first choice for an entry of this hash.
    #[inline]
    pub(super) fn first(hash: u64) -> usize {
        ((hash >> 24 & 0xff) as usize * CELLS) >> 8
    }

    /// The place of the first cell that `is` recognises, from `start` on and around.
    #[inline(always)]
    pub(super) fn find(&self, start: usize, mut is: impl FnMut(u32) -> bool) -> Option<usize> {
        let mut at = start;
        loop {
            if is(self.cells[at].load(Relaxed)) {
                return Some(at);
            }
            at = if at + 1 == CELLS { 0 } else { at + 1 };
            if at == start {
                return None;
            }
        }
    }

    /// What the first cell behind `at` holds that `is` recognises.
    #[cold]
    #[inline(never)]
    pub(super) fn behind(&self, at: usize, is: impl FnMut(u32) -> bool) -> Option<u32> {
        let found = self.find((at + 1) % CELLS, is)?;
        Some(self.cells[found].load(Relaxed))
    }

    /// The cells that are not empty.
    pub(super) fn used(&self) -> impl Iterator<Item = u32> {
        self.cells.iter().map(|cell| cell.load(Relaxed)).filter(|cell| *cell != 0)
    }

    /// Whether an entry whose home this is may lie in a later line.
    pub(super) fn was_passed(&self) -> bool {
        self.passed.load(Relaxed) != 0
    }

    /// Counts an entry that found no cell here and lies in a later line.
    pub(super) fn pass(&self) {
        self.passed.store(self.passed.load(Relaxed).saturating_add(1), Relaxed);
    }

    /// Counts one such entry less.
    pub(super) fn unpass(&self) {
        let passed = self.passed.load(Relaxed);
        if passed != PASSED_MAX {
            self.passed.store(passed.saturating_sub(1), Relaxed);
        }
    }

    /// Moves the cells out, and forgets which entries lie in later lines.
    pub(super) fn take_all(&self, out: &mut Vec<u32>) {
        out.extend(self.used());
        self.cells.iter().for_each(|cell| cell.store(0, Relaxed));
        self.passed.store(0, Relaxed);
    }
}

impl Drop for LockedLine<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.taken.store(false, Release);
    }
}

impl LockedLine<'_> {
    /// Whether it is this line.
    pub(super) fn is(&self, line: &IndexLine) -> bool {
        std::ptr::eq(self.0, line)
    }
}
