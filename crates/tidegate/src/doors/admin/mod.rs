//! Administration: shows and changes keys, rules, records and proxies, apart from the other doors.
//!
//! - `fence`: which requests are answered at all
//! - `router`: which path leads where
//! - `keys`, `rules`, `records`, `proxies`: the handlers
//! - `rate_limits`: what envoyproxy/ratelimit tells of itself, at its paths
//!
//! It has a thread and a runtime of its own, so that `/healthz` and `/metrics` answer here whatever
//! happens at the other doors. It listens on loopback alone, because it has no authentication yet.

mod fence;
mod keys;
mod proxies;
mod rate_limits;
mod records;
mod router;
mod rules;
#[cfg(test)]
mod tests;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de};

use super::http_server::bound::{BoundHttp, Runtime};
use super::http_server::connections::{HttpBounds, IDLE_USUAL};
use super::io::settings::{self, CONNECTIONS_MAX};
use super::{BoundDoor, DoorConfig, table_of};
use crate::metrics::Door;
use crate::settings::listen::{Allow, Listen, ListenAddress};
use crate::settings::tls::Tls;
use crate::settings::units::Span;

/// Connections over all its addresses by default: people, their tools, and what scrapes metrics.
const CONNECTIONS_USUAL: u32 = 256;

/// The `[admin]` table.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The addresses to listen on: loopback only.
    #[serde(deserialize_with = "on_loopback")]
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
}

impl Default for Config {
    fn default() -> Self {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 8090));
        Self {
            listen: address.into(),
            allow: Allow::default(),
            tls: None,
            max_connections: CONNECTIONS_USUAL,
            max_connections_per_source: None,
            idle_timeout: Span(IDLE_USUAL),
        }
    }
}

impl Config {
    fn bounds(&self) -> HttpBounds {
        let (most, per_source) = (self.max_connections, self.max_connections_per_source);
        // It answers, whatever the other doors have taken.
        HttpBounds::new(most, per_source, self.idle_timeout, false)
    }
}

/// Refuses an address that other machines can reach: every client would be an admin.
///
/// # Errors
/// What is wrong, and on a line of its own what would be right.
pub fn check_loopback(address: SocketAddr) -> Result<(), String> {
    if !ListenAddress::Ip(address).beyond_loopback() {
        return Ok(());
    }
    let port = address.port();
    Err(format!(
        "[admin] cannot listen at {address}: every client that reaches it is an admin\n\
         write \"127.0.0.1:{port}\" or \"[::1]:{port}\"; from elsewhere, tunnel to it (ssh -L)"
    ))
}

fn on_loopback<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Listen, D::Error> {
    let listen = Listen::deserialize(deserializer)?;
    let wrong = listen.addresses().iter().find_map(|address| check_loopback(*address).err());
    wrong.map_or(Ok(listen), |wrong| Err(de::Error::custom(wrong)))
}

impl DoorConfig for Config {
    fn door(&self) -> Door {
        Door::Admin
    }

    fn listens_at(&self) -> Vec<(&'static str, ListenAddress)> {
        self.listen.places()
    }

    fn allow(&self) -> &Allow {
        &self.allow
    }

    fn same_sockets(&self, other: &dyn DoorConfig) -> bool {
        let live = |other: &Self| Self { allow: self.allow.clone(), ..other.clone() };
        table_of(other).is_some_and(|other| *self == live(other))
    }

    fn waits_for_store(&self) -> bool {
        false
    }

    fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    fn bind(&self) -> io::Result<Box<dyn BoundDoor>> {
        let listens = (&self.listen, self.tls.as_ref());
        BoundHttp::bind(Door::Admin, listens, self.bounds(), router::router, Runtime::Own)
    }

    fn boxed(&self) -> Box<dyn DoorConfig> {
        Box::new(self.clone())
    }
}
