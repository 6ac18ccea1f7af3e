//! Calls whose messages cannot be read: each ends, and is counted by its reason.

use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper::body::Bytes;
use tonic::body::Body;
use tonic::transport::Endpoint;
use tonic::{Code, Status};
use tower::{Service as _, ServiceExt as _};

use super::series::metrics;
use super::{Client, DOORS};
use crate::program::Program;

const LIMITS: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const QUOTAS: &str =
    "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas";

/// A message that says of itself how long it is.
fn message(length: usize, bytes: &[u8]) -> Bytes {
    let length = u32::try_from(length).expect("a length").to_be_bytes();
    [&[0], &length[..], bytes].concat().into()
}

/// Sends a call to its end. Returns its code.
fn send(program: &Program, path: &str, message: Bytes) -> Option<Code> {
    let endpoint = Endpoint::from_shared(format!("http://{}", program.address("grpc")));
    let Client { runtime, .. } = Client::new(program);
    let request = Request::post(path)
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Body::new(Full::new(message)))
        .expect("a request");
    runtime.block_on(async {
        let mut channel = endpoint.expect("an address").connect().await.expect("a connection");
        let answer = channel.ready().await.expect("it is open").call(request);
        let (head, body) = answer.await.expect("an answer").into_parts();
        let body = body.collect().await.expect("a whole answer");
        let status = Status::from_header_map(&head.headers);
        let status = status.or_else(|| body.trailers().and_then(Status::from_header_map));
        status.map(|status| status.code())
    })
}

#[test]
fn what_cannot_be_read_is_counted_by_its_reason() {
    let program = Program::serve(DOORS);
    let too_long = || message((4 << 20) + 1, b"");
    let domain = || message(3, b"\x0a\x01\xff");
    for (wrong, code) in [
        (too_long(), Code::OutOfRange),
        (domain(), Code::Internal),
        (message(4, &[0xff; 4]), Code::Internal),
        (message(9, b"\x0a"), Code::Internal),
    ] {
        assert_eq!(send(&program, LIMITS, wrong), Some(code));
    }
    let nowhere = || message(0, b"");
    for (wrong, code) in
        [(too_long(), Code::OutOfRange), (domain(), Code::Internal), (nowhere(), Code::Unknown)]
    {
        assert_eq!(send(&program, QUOTAS, wrong), Some(code));
    }
    let page = metrics(&program);
    for (reason, times) in [("message_too_long", 2), ("message", 4), ("no_domain", 1)] {
        let line = format!("tidegate_bad_input_total{{door=\"grpc\",reason=\"{reason}\"}} {times}");
        assert!(page.lines().any(|told| told == line), "no {line} in {page}");
    }
}
