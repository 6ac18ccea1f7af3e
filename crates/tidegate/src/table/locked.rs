//! One shard under its lock: everything that makes, removes or moves an entry.
//!
//! Beside the shard's lock it takes those of the lines whose entries it uses, and keeps them until
//! it is done: a decision that needs the line alone waits meanwhile. Only the holder of the shard's
//! lock writes cells, so it may read them without the line's lock.
#![allow(unsafe_code, reason = "the table's proof, see there")]

use std::sync::atomic::Ordering::{Relaxed, Release};

use super::Slots;
use super::line::{CELLS, IndexLine, LockedLine};
use super::lock::Guard;
use super::{CROWD, Table};

/// Lines that are kept without asking for memory.
const HELD_INLINE: usize = 4;
/// Entries asked for ahead while an index grows.
const GROWTH_AHEAD: usize = 16;

/// Where in its shard an entry was found. Good until something is inserted or removed there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spot {
    line: usize,
    cell: usize,
}

/// One shard, locked.
pub(crate) struct Locked<'a, E> {
    table: &'a Table<E>,
    shard: usize,
    // Lines are freed before their shard: fields are dropped in this order.
    held: [Option<LockedLine<'a>>; HELD_INLINE],
    more_held: Vec<LockedLine<'a>>,
    slots: Guard<'a, Slots>,
}

impl<'a, E> Locked<'a, E> {
    #[inline]
    pub(super) fn new(table: &'a Table<E>, shard: usize, slots: Guard<'a, Slots>) -> Self {
        Self { table, shard, held: [const { None }; HELD_INLINE], more_held: Vec::new(), slots }
    }

    #[inline]
    pub(super) fn lines(&self) -> &'a [IndexLine] {
        self.table.lines_of(self.shard)
    }

    fn holds(&self, line: &IndexLine) -> bool {
        self.held.iter().flatten().chain(&self.more_held).any(|held| held.is(line))
    }

    /// Locks a line until the shard is free again.
    fn hold(&mut self, line: &'a IndexLine) {
        if self.holds(line) {
            return;
        }
        let held = line.lock();
        match self.held.iter_mut().find(|room| room.is_none()) {
            Some(room) => *room = Some(held),
            None => self.more_held.push(held),
        }
    }

    /// Locks a line for a moment, unless it is held in any case.
    fn visit(&self, line: &'a IndexLine) -> Option<LockedLine<'a>> {
        (!self.holds(line)).then(|| line.lock())
    }

    /// The entry that a cell names; the lock of its line must be held.
    #[inline]
    fn named_by(&self, cell: u32) -> &E {
        assert!(cell != 0, "only cells in use name an entry");
        // SAFETY: the cell is of this shard and not empty; callers hold the line.
        unsafe { self.table.arena.at(self.table.place(cell)).as_ref() }
    }

    /// The entry with this hash that `is` recognises.
    pub(crate) fn find(&mut self, hash: u64, is: impl Fn(&E) -> bool) -> Option<Spot> {
        let lines = self.lines();
        let (tag, start) = (self.table.tag(hash), IndexLine::first(hash));
        for probe in 0..lines.len() {
            let number = (hash as usize).wrapping_add(probe) & (lines.len() - 1);
            let line = &lines[number];
            if line.find(start, |cell| self.table.fits(cell, tag)).is_some() {
                self.hold(line);
                let fits = |cell| self.table.fits(cell, tag) && is(self.named_by(cell));
                if let Some(cell) = line.find(start, fits) {
                    return Some(Spot { line: number, cell });
                }
            }
            if !line.was_passed() {
                return None;
            }
        }
        None
    }

    /// Shows all entries of this shard, in no order.
    pub(crate) fn each(&self, mut see: impl FnMut(&E)) {
        self.lines().iter().for_each(|line| self.each_of(line, &mut see));
    }

    /// Shows the entries of one line.
    pub(super) fn each_of(&self, line: &'a IndexLine, mut see: impl FnMut(&E)) {
        if line.used().next().is_some() {
            let _held = self.visit(line);
            line.used().for_each(|cell| see(self.named_by(cell)));
        }
    }

    /// The entry at a spot.
    pub(crate) fn entry(&mut self, spot: Spot) -> &mut E {
        let line = &self.lines()[spot.line];
        self.hold(line);
        let cell = line.cell(spot.cell).load(Relaxed);
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
        let crowded = self.slots.len + 1 > self.lines().len() * CROWD;
        if crowded && !self.grow(hash_of) {
            return Err(entry);
        }
        let Some(place) = self.table.arena.take(&mut self.slots.free) else { return Err(entry) };
        // SAFETY: the arena gives a place to one owner, and there is no entry in it.
        unsafe { self.table.arena.at(place).write(entry) };
        self.slots.len += 1;
        self.table.len.fetch_add(1, Relaxed);
        let lines = self.lines();
        let spot = room(lines, hash);
        self.hold(&lines[spot.line]);
        lines[spot.line].cell(spot.cell).store(self.table.cell(hash, place), Relaxed);
        Ok(spot)
    }

    /// Takes the entry at a spot out.
    pub(crate) fn remove(&mut self, spot: Spot, hash_of: impl Fn(&E) -> u64) -> E {
        let _held = self.visit(&self.lines()[spot.line]);
        self.take_out(spot, hash_of)
    }

    /// As [`Self::remove`], from a line whose lock is held.
    fn take_out(&mut self, spot: Spot, hash_of: impl Fn(&E) -> u64) -> E {
        let lines = self.lines();
        let line = &lines[spot.line];
        let cell = line.cell(spot.cell).load(Relaxed);
        assert!(cell != 0, "a spot is good until something is inserted or removed");
        let mut passed = hash_of(self.named_by(cell)) as usize & (lines.len() - 1);
        while passed != spot.line {
            lines[passed].unpass();
            passed = (passed + 1) & (lines.len() - 1);
        }
        line.cell(spot.cell).store(0, Relaxed);
        let place = self.table.place(cell);
        // SAFETY: the cell named a live entry of this shard and is empty now, so that the entry
        // is read out once.
        let entry = unsafe { self.table.arena.at(place).read() };
        self.table.arena.give_back(place, &mut self.slots.free);
        self.slots.len -= 1;
        self.table.len.fetch_sub(1, Relaxed);
        entry
    }

    /// Looks at up to `budget` cells from where the last sweep stopped, and removes the entries
    /// that `dead` names, and hands each to `take`. Returns how many were removed.
    pub(crate) fn sweep(
        &mut self,
        budget: usize,
        hash_of: impl Fn(&E) -> u64,
        mut dead: impl FnMut(&E) -> bool,
        mut take: impl FnMut(E),
    ) -> usize {
        let lines = self.lines();
        let all = lines.len() * CELLS;
        let (mut removed, mut visited) = (0, None);
        for _ in 0..budget.min(all) {
            let at = self.slots.cursor % all;
            self.slots.cursor = at + 1;
            let spot = Spot { line: at / CELLS, cell: at % CELLS };
            let line = &lines[spot.line];
            let cell = line.cell(spot.cell).load(Relaxed);
            if cell == 0 {
                continue;
            }
            // The line stays locked: a use between the look and the removal would be lost.
            if visited.as_ref().is_none_or(|(number, _)| *number != spot.line) {
                drop(visited.take());
                visited = Some((spot.line, self.visit(line)));
            }
            if dead(self.named_by(cell)) {
                take(self.take_out(spot, &hash_of));
                removed += 1;
            }
        }
        removed
    }

    /// Doubles the lines in use and places every cell anew; `false` at the largest size.
    fn grow(&mut self, hash_of: impl Fn(&E) -> u64) -> bool {
        let before = self.lines();
        let doubled = before.len() * 2;
        if doubled > self.table.lines_max {
            return false;
        }
        let after = self.table.cells.of(self.shard, doubled);
        let mut used = Vec::with_capacity(self.slots.len);
        for line in before {
            // A thread that looks for one of these entries now finds none, and waits for the shard.
            let _held = self.visit(line);
            line.take_all(&mut used);
        }
        for (at, cell) in used.iter().enumerate() {
            if let Some(ahead) = used.get(at + GROWTH_AHEAD) {
                self.table.arena.prefetch(self.table.place(*ahead));
            }
            let spot = room(after, hash_of(self.named_by(*cell)));
            let _held = after[spot.line].lock();
            after[spot.line].cell(spot.cell).store(*cell, Relaxed);
        }
        self.table.masks[self.shard].store(doubled as u32 - 1, Release);
        self.table.cells.left(before.len());
        true
    }
}

/// A cell that is free, where a search for the hash will come by.
fn room(lines: &[IndexLine], hash: u64) -> Spot {
    let mut number = hash as usize & (lines.len() - 1);
    loop {
        if let Some(cell) = lines[number].find(IndexLine::first(hash), |cell| cell == 0) {
            return Spot { line: number, cell };
        }
        lines[number].pass();
        number = (number + 1) & (lines.len() - 1);
    }
}
