//! A door loop's handle on the limiter.
//!
//! Each loop has its own, so that what it counts is not shared between cores.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use tidegate_core::Now;

use super::Limiter;
use crate::metrics::Door;

/// One decision or batch in this many is timed. A power of two.
const TIME_ONE_IN: u64 = 1024;

/// Where a door asks the limiter.
pub struct LimiterHandle {
    pub(super) limiter: Arc<Limiter>,
    pub(super) door: Door,
    pub(super) lane: usize,
    /// How many of its decisions wait for a remote store.
    pub(super) pending: Arc<AtomicUsize>,
}

impl Drop for LimiterHandle {
    fn drop(&mut self) {
        self.limiter.metrics.leave(self.lane);
    }
}

impl LimiterHandle {
    pub(super) fn new(limiter: Arc<Limiter>, door: Door) -> Self {
        let lane = limiter.metrics.lane(door);
        Self { limiter, door, lane, pending: Arc::default() }
    }

    /// The time, to be read once for each batch.
    #[must_use]
    pub fn now(&self) -> Now {
        self.limiter.clock.now()
    }

    /// The limiter behind the handle.
    #[must_use]
    pub fn limiter(&self) -> &Arc<Limiter> {
        &self.limiter
    }

    /// Takes all places of decisions that wait for a remote store.
    #[cfg(test)]
    pub(crate) fn fill_pending(&self) {
        self.pending.store(super::remote::PENDING_MAX, std::sync::atomic::Ordering::Relaxed);
    }

    pub(super) fn count_full(&self, action: Option<&'static str>) {
        if let Some(action) = action {
            self.limiter.metrics.table_full(action);
        }
    }

    /// Now and then, notes how long `decisions` that began at `start` took.
    #[inline]
    pub(super) fn time(&self, decisions: usize, start: Now) {
        // The low bits of a nanosecond clock are as good as dice, and cost nothing.
        if start.mono & (TIME_ONE_IN - 1) == 0 && decisions > 0 {
            let spent = self.now().mono.saturating_sub(start.mono);
            let seconds = spent as f64 / decisions as f64 / 1e9;
            self.limiter.metrics.decision_seconds(self.door, seconds);
        }
    }
}
