//! How many bytes clients can make a door hold that takes large messages: those of calls that are
//! not over, of half-sent messages, and of answers that clients have not taken.
//!
//! Each connection may hold a little in any case. More is taken from one pot for all connections.
//! When the pot is empty, a connection may still hold an even share of a second amount, so that
//! greedy clients starve each other and not honest ones. Nothing here knows what a call says.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// What a call takes beside its bytes: the state of its stream, its task and their buffers.
const CALL_BYTES: usize = 16 << 10;
/// What the calls of one connection may hold in any case.
const CONNECTION_BYTES_MAX: usize = 256 << 10;
/// What the calls of all connections may hold beyond that, whoever comes first. Messages lie in
/// buffers that grow by doubling: with what the allocator keeps, they take three times as much.
const HELD_BYTES_MAX: usize = 64 << 20;
/// What is divided among all connections when that is held.
const SHARES_BYTES_MAX: usize = 64 << 20;

/// The pot of all connections.
#[derive(Debug, Default)]
pub(crate) struct HeldBytes {
    bytes: AtomicUsize,
    connections: AtomicUsize,
}

impl HeldBytes {
    /// Bytes that connections have taken out of it.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    /// What each connection may have when the pot is empty.
    fn share(&self) -> usize {
        SHARES_BYTES_MAX / self.connections.load(Relaxed).max(1)
    }
}

/// A connection, as long as one of its calls is not over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ConnectionId(pub(crate) usize);

/// What the calls of one connection hold.
#[derive(Debug)]
pub(crate) struct ConnectionBytes {
    pot: Arc<HeldBytes>,
    bytes: AtomicUsize,
}

impl ConnectionBytes {
    pub(crate) fn new(pot: &Arc<HeldBytes>) -> Arc<Self> {
        pot.connections.fetch_add(1, Relaxed);
        Arc::new(Self { pot: pot.clone(), bytes: AtomicUsize::new(0) })
    }

    /// Begins a call with so many bytes of headers; `None` if there is no room for it.
    pub(crate) fn begin(self: &Arc<Self>, head_bytes: usize) -> Option<Arc<CallBytes>> {
        let bytes = CALL_BYTES + head_bytes;
        let call = || CallBytes { connection: self.clone(), bytes: bytes.into() };
        self.take(bytes).then(|| Arc::new(call()))
    }

    /// Holds more; `false`, and no more held, if there is no room.
    fn take(&self, bytes: usize) -> bool {
        let before = self.bytes.fetch_add(bytes, Relaxed);
        let beyond = beyond(before + bytes) - beyond(before);
        if beyond == 0 {
            return true;
        }
        let taken = self.pot.bytes.fetch_add(beyond, Relaxed) + beyond;
        let fits = taken <= HELD_BYTES_MAX || before + bytes <= self.pot.share();
        if !fits {
            self.give_back(bytes);
        }
        fits
    }

    fn give_back(&self, bytes: usize) {
        let before = self.bytes.fetch_sub(bytes, Relaxed);
        let beyond = beyond(before) - beyond(before - bytes);
        if beyond > 0 {
            self.pot.bytes.fetch_sub(beyond, Relaxed);
        }
    }
}

impl Drop for ConnectionBytes {
    fn drop(&mut self) {
        self.pot.connections.fetch_sub(1, Relaxed);
    }
}

/// The part of a connection's bytes that the pot must have room for.
fn beyond(bytes: usize) -> usize {
    bytes.saturating_sub(CONNECTION_BYTES_MAX)
}

/// What one call holds, until its answer is taken or it is given up.
#[derive(Debug)]
pub(crate) struct CallBytes {
    connection: Arc<ConnectionBytes>,
    bytes: AtomicUsize,
}

impl CallBytes {
    /// Whose call it is.
    pub(crate) fn connection(&self) -> ConnectionId {
        ConnectionId(Arc::as_ptr(&self.connection).addr())
    }

    /// Holds more; `false`, and no more held, if there is no room.
    pub(crate) fn take(&self, bytes: usize) -> bool {
        let fits = self.connection.take(bytes);
        if fits {
            self.bytes.fetch_add(bytes, Relaxed);
        }
        fits
    }

    /// Holds so much less.
    pub(crate) fn give_back(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Relaxed);
        self.connection.give_back(bytes);
    }
}

impl Drop for CallBytes {
    fn drop(&mut self) {
        self.connection.give_back(*self.bytes.get_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_has_its_share_when_others_have_taken_the_rest() {
        const KIB: usize = 1 << 10;
        const MIB: usize = 1 << 20;
        let pot = Arc::new(HeldBytes::default());
        let greedy = ConnectionBytes::new(&pot);
        let call = greedy.begin(0).expect("room");
        while call.take(KIB) {}
        let most = HELD_BYTES_MAX + CONNECTION_BYTES_MAX;
        assert!((most - KIB..=most).contains(&greedy.bytes.load(Relaxed)), "{greedy:?}");
        // Half of the shares, and a little in any case, however many there are.
        let honest = ConnectionBytes::new(&pot);
        let held: Vec<_> = std::iter::from_fn(|| honest.begin(MIB)).take(1_000).collect();
        assert_eq!(held.len(), SHARES_BYTES_MAX / 2 / (CALL_BYTES + MIB));
        drop(held);
        let crowd: Vec<_> = (0..4_096).map(|_| ConnectionBytes::new(&pot)).collect();
        let calls: Vec<_> = std::iter::from_fn(|| crowd[7].begin(0)).take(1_000).collect();
        assert_eq!(calls.len(), CONNECTION_BYTES_MAX / CALL_BYTES);
        assert!(!calls[0].take(MIB));
        drop(call);
        assert!(calls[0].take(MIB));
        calls[0].give_back(MIB);
        drop((calls, crowd));
        assert_eq!(pot.bytes(), 0);
        drop((greedy, honest));
        assert_eq!(pot.connections.load(Relaxed), 0);
    }
}
