//! Bytes that a handler pushes to connections of its loop, apart from replies to their requests.

use std::collections::VecDeque;

use super::connection_places::ConnectionPlaces;
use super::handler::Handler;

/// What became of bytes that were pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PushOutcome {
    /// They will be written when the replies are.
    Taken,
    /// The client reads too slowly: there is no room for them.
    Full,
    /// The connection is about to be closed.
    Closing,
    /// There is no such connection.
    Gone,
}

/// The connections of a loop, for what its handler pushes to them.
pub(crate) struct Pushes<'a, H: Handler> {
    pub(super) connections: &'a mut ConnectionPlaces<H>,
    /// The places of connections with something to write.
    pub(super) list: &'a mut VecDeque<u32>,
}

impl<H: Handler> Pushes<'_, H> {
    /// Takes bytes to be written to a connection, behind replies that it is owed.
    pub(crate) fn push(&mut self, slot: u32, bytes: &[u8]) -> PushOutcome {
        let Some(connection) = self.connections.at(slot) else { return PushOutcome::Gone };
        if connection.is_closing || connection.is_lingering() {
            return PushOutcome::Closing;
        }
        let waiting = connection.pushed.len();
        if waiting > 0 && waiting + bytes.len() > H::POLICY.push_bytes_max {
            return PushOutcome::Full;
        }
        connection.pushed.extend_from_slice(bytes);
        if !connection.has_pushed {
            connection.has_pushed = true;
            self.list.push_back(slot);
        }
        PushOutcome::Taken
    }
}
