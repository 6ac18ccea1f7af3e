//! What hostile clients say at the gRPC door: calls, right and wrong, and what only HTTP/2 allows:
//! streams without an end, floods of small frames, lengths that are never sent, answers that are
//! never taken.

use super::Target;
use super::http2::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, FRAME_BYTES_MAX, HEADERS, PING, PREFACE,
    RST_STREAM, SETTINGS, WINDOW_UPDATE, frame, greeting, streams,
};
use crate::server::Doors;

const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const HEALTH_CHECK: &str = "/grpc.health.v1.Health/Check";
const HEALTH_WATCH: &str = "/grpc.health.v1.Health/Watch";
const REFLECTION: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
const QUOTAS: &str =
    "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas";
const PATHS: [&str; 6] =
    [SHOULD_RATE_LIMIT, QUOTAS, HEALTH_CHECK, HEALTH_WATCH, REFLECTION, "/nobody.Service/Method"];

/// As many streams as the door allows one connection, and more.
const STREAMS: u32 = 1_000;
const TOO_MANY_STREAMS: u32 = 3_000;
/// Quota streams of one client: more than it may have.
const QUOTA_STREAMS: u32 = 400;
/// Frames of a flood.
const FLOOD: usize = 5_000;
/// The longest message that the door takes.
const MESSAGE_BYTES_MAX: u32 = 4 << 20;
/// The setting that says how many bytes of each answer are taken.
const INITIAL_WINDOW_SIZE: u16 = 4;

pub(super) fn add(doors: &Doors, targets: &mut Vec<Target>) {
    for address in &doors.grpc {
        targets.push(Target { address: address.clone(), scripts: scripts(), burdens: burdens() });
    }
}

/// Whole connections with a call or two.
fn scripts() -> Vec<Vec<u8>> {
    let mut scripts: Vec<Vec<u8>> = Vec::new();
    for path in PATHS {
        let asked = message(&question("full", "hostile"));
        scripts.push([greeting(&[]), call(1, path, &asked), call(3, path, &asked)].concat());
    }
    let bodies = [
        message(&question("hostile", &"v".repeat(100))),
        message(&question("", "")),
        message(&[]),
        message(&[0xff; 30]),
        message(&question("full", "a").repeat(40)),
        message(&question("full", "a")).repeat(3),
        prefix(0, u32::MAX),
        prefix(0, MESSAGE_BYTES_MAX),
        prefix(1, 10),
        prefix(9, 10),
        vec![0, 0],
        Vec::new(),
    ];
    for body in bodies {
        scripts.push([greeting(&[]), call(1, SHOULD_RATE_LIMIT, &body)].concat());
    }
    for body in quota_bodies() {
        scripts.push([greeting(&[]), open(1, QUOTAS), data(1, &body)].concat());
        scripts.push([greeting(&[]), open(1, QUOTAS), data(1, &body[..body.len() / 2])].concat());
    }
    scripts.extend([
        greeting(&[]),
        [greeting(&[]), open(1, SHOULD_RATE_LIMIT)].concat(),
        [greeting(&[]), open(2, SHOULD_RATE_LIMIT)].concat(),
        [greeting(&[]), open(1, SHOULD_RATE_LIMIT), frame(RST_STREAM, 0, 1, &[0; 4])].concat(),
        [greeting(&[]), frame(DATA, END_STREAM, 1, b"of no stream")].concat(),
        [greeting(&[]), frame(WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0xff, 0xff])].concat(),
        [greeting(&[]), frame(0xee, 0xff, 7, &[7; 70])].concat(),
        [greeting(&[]), frame(PING, 0, 0, &[1; 8])].concat(),
        [greeting(&[(INITIAL_WINDOW_SIZE, u32::MAX)])].concat(),
        [greeting(&[]), frame(HEADERS, END_HEADERS, 1, &[0x82, 0x86, 0x84])].concat(),
        [greeting(&[]), frame(HEADERS, END_HEADERS, 1, &[0xff; 40])].concat(),
        [PREFACE, &[0xff, 0xff, 0xff, DATA, 0, 0, 0, 0, 1][..]].concat(),
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
        format!("POST {SHOULD_RATE_LIMIT} HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello")
            .into_bytes(),
    ]);
    scripts
}

/// Connections that ask for much, or wait.
pub(crate) fn burdens() -> Vec<Vec<u8>> {
    let asked = message(&question("full", "hostile"));
    let on_each = |count, said: &dyn Fn(u32) -> Vec<u8>| -> Vec<u8> {
        greeting(&[]).into_iter().chain(streams(count).flat_map(said)).collect()
    };
    let begun = |stream, body: &[u8]| {
        [open(stream, SHOULD_RATE_LIMIT), frame(DATA, 0, stream, body)].concat()
    };
    let whole = |stream| call(stream, SHOULD_RATE_LIMIT, &asked);
    let no_window: Vec<u8> = [greeting(&[(INITIAL_WINDOW_SIZE, 0)]), Vec::new()].concat();
    let burdens = vec![
        PREFACE[..10].to_vec(),
        PREFACE.to_vec(),
        [greeting(&[]), frame(HEADERS, END_HEADERS, 1, &[0; 100])[..50].to_vec()].concat(),
        on_each(STREAMS, &|stream| open(stream, SHOULD_RATE_LIMIT)),
        on_each(TOO_MANY_STREAMS, &|stream| open(stream, SHOULD_RATE_LIMIT)),
        on_each(STREAMS, &|stream| open(stream, REFLECTION)),
        on_each(STREAMS, &|stream| call(stream, HEALTH_WATCH, &message(&[]))),
        // Everything but the end of the stream; part of a message; nothing of a long one.
        on_each(STREAMS, &|stream| begun(stream, &asked)),
        on_each(STREAMS, &|stream| begun(stream, &asked[..asked.len() - 1])),
        on_each(STREAMS, &|stream| begun(stream, &prefix(0, MESSAGE_BYTES_MAX))),
        on_each(STREAMS, &|stream| begun(stream, &prefix(0, u32::MAX))),
        // Reset as soon as it was asked.
        on_each(TOO_MANY_STREAMS, &|stream| {
            [whole(stream), frame(RST_STREAM, 0, stream, &[0, 0, 0, 8])].concat()
        }),
        on_each(TOO_MANY_STREAMS, &|stream| {
            [open(stream, REFLECTION), frame(RST_STREAM, 0, stream, &[0, 0, 0, 8])].concat()
        }),
        // Answers that are not taken.
        on_each(TOO_MANY_STREAMS, &whole),
        no_window.into_iter().chain(streams(STREAMS).flat_map(whole)).collect(),
        [greeting(&[]), frame(PING, 0, 0, &[1; 8]).repeat(FLOOD)].concat(),
        [greeting(&[]), frame(SETTINGS, 0, 0, &[]).repeat(FLOOD)].concat(),
        [greeting(&[]), open(1, SHOULD_RATE_LIMIT), frame(DATA, 0, 1, &[]).repeat(FLOOD)].concat(),
        headers_without_end(20, 1),
        headers_without_end(FRAME_BYTES_MAX, 100),
        headers_without_end(0, FLOOD),
        on_each(STREAMS, &|stream| large_head(stream, 12_000)),
    ];
    [burdens, quota_burdens()].concat()
}

/// What clients say on quota streams: reports of one bucket, of many, of long ones and of none.
fn quota_bodies() -> Vec<Vec<u8>> {
    let bucket = |number| usage(&format!("hostile {number}"));
    let endless = [report("full", &[bucket(0)]), usage("no end").repeat(50)].concat();
    vec![
        message(&report("full", &[bucket(0)])),
        message(&report("full", &[bucket(0)])).repeat(20),
        message(&report("full", &(0..500).map(bucket).collect::<Vec<_>>())),
        message(&report("", &[usage("")])),
        message(&report("full", &[field(2, b"")])),
        message(&report("full", &[field(2, &[0xff; 9])])),
        message(&report("full", &[usage(&"v".repeat(5_000)), bucket(1)])),
        message(&report("full", &[usage(&"v".repeat(70_000)), bucket(2)])),
        // A report of four gigabytes.
        [prefix(0, u32::MAX), endless].concat(),
    ]
}

/// Streams that ask for much, and whose answers nobody reads.
fn quota_burdens() -> Vec<Vec<u8>> {
    let no_window = greeting(&[(INITIAL_WINDOW_SIZE, 0)]);
    let on_each = |greeting: &[u8], count, said: &dyn Fn(u32) -> Vec<u8>| -> Vec<u8> {
        let on = |stream| [open(stream, QUOTAS), data(stream, &said(stream))].concat();
        greeting.iter().copied().chain(streams(count).flat_map(on)).collect()
    };
    let buckets = |stream: u32, bytes: usize, count: usize| {
        let id = |number| usage(&format!("{stream} {number} {:bytes$}", ""));
        message(&report("full", &(0..count).map(id).collect::<Vec<_>>()))
    };
    let plain = greeting(&[]);
    vec![
        on_each(&plain, QUOTA_STREAMS, &|stream| buckets(stream, 1, 1)),
        on_each(&plain, QUOTA_STREAMS, &|stream| buckets(stream, 1, 1)[..9].to_vec()),
        on_each(&no_window, 6, &|stream| buckets(stream, 1, 3_000)),
        on_each(&no_window, 2, &|stream| buckets(stream, 4_000, 100)),
        on_each(&no_window, 2, &|stream| buckets(stream, 60_000, 6)),
        on_each(&plain, 2, &|stream| buckets(stream, 60_000, 6)),
    ]
}

/// What a report says of one bucket: that a request was denied.
fn usage(value: &str) -> Vec<u8> {
    let entry = [field(1, b"user"), field(2, value.as_bytes())].concat();
    field(2, &[field(1, &field(1, &entry)), vec![4 << 3, 1]].concat())
}

/// A message of the quota service.
fn report(domain: &str, usages: &[Vec<u8>]) -> Vec<u8> {
    [field(1, domain.as_bytes()), usages.concat()].concat()
}

/// Data in frames of the usual size.
fn data(stream: u32, bytes: &[u8]) -> Vec<u8> {
    bytes.chunks(FRAME_BYTES_MAX).flat_map(|part| frame(DATA, 0, stream, part)).collect()
}

/// The bytes of a message of the rate limit service with one descriptor.
pub(crate) fn question(domain: &str, value: &str) -> Vec<u8> {
    let entry = [field(1, b"key"), field(2, value.as_bytes())].concat();
    [field(1, domain.as_bytes()), field(2, &field(1, &entry))].concat()
}

/// A field of a message.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut field = vec![number << 3 | 2];
    let mut length = bytes.len();
    while length >= 128 {
        field.push(length as u8 | 128);
        length >>= 7;
    }
    field.push(length as u8);
    [&field, bytes].concat()
}

/// A message as gRPC frames it.
fn message(bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).expect("a short message");
    [prefix(0, length), bytes.to_vec()].concat()
}

/// What comes before a message of this length.
pub(crate) fn prefix(compressed: u8, length: u32) -> Vec<u8> {
    [&[compressed][..], &length.to_be_bytes()].concat()
}

/// A call with this body.
fn call(stream: u32, path: &str, body: &[u8]) -> Vec<u8> {
    [open(stream, path), frame(DATA, END_STREAM, stream, body)].concat()
}

/// The beginning of a call of the rate limit service.
pub(crate) fn open_rate_limit(stream: u32) -> Vec<u8> {
    open(stream, SHOULD_RATE_LIMIT)
}

/// The beginning of a call.
fn open(stream: u32, path: &str) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, &head(path))
}

/// POST, http and four literals without Huffman codes.
fn head(path: &str) -> Vec<u8> {
    let literal = |text: &str| {
        let length = u8::try_from(text.len()).expect("a short value");
        [&[length], text.as_bytes()].concat()
    };
    [
        vec![0x83, 0x86, 0x04],
        literal(path),
        vec![0x01],
        literal("localhost"),
        // The name of `content-type` has the number 31 in the static table.
        vec![0x0f, 0x10],
        literal("application/grpc"),
        vec![0x00],
        literal("te"),
        literal("trailers"),
    ]
    .concat()
}

/// A header of so many bytes: a name of one byte and a value whose length takes three.
fn large_header(bytes: usize) -> Vec<u8> {
    let rest = bytes - 127;
    let length = [0x7f, 0x80 | (rest & 0x7f) as u8, (rest >> 7) as u8];
    [&[0x00, 1, b'x'][..], &length, &vec![b'v'; bytes]].concat()
}

/// The beginning of a call with a large header.
fn large_head(stream: u32, bytes: usize) -> Vec<u8> {
    let head = [head(SHOULD_RATE_LIMIT), large_header(bytes)].concat();
    frame(HEADERS, END_HEADERS, stream, &head)
}

/// Headers that go on in frame after frame.
fn headers_without_end(bytes: usize, count: usize) -> Vec<u8> {
    let more = frame(CONTINUATION, 0, 1, &vec![0; bytes]).repeat(count);
    [greeting(&[]), frame(HEADERS, 0, 1, &head(SHOULD_RATE_LIMIT)), more].concat()
}
