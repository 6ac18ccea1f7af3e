//! Where the counts are kept that were asked for lately: found by name once for each job, and by
//! number from then on. Bounded: beyond that the oldest goes that nobody wants.

use std::collections::VecDeque;
use std::hash::BuildHasher as _;
use std::ops::{Index, IndexMut};
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use slab::Slab;

use super::cell::{Cell, Value};
use super::engine::{ABSENT, Version};

/// Counts that are remembered as last seen.
const CELLS_MAX: usize = 100_000;
/// Bytes that long ones among them may take.
const CELLS_BYTES_MAX: usize = 256 << 20;
/// Counts that are looked at to make room for one.
const LOOKS_MAX: usize = 16;

/// The number of a count. One that nobody wants may be another's later.
pub(super) type Id = u32;

/// All of them.
#[derive(Default)]
pub(super) struct Shelf {
    /// Clients choose names, hence the seed.
    seed: RandomState,
    by_name: HashTable<Id>,
    cells: Slab<Cell>,
    /// In the order in which they were first asked for.
    order: VecDeque<Id>,
    /// Bytes that they hold outside of themselves.
    bytes: usize,
}

impl Index<Id> for Shelf {
    type Output = Cell;

    fn index(&self, id: Id) -> &Cell {
        &self.cells[id as usize]
    }
}

impl IndexMut<Id> for Shelf {
    fn index_mut(&mut self, id: Id) -> &mut Cell {
        &mut self.cells[id as usize]
    }
}

impl Shelf {
    pub(super) fn find(&self, name: &[u8]) -> Option<Id> {
        self.find_by(self.seed.hash_one(name), name)
    }

    fn find_by(&self, hash: u64, name: &[u8]) -> Option<Id> {
        self.by_name.find(hash, |id| *self[*id].name == *name).copied()
    }

    /// The count of this name, known or not.
    pub(super) fn find_or_add(&mut self, name: &Arc<[u8]>) -> Id {
        let hash = self.seed.hash_one(&**name);
        if let Some(id) = self.find_by(hash, name) {
            return id;
        }
        let id = self.cells.insert(Cell::new(name.clone())) as Id;
        let hash_of = |id: &Id| self.seed.hash_one(&*self.cells[*id as usize].name);
        self.by_name.insert_unique(hash, id, hash_of);
        self.order.push_back(id);
        id
    }

    /// One that may be gone by now.
    pub(super) fn get(&self, id: Id) -> Option<&Cell> {
        self.cells.get(id as usize)
    }

    /// A count is known to be like this.
    pub(super) fn know(&mut self, id: Id, version: Version, value: Value) {
        let cell = &mut self.cells[id as usize];
        let before = cell.heap_bytes();
        (cell.version, cell.value, cell.kept_until) = (version, value, 0);
        self.bytes = (self.bytes + cell.heap_bytes()).saturating_sub(before);
    }

    /// Nothing is known of any count any more, but for what is under way.
    pub(super) fn forget_all(&mut self) {
        for (_, cell) in self.cells.iter_mut().filter(|(_, cell)| !cell.under_way) {
            (cell.version, cell.value, cell.kept_until) = (ABSENT, Value::new(), 0);
            cell.unsure = true;
        }
        self.bytes = self.cells.iter().map(|(_, cell)| cell.heap_bytes()).sum();
    }

    /// Those that somebody wants.
    pub(super) fn wanted(&self) -> impl Iterator<Item = Id> {
        let wanted = |(id, cell): (usize, &Cell)| (!cell.line.is_empty()).then_some(id as Id);
        self.cells.iter().filter_map(wanted)
    }

    /// Makes room, if there is none left, by those that nobody wants.
    pub(super) fn evict(&mut self) {
        for _ in 0..LOOKS_MAX {
            if self.cells.len() <= CELLS_MAX && self.bytes <= CELLS_BYTES_MAX {
                return;
            }
            let Some(id) = self.order.pop_front() else { return };
            if !self[id].is_idle() {
                self.order.push_back(id);
                continue;
            }
            let gone = self.cells.remove(id as usize);
            self.bytes = self.bytes.saturating_sub(gone.heap_bytes());
            let hash = self.seed.hash_one(&*gone.name);
            if let Ok(entry) = self.by_name.find_entry(hash, |other| *other == id) {
                entry.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: usize) -> Arc<[u8]> {
        number.to_string().into_bytes().into()
    }

    #[test]
    fn the_oldest_goes_that_nobody_wants() {
        let mut shelf = Shelf::default();
        for number in 0..=CELLS_MAX {
            assert_eq!(shelf.find_or_add(&name(number)) as usize, number);
        }
        shelf[0].under_way = true;
        shelf[1].line.push_back(7);
        shelf.evict();
        let known = |shelf: &Shelf, number| shelf.find(&name(number)).is_some();
        assert!(known(&shelf, 0) && known(&shelf, 1), "they are wanted");
        assert!(!known(&shelf, 2) && known(&shelf, 3));
        assert_eq!(shelf.wanted().collect::<Vec<_>>(), [1]);
        assert_eq!(shelf.find_or_add(&name(CELLS_MAX + 1)), 2, "numbers are used again");
        assert_eq!(shelf.find(&name(CELLS_MAX + 1)), Some(2));
    }

    #[test]
    fn long_counts_go_before_there_are_too_many() {
        let mut shelf = Shelf::default();
        let long = CELLS_BYTES_MAX / 2;
        for number in 0..3 {
            let id = shelf.find_or_add(&name(number));
            shelf.know(id, 1, Value::from_vec(vec![0; long]));
            shelf.evict();
        }
        assert_eq!(shelf.find(&name(0)), None);
        assert!(shelf.bytes >= 2 * long && shelf.bytes < 3 * long);
        shelf.know(1, 2, Value::new());
        assert!(shelf.bytes < 2 * long, "{}", shelf.bytes);
        shelf.forget_all();
        assert_eq!(shelf.bytes, 0);
    }
}
