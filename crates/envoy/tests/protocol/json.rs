//! Requests and answers as proto3 JSON, as data.

use proptest::{collection::vec, prelude::*};
use prost_types::{Duration, ListValue, Struct, Value, value::Kind};
use tidegate_envoy::{
    json::{parse_request, write_response},
    proto::{
        core::HeaderValue,
        descriptor::{RateLimitDescriptor, rate_limit_descriptor},
        ratelimit::{RateLimitRequest, RateLimitResponse, rate_limit_response},
        strategy::RateLimitUnit,
    },
};

/// Two spellings of each request, the first as `protojson` writes it.
const SAME: [(&str, &str); 13] = [
    ("{}", r#" {"domain":null,"descriptors":null,"hitsAddend":null} "#),
    (r#"{"domain":"d"}"#, r#"{"domain":"\u0064","descriptors":[],"hits_addend":0}"#),
    (r#"{"hitsAddend":7}"#, r#"{"hits_addend":"7"}"#),
    (r#"{"hitsAddend":4294967295}"#, r#"{"hitsAddend":4294967295.0}"#),
    (r#"{"hitsAddend":1000}"#, r#"{"hitsAddend":1e3}"#),
    (r#"{"hitsAddend":1000}"#, r#"{"hitsAddend":"1e3"}"#),
    (
        r#"{"descriptors":[{"hitsAddend":"18446744073709551615"}]}"#,
        r#"{"descriptors":[{"hits_addend":18446744073709551615}]}"#,
    ),
    (r#"{"descriptors":[{}]}"#, r#"{"descriptors":[{"limit":null,"hitsAddend":null}]}"#),
    (
        r#"{"descriptors":[{"isNegativeHits":true}]}"#,
        r#"{"descriptors":[{"is_negative_hits":true}]}"#,
    ),
    (
        r#"{"descriptors":[{"entries":[{"key":"k"}]}]}"#,
        r#"{"descriptors":[{"entries":[{"key":"k","value":""}]}]}"#,
    ),
    (
        r#"{"descriptors":[{"limit":{"requestsPerUnit":42,"unit":"HOUR"}}]}"#,
        r#"{"descriptors":[{"limit":{"requests_per_unit":"42","unit":3}}]}"#,
    ),
    (
        r#"{"descriptors":[{"limit":{"unit":"UNKNOWN"}}]}"#,
        r#"{"descriptors":[{"limit":{"unit":null}}]}"#,
    ),
    (r#"{"descriptors":[{"limit":{"unit":99}}]}"#, r#"{"descriptors":[{"limit":{"unit":99.0}}]}"#),
];

const REFUSED: [&str; 32] = [
    "",
    "null",
    "[]",
    r#"["d",[],1]"#,
    "{",
    "{} {}",
    "{\"domain\":\"\u{1}\"}",
    r#"{"domain":1}"#,
    r#"{"domain":"\ud800"}"#,
    r#"{"domain":"a","domain":"b"}"#,
    r#"{"hitsAddend":1,"hits_addend":1}"#,
    r#"{"Domain":"d"}"#,
    r#"{"colour":null}"#,
    r#"{"hitsAddend":-1}"#,
    r#"{"hitsAddend":4294967296}"#,
    r#"{"hitsAddend":1.5}"#,
    r#"{"hitsAddend":1e400}"#,
    r#"{"hitsAddend":""}"#,
    r#"{"hitsAddend":" 7"}"#,
    r#"{"hitsAddend":"7a"}"#,
    r#"{"hitsAddend":true}"#,
    r#"{"hitsAddend":[1]}"#,
    r#"{"descriptors":{}}"#,
    r#"{"descriptors":[null]}"#,
    r#"{"descriptors":[[]]}"#,
    r#"{"descriptors":[{"hitsAddend":18446744073709551616}]}"#,
    r#"{"descriptors":[{"hitsAddend":{"value":1}}]}"#,
    r#"{"descriptors":[{"isNegativeHits":"true"}]}"#,
    r#"{"descriptors":[{"entries":[["k","v"]]}]}"#,
    r#"{"descriptors":[{"entries":[{"key":"k","unit":1}]}]}"#,
    r#"{"descriptors":[{"limit":{"unit":"WEEK"}}]}"#,
    r#"{"descriptors":[{"limit":{"unit":"hour"}}]}"#,
];

#[test]
fn spellings_of_a_request_are_the_same() {
    for (first, second) in SAME {
        let read = |text: &str| parse_request(text.as_bytes()).expect(text);
        assert_eq!(read(first), read(second), "{second}");
    }
}

#[test]
fn what_is_no_request_is_refused() {
    for text in REFUSED {
        assert!(parse_request(text.as_bytes()).is_err(), "{text}");
    }
    assert!(parse_request(b"{\"domain\":\"\xff\"}").is_err());
    // Entries are bytes on the wire only; JSON is text.
    assert!(parse_request(b"{\"descriptors\":[{\"entries\":[{\"key\":\"\xff\"}]}]}").is_err());
    assert!(parse_request(&[b'['; 100_000]).is_err());
    assert!(parse_request(&[b"{\"hitsAddend\":".as_slice(), &[b'['; 100_000]].concat()).is_err());
}

#[test]
fn every_field_of_a_request_is_read() {
    let text = r#"{"domain":"d","hitsAddend":2,"descriptors":[{"entries":[{"key":"k","value":"v"}],
        "limit":{"requestsPerUnit":5,"unit":"DAY"},"hitsAddend":3,"isNegativeHits":true}]}"#;
    let entry = rate_limit_descriptor::Entry { key: "k".into(), value: "v".into() };
    let limit = rate_limit_descriptor::RateLimitOverride {
        requests_per_unit: 5,
        unit: RateLimitUnit::Day.into(),
    };
    let descriptor = RateLimitDescriptor {
        entries: vec![entry],
        limit: Some(limit),
        hits_addend: Some(3),
        is_negative_hits: true,
    };
    let request =
        RateLimitRequest { domain: "d".into(), descriptors: vec![descriptor], hits_addend: 2 };
    assert_eq!(parse_request(text.as_bytes()).expect(text), request);
}

fn over(unit: i32, duration: Duration) -> rate_limit_response::DescriptorStatus {
    rate_limit_response::DescriptorStatus {
        code: 2,
        current_limit: Some(rate_limit_response::RateLimit {
            requests_per_unit: 1,
            unit,
            name: String::new(),
        }),
        limit_remaining: 0,
        duration_until_reset: Some(duration),
    }
}

#[test]
fn answers_leave_out_what_is_zero() {
    let duration = |seconds, nanos| Duration { seconds, nanos };
    let written = |status| {
        write_response(&RateLimitResponse {
            overall_code: 2,
            statuses: vec![status],
            ..Default::default()
        })
    };
    assert_eq!(write_response(&RateLimitResponse::default()), "{}");
    assert_eq!(
        written(over(2, duration(23, 0))),
        concat!(
            r#"{"overallCode":"OVER_LIMIT","statuses":[{"code":"OVER_LIMIT","#,
            r#""currentLimit":{"requestsPerUnit":1,"unit":"MINUTE"},"durationUntilReset":"23s"}]}"#
        )
    );
    assert_eq!(written(Default::default()), r#"{"overallCode":"OVER_LIMIT","statuses":[{}]}"#);
    for (unit, text) in [(7, r#""unit":"WEEK""#), (99, r#""unit":99"#)] {
        let answer = written(over(unit, duration(0, 0)));
        assert!(answer.contains(text), "{answer}");
    }
    let durations = [
        (0, 0, "0s"),
        (1, 500_000_000, "1.500s"),
        (0, 1_000, "0.000001s"),
        (3, 1, "3.000000001s"),
        (-1, -500_000_000, "-1.500s"),
    ];
    for (seconds, nanos, text) in durations {
        let answer = written(over(0, duration(seconds, nanos)));
        assert!(answer.contains(&format!(r#""durationUntilReset":"{text}""#)), "{answer}");
    }
}

fn value(kind: Kind) -> Value {
    Value { kind: Some(kind) }
}

#[test]
fn headers_body_and_metadata_are_written() {
    let header =
        |key: &str| HeaderValue { key: key.into(), value: "1".into(), ..Default::default() };
    let list = [Kind::BoolValue(true), Kind::NumberValue(5.0), Kind::NumberValue(0.5)]
        .into_iter()
        .chain([Kind::NumberValue(f64::NAN), Kind::NullValue(0), Kind::StringValue("s".into())]);
    let list = Kind::ListValue(ListValue { values: list.map(value).collect() });
    let response = RateLimitResponse {
        overall_code: 1,
        response_headers_to_add: vec![header("a")],
        request_headers_to_add: vec![header("b")],
        raw_body: "slow".into(),
        dynamic_metadata: Some(Struct { fields: [("list".into(), value(list))].into() }),
        ..Default::default()
    };
    assert_eq!(
        write_response(&response),
        concat!(
            r#"{"overallCode":"OK","responseHeadersToAdd":[{"key":"a","value":"1"}],"#,
            r#""requestHeadersToAdd":[{"key":"b","value":"1"}],"rawBody":"c2xvdw==","#,
            r#""dynamicMetadata":{"list":[true,5,0.5,null,null,"s"]}}"#
        )
    );
}

#[test]
fn deep_metadata_are_cut() {
    let mut data = Struct::default();
    for _ in 0..1000 {
        data = Struct { fields: [("a".into(), value(Kind::StructValue(data)))].into() };
    }
    let response = RateLimitResponse { dynamic_metadata: Some(data), ..Default::default() };
    let text = write_response(&response);
    assert_eq!(text.matches('a').count(), 65 + "dynamicMetadata".matches('a').count());
    assert!(text.contains(r#"{"a":null}"#));
}

proptest! {
    #[test]
    fn arbitrary_text_does_not_panic(bytes in vec(any::<u8>(), 0..100), text in ".{0,100}") {
        let _ = parse_request(&bytes);
        let _ = parse_request(text.as_bytes());
    }

    #[test]
    fn damaged_requests_do_not_panic(
        case in 0..SAME.len(), at in any::<prop::sample::Index>(), byte in any::<u8>(),
    ) {
        let mut text = SAME[case].0.as_bytes().to_vec();
        let at = at.index(text.len());
        text[at] = byte;
        let _ = parse_request(&text);
        let _ = parse_request(&text[..at]);
    }
}
