//! What a connection did, for CONNECTION and CONNECTIONS. The loop that has the connection writes,
//! every loop may read.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tidegate_core::Nanos;
use tidegate_wire::throttr::figures::{ConnectionRecord, Transport, padded};
use tidegate_wire::throttr::{ID_BYTES, RequestKind};

use crate::doors::io::listener::Peer;

/// The id of a connection: a random UUID, version 4.
pub(super) type ConnectionUuid = [u8; ID_BYTES];

/// The figures of one connection.
pub(super) struct ConnectionStats {
    /// The order in which connections came.
    pub(super) number: u64,
    pub(super) id: ConnectionUuid,
    peer: Peer,
    connected_at: Nanos,
    read: AtomicU64,
    written: AtomicU64,
    published: AtomicU64,
    received: AtomicU64,
    allocated: AtomicU64,
    consumed: AtomicU64,
    requests: [AtomicU64; RequestKind::COUNT],
}

/// Adds to a figure that only this thread writes.
#[inline]
fn bump(figure: &AtomicU64, count: usize) {
    figure.store(figure.load(Relaxed) + count as u64, Relaxed);
}

impl ConnectionStats {
    pub(super) fn new(number: u64, id: ConnectionUuid, peer: Peer, connected_at: Nanos) -> Self {
        Self {
            number,
            id,
            peer,
            connected_at,
            read: AtomicU64::new(0),
            written: AtomicU64::new(0),
            published: AtomicU64::new(0),
            received: AtomicU64::new(0),
            allocated: AtomicU64::new(0),
            consumed: AtomicU64::new(0),
            requests: [const { AtomicU64::new(0) }; RequestKind::COUNT],
        }
    }

    /// The name of the channel that leads to this connection alone.
    pub(super) fn own_channel(&self) -> [u8; 2 * ID_BYTES] {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        std::array::from_fn(|at| {
            let byte = self.id[at / 2];
            DIGITS[usize::from(if at % 2 == 0 { byte >> 4 } else { byte & 15 })]
        })
    }

    /// Counts requests of one kind.
    #[inline]
    pub(super) fn count(&self, kind: usize, requests: u64) {
        bump(&self.requests[kind], requests as usize);
    }

    /// Counts bytes that were read.
    #[inline]
    pub(super) fn has_read(&self, bytes: usize) {
        bump(&self.read, bytes);
    }

    /// Counts bytes that were written.
    #[inline]
    pub(super) fn has_written(&self, bytes: usize) {
        bump(&self.written, bytes);
    }

    /// Counts bytes of a payload that it published.
    pub(super) fn has_published(&self, bytes: usize) {
        bump(&self.published, bytes);
    }

    /// Counts bytes of a payload that it was sent.
    pub(super) fn has_received(&self, bytes: usize) {
        bump(&self.received, bytes);
    }

    /// Says what its buffers take, and how much of that is in use.
    #[inline]
    pub(super) fn holds(&self, allocated: usize, consumed: usize) {
        self.allocated.store(allocated as u64, Relaxed);
        self.consumed.store(consumed as u64, Relaxed);
    }

    /// The record as the protocol tells it.
    pub(super) fn record(&self) -> ConnectionRecord {
        let (transport, ip_version, address, port) = match self.peer {
            Peer::Tcp(peer) => {
                let ip = peer.ip().to_canonical();
                let version = if ip.is_ipv4() { 4 } else { 6 };
                (Transport::Tcp, version, padded(&ip.to_string()), peer.port())
            }
            Peer::Unix => (Transport::Unix, 4, padded(""), 0),
        };
        ConnectionRecord {
            id: self.id,
            transport,
            ip_version,
            address,
            port,
            connected_at_ns: self.connected_at,
            read_bytes: self.read.load(Relaxed),
            written_bytes: self.written.load(Relaxed),
            published_bytes: self.published.load(Relaxed),
            received_bytes: self.received.load(Relaxed),
            allocated_bytes: self.allocated.load(Relaxed),
            consumed_bytes: self.consumed.load(Relaxed),
            requests: std::array::from_fn(|kind| self.requests[kind].load(Relaxed)),
        }
    }
}

/// A new random id, version 4.
pub(super) fn new_id() -> Result<ConnectionUuid, getrandom::Error> {
    let mut id = [0; ID_BYTES];
    getrandom::fill(&mut id)?;
    id[6] = id[6] & 0x0f | 0x40;
    id[8] = id[8] & 0x3f | 0x80;
    Ok(id)
}
