//! The codec against the protocol page: its own examples, byte for byte.

mod replies;
mod requests;

use super::*;

const SIZE: ValueSize = ValueSize::Bits16;

pub(super) fn bytes(hex: &str) -> Vec<u8> {
    hex.split_whitespace().map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}

#[track_caller]
fn request(hex: &str, request: Request<'_>) {
    let bytes = bytes(hex);
    let expected = Front::Request { request, bytes: bytes.len() };
    assert_eq!(parse(&bytes, SIZE, 100), expected);
    let mut written = Vec::new();
    request.encode(SIZE, &mut written).unwrap();
    assert_eq!(written, bytes);
}

#[test]
fn requests_of_the_page() {
    let (attribute, change) = (Some(Attribute::Quota), Some(UpdateChange::Decrease));
    let ttl = Ttl::new(60, Unit::Seconds);
    request("01 07 00 04 3c 00 03 61 62 63", Request::Insert { quota: 7, ttl, key: b"abc" });
    request("02 03 61 62 63", Request::Query { key: b"abc" });
    request(
        "03 00 02 07 00 03 61 62 63",
        Request::Update { attribute, change, value: 7, key: b"abc" },
    );
    let ttl = Ttl::new(30, Unit::Seconds);
    request(
        "05 04 1e 00 03 04 00 61 62 64 45 48 4c 4f",
        Request::Set { ttl, key: b"abd", value: b"EHLO" },
    );
    request("06 03 61 62 64", Request::Get { key: b"abd" });
}

#[test]
fn replies_of_the_page() {
    let mut out = Vec::new();
    reply::status(&mut out, true);
    reply::query(&mut out, SIZE, 7, Unit::Seconds, 59);
    reply::get(&mut out, SIZE, Unit::Seconds, 29, b"EHLO");
    assert_eq!(out, bytes("01  01 07 00 04 3b 00  01 04 1d 00 04 00 45 48 4c 4f"));
}
