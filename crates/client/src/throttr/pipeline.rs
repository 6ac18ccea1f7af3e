//! The requests and replies of one connection: bytes to be sent, bytes that have come, and the
//! callers that wait.

use std::collections::VecDeque;
use std::sync::Arc;
use std::vec;

use tidegate_wire::throttr::Request;
use tidegate_wire::throttr::ask::{Expected, Incoming, ReplyReader, reply_bytes_max};
use tokio::sync::oneshot;

use super::events::SubscriptionTable;
use super::replies::{self, Reply};
use super::socket::ClientSocket;
use super::{IN_FLIGHT_MAX, Loss, Settings, ThrottrError};

/// While more bytes than this wait to be sent, no further requests are taken.
const OUT_BYTES_MAX: usize = 1 << 20;

/// The buffer for what comes begins with so many bytes.
const IN_BYTES_MIN: usize = 16 * 1024;

/// The most reads in a row, so that a flood of events does not keep requests from being sent.
const READS_MAX: usize = 16;

/// Requests of one caller that are sent together.
#[derive(Debug)]
pub(super) struct Ask {
    pub(super) bytes: Vec<u8>,
    pub(super) expected: Vec<Expected>,
    pub(super) waiter: Waiter,
}

/// Where replies go.
#[derive(Debug)]
pub(super) enum Waiter {
    Caller(oneshot::Sender<Result<Vec<Reply>, ThrottrError>>),
    /// The status does not matter: the connection may have been subscribed already.
    Subscriber(oneshot::Sender<Result<(), ThrottrError>>),
    Nobody,
}

impl Waiter {
    fn has_left(&self) -> bool {
        match self {
            Waiter::Caller(answer) => answer.is_closed(),
            Waiter::Subscriber(ready) => ready.is_closed(),
            Waiter::Nobody => false,
        }
    }

    /// The caller may have given up: then the answer is late, and dropped.
    pub(super) fn tell(self, answer: Result<Vec<Reply>, ThrottrError>) {
        match self {
            Waiter::Caller(caller) => drop(caller.send(answer)),
            Waiter::Subscriber(ready) => drop(ready.send(answer.map(drop))),
            Waiter::Nobody => {}
        }
    }
}

/// Requests of one caller that were sent, and the replies so far.
#[derive(Debug)]
struct SentRequests {
    expected: Expected,
    later: vec::IntoIter<Expected>,
    replies: Vec<Reply>,
    waiter: Waiter,
}

#[derive(Debug)]
pub(super) struct Pipeline {
    settings: Settings,
    out: Vec<u8>,
    /// How much of `out` was sent.
    sent: usize,
    /// What has come is its first `filled` bytes.
    incoming: Vec<u8>,
    filled: usize,
    reader: ReplyReader,
    waiting: VecDeque<SentRequests>,
    /// Requests that were sent and not answered.
    in_flight: usize,
    /// The reply that is being put together, if it has several pieces.
    partial: Option<Reply>,
    understood: bool,
}

impl Pipeline {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            settings,
            out: Vec::new(),
            sent: 0,
            incoming: vec![0; IN_BYTES_MIN],
            filled: 0,
            reader: ReplyReader::new(settings.value_size, settings.value_bytes_max),
            waiting: VecDeque::new(),
            in_flight: 0,
            partial: None,
            understood: false,
        }
    }

    /// Whether the server has sent anything that this client understood.
    pub(super) fn has_understood(&self) -> bool {
        self.understood
    }

    /// Whether further requests may be sent.
    pub(super) fn has_room(&self) -> bool {
        self.in_flight < IN_FLIGHT_MAX && self.out.len() - self.sent < OUT_BYTES_MAX
    }

    pub(super) fn has_output(&self) -> bool {
        self.sent < self.out.len()
    }

    pub(super) fn awaits_replies(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Queues requests to be sent, unless their caller has given up: requests that nobody waits for
    /// are better not executed.
    pub(super) fn send(&mut self, ask: Ask) {
        if ask.waiter.has_left() {
            return;
        }
        let replies = Vec::with_capacity(ask.expected.len());
        self.in_flight += ask.expected.len();
        let mut later = ask.expected.into_iter();
        let Some(expected) = later.next() else { return ask.waiter.tell(Ok(replies)) };
        self.out.extend_from_slice(&ask.bytes);
        self.waiting.push_back(SentRequests { expected, later, replies, waiter: ask.waiter });
    }

    /// Sends a request of the client's own, about a channel whose name is not too long.
    pub(super) fn send_own(&mut self, request: Request<'_>, waiter: Waiter) {
        let size = self.settings.value_size;
        let mut bytes = Vec::new();
        match request.encode(size, &mut bytes) {
            Ok(()) => {
                self.send(Ask { bytes, expected: vec![Expected::of(&request, size)], waiter });
            }
            Err(unwritable) => waiter.tell(Err(unwritable.into())),
        }
    }

    /// Writes as much as the socket takes.
    pub(super) fn flush(&mut self, socket: &ClientSocket) -> Result<(), Loss> {
        while self.has_output() {
            match socket.write(&self.out[self.sent..]).map_err(lost)? {
                Some(bytes) => self.sent += bytes,
                None => break,
            }
        }
        // What was sent makes room once it is most of the buffer, so a byte moves once on average.
        if self.sent * 2 >= self.out.len() {
            self.out.drain(..self.sent);
            self.sent = 0;
        }
        Ok(())
    }

    /// Reads what has come and hands it out. `true` if anything has.
    pub(super) fn read(
        &mut self,
        socket: &ClientSocket,
        subscriptions: &mut SubscriptionTable,
    ) -> Result<bool, Loss> {
        let mut heard = false;
        for _ in 0..READS_MAX {
            match socket.read(&mut self.incoming[self.filled..]).map_err(lost)? {
                None => break,
                Some(0) => return Err(Loss::Closed),
                Some(bytes) => self.filled += bytes,
            }
            heard = true;
            self.hand_out(subscriptions)?;
        }
        Ok(heard)
    }

    fn hand_out(&mut self, subscriptions: &mut SubscriptionTable) -> Result<(), Loss> {
        let mut at = 0;
        loop {
            let front = &self.incoming[at..self.filled];
            let expected = self.waiting.front().map(|waiting| waiting.expected);
            match (self.reader.next(front, expected), expected) {
                (Incoming::Piece { piece, bytes, last }, Some(expected)) => {
                    replies::add(&mut self.partial, piece, expected, self.settings.rows_max)
                        .map_err(Loss::Broken)?;
                    at += bytes;
                    if last {
                        self.replied();
                    }
                }
                (Incoming::Event { channel, payload, bytes }, _) => {
                    subscriptions.deliver(channel, payload);
                    at += bytes;
                    self.understood = true;
                }
                (Incoming::Broken(broken), _) => return Err(Loss::Broken(broken)),
                // A piece of what is not expected does not exist.
                (Incoming::Incomplete | Incoming::Piece { .. }, _) => break,
            }
        }
        self.incoming.copy_within(at..self.filled, 0);
        self.filled -= at;
        if self.filled == self.incoming.len() {
            // The reader calls nothing incomplete that is longer than its bound.
            let most = reply_bytes_max(self.settings.value_size, self.settings.value_bytes_max);
            self.incoming.resize((2 * self.filled).min(most.max(self.filled + 1)), 0);
        }
        Ok(())
    }

    /// The oldest reply is whole.
    fn replied(&mut self) {
        let Some(waiting) = self.waiting.front_mut() else { return };
        self.in_flight -= 1;
        self.understood = true;
        waiting.replies.extend(self.partial.take());
        if let Some(next) = waiting.later.next() {
            waiting.expected = next;
        } else if let Some(whole) = self.waiting.pop_front() {
            whole.waiter.tell(Ok(whole.replies));
        }
    }

    /// Tells every caller that the connection is lost.
    pub(super) fn end(self, loss: &Loss) {
        for waiting in self.waiting {
            waiting.waiter.tell(Err(ThrottrError::Lost(loss.clone())));
        }
    }
}

fn lost(error: std::io::Error) -> Loss {
    Loss::Io(Arc::new(error))
}
