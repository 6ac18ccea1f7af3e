//! A log of moments with counts, shared by the algorithms that must remember single uses.
//!
//! Uses at one moment are one run. Runs hold running totals, so that counting the uses after a
//! moment and finding the n-th oldest use are binary searches, however long the log is. Which
//! uses matter is for the algorithms to say; nothing here knows of limits or periods.

use super::runs::{Run, Runs};
use crate::time::Nanos;

/// Moments in order, each with a number of uses.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stamps {
    runs: Runs,
    /// The running total up to the oldest run. Totals wrap: only their differences mean something.
    gone: u64,
}

/// Logs are the same when they hold the same uses, however they came to hold them.
impl PartialEq for Stamps {
    fn eq(&self, other: &Self) -> bool {
        self.runs.len() == other.runs.len() && self.iter().eq(other.iter())
    }
}

impl Stamps {
    /// All uses.
    pub(crate) fn total(&self) -> u64 {
        self.total_before(self.runs.len())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.runs.len() == 0
    }

    /// The newest moment.
    pub(crate) fn newest(&self) -> Option<Nanos> {
        self.runs.back().map(|run| run.at)
    }

    /// The moment of the n-th oldest use, counted from 1.
    pub(crate) fn nth_oldest(&self, n: u64) -> Option<Nanos> {
        let index = self.runs.partition_point(|run| run.total.wrapping_sub(self.gone) < n);
        self.runs.get(index).map(|run| run.at)
    }

    /// The uses of the newest moments for which `counts` holds. Once it holds for a moment it
    /// must hold for every newer one.
    #[inline]
    pub(crate) fn count(&self, counts: impl Fn(Nanos) -> bool) -> u64 {
        // Nearly always all: what no longer counts was dropped when the newest came.
        if self.runs.get(0).is_none_or(|oldest| counts(oldest.at)) {
            return self.total();
        }
        self.total() - self.total_before(self.runs.partition_point(|run| !counts(run.at)))
    }

    /// Adds uses at the end; a moment before the newest becomes the newest.
    pub(crate) fn push(&mut self, at: Nanos, uses: u64) {
        self.insert(self.newest().map_or(at, |newest| newest.max(at)), uses);
    }

    /// Adds uses where their moment belongs.
    pub(crate) fn insert(&mut self, at: Nanos, uses: u64) {
        let uses = uses.min(u64::MAX - self.total());
        if uses == 0 {
            return;
        }
        // Nearly always the end: looking there first is cheaper than halving the log.
        let index = match self.runs.back() {
            Some(run) if run.at > at => self.runs.partition_point(|run| run.at <= at),
            _ => self.runs.len(),
        };
        let first = match index.checked_sub(1) {
            Some(before) if self.runs.get(before).is_some_and(|run| run.at == at) => before,
            _ => {
                let total = self.gone.wrapping_add(self.total_before(index));
                self.runs.insert(index, Run { at, total });
                index
            }
        };
        self.runs.change(first, |run| run.total = run.total.wrapping_add(uses));
    }

    /// Drops all uses, and keeps the room for others.
    pub(crate) fn clear(&mut self) {
        self.runs.truncate(0);
        self.runs.shrink();
    }

    /// Drops uses from the old end.
    pub(crate) fn drop_oldest(&mut self, uses: u64) {
        let uses = uses.min(self.total());
        let whole = self.runs.partition_point(|run| run.total.wrapping_sub(self.gone) <= uses);
        self.runs.drop_first(whole);
        self.gone = self.gone.wrapping_add(uses);
        self.runs.shrink();
    }

    /// Drops uses from the new end.
    pub(crate) fn drop_newest(&mut self, uses: u64) {
        let kept = self.total().saturating_sub(uses);
        let whole = self.runs.partition_point(|run| run.total.wrapping_sub(self.gone) < kept);
        if kept == 0 {
            self.runs.truncate(0);
        } else {
            let total = self.gone.wrapping_add(kept);
            self.runs.truncate(whole + 1);
            self.runs.change(whole, |run| run.total = total);
        }
        self.runs.shrink();
    }

    /// Drops the old uses for which `counts` does not hold, and the oldest beyond `most`.
    pub(crate) fn keep(&mut self, most: u64, counts: impl Fn(Nanos) -> bool) {
        let kept = self.count(counts).min(most);
        if kept < self.total() {
            self.drop_oldest(self.total() - kept);
        }
    }

    /// The runs, oldest first: moment and uses.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Nanos, u64)> {
        let mut before = self.gone;
        self.runs.iter().map(move |run| {
            let uses = run.total.wrapping_sub(before);
            before = run.total;
            (run.at, uses)
        })
    }

    /// A log that since any moment holds as many uses as the one of the two that holds more.
    pub(crate) fn join(&self, other: &Self) -> Self {
        let mut moments: Vec<Nanos> =
            self.runs.iter().chain(other.runs.iter()).map(|r| r.at).collect();
        moments.sort_unstable();
        moments.dedup();
        let mut runs = Vec::with_capacity(moments.len());
        let mut since = 0;
        for moment in moments.into_iter().rev() {
            let most = self.count(|at| at >= moment).max(other.count(|at| at >= moment));
            runs.push((moment, most - since));
            since = most;
        }
        let mut joined = Self::default();
        for (at, uses) in runs.into_iter().rev() {
            joined.push(at, uses);
        }
        joined
    }

    /// Moves every moment; moments that meet at an end of time become one run.
    pub(crate) fn shift(&mut self, offset: i64) {
        let mut moved = Self::default();
        for (at, uses) in self.iter() {
            moved.push(at.saturating_add_signed(offset), uses);
        }
        *self = moved;
    }

    pub(crate) fn len(&self) -> usize {
        self.runs.len()
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.runs.heap_bytes()
    }

    fn total_before(&self, index: usize) -> u64 {
        let last = index.checked_sub(1).and_then(|last| self.runs.get(last));
        last.map_or(0, |run| run.total.wrapping_sub(self.gone))
    }
}
