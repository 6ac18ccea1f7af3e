//! From an accepted socket to the router and back: every bound on a connection lives here.
//!
//! HTTP/1 only, on hyper directly: a client that is slow with its head is cut, and so is one that
//! does not read its answer.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tower::ServiceExt;

use super::host::Local;
use super::shared::Shared;
use crate::config::listen::Allow;
use crate::doors::io::tcp;
use crate::doors::{Gate, Shutdown};
use crate::metrics::{Door, Metrics};

/// The most connections of the door, over all its addresses. Past it, clients wait to be accepted.
const CONNECTIONS_MAX: u32 = 4_096;
/// How long a client may take for a request's head, and how long it may sit idle between two.
const HEAD_READ_MAX: Duration = Duration::from_secs(30);
/// How long an answer may stay unacknowledged, or the client's window shut.
const WRITE_STALL_MAX: Duration = Duration::from_secs(30);
/// How long a client that waits for an answer may be silent before it is asked whether it lives.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// How often it is looked whether a client that waits is still there.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// The most bytes of a request's head: room for a key of 1024 bytes, each percent-encoded.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// How long to wait before accepting again when that failed, say for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What a connection may cost, where tests need it smaller.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) connections: u32,
    pub(crate) write_stall: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { connections: CONNECTIONS_MAX, write_stall: WRITE_STALL_MAX }
    }
}

/// The address at the other end of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer(pub(crate) IpAddr);

/// What the accept loops of one door share.
pub(crate) struct Lobby {
    door: Door,
    router: Router,
    metrics: Arc<Metrics>,
    shutdown: Shutdown,
    allow: Arc<ArcSwap<Allow>>,
    places: Arc<Semaphore>,
    bounds: Bounds,
}

impl Lobby {
    pub(crate) fn new(door: Door, gate: &Gate, router: Router, bounds: Bounds) -> Arc<Self> {
        Arc::new(Self {
            door,
            metrics: gate.metrics.clone(),
            shutdown: gate.shutdown.clone(),
            allow: gate.allow.clone(),
            router,
            places: Arc::new(Semaphore::new(bounds.connections as usize)),
            bounds,
        })
    }

    /// Accepts until shutdown. Nothing that a client or the system does ends this loop.
    pub(crate) async fn accept(self: Arc<Self>, listener: TcpListener) {
        let mut failing = false;
        loop {
            let place = tokio::select! {
                place = self.places.clone().acquire_owned() => place,
                () = self.shutdown.wait() => return,
            };
            // The semaphore is never closed.
            let Ok(place) = place else { return };
            let (stream, peer) = tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok(accepted) => accepted,
                    Err(error) if tcp::left_early(&error) => continue,
                    Err(error) => {
                        if !failing {
                            tracing::warn!(door = self.door.name(), %error, "cannot accept");
                        }
                        failing = true;
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                        continue;
                    }
                },
                () = self.shutdown.wait() => return,
            };
            failing = false;
            if !self.allow.load().permits(peer.ip()) {
                self.metrics.bad_input(self.door, "not_allowed");
                continue;
            }
            let Ok(local) = prepare(&stream, self.bounds.write_stall) else { continue };
            let (lobby, stream) = (self.clone(), Shared::new(stream));
            let left = {
                let stream = stream.clone();
                move || stream.left()
            };
            tokio::spawn(async move {
                lobby.converse(stream, left, Local(local.ip()), Peer(peer.ip())).await;
                drop(place);
            });
        }
    }

    /// Answers one connection until it closes, is cut, or has been drained. `left` says whether the
    /// client has closed, also where hyper does not read so far: it does not once another request
    /// has come behind one that waits.
    pub(crate) async fn converse<T>(
        &self,
        stream: T,
        left: impl Fn() -> bool,
        local: Local,
        peer: Peer,
    ) where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let gone = || async {
            loop {
                tokio::time::sleep(LOOK_EVERY).await;
                if left() {
                    break;
                }
            }
        };
        let service = service_fn(|request: Request<Incoming>| {
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(local);
            request.extensions_mut().insert(peer);
            let answer = self.router.clone().oneshot(request);
            let gone = gone();
            async {
                tokio::select! {
                    biased;
                    Ok(answer) = answer => Ok(answer),
                    () = gone => Err(io::Error::from(io::ErrorKind::ConnectionAborted)),
                }
            }
        });
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(HEAD_READ_MAX)
            .max_buf_size(HEAD_BYTES_MAX);
        let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = self.shutdown.wait() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended
            && let Some(reason) = reason(&error)
        {
            self.metrics.bad_input(self.door, reason);
        }
    }

    /// Waits until shutdown, and then until every connection has ended.
    pub(crate) async fn drained(&self) {
        // Places are handed out in order: asked for sooner, this would keep clients out.
        self.shutdown.wait().await;
        // All places at once means that nobody is left. The semaphore is never closed.
        let _ = self.places.acquire_many(self.bounds.connections).await;
    }
}

fn prepare(stream: &TcpStream, write_stall: Duration) -> io::Result<SocketAddr> {
    stream.set_nodelay(true)?;
    // The kernel closes a connection whose peer neither acknowledges nor reads what it is sent.
    let socket = SockRef::from(stream);
    socket.set_tcp_user_timeout(Some(write_stall))?;
    // A machine that vanished while its request waits is found out, too.
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE))?;
    stream.local_addr()
}

/// Under which reason a connection's end counts as bad input; leaving early is nobody's fault.
fn reason(error: &hyper::Error) -> Option<&'static str> {
    if error.is_timeout() {
        Some("head_slow")
    } else if error.is_parse() {
        Some("http")
    } else {
        None
    }
}
