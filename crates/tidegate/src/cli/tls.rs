//! TLS for commands that ask a server at an `https://` URL. Trusted are the certificates of the
//! system, or those of the file that `SSL_CERT_FILE` names.

use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Agrees with a server that has a certificate for `host`.
pub(super) async fn connect(host: &str, stream: TcpStream) -> anyhow::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    let (added, _) = roots.add_parsable_certificates(found.certs);
    anyhow::ensure!(added > 0, "no certificates to trust; name a file in SSL_CERT_FILE");
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let name = ServerName::try_from(host.to_owned())?;
    Ok(TlsConnector::from(Arc::new(config)).connect(name, stream).await?)
}
