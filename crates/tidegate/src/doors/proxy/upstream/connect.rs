//! Makes connections to the upstream: name, TCP, TLS if it is wanted, and the version of HTTP.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::client::conn::http2;
use hyper::rt::Executor;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::{TlsConnector, TlsStream};

use super::super::bodies::RequestBody;
use super::super::config::Config;
use super::super::figures::LoopFigures;
use super::super::ticks::Tick;
use super::super::upstream_url::UpstreamUrl;
use super::super::{H2, HTTP_1_1, MaybeTls};
use super::connection::UpstreamConnection;
use super::names::Names;
use crate::doors::io::descriptors::Descriptors;
use crate::doors::io::tcp;
use crate::settings::tls::roots;

/// The most bytes of a response's head over HTTP/2.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// How often a silent HTTP/2 connection is pinged, and how long the upstream has to answer.
const PING_EVERY: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection that was just made.
pub(super) enum Opened {
    Http1(Box<UpstreamConnection>),
    Http2(http2::SendRequest<RequestBody>),
}

/// Makes the connections of one loop.
pub(super) struct Connector {
    pub(super) url: UpstreamUrl,
    http2: bool,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    timeout: Duration,
    names: Names,
    descriptors: Descriptors,
}

/// Spawns the tasks of hyper on this loop.
#[derive(Clone, Copy)]
struct LocalExecutor;

impl<F> Executor<F> for LocalExecutor
where
    F: Future + 'static,
    F::Output: 'static,
{
    fn execute(&self, future: F) {
        tokio::task::spawn_local(future);
    }
}

impl Connector {
    pub(super) fn new(config: &Config, tls: Option<Arc<ClientConfig>>) -> Self {
        let url = config.upstream.clone();
        let name = ServerName::try_from(url.host().to_owned()).ok();
        Self {
            tls: tls.map(TlsConnector::from).zip(name),
            url,
            http2: config.http2,
            timeout: config.connect_timeout.0,
            names: Names::default(),
            descriptors: Descriptors::of_process(),
        }
    }

    pub(super) async fn open(&self, figures: &Arc<LoopFigures>, now: Tick) -> io::Result<Opened> {
        timeout(self.timeout, self.open_without_timeout(figures, now))
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    async fn open_without_timeout(
        &self,
        figures: &Arc<LoopFigures>,
        now: Tick,
    ) -> io::Result<Opened> {
        let stream = self.dial(now).await?;
        if self.descriptors.are_spent(&stream) {
            return Err(rustix::io::Errno::MFILE.into());
        }
        tcp::set_stream_options(&stream)?;
        let (socket, http2) = match &self.tls {
            None if self.url.tls() => {
                return Err(io::Error::other("the host is not a name that a certificate can have"));
            }
            None => (MaybeTls::Left(stream), self.http2),
            Some((connector, name)) => {
                let stream = connector.connect(name.clone(), stream).await?;
                let http2 = stream.get_ref().1.alpn_protocol() == Some(H2);
                (MaybeTls::Right(Box::new(TlsStream::Client(stream))), http2)
            }
        };
        let counted = OpenConnection::new(figures.clone());
        if http2 {
            let (sender, connection) = http2::Builder::new(LocalExecutor)
                .timer(TokioTimer::new())
                .keep_alive_interval(PING_EVERY)
                .keep_alive_timeout(PING_TIMEOUT)
                .max_header_list_size(HEAD_BYTES_MAX as u32)
                .handshake(TokioIo::new(socket))
                .await
                .map_err(io::Error::other)?;
            tokio::task::spawn_local(async move {
                let _ended = connection.await;
                drop(counted);
            });
            return Ok(Opened::Http2(sender));
        }
        Ok(Opened::Http1(UpstreamConnection::new(socket, counted)))
    }

    /// Tries the addresses of the host, one after another, each for its share of the time.
    async fn dial(&self, now: Tick) -> io::Result<TcpStream> {
        let port = self.url.port();
        if let Some(ip) = self.url.ip() {
            return TcpStream::connect(SocketAddr::new(ip, port)).await;
        }
        let find = async || {
            let found = tokio::net::lookup_host((self.url.host(), port)).await?;
            Ok(found.collect())
        };
        let addresses = self.names.addresses(now, find).await?;
        let share = self.timeout / u32::try_from(addresses.len()).unwrap_or(u32::MAX).max(1);
        let mut failed = io::Error::from(io::ErrorKind::NotFound);
        for &address in addresses.iter() {
            match timeout(share, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    self.names.reached(address);
                    return Ok(stream);
                }
                Ok(Err(error)) => failed = error,
                Err(_) => failed = io::ErrorKind::TimedOut.into(),
            }
        }
        self.names.unreachable();
        Err(failed)
    }
}

/// Counts a connection until it is dropped.
pub(super) struct OpenConnection(Arc<LoopFigures>);

impl OpenConnection {
    fn new(figures: Arc<LoopFigures>) -> Self {
        figures.upstream_connections(1);
        Self(figures)
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.upstream_connections(-1);
    }
}

/// How the upstream is spoken to over TLS; `None` if it is not.
pub(in super::super) fn tls_settings(config: &Config) -> io::Result<Option<Arc<ClientConfig>>> {
    if !config.upstream.tls() {
        return Ok(None);
    }
    let roots = match &config.upstream_ca {
        Some(path) => roots(path)?,
        None => system_roots()?,
    };
    let mut tls = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    tls.alpn_protocols = match config.http2 {
        true => vec![H2.to_vec(), HTTP_1_1.to_vec()],
        false => vec![HTTP_1_1.to_vec()],
    };
    Ok(Some(Arc::new(tls)))
}

fn system_roots() -> io::Result<RootCertStore> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        let text = "the system has no certificates to check an upstream against; \
                    name a file with `upstream_ca`";
        return Err(io::Error::new(io::ErrorKind::NotFound, text));
    }
    Ok(roots)
}
