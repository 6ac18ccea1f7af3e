//! What a proxy does to the headers of a message: takes out what is meant for one hop, and says
//! on whose behalf a request comes.
//!
//! Pure: header maps in, header maps out. Where a message goes is not decided here.

use std::fmt::Write as _;
use std::net::IpAddr;

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

/// What is meant for one hop, too, and hardly ever there.
static RARE: [HeaderName; 5] =
    [PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, KEEP_ALIVE, PROXY_CONNECTION, HTTP2_SETTINGS];

/// Fields that mean nothing behind a body, or too much.
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

/// Takes out of the fields behind a request's body what a server might take for part of its head.
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

/// The protocol that a request over HTTP/1.1 asks to go on with, if it does.
pub(super) fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let protocol = headers.get(UPGRADE)?;
    let asked = headers.get_all(CONNECTION).iter().any(|value| has_token(value, "upgrade"));
    asked.then(|| protocol.clone())
}

/// What is in a message's headers, found in one walk: to look up each name on its own costs more
/// than all of the walk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Survey {
    hosts: u32,
    cookies: u32,
    lengths: u32,
    expects: bool,
    connection: bool,
    coding: bool,
    upgrade: bool,
    te: bool,
    /// One of [`RARE`].
    rare: bool,
}

impl Survey {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let mut survey = Self::default();
        for (name, _) in headers {
            // As texts they are told apart by their lengths, nearly always.
            match name.as_str() {
                "host" => survey.hosts += 1,
                "cookie" => survey.cookies += 1,
                "content-length" => survey.lengths += 1,
                "expect" => survey.expects = true,
                "connection" => survey.connection = true,
                "transfer-encoding" => survey.coding = true,
                "upgrade" => survey.upgrade = true,
                "te" => survey.te = true,
                "keep-alive" | "proxy-connection" | "http2-settings" => survey.rare = true,
                "proxy-authenticate" | "proxy-authorization" => survey.rare = true,
                _ => {}
            }
        }
        survey
    }

    /// Whether a transfer coding is named.
    pub(super) fn is_coded(&self) -> bool {
        self.coding
    }

    /// Whether an upgrade may be asked for.
    pub(super) fn may_upgrade(&self) -> bool {
        self.upgrade
    }

    /// How many hosts are named.
    pub(super) fn hosts(&self) -> u32 {
        self.hosts
    }

    /// How many lines the cookies take.
    pub(super) fn cookies(&self) -> u32 {
        self.cookies
    }

    /// How often the length is told.
    pub(super) fn lengths(&self) -> u32 {
        self.lengths
    }

    /// Takes out all that is meant for this hop alone, and what `Connection` names as such.
    pub(super) fn strip(&self, headers: &mut HeaderMap) {
        if self.expects {
            // Met here, in a request; means nothing in an answer.
            headers.remove(EXPECT);
        }
        // The one coding that a proxy which hands trailers on may repeat.
        let trailers =
            self.te && headers.get_all(TE).iter().any(|value| has_token(value, "trailers"));
        if self.connection {
            for name in named(headers) {
                headers.remove(name);
            }
            headers.remove(CONNECTION);
        }
        if self.coding {
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

/// The fields that `Connection` names, but for those that a request cannot do without.
fn named(headers: &HeaderMap) -> Vec<HeaderName> {
    // What it says nearly always: that names no field.
    let usual = |list: &&HeaderValue| {
        matches!(list.as_bytes(), b"keep-alive" | b"close" | b"Keep-Alive" | b"Close")
    };
    let lists = headers.get_all(CONNECTION).iter().filter(|list| !usual(list));
    let tokens = lists.flat_map(|list| list.as_bytes().split(|byte| *byte == b','));
    tokens
        .filter_map(|token| HeaderName::from_bytes(token.trim_ascii()).ok())
        .filter(|name| name != HOST && name != TE)
        .collect()
}

/// What is told of one client, made once for a connection.
pub(super) struct Introduction {
    peer: IpAddr,
    trusted: bool,
    tls: bool,
    /// The peer as `X-Forwarded-For` has it.
    peer_value: HeaderValue,
    /// `Forwarded` for the host asked last: clients ask for the same one again and again.
    last: Option<(HeaderValue, HeaderValue)>,
}

impl Introduction {
    pub(super) fn new(peer: IpAddr, trusted: bool, tls: bool) -> Self {
        let peer = peer.to_canonical();
        let peer_value = value(&peer.to_string());
        Self { peer, trusted, tls, peer_value, last: None }
    }

    /// The client: the peer, or whom a trusted one speaks for.
    pub(super) fn client(&self, headers: &HeaderMap, trusted: &Allow) -> IpAddr {
        if self.trusted { forwarded::client(self.peer, headers, trusted) } else { self.peer }
    }

    /// Writes on whose behalf the request comes. What a stranger says about that is replaced; what
    /// a trusted proxy says is kept, and added to.
    pub(super) fn introduce(&mut self, headers: &mut HeaderMap, host: Option<&HeaderValue>) {
        let proto = HeaderValue::from_static(if self.tls { "https" } else { "http" });
        let forwarded = self.forwarded(host);
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

    fn forwarded(&mut self, host: Option<&HeaderValue>) -> HeaderValue {
        let none = HeaderValue::from_static("");
        let host = host.unwrap_or(&none);
        if let Some((asked, made)) = &self.last
            && asked == host
        {
            return made.clone();
        }
        let made = forwarded(self.peer, self.tls, host);
        self.last = Some((host.clone(), made.clone()));
        made
    }
}

/// An element of `Forwarded` (RFC 7239).
fn forwarded(peer: IpAddr, tls: bool, host: &HeaderValue) -> HeaderValue {
    let mut text = match peer {
        IpAddr::V4(peer) => format!("for={peer}"),
        IpAddr::V6(peer) => format!("for=\"[{peer}]\""),
    };
    if let Ok(host) = host.to_str()
        && !host.is_empty()
    {
        // Writing to a string does not fail.
        let _ = match host.bytes().all(is_token) {
            true => write!(text, ";host={host}"),
            false => write!(text, ";host=\"{}\"", host.replace('\\', "\\\\").replace('"', "\\\"")),
        };
    }
    text.push_str(if tls { ";proto=https" } else { ";proto=http" });
    value(&text)
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Text that is known to fit into a header.
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

    fn introduced(trusted: bool, before: &str) -> String {
        let mut headers = map(before);
        let host = headers.get(HOST).cloned();
        let mut introduction = Introduction::new([192, 0, 2, 9].into(), trusted, true);
        introduction.introduce(&mut headers, host.as_ref());
        let first = shown(&headers);
        let mut again = map(before);
        introduction.introduce(&mut again, host.as_ref());
        assert_eq!(shown(&again), first, "what is kept for the next request says the same");
        first
    }

    #[test]
    fn what_a_stranger_says_about_itself_is_replaced() {
        let lies = "host: a.example\nx-forwarded-for: 1.1.1.1\nx-forwarded-host: lie\n\
                    x-forwarded-proto: gopher\nforwarded: for=1.1.1.1\nforwarded: for=2.2.2.2";
        let truth = "forwarded: for=192.0.2.9;host=a.example;proto=https\nhost: a.example\n\
                     x-forwarded-for: 192.0.2.9\nx-forwarded-host: a.example\n\
                     x-forwarded-proto: https";
        assert_eq!(introduced(false, lies), truth);
        let nameless = "forwarded: for=192.0.2.9;proto=https\nx-forwarded-for: 192.0.2.9\n\
                        x-forwarded-proto: https";
        assert_eq!(introduced(false, "x-forwarded-host: lie"), nameless);
    }

    #[test]
    fn what_a_trusted_proxy_says_is_added_to() {
        let said = "host: a:80\nx-forwarded-for: 1.1.1.1\nx-forwarded-for: 2.2.2.2\n\
                    x-forwarded-host: outside\nx-forwarded-proto: http\nforwarded: for=1.1.1.1";
        let told = "forwarded: for=1.1.1.1, for=192.0.2.9;host=\"a:80\";proto=https\nhost: a:80\n\
                    x-forwarded-for: 1.1.1.1, 2.2.2.2, 192.0.2.9\nx-forwarded-host: outside\n\
                    x-forwarded-proto: http";
        assert_eq!(introduced(true, said), told);
    }
}
