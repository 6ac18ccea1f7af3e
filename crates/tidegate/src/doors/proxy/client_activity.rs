//! What a client of the proxy is doing, since when, and how long it may.
//!
//! All tasks of one connection run on one thread. They report here what they read, write and wait
//! for; the connection's task compares that with the timeouts when its deadline comes.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use super::ticks::{Deadline, Tick, Ticks};
use crate::doors::io::accept::is_tls_fault;
use crate::doors::io::activity::Cut;
use crate::doors::io::limits::ConnectionPlace;

/// How long a client may take, in ticks.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClientTimeouts {
    /// For the head of a request, from its first byte on, or for a handshake.
    pub(super) head: Tick,
    /// Without a request.
    pub(super) idle: Tick,
    /// With a body of which no byte is sent or read.
    pub(super) stall: Tick,
    /// With a tunnel in which neither side sends.
    pub(super) tunnel: Tick,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No request has begun, or the last response is sent.
    Idle,
    /// A part of a head, or of a handshake, has come.
    Head,
    /// At least one request is in progress.
    Busy,
}

/// How long a client that has closed its sending side is still answered, in ticks. The proxy
/// cannot know whether it reads or has left before it sends something.
const HALF_CLOSED_MAX: Tick = 50;

/// Since when something has not moved; `None` if nothing is waited for.
type Since = Cell<Option<Tick>>;

/// The state of one client.
pub(super) struct ClientActivity {
    phase: Cell<Phase>,
    since: Cell<Tick>,
    requests: Cell<u32>,
    /// Whether the connection is HTTP/2: then bytes that are read need not begin a request.
    multiplexed: Cell<bool>,
    body_wanted: Since,
    write_blocked: Since,
    /// Since the client closed its sending side, or was last sent something after that.
    half_closed: Since,
    /// Wakes the task that reads the socket, if the end of the stream was hidden from it.
    reader: Cell<Option<Waker>>,
    /// A part of a body was asked for after the end was hidden, and did not come.
    body_missing: Cell<bool>,
    tls_fault: Cell<bool>,
    timeouts: ClientTimeouts,
    deadline: Deadline,
    place: ConnectionPlace,
}

impl ClientActivity {
    /// A client that has sent nothing yet.
    pub(super) fn new(
        ticks: &Rc<Ticks>,
        timeouts: ClientTimeouts,
        place: ConnectionPlace,
    ) -> Rc<Self> {
        let deadline = ticks.deadline();
        deadline.set(timeouts.idle);
        Rc::new(Self {
            phase: Cell::new(Phase::Idle),
            since: Cell::new(ticks.now()),
            requests: Cell::new(0),
            multiplexed: Cell::new(false),
            body_wanted: Cell::new(None),
            write_blocked: Cell::new(None),
            half_closed: Cell::new(None),
            reader: Cell::new(None),
            body_missing: Cell::new(false),
            tls_fault: Cell::new(false),
            timeouts,
            deadline,
            place,
        })
    }

    fn now(&self) -> Tick {
        self.deadline.ticks().now()
    }

    fn enter(&self, phase: Phase, timeout: Tick) {
        self.phase.set(phase);
        self.since.set(self.now());
        self.deadline.no_later(timeout);
        self.update_place();
    }

    /// Tells the connection limits whether another client may take this one's place.
    fn update_place(&self) {
        if self.phase.get() == Phase::Idle && self.write_blocked.get().is_none() {
            self.place.set_idle(self.deadline.ticks().now_nanos());
        } else {
            self.place.set_busy();
        }
    }

    /// Reading from the client failed.
    pub(super) fn note_error(&self, error: &io::Error) {
        self.tls_fault.set(self.tls_fault.get() || is_tls_fault(error));
    }

    /// Whether something that the client sent was no TLS.
    pub(super) fn has_tls_fault(&self) -> bool {
        self.tls_fault.get()
    }

    /// A handshake is over, and no request has begun.
    pub(super) fn end_handshake(&self) {
        self.enter(Phase::Idle, self.timeouts.idle);
    }

    /// The connection becomes a tunnel.
    pub(super) fn begin_tunnel(&self) {
        self.phase.set(Phase::Busy);
        self.update_place();
    }

    /// The connection is HTTP/2.
    pub(super) fn begin_multiplexing(&self) {
        self.multiplexed.set(true);
        self.enter(Phase::Idle, self.timeouts.idle);
    }

    pub(super) fn begin_request(&self) {
        self.requests.set(self.requests.get() + 1);
        self.phase.set(Phase::Busy);
        self.update_place();
    }

    /// A request has been answered, or given up.
    pub(super) fn end_request(&self) {
        self.requests.set(self.requests.get().saturating_sub(1));
        if self.requests.get() == 0 {
            self.body_wanted.set(None);
            self.enter(Phase::Idle, self.timeouts.idle);
            self.reveal_end();
        }
    }

    /// The next part of a body is waited for, or has come.
    pub(super) fn want_body(&self, wanted: bool) {
        self.set_stalled(&self.body_wanted, wanted);
        if wanted && self.reveal_end() {
            self.body_missing.set(true);
        }
    }

    /// Whether to hide from hyper that the client has closed its sending side. hyper would drop the
    /// request, but the client may still read the response. hyper must see the end when no request
    /// is in progress, or when a part of a body is missing.
    pub(super) fn hides_end(&self, context: &Context<'_>) -> bool {
        let missing = self.body_missing.take() && self.body_wanted.get().is_some();
        if self.phase.get() != Phase::Busy || missing || self.multiplexed.get() {
            return false;
        }
        if self.half_closed.get().is_none() {
            self.half_closed.set(Some(self.now()));
            self.deadline.no_later(HALF_CLOSED_MAX);
        }
        self.reader.set(Some(context.waker().clone()));
        if self.body_wanted.get().is_some() {
            // Polls the body once more: it finds its end, or that a part is missing.
            context.waker().wake_by_ref();
        }
        true
    }

    /// Wakes the reader of the socket, if the end was hidden from it.
    fn reveal_end(&self) -> bool {
        self.reader.take().map(Waker::wake).is_some()
    }

    pub(super) fn is_busy(&self) -> bool {
        self.phase.get() == Phase::Busy
    }

    pub(super) fn is_multiplexed(&self) -> bool {
        self.multiplexed.get()
    }

    fn set_stalled(&self, since: &Since, stalled: bool) {
        if !stalled {
            since.set(None);
        } else if since.get().is_none() {
            since.set(Some(self.now()));
            self.deadline.no_later(self.timeouts.stall);
        }
    }

    /// The client has sent bytes.
    pub(super) fn has_read(&self) {
        if self.phase.get() == Phase::Idle && !self.multiplexed.get() {
            self.enter(Phase::Head, self.timeouts.head);
        }
        if self.body_wanted.get().is_some() {
            self.body_wanted.set(Some(self.now()));
        }
    }

    /// The socket has taken bytes for the client.
    pub(super) fn has_written(&self) {
        if self.half_closed.get().is_some() {
            self.half_closed.set(Some(self.now()));
        }
    }

    /// A write or flush was tried; `blocked` if the socket takes no more for now.
    pub(super) fn set_write_blocked(&self, blocked: bool) {
        if self.write_blocked.get().is_some() != blocked {
            self.set_stalled(&self.write_blocked, blocked);
            self.update_place();
        }
    }

    /// Why the connection must be closed now. If it need not, sets the deadline for the next check.
    fn overdue(&self) -> Option<Cut> {
        let ClientTimeouts { head, idle, stall, .. } = self.timeouts;
        let waits = [
            (self.phase.get() == Phase::Head).then_some((self.since.get(), head, Cut::SlowHead)),
            (self.phase.get() == Phase::Idle).then_some((self.since.get(), idle, Cut::Idle)),
            self.body_wanted.get().map(|since| (since, stall, Cut::SlowBody)),
            self.write_blocked.get().map(|since| (since, stall, Cut::SlowReader)),
            self.half_closed.get().map(|since| (since, HALF_CLOSED_MAX, Cut::Left)),
        ];
        let now = self.now();
        self.deadline.clear();
        for (since, timeout, cut) in waits.into_iter().flatten() {
            let at = since.saturating_add(timeout);
            if at <= now {
                return Some(cut);
            }
            self.deadline.no_later(at - now);
        }
        None
    }

    /// Runs `work`, which serves the client, for as long as the client keeps to its timeouts.
    pub(super) async fn bounds<F: Future>(&self, work: F) -> Result<F::Output, Cut> {
        let mut work = pin!(work);
        poll_fn(|context| {
            if self.deadline.poll(context).is_ready()
                && let Some(cut) = self.overdue()
            {
                return Poll::Ready(Err(cut));
            }
            if self.place.poll_gave_way(context).is_ready() {
                return Poll::Ready(Err(Cut::GaveWay));
            }
            work.as_mut().poll(context).map(Ok)
        })
        .await
    }
}

#[cfg(test)]
mod tests;
