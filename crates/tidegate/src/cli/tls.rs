//! TLS for commands that ask a server at an `https://` URL. Trusted are the certificates of the
//! system, or those of the file that `SSL_CERT_FILE` names.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{AlertDescription, ClientConfig, InvalidMessage, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::settings::tls::{certificates, key};

/// The certificate that a command shows, if there is one.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct CertificateArgs {
    /// A certificate (PEM) for a server whose `tls` has `client_ca`; needs --key.
    #[arg(long = "cert", value_name = "FILE", requires = "client_key")]
    pub(super) client_cert: Option<PathBuf>,
    /// The certificate's private key (PEM).
    #[arg(long = "key", value_name = "FILE", requires = "client_cert")]
    pub(super) client_key: Option<PathBuf>,
}

/// Agrees with a server that has a certificate for `host`.
pub(super) async fn connect(
    host: &str,
    stream: TcpStream,
    shown: &CertificateArgs,
) -> anyhow::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    let (added, _) = roots.add_parsable_certificates(found.certs);
    anyhow::ensure!(added > 0, "no certificates to trust; name a file in SSL_CERT_FILE");
    let builder = ClientConfig::builder().with_root_certificates(roots);
    let config = match (&shown.client_cert, &shown.client_key) {
        (Some(chain), Some(own)) => {
            builder.with_client_auth_cert(certificates(chain)?, key(own)?)?
        }
        _ => builder.with_no_client_auth(),
    };
    let name = ServerName::try_from(host.to_owned())?;
    Ok(TlsConnector::from(Arc::new(config)).connect(name, stream).await?)
}

/// What TLS has against the other side, if that is why something failed.
pub(super) fn fault(error: &anyhow::Error) -> Option<String> {
    let fault = error.chain().find_map(|cause| {
        let inside = || cause.downcast_ref::<io::Error>()?.get_ref()?.downcast_ref();
        cause.downcast_ref::<rustls::Error>().or_else(inside)
    })?;
    let remedy = match fault {
        rustls::Error::AlertReceived(AlertDescription::CertificateRequired) => {
            "; it asks for a client certificate: --cert FILE --key FILE"
        }
        rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
            "; if it has no `tls`, write http://"
        }
        _ => "",
    };
    Some(format!("{fault}{remedy}"))
}
