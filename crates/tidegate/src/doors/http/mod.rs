//! The HTTP door: uses, health and metrics, on the process' tokio runtime.
//!
//! - `router`: which path leads where
//! - `check`, `wait`, `records`: the handlers
//! - `authorize`, `asking`: what other servers ask before they answer, and their tables
//! - `rate_limit`: Envoy's rate limit calls as JSON, at envoyproxy/ratelimit's paths
//!
//! Connections, bodies and the shapes of answers are `http_server`'s. It knows neither the store
//! nor other doors, and judges nothing itself.

mod asking;
mod authorize;
mod check;
mod rate_limit;
mod records;
mod router;
#[cfg(test)]
mod tests;
mod wait;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use arc_swap::ArcSwap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::asking::{Authorize, RefuseStatus};
use super::http_server::bound::{BoundHttp, Runtime};
use super::http_server::connections::{CONNECTIONS_USUAL, HttpBounds, IDLE_USUAL};
pub use super::http_server::host::HostName;
use super::io::settings::{self, CONNECTIONS_MAX};
use super::{BoundDoor, DoorConfig, Gate, table_of};
use crate::metrics::Door;
use crate::settings::listen::{Allow, Listen, ListenAddress};
use crate::settings::tls::Tls;
use crate::settings::units::Span;

/// The `[http]` table.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The addresses to listen on.
    pub listen: Listen,
    /// Clients that may connect.
    #[serde(skip_serializing_if = "Allow::is_open")]
    pub allow: Allow,
    /// Certificates for clients. Absent: plain HTTP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,
    /// The most open connections. Beyond it an idle one is closed, or clients wait to be accepted.
    #[serde(deserialize_with = "settings::connections")]
    #[schemars(range(min = 1, max = CONNECTIONS_MAX))]
    pub max_connections: u32,
    /// The most connections from one source: an IPv4 address, or an IPv6 /64. Absent: a tenth of
    /// max_connections, at least 64, and loopback is exempt.
    #[serde(deserialize_with = "settings::per_source", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = CONNECTIONS_MAX))]
    pub max_connections_per_source: Option<u32>,
    /// How long a connection may be open without a request.
    #[serde(deserialize_with = "settings::idle_timeout")]
    pub idle_timeout: Span,
    /// Names that the Host header may have, besides the listener's address and loopback.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<HostName>,
    /// Paths `/v1/authorize/<name>`, where web servers ask whether a request may pass.
    #[serde(deserialize_with = "asking::tables", skip_serializing_if = "Vec::is_empty")]
    pub authorize: Vec<Authorize>,
}

impl Default for Config {
    fn default() -> Self {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 8080));
        Self {
            listen: address.into(),
            allow: Allow::default(),
            tls: None,
            max_connections: CONNECTIONS_USUAL,
            max_connections_per_source: None,
            idle_timeout: Span(IDLE_USUAL),
            names: Vec::new(),
            authorize: Vec::new(),
        }
    }
}

impl Config {
    fn bounds(&self) -> HttpBounds {
        let (most, per_source) = (self.max_connections, self.max_connections_per_source);
        HttpBounds::new(most, per_source, self.idle_timeout, true)
    }
}

/// What a reload changes without closing the door.
#[derive(Default)]
struct Live {
    /// Names, beside the listener's own and loopback, that a `Host` header may carry.
    host_names: ArcSwap<Vec<String>>,
    /// What other servers may ask about their requests.
    authorize: ArcSwap<Vec<Authorize>>,
}

impl Live {
    fn of(gate: &Gate) -> Arc<Self> {
        gate.shared.part(Arc::default)
    }
}

impl DoorConfig for Config {
    fn door(&self) -> Door {
        Door::Http
    }

    fn listens_at(&self) -> Vec<(&'static str, ListenAddress)> {
        self.listen.places()
    }

    fn allow(&self) -> &Allow {
        &self.allow
    }

    fn same_sockets(&self, other: &dyn DoorConfig) -> bool {
        // The allow list, names and tables change while the door is open.
        let live = |other: &Self| Self {
            allow: self.allow.clone(),
            names: self.names.clone(),
            authorize: self.authorize.clone(),
            ..other.clone()
        };
        table_of(other).is_some_and(|other| *self == live(other))
    }

    fn waits_for_store(&self) -> bool {
        false
    }

    fn renew(&self, gate: &Gate) {
        let live = Live::of(gate);
        let names = self.names.iter().cloned().map(String::from).collect();
        live.host_names.store(Arc::new(names));
        live.authorize.store(Arc::new(self.authorize.clone()));
    }

    fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    fn bind(&self) -> io::Result<Box<dyn BoundDoor>> {
        let listens = (&self.listen, self.tls.as_ref());
        BoundHttp::bind(Door::Http, listens, self.bounds(), router::router, Runtime::Shared)
    }

    fn boxed(&self) -> Box<dyn DoorConfig> {
        Box::new(self.clone())
    }
}
