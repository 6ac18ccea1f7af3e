//! The address of the client behind trusted proxies, from `X-Forwarded-For`.

use std::net::IpAddr;

use hyper::header::{HeaderMap, HeaderName};

use crate::settings::listen::Allow;

/// Each proxy adds the address that it got the request from.
pub(crate) const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The most hops of an `X-Forwarded-For` that are looked at.
const HOPS_MAX: usize = 64;

/// The address of the client: the peer's, or the one that a trusted peer names. With an empty list
/// of trusted proxies it is always the peer's.
pub(crate) fn client(peer: IpAddr, headers: &HeaderMap, trusted: &Allow) -> IpAddr {
    let mut client = peer.to_canonical();
    if trusted.is_open() || !trusted.permits(client) {
        return client;
    }
    // From the right: a client can write anything to the left of its own address.
    let lists = headers.get_all(X_FORWARDED_FOR).iter().rev();
    let hops = lists.flat_map(|list| list.as_bytes().rsplit(|byte| *byte == b','));
    for hop in hops.take(HOPS_MAX) {
        let Some(address) = address(hop) else { break };
        client = address;
        if !trusted.permits(address) {
            break;
        }
    }
    client
}

/// An address as people write it into `X-Forwarded-For`: with a port or brackets, too.
fn address(hop: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(hop).ok()?.trim();
    let bare = text.strip_prefix('[').and_then(|rest| rest.split_once(']')).map(|(bare, _)| bare);
    let parsed = bare.unwrap_or(text).parse::<IpAddr>().ok();
    let parsed = parsed.or_else(|| text.parse::<std::net::SocketAddr>().ok().map(|at| at.ip()));
    parsed.map(|address| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn map(lines: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for line in lines.lines() {
            let (_, value) = line.split_once(": ").expect("a header");
            headers.append(X_FORWARDED_FOR, HeaderValue::from_str(value).expect("a value"));
        }
        headers
    }

    #[test]
    fn the_client_is_the_last_hop_that_is_not_trusted() {
        let trusted: Allow = toml::from_str::<std::collections::BTreeMap<String, Allow>>(
            "a = ['192.0.2.0/24', '10.0.0.0/8']",
        )
        .unwrap()
        .remove("a")
        .unwrap();
        let check = |peer: [u8; 4], lines: &str, expected: &str| {
            let client = client(peer.into(), &map(lines), &trusted);
            assert_eq!(client, expected.parse::<IpAddr>().unwrap(), "{lines}");
        };
        check([203, 0, 113, 1], "x-forwarded-for: 1.1.1.1", "203.0.113.1");
        check([192, 0, 2, 1], "", "192.0.2.1");
        check([192, 0, 2, 1], "x-forwarded-for: 6.6.6.6, 1.1.1.1", "1.1.1.1");
        check([192, 0, 2, 1], "x-forwarded-for: 6.6.6.6\nx-forwarded-for: 1.1.1.1", "1.1.1.1");
        check([192, 0, 2, 1], "x-forwarded-for: 6.6.6.6, 1.1.1.1, 10.1.1.1", "1.1.1.1");
        check([192, 0, 2, 1], "x-forwarded-for: 10.2.2.2, 10.1.1.1", "10.2.2.2");
        check([192, 0, 2, 1], "x-forwarded-for: 6.6.6.6, nonsense", "192.0.2.1");
        check([192, 0, 2, 1], "x-forwarded-for: 1.1.1.1:99", "1.1.1.1");
        check([192, 0, 2, 1], "x-forwarded-for: [2001:db8::1]:99", "2001:db8::1");
    }
}
