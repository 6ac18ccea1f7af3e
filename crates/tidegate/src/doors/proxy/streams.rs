//! Sockets as hyper reads and writes them, plain or TLS, and the pulse that is felt on a client's.
//!
//! The pulse notes what the client is at and since when; no byte is changed or looked at here.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsStream;

use super::ticks::{Deadline, Tick, Ticks};
use crate::doors::io::limits::Place;
use crate::doors::io::tcp;

/// How long a client may be at something.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// For the head of a request, from its first byte on, or for a handshake.
    pub(super) head: Tick,
    /// Before a request and between two.
    pub(super) idle: Tick,
    /// With a body, or an answer, that does not move.
    pub(super) stall: Tick,
    /// With a tunnel in which nobody says anything.
    pub(super) tunnel: Tick,
}

/// What a client is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing: it has said nothing yet, or the last answer is sent.
    Idle,
    /// A head, or a handshake, has begun.
    Head,
    /// We are: at least one request is under way.
    Busy,
}

/// Why a client is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// Silent between two requests. Nobody's fault.
    Idle,
    /// The head did not come in time.
    SlowHead,
    /// The body that is waited for does not come.
    SlowBody,
    /// The answer is not read.
    SlowReader,
    /// Idle, and another client needed its place.
    GaveWay,
    /// It has closed its sending side, and nothing could be sent to it since. Nobody's fault.
    Left,
}

/// How long a client that has closed its sending side is still answered, in ticks. Whether it
/// listens or has left cannot be told before it is sent something.
const HALF_CLOSED_MAX: Tick = 50;

/// Since when something has stood still; not at all if there is nothing in it.
type Since = Cell<Option<Tick>>;

/// What a client is at and since when. All of one connection's tasks are on one thread.
pub(super) struct Pulse {
    phase: Cell<Phase>,
    since: Cell<Tick>,
    requests: Cell<u32>,
    /// Many requests share the connection: what is read is no sign that one begins.
    shared: Cell<bool>,
    body_wanted: Since,
    write_blocked: Since,
    /// Since the client closed its sending side, or was last sent something after that.
    half_closed: Since,
    /// Who reads the socket, if the end was kept from it.
    reader: Cell<Option<Waker>>,
    /// A part of the body was missed since.
    missed: Cell<bool>,
    /// Whoever reads the socket has read all there is, and is told of more, and of the end.
    listens: Cell<bool>,
    patience: Patience,
    deadline: Deadline,
    place: Place,
}

impl Pulse {
    /// Of a client that has said nothing yet.
    pub(super) fn new(ticks: &Rc<Ticks>, patience: Patience, place: Place) -> Rc<Self> {
        let deadline = ticks.deadline();
        deadline.set(patience.idle);
        Rc::new(Self {
            phase: Cell::new(Phase::Idle),
            since: Cell::new(ticks.now()),
            requests: Cell::new(0),
            shared: Cell::new(false),
            body_wanted: Cell::new(None),
            write_blocked: Cell::new(None),
            half_closed: Cell::new(None),
            reader: Cell::new(None),
            missed: Cell::new(false),
            listens: Cell::new(false),
            patience,
            deadline,
            place,
        })
    }

    fn now(&self) -> Tick {
        self.deadline.ticks().now()
    }

    fn enter(&self, phase: Phase, patience: Tick) {
        self.phase.set(phase);
        self.since.set(self.now());
        self.deadline.no_later(patience);
        self.tell();
    }

    /// Tells whether another client may take the place of this one.
    fn tell(&self) {
        if self.phase.get() == Phase::Idle && self.write_blocked.get().is_none() {
            self.place.set_idle(self.deadline.ticks().now_nanos());
        } else {
            self.place.set_busy();
        }
    }

    /// A handshake is over, and no request has begun.
    pub(super) fn greeted(&self) {
        self.enter(Phase::Idle, self.patience.idle);
    }

    /// The connection goes on as something else.
    pub(super) fn tunnel(&self) {
        self.phase.set(Phase::Busy);
        self.tell();
    }

    /// The connection is one that many requests share, and that may be idle from the start.
    pub(super) fn share(&self) {
        self.shared.set(true);
        self.enter(Phase::Idle, self.patience.idle);
    }

    /// A request has begun.
    pub(super) fn begin(&self) {
        self.requests.set(self.requests.get() + 1);
        self.phase.set(Phase::Busy);
        self.tell();
    }

    /// A request has been answered, or given up.
    pub(super) fn end(&self) {
        self.requests.set(self.requests.get().saturating_sub(1));
        if self.requests.get() == 0 {
            self.body_wanted.set(None);
            self.enter(Phase::Idle, self.patience.idle);
            self.reveal_end();
        }
    }

    /// The next part of a body is waited for, or has come.
    pub(super) fn want_body(&self, wanted: bool) {
        self.stands_still(&self.body_wanted, wanted);
        if wanted && self.reveal_end() {
            self.missed.set(true);
        }
    }

    /// Whether hyper need not know yet that the client has closed its sending side: it would take
    /// that for leaving, but a client whose request is here may still listen. Known it must be once
    /// the request is over, or a part of its body turns out to be missing.
    fn keeps_end(&self, context: &Context<'_>) -> bool {
        let misses = self.missed.take() && self.body_wanted.get().is_some();
        if self.phase.get() != Phase::Busy || misses || self.shared.get() {
            return false;
        }
        if self.half_closed.get().is_none() {
            self.half_closed.set(Some(self.now()));
            self.deadline.no_later(HALF_CLOSED_MAX);
        }
        self.reader.set(Some(context.waker().clone()));
        if self.body_wanted.get().is_some() {
            // Whoever wants the body finds its end now, or misses a part.
            context.waker().wake_by_ref();
        }
        true
    }

    /// Lets the end be read, if it was kept.
    fn reveal_end(&self) -> bool {
        let reader = self.reader.take();
        reader.map(Waker::wake).is_some()
    }

    /// Whether the client has closed its sending side behind its request.
    pub(super) fn has_ended(&self) -> bool {
        self.half_closed.get().is_some()
    }

    /// Whether a request is under way.
    pub(super) fn is_busy(&self) -> bool {
        self.phase.get() == Phase::Busy
    }

    /// Whether many requests share the connection.
    pub(super) fn is_shared(&self) -> bool {
        self.shared.get()
    }

    /// The client was sent something, or at least its system took it.
    fn has_written(&self) {
        if self.half_closed.get().is_some() {
            self.half_closed.set(Some(self.now()));
        }
    }

    fn stands_still(&self, since: &Since, still: bool) {
        if !still {
            since.set(None);
        } else if since.get().is_none() {
            since.set(Some(self.now()));
            self.deadline.no_later(self.patience.stall);
        }
    }

    /// Whether the end of what the client says would be noticed.
    pub(super) fn listens(&self) -> bool {
        self.listens.get()
    }

    /// Something has come of the client.
    pub(super) fn has_read(&self) {
        if self.phase.get() == Phase::Idle && !self.shared.get() {
            self.enter(Phase::Head, self.patience.head);
        }
        if self.body_wanted.get().is_some() {
            self.body_wanted.set(Some(self.now()));
        }
    }

    /// Why the client is cut off now; otherwise the deadline is set to when that may come.
    fn verdict(&self) -> Option<Cut> {
        let Patience { head, idle, stall, .. } = self.patience;
        let waits = [
            (self.phase.get() == Phase::Head).then_some((self.since.get(), head, Cut::SlowHead)),
            (self.phase.get() == Phase::Idle).then_some((self.since.get(), idle, Cut::Idle)),
            self.body_wanted.get().map(|since| (since, stall, Cut::SlowBody)),
            self.write_blocked.get().map(|since| (since, stall, Cut::SlowReader)),
            self.half_closed.get().map(|since| (since, HALF_CLOSED_MAX, Cut::Left)),
        ];
        let now = self.now();
        self.deadline.clear();
        for (since, patience, cut) in waits.into_iter().flatten() {
            let at = since.saturating_add(patience);
            if at <= now {
                return Some(cut);
            }
            self.deadline.no_later(at - now);
        }
        None
    }

    /// Runs `work` for as long as the client keeps to its bounds.
    pub(super) async fn bounds<F: Future>(&self, work: F) -> Result<F::Output, Cut> {
        let mut work = pin!(work);
        poll_fn(|context| {
            if self.deadline.poll(context).is_ready()
                && let Some(cut) = self.verdict()
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

/// A socket to a client or to an upstream.
pub(super) enum Socket {
    /// As it is.
    Plain(TcpStream),
    /// Inside of TLS.
    Tls(Box<TlsStream<TcpStream>>),
}

impl Socket {
    /// What is below.
    pub(super) fn tcp(&self) -> &TcpStream {
        match self {
            Socket::Plain(stream) => stream,
            Socket::Tls(stream) => stream.get_ref().0,
        }
    }

    /// Whether the client has closed its side, even if there is something left to read.
    pub(super) fn left(&self) -> bool {
        tcp::left(self.tcp())
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Socket::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Socket::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Socket::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Socket::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        // A head without a body is one part, and a plain write costs less.
        if let [whole] = parts {
            return self.poll_write(context, whole);
        }
        match self.get_mut() {
            Socket::Plain(stream) => Pin::new(stream).poll_write_vectored(context, parts),
            Socket::Tls(stream) => Pin::new(stream).poll_write_vectored(context, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Socket::Plain(stream) => stream.is_write_vectored(),
            Socket::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Socket::Plain(stream) => Pin::new(stream).poll_flush(context),
            Socket::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Socket::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Socket::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

/// Reads what was read of a socket before, if there is something left of it.
pub(super) fn read_early(early: &mut BytesMut, buffer: &mut ReadBuf<'_>) -> bool {
    let count = early.len().min(buffer.remaining());
    buffer.put_slice(&early[..count]);
    early.advance(count);
    count > 0
}

/// A socket with its pulse felt, and with what was read of it before anybody knew what it speaks.
pub(super) struct Felt {
    socket: Rc<RefCell<Socket>>,
    pulse: Rc<Pulse>,
    early: BytesMut,
    /// It is no longer HTTP.
    bare: bool,
}

impl Felt {
    pub(super) fn new(socket: Rc<RefCell<Socket>>, pulse: Rc<Pulse>, early: Vec<u8>) -> Self {
        Self { socket, pulse, early: BytesMut::from(&early[..]), bare: false }
    }

    /// The same socket once it is no longer HTTP, with what was read too far.
    pub(super) fn after(mut self, read: &[u8]) -> Self {
        self.early.extend_from_slice(read);
        self.bare = true;
        self
    }

    fn flushed<T>(&self, polled: Poll<T>) -> Poll<T> {
        if self.pulse.write_blocked.get().is_some() != polled.is_pending() {
            self.pulse.stands_still(&self.pulse.write_blocked, polled.is_pending());
            self.pulse.tell();
        }
        polled
    }

    fn wrote(&self, polled: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if matches!(polled, Poll::Ready(Ok(1..))) {
            self.pulse.has_written();
        }
        self.flushed(polled)
    }
}

impl AsyncRead for Felt {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if read_early(&mut self.early, buffer) {
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        let polled = Pin::new(&mut *self.socket.borrow_mut()).poll_read(context, buffer);
        self.pulse.listens.set(polled.is_pending());
        if buffer.filled().len() > before {
            self.pulse.has_read();
        } else if matches!(polled, Poll::Ready(Ok(())))
            && buffer.remaining() > 0
            && !self.bare
            && self.pulse.keeps_end(context)
        {
            return Poll::Pending;
        }
        polled
    }
}

impl AsyncWrite for Felt {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.wrote(Pin::new(&mut *self.socket.borrow_mut()).poll_write(context, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.wrote(Pin::new(&mut *self.socket.borrow_mut()).poll_write_vectored(context, parts))
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.borrow().is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.flushed(Pin::new(&mut *self.socket.borrow_mut()).poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.flushed(Pin::new(&mut *self.socket.borrow_mut()).poll_shutdown(context))
    }
}

#[cfg(test)]
mod tests;
