//! From an accepted socket to the router and back: every bound on a connection lives here.
//!
//! HTTP/1 only, on hyper directly: a client that is slow with its head is cut, and so is one that
//! does not read its answer.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tower::ServiceExt;

use super::host::LocalAddress;
use crate::clock::Clock;
use crate::doors::Gate;
use crate::doors::io::accept::{Acceptor, is_tls_fault};
use crate::doors::io::activity::{Activity, HttpTimeouts, Noted};
use crate::doors::io::certificates::Certificates;
use crate::doors::io::client_socket::{ClientSocket, CloseWatch};
use crate::doors::io::client_tls::ClientTls;
use crate::doors::io::limits::{self, ConnectionPlace};
use crate::metrics::Door;
use crate::settings::listen::Allow;
use crate::settings::units::Span;

/// Connections of a door, over all its addresses, by default.
pub(crate) const CONNECTIONS_USUAL: u32 = 4_096;
/// How long a connection may be idle, by default.
pub(crate) const IDLE_USUAL: Duration = Duration::from_secs(75);
/// How long a client may take for a request's head, from its first byte on.
const HEAD_READ_MAX: Duration = Duration::from_secs(5);
/// How long an answer may stay unacknowledged, or the client's window shut.
const WRITE_STALL_MAX: Duration = Duration::from_secs(30);
/// How long a client that waits for an answer may be silent before it is asked whether it lives.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// How long a connection must be at rest before it is closed when the server stops.
const REST_AT_END: Duration = Duration::from_millis(250);
/// The most bytes of a request's head: room for a key of 1024 bytes, each percent-encoded.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// What is agreed upon with TLS.
pub(crate) const HTTP_PROTOCOLS: &[&[u8]] = &[b"http/1.1"];

/// What connections may cost.
#[derive(Clone)]
pub(crate) struct HttpBounds {
    pub(crate) limits: limits::DoorLimits,
    pub(crate) idle: Duration,
    pub(crate) write_stall: Duration,
}

impl HttpBounds {
    /// What a door's table says. A door that `keeps_descriptors_back` leaves some to the others.
    pub(crate) fn new(
        connections: u32,
        per_source: Option<u32>,
        idle_timeout: Span,
        keeps_descriptors_back: bool,
    ) -> Self {
        let trusted = Allow::default();
        let limits = limits::DoorLimits {
            connections,
            per_source,
            trusted,
            keeps_descriptors_back,
            idle_gives_way: true,
        };
        Self { limits, idle: idle_timeout.0, write_stall: WRITE_STALL_MAX }
    }
}

/// The address at the other end of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerAddress(pub(crate) IpAddr);

/// What the connections of one door share.
pub(crate) struct HttpServer {
    acceptor: Acceptor,
    router: Router,
    clock: Clock,
    patience: HttpTimeouts,
    write_stall: Duration,
}

impl HttpServer {
    pub(crate) fn new(
        door: Door,
        gate: &Gate,
        router: Router,
        bounds: HttpBounds,
        certificates: Option<Arc<Certificates>>,
    ) -> Arc<Self> {
        let HttpBounds { limits, idle, write_stall } = bounds;
        Arc::new(Self {
            acceptor: Acceptor::of(door, gate, limits, certificates),
            router,
            clock: gate.clock().clone(),
            patience: HttpTimeouts { head: HEAD_READ_MAX, idle },
            write_stall,
        })
    }

    /// The places of connections.
    #[cfg(test)]
    pub(crate) fn limits(&self) -> &Arc<limits::ConnectionLimits> {
        &self.acceptor.limits
    }

    /// Accepts at every listener and answers until shutdown. Ends when every connection has.
    pub(crate) async fn serve(self: Arc<Self>, listeners: Vec<std::net::TcpListener>) {
        let mut accepting = JoinSet::new();
        for listener in listeners {
            match TcpListener::from_std(listener) {
                Ok(listener) => drop(accepting.spawn(self.clone().accept(listener))),
                Err(error) => {
                    tracing::error!(door = self.acceptor.door.name(), %error, "cannot listen");
                }
            }
        }
        self.acceptor.shutdown.wait().await;
        accepting.join_all().await;
        self.acceptor.limits.wait_until_empty().await;
    }

    /// Accepts and answers until shutdown.
    pub(crate) async fn accept(self: Arc<Self>, listener: TcpListener) {
        let welcome = |stream, peer: SocketAddr, place| {
            let Ok(local) = prepare(&stream, self.write_stall) else { return };
            let (server, stream) = (self.clone(), ClientSocket::new(stream));
            let client = Some(stream.close_watch());
            let local = LocalAddress { ip: local.ip(), tls: self.acceptor.tls().is_some() };
            let peer = PeerAddress(peer.ip());
            tokio::spawn(async move { server.converse(stream, place, client, local, peer).await });
        };
        self.acceptor.run(listener, welcome).await;
    }

    /// Answers one connection until it closes, is cut, or has been drained. A client that closes
    /// its sending side behind its request is answered; a request that waits looks at `client` for
    /// that, and gives up.
    pub(crate) async fn converse<T>(
        &self,
        stream: T,
        place: ConnectionPlace,
        client: Option<CloseWatch>,
        local: LocalAddress,
        peer: PeerAddress,
    ) where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let activity = Activity::new(place, self.clock.clone());
        let stream = Noted::new(stream, activity.clone());
        let Some(tls) = self.acceptor.tls() else {
            return self.speak(stream, &activity, client, local, peer).await;
        };
        let shake_hands = async {
            tokio::select! {
                shaken = tls.accept(stream) => Some(shaken),
                () = self.acceptor.shutdown.wait() => None,
            }
        };
        // From its first byte on, a handshake has the time of a head.
        let reason = match activity.bounds(self.patience, shake_hands).await {
            Ok(Some(Ok(stream))) => {
                activity.rest();
                let stream = ClientTls::new(stream);
                let client = client.map(|socket| stream.watched_by(socket));
                self.speak(stream.clone(), &activity, client, local, peer).await;
                stream.is_broken().then_some("tls")
            }
            Ok(Some(Err(error))) => is_tls_fault(&error).then_some("tls"),
            Ok(None) => None,
            Err(cut) => cut.in_handshake().reason(),
        };
        if let Some(reason) = reason {
            self.acceptor.bad_input(reason);
        }
    }

    async fn speak<T>(
        &self,
        stream: T,
        activity: &Arc<Activity>,
        client: Option<CloseWatch>,
        local: LocalAddress,
        peer: PeerAddress,
    ) where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let service = service_fn(|request: Request<Incoming>| {
            let answering = activity.begin();
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(local);
            request.extensions_mut().insert(peer);
            if let Some(client) = client.clone() {
                request.extensions_mut().insert(client);
            }
            let answer = self.router.clone().oneshot(request);
            // The client is owed nothing more once the body is dropped, and `answering` with it.
            let track = move |body: Body| {
                body.map_err(move |error| {
                    let _ = &answering;
                    error
                })
            };
            async move { answer.await.map(|answer| answer.map(track)) }
        });
        let mut http = http1::Builder::new();
        // How long a head may take is measured from its first byte, which hyper cannot do.
        http.timer(TokioTimer::new())
            .header_read_timeout(None)
            .max_buf_size(HEAD_BYTES_MAX)
            .half_close(true);
        let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
        let conversation = async {
            tokio::select! {
                ended = connection.as_mut() => ended,
                () = self.acceptor.shutdown.wait() => {
                    connection.as_mut().graceful_shutdown();
                    tokio::select! {
                        ended = connection => ended,
                        // Half a head is no request, and the end does not wait for one.
                        () = activity.rests(REST_AT_END) => Ok(()),
                    }
                }
            }
        };
        let reason = match activity.bounds(self.patience, conversation).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => error.is_parse().then_some("http"),
            Err(cut) => cut.reason(),
        };
        if let Some(reason) = reason {
            self.acceptor.bad_input(reason);
        }
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
