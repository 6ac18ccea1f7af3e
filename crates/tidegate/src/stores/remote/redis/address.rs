//! Where a server is, who we are to it, and how a stream to it is opened.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use redis::{ConnectionAddr, IntoConnectionInfo as _, RedisConnectionInfo};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

use super::super::settings::Settings;
use crate::settings::files;

/// Bytes both ways, with or without TLS.
pub(super) trait Pipe: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Pipe for T {}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum ServerPlace {
    Tcp(String, u16),
    Unix(PathBuf),
}

impl fmt::Display for ServerPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerPlace::Tcp(host, port) => write!(f, "{host}:{port}"),
            ServerPlace::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// One server, and how it is spoken to.
#[derive(Clone)]
pub(super) struct RedisAddress {
    pub(super) place: ServerPlace,
    pub(super) tls: Option<Arc<ClientConfig>>,
    pub(super) login: RedisConnectionInfo,
}

impl RedisAddress {
    /// The servers of the `[store]` table.
    pub(super) fn all(settings: &Settings) -> Result<Vec<Self>, String> {
        let password = settings.password.as_ref().map(|secret| secret.reveal()).transpose()?;
        let mut tls = None;
        let mut all = Vec::new();
        for url in settings.urls() {
            // The url may hold a password: it is not shown.
            let info = url.as_str().into_connection_info();
            let info = info.map_err(|error| format!("the store's url: {error}"))?;
            let mut login = info.redis_settings().clone();
            login = login.set_lib_name("tidegate", env!("CARGO_PKG_VERSION"));
            if let Some(user) = &settings.user {
                login = login.set_username(user);
            }
            if let Some(password) = &password {
                login = login.set_password(password);
            }
            let (place, secure) = match info.addr() {
                ConnectionAddr::Tcp(host, port) => (ServerPlace::Tcp(host.clone(), *port), false),
                ConnectionAddr::TcpTls { insecure: true, .. } => {
                    return Err("the store's url: `insecure` is not supported; use `ca`".to_owned());
                }
                ConnectionAddr::TcpTls { host, port, .. } => {
                    (ServerPlace::Tcp(host.clone(), *port), true)
                }
                ConnectionAddr::Unix(path) => (ServerPlace::Unix(path.clone()), false),
                _ => return Err("the store's url: this kind is not supported".to_owned()),
            };
            if secure && tls.is_none() {
                tls = Some(Arc::new(client_config(settings)?));
            }
            all.push(Self { place, tls: tls.clone().filter(|_| secure), login });
        }
        if all.is_empty() { Err("the store has no url".to_owned()) } else { Ok(all) }
    }

    /// The same, elsewhere: another node of the same Cluster.
    pub(super) fn at(&self, place: ServerPlace) -> Self {
        Self { place, ..self.clone() }
    }

    /// Opens a stream.
    pub(super) async fn open(&self) -> Result<Box<dyn Pipe>, String> {
        let told = |error: &dyn fmt::Display| format!("{}: {error}", self.place);
        let (host, port) = match &self.place {
            ServerPlace::Tcp(host, port) => (host.trim_matches(['[', ']']), *port),
            ServerPlace::Unix(path) => {
                let stream = UnixStream::connect(path).await.map_err(|error| told(&error))?;
                return Ok(Box::new(stream));
            }
        };
        let stream = TcpStream::connect((host, port)).await.map_err(|error| told(&error))?;
        stream.set_nodelay(true).map_err(|error| told(&error))?;
        let Some(tls) = &self.tls else { return Ok(Box::new(stream)) };
        let name = ServerName::try_from(host.to_owned()).map_err(|error| told(&error))?;
        let stream = TlsConnector::from(tls.clone()).connect(name, stream).await;
        Ok(Box::new(stream.map_err(|error| told(&error))?))
    }
}

fn client_config(settings: &Settings) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(path) = &settings.ca {
        for certificate in certificates(path)? {
            roots.add(certificate).map_err(|error| wrong(path, &error))?;
        }
    }
    if roots.is_empty() {
        return Err("there is no certificate to check the store against: set `ca`".to_owned());
    }
    let builder = ClientConfig::builder().with_root_certificates(roots);
    match (&settings.cert, &settings.key) {
        (Some(cert), Some(key)) => {
            let chain = certificates(cert)?;
            let text = files::read(key).map_err(|error| wrong(key, &error))?;
            let read = PrivateKeyDer::from_pem_slice(&text).map_err(|error| wrong(key, &error))?;
            builder.with_client_auth_cert(chain, read).map_err(|error| wrong(key, &error))
        }
        (None, None) => Ok(builder.with_no_client_auth()),
        _ => Err("the store's `cert` and `key` belong together: one is missing".to_owned()),
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let text = files::read(path).map_err(|error| wrong(path, &error))?;
    let read = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
    let read = read.map_err(|error| wrong(path, &error))?;
    if read.is_empty() { Err(wrong(path, &"there is no certificate in it")) } else { Ok(read) }
}

fn wrong(path: &Path, error: &dyn fmt::Display) -> String {
    format!("the store's file {}: {error}", path.display())
}
