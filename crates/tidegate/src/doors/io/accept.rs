//! The accept loop of doors on tokio: it bounds and counts connections, backs off, and hands each
//! client on with its place. Doors of event loops have their own in `event_loop`.

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_rustls::TlsAcceptor;

use super::certificates::Certificates;
use super::limits::{ConnectionLimits, ConnectionPlace, DoorLimits};
use super::tcp;
use crate::doors::Gate;
use crate::metrics::{Door, Metrics};
use crate::settings::listen::Allow;
use crate::shutdown::Shutdown;

/// How long to wait before accepting again when that failed, say for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Whether what the client sent is no TLS, or its certificate is not trusted: not that it has left.
pub(crate) fn is_tls_fault(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|error| error.is::<rustls::Error>())
}

/// What the accept loops of one door share.
#[derive(Clone)]
pub(crate) struct Acceptor {
    pub(crate) door: Door,
    pub(crate) limits: Arc<ConnectionLimits>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) shutdown: Shutdown,
    allow: Arc<ArcSwap<Allow>>,
    certificates: Option<Arc<Certificates>>,
}

impl Acceptor {
    /// For the listeners of a door that serves `gate`.
    pub(crate) fn of(
        door: Door,
        gate: &Gate,
        bounds: DoorLimits,
        certificates: Option<Arc<Certificates>>,
    ) -> Self {
        Self {
            door,
            limits: ConnectionLimits::of(door, bounds, gate),
            metrics: gate.metrics.clone(),
            shutdown: gate.door.shutdown.clone(),
            allow: gate.door.allow.clone(),
            certificates,
        }
    }

    /// How a connection that begins now speaks TLS, if it must.
    pub(crate) fn tls(&self) -> Option<TlsAcceptor> {
        Some(TlsAcceptor::from(self.certificates.as_ref()?.current()))
    }

    pub(crate) fn bad_input(&self, reason: &'static str) {
        self.metrics.bad_input(self.door, reason);
    }

    /// Accepts until shutdown. Nothing that a client or the system does ends this loop.
    pub(crate) async fn run(
        &self,
        listener: TcpListener,
        welcome: impl FnMut(TcpStream, SocketAddr, ConnectionPlace),
    ) {
        let accept = |context: &mut Context<'_>| listener.poll_accept(context);
        let source = |peer: &SocketAddr| Some(peer.ip());
        self.accept_each(accept, source, welcome).await;
    }

    /// As [`Self::run`], at a Unix socket, whose clients its permissions have judged.
    pub(crate) async fn run_unix(
        &self,
        listener: UnixListener,
        mut welcome: impl FnMut(UnixStream, ConnectionPlace),
    ) {
        let accept = |context: &mut Context<'_>| listener.poll_accept(context);
        self.accept_each(accept, |_| None, |stream, _, place| welcome(stream, place)).await;
    }

    async fn accept_each<S: AsFd, A>(
        &self,
        accept: impl Fn(&mut Context<'_>) -> Poll<io::Result<(S, A)>>,
        source: impl Fn(&A) -> Option<IpAddr>,
        mut welcome: impl FnMut(S, A, ConnectionPlace),
    ) {
        let mut failing = false;
        loop {
            let accepted = tokio::select! {
                accepted = poll_fn(&accept) => accepted,
                () = self.shutdown.wait() => return,
            };
            let (stream, peer) = match accepted {
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
            };
            failing = false;
            let source = source(&peer);
            if source.is_some_and(|source| !self.allow.load().permits(source)) {
                self.bad_input("not_allowed");
                continue;
            }
            // A place is asked for only after the accept: a client whose source has too many is
            // closed without a wait, and a listener without clients reserves no place.
            let place = tokio::select! {
                place = self.limits.wait_for_place(source, &stream) => place,
                () = self.shutdown.wait() => return,
            };
            match place {
                Ok(place) => welcome(stream, peer, place),
                Err(refused) => self.bad_input(refused.reason()),
            }
        }
    }
}
