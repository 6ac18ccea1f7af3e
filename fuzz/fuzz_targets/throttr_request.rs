//! Any bytes at the Throttr door: requests, the beginning of one, or the end of the connection.
//!
//! The first byte chooses the value size, the second how long values may be. What is read must be
//! written back to the same meaning, and a stream must mean the same wherever it is cut.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_wire::throttr::{
    Front, Request, RequestKind, TAKES_MAX, ValueSize, parse, request_bytes_max,
};

/// Where each request of a stream begins, how the stream ends, and what was read on the way.
fn read(bytes: &[u8], size: ValueSize, value_max: usize) -> (usize, Vec<RequestKind>) {
    let mut at = 0;
    let mut kinds = Vec::new();
    loop {
        match parse(&bytes[at..], size, value_max) {
            Front::Request { request, bytes: used } => {
                assert!(0 < used && used <= bytes.len() - at);
                assert!(used <= request_bytes_max(size, value_max));
                check(&request, used, size, value_max);
                kinds.push(request.kind());
                at += used;
            }
            Front::Incomplete => {
                assert!(bytes.len() - at < request_bytes_max(size, value_max));
                return (at, kinds);
            }
            Front::Broken(broken) => {
                assert!(!broken.reason().is_empty());
                return (at, kinds);
            }
        }
    }
}

fn check(request: &Request<'_>, used: usize, size: ValueSize, value_max: usize) {
    let mut again = Vec::new();
    request.encode(size, &mut again).expect("what was read can be written");
    // An unknown byte is not kept, so the bytes may differ, but neither length nor meaning.
    assert_eq!(again.len(), used);
    let front = parse(&again, size, value_max);
    assert_eq!(front, Front::Request { request: *request, bytes: used });
    match request {
        Request::Event { payload, .. } => match parse(payload, size, value_max) {
            Front::Request { request, bytes } => {
                assert!(request.kind() != RequestKind::Event && bytes == payload.len());
            }
            other => panic!("the payload of an EVENT is {other:?}"),
        },
        Request::ConsumeMany { takes } => {
            assert!(takes.len() <= TAKES_MAX && takes.iter().count() == takes.len());
        }
        _ => {}
    }
}

fuzz_target!(|input: &[u8]| {
    let [size, value_max, bytes @ ..] = input else { return };
    let size = ValueSize::ALL[usize::from(size % 4)];
    let value_max = usize::from(*value_max);
    let (used, kinds) = read(bytes, size, value_max);
    // Cut where the last byte says: the two halves hold the same requests as the whole.
    let cut = bytes.last().map_or(0, |&byte| usize::from(byte).min(bytes.len()));
    let (used_before, mut found) = read(&bytes[..cut], size, value_max);
    let (used_behind, rest) = read(&bytes[used_before..], size, value_max);
    found.extend(rest);
    assert_eq!((found, used_before + used_behind), (kinds, used));
});
