//! What a status tells of its limit, whichever way descriptors are counted: the code, how long, and
//! who refused.

use std::fs;

use tidegate_envoy::proto::descriptor::rate_limit_descriptor::RateLimitOverride;
use tidegate_envoy::proto::ratelimit::rate_limit_response::Code::{Ok, OverLimit};
use tidegate_envoy::proto::ratelimit::{RateLimitRequest, RateLimitResponse};

use super::{Client, DOORS, call};
use crate::program::Program;

/// Periods are long, so that no test depends on how fast it runs.
const RULES: &str = "
[[rule]]
match = 'web two=*'
limit = ['2 per day', '2 per 366d']
[[rule]]
match = 'web few=*'
limit = '1 per 300d'
[[rule]]
match = 'web bucket=*'
limit = '3 per 300d burst 5'
[[rule]]
match = 'web denied=*'
limit = 'deny'
";

const FILE: &str = "
domain: rl
descriptors:
  - { key: never, rate_limit: { unit: year, requests_per_unit: 0 } }
  - { key: plain, rate_limit: { unit: year, requests_per_unit: 1 } }
  - { key: named, rate_limit: { unit: year, requests_per_unit: 1, name: a limit } }
  - { key: quota, quota_mode: true, rate_limit: { unit: year, requests_per_unit: 1, name: small } }
  - { key: more, quota_mode: true, rate_limit: { unit: year, requests_per_unit: 9, name: large } }
";

const COUNTINGS: [&str; 2] = ["all_or_nothing", "envoy"];

fn native(settings: &str) -> (Client, Program) {
    let doors = DOORS.replace("[http]", &format!("{settings}\n[http]"));
    let program = Program::serve(&[RULES, &doors].concat());
    (Client::new(&program), program)
}

fn hits(descriptor: &str, hits: u64) -> RateLimitRequest {
    let mut request = call("web", &[descriptor]);
    request.descriptors[0].hits_addend = Some(hits);
    request
}

fn limited(mut request: RateLimitRequest, amount: u32) -> RateLimitRequest {
    let limit = RateLimitOverride { requests_per_unit: amount, unit: 6 };
    request.descriptors[0].limit = Some(limit);
    request
}

#[test]
fn of_several_limits_that_refuse_the_longest_is_shown() {
    for counting in COUNTINGS {
        let (mut client, _program) = native(&format!("counting = '{counting}'"));
        assert_eq!(client.ask(hits("two=a", 2)), (Ok, vec![(Ok, 0)]));
        let days = |answer: RateLimitResponse| {
            let status = &answer.statuses[0];
            assert_eq!(answer.overall_code(), OverLimit);
            // That of 366 days has no unit.
            assert_eq!(status.current_limit.as_ref().map(|limit| limit.unit), Some(0));
            status.duration_until_reset.as_ref().map_or(0, |it| it.seconds) / 86_400
        };
        let one = client.call(hits("two=a", 1)).expect("an answer");
        assert!(days(one) > 100, "{counting}");
        let never = client.call(hits("two=a", 3)).expect("an answer");
        assert_eq!(days(never), 366, "{counting}");
    }
}

#[test]
fn what_is_given_back_is_never_over() {
    for counting in COUNTINGS {
        let (mut client, _program) = native(&format!("counting = '{counting}'"));
        assert_eq!(client.ask(hits("few=a", 1)), (Ok, vec![(Ok, 0)]));
        for (descriptor, number) in [("few=a", 0), ("denied=a", 0), ("denied=a", 2)] {
            let mut request = hits(descriptor, number);
            request.descriptors[0].is_negative_hits = true;
            assert_eq!(client.ask(request.clone()), (Ok, vec![(Ok, 0)]), "{counting}");
            assert_eq!(client.ask(limited(request, 0)), (Ok, vec![(Ok, 0)]), "{counting}");
        }
        // Nothing has been given back.
        assert_eq!(client.ask(hits("few=a", 1)), (OverLimit, vec![(OverLimit, 0)]), "{counting}");
    }
}

#[test]
fn a_look_as_envoy_counts_finds_over_what_is_beyond_its_limit() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("rl.yaml"), FILE).expect("a file");
    let settings = format!("counting = 'envoy'\nenvoy_config = '{}'", folder.path().display());
    let (mut client, _program) = native(&settings);
    // A full bucket is used up, and not over.
    assert_eq!(client.ask(hits("bucket=a", 5)), (Ok, vec![(Ok, 0)]));
    assert_eq!(client.ask(hits("bucket=a", 0)), (Ok, vec![(Ok, 0)]));
    // Where nothing is ever allowed, a look is over, too.
    let over = || (OverLimit, vec![(OverLimit, 0)]);
    assert_eq!(client.ask(hits("denied=a", 0)), over());
    let mut request = hits("never=a", 0);
    request.domain = "rl".to_owned();
    assert_eq!(client.ask(request), over());
    assert_eq!(client.ask(limited(hits("few=a", 0), 0)), over());
}

#[test]
fn who_refused_is_told_by_the_name_that_its_limit_has() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("rl.yaml"), FILE).expect("a file");
    let path = folder.path().display();
    for counting in COUNTINGS {
        let settings = format!("counting = '{counting}'\nenvoy_config = '{path}'\nmetadata = true");
        let (mut client, _program) = native(&settings);
        let mut refused_by = |request: RateLimitRequest| {
            let answer = client.call(request).expect("an answer");
            let fields = answer.dynamic_metadata.expect("metadata").fields;
            fields.get("refused_by").map(|value| format!("{:?}", value.kind))
        };
        let text = |name: &str| {
            Some(format!("{:?}", Some(prost_types::value::Kind::StringValue(name.to_owned()))))
        };
        let all = ["plain=a", "named=a", "quota=a", "more=a"];
        assert_eq!(refused_by(call("rl", &all)), None, "{counting}");
        for (descriptors, name) in [
            (&["plain=a"][..], "grpc:rl.plain"),
            (&["named=a"], "a limit"),
            (&["quota=a"], "small"),
            // A quota that is over does not refuse while another one is not.
            (&["quota=a", "named=a", "more=a"], "a limit"),
            (&["never=a"], "grpc:rl.never"),
        ] {
            assert_eq!(refused_by(call("rl", descriptors)), text(name), "{descriptors:?}");
        }
        assert_eq!(refused_by(call("rl", &["quota=a", "more=a"])), None, "{counting}");
        for amount in [0, 1] {
            let request = || limited(call("web", &["few=b"]), amount);
            let first = refused_by(request());
            let name = text("grpc:override/year");
            assert_eq!(first, if amount == 0 { name.clone() } else { None });
            assert_eq!(refused_by(request()), name, "{amount}");
        }
        assert_eq!(refused_by(call("web", &["denied=a"])), text("web denied=*"), "{counting}");
    }
}

#[test]
fn without_a_rule_a_limit_that_comes_along_is_ignored_and_the_default_decides() {
    for (default, expected) in
        [("[default]\nlimit = '1 per 300d'\n", [Some("default"); 2]), ("", [None, None])]
    {
        for counting in COUNTINGS {
            let settings = format!("counting = '{counting}'\n[http]");
            let doors = DOORS.replace("[http]", &settings);
            let program = Program::serve(&[default, &doors].concat());
            let mut client = Client::new(&program);
            let names = [9, 0].map(|amount| {
                let answer = client.call(limited(call("web", &["few=a"]), amount));
                let answer = answer.expect("an answer");
                let is_second_of_one = amount == 0 && !default.is_empty();
                let code = if is_second_of_one { OverLimit } else { Ok };
                assert_eq!(answer.overall_code(), code, "{counting}");
                answer.statuses[0].current_limit.as_ref().map(|limit| limit.name.clone())
            });
            assert_eq!(names.each_ref().map(Option::as_deref), expected, "{counting}");
        }
    }
}
