//! Replies that come later, from a remote store or a line of waiting requests.
//!
//! Requests of one connection are answered in order. The connection reads no further request while
//! replies are missing; those that were decided together may be answered in any order.

use std::sync::Arc;

use tidegate_wire::resp::reply;

use super::RespInbox;
use crate::doors::io::handler::ConnectionId;

/// The replies that a connection waits for, in the order of their requests.
#[derive(Default)]
pub(super) struct PendingReplies {
    /// What was written of each, once it is there.
    replies: Vec<Option<Vec<u8>>>,
    missing: usize,
    /// Dropped with the connection: ends what the client waits for.
    guard: Option<Box<dyn Send>>,
}

impl PendingReplies {
    /// Whether no reply is waited for.
    pub(super) fn is_empty(&self) -> bool {
        self.replies.is_empty()
    }

    /// Adds a reply that is there already, behind those that are missing.
    pub(super) fn add(&mut self, reply: Vec<u8>) {
        self.replies.push(Some(reply));
    }

    /// Adds a reply that will come, and returns its place.
    fn expect(&mut self) -> usize {
        self.replies.push(None);
        self.missing += 1;
        self.replies.len() - 1
    }

    /// Keeps `guard` until the replies are there or the connection is over.
    #[expect(dead_code, reason = "for commands that wait")]
    pub(super) fn keep(&mut self, guard: Box<dyn Send>) {
        self.guard = Some(guard);
    }

    /// Takes a reply that has come. Once none is missing, appends all to `out`, and says so.
    pub(super) fn take(&mut self, answer: LateReply, out: &mut Vec<u8>) -> bool {
        let LateReply { place, write } = answer;
        if let Some(reply @ None) = self.replies.get_mut(place) {
            let mut bytes = Vec::new();
            write(&mut bytes);
            *reply = Some(bytes);
            self.missing -= 1;
        }
        if self.missing > 0 {
            return false;
        }
        self.guard = None;
        for reply in self.replies.drain(..).flatten() {
            out.extend_from_slice(&reply);
        }
        true
    }
}

/// Appends a reply.
type Write = Box<dyn FnOnce(&mut Vec<u8>) + Send>;

/// A reply that has come.
pub(super) struct LateReply {
    place: usize,
    write: Write,
}

/// The right to answer one request later, from any thread. If it is dropped, the client is told
/// that no answer comes.
pub(super) struct ReplyLater {
    inbox: Arc<RespInbox>,
    connection: ConnectionId,
    place: usize,
    is_sent: bool,
}

impl ReplyLater {
    pub(super) fn new(
        inbox: &Arc<RespInbox>,
        connection: ConnectionId,
        pending: &mut PendingReplies,
    ) -> Self {
        let place = pending.expect();
        Self { inbox: inbox.clone(), connection, place, is_sent: false }
    }

    /// Answers; `write` appends the reply, in the loop of the connection.
    pub(super) fn send(mut self, write: impl FnOnce(&mut Vec<u8>) + Send + 'static) {
        self.leave(Box::new(write));
    }

    fn leave(&mut self, write: Write) {
        self.is_sent = true;
        self.inbox.answer(self.connection, LateReply { place: self.place, write });
    }
}

impl Drop for ReplyLater {
    fn drop(&mut self) {
        if !self.is_sent {
            self.leave(Box::new(|out| reply::error(out, b"ERR no answer: the server is stopping")));
        }
    }
}
