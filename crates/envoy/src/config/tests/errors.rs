//! The texts of errors: those that envoyproxy/ratelimit's tests look for, and our own.

use super::{error_of, load};
use crate::config::source::{DescriptorNode, DomainNode, RateLimitNode};
use crate::config::{Options, load_nodes};

fn check(text: &str, expected: &str) {
    assert_eq!(error_of(text), format!("test.yaml: {expected}"), "{text}");
}

#[test]
fn texts_are_those_of_the_reference() {
    check("descriptors: [{key: a}]", "config file cannot have empty domain");
    check("", "config file cannot have empty domain");
    check("domain: ''", "config file cannot have empty domain");
    check("{domain: d, descriptors: [{value: v}]}", "descriptor has empty key");
    check(
        "{domain: d, descriptors: [{key: k, value: v}, {key: k}, {key: k, value: v}]}",
        "duplicate descriptor composite key 'd.k_v'",
    );
    check(
        "{domain: d, descriptors: [{key: k, descriptors: [{key: a_b}, {key: a, value: b}]}]}",
        "duplicate descriptor composite key 'd.k.a_b'",
    );
    let limit =
        |limit: &str| format!("{{domain: d, descriptors: [{{key: k, rate_limit: {limit}}}]}}");
    check(&limit("{unit: foo, requests_per_unit: 5}"), "invalid rate limit unit 'foo'");
    check(&limit("{unit: unknown}"), "invalid rate limit unit 'unknown'");
    check(&limit("{requests_per_unit: 5}"), "invalid rate limit unit ''");
    check(
        &limit("{unlimited: true, unit: day}"),
        "should not specify rate limit unit when unlimited",
    );
    check(&limit("{unit: day, replaces: [{name: ''}]}"), "should not have an empty replaces entry");
    check(
        &limit("{unit: day, name: n, replaces: [{name: n}]}"),
        "replaces should not contain name of same descriptor",
    );
    check(&limit("{unit: day, requestsperunit: 5}"), "config error, unknown key 'requestsperunit'");
    check("{domain: d, descriptors: [{ratelimit: 1}]}", "config error, unknown key 'ratelimit'");
    check(
        "{domain: d, descriptors: [{key: k, share_threshold: true}]}",
        "share_threshold can only be used with wildcard values (containing '*'), but found key 'k'",
    );
}

#[test]
fn keys_and_lists_have_types() {
    check("{domain: d, 0.25: d}", "config error, key is not of type string: 0.25");
    check("{domain: d, 0x10: d}", "config error, key is not of type string: 16");
    check("{domain: d, yes: d}", "config error, key is not of type string: true");
    check("{domain: d, ~: d}", "config error, key is not of type string: <nil>");
    check("{domain: d, '0.25': d}", "config error, unknown key '0.25'");
    check("{domain: d, <<: {x: 1}}", "config error, unknown key 'x'");
    let list = "config error, yaml file contains list of type other than map: ";
    check("{domain: d, descriptors: [a, b]}", &format!("{list}a"));
    check("{domain: d, descriptors: [[a, 0b11, ~]]}", &format!("{list}[a 3 <nil>]"));
    check("{domain: d, descriptors: [{key: k, value: 1.5}]}", "error checking config");
    check("{domain: d, value: 18446744073709551615}", "error checking config");
}

#[test]
fn wrong_types_and_wrong_yaml_are_told_with_their_line() {
    let loading = "error loading config file: yaml: line";
    check("\n[a]", &format!("{loading} 2: the file is not a map"));
    check("domain: {key: k}", &format!("{loading} 1: domain is not a text"));
    check("domain: d\ndescriptors: k", &format!("{loading} 2: descriptors is not a list"));
    let field = |field: &str| format!("domain: d\ndescriptors:\n- key: k\n  {field}");
    check(&field("shadow_mode: 1"), &format!("{loading} 4: shadow_mode is not true or false"));
    check(&field("rate_limit: 1"), &format!("{loading} 4: rate_limit is not a map"));
    check(
        &field("rate_limit: {unit: day, requests_per_unit: ten}"),
        &format!("{loading} 4: requests_per_unit is not a whole number"),
    );
    check(
        &field("rate_limit: {unit: day, requests_per_unit: -1}"),
        &format!("{loading} 4: requests_per_unit is not from 0 to 4294967295"),
    );
    for broken in ["domain: [", "a: b: c", "- *x", "\"", "domain: d\n\tkey: k"] {
        let error = error_of(broken);
        assert!(error.starts_with(&format!("test.yaml: {loading} ")), "{broken}: {error}");
    }
}

#[test]
fn limits_of_our_own_are_explained() {
    let limit =
        |limit: &str| format!("{{domain: d, descriptors: [{{key: k, rate_limit: {limit}}}]}}");
    let starts = |text: String, beginning: &str| {
        let error = error_of(&text);
        assert!(error.starts_with(&format!("test.yaml: {beginning}")), "{error}");
    };
    starts(limit("{limit: 5 per}"), "invalid limit '5 per': ");
    starts(limit("{limit: 5/s burst 9}"), "invalid limit '5/s burst 9': `burst` has no meaning");
    starts(limit("{limit: 5/s, unit: day}"), "invalid limit '5/s': write either this or unit");
    starts(limit("{unit: day, algorithm: foo}"), "invalid limit 'foo': ");
    starts(
        limit("{unit: day, requests_per_unit: 2000000, algorithm: sliding-log}"),
        "invalid limit '2000000 per 86400s': `sliding-log` would have to remember",
    );
    check("{domain: d, limit: 5/s}", "'limit' is only valid in rate_limit");
    check(
        "{domain: d, descriptors: [{key: k, algorithm: gcra}]}",
        "'algorithm' is only valid in rate_limit",
    );
}

#[test]
fn files_load_all_or_none() {
    let one = "{domain: d, descriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}}]}";
    let two = "{domain: d, descriptors: [{key: l, rate_limit: {unit: day, requests_per_unit: 2}}]}";
    let merge = Options { merge_domains: true };
    let error = load(&[("a", one), ("b", two)], Options::default()).unwrap_err();
    assert_eq!(error.to_string(), "b: duplicate domain 'd' in config file");
    let both = load(&[("a", one), ("b", two)], merge).unwrap();
    assert_eq!(super::find(&both, "d", "k=v"), "1 DAY [d k=v]");
    assert_eq!(super::find(&both, "d", "l=v"), "2 DAY [d l=v]");
    assert_eq!(both.domains().collect::<Vec<_>>(), ["d"]);
    let error = load(&[("a", one), ("b", one)], merge).unwrap_err();
    assert_eq!(error.to_string(), "b: duplicate descriptor composite key 'd.k'");
    // All files are read before one is loaded.
    let error = load(&[("a", one), ("b", one), ("c", "x: y")], Options::default()).unwrap_err();
    assert_eq!(error.to_string(), "c: config error, unknown key 'x'");
    assert!(load(&[], Options::default()).unwrap().is_empty());
}

#[test]
fn messages_are_checked_as_files_are() {
    let rate = RateLimitNode { unit: "UNKNOWN".into(), ..RateLimitNode::default() };
    let leaf = DescriptorNode { key: "k".into(), rate_limit: Some(rate), ..Default::default() };
    let node = DomainNode { domain: "d".into(), descriptors: vec![leaf] };
    let error = load_nodes(&[("res".into(), node)], Options::default()).unwrap_err();
    assert_eq!(error.to_string(), "res: invalid rate limit unit 'UNKNOWN'");
}
