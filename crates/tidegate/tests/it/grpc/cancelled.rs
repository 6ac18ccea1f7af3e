//! Calls that an Envoy cancels, many at a time, because its own clients have left.

use prost::Message as _;
use tidegate_envoy::proto::ratelimit::rate_limit_response::Code;
use tidegate_envoy::proto::ratelimit::{RateLimitRequest, RateLimitResponse};

use super::{DOORS, call};
use crate::http2::{
    DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, RST_STREAM, Raw, frame, header_block,
};
use crate::program::Program;

const FIELDS: &str = ":method: POST\n:scheme: http\n:authority: tidegate\n\
    :path: /envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit\n\
    content-type: application/grpc\nte: trailers";
/// CANCEL, as a frame has it.
const CANCEL: [u8; 4] = 8u32.to_be_bytes();
/// As many as one write of an Envoy may have.
const CANCELLED: u32 = 1_000;

fn grpc_message(request: &RateLimitRequest) -> Vec<u8> {
    let bytes = request.encode_to_vec();
    let length = u32::try_from(bytes.len()).expect("short").to_be_bytes();
    [&[0], &length[..], &bytes].concat()
}

#[test]
fn calls_that_are_cancelled_at_once_end_no_other_call() {
    let rule = "[[rule]]\nmatch = 'web path=*'\nlimit = 'deny'\n";
    let program = Program::serve(&[rule, DOORS].concat());
    let mut envoy = Raw::connect(program.address("grpc"));
    let head = header_block(FIELDS);
    let mut burst = Vec::new();
    for number in 0..CANCELLED {
        let stream = 2 * number + 1;
        burst.extend(frame(HEADERS, END_HEADERS, stream, &head));
        burst.extend(frame(RST_STREAM, 0, stream, &CANCEL));
    }
    let last = 2 * CANCELLED + 1;
    burst.extend(frame(HEADERS, END_HEADERS, last, &head));
    burst.extend(frame(DATA, END_STREAM, last, &grpc_message(&call("web", &["path=x"]))));
    envoy.write(&burst);
    let answer = loop {
        let (kind, stream, payload) = envoy.read().expect("an open connection");
        assert_ne!(kind, GOAWAY, "the connection ends with all calls on it");
        if (kind, stream) == (DATA, last) {
            break RateLimitResponse::decode(&payload[5..]).expect("an answer");
        }
    };
    assert_eq!(answer.overall_code(), Code::OverLimit);
}
