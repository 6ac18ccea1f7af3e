//! How many may wait: the bounds of one door, and who is inside of them.

use std::sync::Arc;

use prometheus_client::metrics::gauge::Gauge;

use super::sync::{AtomicUsize, Ordering::Relaxed};
use crate::metrics::{Door, Metrics};

/// How many may wait at a door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// For one key, or for keys that share one count.
    pub per_key: usize,
    /// For all keys together.
    pub total: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { per_key: 10_000, total: 10_000 }
    }
}

/// Those who wait at one door, whichever keys they wait for.
#[derive(Debug)]
pub struct Crowd {
    bounds: Bounds,
    inside: AtomicUsize,
    /// The same for all doors of a kind, for the metrics.
    shown: Gauge,
}

impl Crowd {
    /// An empty crowd of a door.
    #[must_use]
    pub fn new(metrics: &Metrics, door: Door, bounds: Bounds) -> Arc<Self> {
        let crowd = Self { bounds, inside: AtomicUsize::new(0), shown: metrics.waiting(door) };
        Arc::new(crowd)
    }

    /// How many wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.inside.load(Relaxed)
    }

    /// Whether nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn per_key(&self) -> usize {
        self.bounds.per_key
    }

    /// One more, if there is room.
    pub(super) fn enter(&self) -> Option<Inside<'_>> {
        let more = |inside| (inside < self.bounds.total).then_some(inside + 1);
        self.inside.fetch_update(Relaxed, Relaxed, more).ok()?;
        self.shown.inc();
        Some(Inside(self))
    }
}

/// One of the crowd, until it is dropped.
pub(super) struct Inside<'a>(&'a Crowd);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, Relaxed);
        self.0.shown.dec();
    }
}
