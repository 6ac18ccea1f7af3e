//! A walk through one shard in small pieces, so that no decision waits while all of it is copied.
//!
//! Entries move only when the index grows, and then the walk begins anew: what has not been shown
//! yet cannot slip behind it.

use super::Table;
use super::line::CELLS;

/// Where a walk through a shard has come to.
pub(crate) struct Walk<'a, E> {
    table: &'a Table<E>,
    shard: usize,
    /// Lines of the index, and the next one to show.
    size: usize,
    at: usize,
}

/// How a walk goes on after a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WalkStep {
    /// There is more.
    On,
    /// The index has grown and the walk begins anew: forget what it has shown.
    Anew,
    /// All has been shown.
    Done,
}

impl<E> Table<E> {
    /// A walk through the shard of this number. An entry that is there all the while is shown once.
    pub(crate) fn walk(&self, shard: usize) -> Walk<'_, E> {
        self.walk_from(shard, None)
    }

    /// The same, going on where [`Walk::place`] was.
    pub(crate) fn walk_from(&self, shard: usize, place: Option<(usize, usize)>) -> Walk<'_, E> {
        let (size, at) = place.unwrap_or((self.lines_of(shard).len(), 0));
        Walk { table: self, shard, size, at }
    }
}

impl<E> Walk<'_, E> {
    /// Where it has come to, to go on from there.
    pub(crate) fn place(&self) -> (usize, usize) {
        (self.size, self.at)
    }

    /// Shows the entries of at least `least` more cells, under one lock.
    pub(crate) fn step(&mut self, least: usize, mut see: impl FnMut(&E)) -> WalkStep {
        let shard = self.table.lock(self.shard);
        let lines = shard.lines();
        if lines.len() != self.size {
            (self.size, self.at) = (lines.len(), 0);
            return WalkStep::Anew;
        }
        let end = lines.len().min(self.at.saturating_add(least.div_ceil(CELLS)));
        lines[self.at..end].iter().for_each(|line| shard.each_of(line, &mut see));
        self.at = end;
        if end == lines.len() { WalkStep::Done } else { WalkStep::On }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Few homes, so that entries crowd and wrap around the end.
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
            let mut shown = BTreeMap::new();
            let mut walk = table.walk(0);
            loop {
                let step = walk.step(least, |key| *shown.entry(*key).or_insert(0) += 1);
                match step {
                    WalkStep::On => {}
                    WalkStep::Anew => shown.clear(),
                    WalkStep::Done => break,
                }
                if let Some((key, present)) = changes.next() {
                    change(&table, key, present);
                    ever.insert(key);
                    if !present {
                        stayed.remove(&key);
                    }
                }
            }
            for key in stayed {
                prop_assert_eq!(shown.get(&key), Some(&1));
            }
            prop_assert!(shown.keys().all(|key| ever.contains(key)));
        }
    }
}
