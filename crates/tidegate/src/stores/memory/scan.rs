//! Looking at every slot: all at once, or in small pieces between which others work on.

use super::{Body, Memory};
use crate::table::WalkStep;

/// Where a scan in pieces has come to.
#[derive(Debug, Default)]
pub(crate) struct Mark {
    shard: usize,
    place: Option<(usize, usize)>,
}

impl Memory {
    /// Shows every body to `see`, one shard locked at a time. Shared counts have no name.
    pub(crate) fn scan(&self, mut see: impl FnMut(Option<&[u8]>, &Body)) {
        for number in 0..self.table.shards() {
            let shard = self.table.lock(number);
            shard.each(|slot| see(Some(slot.name.as_bytes()), &slot.body));
            self.overflow[number].lock().values().for_each(|body| see(None, body));
        }
    }

    /// Shows the bodies of some `cells` more, one shard locked, from where `mark` stands; `true` at
    /// the end of the table. One that stays is shown at least once before that. Shared counts are
    /// not shown.
    pub(crate) fn scan_on(
        &self,
        mark: &mut Mark,
        cells: usize,
        mut see: impl FnMut(&[u8], &Body),
    ) -> bool {
        if mark.shard >= self.table.shards() {
            return true;
        }
        let mut walk = self.table.walk_from(mark.shard, mark.place);
        let step = walk.step(cells, |slot| see(slot.name.as_bytes(), &slot.body));
        mark.place = Some(walk.place());
        if step == WalkStep::Done {
            *mark = Mark { shard: mark.shard + 1, place: None };
        }
        mark.shard == self.table.shards()
    }
}
