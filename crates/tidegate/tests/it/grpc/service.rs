//! Calls of the rate limit service: what is counted, and what is answered.

use tidegate_envoy::proto::ratelimit::rate_limit_response::Code::{Ok, OverLimit};
use tidegate_envoy::proto::ratelimit::rate_limit_response::RateLimit;

use super::{Client, DOORS, call};
use crate::program::Program;
use crate::{http, text};

/// Periods are long, so that no test depends on how fast it runs.
const RULES: &str = "
[[rule]]
name = 'user'
match = 'web user=*'
limit = '3 per 300d'
[[rule]]
name = 'all'
match = 'web all=*'
limit = '5 per day'
[[rule]]
name = 'quiet'
match = 'web quiet=*'
limit = '1 per 300d'
shadow = true
[[rule]]
name = 'jobs'
match = 'web job=*'
limit = '1 in flight'
[[rule]]
name = 'windows'
match = 'envoy *'
limit = '3 per 366d'
algorithm = 'fixed-window'
[[rule]]
name = 'free'
match = 'web free=*'
limit = 'none'
";

fn program(settings: &str) -> Program {
    let doors = DOORS.replace("[http]", &format!("{settings}\n[http]"));
    Program::serve(&[RULES, &doors].concat())
}

#[test]
fn each_descriptor_has_a_status_and_refusals_count_nothing() {
    let program = program("");
    let mut client = Client::new(&program);
    let both = || call("web", &["user=a", "all=x", "other=1", "free=1"]);
    let rest = [(Ok, 0), (Ok, 0)];
    let expect = |code, first: [_; 2]| (code, [&first[..], &rest[..]].concat());
    assert_eq!(client.ask(both()), expect(Ok, [(Ok, 2), (Ok, 4)]));
    assert_eq!(client.ask(both()), expect(Ok, [(Ok, 1), (Ok, 3)]));
    assert_eq!(client.ask(both()), expect(Ok, [(Ok, 0), (Ok, 2)]));
    for _ in 0..3 {
        assert_eq!(client.ask(both()), expect(OverLimit, [(OverLimit, 0), (Ok, 2)]));
    }
    let answer = client.call(both()).expect("an answer");
    let limit = |amount, unit, name: &str| {
        Some(RateLimit { requests_per_unit: amount, unit, name: name.to_owned() })
    };
    assert_eq!(answer.statuses[0].current_limit, limit(3, 0, "user"));
    assert_eq!(answer.statuses[1].current_limit, limit(5, 4, "all"));
    assert_eq!(answer.statuses[2].current_limit, None);
    assert!(answer.statuses[0].duration_until_reset.as_ref().is_some_and(|span| span.seconds > 0));
    // The same descriptor twice is one.
    let (code, statuses) = client.ask(call("web", &["all=y", "all=y"]));
    assert_eq!((code, statuses), (Ok, vec![(Ok, 4), (Ok, 4)]));
}

#[test]
fn a_descriptor_that_comes_twice_asks_for_the_larger_of_its_hits() {
    let program = program("");
    let mut client = Client::new(&program);
    let mut ask = |hits: [u64; 3]| {
        let mut request = call("web", &["all=t", "all=t", "all=u"]);
        for (descriptor, hits) in request.descriptors.iter_mut().zip(hits) {
            descriptor.hits_addend = Some(hits);
        }
        client.ask(request)
    };
    // Of the five a day nothing is taken, whichever of the two is too much.
    for hits in [[1, 50, 1], [50, 1, 1], [1, 6, 1], [0, 6, 1]] {
        let expected = vec![(OverLimit, 0), (OverLimit, 0), (Ok, 5)];
        assert_eq!(ask(hits), (OverLimit, expected), "{hits:?}");
    }
    assert_eq!(ask([2, 3, 1]), (Ok, vec![(Ok, 2), (Ok, 2), (Ok, 4)]));
    assert_eq!(ask([0, 0, 0]), (Ok, vec![(Ok, 2), (Ok, 2), (Ok, 4)]));
    assert_eq!(ask([0, 1, 0]), (Ok, vec![(Ok, 1), (Ok, 1), (Ok, 4)]));
}

#[test]
fn one_key_has_one_count_at_all_doors() {
    let program = program("");
    let mut client = Client::new(&program);
    assert_eq!(client.ask(call("web", &["user=a"])), (Ok, vec![(Ok, 2)]));
    let asker = text::Client::new(program.address("text"));
    assert_eq!(asker.ask("1 over_limit web user=a"), "1 ok N 2.0 3.0 25920000");
    let headers = "Host: localhost\r\nContent-Type: application/json\r\n";
    let body = r#"{"key":"web user=a"}"#;
    let reply = http::send_to(program.address("http"), "POST", "/v1/check", headers, body);
    assert_eq!(reply.json()["limits"][0]["remaining"], 0);
    assert_eq!(client.ask(call("web", &["user=a"])), (OverLimit, vec![(OverLimit, 0)]));
}

#[test]
fn hits_are_as_many_as_the_descriptor_or_the_call_says() {
    let program = program("");
    let mut client = Client::new(&program);
    let with = |hits: Option<u64>, of_call: u32| {
        let mut request = call("web", &["all=h"]);
        request.descriptors[0].hits_addend = hits;
        request.hits_addend = of_call;
        request
    };
    assert_eq!(client.ask(with(None, 2)), (Ok, vec![(Ok, 3)]));
    assert_eq!(client.ask(with(Some(1), 2)), (Ok, vec![(Ok, 2)]));
    assert_eq!(client.ask(with(Some(0), 2)), (Ok, vec![(Ok, 2)]));
    assert_eq!(client.ask(with(Some(3), 0)), (OverLimit, vec![(OverLimit, 0)]));
    // More than the limit ever allows is refused, too.
    let answer = client.call(with(Some(u64::MAX), 0)).expect("an answer");
    assert_eq!(answer.overall_code(), OverLimit);
    assert_eq!(answer.statuses[0].duration_until_reset.as_ref().map(|it| it.seconds), Some(86_400));
    let mut back = with(Some(2), 0);
    back.descriptors[0].is_negative_hits = true;
    assert_eq!(client.ask(back), (Ok, vec![(Ok, 0)]));
    assert_eq!(client.ask(with(Some(4), 0)), (Ok, vec![(Ok, 0)]));
    assert_eq!(client.ask(with(Some(0), 0)), (OverLimit, vec![(OverLimit, 0)]));
}

#[test]
fn counted_as_envoy_counts_refused_hits_are_written_down() {
    let program =
        program("counting = 'envoy'\ndomains = { web = { counting = 'all_or_nothing' } }");
    let mut client = Client::new(&program);
    let hits = |number: u64| {
        let mut request = call("envoy", &["tokens=a"]);
        request.descriptors[0].hits_addend = Some(number);
        request
    };
    assert_eq!(client.ask(hits(2)), (Ok, vec![(Ok, 1)]));
    assert_eq!(client.ask(hits(1)), (Ok, vec![(Ok, 0)]));
    assert_eq!(client.ask(hits(0)), (Ok, vec![(Ok, 0)]), "used up, and not over");
    assert_eq!(client.ask(hits(1)), (OverLimit, vec![(OverLimit, 0)]));
    assert_eq!(client.ask(hits(0)), (OverLimit, vec![(OverLimit, 0)]), "the refused hit counts");
    // Four hits are counted: to take one more, two must be given back.
    let mut back = hits(1);
    back.descriptors[0].is_negative_hits = true;
    assert_eq!(client.ask(back.clone()), (Ok, vec![(Ok, 0)]));
    assert_eq!(client.ask(hits(1)), (OverLimit, vec![(OverLimit, 0)]));
    back.descriptors[0].hits_addend = Some(2);
    assert_eq!(client.ask(back), (Ok, vec![(Ok, 0)]));
    assert_eq!(client.ask(hits(1)), (Ok, vec![(Ok, 0)]));
    // Twice in one call is two hits.
    assert_eq!(client.ask(call("envoy", &["twice=1", "twice=1"])).1, [(Ok, 2), (Ok, 1)]);
    // More than there ever is counts whole.
    let mut much = call("envoy", &["much=1"]);
    much.descriptors[0].hits_addend = Some(1_000);
    assert_eq!(client.ask(much), (OverLimit, vec![(OverLimit, 0)]));
    assert_eq!(client.ask(call("envoy", &["much=1"])), (OverLimit, vec![(OverLimit, 0)]));
}

#[test]
fn shadow_rules_refuse_nothing() {
    let program = program("");
    let mut client = Client::new(&program);
    for _ in 0..3 {
        assert_eq!(client.ask(call("web", &["quiet=a"])), (Ok, vec![(Ok, 0)]));
    }
}

#[test]
fn quotas_refuse_if_all_are_over() {
    for counting in ["all_or_nothing", "envoy"] {
        let program = program(&format!("quota = true\ncounting = '{counting}'"));
        let mut client = Client::new(&program);
        let both = || call("envoy", &["user=a", "all=x", "user=b"]);
        let mut first = call("envoy", &["user=a"]);
        first.descriptors[0].hits_addend = Some(3);
        assert_eq!(client.ask(first), (Ok, vec![(Ok, 0)]), "{counting}");
        // What is over stands in nobody's way, and the rest is counted.
        for left in [2, 1, 0] {
            let statuses = vec![(OverLimit, 0), (Ok, left), (Ok, left)];
            assert_eq!(client.ask(both()), (Ok, statuses), "{counting}");
        }
        assert_eq!(client.ask(both()), (OverLimit, vec![(OverLimit, 0); 3]), "{counting}");
        // What nothing limits is no quota, and more than there ever is no error.
        let mut much = call("envoy", &["user=a", "user=c"]);
        much.descriptors[0].hits_addend = Some(1_000);
        assert_eq!(client.ask(much), (Ok, vec![(OverLimit, 0), (Ok, 2)]), "{counting}");
        let free = call("web", &["other=1"]);
        assert_eq!(client.ask(free).0, Ok);
        let mut over = call("envoy", &["user=a"]);
        over.descriptors.extend(call("envoy", &["user=b"]).descriptors);
        assert_eq!(client.ask(over).0, OverLimit, "{counting}");
    }
}

#[test]
fn only_what_an_operator_has_set_up_is_an_error() {
    let program = program("");
    let mut client = Client::new(&program);
    let mut check = |request, code: tonic::Code, text: &str| {
        let status = client.call(request).expect_err("an error");
        assert_eq!((status.code(), status.message()), (code, text));
    };
    use tonic::Code::{InvalidArgument, Unknown};
    check(call("", &["a=b"]), Unknown, "rate limit domain must not be empty");
    check(call("web", &[]), Unknown, "rate limit descriptor list must not be empty");
    check(call("web", &["a=b"; 33]), InvalidArgument, "a call has at most 32 descriptors");
    let many = ["a=b"; 33].join(",");
    check(call("web", &[&many]), InvalidArgument, "a descriptor has at most 32 entries");
    let in_flight = "this key limits uses in flight: set counting = \"envoy\" for its domain, and \
                     let Envoy end each use with is_negative_hits and apply_on_stream_done";
    check(call("web", &["job=a"]), InvalidArgument, in_flight);
    // However long a value is, its descriptor has a count of its own.
    let long = "x".repeat(60 << 10);
    for end in ["a", "b"] {
        let request = || call("web", &[&format!("user={long}{end}")]);
        for left in (0..3).rev() {
            assert_eq!(client.ask(request()), (Ok, vec![(Ok, left)]));
        }
        assert_eq!(client.ask(request()), (OverLimit, vec![(OverLimit, 0)]));
    }
}
