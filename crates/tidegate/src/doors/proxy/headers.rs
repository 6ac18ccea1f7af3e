//! What a proxy does to the headers of a message: it removes hop-by-hop headers, and says on whose
//! behalf a request comes.
//!
//! Pure: header maps in, header maps out.

use std::net::IpAddr;

use hyper::body::Bytes;
use hyper::header::{
    AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE,
    CONTENT_TYPE, COOKIE, EXPECT, FORWARDED, HOST, HeaderMap, HeaderName, HeaderValue,
    MAX_FORWARDS, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, SET_COOKIE, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE,
};

use crate::doors::forwarded::{self, X_FORWARDED_FOR};
use crate::settings::listen::Allow;

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
/// HTTP/2's answer to `Upgrade: h2c`; without the upgrade it means nothing.
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");

/// Hop-by-hop headers that are hardly ever there.
static RARE: [HeaderName; 5] =
    [PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, KEEP_ALIVE, PROXY_CONNECTION, HTTP2_SETTINGS];

/// Fields that have no meaning as trailers, or a dangerous one.
static NO_TRAILERS: [HeaderName; 21] = [
    AUTHORIZATION,
    CACHE_CONTROL,
    CONNECTION,
    CONTENT_ENCODING,
    CONTENT_LENGTH,
    CONTENT_RANGE,
    CONTENT_TYPE,
    COOKIE,
    EXPECT,
    FORWARDED,
    HOST,
    KEEP_ALIVE,
    MAX_FORWARDS,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    PROXY_CONNECTION,
    SET_COOKIE,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Removes trailers of a request that a server might take for part of its head.
pub(super) fn strip_trailers(trailers: &mut HeaderMap) {
    let harmful = |name: &&HeaderName| {
        NO_TRAILERS.contains(name) || name.as_str().starts_with("x-forwarded-")
    };
    let found: Vec<HeaderName> = trailers.keys().filter(harmful).cloned().collect();
    found.into_iter().for_each(|name| drop(trailers.remove(name)));
}

/// Whether a list field holds `token`, whatever the case.
fn has_token(value: &HeaderValue, token: &str) -> bool {
    let mut tokens = value.as_bytes().split(|byte| *byte == b',');
    tokens.any(|found| found.trim_ascii().eq_ignore_ascii_case(token.as_bytes()))
}

/// The protocol that a request over HTTP/1.1 asks to switch to.
pub(super) fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let protocol = headers.get(UPGRADE)?;
    let asked = headers.get_all(CONNECTION).iter().any(|value| has_token(value, "upgrade"));
    asked.then(|| protocol.clone())
}

/// Which headers a message has that matter to a proxy. They are found in one walk: to look up each
/// name on its own costs more than all of the walk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Survey {
    pub(super) hosts: u32,
    pub(super) cookies: u32,
    pub(super) lengths: u32,
    pub(super) transfer_encoding: bool,
    pub(super) upgrade: bool,
    expect: bool,
    connection: bool,
    te: bool,
    /// One of [`RARE`].
    rare: bool,
}

impl Survey {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let mut survey = Self::default();
        for (name, _) in headers {
            match name.as_str() {
                "host" => survey.hosts += 1,
                "cookie" => survey.cookies += 1,
                "content-length" => survey.lengths += 1,
                "expect" => survey.expect = true,
                "connection" => survey.connection = true,
                "transfer-encoding" => survey.transfer_encoding = true,
                "upgrade" => survey.upgrade = true,
                "te" => survey.te = true,
                "keep-alive" | "proxy-connection" | "http2-settings" => survey.rare = true,
                "proxy-authenticate" | "proxy-authorization" => survey.rare = true,
                _ => {}
            }
        }
        survey
    }

    /// Removes all hop-by-hop headers, and those that `Connection` names.
    pub(super) fn strip(&self, headers: &mut HeaderMap) {
        if self.expect {
            // hyper answers it in a request; it has no meaning in a response.
            headers.remove(EXPECT);
        }
        // The one value that a proxy which forwards trailers may repeat.
        let trailers =
            self.te && headers.get_all(TE).iter().any(|value| has_token(value, "trailers"));
        if self.connection {
            for name in named(headers) {
                headers.remove(name);
            }
            headers.remove(CONNECTION);
        }
        if self.transfer_encoding {
            headers.remove(TRANSFER_ENCODING);
        }
        if self.upgrade {
            headers.remove(UPGRADE);
        }
        if self.te {
            headers.remove(TE);
        }
        if self.rare {
            RARE.iter().for_each(|name| drop(headers.remove(name)));
        }
        if trailers {
            headers.insert(TE, HeaderValue::from_static("trailers"));
        }
    }
}

/// The headers that `Connection` names, except those that a request cannot do without.
fn named(headers: &HeaderMap) -> Vec<HeaderName> {
    let lists = headers.get_all(CONNECTION).iter();
    let tokens = lists.flat_map(|list| list.as_bytes().split(|byte| *byte == b','));
    let tokens = tokens.map(<[u8]>::trim_ascii);
    // The usual options name no header.
    tokens
        .filter(|token| !matches!(token, &b"keep-alive" | &b"close"))
        .filter_map(|name| HeaderName::from_bytes(name).ok())
        .filter(|name| name != HOST && name != TE)
        .collect()
}

/// What the proxy tells the upstream about one client, made once for a connection.
pub(super) struct ForwardedClient {
    peer: IpAddr,
    trusted: bool,
    tls: bool,
    /// The peer in `X-Forwarded-For`.
    peer_value: HeaderValue,
    /// The peer in `Forwarded`.
    peer_element: String,
}

impl ForwardedClient {
    pub(super) fn new(peer: IpAddr, trusted: bool, tls: bool) -> Self {
        let peer = peer.to_canonical();
        let peer_value = value(&peer.to_string());
        let peer_element = match peer {
            IpAddr::V4(peer) => format!("for={peer}"),
            IpAddr::V6(peer) => format!("for=\"[{peer}]\""),
        };
        Self { peer, trusted, tls, peer_value, peer_element }
    }

    /// The client's address: the peer's, or the one that a trusted peer names.
    pub(super) fn address(&self, headers: &HeaderMap, trusted: &Allow) -> IpAddr {
        if self.trusted { forwarded::client(self.peer, headers, trusted) } else { self.peer }
    }

    /// Writes on whose behalf the request comes. What a client says about that is replaced; what a
    /// trusted proxy says is kept, and added to.
    pub(super) fn write(&self, headers: &mut HeaderMap, host: Option<&HeaderValue>) {
        let proto = HeaderValue::from_static(if self.tls { "https" } else { "http" });
        let forwarded = self.element(host);
        if !self.trusted {
            headers.insert(X_FORWARDED_FOR, self.peer_value.clone());
            headers.insert(X_FORWARDED_PROTO, proto);
            match host {
                Some(host) => drop(headers.insert(X_FORWARDED_HOST, host.clone())),
                None => drop(headers.remove(X_FORWARDED_HOST)),
            }
            headers.insert(FORWARDED, forwarded);
            return;
        }
        add(headers, X_FORWARDED_FOR, &self.peer_value);
        headers.entry(X_FORWARDED_PROTO).or_insert(proto);
        if let Some(host) = host {
            headers.entry(X_FORWARDED_HOST).or_insert_with(|| host.clone());
        }
        add(headers, FORWARDED, &forwarded);
    }

    /// An element of `Forwarded` (RFC 7239).
    fn element(&self, host: Option<&HeaderValue>) -> HeaderValue {
        let mut text = Vec::with_capacity(96);
        text.extend_from_slice(self.peer_element.as_bytes());
        match host.map(HeaderValue::as_bytes).filter(|host| host.is_ascii()).unwrap_or_default() {
            b"" => {}
            host if host.iter().all(is_token) => {
                text.extend_from_slice(b";host=");
                text.extend_from_slice(host);
            }
            host => {
                text.extend_from_slice(b";host=\"");
                for &byte in host {
                    text.extend_from_slice(if matches!(byte, b'"' | b'\\') { b"\\" } else { b"" });
                    text.push(byte);
                }
                text.push(b'"');
            }
        }
        text.extend_from_slice(if self.tls { b";proto=https" } else { b";proto=http" });
        let unknown = |_| HeaderValue::from_static("unknown");
        HeaderValue::from_maybe_shared(Bytes::from(text)).unwrap_or_else(unknown)
    }
}

fn is_token(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte)
}

/// A header of text that fits into one.
fn value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static("unknown"))
}

/// Adds to the end of a list field, on one line.
fn add(headers: &mut HeaderMap, name: HeaderName, last: &HeaderValue) {
    let mut line: Vec<u8> = Vec::new();
    for value in headers.get_all(&name) {
        line.extend_from_slice(value.as_bytes());
        line.extend_from_slice(b", ");
    }
    line.extend_from_slice(last.as_bytes());
    headers.insert(name, HeaderValue::from_bytes(&line).unwrap_or_else(|_| last.clone()));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(lines: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for line in lines.lines().filter(|line| !line.is_empty()) {
            let (name, value) = line.split_once(": ").expect("a header");
            let name = HeaderName::from_bytes(name.as_bytes()).expect("a name");
            headers.append(name, HeaderValue::from_str(value).expect("a value"));
        }
        headers
    }

    fn shown(headers: &HeaderMap) -> String {
        let line = |(name, value): (&HeaderName, &HeaderValue)| {
            format!("{name}: {}", value.to_str().expect("text"))
        };
        let mut lines: Vec<String> = headers.iter().map(line).collect();
        lines.sort();
        lines.join("\n")
    }

    #[test]
    fn what_is_meant_for_one_hop_goes_no_further() {
        let check = |before: &str, after: &str| {
            let mut headers = map(before);
            Survey::of(&headers).strip(&mut headers);
            assert_eq!(shown(&headers), after, "{before}");
        };
        check("host: a\naccept: x", "accept: x\nhost: a");
        check("connection: close\nx: 1", "x: 1");
        check("connection: keep-alive, X-Secret , x-two\nx-secret: 1\nx-two: 2\ny: 3", "y: 3");
        check("connection: x-a\nconnection: x-b\nx-a: 1\nx-b: 2\ny: 3", "y: 3");
        check("connection: keep-alive\nconnection: x-b\nx-b: 2\ny: 3", "y: 3");
        check("connection: host, te\nhost: a", "host: a");
        check("keep-alive: 1\nproxy-connection: x\nproxy-authorization: y\na: b", "a: b");
        check("transfer-encoding: chunked\nupgrade: h2c\nhttp2-settings: x\na: b", "a: b");
        check("te: gzip, Trailers\ntrailer: x-sum", "te: trailers\ntrailer: x-sum");
        check("te: gzip", "");
        check("expect: 100-continue\na: b", "a: b");
    }

    #[test]
    fn an_upgrade_is_one_only_if_connection_says_so() {
        assert!(upgrade(&map("upgrade: websocket")).is_none());
        assert!(upgrade(&map("connection: upgrade")).is_none());
        let asked = upgrade(&map("connection: keep-alive, Upgrade\nupgrade: websocket"));
        assert_eq!(asked.unwrap(), "websocket");
    }

    fn forwarded_headers(trusted: bool, before: &str) -> String {
        let mut headers = map(before);
        let host = headers.get(HOST).cloned();
        let client = ForwardedClient::new([192, 0, 2, 9].into(), trusted, true);
        client.write(&mut headers, host.as_ref());
        shown(&headers)
    }

    #[test]
    fn what_a_stranger_says_about_itself_is_replaced() {
        let lies = "host: a.example\nx-forwarded-for: 1.1.1.1\nx-forwarded-host: lie\n\
                    x-forwarded-proto: gopher\nforwarded: for=1.1.1.1\nforwarded: for=2.2.2.2";
        let truth = "forwarded: for=192.0.2.9;host=a.example;proto=https\nhost: a.example\n\
                     x-forwarded-for: 192.0.2.9\nx-forwarded-host: a.example\n\
                     x-forwarded-proto: https";
        assert_eq!(forwarded_headers(false, lies), truth);
        let nameless = "forwarded: for=192.0.2.9;proto=https\nx-forwarded-for: 192.0.2.9\n\
                        x-forwarded-proto: https";
        assert_eq!(forwarded_headers(false, "x-forwarded-host: lie"), nameless);
    }

    #[test]
    fn what_a_trusted_proxy_says_is_added_to() {
        let said = "host: a:80\nx-forwarded-for: 1.1.1.1\nx-forwarded-for: 2.2.2.2\n\
                    x-forwarded-host: outside\nx-forwarded-proto: http\nforwarded: for=1.1.1.1";
        let sent = "forwarded: for=1.1.1.1, for=192.0.2.9;host=\"a:80\";proto=https\nhost: a:80\n\
                    x-forwarded-for: 1.1.1.1, 2.2.2.2, 192.0.2.9\nx-forwarded-host: outside\n\
                    x-forwarded-proto: http";
        assert_eq!(forwarded_headers(true, said), sent);
    }
}
