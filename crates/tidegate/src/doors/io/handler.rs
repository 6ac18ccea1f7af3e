//! What a protocol is to an event loop: bytes in, bytes out, and no socket.
//!
//! An [`EventLoop`](super::event_loop::EventLoop) owns the sockets, buffers and timers of its
//! connections. It calls the handler of its loop when something happens to one of them. Loops
//! share no handler, so a handler needs no lock for what is its own.

use tidegate_core::{Nanos, Now};

use super::listener::Peer;
use super::pushes::Pushes;
use crate::metrics::Door;

/// One protocol in one loop.
pub(crate) trait Handler: Sized {
    /// What the handler keeps for one connection, from [`Self::on_open`] to [`Self::on_close`].
    type Session;
    /// What other threads send to the handler of a loop.
    type Message: Send + 'static;
    /// What a pending connection waits for.
    type Answer: Send + 'static;

    /// The door, for metrics and the log.
    const DOOR: Door;
    /// How the loop treats the connections.
    const POLICY: Policy;

    /// `count` connections are about to be opened, one after another. A handler that decides for
    /// many at once does so here.
    fn before_open(&mut self, _count: usize, _now: Now) {}

    /// A client has connected. On an error the connection is closed without a word, and the error
    /// is the reason under which that is counted.
    fn on_open(
        &mut self,
        peer: Peer,
        output: &mut Vec<u8>,
        context: &Context,
    ) -> Result<(Self::Session, Progress), &'static str>;

    /// There are bytes that were not taken yet. Returns how many of them were taken.
    fn on_bytes(
        &mut self,
        session: &mut Self::Session,
        input: &[u8],
        output: &mut Vec<u8>,
        context: &Context,
    ) -> (usize, Progress);

    /// The answer to a connection that is pending has come. `output` is the connection's own: it
    /// may hold earlier bytes, and the answer goes behind them.
    fn on_answer(
        &mut self,
        session: &mut Self::Session,
        answer: Self::Answer,
        output: &mut Vec<u8>,
        now: Now,
    ) -> Progress;

    /// Another thread has sent a message. Returns how much work it was, so that many messages do
    /// not keep the loop from its sockets.
    fn on_message(&mut self, message: Self::Message, pushes: &mut Pushes<'_, Self>) -> usize;

    /// Bytes were read. They are handed over now or later.
    fn on_read(&mut self, _session: &mut Self::Session, _bytes: usize) {}

    /// Bytes were written; `all` says that none is left to be written.
    fn on_written(&mut self, _session: &mut Self::Session, _bytes: usize, _all: bool) {}

    /// The buffers of a connection have changed: their room, and how much of it is in use.
    fn on_buffers(&mut self, _session: &Self::Session, _allocated: usize, _used: usize) {}

    /// Whether the client waits for something although no request is under way, as a subscriber
    /// does. Such a connection is not idle.
    fn is_listening(&self, session: &Self::Session) -> bool;

    /// So many bytes are kept for a connection: replies that wait to be written, and requests that
    /// are not executed yet. `room` is what their buffers take. `false`: they are too many, and the
    /// connection is closed.
    fn on_kept(&mut self, _session: &mut Self::Session, _bytes: usize, _room: usize) -> bool {
        true
    }

    /// Whether a client that leaves its replies unread is closed now. The loop asks once a second;
    /// unless the policy reads on, it reads no more from such a client in any case.
    fn is_too_slow(&self, _session: &Self::Session, reader: &SlowReader) -> bool {
        reader.stalled > reader.idle_max
    }

    /// Whether so much is kept for a client that others lack room. The loop asks once a second, and
    /// closes such a client if nothing comes from it or goes to it.
    fn keeps_too_much(&self, _session: &Self::Session) -> bool {
        false
    }

    /// The connection is over, or lingers.
    fn on_close(&mut self, session: Self::Session);

    /// The loop ends, and all its connections are closed.
    fn on_end(&mut self) {}
}

/// How far a handler got with what it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// It needs more bytes.
    More,
    /// The output is to be written first; then it goes on.
    Flush,
    /// The same, after the other connections had their turn.
    Yield,
    /// It goes on when its answer has come.
    Pending,
    /// The same, and the connection is over if the client sends no more before that.
    Waiting,
    /// The output is to be written, and then the connection is over.
    Close,
}

/// Which connection of a loop. The generation tells it from an earlier one at the same place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

/// What a handler gets beside bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context {
    pub(crate) now: Now,
    /// The connection, for an answer that comes later.
    pub(crate) id: ConnectionId,
}

/// A client that leaves its replies unread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlowReader {
    pub(crate) now: Nanos,
    /// For how long nothing was read or written.
    pub(crate) stalled: Nanos,
    /// For how long a connection may be idle.
    pub(crate) idle_max: Nanos,
}

/// How a loop treats the connections of a protocol.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policy {
    /// Whether connections end with the answer that they get when they are opened. Then they take
    /// no place, but for a TLS handshake: what bounds them is how many may linger.
    pub(crate) brief: bool,
    /// Whether requests are read while replies wait to be written, and executed unless very many
    /// do. Then the handler bounds what waits, by [`Handler::on_kept`]. Otherwise reading pauses.
    pub(crate) reads_on: bool,
    /// What a client is told that finds no place, before its connection is closed.
    pub(crate) refusal: &'static [u8],
    /// How much output one call should make, about.
    pub(crate) output_bytes: usize,
    /// The most bytes that are pushed to a connection and not written yet, unless one push alone
    /// is larger.
    pub(crate) push_bytes_max: usize,
    /// How long pending answers and unread replies are waited for when the door closes.
    pub(crate) drain_max: Nanos,
    pub(crate) linger: Linger,
}

/// How long a client may stay after its last reply. Closing at once could make a reset of bytes
/// that it has sent, and a reset may take unread replies along.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Linger {
    pub(crate) span: Nanos,
    /// The same when the door closes.
    pub(crate) span_at_end: Nanos,
    /// What the client may still send. It is thrown away.
    pub(crate) bytes_max: usize,
    /// Under which reasons a client is counted that stays or sends for too long.
    pub(crate) slow: Option<&'static str>,
    pub(crate) too_much: Option<&'static str>,
}
