//! A door loop's handle on the limiter.
//!
//! Each loop has its own, so that what it counts is not shared between cores.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use tidegate_core::Now;

use super::Limiter;
use crate::metrics::Door;

/// A door loop's access to the limiter.
pub struct LimiterHandle {
    pub(super) limiter: Arc<Limiter>,
    pub(super) door: Door,
    pub(super) counter_stripe: usize,
    /// How many of its decisions wait for a remote store.
    pub(super) pending: Arc<AtomicUsize>,
}

impl Drop for LimiterHandle {
    fn drop(&mut self) {
        self.limiter.metrics.leave(self.counter_stripe);
    }
}

impl LimiterHandle {
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
}
