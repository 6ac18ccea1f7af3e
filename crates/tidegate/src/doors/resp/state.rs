//! What the loops share: settings that a reload changes, the clients, what waits to be read,
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
/// The same for all connections of the door, counted by the room that it takes. No connection takes
/// more than is left for all others: the nearer the bound, the less each may take, so that clients
/// which took much give way to those that need little.
pub(super) const KEPT_BYTES_TOTAL_MAX: usize = 256 << 20;
/// A client may keep so much also where no room is left.
pub(super) const KEPT_BYTES_ALWAYS: usize = 64 << 10;

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
    /// The state of a door without connections.
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

    /// So much room is taken for a connection, after `before`. `false` if that is too much.
    pub(super) fn keeps(&self, before: usize, now: usize) -> bool {
        if now <= before {
            self.kept.fetch_sub(before - now, Relaxed);
            return true;
        }
        self.kept.fetch_add(now - before, Relaxed);
        self.has_room_for(now)
    }

    /// Whether a connection may go on to take so much.
    pub(super) fn has_room_for(&self, kept: usize) -> bool {
        kept <= KEPT_BYTES_TOTAL_MAX.saturating_sub(self.kept.load(Relaxed))
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
        for _ in 0..7 {
            assert!(state.keeps(0, KEPT_BYTES_MAX));
        }
        let rest = KEPT_BYTES_TOTAL_MAX - 7 * KEPT_BYTES_MAX;
        assert!(state.keeps(0, rest / 2), "as much is left for all others");
        assert!(!state.keeps(rest / 2, rest / 2 + 1));
        assert!(!state.has_room_for(KEPT_BYTES_MAX), "those that took most give way");
        assert!(state.keeps(KEPT_BYTES_MAX, 0));
        assert!(state.has_room_for(KEPT_BYTES_MAX));
    }
}
