//! How many connections come from one source, and which sources are not counted.
//!
//! A source is an IPv4 address, or the first 64 bits of an IPv6 address: a host has all of the rest
//! to itself. IPv4 addresses seen through an IPv6 socket count as IPv4.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::settings::listen::Allow;

/// The share of one source, unless it is set: this part of all connections of the door.
const SHARE_OF_ALL: u32 = 10;
/// The least share of one source, unless it is set.
const SHARE_MIN: u32 = 64;
/// Counts are spread over so many locks.
const SHARDS: usize = 16;

/// Where a connection comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Source {
    V4(u32),
    /// The network of 64 bits.
    V6(u64),
    /// All clients of a Unix socket.
    Unix,
}

impl Source {
    fn of(address: Option<IpAddr>) -> Self {
        match address.map(|address| address.to_canonical()) {
            Some(IpAddr::V4(address)) => Self::V4(address.to_bits()),
            Some(IpAddr::V6(address)) => Self::V6((address.to_bits() >> 64) as u64),
            None => Self::Unix,
        }
    }

    fn shard(self) -> usize {
        let bits = match self {
            Self::V4(bits) => u64::from(bits),
            Self::V6(bits) => bits,
            Self::Unix => 0,
        };
        // Every bit counts: neighbours differ in the last ones, networks in the first.
        (bits.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % SHARDS
    }
}

/// The connections of one door by source.
pub(crate) struct Sources {
    max: u32,
    /// Whether loopback, Unix sockets and trusted proxies count like everybody else.
    counts_all: bool,
    trusted: Allow,
    counts: [Mutex<HashMap<Source, u32>>; SHARDS],
}

/// One connection of a source that is counted, until this is dropped.
pub(crate) struct SourceShare {
    sources: Arc<Sources>,
    source: Source,
}

/// The source has as many connections as it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooManyFromSource;

impl Sources {
    /// `per_source` is what the file says, `trusted` the proxies that speak for many clients.
    pub(crate) fn new(connections: u32, per_source: Option<u32>, trusted: Allow) -> Arc<Self> {
        let usual = (connections / SHARE_OF_ALL).max(SHARE_MIN);
        Arc::new(Self {
            max: per_source.unwrap_or(usual).min(connections),
            counts_all: per_source.is_some(),
            trusted,
            counts: Default::default(),
        })
    }

    /// Counts a connection from `address`, or from a Unix socket without one. `None` is for those
    /// who are not counted.
    pub(crate) fn enter(
        self: &Arc<Self>,
        address: Option<IpAddr>,
    ) -> Result<Option<SourceShare>, TooManyFromSource> {
        if !self.counts_all && self.is_exempt(address) {
            return Ok(None);
        }
        let source = Source::of(address);
        let mut counts = self.counts[source.shard()].lock();
        let count = counts.entry(source).or_insert(0);
        // A share is at least 1: a source that has none yet is not left behind in the table.
        if *count >= self.max {
            return Err(TooManyFromSource);
        }
        *count += 1;
        Ok(Some(SourceShare { sources: self.clone(), source }))
    }

    fn is_exempt(&self, address: Option<IpAddr>) -> bool {
        address.is_none_or(|address| {
            address.to_canonical().is_loopback()
                || !self.trusted.is_open() && self.trusted.permits(address)
        })
    }
}

impl Drop for SourceShare {
    fn drop(&mut self) {
        let mut counts = self.sources.counts[self.source.shard()].lock();
        if let Some(count) = counts.get_mut(&self.source) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.source);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trusted(network: &str) -> Allow {
        toml::from_str::<HashMap<String, Allow>>(&format!("a = ['{network}']")).unwrap()["a"]
            .clone()
    }

    /// How many connections from `address` are let in, out of 1000.
    fn let_in(sources: &Arc<Sources>, address: &str) -> usize {
        let address = (address != "unix").then(|| address.parse().unwrap());
        let held: Vec<_> = (0..1000).map_while(|_| sources.enter(address).ok()).collect();
        held.len()
    }

    #[test]
    fn a_source_has_a_tenth_and_at_least_64_and_never_more_than_all() {
        for (connections, expected) in [(10_000, 1000), (2000, 200), (300, 64), (20, 20)] {
            let sources = Sources::new(connections, None, Allow::default());
            assert_eq!(let_in(&sources, "192.0.2.1"), expected, "{connections}");
        }
        let sources = Sources::new(10, Some(50), Allow::default());
        assert_eq!(let_in(&sources, "192.0.2.1"), 10);
    }

    #[test]
    fn some_are_exempt_unless_the_share_is_set() {
        let exempt = ["127.0.0.1", "127.0.0.9", "::1", "::ffff:127.0.0.1", "unix", "10.1.2.3"];
        let usual = Sources::new(640, None, trusted("10.0.0.0/8"));
        for address in exempt {
            assert_eq!(let_in(&usual, address), 1000, "{address}");
        }
        assert_eq!(let_in(&usual, "11.1.2.3"), 64);
        let set = Sources::new(640, Some(7), trusted("10.0.0.0/8"));
        for address in exempt {
            assert_eq!(let_in(&set, address), 7, "{address}");
        }
    }

    #[test]
    fn a_source_is_an_address_or_a_network_of_64_bits() {
        let sources = Sources::new(10, Some(1), Allow::default());
        for (one, other, same) in [
            ("192.0.2.1", "192.0.2.2", false),
            ("192.0.2.1", "::ffff:192.0.2.1", true),
            ("2001:db8::1", "2001:db8::ffff:1", true),
            ("2001:db8:0:1::1", "2001:db8:0:2::1", false),
        ] {
            let held = sources.enter(Some(one.parse().unwrap()));
            assert_eq!(let_in(&sources, other) == 0, same, "{one} {other}");
            drop(held);
        }
    }

    #[test]
    fn what_is_given_back_can_be_had_again_and_leaves_nothing_behind() {
        let sources = Sources::new(10, Some(2), Allow::default());
        let enter = || sources.enter(Some("192.0.2.1".parse().unwrap()));
        let (one, two) = (enter(), enter());
        assert!(one.is_ok() && two.is_ok());
        assert_eq!(enter().err(), Some(TooManyFromSource));
        drop(one);
        assert!(enter().is_ok());
        drop(two);
        assert!(sources.counts.iter().all(|counts| counts.lock().is_empty()));
    }
}
