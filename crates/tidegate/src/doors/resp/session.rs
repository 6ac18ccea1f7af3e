//! What the door keeps for one connection.

use tidegate_core::Nanos;
use tidegate_wire::resp::{Parser, ProtocolVersion};

use super::commands::transaction::{Execution, Transaction};
use super::pending::PendingReplies;
use crate::doors::io::listener::Peer;

/// One connection in its loop.
pub(super) struct Session {
    pub(super) parser: Parser,
    pub(super) client: RespClient,
}

/// What commands know of a connection.
pub(super) struct RespClient {
    pub(super) id: u64,
    pub(super) peer: Peer,
    /// On the monotonic clock.
    pub(super) connected_at: Nanos,
    pub(super) version: ProtocolVersion,
    /// As CLIENT SETNAME says; empty: none.
    pub(super) name: Box<[u8]>,
    /// As CLIENT SETINFO says.
    pub(super) library: Box<[u8]>,
    pub(super) library_version: Box<[u8]>,
    pub(super) is_authenticated: bool,
    /// Since the client last authenticated.
    pub(super) wrong_passwords: u32,
    pub(super) pending: PendingReplies,
    /// Commands that wait for EXEC, after MULTI.
    pub(super) transaction: Option<Transaction>,
    /// Commands that EXEC still has to run.
    pub(super) execution: Option<Box<Execution>>,
    /// Whether a command of a transaction is run just now.
    pub(super) is_executing: bool,
    /// Room that is taken for it: by replies that wait to be written, and requests that wait.
    pub(super) kept_bytes: usize,
}

impl Session {
    /// A connection that has just come.
    pub(super) fn new(id: u64, peer: Peer, is_authenticated: bool, now: Nanos) -> Self {
        let client = RespClient {
            id,
            peer,
            connected_at: now,
            version: ProtocolVersion::default(),
            name: Box::default(),
            library: Box::default(),
            library_version: Box::default(),
            is_authenticated,
            wrong_passwords: 0,
            pending: PendingReplies::default(),
            transaction: None,
            execution: None,
            is_executing: false,
            kept_bytes: 0,
        };
        Self { parser: Parser::default(), client }
    }
}

impl RespClient {
    /// Room of the commands that wait for EXEC, or that EXEC runs.
    #[inline]
    pub(super) fn queued_bytes(&self) -> usize {
        let queued = self.transaction.as_ref().map_or(0, Transaction::room);
        queued + self.execution.as_ref().map_or(0, |execution| execution.requests.capacity())
    }

    /// Has EXEC refuse a transaction in which a command was wrong.
    pub(super) fn break_transaction(&mut self) {
        if let Some(transaction) = &mut self.transaction {
            transaction.break_off();
        }
    }
}
