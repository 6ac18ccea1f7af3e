//! What the loops of all listeners share: connections, channels, and counts.
//!
//! None of it is touched by a QUERY or an UPDATE: a loop has counts of its own, and a connection
//! its figures. Locks here are taken when a client connects or leaves, publishes, or asks about it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use tidegate_core::{Nanos, Now};
use tidegate_wire::throttr::ValueSize;
use tidegate_wire::throttr::figures::{ConnectionRecord, Info, padded};

use super::background::Background;
use super::channels::Channels;
use super::connection_stats::{ConnectionStats, ConnectionUuid, new_id};
use super::counts::{AllCounts, Figure, LoopCounts, Sum};
use super::series::Series;
use crate::clock::Clock;
use crate::doors::Gate;
use crate::doors::io::limits::AllDoors;
use crate::doors::io::listener::Peer;
use crate::records::Records;

/// Shared by all Throttr listeners of the process.
pub struct ThrottrState {
    started_at: Nanos,
    clock: Clock,
    pub(super) channels: Channels,
    connections: Mutex<HashMap<ConnectionUuid, Arc<ConnectionStats>>>,
    /// The number of the next connection.
    next: AtomicU64,
    counts: Mutex<AllCounts>,
    /// Where answers that take long are written.
    pub(super) background: Background,
}

impl ThrottrState {
    /// No connection yet.
    #[must_use]
    pub fn new(clock: Clock) -> Arc<Self> {
        let started_at = clock.now().unix;
        Self::since(started_at, clock)
    }

    /// The one of the process.
    pub(super) fn of(gate: &Gate) -> Arc<Self> {
        let doors = AllDoors::of(gate);
        gate.shared.part(|| {
            let state = Self::since(gate.control.state().begun_at(), gate.clock().clone());
            gate.metrics.register(Box::new(Series(state.clone(), doors)));
            state
        })
    }

    fn since(started_at: Nanos, clock: Clock) -> Arc<Self> {
        Arc::new(Self {
            started_at,
            clock,
            channels: Channels::default(),
            connections: Mutex::default(),
            next: AtomicU64::new(1),
            counts: Mutex::default(),
            background: Background::default(),
        })
    }

    /// Enters a connection. An error means that the system has no randomness for its id.
    pub(super) fn enter(
        &self,
        peer: Peer,
        now: Now,
    ) -> Result<Arc<ConnectionStats>, getrandom::Error> {
        let number = self.next.fetch_add(1, Relaxed);
        let stats = Arc::new(ConnectionStats::new(number, new_id()?, peer, now.unix));
        self.connections.lock().insert(stats.id, stats.clone());
        Ok(stats)
    }

    /// Removes a connection.
    pub(super) fn leave(&self, stats: &ConnectionStats) {
        self.connections.lock().remove(&stats.id);
    }

    /// One connection.
    pub(super) fn connection(&self, id: &ConnectionUuid) -> Option<ConnectionRecord> {
        let stats = self.connections.lock().get(id).cloned();
        stats.map(|stats| stats.record())
    }

    /// Every connection, the oldest first.
    pub(super) fn connections(&self) -> Vec<ConnectionRecord> {
        let mut all: Vec<Arc<ConnectionStats>> =
            self.connections.lock().values().cloned().collect();
        all.sort_unstable_by_key(|stats| stats.number);
        all.iter().map(|stats| stats.record()).collect()
    }

    /// A place to count for a loop that begins.
    pub(super) fn new_counts(&self) -> Arc<LoopCounts> {
        self.counts.lock().take()
    }

    /// Takes the place of a loop that has ended.
    pub(super) fn end_counts(&self, counts: Arc<LoopCounts>) {
        self.counts.lock().give_back(counts);
    }

    /// What all loops counted, as of now.
    pub(super) fn sum(&self) -> Sum {
        self.counts.lock().sum(self.clock.now())
    }

    pub(super) fn now(&self) -> Now {
        self.clock.now()
    }

    /// How many connections have been opened.
    pub(super) fn len(&self) -> usize {
        self.connections.lock().len()
    }

    /// Everything that INFO tells a client whose values have this size.
    pub(super) fn info(&self, records: &Records, value_size: ValueSize, now: Now) -> Info {
        let sum = self.counts.lock().sum(now);
        let size = records.size();
        let (subscriptions, channels) = self.channels.size();
        Info {
            now_s: now.unix / tidegate_core::time::SECOND,
            requests: sum.requests(),
            kinds: sum.kinds(),
            read_bytes: sum.figure(Figure::Read),
            written_bytes: sum.figure(Figure::Written),
            keys: (size.counters + size.buffers) as u64,
            counters: size.counters as u64,
            buffers: size.buffers as u64,
            // As LIST has them: a counter is one number of the client's size.
            counter_bytes: (size.counters * value_size.bytes()) as u64,
            buffer_bytes: size.value_bytes as u64,
            subscriptions: subscriptions as u64,
            channels: channels as u64,
            started_at_ns: self.started_at,
            connections: self.len() as u64,
            version: padded(env!("CARGO_PKG_VERSION")),
        }
    }
}
