//! envoyproxy/ratelimit's own configuration, as its users have it.

use std::fs;
use std::path::Path;

use tempfile::TempDir;
use tidegate_envoy::proto::descriptor::rate_limit_descriptor::RateLimitOverride;
use tidegate_envoy::proto::ratelimit::rate_limit_response::Code::{Ok, OverLimit};

use super::{Client, DOORS, call};
use crate::engines::until;
use crate::program::{Program, tidegate};

/// Windows of a year, so that no test depends on how fast it runs or when.
const BASIC: &str = "
domain: basic
descriptors:
  - key: key1
    rate_limit: { unit: year, requests_per_unit: 3 }
  - key: key1
    value: big
    rate_limit: { unit: YEAR, requests_per_unit: 5, name: big }
  - key: quiet
    shadow_mode: true
    rate_limit: { unit: year, requests_per_unit: 1 }
  - key: free
    rate_limit: { unlimited: true }
  - key: never
    rate_limit: { unit: year, requests_per_unit: 0 }
  - key: small
    rate_limit: { unit: year, requests_per_unit: 1, name: small }
  - key: large
    rate_limit: { unit: year, requests_per_unit: 9, replaces: [{ name: small }] }
  - key: one
    quota_mode: true
    rate_limit: { unit: year, requests_per_unit: 1 }
  - key: two
    quota_mode: true
    rate_limit: { unit: year, requests_per_unit: 2 }
  - key: path
    value: /shared/*
    share_threshold: true
    rate_limit: { unit: year, requests_per_unit: 3 }
  - key: outer
    descriptors:
      - key: inner
        rate_limit: { unit: year, requests_per_unit: 2 }
";

fn program(folder: &Path, settings: &str) -> Program {
    let table = format!("envoy_config = '{}'\n{settings}\n[http]", folder.display());
    Program::serve(&DOORS.replace("[http]", &table))
}

fn folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("basic.yaml"), BASIC).expect("a file");
    folder
}

#[test]
fn a_folder_is_taken_as_it_is() {
    let folder = folder();
    let program = program(folder.path(), "");
    let mut client = Client::new(&program);
    let mut check = |descriptors: &[&str], expected: &[_]| {
        let (code, statuses) = client.ask(call("basic", descriptors));
        let is_over = expected.iter().any(|(code, _)| *code == OverLimit);
        let expected_code = if is_over { OverLimit } else { Ok };
        assert_eq!((code, statuses.as_slice()), (expected_code, expected), "{descriptors:?}");
    };
    for left in (0..3).rev() {
        check(&["key1=a"], &[(Ok, left)]);
    }
    check(&["key1=a"], &[(OverLimit, 0)]);
    check(&["key1=b"], &[(Ok, 2)]);
    check(&["key1=big"], &[(Ok, 4)]);
    check(&["unknown=1"], &[(Ok, 0)]);
    check(&["outer=1"], &[(Ok, 0)]);
    check(&["outer=1,inner=1"], &[(Ok, 1)]);
    check(&["outer=1,inner=1,deeper=1"], &[(Ok, 0)]);
    check(&["free=1"], &[(Ok, u32::MAX)]);
    check(&["never=1"], &[(OverLimit, 0)]);
    check(&["quiet=1"], &[(Ok, 0)]);
    check(&["quiet=1"], &[(Ok, 0)]);
    check(&["small=1", "large=1"], &[(Ok, 0), (Ok, 8)]);
    check(&["small=1"], &[(Ok, 0)]);
    check(&["path=/shared/a"], &[(Ok, 2)]);
    check(&["path=/shared/b"], &[(Ok, 1)]);
    // Refused hits count, as there.
    check(&["key1=c", "never=1"], &[(Ok, 2), (OverLimit, 0)]);
    check(&["key1=c"], &[(Ok, 1)]);
}

#[test]
fn a_call_is_over_its_quotas_if_all_of_them_are() {
    let folder = folder();
    for settings in ["", "counting = 'all_or_nothing'"] {
        let program = program(folder.path(), settings);
        let mut client = Client::new(&program);
        let both = || call("basic", &["one=1", "two=1"]);
        assert_eq!(client.ask(both()), (Ok, vec![(Ok, 0), (Ok, 1)]));
        assert_eq!(client.ask(both()), (Ok, vec![(OverLimit, 0), (Ok, 0)]));
        assert_eq!(client.ask(both()), (OverLimit, vec![(OverLimit, 0), (OverLimit, 0)]));
    }
}

#[test]
fn a_limit_that_comes_with_a_descriptor_replaces_its_rule() {
    let folder = folder();
    let program = Program::serve(
        &DOORS
            .replace("[http]", &format!("envoy_config = '{}'\n[http]", folder.path().display()))
            .replacen('\n', "\n[[rule]]\nmatch = 'native *'\nlimit = '1 per 300d'\n", 1),
    );
    let mut client = Client::new(&program);
    for domain in ["basic", "native"] {
        let with = |amount, unit| {
            let mut request = call(domain, &["key1=given"]);
            request.descriptors[0].limit =
                Some(RateLimitOverride { requests_per_unit: amount, unit });
            request
        };
        let year = 6;
        assert_eq!(client.ask(with(2, year)), (Ok, vec![(Ok, 1)]), "{domain}");
        assert_eq!(client.ask(with(2, year)), (Ok, vec![(Ok, 0)]));
        assert_eq!(client.ask(with(2, year)), (OverLimit, vec![(OverLimit, 0)]));
        assert_eq!(client.ask(with(0, year)), (OverLimit, vec![(OverLimit, 0)]));
        let answer = client.call(with(9, year)).expect("an answer");
        let shown = answer.statuses[0].current_limit.clone().expect("a limit");
        assert_eq!((shown.requests_per_unit, shown.unit), (9, year));
        // The rule's own count is another.
        assert_eq!(client.ask(call(domain, &["key1=given"])).0, Ok);
        assert_eq!(
            client.call(with(1, 9)).expect_err("no unit").code(),
            tonic::Code::InvalidArgument
        );
    }
    // Where no rule is, there is nothing to replace.
    let mut request = call("other", &["key1=given"]);
    request.descriptors[0].limit = Some(RateLimitOverride { requests_per_unit: 0, unit: 6 });
    assert_eq!(client.ask(request), (Ok, vec![(Ok, 0)]));
}

#[test]
fn a_changed_folder_is_noticed_and_a_wrong_one_changes_nothing() {
    let folder = folder();
    let mut program = program(folder.path(), "");
    let mut client = Client::new(&program);
    assert_eq!(client.ask(call("basic", &["key1=a"])), (Ok, vec![(Ok, 2)]));
    let other = folder.path().join("other.yml");
    fs::write(&other, "domain: basic\ndescriptors: []\n").expect("a file");
    let line = program.wait_for_line(|line| line.contains("duplicate domain"));
    assert!(line.contains("other.yml: duplicate domain 'basic' in config file"), "{line}");
    assert_eq!(client.ask(call("basic", &["key1=a"])), (Ok, vec![(Ok, 1)]));
    let text =
        "domain: other\ndescriptors:\n- key: k\n  rate_limit: {unit: year, requests_per_unit: 2}\n";
    fs::write(&other, text).expect("a file");
    until(|| client.ask(call("other", &["k=poll"])).1[0].1 > 0);
    // The counts of rules that stay live on.
    assert_eq!(client.ask(call("basic", &["key1=a"])), (Ok, vec![(Ok, 0)]));
    fs::remove_file(&other).expect("it was there");
    until(|| client.ask(call("other", &["k=again"])).1[0] == (Ok, 0));
}

#[test]
fn a_folder_becomes_native_rules() {
    let folder = folder();
    let import = |folder: &Path| {
        tidegate(["config", "import", "ratelimit", folder.to_str().expect("a path")])
    };
    // Quotas and replaced limits have no native form.
    let output = import(folder.path());
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("quota_mode") && said.contains("replaces"), "{said}");
    let plain =
        "domain: d\ndescriptors:\n- key: user\n  rate_limit: {unit: year, requests_per_unit: 2}\n";
    fs::write(folder.path().join("basic.yaml"), plain).expect("a file");
    let output = import(folder.path());
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let rules = String::from_utf8(output.stdout).expect("text");
    // It is a whole file, and goes with a table for the door.
    let file = folder.path().join("tidegate.toml");
    fs::write(&file, &rules).expect("a file");
    let checked = tidegate(["config", "check", file.to_str().expect("a path")]);
    assert_eq!(checked.status.code(), Some(0), "{}", String::from_utf8_lossy(&checked.stderr));
    let program = Program::serve(&[&rules, DOORS].concat());
    let mut client = Client::new(&program);
    assert_eq!(client.ask(call("d", &["user=a"])), (Ok, vec![(Ok, 1)]));
    assert_eq!(client.ask(call("d", &["user=a,path=b"])), (Ok, vec![(Ok, 0)]));
    assert_eq!(client.ask(call("d", &["user=a"])), (Ok, vec![(Ok, 0)]));
    assert_eq!(client.ask(call("d", &["user=a"])), (OverLimit, vec![(OverLimit, 0)]));
    // Counted as there: twice is two hits, and what is refused does not keep the others.
    assert_eq!(client.ask(call("d", &["user=b", "user=b"])).1, [(Ok, 1), (Ok, 0)]);
    assert_eq!(client.ask(call("d", &["user=a", "user=c"])).1, [(OverLimit, 0), (Ok, 1)]);
    assert_eq!(client.ask(call("d", &["user=c"])), (Ok, vec![(Ok, 0)]));
}

#[test]
fn rules_for_a_domain_of_the_folder_are_warned_of() {
    let folder = folder();
    let file = folder.path().join("tidegate.toml");
    let rule = |pattern: &str| format!("[[rule]]\nmatch = '{pattern}'\nlimit = '1/s'\n");
    let rules = ["basic key1=*", "basic", "basics key1=*", "other key1=*", "* key1=*"].map(rule);
    let table = format!("[grpc]\nenvoy_config = '{}'\n", folder.path().display());
    fs::write(&file, [&rules.concat(), &*table].concat()).expect("a file");
    let output = tidegate(["config", "check", file.to_str().expect("a path")]);
    assert_eq!(output.status.code(), Some(0));
    let said = String::from_utf8_lossy(&output.stderr);
    let warnings: Vec<&str> = said.lines().filter(|line| line.contains("warning")).collect();
    let [warning] = warnings[..] else { panic!("{said}") };
    let expected = ":2:9: warning: this rule limits no call of Envoy: the files of `envoy_config` \
                    alone limit the domain \"basic\"; remove it, unless another door uses its keys";
    assert!(warning.ends_with(expected), "{warning}");
}

#[test]
fn a_wrong_folder_is_told_with_its_file() {
    let folder = folder();
    fs::write(folder.path().join("bad.yaml"), "domain: d\ndescriptors:\n- key: ''\n")
        .expect("a file");
    let file = folder.path().join("tidegate.toml");
    let table = format!("[grpc]\nenvoy_config = '{}'\n", folder.path().display());
    fs::write(&file, table).expect("a file");
    let output = tidegate(["config", "check", file.to_str().expect("a path")]);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("bad.yaml: descriptor has empty key"), "{said}");
}

#[test]
fn what_is_no_file_is_noticed_and_told_by_its_name() {
    let folder = folder();
    let mut program = program(folder.path(), "");
    let entry = folder.path().join("z.yaml");
    let mut expect = |what: &str| {
        let line = program.wait_for_line(|line| line.contains("reloaded"));
        assert!(line.contains(what), "{line}");
    };
    let loaded = "configuration reloaded";
    // A folder is no file of the configuration, whatever its name.
    fs::create_dir(&entry).expect("a folder");
    expect(loaded);
    fs::remove_dir(&entry).expect("it was there");
    expect(loaded);
    let told = |why: &str| format!("{}: {why}", entry.display());
    rustix::fs::mkfifoat(rustix::fs::CWD, &entry, 0o600.into()).expect("a FIFO");
    expect(&told("it is not a regular file"));
    fs::remove_file(&entry).expect("it was there");
    expect(loaded);
    std::os::unix::fs::symlink("nowhere", &entry).expect("a link");
    expect(&told("No such file or directory"));
    fs::remove_file(&entry).expect("it was there");
    expect(loaded);
    fs::write(&entry, b"domain: \xff").expect("a file");
    expect(&told("it is not UTF-8"));
}
