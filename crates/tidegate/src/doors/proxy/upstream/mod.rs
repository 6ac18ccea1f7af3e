//! One loop's way to its upstream: connections that wait to be used again, and sending.
//!
//! HTTP/1.1 connections are used by one request at a time and kept in a stack, the warmest on
//! top; HTTP/2 connections are shared. Which of the two it is, the last connection that was made
//! tells, where the upstream has a say in it. A request is sent again only where that cannot do
//! harm.

mod connect;
mod crossing;
mod names;
mod versions;

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use hyper::client::conn::{http1, http2};
use hyper::http::uri::Authority;
use hyper::{Method, Request};
use tokio::sync::Mutex;

use self::connect::{Fresh, Opener};
pub(super) use self::crossing::Crossing;
use self::crossing::Sent;
use super::bodies::{Progress, Upload};
use super::config::Config;
use super::ticks::{Deadline, Tick, Ticks, ticks_in};
use crate::proxies::{Lane, ProxyFigures, UpstreamError};

/// Streams of one HTTP/2 connection, beyond which another one is opened.
const STREAMS_MAX: usize = 100;
/// HTTP/2 connections that one loop opens at most; then streams queue.
const SHARED_MAX: usize = 8;
/// Failures to connect, one after another, before no more are tried for a while.
const FAILURES_MAX: u64 = 3;
/// The longest while, in ticks.
const BACK_OFF_MAX: Tick = 50;
/// A connection that was used this many ticks ago or less has hardly been closed in between.
const WARM: Tick = 5;

/// What one request came over, until its answer is through.
pub(super) enum Line {
    /// A connection of its own.
    One(http1::SendRequest<Upload>),
    /// A stream of one that others use, too.
    #[expect(dead_code, reason = "it is held for its end")]
    Stream(Stream),
}

struct Idle {
    line: http1::SendRequest<Upload>,
    since: Tick,
}

struct Shared {
    sender: http2::SendRequest<Upload>,
    streams: Rc<Cell<usize>>,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failure(pub(super) UpstreamError);

/// One loop's connections to its upstream.
pub(super) struct Upstream {
    opener: Opener,
    /// Whether it speaks HTTP/2, as far as is known.
    http2: Cell<bool>,
    idle: RefCell<Vec<Idle>>,
    idle_max: usize,
    idle_for: Tick,
    shared: RefCell<Vec<Shared>>,
    /// Held while an HTTP/2 connection is made, so that not everybody makes one.
    opening: Mutex<()>,
    patience: Tick,
    ticks: Rc<Ticks>,
    lane: Arc<Lane>,
    figures: Arc<ProxyFigures>,
    /// Not tried before this tick.
    resting_until: Cell<Tick>,
}

impl Upstream {
    pub(super) fn new(
        config: &Config,
        tls: Option<Arc<rustls::ClientConfig>>,
        ticks: Rc<Ticks>,
        lane: Arc<Lane>,
        figures: Arc<ProxyFigures>,
    ) -> Rc<Self> {
        Rc::new(Self {
            opener: Opener::new(config, tls),
            http2: Cell::new(config.http2),
            idle: RefCell::default(),
            idle_max: config.idle_upstream as usize,
            idle_for: ticks_in(config.idle_upstream_timeout.0),
            shared: RefCell::default(),
            opening: Mutex::new(()),
            patience: ticks_in(config.response_timeout.0),
            ticks,
            lane,
            figures,
            resting_until: Cell::new(0),
        })
    }

    /// Whether requests go over HTTP/2, as far as that is known before one is sent.
    pub(super) fn http2(&self) -> bool {
        self.http2.get()
    }

    /// How long an answer may stand still.
    pub(super) fn patience(&self) -> Tick {
        self.patience
    }

    /// Whether it is spoken to over TLS.
    pub(super) fn tls(&self) -> bool {
        self.opener.target().tls()
    }

    /// Its host, and its port if one is written.
    pub(super) fn authority(&self) -> &Authority {
        self.opener.target().authority()
    }

    /// Puts a connection back whose answer is through.
    pub(super) fn put(&self, line: Line) {
        let Line::One(line) = line else { return };
        let mut idle = self.idle.borrow_mut();
        if idle.len() < self.idle_max && !line.is_closed() {
            idle.push(Idle { line, since: self.ticks.now() });
        }
    }

    /// Drops what was closed, or has been idle for too long.
    pub(super) fn sweep(&self) {
        let now = self.ticks.now();
        let stale = |idle: &Idle| idle.line.is_closed() || now - idle.since > self.idle_for;
        let dropped: Vec<Idle> =
            self.idle.borrow_mut().extract_if(.., |idle| stale(idle)).collect();
        drop(dropped);
        self.shared.borrow_mut().retain(|shared| !shared.sender.is_closed());
    }

    /// Closes what nobody uses.
    pub(super) fn close_idle(&self) {
        let dropped = std::mem::take(&mut *self.idle.borrow_mut());
        drop(dropped);
        self.shared.borrow_mut().retain(|shared| shared.streams.get() > 0);
    }

    /// The warmest idle connection that still lives, and how many ticks it has been idle.
    async fn take(&self) -> Option<(http1::SendRequest<Upload>, Tick)> {
        loop {
            let Idle { mut line, since } = self.idle.borrow_mut().pop()?;
            let idle = self.ticks.now() - since;
            // Ready as soon as the connection's own task has seen the end of the last answer; an
            // error if it has seen the end of the connection.
            if idle <= self.idle_for && line.ready().await.is_ok() {
                return Some((line, idle));
            }
        }
    }

    /// Sends a request and waits for the head of its answer; returns what that came over.
    /// `forwarding` is called each time that the request is about to go out.
    pub(super) async fn send(
        self: &Rc<Self>,
        crossing: &mut Crossing,
        upload: Option<&Rc<Progress>>,
        deadline: &Deadline,
        mut forwarding: impl FnMut(),
    ) -> Result<Line, Failure> {
        // It may turn out to speak another version than it was thought to, but not twice.
        for _ in 0..2 {
            let line = if self.http2() {
                versions::to_http2(crossing.request(), self.tls(), self.authority())?;
                // Boxed, so that the usual request need not make room for it.
                Box::pin(self.send_shared(crossing, upload, deadline, &mut forwarding)).await?
            } else {
                versions::to_http1(crossing.request());
                self.send_alone(crossing, upload, deadline, &mut forwarding).await?
            };
            if let Some(line) = line {
                return Ok(line);
            }
        }
        Err(Failure(UpstreamError::Protocol))
    }

    /// Over a connection of its own; `None` if the upstream turns out to speak HTTP/2.
    async fn send_alone(
        self: &Rc<Self>,
        crossing: &mut Crossing,
        upload: Option<&Rc<Progress>>,
        deadline: &Deadline,
        forwarding: &mut impl FnMut(),
    ) -> Result<Option<Line>, Failure> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            // What went wrong with one idle connection is likely to go wrong with the next.
            let pooled = if attempt == 1 { self.take().await } else { None };
            let (mut line, idle) = match pooled {
                Some((line, idle)) => (line, Some(idle)),
                None => match Box::pin(self.open()).await? {
                    Fresh::One(line) => (line, None),
                    Fresh::Shared(sender) => {
                        self.keep_shared(sender);
                        return Ok(None);
                    }
                },
            };
            let cold = idle.is_some_and(|idle| idle > WARM);
            let copy = if cold { copy_of(crossing.request()) } else { None };
            forwarding();
            let sending = line.try_send_request(crossing.leave());
            self.wait(crossing, sending, upload, deadline).await?;
            let Some(mut error) = crossing.error() else { return Ok(Some(Line::One(line))) };
            let unsent = error.take_message();
            let broke_off = error.error().is_closed()
                || error.error().is_incomplete_message()
                || error.error().is_canceled();
            crossing.again(match (unsent, copy) {
                // Nothing of it went out.
                (Some(unsent), _) if idle.is_some() => unsent,
                // It is harmless to ask twice, and the upstream most likely never saw it.
                (None, Some(copy)) if broke_off => *copy,
                _ => return Err(failure(error.error())),
            });
        }
    }

    /// Over a stream of a connection that others use, too; `None` if the upstream turns out to
    /// speak HTTP/1.1.
    async fn send_shared(
        self: &Rc<Self>,
        crossing: &mut Crossing,
        upload: Option<&Rc<Progress>>,
        deadline: &Deadline,
        forwarding: &mut impl FnMut(),
    ) -> Result<Option<Line>, Failure> {
        for _ in 0..2 {
            let Some(Shares { mut sender, streams }) = self.share().await? else {
                return Ok(None);
            };
            let stream = Stream::new(streams);
            forwarding();
            let sending = sender.try_send_request(crossing.leave());
            self.wait(crossing, sending, upload, deadline).await?;
            let Some(mut error) = crossing.error() else { return Ok(Some(Line::Stream(stream))) };
            match error.take_message() {
                Some(unsent) => crossing.again(unsent),
                None => return Err(failure(error.error())),
            }
        }
        Err(Failure(UpstreamError::Closed))
    }

    /// A stream of a connection that others may be using; `None` if the upstream turns out to
    /// speak HTTP/1.1.
    async fn share(self: &Rc<Self>) -> Result<Option<Shares>, Failure> {
        if let Some(found) = self.shared_now(STREAMS_MAX) {
            return Ok(Some(found));
        }
        let _opening = self.opening.lock().await;
        if !self.http2() {
            return Ok(None);
        }
        if let Some(found) = self.shared_now(STREAMS_MAX) {
            return Ok(Some(found));
        }
        if self.shared.borrow().len() >= SHARED_MAX
            && let Some(found) = self.shared_now(usize::MAX)
        {
            return Ok(Some(found));
        }
        match self.open().await? {
            Fresh::Shared(sender) => Ok(Some(self.keep_shared(sender))),
            Fresh::One(line) => {
                self.http2.set(false);
                self.put(Line::One(line));
                Ok(None)
            }
        }
    }

    /// Puts a new connection with those that are shared.
    fn keep_shared(&self, sender: http2::SendRequest<Upload>) -> Shares {
        self.http2.set(true);
        let streams = Rc::new(Cell::new(0));
        let shared = Shared { sender: sender.clone(), streams: streams.clone() };
        self.shared.borrow_mut().push(shared);
        Shares { sender, streams }
    }

    fn shared_now(&self, streams_max: usize) -> Option<Shares> {
        let mut shared = self.shared.borrow_mut();
        shared.retain(|shared| !shared.sender.is_closed());
        let least = shared.iter().min_by_key(|shared| shared.streams.get())?;
        let free = least.streams.get() < streams_max;
        free.then(|| Shares { sender: least.sender.clone(), streams: least.streams.clone() })
    }

    /// Opens a connection, unless that has just failed several times.
    async fn open(self: &Rc<Self>) -> Result<Fresh, Failure> {
        if self.ticks.now() < self.resting_until.get() {
            return Err(Failure(UpstreamError::BackingOff));
        }
        let opened = self.opener.open(&self.lane, self.ticks.now()).await;
        let failures = self.figures.connected(opened.is_ok());
        if let Some(beyond) = failures.checked_sub(FAILURES_MAX) {
            let rest = (1 << beyond.min(16)).min(BACK_OFF_MAX);
            self.resting_until.set(self.ticks.now() + rest);
        }
        opened.map_err(|error| {
            tracing::debug!(%error, "cannot connect to the upstream");
            Failure(UpstreamError::Connect)
        })
    }

    /// Waits for an answer's head, but not for ever: only for as long as the upstream takes
    /// nothing of the request's body either.
    async fn wait(
        &self,
        crossing: &mut Crossing,
        sending: impl Future<Output = Sent>,
        upload: Option<&Rc<Progress>>,
        deadline: &Deadline,
    ) -> Result<(), Failure> {
        let mut sending = pin!(sending);
        deadline.set(self.patience);
        let answered = poll_fn(|context| {
            if let Poll::Ready(sent) = sending.as_mut().poll(context) {
                crossing.arrive(sent);
                return Poll::Ready(Ok(()));
            }
            while deadline.poll(context).is_ready() {
                let now = self.ticks.now();
                let moved = upload.filter(|upload| !upload.done()).map(|upload| upload.last());
                match moved.map(|last| (last + self.patience).saturating_sub(now)) {
                    Some(more @ 1..) => deadline.set(more),
                    _ => return Poll::Ready(Err(Failure(UpstreamError::Timeout))),
                }
            }
            Poll::Pending
        })
        .await;
        deadline.clear();
        answered
    }
}

/// A connection that others may be using, and how many do.
struct Shares {
    sender: http2::SendRequest<Upload>,
    streams: Rc<Cell<usize>>,
}

/// Counts a stream until its answer is through.
pub(super) struct Stream(Rc<Cell<usize>>);

impl Stream {
    fn new(streams: Rc<Cell<usize>>) -> Self {
        streams.set(streams.get() + 1);
        Self(streams)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

fn failure(error: &hyper::Error) -> Failure {
    let nonsense = error.is_parse() || error.is_parse_status() || error.is_parse_too_large();
    Failure(if nonsense { UpstreamError::Protocol } else { UpstreamError::Closed })
}

/// The same request once more, if asking twice does no harm and there is no body to send twice.
fn copy_of(request: &Request<Upload>) -> Option<Box<Request<Upload>>> {
    let harmless = [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE];
    let harmless = harmless.contains(request.method())
        || [Method::PUT, Method::DELETE].contains(request.method());
    if !harmless || !request.body().is_none() {
        return None;
    }
    let mut copy = Request::new(Upload::none());
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.version_mut() = request.version();
    *copy.headers_mut() = request.headers().clone();
    Some(Box::new(copy))
}

#[cfg(test)]
mod tests;
