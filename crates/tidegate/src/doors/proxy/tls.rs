//! Certificates: which ones a proxy shows to its clients, and which ones it accepts of its
//! upstream.

use std::io;
use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore};

use super::config::Config;
use crate::settings::tls::roots;

/// The names by which HTTP/2 and HTTP/1.1 are agreed upon.
pub(super) const H2: &[u8] = b"h2";
pub(super) const HTTP_1_1: &[u8] = b"http/1.1";

/// What is wrong with the files that a table names: in which setting, and why.
pub(super) fn wrong_files(config: &Config) -> Vec<(&'static str, String)> {
    let upstream = config.upstream_ca.as_ref().and_then(|path| roots(path).err());
    let upstream = upstream.map(|error| ("upstream_ca", error.to_string()));
    let clients = config.tls.iter().flat_map(|tls| tls.wrong_files());
    upstream.into_iter().chain(clients).collect()
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
