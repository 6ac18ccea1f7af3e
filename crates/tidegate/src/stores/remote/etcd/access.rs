//! Where etcd's members are, and how one gets in: TLS, certificates, users.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Certificate, Client, ConnectOptions, Error, Identity, TlsOptions};
use rustls::RootCertStore;

use super::etcd_error::{EtcdError, etcd_error};
use crate::settings::files;
use crate::stores::remote::engine::EngineFault;
use crate::stores::remote::settings::{Settings, without_login};

/// Between two signs of life on a connection that waits for an answer. etcd takes more of them
/// than one in five seconds for an attack.
const ALIVE_EVERY: Duration = Duration::from_secs(10);
/// For so long the answer to one may take.
const ALIVE_WITHIN: Duration = Duration::from_secs(5);

/// What is needed to connect. Certificates and the password are read for each connection, so that
/// new ones are used as they come. Cheap to clone.
#[derive(Clone)]
pub(super) struct EtcdAccess(Arc<Inner>);

struct Inner {
    urls: Vec<String>,
    settings: Settings,
    /// The trust of the system, read once: there are hundreds of certificates.
    system: RootCertStore,
    probe: Vec<u8>,
}

impl EtcdAccess {
    /// Sees that everything the settings name is there. `probe` is a name that may be read.
    pub(super) fn new(settings: &Settings, probe: Vec<u8>) -> Result<Self, String> {
        let urls = settings.urls();
        if urls.is_empty() {
            return Err("etcd needs a url".to_owned());
        }
        let mut system = RootCertStore::empty();
        if urls.iter().any(|url| is_tls(url, settings)) {
            let found = rustls_native_certs::load_native_certs();
            system.add_parsable_certificates(found.certs);
        }
        let access = Self(Arc::new(Inner { urls, settings: settings.clone(), system, probe }));
        for member in 0..access.members() {
            access.options(member)?;
        }
        Ok(access)
    }

    pub(super) fn members(&self) -> usize {
        self.0.urls.len()
    }

    pub(super) fn url(&self, member: usize) -> &str {
        &self.0.urls[member]
    }

    /// The name that is read to see whether etcd answers.
    pub(super) fn probe(&self) -> &[u8] {
        &self.0.probe
    }

    /// A client of one member. It connects when it is first used, or here if there is a user.
    pub(super) async fn connect(
        &self,
        member: usize,
        bound: Duration,
        with_leader: bool,
    ) -> Result<Client, EtcdError> {
        let refused = |text| EtcdError::Broken(EngineFault::Refused(text));
        let options = self.options(member).map_err(refused)?;
        let options = options
            .with_connect_timeout(bound)
            .with_keep_alive(ALIVE_EVERY, ALIVE_WITHIN)
            .with_keep_alive_while_idle(false)
            .with_require_leader(with_leader);
        let url = [self.url(member)];
        let Some((user, password)) = self.user().map_err(refused)? else {
            return Client::connect(url, Some(options)).await.map_err(etcd_error);
        };
        let with_user = options.clone().with_user(user, password).with_auto_token_refresh(true);
        match Client::connect(url, Some(with_user)).await {
            // A user where none is asked for is as good as any.
            Err(Error::GRpcStatus(status))
                if status.message().contains("authentication is not enabled") =>
            {
                Client::connect(url, Some(options)).await.map_err(etcd_error)
            }
            other => other.map_err(etcd_error),
        }
    }

    fn user(&self) -> Result<Option<(String, String)>, String> {
        let settings = &self.0.settings;
        let Some(user) = &settings.user else { return Ok(None) };
        let password = settings.password.as_ref().map(|secret| secret.reveal()).transpose()?;
        Ok(Some((user.clone(), password.unwrap_or_default())))
    }

    fn options(&self, member: usize) -> Result<ConnectOptions, String> {
        let Inner { settings, system, .. } = &*self.0;
        let url = self.url(member);
        let address = url.split_once("://").map_or(url, |(_, address)| address);
        if address.is_empty() || url.contains("://") && !has_scheme(url) {
            let shown = without_login(url);
            return Err(format!(
                "\"{shown}\" is not an address of etcd: http://HOST:PORT or https://…"
            ));
        }
        self.user()?;
        let options = ConnectOptions::new();
        if !is_tls(url, settings) {
            return Ok(options);
        }
        let mut tls = TlsOptions::new().trust_anchors(system.roots.iter().cloned());
        if let Some(path) = &settings.ca {
            tls = tls.ca_certificate(Certificate::from_pem(read(path)?));
        }
        match (&settings.cert, &settings.key) {
            (Some(cert), Some(key)) => {
                tls = tls.identity(Identity::from_pem(read(cert)?, read(key)?));
            }
            (None, None) => {}
            _ => return Err("cert and key go together".to_owned()),
        }
        Ok(options.with_tls(tls))
    }
}

fn has_scheme(url: &str) -> bool {
    url.starts_with("http://") || url.starts_with("https://")
}

/// An address without a scheme is taken for what the rest of the settings is about.
fn is_tls(url: &str, settings: &Settings) -> bool {
    let certificates = settings.ca.is_some() || settings.cert.is_some();
    url.starts_with("https://") || !has_scheme(url) && certificates
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    files::read(path).map_err(|error| format!("{} cannot be read: {error}", path.display()))
}
