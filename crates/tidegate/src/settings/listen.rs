//! Addresses to listen at and allow lists: the types that every door's `Config` shares.
//!
//! Addresses only: a name would be looked up once, and a later change of it would go unnoticed.
//! `localhost` is not looked up: it is 127.0.0.1.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// One address that a door listens at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// An IP address and a port.
    Ip(SocketAddr),
    /// A Unix socket's path.
    Unix(PathBuf),
}

impl ListenAddress {
    /// Whether two sockets of one protocol could not listen at both. IPv6 sockets are for IPv6
    /// alone.
    #[must_use]
    pub fn overlaps(&self, other: &ListenAddress) -> bool {
        match (self, other) {
            (ListenAddress::Ip(ours), ListenAddress::Ip(theirs)) => {
                let everywhere = ours.ip().is_unspecified() || theirs.ip().is_unspecified();
                let family = ours.is_ipv4() == theirs.is_ipv4();
                let same = family && everywhere || ours.ip() == theirs.ip();
                ours.port() == theirs.port() && same
            }
            (ListenAddress::Unix(ours), ListenAddress::Unix(theirs)) => ours == theirs,
            _ => false,
        }
    }

    /// Whether it takes a free port, whichever that is.
    #[must_use]
    pub fn takes_any_port(&self) -> bool {
        matches!(self, ListenAddress::Ip(address) if address.port() == 0)
    }

    /// Whether it can be reached from other machines.
    #[must_use]
    pub fn beyond_loopback(&self) -> bool {
        matches!(self, ListenAddress::Ip(address) if !address.ip().to_canonical().is_loopback())
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        match self {
            ListenAddress::Ip(address) => address.fmt(formatter),
            ListenAddress::Unix(path) => path.display().fmt(formatter),
        }
    }
}

/// One address or several, in file order. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen(Vec<SocketAddr>);

impl Listen {
    /// The addresses in file order.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.0
    }

    /// The same, each with the setting that says so.
    #[must_use]
    pub fn places(&self) -> Vec<(&'static str, ListenAddress)> {
        self.0.iter().map(|address| ("listen", ListenAddress::Ip(*address))).collect()
    }
}

impl From<SocketAddr> for Listen {
    fn from(address: SocketAddr) -> Self {
        Self(vec![address])
    }
}

/// An address and a port; `localhost` is the IPv4 loopback.
pub(crate) fn socket_address(text: &str) -> Option<SocketAddr> {
    let local = text.strip_prefix("localhost:").map(|port| format!("127.0.0.1:{port}"));
    local.as_deref().unwrap_or(text).parse().ok()
}

/// The error says what is wrong with an address, and on a second line what would be right.
fn address(text: &str) -> Result<SocketAddr, String> {
    let is_number = |port: &&str| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    let port = text.rsplit_once(':').map(|(_, port)| port).filter(is_number);
    if let Some(port) = port.filter(|port| port.parse::<u16>().is_err()) {
        return Err(format!("port {port} is above 65535\nwrite a port from 1 to 65535"));
    }
    socket_address(text).ok_or_else(|| {
        let remedy = match text.rsplit_once(':') {
            Some(("" | "*", port)) => {
                format!("write \"0.0.0.0:{port}\", or \"[::]:{port}\" for IPv6 as well")
            }
            _ if text.parse::<IpAddr>().is_ok() => "add a port: \"127.0.0.1:2000\"".to_owned(),
            _ => "an IP address and a port: \"127.0.0.1:2000\", \"[::1]:2000\"".to_owned(),
        };
        format!("\"{text}\" is not an address to listen on\n{remedy}; names are not looked up")
    })
}

impl<'de> Deserialize<'de> for Listen {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Addresses;
        impl<'de> Visitor<'de> for Addresses {
            type Value = Listen;

            fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
                formatter.write_str("an address like \"127.0.0.1:2000\" or a list of them")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Listen, E> {
                address(text).map(Listen::from).map_err(E::custom)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Listen, A::Error> {
                let mut addresses = Vec::new();
                while let Some(One(next)) = list.next_element()? {
                    if next.port() != 0 && addresses.contains(&next) {
                        let again = format!("{next} is listed twice\nlist each address once");
                        return Err(de::Error::custom(again));
                    }
                    addresses.push(next);
                }
                if addresses.is_empty() {
                    let none = "no address to listen on\nremove the table to keep the door closed";
                    return Err(de::Error::custom(none));
                }
                Ok(Listen(addresses))
            }
        }

        struct One(SocketAddr);
        impl<'de> Deserialize<'de> for One {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                address(&text).map(One).map_err(de::Error::custom)
            }
        }

        deserializer.deserialize_any(Addresses)
    }
}

impl Serialize for Listen {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.as_slice() {
            [one] => one.serialize(serializer),
            many => many.serialize(serializer),
        }
    }
}

impl JsonSchema for Listen {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Addresses".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "An IP address and port, or a list of them. Port 0 chooses a free one.",
            "anyOf": [
                { "type": "string" },
                { "type": "array", "items": { "type": "string" }, "minItems": 1 }
            ]
        })
    }
}

/// Networks such as "10.0.0.0/8", or single addresses. Without `allow` every client may connect.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[schemars(rename = "Networks")]
pub struct Allow(#[schemars(with = "Vec<String>", length(min = 1))] Vec<Network>);

impl Allow {
    /// Whether a peer at `address` may come in. An IPv4 peer seen through an IPv6 socket counts
    /// as IPv4.
    #[must_use]
    pub fn permits(&self, address: IpAddr) -> bool {
        self.0.is_empty() || self.0.iter().any(|network| network.contains(address))
    }

    /// Whether the list names a peer at `address`. An absent list names no peer.
    #[must_use]
    pub fn names(&self, address: IpAddr) -> bool {
        !self.is_open() && self.permits(address)
    }

    /// Reads a list that may be empty: for settings where an empty list permits no peer.
    pub(crate) fn nobody_or<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::<Network>::deserialize(deserializer).map(Self)
    }

    /// Whether the list permits every peer.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.0.is_empty()
    }
}

impl<'de> Deserialize<'de> for Allow {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let networks = Vec::<Network>::deserialize(deserializer)?;
        if networks.is_empty() {
            return Err(de::Error::custom(
                "an empty allow list would refuse every client\n\
                 name a network, or remove the setting to accept every client",
            ));
        }
        Ok(Self(networks))
    }
}

impl Serialize for Allow {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

/// An address with the number of leading bits that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Network {
    address: IpAddr,
    bits: u8,
}

impl Network {
    fn contains(&self, peer: IpAddr) -> bool {
        match (self.address, peer.to_canonical()) {
            (IpAddr::V4(ours), IpAddr::V4(theirs)) => {
                same_prefix(ours.to_bits().into(), theirs.to_bits().into(), 32 - self.bits)
            }
            (IpAddr::V6(ours), IpAddr::V6(theirs)) => {
                same_prefix(ours.to_bits(), theirs.to_bits(), 128 - self.bits)
            }
            _ => false,
        }
    }
}

fn same_prefix(ours: u128, theirs: u128, free_bits: u8) -> bool {
    (ours ^ theirs).checked_shr(free_bits.into()).unwrap_or(0) == 0
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            let remedy = "write a network like \"10.0.0.0/8\" or \"fd00::/8\", or one address";
            format!("\"{text}\" is not a network\n{remedy}")
        };
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            None => most,
            Some(digits) => digits.parse().ok().filter(|bits| *bits <= most).ok_or_else(wrong)?,
        };
        let network = Network { address, bits };
        // 10.1.2.3/8 is more often a slip than a network.
        let free = most - bits;
        let low = match address {
            IpAddr::V4(v4) => u128::from(v4.to_bits()),
            IpAddr::V6(v6) => v6.to_bits(),
        };
        if free > 0 && low & (u128::MAX >> (128 - free)) != 0 {
            return Err(format!(
                "\"{text}\" has bits beyond its /{bits}\nclear them, or write /{most} for one host"
            ));
        }
        Ok(network)
    }
}

impl fmt::Display for Network {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        write!(formatter, "{}/{}", self.address, self.bits)
    }
}

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl Serialize for Network {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(networks: &[&str], peer: &str) -> bool {
        let allow = Allow(networks.iter().map(|text| text.parse().unwrap()).collect());
        allow.permits(peer.parse().unwrap())
    }

    #[test]
    fn networks_contain_what_shares_their_prefix() {
        assert!(allows(&["10.0.0.0/8"], "10.255.1.2"));
        assert!(!allows(&["10.0.0.0/8"], "11.0.0.0"));
        assert!(allows(&["10.0.0.0/8", "192.168.1.7"], "192.168.1.7"));
        assert!(!allows(&["192.168.1.7"], "192.168.1.6"));
        assert!(allows(&["0.0.0.0/0"], "203.0.113.9"));
        assert!(!allows(&["0.0.0.0/0"], "::1"));
        assert!(allows(&["fd00::/8"], "fdff::1"));
        assert!(allows(&["::/0"], "2001:db8::1"));
        assert!(allows(&["10.0.0.0/8"], "::ffff:10.1.1.1"));
        assert!(allows(&[], "203.0.113.9"));
    }

    #[test]
    fn an_absent_list_permits_everybody_and_names_nobody() {
        let peer = "203.0.113.9".parse().unwrap();
        let allow = Allow::default();
        assert!(allow.permits(peer) && !allow.names(peer));
        let allow = Allow(vec!["0.0.0.0/0".parse().unwrap()]);
        assert!(allow.names(peer) && !allow.names("::1".parse().unwrap()));
    }

    #[test]
    fn what_is_no_network_is_told_apart() {
        for text in ["", "ten", "10.0.0.0/33", "fd00::/129", "10.0.0.0/-1", "10.0.0.0/"] {
            assert!(text.parse::<Network>().unwrap_err().contains("not a network"), "{text}");
        }
        assert!("10.1.2.3/8".parse::<Network>().unwrap_err().contains("beyond its /8"));
        assert!("::1/0".parse::<Network>().unwrap_err().contains("beyond its /0"));
    }

    #[test]
    fn loopback_is_told_apart() {
        let beyond = |text: &str| ListenAddress::Ip(text.parse().unwrap()).beyond_loopback();
        assert!(!beyond("127.0.0.1:1"));
        assert!(!beyond("[::1]:1"));
        assert!(!beyond("[::ffff:127.0.0.1]:1"));
        assert!(beyond("0.0.0.0:1"));
        assert!(beyond("192.0.2.1:1"));
        assert!(!ListenAddress::Unix("/run/gate".into()).beyond_loopback());
    }

    #[test]
    fn sockets_in_each_others_way_are_told() {
        let ip = |text: &str| ListenAddress::Ip(text.parse().unwrap());
        let unix = |text: &str| ListenAddress::Unix(text.into());
        assert!(ip("127.0.0.1:1").overlaps(&ip("0.0.0.0:1")));
        assert!(!ip("127.0.0.1:1").overlaps(&ip("127.0.0.2:1")));
        assert!(!ip("127.0.0.1:1").overlaps(&ip("127.0.0.1:2")));
        assert!(unix("a").overlaps(&unix("a")) && !unix("a").overlaps(&unix("b")));
        assert!(!unix("a").overlaps(&ip("127.0.0.1:1")));
    }
}
