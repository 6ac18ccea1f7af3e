//! Any bytes as a call of Envoy's rate limit service in JSON: an error, or a request that is the
//! same however much space is around it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_envoy::json::parse_request;

fuzz_target!(|bytes: &[u8]| {
    let Ok(request) = parse_request(bytes) else { return };
    let padded = [&b" \n"[..], bytes, &b"\t "[..]].concat();
    assert_eq!(parse_request(&padded).ok(), Some(request));
});
