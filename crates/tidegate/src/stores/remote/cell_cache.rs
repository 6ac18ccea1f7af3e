//! The counts that were asked for lately, as last seen. An update finds a count by its name once,
//! and by its number from then on. Bounded: the oldest count that no update waits for is evicted.

use std::collections::VecDeque;
use std::hash::BuildHasher as _;
use std::ops::{Index, IndexMut};
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use slab::Slab;

use super::cell::{Cell, CellValue};
use super::engine::{ABSENT, Version};

/// Counts that are remembered as last seen.
const CELLS_MAX: usize = 100_000;
/// Bytes that long ones among them may take.
const CELLS_BYTES_MAX: usize = 256 << 20;
/// Counts that are looked at to make room for one.
const LOOKS_MAX: usize = 16;

/// The number of a cell. A cell that is evicted leaves its number to another.
pub(super) type CellId = u32;

/// The cache.
#[derive(Default)]
pub(super) struct CellCache {
    /// Clients choose names: without a secret seed they could be made to collide.
    seed: RandomState,
    by_name: HashTable<CellId>,
    cells: Slab<Cell>,
    /// In the order in which they were first asked for.
    order: VecDeque<CellId>,
    /// Bytes of long values.
    bytes: usize,
}

impl Index<CellId> for CellCache {
    type Output = Cell;

    fn index(&self, id: CellId) -> &Cell {
        &self.cells[id as usize]
    }
}

impl IndexMut<CellId> for CellCache {
    fn index_mut(&mut self, id: CellId) -> &mut Cell {
        &mut self.cells[id as usize]
    }
}

impl CellCache {
    pub(super) fn find(&self, name: &[u8]) -> Option<CellId> {
        self.find_by(self.seed.hash_one(name), name)
    }

    fn find_by(&self, hash: u64, name: &[u8]) -> Option<CellId> {
        self.by_name.find(hash, |id| *self[*id].name == *name).copied()
    }

    /// The cell of this name, which is made if there is none.
    pub(super) fn find_or_add(&mut self, name: &Arc<[u8]>) -> CellId {
        let hash = self.seed.hash_one(&**name);
        if let Some(id) = self.find_by(hash, name) {
            return id;
        }
        let id = self.cells.insert(Cell::new(name.clone())) as CellId;
        let hash_of = |id: &CellId| self.seed.hash_one(&*self.cells[*id as usize].name);
        self.by_name.insert_unique(hash, id, hash_of);
        self.order.push_back(id);
        id
    }

    /// A cell, unless it was evicted.
    pub(super) fn get(&self, id: CellId) -> Option<&Cell> {
        self.cells.get(id as usize)
    }

    /// Remembers the version and the value of a count.
    pub(super) fn know(&mut self, id: CellId, version: Version, value: CellValue) {
        let cell = &mut self.cells[id as usize];
        let before = cell.heap_bytes();
        (cell.version, cell.value, cell.kept_until) = (version, value, 0);
        cell.differs = false;
        self.bytes = (self.bytes + cell.heap_bytes()).saturating_sub(before);
    }

    /// Forgets all versions and values but those of counts whose change is under way.
    pub(super) fn forget_all(&mut self) {
        for (_, cell) in self.cells.iter_mut().filter(|(_, cell)| !cell.under_way) {
            (cell.version, cell.value, cell.kept_until) = (ABSENT, CellValue::new(), 0);
            (cell.unsure, cell.differs) = (true, false);
        }
        self.bytes = self.cells.iter().map(|(_, cell)| cell.heap_bytes()).sum();
    }

    /// Cells that updates wait for.
    pub(super) fn wanted(&self) -> impl Iterator<Item = CellId> {
        let wanted = |(id, cell): (usize, &Cell)| (!cell.queue.is_empty()).then_some(id as CellId);
        self.cells.iter().filter_map(wanted)
    }

    /// Evicts cells that no update waits for while there are too many.
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
        let mut cache = CellCache::default();
        for number in 0..=CELLS_MAX {
            assert_eq!(cache.find_or_add(&name(number)) as usize, number);
        }
        cache[0].under_way = true;
        cache[1].queue.push_back(7);
        cache.evict();
        let known = |cache: &CellCache, number| cache.find(&name(number)).is_some();
        assert!(known(&cache, 0) && known(&cache, 1), "they are wanted");
        assert!(!known(&cache, 2) && known(&cache, 3));
        assert_eq!(cache.wanted().collect::<Vec<_>>(), [1]);
        assert_eq!(cache.find_or_add(&name(CELLS_MAX + 1)), 2, "numbers are used again");
        assert_eq!(cache.find(&name(CELLS_MAX + 1)), Some(2));
    }

    #[test]
    fn long_counts_go_before_there_are_too_many() {
        let mut cache = CellCache::default();
        let long = CELLS_BYTES_MAX / 2;
        for number in 0..3 {
            let id = cache.find_or_add(&name(number));
            cache.know(id, 1, CellValue::from_vec(vec![0; long]));
            cache.evict();
        }
        assert_eq!(cache.find(&name(0)), None);
        assert!(cache.bytes >= 2 * long && cache.bytes < 3 * long);
        cache.know(1, 2, CellValue::new());
        assert!(cache.bytes < 2 * long, "{}", cache.bytes);
        cache.forget_all();
        assert_eq!(cache.bytes, 0);
    }
}
