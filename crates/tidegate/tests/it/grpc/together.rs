//! Calls that are counted all or nothing: what decides on the whole, and what each descriptor says.

use std::fs;

use tempfile::TempDir;
use tidegate_envoy::proto::descriptor::RateLimitDescriptor;
use tidegate_envoy::proto::descriptor::rate_limit_descriptor::RateLimitOverride;
use tidegate_envoy::proto::ratelimit::RateLimitRequest;
use tidegate_envoy::proto::ratelimit::rate_limit_response::Code::{Ok, OverLimit};

use super::{Client, DOORS, call, descriptor};
use crate::program::Program;

/// Periods are long, so that no test depends on how fast it runs.
const RULES: &str = "
[[rule]]
match = 'web small=*'
limit = '2 per 300d'
[[rule]]
match = 'web large=*'
limit = '9 per 300d'
[[rule]]
match = 'web shared=*'
limit = '4 per 300d'
shared = true
";

const FILE: &str = "
domain: rl
descriptors:
  - { key: one, quota_mode: true, rate_limit: { unit: year, requests_per_unit: 1 } }
  - { key: two, quota_mode: true, rate_limit: { unit: year, requests_per_unit: 2 } }
  - { key: free, quota_mode: true, rate_limit: { unlimited: true } }
  - { key: plain, rate_limit: { unit: year, requests_per_unit: 9 } }
";

fn program(settings: &str) -> (Client, Program) {
    let program = Program::serve(&[RULES, &DOORS.replace("[http]", settings)].concat());
    (Client::new(&program), program)
}

/// With settings before the next table.
fn native(settings: &str) -> (Client, Program) {
    program(&format!("{settings}\n[http]"))
}

/// By a folder of files.
fn configured() -> (Client, Program, TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("rl.yaml"), FILE).expect("a file");
    let folder_path = folder.path().display();
    let settings = format!("envoy_config = '{folder_path}'\ncounting = 'all_or_nothing'\n[http]");
    let (client, program) = program(&settings);
    (client, program, folder)
}

/// A call of descriptors that are written `key=value`, each with its hits behind a blank.
fn with_hits(domain: &str, descriptors: &[&str]) -> RateLimitRequest {
    let written = |text: &&str| -> RateLimitDescriptor {
        let (entries, hits) = text.split_once(' ').unwrap_or((text, ""));
        let (is_negative_hits, hits) = match hits.strip_prefix('-') {
            Some(hits) => (true, hits),
            None => (false, hits),
        };
        let hits_addend = (!hits.is_empty()).then(|| hits.parse().expect("a number"));
        RateLimitDescriptor { hits_addend, is_negative_hits, ..descriptor(entries) }
    };
    RateLimitRequest { descriptors: descriptors.iter().map(written).collect(), ..call(domain, &[]) }
}

/// Gives a descriptor of a call a limit of its own, in windows of a year.
fn limited(mut request: RateLimitRequest, at: usize, requests_per_unit: u32) -> RateLimitRequest {
    request.descriptors[at].limit = Some(RateLimitOverride { requests_per_unit, unit: 6 });
    request
}

#[test]
fn a_limit_of_nothing_refuses_the_call_and_nothing_is_counted() {
    let (mut client, _program) = native("");
    for hits in ["", " 0", " 7"] {
        let request = limited(with_hits("web", &[&format!("small=a{hits}"), "large=a"]), 0, 0);
        let expected = (OverLimit, vec![(OverLimit, 0), (Ok, 9)]);
        assert_eq!(client.ask(request.clone()), expected, "{hits}");
        assert_eq!(client.ask(request), expected, "{hits}");
    }
    // What is given back asks for nothing.
    let request = limited(with_hits("web", &["small=a -1", "large=a"]), 0, 0);
    assert_eq!(client.ask(request), (Ok, vec![(Ok, 0), (Ok, 8)]));
    // Where it refuses nothing, the others are counted.
    for settings in ["quota = true", "shadow = true"] {
        let (mut client, _program) = native(settings);
        for left in [8, 7] {
            let request = limited(call("web", &["small=a", "large=a"]), 0, 0);
            let expected = (Ok, vec![(OverLimit, 0), (Ok, left)]);
            assert_eq!(client.ask(request), expected, "{settings}");
        }
    }
}

#[test]
fn where_nothing_is_refused_what_is_over_keeps_nothing_from_being_counted() {
    let (mut client, _program) = native("shadow = true");
    for (small, left) in [((Ok, 1), 8), ((Ok, 0), 7), ((OverLimit, 0), 6), ((OverLimit, 0), 5)] {
        let request = call("web", &["small=a", "large=a"]);
        assert_eq!(client.ask(request), (Ok, vec![small, (Ok, left)]));
    }
}

#[test]
fn quotas_refuse_the_call_by_the_same_verdicts_that_are_told() {
    let (mut client, _program, _folder) = configured();
    let mut check = |descriptors: &[&str], expected: (_, Vec<_>)| {
        assert_eq!(client.ask(with_hits("rl", descriptors)), expected, "{descriptors:?}");
    };
    check(&["one=a"], (Ok, vec![(Ok, 0)]));
    // The only quota is over: nothing is counted.
    check(&["one=a", "plain=a"], (OverLimit, vec![(OverLimit, 0), (Ok, 9)]));
    // One that has no limit is not over.
    let free = (Ok, u32::MAX);
    check(&["one=a", "free=a", "plain=a"], (Ok, vec![(OverLimit, 0), free, (Ok, 8)]));
    // One that only looks is a quota, too, over or not.
    check(&["one=a", "two=a 0", "plain=a"], (Ok, vec![(OverLimit, 0), (Ok, 2), (Ok, 7)]));
    check(&["two=a 2"], (Ok, vec![(Ok, 0)]));
    let over = || (OverLimit, vec![(OverLimit, 0), (OverLimit, 0), (Ok, 7)]);
    check(&["one=a", "two=a 0", "plain=a"], over());
    check(&["one=a", "two=a", "plain=a"], over());
    // One that gives back is none.
    check(&["one=a", "two=a -1", "plain=a"], (OverLimit, vec![(OverLimit, 0), (Ok, 0), (Ok, 7)]));
    check(&["two=a"], (Ok, vec![(Ok, 0)]));
}

#[test]
fn hits_above_the_amount_refuse_for_a_period_and_others_are_judged_by_their_own() {
    let (mut client, _program) = native("");
    assert_eq!(client.ask(with_hits("web", &["small=a 2", "large=a 6"])).0, Ok);
    let period = 300 * 86_400;
    // The same whether something is left of the first or not.
    for first in ["small=a 3", "small=b 3"] {
        let answer = client.call(with_hits("web", &[first, "large=a 5"])).expect("an answer");
        let codes: Vec<_> = answer.statuses.iter().map(|status| status.code()).collect();
        assert_eq!(codes, [OverLimit, OverLimit], "{first}: three are left of the second");
        let until = answer.statuses[0].duration_until_reset.as_ref().map(|it| it.seconds);
        assert_eq!(until, Some(period), "{first}");
        let enough = with_hits("web", &[first, "large=a 3"]);
        assert_eq!(client.ask(enough), (OverLimit, vec![(OverLimit, 0), (Ok, 3)]), "{first}");
    }
}

#[test]
fn limits_that_come_for_one_count_are_judged_each() {
    let call = |amounts: [u32; 2]| {
        let request = call("web", &["small=a", "small=a", "large=a"]);
        limited(limited(request, 0, amounts[0]), 1, amounts[1])
    };
    for is_turned in [false, true] {
        let turned = |mut statuses: [_; 2]| {
            if is_turned {
                statuses.reverse();
            }
            statuses
        };
        let expect =
            |code, statuses, large| (code, [&turned(statuses)[..], &[(Ok, large)]].concat());
        // The smaller refuses the call.
        let (mut client, _program) = native("");
        let mut ask = || client.ask(call(if is_turned { [2, 5] } else { [5, 2] }));
        assert_eq!(ask(), expect(Ok, [(Ok, 4), (Ok, 1)], 8));
        assert_eq!(ask(), expect(Ok, [(Ok, 3), (Ok, 0)], 7));
        for _ in 0..2 {
            assert_eq!(ask(), expect(OverLimit, [(Ok, 3), (OverLimit, 0)], 7));
        }
        // The larger goes on counting.
        for settings in ["quota = true", "shadow = true"] {
            let (mut client, _program) = native(settings);
            let mut ask = || client.ask(call(if is_turned { [2, 3] } else { [3, 2] }));
            assert_eq!(ask(), expect(Ok, [(Ok, 2), (Ok, 1)], 8), "{settings}");
            assert_eq!(ask(), expect(Ok, [(Ok, 1), (Ok, 0)], 7), "{settings}");
            assert_eq!(ask(), expect(Ok, [(Ok, 0), (OverLimit, 0)], 6), "{settings}");
            assert_eq!(ask(), expect(Ok, [(OverLimit, 0), (OverLimit, 0)], 5), "{settings}");
        }
    }
}

#[test]
fn descriptors_of_a_shared_count_are_one_use() {
    let (mut client, _program) = native("");
    let mut ask = |descriptors: &[&str]| client.ask(with_hits("web", descriptors));
    assert_eq!(ask(&["shared=a 0", "shared=b 1"]), (Ok, vec![(Ok, 3), (Ok, 3)]));
    assert_eq!(ask(&["shared=c 1", "shared=d 2"]), (Ok, vec![(Ok, 1), (Ok, 1)]));
    let over = vec![(OverLimit, 0), (OverLimit, 0)];
    assert_eq!(ask(&["shared=a 1", "shared=e 2"]), (OverLimit, over));
    assert_eq!(ask(&["shared=e"]), (Ok, vec![(Ok, 0)]));
}
