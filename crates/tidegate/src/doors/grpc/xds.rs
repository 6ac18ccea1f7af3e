//! The setting `xds`: the management server that sends configurations, and what it has sent.
//!
//! [`super::xds_stream`] speaks with it; the server puts in force what came.

use std::path::PathBuf;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate_envoy::config::{Configuration, source::DomainNode};
use tonic::transport::Uri;

use crate::settings::tls;

/// The longest name of a node.
const NODE_BYTES_MAX: usize = 256;

/// A management server.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Xds {
    /// Its URL: "http://127.0.0.1:18000", or "https://…" for TLS.
    pub url: String,
    /// The name of the node whose configuration is asked for.
    #[serde(default = "usual_node")]
    pub node: String,
    /// A file of certificates (PEM) to trust beside those of the system, for TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// A file with the certificate (PEM) to present to a server that asks for one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cert: Option<PathBuf>,
    /// A file with the private key (PEM) of that certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
}

/// The node that envoyproxy/ratelimit names unless told otherwise.
fn usual_node() -> String {
    "default".to_owned()
}

impl Xds {
    /// Whether it speaks TLS.
    pub(super) fn is_tls(&self) -> bool {
        self.url.starts_with("https://")
    }

    /// Checks the setting.
    ///
    /// # Errors
    /// What is wrong, and what would be right.
    pub(super) fn check(&self) -> Result<(), String> {
        let remedy = "write url = \"http://127.0.0.1:18000\", or \"https://…\" for TLS";
        let uri = self.url.parse::<Uri>().ok().filter(|uri| {
            let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
            let has_login = uri.authority().is_some_and(|it| it.as_str().contains('@'));
            is_http && !has_login && uri.path() == "/" && uri.query().is_none()
        });
        if uri.is_none() {
            return Err(format!("`xds` has no url of a management server\n{remedy}"));
        }
        if self.node.len() > NODE_BYTES_MAX || self.node.chars().any(char::is_control) {
            let remedy = "write the name that the management server knows";
            return Err(format!("`xds` has no name of a node\n{remedy}"));
        }
        if self.cert.is_some() != self.key.is_some() {
            return Err("`xds` has only one of cert and key\nwrite both, or none".to_owned());
        }
        if !self.is_tls() && (self.ca.is_some() || self.cert.is_some()) {
            let remedy = "write \"https://…\", or remove them";
            return Err(format!("`xds` has certificates, and a url without TLS\n{remedy}"));
        }
        Ok(())
    }

    /// What is wrong with the files that it names.
    pub(super) fn wrong_files(&self) -> Vec<(&'static str, String)> {
        let Self { ca, cert, key, .. } = self;
        let read = [
            ("xds.ca", ca.as_deref().map(|path| tls::roots(path).map(drop))),
            ("xds.cert", cert.as_deref().map(|path| tls::certificates(path).map(drop))),
            ("xds.key", key.as_deref().map(|path| tls::key(path).map(drop))),
        ];
        let wrong = |(setting, read): (_, Option<std::io::Result<()>>)| {
            Some((setting, read?.err()?.to_string()))
        };
        read.into_iter().filter_map(wrong).collect()
    }
}

/// The folder's configuration together with what the management server has sent; `None` until it
/// has sent something.
#[derive(Clone, Debug, Default)]
pub(super) struct MergedConfiguration(pub(super) Option<Arc<Configuration>>);

impl PartialEq for MergedConfiguration {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        }
    }
}

/// What a management server has sent: all of its resources, by name.
#[derive(Debug)]
pub struct XdsResources {
    /// The version, as the server calls it.
    pub version: String,
    pub(super) domains: Vec<(String, DomainNode)>,
}

impl XdsResources {
    pub(super) fn new(version: String, domains: Vec<(String, DomainNode)>) -> Self {
        Self { version, domains }
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.domains.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_meant_is_told() {
        let check = |text: &str| toml::from_str::<Xds>(text).expect("a table").check();
        for good in [
            "url = 'http://127.0.0.1:18000'",
            "url = 'http://[::1]:18000/'\nnode = 'envoy-ratelimit'",
            "url = 'https://envoy-gateway:18001'\nca = 'a'\ncert = 'b'\nkey = 'c'",
        ] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for (bad, word) in [
            ("url = ''", "https://"),
            ("url = '127.0.0.1:18000'", "https://"),
            ("url = 'grpc://a:1'", "https://"),
            ("url = 'http://a:1/path'", "https://"),
            ("url = 'http://me:secret@a:1'", "https://"),
            ("url = 'http://a'\nnode = \"a\\nb\"", "node"),
            ("url = 'https://a'\ncert = 'b'", "both"),
            ("url = 'http://a'\nca = 'b'", "without TLS"),
        ] {
            let told = check(bad).expect_err(bad);
            assert!(told.contains(word) && !told.contains("secret"), "{bad}: {told}");
        }
    }
}
