//! One loop's way to its upstream: connections that wait to be used again, and sending.
//!
//! HTTP/1.1 connections ([`line`]) are used by one request at a time and kept in a stack, the
//! warmest on top; HTTP/2 connections are shared, and hyper's. Which of the two it is, the last
//! connection that was made tells, where the upstream has a say in it. A request is sent again only
//! where that cannot do harm.

mod answer;
mod connect;
mod exchange;
mod line;
mod names;
mod sending;
mod versions;

use std::cell::{Cell, RefCell};
use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper::Method;
use hyper::client::conn::http2;
use hyper::header::CONTENT_LENGTH;
use hyper::http::uri::Authority;
use tokio::sync::{Mutex, Notify};
use tokio::task::spawn_local;

pub(super) use self::answer::Answer;
use self::connect::{Fresh, Opener};
pub(super) use self::exchange::Exchange;
pub(super) use self::line::Line;
use self::line::Lost;
use super::bodies::{Progress, Upload};
use super::config::Config;
use super::ticks::{Deadline, Tick, Ticks, ticks_in};
use crate::doors::proxy::figures::{Lane, ProxyFigures, UpstreamError};

/// Streams of one HTTP/2 connection, beyond which another one is opened.
const STREAMS_MAX: usize = 100;
/// HTTP/2 connections that one loop opens at most; then streams queue.
const SHARED_MAX: usize = 8;
/// Failures to connect, one after another, before no more are tried for a while.
const FAILURES_MAX: u64 = 3;
/// The longest while, in ticks.
const BACK_OFF_MAX: Tick = 50;

struct Idle {
    line: Box<Line>,
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
    /// Shared with everybody who is being seen off, and told when one of them has left.
    leaving: Rc<Notify>,
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
            leaving: Rc::default(),
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
    pub(super) fn put(&self, mut line: Box<Line>) {
        if !line.is_free() {
            return self.see_off(line);
        }
        let mut idle = self.idle.borrow_mut();
        if idle.len() >= self.idle_max {
            return line.close();
        }
        line.rest();
        idle.push(Idle { line, since: self.ticks.now() });
    }

    /// Lets the rest of a request leave whose answer was faster, for as long as it moves: the
    /// upstream may want it, and the client may not read before it is rid of it.
    fn see_off(&self, line: Box<Line>) {
        let Some((progress, leaving)) = line.left_behind() else { return };
        let (ticks, patience) = (self.ticks.clone(), self.patience);
        let deadline = ticks.deadline();
        let left = self.leaving.clone();
        spawn_local(async move {
            let mut leaving = pin!(leaving);
            poll_fn(|context| {
                let left = |now: Tick| (progress.last() + patience).saturating_sub(now);
                deadline.set(left(ticks.now()));
                if deadline.poll(context).is_ready() {
                    return Poll::Ready(());
                }
                leaving.as_mut().poll(context).map(drop)
            })
            .await;
            left.notify_one();
        });
    }

    /// Waits until nobody is being seen off.
    pub(super) async fn all_left(&self) {
        while Rc::strong_count(&self.leaving) > 1 {
            self.leaving.notified().await;
        }
    }

    /// Drops what was closed, or has been idle for too long.
    pub(super) fn sweep(&self) {
        let now = self.ticks.now();
        let stale = |idle: &Idle| !idle.line.lives() || now - idle.since > self.idle_for;
        let closed: Vec<Idle> = self.idle.borrow_mut().extract_if(.., |idle| stale(idle)).collect();
        closed.into_iter().for_each(|idle| idle.line.close());
        self.shared.borrow_mut().retain(|shared| !shared.sender.is_closed());
    }

    /// Closes what nobody uses.
    pub(super) fn close_idle(&self) {
        let closed = std::mem::take(&mut *self.idle.borrow_mut());
        closed.into_iter().for_each(|idle| idle.line.close());
        self.shared.borrow_mut().retain(|shared| shared.streams.get() > 0);
    }

    /// The warmest idle connection that still lives.
    fn take(&self) -> Option<Box<Line>> {
        loop {
            let Idle { line, since } = self.idle.borrow_mut().pop()?;
            if self.ticks.now() - since <= self.idle_for && line.lives() {
                return Some(line);
            }
            line.close();
        }
    }

    /// Sends a request and waits for the head of its answer, which is then where the request was.
    /// `forwarding` is called each time that the request is about to go out.
    pub(super) async fn send(
        self: &Rc<Self>,
        exchange: &mut Exchange,
        upload: Option<&Rc<Progress>>,
        deadline: &Deadline,
        mut forwarding: impl FnMut(),
    ) -> Result<(), Failure> {
        // It may turn out to speak another version than it was thought to, but not twice.
        for _ in 0..2 {
            let answered = if self.http2() {
                versions::to_http2(exchange.request(), self.tls(), self.authority())?;
                // Told from the body, by whoever sends it.
                exchange.request().headers_mut().remove(CONTENT_LENGTH);
                // Boxed, so that the usual request need not make room for it.
                Box::pin(self.send_shared(exchange, upload, deadline, &mut forwarding)).await?
            } else {
                versions::to_http1(exchange.request());
                self.send_alone(exchange, upload, deadline, &mut forwarding).await?
            };
            if answered {
                return Ok(());
            }
        }
        Err(Failure(UpstreamError::Protocol))
    }

    /// Over a connection of its own; `false` if the upstream turns out to speak HTTP/2.
    async fn send_alone(
        self: &Rc<Self>,
        exchange: &mut Exchange,
        upload: Option<&Rc<Progress>>,
        deadline: &Deadline,
        forwarding: &mut impl FnMut(),
    ) -> Result<bool, Failure> {
        let request = exchange.request();
        let pooled = self.take();
        let reused = pooled.is_some();
        let mut line = match pooled {
            Some(line) => line,
            None => match Box::pin(self.open_alone()).await? {
                Some(line) => line,
                None => return Ok(false),
            },
        };
        line.begin(request, upload);
        forwarding();
        let headers = request.headers_mut();
        let mut answer =
            self.wait(|context| line.poll_answer(context, headers), upload, deadline).await?;
        if let Err(lost) = answer
            && reused
            && may_repeat(&line, lost, request.method())
        {
            // What went wrong with one idle connection is likely to go wrong with the next.
            let Some(mut fresh) = Box::pin(self.open_alone()).await? else {
                // The body is with the connection that is no more.
                return if line.has_body() { Err(failure(lost)) } else { Ok(false) };
            };
            fresh.take_over(&mut line);
            line = fresh;
            forwarding();
            let headers = request.headers_mut();
            answer =
                self.wait(|context| line.poll_answer(context, headers), upload, deadline).await?;
        }
        let answer = answer.map_err(failure)?;
        exchange.arrive(answer.map(|()| Answer::Line(line)));
        Ok(true)
    }

    /// A new connection for one request at a time; `None` if the upstream turns out to speak
    /// HTTP/2.
    async fn open_alone(self: &Rc<Self>) -> Result<Option<Box<Line>>, Failure> {
        match self.open().await? {
            Fresh::One(line) => Ok(Some(line)),
            Fresh::Shared(sender) => {
                self.keep_shared(sender);
                Ok(None)
            }
        }
    }

    /// Over a stream of a connection that others use, too; `false` if the upstream turns out to
    /// speak HTTP/1.1.
    async fn send_shared(
        self: &Rc<Self>,
        exchange: &mut Exchange,
        upload: Option<&Rc<Progress>>,
        deadline: &Deadline,
        forwarding: &mut impl FnMut(),
    ) -> Result<bool, Failure> {
        for _ in 0..2 {
            let Some(Shares { mut sender, streams }) = self.share().await? else {
                return Ok(false);
            };
            let stream = Stream::new(streams);
            forwarding();
            let mut sending = pin!(sender.try_send_request(exchange.leave()));
            match self.wait(|context| sending.as_mut().poll(context), upload, deadline).await? {
                Ok(answer) => {
                    exchange.arrive(answer.map(|incoming| Answer::Stream(incoming, stream)));
                    return Ok(true);
                }
                Err(mut error) => match error.take_message() {
                    Some(unsent) => exchange.again(unsent),
                    None => return Err(failure_of(error.error())),
                },
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
                self.put(line);
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
        let before = self.figures.connected(opened.is_ok());
        let (proxy, upstream) = (self.figures.name(), self.opener.target());
        let error = match opened {
            Ok(fresh) => {
                if before > 0 {
                    tracing::info!(%proxy, %upstream, "the upstream can be reached again");
                }
                return Ok(fresh);
            }
            Err(error) => error,
        };
        // Logged once when it begins; every further failure only at the level debug.
        if before == 0 {
            tracing::warn!(%proxy, %upstream, %error, "the upstream cannot be reached");
        } else {
            tracing::debug!(%proxy, %upstream, %error, "the upstream cannot be reached");
        }
        if let Some(beyond) = (before + 1).checked_sub(FAILURES_MAX) {
            let rest = (1 << beyond.min(16)).min(BACK_OFF_MAX);
            self.resting_until.set(self.ticks.now() + rest);
        }
        Err(Failure(UpstreamError::Connect))
    }

    /// Waits for an answer's head, but not for ever: only for as long as the upstream takes
    /// nothing of the request's body either.
    async fn wait<T>(
        &self,
        mut answer: impl FnMut(&mut Context<'_>) -> Poll<T>,
        upload: Option<&Rc<Progress>>,
        deadline: &Deadline,
    ) -> Result<T, Failure> {
        deadline.set(self.patience);
        let answered = poll_fn(|context| {
            if let Poll::Ready(answered) = answer(context) {
                return Poll::Ready(Ok(answered));
            }
            if deadline.poll(context).is_ready() {
                let now = self.ticks.now();
                match upload.map(|upload| (upload.last() + self.patience).saturating_sub(now)) {
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

fn failure(lost: Lost) -> Failure {
    Failure(match lost {
        Lost::Nonsense => UpstreamError::Protocol,
        Lost::Body | Lost::Closed => UpstreamError::Closed,
    })
}

fn failure_of(error: &hyper::Error) -> Failure {
    let nonsense = error.is_parse() || error.is_parse_status() || error.is_parse_too_large();
    failure(if nonsense { Lost::Nonsense } else { Lost::Closed })
}

/// Whether a request that was lost with a connection that had been idle may be sent once more:
/// if nothing of it went out, or if it is harmless to ask twice and the upstream most likely never
/// saw it.
fn may_repeat(line: &Line, lost: Lost, method: &Method) -> bool {
    let unanswered = lost == Lost::Closed && !line.has_heard();
    unanswered && (line.is_untouched() || is_harmless(method) && !line.has_body())
}

/// Whether asking twice does no harm.
fn is_harmless(method: &Method) -> bool {
    let harmless = [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE];
    harmless.contains(method) || [Method::PUT, Method::DELETE].contains(method)
}

#[cfg(test)]
mod tests;
