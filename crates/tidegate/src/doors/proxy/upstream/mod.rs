//! One loop's connections to its upstream, and how requests are sent over them.
//!
//! HTTP/1.1 connections ([`connection`]) carry one request at a time. Idle ones are kept in a
//! stack, the last used on top. HTTP/2 connections are shared, and hyper's. The last connection
//! that was made tells which of the two the upstream speaks. A request is sent again only where
//! that cannot do harm.

mod body;
mod connect;
mod connection;
mod names;
mod sending;
mod versions;

use std::cell::{Cell, RefCell};
use std::future::{Future as _, poll_fn};
use std::mem;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper::client::conn::http2;
use hyper::{Method, Request, Response};
use tokio::sync::{Mutex, Notify};
use tokio::task::spawn_local;

pub(super) use self::body::UpstreamBody;
pub(super) use self::connect::tls_settings;
use self::connect::{Connector, Opened};
use self::connection::NoResponse;
pub(super) use self::connection::UpstreamConnection;
pub(super) use self::versions::{join_cookies, to_http1};
use super::bodies::{RequestBody, UploadProgress};
use super::config::Config;
use super::figures::{LoopFigures, ProxyFigures, UpstreamError};
use super::ticks::{Deadline, Tick, Ticks, ticks_in};
use super::upstream_url::UpstreamUrl;

/// Streams of one HTTP/2 connection, beyond which another one is opened.
const STREAMS_MAX: usize = 100;
/// HTTP/2 connections that one loop opens at most; beyond them, streams queue.
const HTTP2_CONNECTIONS_MAX: usize = 8;
/// Failures to connect, one after another, before no more are tried for a while.
const FAILURES_MAX: u64 = 3;
/// The longest while, in ticks.
const BACK_OFF_MAX: Tick = 50;

struct Idle {
    connection: Box<UpstreamConnection>,
    since: Tick,
}

/// An HTTP/2 connection. The pool has one clone, and each stream another.
#[derive(Clone)]
struct Http2Connection {
    sender: http2::SendRequest<RequestBody>,
    /// Counts the clones.
    clones: Rc<()>,
}

impl Http2Connection {
    fn streams(&self) -> usize {
        Rc::strong_count(&self.clones) - 1
    }
}

/// One loop's connections to its upstream.
pub(super) struct Upstream {
    connector: Connector,
    /// Whether it speaks HTTP/2, as far as is known.
    http2: Cell<bool>,
    idle: RefCell<Vec<Idle>>,
    idle_max: usize,
    idle_for: Tick,
    http2_connections: RefCell<Vec<Http2Connection>>,
    /// Held while an HTTP/2 connection is made, so that only one task makes it.
    opening: Mutex<()>,
    timeout: Tick,
    ticks: Rc<Ticks>,
    loop_figures: Arc<LoopFigures>,
    figures: Arc<ProxyFigures>,
    /// No connection is tried before this tick.
    back_off_until: Cell<Tick>,
    /// Cloned into each task that sends the rest of a request, and notified when one ends.
    senders: Rc<Notify>,
}

impl Upstream {
    pub(super) fn new(
        config: &Config,
        tls: Option<Arc<rustls::ClientConfig>>,
        ticks: Rc<Ticks>,
        loop_figures: Arc<LoopFigures>,
        figures: Arc<ProxyFigures>,
    ) -> Rc<Self> {
        Rc::new(Self {
            connector: Connector::new(config, tls),
            http2: Cell::new(config.http2),
            idle: RefCell::default(),
            idle_max: config.idle_upstream as usize,
            idle_for: ticks_in(config.idle_upstream_timeout.0),
            http2_connections: RefCell::default(),
            opening: Mutex::new(()),
            timeout: ticks_in(config.response_timeout.0),
            ticks,
            loop_figures,
            figures,
            back_off_until: Cell::new(0),
            senders: Rc::default(),
        })
    }

    /// Whether requests go over HTTP/2, as far as that is known before one is sent.
    pub(super) fn http2(&self) -> bool {
        self.http2.get()
    }

    /// How long the upstream may take to begin its response, or to go on with it.
    pub(super) fn timeout(&self) -> Tick {
        self.timeout
    }

    pub(super) fn url(&self) -> &UpstreamUrl {
        &self.connector.url
    }

    /// Puts a connection back whose response was read.
    pub(super) fn put_back(&self, mut connection: Box<UpstreamConnection>) {
        if !connection.is_free() {
            return self.wait_for_rest(connection);
        }
        let mut idle = self.idle.borrow_mut();
        if idle.len() >= self.idle_max {
            return connection.close();
        }
        connection.shrink();
        idle.push(Idle { connection, since: self.ticks.now() });
    }

    /// Keeps a connection until the rest of its request is sent, for as long as that moves: the
    /// upstream may want it, and the client may not read before it has sent everything.
    fn wait_for_rest(&self, connection: Box<UpstreamConnection>) {
        let Some((progress, sent)) = connection.rest_sent() else { return };
        let (ticks, timeout) = (self.ticks.clone(), self.timeout);
        let (deadline, senders) = (ticks.deadline(), self.senders.clone());
        spawn_local(async move {
            let mut sent = pin!(sent);
            poll_fn(|context| {
                deadline.set((progress.last() + timeout).saturating_sub(ticks.now()));
                if deadline.poll(context).is_ready() {
                    return Poll::Ready(());
                }
                sent.as_mut().poll(context).map(drop)
            })
            .await;
            senders.notify_one();
        });
    }

    /// Waits until no task sends the rest of a request.
    pub(super) async fn all_sent(&self) {
        while Rc::strong_count(&self.senders) > 1 {
            self.senders.notified().await;
        }
    }

    /// Closes connections that the upstream has closed, or that were idle for too long.
    pub(super) fn sweep(&self) {
        let now = self.ticks.now();
        let stale = |idle: &Idle| !idle.connection.is_alive() || now - idle.since > self.idle_for;
        let closed: Vec<Idle> = self.idle.borrow_mut().extract_if(.., |idle| stale(idle)).collect();
        closed.into_iter().for_each(|idle| idle.connection.close());
        self.http2_connections.borrow_mut().retain(|shared| !shared.sender.is_closed());
    }

    /// Closes connections that no request uses.
    pub(super) fn close_idle(&self) {
        let closed = mem::take(&mut *self.idle.borrow_mut());
        closed.into_iter().for_each(|idle| idle.connection.close());
        self.http2_connections.borrow_mut().retain(|shared| shared.streams() > 0);
    }

    /// The idle connection that was used last and still lives.
    fn take_idle(&self) -> Option<Box<UpstreamConnection>> {
        loop {
            let Idle { connection, since } = self.idle.borrow_mut().pop()?;
            if self.ticks.now() - since <= self.idle_for && connection.is_alive() {
                return Some(connection);
            }
            connection.close();
        }
    }

    /// Sends a request and waits for the head of its response. `forwarding` is called each time
    /// before the request is sent.
    pub(super) async fn send(
        &self,
        request: &mut Request<RequestBody>,
        upload: Option<&Rc<UploadProgress>>,
        deadline: &Deadline,
        mut forwarding: impl FnMut(),
    ) -> Result<Response<UpstreamBody>, UpstreamError> {
        // The upstream may turn out to speak the other version, but not twice.
        for _ in 0..2 {
            let response = if self.http2() {
                versions::to_http2(request, self.url().tls(), self.url().authority())?;
                // Boxed, so that requests over HTTP/1.1 need not make room for it.
                Box::pin(self.send_http2(request, upload, deadline, &mut forwarding)).await?
            } else {
                to_http1(request);
                self.send_http1(request, upload, deadline, &mut forwarding).await?
            };
            if let Some(response) = response {
                return Ok(response);
            }
        }
        Err(UpstreamError::Protocol)
    }

    /// Sends a request over HTTP/1.1; `None` if the upstream turns out to speak HTTP/2.
    async fn send_http1(
        &self,
        request: &mut Request<RequestBody>,
        upload: Option<&Rc<UploadProgress>>,
        deadline: &Deadline,
        forwarding: &mut impl FnMut(),
    ) -> Result<Option<Response<UpstreamBody>>, UpstreamError> {
        let idle = self.take_idle();
        let reused = idle.is_some();
        let mut connection = match idle {
            Some(connection) => connection,
            None => match Box::pin(self.open_http1()).await? {
                Some(connection) => connection,
                None => return Ok(None),
            },
        };
        connection.begin(request, upload);
        forwarding();
        let headers = request.headers_mut();
        let poll = |context: &mut Context<'_>| connection.poll_response(context, headers);
        let mut response = self.wait(poll, upload, deadline).await?;
        if let Err(why) = response
            && reused
            && may_repeat(&connection, why, request.method())
        {
            // What went wrong with one idle connection is likely to go wrong with the next.
            let Some(mut fresh) = Box::pin(self.open_http1()).await? else {
                // The body is lost with the connection.
                return if connection.has_body() { Err(error_of(why)) } else { Ok(None) };
            };
            fresh.take_over(&mut connection);
            connection = fresh;
            forwarding();
            let headers = request.headers_mut();
            let poll = |context: &mut Context<'_>| connection.poll_response(context, headers);
            response = self.wait(poll, upload, deadline).await?;
        }
        let response = response.map_err(error_of)?;
        Ok(Some(response.map(|()| UpstreamBody::Http1(connection))))
    }

    /// A new HTTP/1.1 connection; `None` if the upstream turns out to speak HTTP/2.
    async fn open_http1(&self) -> Result<Option<Box<UpstreamConnection>>, UpstreamError> {
        match self.open().await? {
            Opened::Http1(connection) => Ok(Some(connection)),
            Opened::Http2(sender) => {
                self.keep_http2(sender);
                Ok(None)
            }
        }
    }

    /// Sends a request over HTTP/2; `None` if the upstream turns out to speak HTTP/1.1.
    async fn send_http2(
        &self,
        request: &mut Request<RequestBody>,
        upload: Option<&Rc<UploadProgress>>,
        deadline: &Deadline,
        forwarding: &mut impl FnMut(),
    ) -> Result<Option<Response<UpstreamBody>>, UpstreamError> {
        for _ in 0..2 {
            let Some(Http2Connection { mut sender, clones }) = self.http2_connection().await?
            else {
                return Ok(None);
            };
            forwarding();
            let sent = mem::replace(request, Request::new(RequestBody::none()));
            let mut sending = pin!(sender.try_send_request(sent));
            match self.wait(|context| sending.as_mut().poll(context), upload, deadline).await? {
                Ok(response) => {
                    let body = |incoming| UpstreamBody::Http2(incoming, clones);
                    return Ok(Some(response.map(body)));
                }
                Err(mut error) => match error.take_message() {
                    Some(unsent) => *request = unsent,
                    None => return Err(error_of_hyper(error.error())),
                },
            }
        }
        Err(UpstreamError::Closed)
    }

    /// A stream of an HTTP/2 connection; `None` if the upstream turns out to speak HTTP/1.1.
    async fn http2_connection(&self) -> Result<Option<Http2Connection>, UpstreamError> {
        if let Some(found) = self.open_http2_connection(STREAMS_MAX) {
            return Ok(Some(found));
        }
        let _opening = self.opening.lock().await;
        if !self.http2() {
            return Ok(None);
        }
        let full = self.http2_connections.borrow().len() >= HTTP2_CONNECTIONS_MAX;
        let streams_max = if full { usize::MAX } else { STREAMS_MAX };
        if let Some(found) = self.open_http2_connection(streams_max) {
            return Ok(Some(found));
        }
        match self.open().await? {
            Opened::Http2(sender) => Ok(Some(self.keep_http2(sender))),
            Opened::Http1(connection) => {
                self.http2.set(false);
                self.put_back(connection);
                Ok(None)
            }
        }
    }

    /// Adds a new HTTP/2 connection to the pool.
    fn keep_http2(&self, sender: http2::SendRequest<RequestBody>) -> Http2Connection {
        self.http2.set(true);
        let connection = Http2Connection { sender, clones: Rc::new(()) };
        self.http2_connections.borrow_mut().push(connection.clone());
        connection
    }

    /// The connection with the fewest streams, if these are fewer than `streams_max`.
    fn open_http2_connection(&self, streams_max: usize) -> Option<Http2Connection> {
        let mut connections = self.http2_connections.borrow_mut();
        connections.retain(|connection| !connection.sender.is_closed());
        let least = connections.iter().min_by_key(|connection| connection.streams())?;
        (least.streams() < streams_max).then(|| least.clone())
    }

    /// Opens a connection, unless that has just failed several times.
    async fn open(&self) -> Result<Opened, UpstreamError> {
        if self.ticks.now() < self.back_off_until.get() {
            return Err(UpstreamError::BackingOff);
        }
        let opened = self.connector.open(&self.loop_figures, self.ticks.now()).await;
        let before = self.figures.connected(opened.is_ok());
        let (proxy, upstream) = (self.figures.name(), self.url());
        let error = match opened {
            Ok(opened) => {
                if before > 0 {
                    tracing::info!(%proxy, %upstream, "the upstream can be reached again");
                }
                return Ok(opened);
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
            let back_off = (1 << beyond.min(16)).min(BACK_OFF_MAX);
            self.back_off_until.set(self.ticks.now() + back_off);
        }
        Err(UpstreamError::Connect)
    }

    /// Waits for the head of a response. The timeout starts again whenever the upstream takes a
    /// part of the request's body.
    async fn wait<T>(
        &self,
        mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
        upload: Option<&Rc<UploadProgress>>,
        deadline: &Deadline,
    ) -> Result<T, UpstreamError> {
        deadline.set(self.timeout);
        let response = poll_fn(|context| {
            if let Poll::Ready(response) = poll(context) {
                return Poll::Ready(Ok(response));
            }
            if deadline.poll(context).is_ready() {
                let now = self.ticks.now();
                match upload.map(|upload| (upload.last() + self.timeout).saturating_sub(now)) {
                    Some(more @ 1..) => deadline.set(more),
                    _ => return Poll::Ready(Err(UpstreamError::Timeout)),
                }
            }
            Poll::Pending
        })
        .await;
        deadline.clear();
        response
    }
}

fn error_of(why: NoResponse) -> UpstreamError {
    match why {
        NoResponse::Invalid => UpstreamError::Protocol,
        NoResponse::Body | NoResponse::Closed => UpstreamError::Closed,
    }
}

fn error_of_hyper(error: &hyper::Error) -> UpstreamError {
    let invalid = error.is_parse() || error.is_parse_status() || error.is_parse_too_large();
    if invalid { UpstreamError::Protocol } else { UpstreamError::Closed }
}

/// Whether a request that was lost with an idle connection may be sent once more: if no byte of it
/// was sent, or if it is idempotent and has no body. Then the upstream most likely never saw it.
fn may_repeat(connection: &UpstreamConnection, why: NoResponse, method: &Method) -> bool {
    let unanswered = why == NoResponse::Closed && !connection.has_response_bytes();
    unanswered && (connection.is_untouched() || method.is_idempotent() && !connection.has_body())
}

#[cfg(test)]
mod tests;
