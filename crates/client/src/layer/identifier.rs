//! Who a client is, in bytes: borrowed from the request where they are there, made where not.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The longest text of an address: six groups of IPv6 and an IPv4 address in it.
const ADDRESS_BYTES_MAX: usize = 45;

/// A client's identifier, without an allocation where that can be.
#[derive(Clone, Debug)]
pub struct Identifier<'a>(Form<'a>);

#[derive(Clone, Debug)]
enum Form<'a> {
    Borrowed(&'a [u8]),
    Address { len: u8, text: [u8; ADDRESS_BYTES_MAX] },
    Owned(Vec<u8>),
}

impl Identifier<'_> {
    /// Its bytes.
    #[inline]
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Form::Borrowed(bytes) => bytes,
            Form::Address { len, text } => &text[..usize::from(*len).min(ADDRESS_BYTES_MAX)],
            Form::Owned(bytes) => bytes,
        }
    }
}

impl<'a> From<&'a [u8]> for Identifier<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self(Form::Borrowed(bytes))
    }
}

impl<'a> From<&'a str> for Identifier<'a> {
    fn from(text: &'a str) -> Self {
        Self(Form::Borrowed(text.as_bytes()))
    }
}

impl From<String> for Identifier<'_> {
    fn from(text: String) -> Self {
        Self(Form::Owned(text.into_bytes()))
    }
}

impl From<Vec<u8>> for Identifier<'_> {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Form::Owned(bytes))
    }
}

/// The text of the address; an IPv4 address that comes as IPv6 is the same client.
impl From<IpAddr> for Identifier<'_> {
    #[inline]
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => v4(address),
            IpAddr::V6(address) => v6(address),
        }
    }
}

/// The text of the address, without the port.
impl From<SocketAddr> for Identifier<'_> {
    #[inline]
    fn from(address: SocketAddr) -> Self {
        address.ip().into()
    }
}

/// By hand: the formatter of the standard library costs as much as the whole decision.
#[inline]
fn v4(address: Ipv4Addr) -> Identifier<'static> {
    let mut text = [0; ADDRESS_BYTES_MAX];
    let mut at = 0;
    for (number, octet) in address.octets().into_iter().enumerate() {
        if number > 0 {
            text[at] = b'.';
            at += 1;
        }
        if octet >= 100 {
            text[at] = b'0' + octet / 100;
            at += 1;
        }
        if octet >= 10 {
            text[at] = b'0' + octet / 10 % 10;
            at += 1;
        }
        text[at] = b'0' + octet % 10;
        at += 1;
    }
    Identifier(Form::Address { len: at as u8, text })
}

fn v6(address: Ipv6Addr) -> Identifier<'static> {
    use std::io::Write as _;
    let mut text = [0; ADDRESS_BYTES_MAX];
    let mut left = &mut text[..];
    // There is room for any address.
    let _ = write!(left, "{address}");
    let len = ADDRESS_BYTES_MAX - left.len();
    Identifier(Form::Address { len: len as u8, text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(identifier: Identifier<'_>, expected: &str) {
        assert_eq!(identifier.as_bytes(), expected.as_bytes());
    }

    #[test]
    fn addresses_read_as_everywhere() {
        for octet in 0..=255 {
            let address = Ipv4Addr::new(octet, 0, 255 - octet, octet / 2);
            check(IpAddr::V4(address).into(), &address.to_string());
        }
        for text in ["::1", "2001:db8::7", "1111:2222:3333:4444:5555:6666:7777:8888"] {
            check(text.parse::<IpAddr>().unwrap().into(), text);
        }
        check("::ffff:192.0.2.1".parse::<IpAddr>().unwrap().into(), "192.0.2.1");
        check("[::1]:80".parse::<SocketAddr>().unwrap().into(), "::1");
    }

    #[test]
    fn bytes_stay_what_they_are() {
        check("me".into(), "me");
        check(Identifier::from(&b"me"[..]), "me");
        check(String::from("me").into(), "me");
        check(b"me".to_vec().into(), "me");
    }
}
