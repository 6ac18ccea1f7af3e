//! Statistics by the names of envoyproxy/ratelimit, and its configuration as it shows it.

use std::fs;

use tempfile::TempDir;
use tidegate_envoy::proto::descriptor::rate_limit_descriptor::RateLimitOverride;
use tidegate_envoy::proto::ratelimit::rate_limit_response::Code::OverLimit;

use super::{Client, DOORS, call};
use crate::engines::until;
use crate::http::{Reply, send_to};
use crate::program::Program;

/// Windows of a year, so that no test depends on how fast it runs or when.
const FILE: &str = "
domain: rl
descriptors:
  - key: plain
    rate_limit: { unit: year, requests_per_unit: 10 }
  - key: plain
    value: special
    rate_limit: { unit: year, requests_per_unit: 10 }
  - key: shown
    value_to_metric: true
    descriptors:
      - key: below
        rate_limit: { unit: year, requests_per_unit: 10 }
  - key: unspec
    detailed_metric: true
    rate_limit: { unit: year, requests_per_unit: 2 }
  - key: quiet
    shadow_mode: true
    rate_limit: { unit: year, requests_per_unit: 2 }
  - key: quota
    quota_mode: true
    rate_limit: { unit: year, requests_per_unit: 2 }
  - key: never
    rate_limit: { unit: year, requests_per_unit: 0 }
  - key: free
    rate_limit: { unlimited: true }
  - key: small
    rate_limit: { unit: year, requests_per_unit: 1, name: small }
  - key: large
    rate_limit: { unit: year, requests_per_unit: 9, replaces: [{ name: small }] }
";

fn program(settings: &str) -> (Program, TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("rl.yaml"), FILE).expect("a file");
    let table = format!("envoy_config = '{}'\n{settings}\n[http]", folder.path().display());
    let rule = "[[rule]]\nmatch = 'native *'\nlimit = '2 per 300d'\n";
    (Program::serve(&[rule, &DOORS.replace("[http]", &table)].concat()), folder)
}

fn administer(program: &Program, path: &str) -> Reply {
    send_to(program.address("admin"), "GET", path, "Host: localhost\r\n", "")
}

/// The figures of a name that are not zero, in one line.
fn figures(page: &str, name: &str) -> String {
    let prefix = format!("ratelimit.service.rate_limit.{name}.");
    let lines = page.lines().filter_map(|line| line.strip_prefix(&prefix));
    let lines = lines.filter(|line| !line.contains('.') && !line.ends_with(": 0"));
    lines.collect::<Vec<_>>().join(", ")
}

/// Descriptors, each with its hits.
type Calls = &'static [(&'static str, u64)];

/// Hits of descriptors one after the other, and what is then told of a name. They are facts of
/// envoyproxy/ratelimit: hits may be divided, 8 of 10 are not near, a call that is over is nowhere
/// within, and what is replaced or has no limit is not counted.
const FACTS: [(Calls, &str, &str); 13] = [
    (&[("plain=a", 8)], "rl.plain", "total_hits: 8, within_limit: 8"),
    (&[("plain=b", 1)], "rl.plain", "total_hits: 9, within_limit: 9"),
    (
        &[("plain=special", 7), ("plain=special", 2)],
        "rl.plain_special",
        "near_limit: 1, total_hits: 9, within_limit: 9",
    ),
    (
        &[("plain=special", 5), ("plain=special", 3)],
        "rl.plain_special",
        "near_limit: 2, over_limit: 7, total_hits: 17, within_limit: 9",
    ),
    (&[("shown=a:b,below=x", 1)], "rl.shown_a_b.below", "total_hits: 1, within_limit: 1"),
    (&[("shown=10.1.2.3,below=x", 1)], "rl.shown_10_1_2_3.below", "total_hits: 1, within_limit: 1"),
    (&[("quiet=a", 3)], "rl.quiet", "near_limit: 1, over_limit: 1, shadow_mode: 3, total_hits: 3"),
    (&[("quota=a", 3)], "rl.quota", "near_limit: 1, over_limit: 1, total_hits: 3"),
    (&[("never=a", 2)], "rl.never", "over_limit: 2, total_hits: 2"),
    (&[("free=a", 2)], "rl.free", ""),
    (&[("small=a", 0), ("nothing=a", 1), ("shown=a", 1)], "rl.small", ""),
    (&[("native=a", 1)], "rl.native", ""),
    (&[("unspec=a", 1), ("unspec=b", 1)], "rl.unspec_a", "total_hits: 1, within_limit: 1"),
];

#[test]
fn hits_are_told_as_envoyproxy_ratelimit_tells_them() {
    let (program, _folder) = program("erl_metrics = true");
    let mut client = Client::new(&program);
    for (calls, name, expected) in FACTS {
        for (descriptor, hits) in calls {
            let mut request = call("rl", &[descriptor]);
            request.descriptors[0].hits_addend = Some(*hits);
            client.call(request).expect("an answer");
        }
        let page = administer(&program, "/stats").body;
        assert_eq!(figures(&page, name), expected, "{calls:?}: {page}");
    }
    // What is replaced, comes along with a descriptor or is given back is not counted.
    client.ask(call("rl", &["small=a", "large=a"]));
    let mut request = call("rl", &["plain=over"]);
    request.descriptors[0].limit = Some(RateLimitOverride { requests_per_unit: 1, unit: 6 });
    client.ask(request);
    let mut request = call("rl", &["plain=a"]);
    request.descriptors[0].is_negative_hits = true;
    client.ask(request);
    client.ask(call("native", &["a=b"]));
    client.ask(call("un:known", &["a=b", "a=c"]));
    let mut request = call("un:known", &["a=b"]);
    request.descriptors[0].limit = Some(RateLimitOverride { requests_per_unit: 0, unit: 6 });
    client.ask(request);
    let page = administer(&program, "/stats").body;
    assert_eq!(figures(&page, "rl.small"), "");
    assert_eq!(figures(&page, "rl.large"), "total_hits: 1, within_limit: 1");
    assert_eq!(figures(&page, "rl.plain"), "total_hits: 9, within_limit: 9");
    assert_eq!(figures(&page, "un_known"), "domain_not_found: 3");
    assert!(!page.contains("native") && !page.contains("plain_over"), "{page}");
    for line in [
        "ratelimit.service.config_load_success: 1",
        "ratelimit.service.config_load_error: 0",
        "ratelimit.service.global_shadow_mode: 0",
        "ratelimit.service.rate_limit.rl.plain.over_limit_with_local_cache: 0",
    ] {
        assert!(page.lines().any(|told| told == line), "no {line} in {page}");
    }
    let lines: Vec<&str> = page.lines().collect();
    assert!(lines.is_sorted(), "{page}");
}

/// What the script `value-included-in-stats-key-when-unspecified` looks for.
#[test]
fn a_value_is_in_the_name_for_prometheus() {
    let (program, _folder) = program("erl_metrics = true\nshadow = true");
    let mut client = Client::new(&program);
    for _ in 0..3 {
        client.ask(call("rl", &["unspec=unspecified_value", "shown=a,below=b"]));
    }
    let page = send_to(program.address("http"), "GET", "/metrics", "Host: localhost\r\n", "").body;
    let value = |key: &str| {
        let line = page.lines().find(|line| {
            line.starts_with("ratelimit_service_rate_limit_over_limit") && line.contains(key)
        });
        line.and_then(|line| Some(line.split_once('}')?.1.trim().to_owned()))
    };
    assert_eq!(value("unspec_unspecified_value").as_deref(), Some("1"), "{page}");
    for line in [
        r#"ratelimit_service_rate_limit_total_hits{domain="rl",key1="unspec_unspecified_value"} 3"#,
        r#"ratelimit_service_rate_limit_within_limit{domain="rl",key1="shown_a",key2="below"} 3"#,
        "ratelimit_service_config_load_success 1",
        "ratelimit_service_global_shadow_mode 1",
    ] {
        assert!(page.lines().any(|told| told == line), "no {line} in {page}");
    }
    assert!(page.ends_with("# EOF\n"), "{page}");
}

#[test]
fn clients_make_no_more_names_than_there_may_be() {
    let (program, _folder) = program("erl_metrics = true");
    let mut client = Client::new(&program);
    let names: Vec<String> = (0..2_000).map(|at| format!("unspec=v{at}")).collect();
    for some in names.chunks(32) {
        client.ask(call("rl", &some.iter().map(String::as_str).collect::<Vec<_>>()));
    }
    client.ask(call("rl", &[&format!("unspec={}", "x".repeat(60 << 10)), "unspec=v7"]));
    let page = administer(&program, "/stats").body;
    let hits: Vec<&str> = page.lines().filter(|line| line.contains("total_hits")).collect();
    assert_eq!(hits.len(), 1_001);
    assert_eq!(figures(&page, "rl.unspec_v7"), "near_limit: 1, total_hits: 2, within_limit: 2");
    assert_eq!(figures(&page, "rl.unspec_v1000"), "");
    assert_eq!(figures(&page, "rl.other"), "total_hits: 1001, within_limit: 1001");
    for at in 0..1_100 {
        client.ask(call(&format!("unknown{at}"), &["a=b"]));
    }
    let page = administer(&program, "/stats").body;
    let unknown: Vec<&str> =
        page.lines().filter(|line| line.contains("domain_not_found")).collect();
    assert_eq!(unknown.len(), 1_001);
    assert!(unknown.iter().any(|line| line.ends_with("other.domain_not_found: 100")));
}

#[test]
fn what_is_not_set_up_is_not_there() {
    let program = Program::serve(DOORS);
    for (path, hint) in [("/stats", "erl_metrics"), ("/rlconfig", "envoy_config")] {
        let reply = administer(&program, path);
        assert_eq!(reply.status, 404, "{path}");
        assert!(reply.body.contains(hint), "{}", reply.body);
    }
    let (program, _folder) = self::program("");
    let mut client = Client::new(&program);
    assert_eq!(client.ask(call("rl", &["never=a"])).0, OverLimit);
    assert_eq!(administer(&program, "/stats").status, 404);
    assert!(!administer(&program, "/metrics").body.contains("ratelimit_service"));
}

#[test]
fn the_configuration_is_shown_as_it_is_in_force() {
    let (program, folder) = program("erl_metrics = true");
    let page = administer(&program, "/rlconfig").body;
    for line in [
        "rl.plain: unit=YEAR requests_per_unit=10, shadow_mode: false, quota_mode: false",
        "rl.shown.below: unit=YEAR requests_per_unit=10, shadow_mode: false, quota_mode: false",
        "rl.quiet: unit=YEAR requests_per_unit=2, shadow_mode: true, quota_mode: false",
    ] {
        assert!(page.lines().any(|told| told == line), "no {line} in {page}");
    }
    let mut client = Client::new(&program);
    client.ask(call("rl", &["plain=a"]));
    let other =
        "domain: new\ndescriptors:\n- key: k\n  rate_limit: {unit: year, requests_per_unit: 2}\n";
    fs::write(folder.path().join("rl.yaml"), other).expect("a file");
    until(|| administer(&program, "/rlconfig").body.starts_with("new.k: "));
    let page = administer(&program, "/stats").body;
    assert!(!page.contains("rl.plain"), "{page}");
    assert!(!page.contains("config_load_success: 1\n"), "{page}");
    // A file that is wrong is counted, and changes nothing.
    fs::write(folder.path().join("rl.yaml"), "domain: ''").expect("a file");
    until(|| !administer(&program, "/stats").body.contains("config_load_error: 0"));
    assert!(administer(&program, "/rlconfig").body.starts_with("new.k: "));
}
