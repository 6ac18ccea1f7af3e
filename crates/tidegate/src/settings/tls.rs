//! Certificates and keys: the files that a table names, read and checked.
//!
//! Files are read when a door is bound, so that a mistake in one is reported before anything
//! changes.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{CertificateError, RootCertStore, ServerConfig};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate_core::Nanos;

use super::client_names::{ClientName, NAMES_MAX, NamedClients};
use super::files;

/// Certificates for clients.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(try_from = "Table")]
pub struct Tls {
    /// A file with the certificate and its intermediate certificates (PEM).
    pub cert: PathBuf,
    /// A file with the certificate's private key (PEM).
    pub key: PathBuf,
    /// A file of certificates (PEM). Every client then needs a certificate that one of them has
    /// signed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_ca: Option<PathBuf>,
    /// Of which that certificate must have one: DNS names, IP addresses or URIs. Empty: any name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub client_names: Vec<ClientName>,
}

/// The table as it is written.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename = "Tls", expecting = "struct Tls")]
struct Table {
    /// A file with the certificate and its intermediate certificates (PEM).
    cert: PathBuf,
    /// A file with the certificate's private key (PEM).
    key: PathBuf,
    /// A file of certificates (PEM). Every client then needs a certificate that one of them has
    /// signed.
    client_ca: Option<PathBuf>,
    /// DNS names, IP addresses or URIs; the client's certificate must have one of them. Absent: any
    /// name.
    #[schemars(length(min = 1, max = NAMES_MAX))]
    client_names: Option<Vec<ClientName>>,
}

impl TryFrom<Table> for Tls {
    type Error = String;

    fn try_from(table: Table) -> Result<Self, String> {
        let Table { cert, key, client_ca, client_names } = table;
        match &client_names {
            Some(_) if client_ca.is_none() => {
                let remedy = "add `client_ca`: the certificates that must have signed the clients'";
                return Err(format!(
                    "without `client_ca` clients present no certificates\n{remedy}"
                ));
            }
            Some(names) if names.is_empty() => {
                let remedy =
                    "write at least one, or leave `client_names` out: then any name is accepted";
                return Err(format!("without any name no client could connect\n{remedy}"));
            }
            Some(names) if names.len() > NAMES_MAX => {
                let remedy = format!("write at most {NAMES_MAX}");
                return Err(format!("`client_names` has {} names\n{remedy}", names.len()));
            }
            _ => {}
        }
        Ok(Self { cert, key, client_ca, client_names: client_names.unwrap_or_default() })
    }
}

impl Tls {
    /// What clients are shown. `protocols` are the names that are agreed upon, best first.
    ///
    /// # Errors
    /// The file that is of no use, and why.
    pub fn for_clients(&self, protocols: &[&[u8]]) -> io::Result<Arc<ServerConfig>> {
        let chain = certificates(&self.cert)?;
        let key = key(&self.key)?;
        let builder = match &self.client_ca {
            None => ServerConfig::builder().with_no_client_auth(),
            Some(path) => {
                let verifier = WebPkiClientVerifier::builder(Arc::new(roots(path)?)).build();
                let trusted = verifier.map_err(|error| wrong("cannot trust", path, error))?;
                ServerConfig::builder().with_client_cert_verifier(self.named(trusted))
            }
        };
        let mut config = builder.with_single_cert(chain, key).map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => {
                let cert = self.cert.display();
                wrong("cannot use the key", &self.key, format!("it does not match {cert}"))
            }
            error => wrong("cannot use the key", &self.key, error),
        })?;
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        Ok(Arc::new(config))
    }

    fn named(&self, trusted: Arc<dyn ClientCertVerifier>) -> Arc<dyn ClientCertVerifier> {
        let names: Box<[_]> = self.client_names.as_slice().into();
        if names.is_empty() { trusted } else { Arc::new(NamedClients { trusted, names }) }
    }

    /// What is wrong with the files: in which setting, and why; on a line of its own what would be
    /// right, if it is not just a file that can be read.
    #[must_use]
    pub fn wrong_files(&self) -> Vec<(&'static str, String)> {
        let mut checked = vec![
            ("tls.cert", certificates(&self.cert).map(drop)),
            ("tls.key", key(&self.key).map(drop)),
        ];
        checked.extend(self.client_ca.as_ref().map(|ca| ("tls.client_ca", roots(ca).map(drop))));
        let all_read = checked.iter().all(|(_, read)| read.is_ok());
        let wrong = checked.into_iter().filter_map(|(setting, read)| Some((setting, read.err()?)));
        let mut wrong: Vec<_> =
            wrong.map(|(setting, error)| (setting, error.to_string())).collect();
        if let Some(error) = self.for_clients(&[]).err().filter(|_| all_read) {
            let remedy = "name the private key that belongs to the certificate in `cert`";
            wrong.push(("tls.key", format!("{error}\n{remedy}")));
        }
        wrong
    }

    /// Whether the certificate has expired by `now`, in nanoseconds of Unix time.
    #[must_use]
    pub fn has_expired(&self, now: Nanos) -> bool {
        // A certificate that is its own authority is only asked for its dates.
        let Ok(chain) = certificates(&self.cert) else { return false };
        let (Some(own), Ok(roots)) = (chain.first(), roots(&self.cert)) else { return false };
        let Ok(verifier) = WebPkiServerVerifier::builder(Arc::new(roots)).build() else {
            return false;
        };
        let now = UnixTime::since_unix_epoch(Duration::from_nanos(now));
        let name = ServerName::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST).into());
        let checked = verifier.verify_server_cert(own, &chain[1..], &name, &[], now);
        matches!(
            checked,
            Err(rustls::Error::InvalidCertificate(
                CertificateError::Expired | CertificateError::ExpiredContext { .. }
            ))
        )
    }
}

fn wrong(what: &str, path: &Path, error: impl std::fmt::Display) -> io::Error {
    let text = format!("{what} {}: {error}", path.display());
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

pub(crate) fn certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let text =
        files::read(path).map_err(|error| wrong("cannot read the certificate", path, error))?;
    let read = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
    let read = read.map_err(|error| wrong("cannot read the certificate", path, error))?;
    if read.is_empty() {
        return Err(wrong("cannot read the certificate", path, "there is none in the file"));
    }
    Ok(read)
}

pub(crate) fn key(path: &Path) -> io::Result<PrivateKeyDer<'static>> {
    let text = files::read(path).map_err(|error| wrong("cannot read the key", path, error))?;
    PrivateKeyDer::from_pem_slice(&text).map_err(|error| match error {
        pem::Error::NoItemsFound => {
            let remedy = "name a PEM file with a private key, which begins with BEGIN PRIVATE KEY";
            wrong("cannot read the key", path, format!("there is none in the file\n{remedy}"))
        }
        error => wrong("cannot read the key", path, error),
    })
}

/// The certificates of a file, to check a peer's against.
///
/// # Errors
/// Why the file is of no use.
pub(crate) fn roots(path: &Path) -> io::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|error| wrong("cannot trust", path, error))?;
    }
    Ok(roots)
}
