//! The URL of a proxy's upstream, `http://127.0.0.1:3000`, read and checked once.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use hyper::Uri;
use hyper::http::uri::Authority;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// An upstream: a scheme, a host and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamUrl {
    tls: bool,
    authority: Authority,
}

impl UpstreamUrl {
    /// Whether the scheme is `https`.
    #[must_use]
    pub fn tls(&self) -> bool {
        self.tls
    }

    /// The host: a name, or an address without its brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        self.authority.host().trim_matches(['[', ']'])
    }

    /// The host, if it is an address.
    #[must_use]
    pub fn ip(&self) -> Option<IpAddr> {
        self.host().parse().ok()
    }

    /// The port, or the default one of the scheme.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.authority.port_u16().unwrap_or(if self.tls { 443 } else { 80 })
    }

    /// The host and, if one is written, the port.
    #[must_use]
    pub fn authority(&self) -> &Authority {
        &self.authority
    }
}

/// Says what is wrong with an upstream, then on a line of its own what would be right.
impl FromStr for UpstreamUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let remedy = "write http:// or https://, a host, and optionally a port: \
                      \"http://127.0.0.1:3000\"";
        let wrong = |what: &str| format!("\"{text}\" {what}\n{remedy}");
        let uri: Uri = text.parse().map_err(|_| wrong("is not the URL of an upstream"))?;
        let tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(wrong("does not begin with http:// or https://")),
        };
        let authority = uri.authority().ok_or_else(|| wrong("names no host"))?.clone();
        if authority.as_str().contains('@') {
            return Err(wrong("has a user name in it, which is not supported"));
        }
        let port = authority.as_str().rsplit_once(':').filter(|(_, port)| !port.contains(']'));
        if port.is_some() && authority.port_u16().is_none_or(|port| port == 0) {
            return Err(wrong("has an invalid port"));
        }
        if uri.path() != "/" || uri.query().is_some() {
            return Err(wrong("has a path, and requests have their own"));
        }
        Ok(Self { tls, authority })
    }
}

impl fmt::Display for UpstreamUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        write!(formatter, "{}://{}", if self.tls { "https" } else { "http" }, self.authority)
    }
}

impl<'de> Deserialize<'de> for UpstreamUrl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl Serialize for UpstreamUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstreams_are_read() {
        for (text, tls, host, port) in [
            ("http://127.0.0.1:3000", false, "127.0.0.1", 3000),
            ("http://127.0.0.1:3000/", false, "127.0.0.1", 3000),
            ("http://example.com", false, "example.com", 80),
            ("https://example.com", true, "example.com", 443),
            ("https://[::1]:8443", true, "::1", 8443),
            ("http://[::1]", false, "::1", 80),
        ] {
            let url: UpstreamUrl = text.parse().unwrap_or_else(|wrong| panic!("{wrong}"));
            assert_eq!((url.tls(), url.host(), url.port()), (tls, host, port), "{text}");
            assert_eq!(url.to_string().parse(), Ok(url), "{text}");
        }
        for text in [
            "",
            "localhost:3000",
            "127.0.0.1:3000",
            "ftp://a",
            "http://",
            "http://a:0",
            "http://a:99999",
            "http://a:x",
            "http://a/b",
            "http://a/?b",
            "http://user:word@a",
            "/a",
        ] {
            assert!(text.parse::<UpstreamUrl>().is_err(), "{text}");
        }
    }
}
