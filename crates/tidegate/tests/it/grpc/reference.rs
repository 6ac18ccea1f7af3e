//! What envoyproxy/ratelimit's own integration tests say, as facts: its basic configuration in both
//! ways to count, files that come and go, shared thresholds, metadata. Its windows of minutes and
//! hours are windows of a year here, so that no test depends on when it runs.

use std::fs;

use prost_types::value::Kind;
use tempfile::TempDir;
use tidegate_envoy::proto::ratelimit::rate_limit_response::Code::{Ok, OverLimit};
use tidegate_envoy::proto::ratelimit::rate_limit_response::{DescriptorStatus, RateLimit};
use tonic::transport::Endpoint;

use super::{Client, DOORS, call};
use crate::engines::until;
use crate::program::Program;

const SECOND: i32 = 1;
const YEAR: i32 = 6;

/// Domains with keys, and how many requests each may have in a year.
const DOMAINS: [(&str, &str); 3] = [
    ("another", "key2: 20, key3: 10, key4: 20"),
    ("basic", "key1: 50"),
    ("quotas", "one: 1, two: 2"),
];

/// A file of a domain.
fn yaml(domain: &str, keys: &str, unit: &str) -> String {
    let limit = |key: &str| {
        let (key, amount) = key.split_once(": ").expect("a key and its amount");
        format!("- key: {key}\n  rate_limit: {{unit: {unit}, requests_per_unit: {amount}}}\n")
    };
    let descriptors: String = keys.split(", ").map(limit).collect();
    format!("domain: {domain}\ndescriptors:\n{descriptors}")
}

fn folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (domain, keys) in DOMAINS {
        let unit = if domain == "basic" { "second" } else { "year" };
        let path = folder.path().join(format!("{domain}.yaml"));
        fs::write(path, yaml(domain, keys, unit)).expect("a file");
    }
    folder
}

fn program(folder: &TempDir, settings: &str) -> Program {
    let table = format!("envoy_config = '{}'\n{settings}\n[http]", folder.path().display());
    Program::serve(&DOORS.replace("[http]", &table))
}

fn seconds(status: &DescriptorStatus) -> i64 {
    status.duration_until_reset.as_ref().expect("a duration").seconds
}

#[test]
fn the_basic_configuration_counts_in_both_ways() {
    let folder = folder();
    for counting in ["envoy", "all_or_nothing"] {
        let program = program(&folder, &format!("counting = '{counting}'"));
        let mut client = Client::new(&program);
        // An unknown domain: the code and nothing else.
        let answer = client.call(call("foo", &["hello=world"])).expect("an answer");
        let bare = DescriptorStatus { code: Ok.into(), ..Default::default() };
        assert_eq!((answer.overall_code(), answer.statuses), (Ok, vec![bare]));
        let answer = client.call(call("basic", &["key1=foo"])).expect("an answer");
        let limit = RateLimit { requests_per_unit: 50, unit: SECOND, name: String::new() };
        let status = &answer.statuses[0];
        assert_eq!((status.code(), status.limit_remaining), (Ok, 49));
        assert_eq!((status.current_limit.as_ref(), seconds(status)), (Some(&limit), 1));
        for asked in 1..=25 {
            let (code, left) = if asked > 20 { (OverLimit, 0) } else { (Ok, 20 - asked) };
            assert_eq!(client.ask(call("another", &["key2=a"])), (code, vec![(code, left)]));
        }
        for asked in 1..=15 {
            let (code, left) = if asked > 10 { (OverLimit, 0) } else { (Ok, 10 - asked) };
            // What refuses for one descriptor counts for the other only there.
            let counted = if counting == "envoy" { asked } else { asked.min(10) };
            let statuses = vec![(Ok, 20 - counted), (code, left)];
            let both = call("another", &["key2=b", "key3=b"]);
            assert_eq!(client.ask(both), (code, statuses), "{counting} {asked}");
        }
        // Its duration falls while time passes.
        let mut ask = || {
            let answer = client.call(call("another", &["key4=falls"])).expect("an answer");
            seconds(&answer.statuses[0])
        };
        let first = ask();
        until(|| ask() < first);
    }
}

#[test]
fn many_at_once_have_what_there_is() {
    let folder = folder();
    let program = program(&folder, "");
    let endpoint = Endpoint::from_shared(format!("http://{}", program.address("grpc")));
    let endpoint = endpoint.expect("an address");
    let check = |descriptors: &[&str], calls: usize, allowed: usize| {
        let ask = || Client::of(&endpoint).ask(call("another", descriptors)).0;
        let codes: Vec<_> = std::thread::scope(|scope| {
            let asked: Vec<_> = (0..calls).map(|_| scope.spawn(ask)).collect();
            asked.into_iter().map(|one| one.join().expect("an answer")).collect()
        });
        assert_eq!(codes.iter().filter(|code| **code == Ok).count(), allowed, "{descriptors:?}");
    };
    check(&["key2=a"], 25, 20);
    check(&["key2=b", "key3=b"], 15, 10);
}

#[test]
fn files_that_come_and_go_are_noticed() {
    let folder = folder();
    let program = program(&folder, "");
    let mut client = Client::new(&program);
    let mut limit = |descriptor: &str| {
        let answer = client.call(call("reload", &[descriptor])).expect("an answer");
        assert_eq!(answer.overall_code(), Ok);
        answer.statuses[0].current_limit.clone()
    };
    assert_eq!(limit("block=foo"), None);
    let path = folder.path().join("reload.yaml");
    fs::write(&path, yaml("reload", "key1: 50, block: 1000000", "second")).expect("a file");
    until(|| limit("block=foo").is_some());
    let shown = RateLimit { requests_per_unit: 50, unit: SECOND, name: String::new() };
    assert_eq!(limit("key1=foo"), Some(shown));
    fs::remove_file(&path).expect("it was there");
    until(|| limit("block=foo").is_none());
}

#[test]
fn a_shared_threshold_is_one_for_all_values() {
    let text = "
domain: share-threshold-test
descriptors:
- {key: files, value: files/*, share_threshold: true,
   rate_limit: &ten {unit: year, requests_per_unit: 10}}
- {key: files_no_share, value: files_no_share/*, rate_limit: *ten}
";
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("share.yaml"), text).expect("a file");
    let program = program(&folder, "");
    let mut client = Client::new(&program);
    let mut ask = |descriptor: &str| {
        let answer = client.call(call("share-threshold-test", &[descriptor])).expect("an answer");
        let status = answer.statuses[0].clone();
        let limit = status.current_limit.as_ref().expect("a limit");
        assert_eq!((limit.requests_per_unit, limit.unit), (10, YEAR));
        (status.code(), status.limit_remaining)
    };
    for left in (0..10).rev() {
        assert_eq!(ask("files=files/a.pdf"), (Ok, left));
    }
    assert_eq!(ask("files=files/b.csv"), (OverLimit, 0));
    for value in 0..10 {
        assert_eq!(ask(&format!("files_no_share=files_no_share/{value}")), (Ok, 9));
    }
}

#[test]
fn answers_carry_the_metadata_of_the_first_rule_that_is_not_over() {
    let text = "
domain: d
descriptors:
- {key: bare, rate_limit: &m {unit: year, requests_per_unit: 1}}
- {key: first, rate_limit: *m, metadata: {name: service_1, more: {of: [1, true, ~]}}}
- {key: second, rate_limit: {<<: *m, requests_per_unit: 3}, metadata: {name: service_2}}
";
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("d.yaml"), text).expect("a file");
    let program = program(&folder, "metadata = true");
    let mut client = Client::new(&program);
    let mut carried = |descriptors: &[&str]| {
        let answer = client.call(call("d", descriptors)).expect("an answer");
        let fields = answer.dynamic_metadata.expect("metadata").fields;
        match fields.get("metadata").and_then(|value| value.kind.clone()) {
            Some(Kind::StructValue(fields)) => Some(fields.fields),
            other => {
                assert_eq!(other, None);
                None
            }
        }
    };
    assert_eq!(carried(&["bare=1"]), None);
    let all = ["bare=2", "first=1", "second=1"];
    let fields = carried(&all).expect("metadata");
    let text = |text: &str| Some(Kind::StringValue(text.to_owned()));
    assert_eq!((fields.len(), &fields["name"].kind), (2, &text("service_1")));
    let Some(Kind::StructValue(more)) = &fields["more"].kind else { panic!("{fields:?}") };
    let Some(Kind::ListValue(of)) = &more.fields["of"].kind else { panic!("{more:?}") };
    let kinds: Vec<_> = of.values.iter().map(|value| value.kind.clone()).collect();
    let expected = [Kind::NumberValue(1.0), Kind::BoolValue(true), Kind::NullValue(0)];
    assert_eq!(kinds, expected.map(Some));
    // The first one is over now.
    assert_eq!(carried(&all).expect("metadata")["name"].kind, text("service_2"));
    assert_eq!(carried(&["first=1"]), None);
}
