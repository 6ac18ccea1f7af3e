//! Where an entry most likely lies, computed before the entry is needed.
//!
//! A batch makes the probes of all its entries first and prefetches what they point to. A probe
//! never becomes wrong: it finds the right entry or none, because an index that has grown leaves
//! empty lines behind.
#![allow(unsafe_code, reason = "entries that cells name, see the table")]

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::Ordering::Relaxed;

use super::Table;
use super::arena::prefetch_to_write;
use super::line::{IndexLine, LockedLine};

/// Cells looked at ahead of a decision.
const PROBES_AHEAD: usize = 8;

/// Where the entry of a hash most likely lies.
pub(crate) struct TableProbe<'t, E> {
    table: &'t Table<E>,
    hash: u64,
    /// The line that the hash leads to.
    line: &'t IndexLine,
    /// The cell of it to begin with.
    cell: usize,
}

impl<E> Clone for TableProbe<'_, E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E> Copy for TableProbe<'_, E> {}

impl<'t, E> TableProbe<'t, E> {
    /// The probe of a hash whose entries begin in `line`.
    #[inline(always)]
    pub(super) fn new(table: &'t Table<E>, hash: u64, line: &'t IndexLine) -> Self {
        Self { table, hash, line, cell: IndexLine::first(hash) }
    }

    /// The hash of the entry.
    #[inline]
    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    /// Prefetches the line. A batch does this for all its probes first.
    #[inline]
    pub(crate) fn prefetch(&self) {
        // It will be locked, and another core may have it.
        prefetch_to_write(&raw const *self.line as usize);
    }

    /// Prefetches the slot that the line most likely leads to, and remembers the cell. A batch does
    /// this for all its probes once their lines are there.
    #[inline(always)]
    pub(crate) fn prefetch_slot(&mut self) {
        let tag = self.table.tag(self.hash);
        let mut probes = 0;
        // Only a guess to prefetch by: another thread may change the cells at any time.
        let found = self.line.find(self.cell, |cell| {
            probes += 1;
            let fits = self.table.fits(cell, tag);
            if fits {
                self.table.arena.prefetch(self.table.place(cell));
            }
            fits || probes == PROBES_AHEAD
        });
        self.cell = found.unwrap_or(self.cell);
    }

    /// The entry that `is` recognises, if it lies there, as almost all do, with its line locked.
    /// After `None` the entry may still exist: ask the shard.
    #[inline(always)]
    pub(crate) fn find(&self, is: impl Fn(&E) -> bool) -> Option<LockedEntry<'t, E>> {
        let held = self.line.lock();
        let tag = self.table.tag(self.hash);
        let at = |cell| self.table.arena.at(self.table.place(cell));
        // SAFETY: the cell is not empty, and the lock of its line is held.
        let is = |cell| self.table.fits(cell, tag) && is(unsafe { at(cell).as_ref() });
        let mut cell = self.line.cell(self.cell).load(Relaxed);
        if !is(cell) {
            cell = self.line.behind(self.cell, is)?;
        }
        Some(LockedEntry { entry: at(cell), _held: held })
    }
}

/// An entry whose line is locked until this is dropped.
pub(crate) struct LockedEntry<'t, E> {
    entry: NonNull<E>,
    _held: LockedLine<'t>,
}

impl<E> Deref for LockedEntry<'_, E> {
    type Target = E;

    #[inline(always)]
    fn deref(&self) -> &E {
        // SAFETY: a cell names it, and the lock of the cell's line is held.
        unsafe { self.entry.as_ref() }
    }
}

impl<E> DerefMut for LockedEntry<'_, E> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut E {
        // SAFETY: as above, and no other reference to it exists.
        unsafe { self.entry.as_mut() }
    }
}
