//! Making a connection to the upstream: name, TCP, perhaps TLS, and the HTTP that is spoken.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::client::conn::http2;
use hyper::rt::Executor;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::{TlsConnector, TlsStream};

use super::super::bodies::Upload;
use super::super::config::Config;
use super::super::streams::Socket;
use super::super::target::Target;
use super::super::ticks::Tick;
use super::super::tls::H2;
use super::line::Line;
use super::names::Names;
use crate::doors::io::descriptors::Descriptors;
use crate::doors::io::tcp;
use crate::doors::proxy::figures::Lane;

/// The most bytes of an answer's head over HTTP/2.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// How often a silent HTTP/2 connection is asked whether it still lives, and how long it has.
const PING_EVERY: Duration = Duration::from_secs(20);
const PING_PATIENCE: Duration = Duration::from_secs(10);

/// A connection that was just made.
pub(super) enum Fresh {
    /// For one request at a time.
    One(Box<Line>),
    /// For many at once.
    Shared(http2::SendRequest<Upload>),
}

/// How connections are made.
pub(super) struct Opener {
    target: Target,
    http2: bool,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    patience: Duration,
    names: Names,
    descriptors: Descriptors,
}

/// Runs what hyper spawns on this loop.
#[derive(Clone, Copy)]
pub(super) struct Here;

impl<F> Executor<F> for Here
where
    F: Future + 'static,
    F::Output: 'static,
{
    fn execute(&self, future: F) {
        tokio::task::spawn_local(future);
    }
}

impl Opener {
    pub(super) fn new(config: &Config, tls: Option<Arc<rustls::ClientConfig>>) -> Self {
        let target = config.upstream.clone();
        let name = ServerName::try_from(target.host().to_owned()).ok();
        Self {
            tls: tls.map(TlsConnector::from).zip(name),
            target,
            http2: config.http2,
            patience: config.connect_timeout.0,
            names: Names::default(),
            descriptors: Descriptors::of_process(),
        }
    }

    pub(super) fn target(&self) -> &Target {
        &self.target
    }

    pub(super) async fn open(&self, lane: &Arc<Lane>, now: Tick) -> io::Result<Fresh> {
        timeout(self.patience, self.open_at_leisure(lane, now))
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    async fn open_at_leisure(&self, lane: &Arc<Lane>, now: Tick) -> io::Result<Fresh> {
        let stream = self.dial(now).await?;
        if self.descriptors.are_spent(&stream) {
            return Err(rustix::io::Errno::MFILE.into());
        }
        tcp::set_stream_options(&stream)?;
        let (socket, http2) = match &self.tls {
            None if self.target.tls() => {
                return Err(io::Error::other("the host is no name that a certificate can have"));
            }
            None => (Socket::Plain(stream), self.http2),
            Some((connector, name)) => {
                let stream = connector.connect(name.clone(), stream).await?;
                let http2 = stream.get_ref().1.alpn_protocol() == Some(H2);
                (Socket::Tls(Box::new(TlsStream::Client(stream))), http2)
            }
        };
        let counted = Counted::new(lane.clone());
        if http2 {
            let (sender, connection) = http2::Builder::new(Here)
                .timer(TokioTimer::new())
                .keep_alive_interval(PING_EVERY)
                .keep_alive_timeout(PING_PATIENCE)
                .max_header_list_size(HEAD_BYTES_MAX as u32)
                .handshake(TokioIo::new(socket))
                .await
                .map_err(io::Error::other)?;
            tokio::task::spawn_local(async move {
                let _ended = connection.await;
                drop(counted);
            });
            return Ok(Fresh::Shared(sender));
        }
        Ok(Fresh::One(Line::new(socket, counted)))
    }

    /// Tries the addresses of the host, one after another, each for its share of the time.
    async fn dial(&self, now: Tick) -> io::Result<TcpStream> {
        let port = self.target.port();
        if let Some(ip) = self.target.ip() {
            return TcpStream::connect(SocketAddr::new(ip, port)).await;
        }
        let find = async || {
            let found = tokio::net::lookup_host((self.target.host(), port)).await?;
            Ok(found.collect())
        };
        let addresses = self.names.addresses(now, find).await?;
        let share = self.patience / u32::try_from(addresses.len()).unwrap_or(u32::MAX).max(1);
        let mut failed = io::Error::from(io::ErrorKind::NotFound);
        for &address in addresses.iter() {
            match timeout(share, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    self.names.of_use(address);
                    return Ok(stream);
                }
                Ok(Err(error)) => failed = error,
                Err(_) => failed = io::ErrorKind::TimedOut.into(),
            }
        }
        self.names.of_no_use();
        Err(failed)
    }
}

/// A connection that counts for as long as it lives.
pub(super) struct Counted(Arc<Lane>);

impl Counted {
    fn new(lane: Arc<Lane>) -> Self {
        lane.upstream_connections(1);
        Self(lane)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.upstream_connections(-1);
    }
}
