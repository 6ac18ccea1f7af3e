//! Windows that are multiples of a period since the Unix epoch, shared by the algorithms that
//! count in them.
//!
//! The wall clock says which window it is. Where it was stepped back into an older one, a key
//! stays in the newer until that ends on the monotonic clock: for one period at most. A key that
//! was asked for meanwhile has then left it for good. One that was not still finds its uses there
//! when the wall clock comes back to it, as it does after a step inside of the window. A period
//! after its monotonic end a window is forgotten, whatever the wall clock says.
//!
//! A count that several keys share is stricter. Each key alone would remember another window, so
//! the count admits nothing while the wall clock is back before its newest one.

use crate::time::{Nanos, Now};

/// One window, held by its start on the wall clock and its end on the monotonic one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Aligned {
    /// A multiple of the period; a nanosecond more once the window was seen to be left for an
    /// older one. So a state stays as small as it is.
    pub(crate) start: Nanos,
    pub(crate) ends: Nanos,
}

/// Where now lies, seen from a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WindowPlace {
    /// In it.
    Here,
    /// In the one that follows it.
    Next,
    /// In one that has nothing to do with it.
    Remote,
}

impl Aligned {
    /// The window of the wall clock.
    pub(crate) fn open(period: Nanos, now: Now) -> Self {
        let elapsed = now.unix % period;
        Self { start: now.unix - elapsed, ends: now.mono.saturating_add(period - elapsed) }
    }

    pub(crate) fn aligned_start(&self, period: Nanos) -> Nanos {
        self.start - self.start % period
    }

    fn was_left(&self, period: Nanos) -> bool {
        !self.start.is_multiple_of(period)
    }

    /// Whether the wall clock reads an older window than this.
    pub(crate) fn is_ahead(&self, period: Nanos, now: Now) -> bool {
        now.unix < self.aligned_start(period)
    }

    /// Whether a use at `now`, reported late, came before the window began: by both clocks,
    /// since a wall clock that was stepped back is no late use.
    pub(crate) fn begins_after(&self, period: Nanos, now: Now) -> bool {
        self.is_ahead(period, now) && now.mono < self.ends.saturating_sub(period)
    }

    /// The window after an operation at `now`: it learns that the wall clock has left it.
    pub(crate) fn seen(mut self, period: Nanos, now: Now) -> Self {
        if self.is_ahead(period, now) && !self.was_left(period) {
            self.start = self.start.saturating_add(1);
        }
        self
    }

    pub(crate) fn place(&self, period: Nanos, now: Now) -> WindowPlace {
        let wall = now.unix - now.unix % period;
        match wall.checked_sub(self.aligned_start(period)) {
            Some(0) if !self.was_left(period) => WindowPlace::Here,
            None | Some(0) if now.mono < self.ends => WindowPlace::Here,
            Some(ahead) if ahead == period => WindowPlace::Next,
            _ => WindowPlace::Remote,
        }
    }

    /// Whether now lies in it by both clocks. `false` says that it takes a closer look.
    pub(crate) fn is_surely_here(&self, period: Nanos, now: Now) -> bool {
        // A nanosecond short of the period: the start may be one late.
        let inside = |since: Nanos| since < period.saturating_sub(1);
        now.mono < self.ends && now.unix.checked_sub(self.start).is_some_and(inside)
    }

    /// Whether the window matters no more. Only the monotonic clock decides: the wall clock
    /// might come back.
    pub(crate) fn forgotten(&self, period: Nanos, now: Now) -> bool {
        // At the very end of time the sum saturates: then the window has not ended.
        self.ends.checked_add(period).is_some_and(|end| now.mono >= end)
    }

    /// How much of the window has passed, by the monotonic clock.
    pub(crate) fn elapsed(&self, period: Nanos, now: Now) -> Nanos {
        period - self.ends.saturating_sub(now.mono).min(period)
    }

    /// How long the window will be left for one before it, if both clocks run on from `now`.
    pub(crate) fn until_back(&self, period: Nanos, now: Now) -> Option<Nanos> {
        let left = self.ends.saturating_sub(now.mono);
        let start = self.aligned_start(period);
        // One that was left is not entered again, so its end counts up to the next one.
        let entered = if self.was_left(period) { start.saturating_add(period) } else { start };
        (now.unix.saturating_add(left) < entered).then_some(left)
    }

    /// How long until the wall clock enters the window, where it is before it.
    pub(crate) fn until_entered(&self, period: Nanos, now: Now) -> Nanos {
        self.aligned_start(period).saturating_sub(now.unix)
    }

    /// How long until the wall clock leaves the window for the next.
    pub(crate) fn until_next(&self, period: Nanos, now: Now) -> Nanos {
        self.aligned_start(period).saturating_add(period).saturating_sub(now.unix)
    }

    /// How long until the window is forgotten.
    pub(crate) fn until_forgotten(&self, period: Nanos, now: Now) -> Nanos {
        self.ends.saturating_add(period).saturating_sub(now.mono)
    }

    /// How long until now is no longer in this window, where it is in it.
    pub(crate) fn until_left(&self, period: Nanos, now: Now) -> Nanos {
        let left = self.until_back(period, now).unwrap_or_else(|| self.until_next(period, now));
        left.min(self.until_forgotten(period, now))
    }

    pub(crate) fn shift(&mut self, offset: i64) {
        self.ends = self.ends.saturating_add_signed(offset);
    }
}
