//! Certificates: whom a proxy says it is, and whom it believes its upstream and clients to be.
//!
//! Files are read when a door is bound, so that a mistake in one is told before anything changes.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use super::config::{Config, Tls};

/// The names by which HTTP/2 and HTTP/1.1 are agreed upon.
pub(super) const H2: &[u8] = b"h2";
const HTTP_1_1: &[u8] = b"http/1.1";

fn wrong(what: &str, path: &Path, error: impl std::fmt::Display) -> io::Error {
    let text = format!("{what} {}: {error}", path.display());
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

fn certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<_, _>>);
    let read: Vec<_> = read.map_err(|error| wrong("cannot read the certificate", path, error))?;
    if read.is_empty() {
        return Err(wrong("cannot read the certificate", path, "there is none in the file"));
    }
    Ok(read)
}

fn roots(path: &Path) -> io::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|error| wrong("cannot trust", path, error))?;
    }
    Ok(roots)
}

/// What is wrong with the files that a table names: in which setting, and why.
pub(crate) fn wrong_files(config: &Config) -> Vec<(&'static str, String)> {
    let ca = |path: Option<&PathBuf>| path.map_or(Ok(()), |path| roots(path).map(drop));
    let mut checked = vec![("upstream_ca", ca(config.upstream_ca.as_ref()))];
    if let Some(tls) = &config.tls {
        checked.push(("tls.cert", certificates(&tls.cert).map(drop)));
        checked.push(("tls.key", key(&tls.key).map(drop)));
        checked.push(("tls.client_ca", ca(tls.client_ca.as_ref())));
        if checked.iter().all(|(_, read)| read.is_ok()) {
            checked.push(("tls.key", for_clients(tls).map(drop)));
        }
    }
    let wrong = checked.into_iter().filter_map(|(setting, read)| Some((setting, read.err()?)));
    wrong.map(|(setting, error)| (setting, error.to_string())).collect()
}

fn key(path: &Path) -> io::Result<PrivateKeyDer<'static>> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| wrong("cannot read the key", path, error))
}

/// What clients are shown.
pub(super) fn for_clients(tls: &Tls) -> io::Result<Arc<ServerConfig>> {
    let chain = certificates(&tls.cert)?;
    let key = key(&tls.key)?;
    let builder = match &tls.client_ca {
        None => ServerConfig::builder().with_no_client_auth(),
        Some(path) => {
            let verifier = WebPkiClientVerifier::builder(Arc::new(roots(path)?)).build();
            let verifier = verifier.map_err(|error| wrong("cannot trust", path, error))?;
            ServerConfig::builder().with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => {
            let cert = tls.cert.display();
            wrong("cannot use the key", &tls.key, format!("it is not that of {cert}"))
        }
        error => wrong("cannot use the key", &tls.key, error),
    })?;
    config.alpn_protocols = vec![H2.to_vec(), HTTP_1_1.to_vec()];
    Ok(Arc::new(config))
}

/// What is asked of the upstream; nothing if it is spoken to in the clear.
pub(super) fn for_upstream(config: &Config) -> io::Result<Option<Arc<ClientConfig>>> {
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
