//! Windows that are multiples of a period since the Unix epoch, shared by the algorithms that
//! count in them.
//!
//! The wall clock says which window it is. Where it was stepped back, a key stays in the newer
//! window until that window ends on the monotonic clock, and then follows the wall clock again.
//! A period after that the window is forgotten, whatever the wall clock says: so no step can
//! hold a key, and forgetting never changes an answer.

use crate::time::{Nanos, Now};

/// One window, held by its start on the wall clock and its end on the monotonic one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Aligned {
    pub(crate) start: Nanos,
    pub(crate) ends: Nanos,
}

/// Where now lies, seen from a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In it.
    Here,
    /// In the one that follows it.
    Next,
    /// In one that has nothing to do with it.
    Elsewhere,
}

impl Aligned {
    /// The window of the wall clock.
    pub(crate) fn open(period: Nanos, now: Now) -> Self {
        let elapsed = now.unix % period;
        Self { start: now.unix - elapsed, ends: now.mono.saturating_add(period - elapsed) }
    }

    pub(crate) fn place(&self, period: Nanos, now: Now) -> Place {
        let wall = now.unix - now.unix % period;
        match wall.checked_sub(self.start) {
            Some(0) => Place::Here,
            None if now.mono < self.ends => Place::Here,
            Some(ahead) if ahead == period => Place::Next,
            _ => Place::Elsewhere,
        }
    }

    /// Whether the window matters no more. Only the monotonic clock decides: the wall clock
    /// might come back.
    pub(crate) fn forgotten(&self, period: Nanos, now: Now) -> bool {
        now.mono >= self.ends.saturating_add(period)
    }

    /// How much of the window has passed, by the monotonic clock.
    pub(crate) fn elapsed(&self, period: Nanos, now: Now) -> Nanos {
        period - self.ends.saturating_sub(now.mono).min(period)
    }

    /// How long the window will be left for one before it, if both clocks run on from `now`.
    pub(crate) fn until_back(&self, now: Now) -> Option<Nanos> {
        let left = self.ends.saturating_sub(now.mono);
        (now.unix.saturating_add(left) < self.start).then_some(left)
    }

    /// How long until the wall clock leaves the window for the next.
    pub(crate) fn until_next(&self, period: Nanos, now: Now) -> Nanos {
        self.start.saturating_add(period).saturating_sub(now.unix)
    }

    /// How long until the window is forgotten.
    pub(crate) fn until_forgotten(&self, period: Nanos, now: Now) -> Nanos {
        self.ends.saturating_add(period).saturating_sub(now.mono)
    }

    /// How long until now is no longer in this window, where it is in it.
    pub(crate) fn until_left(&self, period: Nanos, now: Now) -> Nanos {
        let left = self.until_back(now).unwrap_or_else(|| self.until_next(period, now));
        left.min(self.until_forgotten(period, now))
    }

    pub(crate) fn shift(&mut self, offset: i64) {
        self.ends = self.ends.saturating_add_signed(offset);
    }
}
