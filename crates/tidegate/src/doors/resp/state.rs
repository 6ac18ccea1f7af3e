//! What the loops share: settings that a reload changes, who is connected, what waits to be read,
//! and counts.
//!
//! None of it is written to by a request, except for what must be kept for a client.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tidegate_core::Nanos;

use super::counts::{AllCounts, CountsSum, LoopCounts};
use super::credentials::Credentials;
use super::series::RespSeries;
use crate::doors::Gate;
use crate::doors::io::limits::AllDoors;

/// The most bytes that are kept for one connection: replies that wait to be written, and requests
/// that are not executed yet. A client that needs more is closed.
pub(super) const KEPT_BYTES_MAX: usize = 32 << 20;
/// The room that is taken for the same, for all connections of the door.
pub(super) const KEPT_BYTES_TOTAL_MAX: usize = 256 << 20;

/// What a reload changes while the door is open.
#[derive(Default)]
pub(super) struct Settings {
    pub(super) credentials: Credentials,
    pub(super) max_connections: u32,
}

/// Shared by all loops of the door.
pub(super) struct RespState {
    pub(super) settings: ArcSwap<Settings>,
    pub(super) started_at: Nanos,
    /// The id of the next connection.
    next: AtomicU64,
    connected: AtomicUsize,
    kept: AtomicUsize,
    counts: Mutex<AllCounts>,
}

impl RespState {
    /// Nobody is connected yet.
    pub(super) fn new(started_at: Nanos) -> Arc<Self> {
        Arc::new(Self {
            settings: ArcSwap::default(),
            started_at,
            next: AtomicU64::new(1),
            connected: AtomicUsize::new(0),
            kept: AtomicUsize::new(0),
            counts: Mutex::default(),
        })
    }

    /// The one of the process.
    pub(super) fn of(gate: &Gate) -> Arc<Self> {
        let doors = AllDoors::of(gate);
        gate.shared.part(|| {
            let state = Self::new(gate.control.state().begun_at());
            gate.metrics.register(Box::new(RespSeries(state.clone(), doors)));
            state
        })
    }

    /// Enters a connection, and returns its id.
    pub(super) fn enter(&self) -> u64 {
        self.connected.fetch_add(1, Relaxed);
        self.next.fetch_add(1, Relaxed)
    }

    /// Removes a connection for which so many bytes were kept.
    pub(super) fn leave(&self, kept: usize) {
        self.connected.fetch_sub(1, Relaxed);
        self.kept.fetch_sub(kept, Relaxed);
    }

    /// The room that is taken for all connections.
    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.kept.load(Relaxed)
    }

    /// How many clients are connected.
    pub(super) fn connected(&self) -> usize {
        self.connected.load(Relaxed)
    }

    /// So much room is taken for a connection, after `before`. `false` if all take too much.
    pub(super) fn keeps(&self, before: usize, now: usize) -> bool {
        let total = if now >= before {
            self.kept.fetch_add(now - before, Relaxed) + (now - before)
        } else {
            self.kept.fetch_sub(before - now, Relaxed) - (before - now)
        };
        total <= KEPT_BYTES_TOTAL_MAX
    }

    /// A place to count for a loop that begins.
    pub(super) fn loop_counts(&self) -> Arc<LoopCounts> {
        self.counts.lock().take()
    }

    /// Takes back the place of a loop that has ended.
    pub(super) fn end_loop(&self, counts: Arc<LoopCounts>) {
        self.counts.lock().give_back(counts);
    }

    /// What all loops counted.
    pub(super) fn sum(&self) -> CountsSum {
        self.counts.lock().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_bounded_for_all() {
        let state = RespState::new(0);
        assert!(state.keeps(0, KEPT_BYTES_MAX));
        state.enter();
        state.leave(KEPT_BYTES_MAX);
        for _ in 0..8 {
            assert!(state.keeps(0, KEPT_BYTES_MAX));
        }
        assert!(!state.keeps(0, 1), "256 MiB wait already");
        assert!(state.keeps(KEPT_BYTES_MAX, 0));
    }
}
