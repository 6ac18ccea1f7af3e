//! A proxy as a gatekeeper: it obeys a master of the Smockron protocol, and reports every request
//! to it.
//!
//! The decision is made in memory, by the library that any application can embed. The library talks
//! to the master on a thread of its own, so no loop waits for the master.

use std::io;
use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de};
use tidegate_client::gatekeeper::{
    Config as Settings, Decision, Delay, Domain, Gatekeeper, HELD_MAX, IDENTIFIERS_MAX, MAX_DELAY,
    Master,
};
use tidegate_client::layer::Identifier;

use super::config::{Config, count, count_or_none, number};
use super::not_forwarded::NotForwarded;
use crate::settings::units::Span;

/// The master that a proxy obeys.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GatekeeperConfig {
    /// The master's endpoint for accounting: "tcp://10.0.0.7:10004".
    #[serde(deserialize_with = "endpoint")]
    #[schemars(regex(pattern = "^tcp://"))]
    pub accounting: String,
    /// The endpoint where the master publishes which clients must wait: "tcp://10.0.0.7:10005".
    #[serde(deserialize_with = "endpoint")]
    #[schemars(regex(pattern = "^tcp://"))]
    pub control: String,
    /// A request that would have to wait longer is answered with 503.
    #[serde(default = "max_delay")]
    pub max_delay: Span,
    /// The most requests that are held at once. Any more are answered with 503.
    #[serde(default = "number::<{ HELD_MAX as u32 }>", deserialize_with = "count")]
    pub max_held: u32,
    /// The most identifiers whose delays are remembered. Beyond it clients are not delayed.
    #[serde(default = "number::<{ IDENTIFIERS_MAX as u32 }>", deserialize_with = "count")]
    pub max_identifiers: u32,
    /// Every n-th rejected request is reported to the master: 1 reports all, 0 reports none.
    #[serde(default = "number::<1>", deserialize_with = "count_or_none")]
    pub reject_every: u32,
}

fn max_delay() -> Span {
    Span(MAX_DELAY)
}

fn endpoint<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    let probe = Settings::new([Master::new(text.as_str(), text.as_str(), ["probe"])]);
    match probe.check() {
        Ok(()) => Ok(text),
        Err(_) => {
            let remedy = "write where the master is bound: \"tcp://10.0.0.7:10004\"";
            Err(de::Error::custom(format!("\"{text}\" is not an endpoint\n{remedy}")))
        }
    }
}

/// What a proxy's loops ask. Cheap to clone.
#[derive(Clone)]
pub(super) struct ProxyGatekeeper {
    gatekeeper: Gatekeeper,
    domain: Domain,
    /// Clients are known by the entries of their keys, not by their addresses.
    by_key: bool,
}

/// The settings of the library.
fn settings(config: &Config) -> Option<Settings> {
    let table = config.gatekeeper.as_ref()?;
    let domain = config.name.get_ref().as_str();
    let master = Master::new(table.accounting.as_str(), table.control.as_str(), [domain]);
    Some(Settings {
        max_delay: table.max_delay.0,
        held_max: table.max_held as usize,
        identifiers_max: table.max_identifiers as usize,
        reject_every: table.reject_every,
        ..Settings::new([master])
    })
}

/// Connects to the master, if the proxy has one.
///
/// # Errors
/// If the name of the proxy cannot be a domain, or the system refuses a thread.
pub(super) fn open(config: &Config) -> io::Result<Option<ProxyGatekeeper>> {
    let Some(settings) = settings(config) else { return Ok(None) };
    let gatekeeper = Gatekeeper::connect(&settings).map_err(io::Error::other)?;
    // The domain is its own.
    let domain = gatekeeper.domain(config.name.get_ref());
    let by_key = config.key.is_some();
    Ok(domain.map(|domain| ProxyGatekeeper { gatekeeper, domain, by_key }))
}

impl ProxyGatekeeper {
    /// Lets a request pass at once, or returns its delay. `log_info` is reported to the master.
    pub(super) fn ask(
        &self,
        key: &[u8],
        client: IpAddr,
        log_info: &[u8],
    ) -> Result<Option<Delay>, NotForwarded> {
        let client = Identifier::from(client);
        let identifier = if self.by_key { entries(key) } else { client.as_bytes() };
        let decision = self.gatekeeper.decide_with(self.domain, identifier, log_info);
        match decision {
            Decision::Accept => Ok(None),
            Decision::Delay(delay) => Ok(Some(delay)),
            Decision::Reject(after) => Err(NotForwarded::Delayed(after)),
        }
    }
}

/// A key without the name of its proxy, in which every space is encoded.
fn entries(key: &[u8]) -> &[u8] {
    let space = key.iter().position(|byte| *byte == b' ');
    space.map_or(key, |space| &key[space + 1..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_what_follows_the_name() {
        for (key, expected) in [
            (&b"api path=/a"[..], &b"path=/a"[..]),
            (b"my%20api path=/a client=::1", b"path=/a client=::1"),
            (b"api", b"api"),
            (b"api ", b""),
        ] {
            assert_eq!(entries(key), expected);
        }
    }
}
