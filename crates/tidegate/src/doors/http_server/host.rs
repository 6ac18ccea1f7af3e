//! Which Host headers are answered: the defence against DNS rebinding.
//!
//! A page on the web can make a browser ask `http://evil.example:8080/…` and then point that name
//! at this machine; the Host header still says who was asked for. So it must name the listener,
//! loopback, or a name from the configuration. Ports are not compared: a forwarded port is not
//! ours, and rebinding cannot fake the name beside it.

use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use axum::http::header::HOST;
use axum::http::{HeaderMap, StatusCode, Uri};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::problem::HttpProblem;

/// A name in `[http] names`: a host name or address without a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct HostName(String);

impl FromStr for HostName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match split_port(text) {
            Some((host, None)) if is_host(host) => Ok(Self(plain(host))),
            _ => Err(format!(
                "{text:?} is not a host name; write it without scheme, port or path, such as \
                 \"limits.example.net\""
            )),
        }
    }
}

impl TryFrom<String> for HostName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<HostName> for String {
    fn from(name: HostName) -> String {
        name.0
    }
}

/// The address that a connection came to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalAddress {
    pub(crate) ip: IpAddr,
    /// Whether the connection speaks TLS.
    pub(crate) tls: bool,
}

/// Refuses a request whose Host, or absolute target, names another host.
pub(crate) fn check(
    headers: &HeaderMap,
    uri: &Uri,
    local: Option<LocalAddress>,
    names: &[String],
) -> Result<(), HttpProblem> {
    let mut hosts = headers.get_all(HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else {
        return Err(HttpProblem::bad_request("host", "a request has exactly one Host header"));
    };
    let host = host.to_str().unwrap_or_default();
    let Some((name, _)) = split_port(host).filter(|(name, _)| is_host(name)) else {
        return Err(HttpProblem::bad_request("host", "the Host header is not a host name"));
    };
    // An absolute target outranks the header, so it has to pass as well.
    let target = uri.host().unwrap_or(name);
    if [name, target].iter().all(|name| is_ours(name, local, names)) {
        return Ok(());
    }
    Err(HttpProblem::new(
        StatusCode::FORBIDDEN,
        "host",
        "the Host header names neither this listener nor loopback nor a configured name",
    ))
}

fn is_ours(name: &str, local: Option<LocalAddress>, names: &[String]) -> bool {
    let name = plain(name);
    if name == "localhost" || names.contains(&name) {
        return true;
    }
    let Some(address) = address(&name) else { return false };
    address.is_loopback() || local.is_some_and(|local| local.ip.to_canonical() == address)
}

fn address(name: &str) -> Option<IpAddr> {
    if let Some(inside) = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        return inside.parse::<Ipv6Addr>().ok().map(|v6| IpAddr::V6(v6).to_canonical());
    }
    name.parse().ok()
}

/// Lower case, without the dot of a fully qualified name.
fn plain(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

/// Splits `name:port`; `None` if what follows the name is not a port.
fn split_port(host: &str) -> Option<(&str, Option<u16>)> {
    let name_end = if host.starts_with('[') { host.find(']')? + 1 } else { 0 };
    match host[name_end..].find(':') {
        None => Some((host, None)),
        Some(at) => {
            let (name, port) = host.split_at(name_end + at);
            port[1..].parse().ok().map(|port| (name, Some(port)))
        }
    }
}

fn is_host(name: &str) -> bool {
    if name.starts_with('[') {
        return address(name).is_some();
    }
    let is_ours = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    !name.is_empty() && name.bytes().all(is_ours)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn verdict(host: &str, uri: &'static str) -> Result<(), StatusCode> {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, HeaderValue::from_str(host).unwrap());
        let names = ["Limits.Example", "[2001:db8::1]"]
            .map(|name| name.parse::<HostName>().unwrap().into());
        let local = Some(LocalAddress { ip: "10.1.2.3".parse().unwrap(), tls: false });
        check(&headers, &Uri::from_static(uri), local, &names).map_err(|problem| {
            use axum::response::IntoResponse;
            problem.into_response().status()
        })
    }

    #[test]
    fn the_listener_loopback_and_configured_names_pass() {
        for host in [
            "localhost",
            "LOCALHOST:8080",
            "localhost.",
            "127.0.0.1:1",
            "127.8.9.10",
            "[::1]",
            "[::1]:8080",
            "[::ffff:127.0.0.1]",
            "10.1.2.3",
            "10.1.2.3:8080",
            "limits.example:99",
            "LIMITS.example.",
            "[2001:DB8::1]:8080",
        ] {
            assert_eq!(verdict(host, "/healthz"), Ok(()), "{host}");
        }
    }

    #[test]
    fn others_are_refused() {
        for host in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "10.1.2.4",
            "[2001:db8::2]",
            "0.0.0.0",
            "xlimits.example",
        ] {
            assert_eq!(verdict(host, "/healthz"), Err(StatusCode::FORBIDDEN), "{host}");
        }
        for host in ["", ":80", "localhost:", "localhost:x", "local host", "a@localhost", "[::1"] {
            assert_eq!(verdict(host, "/healthz"), Err(StatusCode::BAD_REQUEST), "{host}");
        }
    }

    #[test]
    fn an_absolute_target_has_to_pass_too() {
        assert_eq!(verdict("localhost", "http://localhost:1/healthz"), Ok(()));
        let refused = verdict("localhost", "http://evil.example/healthz");
        assert_eq!(refused, Err(StatusCode::FORBIDDEN));
    }

    #[test]
    fn there_is_exactly_one_host_header() {
        let uri = Uri::from_static("/healthz");
        let mut headers = HeaderMap::new();
        assert!(check(&headers, &uri, None, &[]).is_err());
        headers.append(HOST, HeaderValue::from_static("localhost"));
        assert!(check(&headers, &uri, None, &[]).is_ok());
        headers.append(HOST, HeaderValue::from_static("localhost"));
        assert!(check(&headers, &uri, None, &[]).is_err());
    }

    #[test]
    fn configured_names_carry_nothing_else() {
        for text in ["", "a:80", "http://a", "a/b", "*", "a b", "[::1"] {
            assert!(text.parse::<HostName>().is_err(), "{text}");
        }
    }
}
