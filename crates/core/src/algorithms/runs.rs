//! The runs of a log: a few lie where the log lies, many in a ring of their own.
//!
//! Most keys have a short history, and a separate ring costs one more cache miss. The
//! order of runs and what they mean is the log's business.

use std::collections::VecDeque;

use crate::time::Nanos;

/// So many lie in place.
const FEW: usize = 4;
/// Rings of more than this are given up when they are nearly empty.
const RING_KEPT: usize = 16;

/// Uses at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Run {
    pub(super) at: Nanos,
    /// The running total up to and with this run.
    pub(super) total: u64,
}

/// Runs in an order that is the log's.
#[derive(Clone, Debug)]
pub(super) enum Runs {
    Few { len: usize, runs: [Run; FEW] },
    Many(VecDeque<Run>),
}

impl Default for Runs {
    fn default() -> Self {
        Runs::Few { len: 0, runs: [Run::default(); FEW] }
    }
}

impl Runs {
    #[inline]
    pub(super) fn len(&self) -> usize {
        match self {
            Runs::Few { len, .. } => *len,
            Runs::Many(ring) => ring.len(),
        }
    }

    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<&Run> {
        match self {
            Runs::Few { len, runs } => runs[..*len].get(index),
            Runs::Many(ring) => ring.get(index),
        }
    }

    #[inline]
    pub(super) fn back(&self) -> Option<&Run> {
        self.len().checked_sub(1).and_then(|last| self.get(last))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Run> {
        let (few, many) = match self {
            Runs::Few { len, runs } => (&runs[..*len], None),
            Runs::Many(ring) => (&[][..], Some(ring)),
        };
        few.iter().chain(many.into_iter().flatten())
    }

    /// How many runs from the first on `holds` is true of; once it is false, it stays so.
    #[inline]
    pub(super) fn partition_point(&self, mut holds: impl FnMut(&Run) -> bool) -> usize {
        match self {
            Runs::Few { len, runs } => {
                runs[..*len].iter().position(|run| !holds(run)).unwrap_or(*len)
            }
            Runs::Many(ring) => ring.partition_point(holds),
        }
    }

    pub(super) fn insert(&mut self, index: usize, run: Run) {
        match self {
            Runs::Few { len, runs } if *len < FEW => {
                runs.copy_within(index..*len, index + 1);
                runs[index] = run;
                *len += 1;
            }
            Runs::Few { runs, .. } => {
                let mut ring = VecDeque::with_capacity(2 * FEW);
                ring.extend(runs.iter().copied());
                ring.insert(index, run);
                *self = Runs::Many(ring);
            }
            Runs::Many(ring) => ring.insert(index, run),
        }
    }

    /// Changes every run from `first` on.
    #[inline]
    pub(super) fn change(&mut self, first: usize, mut change: impl FnMut(&mut Run)) {
        match self {
            Runs::Few { len, runs } => runs[first..*len].iter_mut().for_each(change),
            Runs::Many(ring) => ring.range_mut(first..).for_each(&mut change),
        }
    }

    pub(super) fn drop_first(&mut self, count: usize) {
        match self {
            Runs::Few { len, runs } => {
                runs.copy_within(count..*len, 0);
                *len -= count;
            }
            Runs::Many(ring) => drop(ring.drain(..count)),
        }
    }

    pub(super) fn truncate(&mut self, count: usize) {
        match self {
            Runs::Few { len, .. } => *len = count.min(*len),
            Runs::Many(ring) => ring.truncate(count),
        }
    }

    /// A burst long past must not hold its memory for as long as the key lives.
    pub(super) fn shrink(&mut self) {
        let Runs::Many(ring) = self else { return };
        if ring.capacity() <= RING_KEPT || ring.len() >= ring.capacity() / 4 {
            return;
        }
        if ring.len() > FEW / 2 {
            ring.shrink_to(ring.len() * 2);
            return;
        }
        let mut few = [Run::default(); FEW];
        let len = ring.len();
        for (slot, run) in few.iter_mut().zip(ring.iter()) {
            *slot = *run;
        }
        *self = Runs::Few { len, runs: few };
    }

    pub(super) fn heap_bytes(&self) -> usize {
        match self {
            Runs::Few { .. } => 0,
            Runs::Many(ring) => ring.capacity() * size_of::<Run>(),
        }
    }
}
