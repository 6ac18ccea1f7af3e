//! Whatever a client of Envoy chooses, its call is decided and counted.

use tidegate_envoy::proto::descriptor::RateLimitDescriptor;
use tidegate_envoy::proto::descriptor::rate_limit_descriptor::{Entry, RateLimitOverride};
use tidegate_envoy::proto::ratelimit::RateLimitRequest;
use tidegate_envoy::proto::ratelimit::rate_limit_response::Code::{Ok, OverLimit};

use super::{Client, DOORS, call};
use crate::program::Program;

/// Periods are long, so that no test depends on how fast it runs.
const RULES: &str = "
[[rule]]
match = 'web *'
limit = '3 per 366d'
algorithm = 'fixed-window'
";

fn program(counting: &str) -> (Client, Program) {
    let settings = format!("counting = '{counting}'\nmetadata = true\nheaders = true\n[http]");
    let program = Program::serve(&[RULES, &DOORS.replace("[http]", &settings)].concat());
    (Client::new(&program), program)
}

/// A call of one descriptor many times, which has one entry many times.
fn repeated(value: &[u8], entries: usize, descriptors: usize) -> RateLimitRequest {
    let entry = Entry { key: b"user"[..].to_vec().into(), value: value.to_vec().into() };
    let descriptor = RateLimitDescriptor { entries: vec![entry; entries], ..Default::default() };
    RateLimitRequest { descriptors: vec![descriptor; descriptors], ..call("web", &[]) }
}

#[test]
fn any_value_has_a_count() {
    let values: [&[u8]; 9] = [
        b"",
        b" ",
        b"\0\n\r\x7f",
        b"a=b c=d%20",
        "\u{fffd}\u{202e}".as_bytes(),
        b"\xff\xfe\xc3",
        &[0xff; 60 << 10],
        &[0; 60 << 10],
        &[b'*'; 1024],
    ];
    for (counting, uses) in [("all_or_nothing", 1), ("envoy", 2)] {
        let (mut client, _program) = program(counting);
        for value in values {
            let shown = String::from_utf8_lossy(&value[..value.len().min(9)]);
            let mut codes = Vec::new();
            for _ in 0..4 {
                codes.push(client.ask(repeated(value, 1, uses)).0);
            }
            // Of twice two hits the second call is over; they are three and one.
            let passed = codes.iter().filter(|code| **code == Ok).count();
            assert_eq!(passed, 3 / uses, "{counting} {shown:?}: {codes:?}");
        }
        // As many as there may be of both.
        let long = vec![b'l'; 2 << 10];
        for (value, entries, descriptors) in [(&long[..], 32, 32), (b"m", 32, 32), (b"n", 1, 32)] {
            let answer = client.call(repeated(value, entries, descriptors)).expect("an answer");
            assert_eq!(answer.statuses.len(), descriptors);
            let over = answer.statuses.iter().filter(|it| it.code() == OverLimit).count();
            assert_eq!(over, if counting == "envoy" { 29 } else { 0 }, "{counting} {entries}");
        }
        // No entry at all.
        assert_eq!(client.ask(repeated(b"", 0, 1)).1, [(Ok, 0)], "no rule is for the domain alone");
    }
}

#[test]
fn any_number_of_hits_is_judged() {
    for counting in ["all_or_nothing", "envoy"] {
        let (mut client, _program) = program(counting);
        for (at, hits) in [4, 1 << 32, (1 << 53) + 1, u64::MAX].into_iter().enumerate() {
            for limit in [None, Some(3), Some(0), Some(u32::MAX)] {
                let descriptor = format!("user={at}");
                let mut request = call("web", &[&descriptor, &descriptor]);
                request.descriptors[0].hits_addend = Some(hits);
                request.descriptors[0].limit =
                    limit.map(|requests_per_unit| RateLimitOverride { requests_per_unit, unit: 6 });
                let (code, statuses) = client.ask(request.clone());
                let fits = limit == Some(u32::MAX) && hits == 4;
                let expected = if fits { Ok } else { OverLimit };
                assert_eq!(statuses[0].0, expected, "{counting} {hits} {limit:?}");
                assert!(fits || code == OverLimit);
                request.descriptors[0].is_negative_hits = true;
                assert_eq!(client.ask(request).1[0].0, Ok, "{counting} {hits} {limit:?}");
            }
        }
    }
}
