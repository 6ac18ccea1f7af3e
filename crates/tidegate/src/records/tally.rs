//! Reads and writes of one record: since it was made, and in the last full minute.
//!
//! Minutes are those of the monotonic clock, so that a step of the wall clock loses no count.

use tidegate_core::Now;
use tidegate_core::time::MINUTE;

/// What was done to a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    Read = 0,
    Write = 1,
}

/// The number of a minute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Minute(pub(super) u32);

impl Minute {
    /// The minute that holds `now`.
    #[inline]
    pub(super) fn of(now: Now) -> Self {
        // 584 years are fewer minutes than fit.
        Self((now.mono / MINUTE) as u32)
    }
}

/// Uses by kind in the running minute and in the one before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Minutes {
    pub(super) number: Minute,
    pub(super) running: [u32; 2],
    pub(super) last: [u32; 2],
}

impl Minutes {
    /// Counts one use.
    #[inline]
    pub(super) fn count(&mut self, what: Use, minute: Minute) {
        if minute > self.number {
            self.turn(minute);
        }
        // A loop whose clock was read a moment ago counts with the newer minute.
        let count = &mut self.running[what as usize];
        *count = count.saturating_add(1);
    }

    #[cold]
    fn turn(&mut self, minute: Minute) {
        self.last = self.in_last(minute);
        self.running = [0; 2];
        self.number = minute;
    }

    /// Uses in the last full minute, seen from this one.
    pub(super) fn in_last(&self, minute: Minute) -> [u32; 2] {
        match minute.0.saturating_sub(self.number.0) {
            0 => self.last,
            1 => self.running,
            _ => [0; 2],
        }
    }
}
