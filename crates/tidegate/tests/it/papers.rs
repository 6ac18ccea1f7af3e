//! Certificates that tests make.

use std::path::PathBuf;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SanType};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::program::PATIENCE;

/// An authority, and the certificates that it has signed, as files and in memory.
pub(crate) struct Papers {
    folder: tempfile::TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Papers {
    pub(crate) fn new() -> Self {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("an authority");
        let papers = Self { folder: tempfile::tempdir().expect("a folder"), issuer };
        std::fs::write(papers.path("ca.pem"), papers.issuer.pem()).expect("a file");
        papers
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A certificate for `name`, which may be a URI, in `<who>.pem` and `<who>.key`.
    pub(crate) fn sign(&self, who: &str, name: &str) {
        let is_uri = name.contains("://");
        let names = if is_uri { Vec::new() } else { vec![name.to_owned()] };
        let mut params = CertificateParams::new(names).expect("a name");
        if is_uri {
            params.subject_alt_names.push(SanType::URI(name.try_into().expect("ASCII")));
        }
        // OpenSSL takes a certificate with the name of its authority for one that signs itself.
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        std::fs::write(self.path(&format!("{who}.pem")), certificate.pem()).expect("a file");
        std::fs::write(self.path(&format!("{who}.key")), key.serialize_pem()).expect("a file");
    }

    pub(crate) fn own(&self, who: &str) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let read = |name: String| std::fs::read(self.path(&name)).expect("a file");
        let certificate = CertificateDer::from_pem_slice(&read(format!("{who}.pem")));
        let key = PrivateKeyDer::from_pem_slice(&read(format!("{who}.key")));
        (vec![certificate.expect("PEM")], key.expect("PEM"))
    }

    pub(crate) fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        let authority = CertificateDer::from_pem_slice(self.issuer.pem().as_bytes());
        roots.add(authority.expect("PEM")).expect("an authority");
        roots
    }

    /// A client that trusts the authority, and shows the certificate of `who` if there is one.
    pub(crate) fn client(&self, who: Option<&str>) -> Arc<ClientConfig> {
        let trusting = ClientConfig::builder().with_root_certificates(self.roots());
        Arc::new(match who {
            None => trusting.with_no_client_auth(),
            Some(who) => {
                let (chain, key) = self.own(who);
                trusting.with_client_auth_cert(chain, key).expect("a certificate")
            }
        })
    }
}

/// A blocking connection to a server that calls itself `gate.example`.
pub(crate) type TlsClient = StreamOwned<ClientConnection, std::net::TcpStream>;

/// Connects; the handshake comes with the first byte.
pub(crate) fn connect(config: Arc<ClientConfig>, address: std::net::SocketAddr) -> TlsClient {
    let name = ServerName::try_from("gate.example").expect("a name");
    let connection = ClientConnection::new(config, name).expect("a client");
    let stream = std::net::TcpStream::connect(address).expect("somebody listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    StreamOwned::new(connection, stream)
}
