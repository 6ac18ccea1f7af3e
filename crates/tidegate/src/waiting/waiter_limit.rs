//! How many requests may wait at one door.

use std::sync::Arc;

use prometheus_client::metrics::gauge::Gauge;

use super::sync::{AtomicUsize, Ordering::Relaxed};
use crate::metrics::{Door, Metrics};

/// The most requests that may wait at a door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaiterBounds {
    /// For one key, or for keys that share one count.
    pub per_key: usize,
    /// For all keys together.
    pub total: usize,
}

impl Default for WaiterBounds {
    fn default() -> Self {
        Self { per_key: 10_000, total: 10_000 }
    }
}

/// Counts the requests that wait at one door, and bounds them.
#[derive(Debug)]
pub struct WaiterLimit {
    bounds: WaiterBounds,
    waiting: AtomicUsize,
    /// The same for all doors of a kind, for the metrics.
    shown: Gauge,
    shown_max: Gauge,
}

impl WaiterLimit {
    /// The limit of a door where nothing waits yet.
    #[must_use]
    pub fn new(metrics: &Metrics, door: Door, bounds: WaiterBounds) -> Arc<Self> {
        let (shown, shown_max) = (metrics.waiting(door), metrics.waiting_max(door));
        shown_max.inc_by(shown_total(bounds));
        Arc::new(Self { bounds, waiting: AtomicUsize::new(0), shown, shown_max })
    }

    /// How many wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.load(Relaxed)
    }

    /// Whether no request waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn per_key(&self) -> usize {
        self.bounds.per_key
    }

    /// Counts one more, if the limit allows it.
    pub(super) fn enter(&self) -> Option<WaiterPlace<'_>> {
        let more = |waiting| (waiting < self.bounds.total).then_some(waiting + 1);
        self.waiting.fetch_update(Relaxed, Relaxed, more).ok()?;
        self.shown.inc();
        Some(WaiterPlace(self))
    }
}

impl Drop for WaiterLimit {
    fn drop(&mut self) {
        self.shown_max.dec_by(shown_total(self.bounds));
    }
}

fn shown_total(bounds: WaiterBounds) -> i64 {
    i64::try_from(bounds.total).unwrap_or(i64::MAX)
}

/// One request that is counted as waiting until this is dropped.
pub(super) struct WaiterPlace<'a>(&'a WaiterLimit);

impl Drop for WaiterPlace<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Relaxed);
        self.0.shown.dec();
    }
}
