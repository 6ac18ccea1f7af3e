//! What an HTTP/1 client is doing, for doors on tokio: nothing, sending the head of a request, or
//! waiting for its answer. It bounds how long each may take, and tells the client's
//! [`ConnectionPlace`].
//!
//! Everything of one connection runs in one task. No byte is changed or looked at here.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::sleep;

use super::limits::ConnectionPlace;
use crate::clock::Clock;

const IDLE: u8 = 0;
const HEAD: u8 = 1;
const BUSY: u8 = 2;

/// How long a client may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HttpTimeouts {
    /// For the head of a request, from its first byte on.
    pub(crate) head: Duration,
    /// Before a request and between two.
    pub(crate) idle: Duration,
}

/// Why the server closes a client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// The client sent nothing for too long.
    Idle,
    /// The TLS handshake took too long.
    SlowHandshake,
    /// The head of a request did not come in time.
    SlowHead,
    /// The body of a request stopped coming.
    SlowBody,
    /// The client does not read its response.
    SlowReader,
    /// The connection was idle, and another client needed its place.
    GaveWay,
    /// The client closed its sending side, and nothing could be sent to it since.
    Left,
}

impl Cut {
    /// The same for a client that is in its handshake, which has the time of a head.
    pub(crate) fn in_handshake(self) -> Self {
        match self {
            Cut::SlowHead => Cut::SlowHandshake,
            other => other,
        }
    }

    /// The reason under which it counts as bad input; `None` where the client did nothing wrong.
    pub(crate) fn reason(self) -> Option<&'static str> {
        match self {
            Cut::Idle | Cut::Left => None,
            Cut::SlowHandshake => Some("handshake_slow"),
            Cut::SlowHead => Some("head_slow"),
            Cut::SlowBody => Some("body_slow"),
            Cut::SlowReader => Some("reader_slow"),
            Cut::GaveWay => Some("gave_way"),
        }
    }
}

/// What one client is doing.
pub(crate) struct Activity {
    place: ConnectionPlace,
    clock: Clock,
    phase: AtomicU8,
    /// Bytes for the client wait until it reads.
    write_blocked: AtomicBool,
    /// Counts changes of the phase.
    changes: AtomicU32,
}

impl Activity {
    /// A client that has said nothing yet.
    pub(crate) fn new(place: ConnectionPlace, clock: Clock) -> Arc<Self> {
        Arc::new(Self {
            place,
            clock,
            phase: AtomicU8::new(IDLE),
            write_blocked: AtomicBool::new(false),
            changes: AtomicU32::new(0),
        })
    }

    fn enter(&self, phase: u8) {
        self.phase.store(phase, Relaxed);
        self.changes.fetch_add(1, Relaxed);
        self.tell();
    }

    fn tell(&self) {
        if self.phase.load(Relaxed) == IDLE && !self.write_blocked.load(Relaxed) {
            self.place.set_idle(self.clock.now().mono);
        } else {
            self.place.set_busy();
        }
    }

    /// A request has begun; it ends when the guard is dropped, with its answer.
    pub(crate) fn begin(self: &Arc<Self>) -> Answering {
        self.enter(BUSY);
        Answering(self.clone())
    }

    /// A TLS handshake is over: it was no request.
    pub(crate) fn rest(&self) {
        self.enter(IDLE);
    }

    fn has_read(&self) {
        if self.phase.load(Relaxed) == IDLE {
            self.enter(HEAD);
        }
    }

    fn wrote<T>(&self, polled: Poll<T>) -> Poll<T> {
        if self.write_blocked.load(Relaxed) != polled.is_pending() {
            self.write_blocked.store(polled.is_pending(), Relaxed);
            self.tell();
        }
        polled
    }

    /// Waits until no request has been under way and no answer unread for `span`.
    pub(crate) async fn rests(&self, span: Duration) {
        loop {
            let before = self.changes.load(Relaxed);
            sleep(span).await;
            let rests = self.phase.load(Relaxed) != BUSY && !self.write_blocked.load(Relaxed);
            if rests && self.changes.load(Relaxed) == before {
                return;
            }
        }
    }

    /// Runs `work`, which serves the client, for as long as the client keeps to its bounds.
    pub(crate) async fn bounds<F: Future>(
        &self,
        patience: HttpTimeouts,
        work: F,
    ) -> Result<F::Output, Cut> {
        let mut work = pin!(work);
        let mut timer = pin!(sleep(patience.idle));
        let mut seen = 0;
        poll_fn(|context| {
            if let Poll::Ready(done) = work.as_mut().poll(context) {
                return Poll::Ready(Ok(done));
            }
            if self.place.poll_gave_way(context).is_ready() {
                return Poll::Ready(Err(Cut::GaveWay));
            }
            let (span, cut) = match self.phase.load(Relaxed) {
                IDLE => (patience.idle, Cut::Idle),
                HEAD => (patience.head, Cut::SlowHead),
                _ => return Poll::Pending,
            };
            let changes = self.changes.load(Relaxed);
            if changes != seen {
                seen = changes;
                timer.set(sleep(span));
            }
            timer.as_mut().poll(context).map(|()| Err(cut))
        })
        .await
    }
}

/// A request that is under way until this is dropped.
pub(crate) struct Answering(Arc<Activity>);

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.enter(IDLE);
    }
}

/// A client's stream whose activity is noted.
pub(crate) struct Noted<S> {
    stream: S,
    activity: Arc<Activity>,
}

impl<S> Noted<S> {
    pub(crate) fn new(stream: S, activity: Arc<Activity>) -> Self {
        Self { stream, activity }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Noted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.activity.has_read();
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Noted<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.activity.wrote(polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.activity.wrote(polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(context);
        self.activity.wrote(polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
