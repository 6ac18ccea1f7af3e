//! A walk through one shard in small pieces, so that nobody waits while all of it is copied.
//!
//! A piece ends before an empty cell. Entries move only towards the home of their hash, and that
//! never lies beyond an empty cell, so what has not been shown yet cannot slip behind the walk.

use std::sync::atomic::Ordering::Relaxed;

use super::Table;

/// Where a walk through a shard has come to.
pub(crate) struct Walk<'a, E> {
    table: &'a Table<E>,
    shard: usize,
    size: usize,
    at: usize,
}

/// How a walk goes on after a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// There is more.
    On,
    /// The index has grown and the walk begins anew: forget what it has shown.
    Anew,
    /// All has been shown.
    Done,
}

impl<E> Table<E> {
    /// A walk through the shard of this number. An entry that is there all the while is shown; one
    /// at the end of the index can be shown twice.
    pub(crate) fn walk(&self, shard: usize) -> Walk<'_, E> {
        Walk { table: self, shard, size: self.cells_of(shard).len(), at: 0 }
    }
}

impl<E> Walk<'_, E> {
    /// Shows the entries of at least `least` more cells, under one lock.
    pub(crate) fn step(&mut self, least: usize, mut see: impl FnMut(&E)) -> Step {
        let shard = self.table.lock(self.shard);
        let cells = shard.cells();
        if cells.len() != self.size {
            (self.size, self.at) = (cells.len(), 0);
            return Step::Anew;
        }
        let enough = self.at.saturating_add(least);
        while let Some(cell) = cells.get(self.at) {
            let cell = cell.load(Relaxed);
            self.at += 1;
            if cell != 0 {
                see(shard.named_by(cell));
            } else if self.at >= enough {
                break;
            }
        }
        if self.at == cells.len() { Step::Done } else { Step::On }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// Few homes, so that entries crowd, wrap around the end and move a lot.
    fn hash_of(key: &u16) -> u64 {
        (u64::from(*key % 11) * 7) | (u64::from(*key) << 40)
    }

    fn change(table: &Table<u16>, key: u16, present: bool) {
        let mut shard = table.lock(0);
        match (shard.find(hash_of(&key), |e| *e == key), present) {
            (None, true) => drop(shard.insert(hash_of(&key), key, hash_of)),
            (Some(spot), false) => drop(shard.remove(spot, hash_of)),
            _ => {}
        }
    }

    proptest! {
        #[test]
        fn what_is_there_all_the_while_is_shown(
            first in prop::collection::btree_set(0..150u16, 0..150),
            changes in prop::collection::vec((0..150u16, any::<bool>()), 0..100),
            least in 1..20usize,
        ) {
            let table = Table::<u16>::new(1_000);
            first.iter().for_each(|key| change(&table, *key, true));
            let mut stayed = first;
            let mut ever = stayed.clone();
            let mut changes = changes.into_iter();
            let mut shown = BTreeSet::new();
            let mut walk = table.walk(0);
            loop {
                let step = walk.step(least, |key| {
                    shown.insert(*key);
                });
                match step {
                    Step::On => {}
                    Step::Anew => shown.clear(),
                    Step::Done => break,
                }
                if let Some((key, present)) = changes.next() {
                    change(&table, key, present);
                    ever.insert(key);
                    if !present {
                        stayed.remove(&key);
                    }
                }
            }
            prop_assert!(shown.is_superset(&stayed), "{:?}", stayed.difference(&shown));
            prop_assert!(shown.is_subset(&ever));
        }
    }
}
