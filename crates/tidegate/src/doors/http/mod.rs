//! The HTTP door: those who ask for uses, health and metrics, on the process' tokio runtime.
//!
//! - `router`: which path leads where
//! - `check`, `wait`, `records`: the handlers
//! - `authorize`, `asking`: what other servers ask before they answer, and their tables
//!
//! Connections, bodies and the shapes of answers are `http_server`'s. It knows neither the store
//! nor other doors, and judges nothing itself.

mod asking;
mod authorize;
mod check;
mod records;
mod router;
#[cfg(test)]
mod tests;
mod wait;

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::asking::{Authorize, RefuseStatus};
use super::http_server::connections::{Bounds, Lobby};
pub use super::http_server::host::HostName;
use super::{Gate, Serving};
use crate::config::listen::{Allow, Listen};
use crate::metrics::Door;

/// The `[http]` table.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Where it listens.
    pub listen: Listen,
    /// Who may come in.
    #[serde(skip_serializing_if = "Allow::is_open")]
    pub allow: Allow,
    /// Names that the Host header may carry beside the listener's address and loopback.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<HostName>,
    /// What other servers may ask about their requests, at `/v1/authorize/<name>`.
    #[serde(deserialize_with = "asking::tables", skip_serializing_if = "Vec::is_empty")]
    pub authorize: Vec<Authorize>,
}

impl Default for Config {
    fn default() -> Self {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 8080));
        let (names, authorize) = (Vec::new(), Vec::new());
        Self { listen: address.into(), allow: Allow::default(), names, authorize }
    }
}

impl Config {
    /// The names as [`Admin::set_host_names`](super::Admin::set_host_names) takes them: a reload
    /// replaces them without closing the door.
    #[must_use]
    pub fn host_names(&self) -> Vec<String> {
        self.names.iter().cloned().map(String::from).collect()
    }
}

/// A door whose addresses are taken and that answers nobody yet.
pub struct Bound {
    listeners: Vec<TcpListener>,
}

/// Takes the addresses. Another program on one of them is an error, so that is never shared.
///
/// # Errors
/// When an address cannot be had; none is kept then.
pub fn bind(config: &Config) -> io::Result<Bound> {
    let bind_one = |address: &SocketAddr| {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    let listeners = config.listen.addresses().iter().map(bind_one).collect::<io::Result<_>>()?;
    Ok(Bound { listeners })
}

impl Bound {
    /// The addresses in file order, with real ports.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect()
    }

    /// Begins to answer. Must be called on the process' runtime.
    #[must_use]
    pub fn serve(self, gate: Gate) -> Serving {
        let lobby = Lobby::new(Door::Http, &gate, router::router(&gate), Bounds::default());
        let mut tasks = Vec::new();
        for listener in self.listeners {
            match tokio::net::TcpListener::from_std(listener) {
                Ok(listener) => tasks.push(tokio::spawn(lobby.clone().accept(listener))),
                Err(error) => tracing::error!(door = "http", %error, "cannot listen"),
            }
        }
        tasks.push(tokio::spawn(async move { lobby.drained().await }));
        Serving::tasks(tasks)
    }
}
