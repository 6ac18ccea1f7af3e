//! Which masters a gatekeeper obeys, for which domains, and its bounds.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::clock::UnixClock;

/// The longest time that a request is held unless told otherwise.
pub const MAX_DELAY: Duration = Duration::from_secs(5);
/// The most requests that are held at once unless told otherwise.
pub const HELD_MAX: usize = 10_000;
/// The most identifiers whose delays are remembered unless told otherwise.
pub const IDENTIFIERS_MAX: usize = 1_000_000;
/// Bytes of accounting that may wait for each master unless told otherwise.
pub const QUEUE_BYTES: usize = 4 << 20;
/// How long accounting is gathered before it is sent, unless told otherwise. What comes after a
/// pause is sent at once.
pub const GATHER: Duration = Duration::from_millis(1);
/// The most domains of a gatekeeper.
pub const DOMAINS_MAX: usize = 4096;
/// The longest name of a domain. With the identifier it stays below 255 bytes for old gatekeepers.
pub const DOMAIN_BYTES_MAX: usize = 200;
/// The least that a queue has room for.
const QUEUE_BYTES_MIN: usize = 64 << 10;

/// A master, and the domains for which it is the one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Master {
    /// Where it takes accounting: `tcp://host:port`.
    pub accounting: String,
    /// Where it publishes control: `tcp://host:port`.
    pub control: String,
    /// What it limits.
    pub domains: Vec<String>,
}

impl Master {
    /// A master of these domains.
    pub fn new<D: Into<String>>(
        accounting: impl Into<String>,
        control: impl Into<String>,
        domains: impl IntoIterator<Item = D>,
    ) -> Self {
        let domains = domains.into_iter().map(Into::into).collect();
        Self { accounting: accounting.into(), control: control.into(), domains }
    }
}

/// How a gatekeeper behaves.
///
/// ```
/// use std::time::Duration;
/// use tidegate_client::gatekeeper::{Config, Master};
///
/// let master = Master::new("tcp://10.0.0.7:10004", "tcp://10.0.0.7:10005", ["api", "search"]);
/// let config = Config { max_delay: Duration::from_secs(2), ..Config::new([master]) };
/// # assert_eq!(config.masters.len(), 1);
/// ```
#[derive(Clone, Debug)]
pub struct Config {
    /// The masters. A domain has one; requests of a domain without one all pass.
    pub masters: Vec<Master>,
    /// A request that would have to wait longer is rejected.
    pub max_delay: Duration,
    /// The most requests that are held at once; beyond it they are rejected.
    pub held_max: usize,
    /// The most identifiers whose delays are remembered; beyond it clients pass.
    pub identifiers_max: usize,
    /// Bytes of accounting that may wait for each master; beyond it accounting is dropped.
    pub queue_bytes: usize,
    /// How long accounting is gathered before it is sent.
    pub gather: Duration,
    /// One rejected request in so many is accounted for: 1 for all of them, 0 for none.
    pub reject_every: u32,
    /// Where the time comes from.
    pub clock: UnixClock,
}

impl Config {
    /// A gatekeeper about which nothing is said but its masters.
    pub fn new(masters: impl IntoIterator<Item = Master>) -> Self {
        Self {
            masters: masters.into_iter().collect(),
            max_delay: MAX_DELAY,
            held_max: HELD_MAX,
            identifiers_max: IDENTIFIERS_MAX,
            queue_bytes: QUEUE_BYTES,
            gather: GATHER,
            reject_every: 1,
            clock: UnixClock::system(),
        }
    }

    pub(super) fn queue_bytes(&self) -> usize {
        self.queue_bytes.max(QUEUE_BYTES_MIN)
    }

    /// Sees that every endpoint can be connected to, and that every domain has one name and one
    /// master.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self) -> Result<(), ConnectError> {
        for master in &self.masters {
            address(&master.accounting)?;
            address(&master.control)?;
        }
        let mut seen = BTreeSet::new();
        for domain in self.masters.iter().flat_map(|master| &master.domains) {
            if domain.is_empty() || domain.contains('\0') || domain.len() > DOMAIN_BYTES_MAX {
                return Err(ConnectError::Domain(domain.clone()));
            }
            if !seen.insert(domain) {
                return Err(ConnectError::TwoMasters(domain.clone()));
            }
        }
        if seen.len() > DOMAINS_MAX {
            return Err(ConnectError::Crowded);
        }
        Ok(())
    }
}

/// The `host:port` of `tcp://host:port`.
pub(super) fn address(endpoint: &str) -> Result<String, ConnectError> {
    let wrong = || ConnectError::Endpoint(endpoint.to_owned());
    let address = endpoint.strip_prefix("tcp://").ok_or_else(wrong)?;
    let (host, port) = address.rsplit_once(':').ok_or_else(wrong)?;
    let port: Result<u16, _> = port.parse();
    let usable = !host.is_empty() && host != "*" && port.is_ok_and(|port| port != 0);
    if usable { Ok(address.to_owned()) } else { Err(wrong()) }
}

/// Why there is no gatekeeper. That a master is away is no reason.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// An endpoint cannot be connected to; write it as `tcp://host:port`.
    #[error("`{0}` is not an endpoint to connect to: write `tcp://host:port`")]
    Endpoint(String),
    /// A domain has no usable name.
    #[error("`{0}` is not a domain: write 1 to {DOMAIN_BYTES_MAX} bytes without a NUL")]
    Domain(String),
    /// A domain has two masters, neither of which would see all its requests.
    #[error("the domain `{0}` is listed twice: one master must see all its requests")]
    TwoMasters(String),
    /// There are too many domains.
    #[error("there are more than {DOMAINS_MAX} domains")]
    Crowded,
    /// The system refuses the thread that talks to masters.
    #[error("cannot start the thread that talks to masters: {0}")]
    NoThread(std::io::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_tcp() {
        for (endpoint, expected) in [
            ("tcp://127.0.0.1:10004", Some("127.0.0.1:10004")),
            ("tcp://[::1]:10004", Some("[::1]:10004")),
            ("tcp://master.example:1", Some("master.example:1")),
            ("127.0.0.1:10004", None),
            ("tcp://127.0.0.1", None),
            ("tcp://:10004", None),
            ("tcp://*:10004", None),
            ("tcp://a:0", None),
            ("tcp://a:70000", None),
            ("ipc:///tmp/x:1", None),
        ] {
            assert_eq!(address(endpoint).ok().as_deref(), expected, "{endpoint}");
        }
    }

    #[test]
    fn domains_have_one_master() {
        let check = |domains: [&[&str]; 2]| {
            let somewhere = "tcp://127.0.0.1:1";
            let masters =
                domains.map(|domains| Master::new(somewhere, somewhere, domains.iter().copied()));
            Config::new(masters).check()
        };
        assert!(check([&["a", "b"], &["c"]]).is_ok());
        assert!(matches!(check([&["a", "b"], &["a"]]), Err(ConnectError::TwoMasters(_))));
        assert!(matches!(check([&["a", "a"], &[]]), Err(ConnectError::TwoMasters(_))));
        let long = "x".repeat(DOMAIN_BYTES_MAX + 1);
        for wrong in ["", "a\0b", &long] {
            assert!(matches!(check([&["a"], &[wrong]]), Err(ConnectError::Domain(_))), "{wrong}");
        }
        assert!(check([&["a"], &[&long[1..]]]).is_ok());
    }
}
