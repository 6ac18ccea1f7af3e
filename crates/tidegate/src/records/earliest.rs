//! When the first record can expire. Until then insertions need not look for dead ones.
//!
//! A hint and no more: with ten million records a look at four that live costs as much as the
//! rest of an insertion. Whether a record has expired is judged on the record itself; one that
//! the hint misses is found by the background sweep.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use tidegate_core::{Nanos, Now};

/// The earliest expiry of all records, as far as is known.
pub(super) struct Earliest {
    expiry: AtomicU64,
    round: Mutex<Round>,
}

/// What the background sweep has seen since the last round through the table ended.
struct Round {
    cells: usize,
    expiry: Nanos,
}

impl Round {
    const NEW: Self = Self { cells: 0, expiry: Nanos::MAX };
}

impl Earliest {
    /// There is nothing that could expire.
    pub(super) fn new() -> Self {
        Self { expiry: AtomicU64::new(Nanos::MAX), round: Mutex::new(Round::NEW) }
    }

    /// A record has come to expire then.
    #[inline]
    pub(super) fn note(&self, expiry: Nanos) {
        // Almost always another is earlier, and then no core's cache loses the line.
        if expiry < self.expiry.load(Relaxed) {
            self.expiry.fetch_min(expiry, Relaxed);
        }
    }

    /// Whether something may have expired.
    #[inline]
    pub(super) fn passed(&self, now: Now) -> bool {
        now.mono >= self.expiry.load(Relaxed)
    }

    /// A sweep has looked at `cells` more of `all`; the first that lives there expires then.
    pub(super) fn looked(&self, cells: usize, all: usize, expiry: Nanos) {
        let mut round = self.round.lock();
        round.cells += cells;
        round.expiry = round.expiry.min(expiry);
        if round.cells >= all {
            self.expiry.store(round.expiry, Relaxed);
            *round = Round::NEW;
        }
    }
}
