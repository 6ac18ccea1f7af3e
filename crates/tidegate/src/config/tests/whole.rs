//! What a file says as a whole, and how its tables fit each other.

use std::fs;

use tidegate_core::rules::{Consistency, OnFull, OnStoreError};

use super::{check, check_rule, parse};
use crate::config::{Config, ConfigSource};

#[test]
fn nothing_passes_under_deny() {
    let text = "[[rule]]\nmatch = 'a *'\nlimit = 'deny'\nreplicas = 3\nalgorithm = 'average'\n\
                strict = true\n[[rule]]\nmatch = 'b'\nlimit = ['deny']\n[default]\nlimit = 'deny'";
    let config = parse(text);
    let shown: Vec<String> = config
        .rules
        .rules()
        .iter()
        .map(|rule| format!("{} {}", rule.name, rule.limits[0]))
        .collect();
    assert_eq!(shown, ["a * deny", "b deny", "default deny"]);
    let again = Config::parse("shown", &config.show().unwrap()).unwrap();
    assert_eq!(again.rules.rules(), config.rules.rules());
}

#[test]
fn deny_stands_alone_and_is_not_for_those_who_only_delay() {
    check_rule(
        "limit = ['1/s', 'deny']",
        &["t:3:17: \"deny\" cannot be combined with other limits; \
           remove it from the list, or write limit = \"deny\" alone"],
    );
    for algorithm in ["jarl", "smockron"] {
        let line = format!(
            "t:3:10: `{algorithm}` delays callers and cannot refuse them; \
             write a limit such as `1 per 60s`, or choose another algorithm"
        );
        check_rule(&format!("limit = 'deny'\nalgorithm = '{algorithm}'"), &[&line]);
    }
    let jarl = "[[jarl]]\nservice = 'a'\nlisten = '127.0.0.1:0'\nlimit = 'deny'\n";
    check(
        jarl,
        &["t:4:10: `jarl` delays callers and cannot refuse them; \
           write a limit such as `1 per 60s`, or choose another algorithm"],
    );
    check(
        &format!("{jarl}algorithm = 'gcra'"),
        &["t:4:9: this door delays callers and cannot refuse them; \
           write a limit such as \"1 per 60s\", or remove the table"],
    );
    check(
        "[smockron]\nalgorithm = 'gcra'\n[smockron.domains]\nweb = 'deny'",
        &["t:4:7: this door delays callers and cannot refuse them; \
           write a limit such as \"1 per 60s\", or remove the table"],
    );
}

#[test]
fn doors_with_a_limit_of_their_own_have_the_settings_of_a_rule() {
    let settings = "consistency = 'local'\non_store_error = 'deny'\non_full = 'allow'\n\
                    shadow = true\nshared = true\nreplicas = 2\nreplica = 2\n";
    let rule = format!("[[rule]]\nmatch = 'k *'\nlimit = '7 per 2s'\n{settings}");
    let jarl = "[[jarl]]\nservice = 'a'\nlisten = '127.0.0.1:0'\nlimit = '7 per 2s'\n";
    let proxy = "[[proxy]]\nname = 'api'\nlisten = '127.0.0.1:0'\n\
                 upstream = 'http://127.0.0.1:3000'\nlimit = '7 per 2s'\n";
    let config = parse(&format!("{rule}{jarl}{settings}{proxy}{settings}"));
    let names: Vec<&str> = config.rules.rules().iter().map(|rule| &*rule.name).collect();
    assert_eq!(names, ["k *", "jarl:a", "proxy:api"]);
    for rule in config.rules.rules() {
        assert_eq!(rule.consistency, Consistency::Local);
        assert_eq!((rule.on_store_error, rule.on_full), (OnStoreError::Deny, OnFull::Allow));
        assert!(rule.shadow && rule.shared);
        assert_eq!(rule.limits[0].amount, 3);
    }
    let again = Config::parse("shown", &config.show().unwrap()).unwrap();
    assert_eq!(again.rules.rules(), config.rules.rules());
    for (table, line) in [(jarl, 5), (proxy, 6)] {
        let wrong = format!("t:{line}:15: unknown value \"near\"; known here: exact, local");
        check(&format!("{table}consistency = 'near'"), &[&wrong]);
    }
}

#[test]
fn an_address_is_taken_once() {
    let own = "give every door an address and port of its own";
    check(
        "[text]\nlisten = '127.0.0.1:8080'\n[[throttr]]\nlisten = '127.0.0.1:9'\nunix = 'a'\n\
         [[throttr]]\nvalue_size = 8\nlisten = ['[::1]:9', '0.0.0.0:9']\nunix = 'a'\n\
         [smockron]\ncontrol = 'tcp://127.0.0.1:8080'\naccounting = 'tcp://*:9'",
        &[
            &format!("t:8:10: 0.0.0.0:9 is taken by [throttr] in line 4 (127.0.0.1:9); {own}"),
            &format!("t:9:8: a is taken by [throttr] in line 5 (a); {own}"),
            &format!("t:12:14: 0.0.0.0:9 is taken by [throttr] in line 4 (127.0.0.1:9); {own}"),
            &format!(
                "t:13:1: 127.0.0.1:8080 is taken by [smockron] in line 11 (127.0.0.1:8080); {own}"
            ),
        ],
    );
    parse(
        "[text]\nlisten = '127.0.0.1:8080'\n[[throttr]]\nlisten = ['0.0.0.0:0', '127.0.0.1:0']\n\
         [smockron]\ncontrol = 'tcp://[::1]:8080'",
    );
}

#[test]
fn what_others_call_an_algorithm_is_known() {
    let line = |told: &str| format!("t:4:13: {told}");
    for (name, remedy) in [
        ("token-bucket", "write `gcra`, which is a token bucket"),
        ("in_flight", "leave it out and write the limit as `100 in flight`"),
    ] {
        let told = format!("\"{name}\" is not the name of an algorithm; {remedy}");
        check_rule(&format!("limit = '1/s'\nalgorithm = '{name}'"), &[&line(&told)]);
    }
    check_rule(
        "limit = ['0.5/s', '1 per month']",
        &[
            "t:3:11: `0.5` is not a whole number; write a whole amount: `1 per 2s`",
            "t:3:26: `month` is not a unit of time; write days: `30d` for a month",
        ],
    );
}

#[test]
fn another_language_is_told_by_its_name() {
    let told =
        |name: &str, text: &str| Config::parse(name, text).map(|_| ()).expect_err(text).plain();
    let yaml = "this looks like YAML, but the configuration file must be TOML; write it as TOML; \
                tidegate config example prints one";
    assert_eq!(told("t", "# ours\nhttp:\n  listen: 127.0.0.1:1\n"), format!("t:1:1: {yaml}"));
    assert_eq!(told("a.yml", "- b\n"), format!("a.yml:1:1: {yaml}"));
    assert!(told("t", "{\n\"http\": {}\n}\n").contains("this looks like JSON"));
    assert!(!told("t", "listen = 127.0.0.1:80\n").contains("this looks like"));
    // What is TOML may have any name.
    assert!(Config::parse("a.json", "[http]\n").is_ok());
}

#[test]
fn rules_that_never_decide_are_warned_of() {
    let rule = |name: &str, pattern: &str| {
        format!("[[rule]]\nname = '{name}'\nmatch = '{pattern}'\nlimit = '1/s'\n")
    };
    let warnings = |text: &str| parse(text).warnings;
    let many = ["ws ip=1*", "ws *", "ws ip=2*", "*x", "ws *x", "api", "api"];
    let text: String = many.iter().enumerate().map(|(at, p)| rule(&at.to_string(), p)).collect();
    let told = |line: usize, name: usize, first: usize| {
        format!(
            "t:{line}:9: warning: this rule never decides: \"{name}\", in line {first}, \
             matches all its keys; put it before that rule, or remove it"
        )
    };
    assert_eq!(warnings(&text), [told(11, 1, 6), told(19, 3, 14), told(27, 5, 22)]);
    let jarl = "[[jarl]]\nservice = 'a'\nlisten = '127.0.0.1:0'\nlimit = '1/s'\n";
    assert_eq!(warnings(&(rule("all", "*") + jarl)), [""; 0], "a door's limit may be replaced");
    assert_eq!(warnings(&(rule("all", "*") + "[default]\nlimit = '1/s'")).len(), 1);
}

#[test]
fn what_lies_outside_is_looked_for_and_all_of_it_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let wrong = folder.path().join("wrong.pem");
    fs::write(&wrong, "no certificate\n").unwrap();
    let (folder, wrong) = (folder.path().display(), wrong.display());
    let text = format!(
        "[[proxy]]\nname = 'a'\nlisten = '127.0.0.1:0'\nupstream = 'http://a'\n\
         upstream_ca = '{folder}/none.pem'\n\
         tls = {{ cert = '{wrong}', key = '{folder}/key.pem' }}\n\
         [store]\nkind = 'redis'\nurl = 'redis://a'\npassword = 'env:TIDEGATE_NO_SUCH'\n\
         [snapshot]\npath = '{folder}/no/tidegate.snapshot'\n[text]\nlistn = 1\n"
    );
    let path = wrong.to_string().replace("wrong.pem", "t.toml");
    fs::write(&path, &text).unwrap();
    let plain = ConfigSource::File(path.clone().into()).check().map(|_| ()).unwrap_err().plain();
    let told: Vec<&str> = plain.lines().collect();
    let expected = [
        (":5:15: cannot read the certificate ", "none.pem: "),
        (":6:16: cannot read the certificate ", "wrong.pem: there is none in the file"),
        (":6:", "cannot read the key "),
        (":10:12: ", "the variable TIDEGATE_NO_SUCH is not set"),
        (":12:8: ", "does not exist; create it first"),
        (":14:1: ", "unknown name \"listn\" in [text]"),
    ];
    assert_eq!(told.len(), expected.len(), "{plain}");
    for (line, (place, part)) in told.iter().zip(expected) {
        assert!(line.contains(place) && line.contains(part), "{line}");
        assert!(!line.contains("Os {") && !line.contains("kind:"), "{line}");
    }
    // A server looks for all but the snapshot's folder, which matters when it changes.
    let served = Config::load("t", &text).map(|_| ()).unwrap_err();
    assert_eq!(served.list().len(), expected.len() - 1);
}

#[test]
fn what_is_shown_holds_no_secret() {
    let text = "[store]\nkind = 'redis'\nurl = ['redis://me:hunter2@a', 'redis://:hunter2@b:1']\n\
                password = 'env:PASSWORD'";
    let shown = parse(text).show().unwrap();
    assert!(!shown.contains("hunter2") && shown.contains("redis://***@a"), "{shown}");
    assert!(shown.contains("env:PASSWORD"), "{shown}");
}

#[test]
fn what_is_no_word_and_no_table_of_certificates_is_told_with_what_would_be_right() {
    check(
        "[[throttr]]\ntls = true\n[admin]\ntls = 'cert.pem'\n\
         [[rule]]\nmatch = 'a'\nlimit = '1/s'\nconsistency = true\non_full = 1\n",
        &[
            "t:2:7: invalid type: boolean `true`; \
             write { cert = \"cert.pem\", key = \"key.pem\" }",
            "t:4:7: invalid type: string \"cert.pem\"; \
             write { cert = \"cert.pem\", key = \"key.pem\" }",
            "t:8:15: `consistency` takes a word in quotes; write \"exact\" or \"local\"",
            "t:9:11: `on_full` takes a word in quotes; write \"share\", \"deny\" or \"allow\"",
        ],
    );
}

#[test]
fn certificates_need_a_tcp_address() {
    let tls = "unix = 'a'\ntls = { cert = 'c', key = 'k' }\n";
    for table in ["[resp]\n", "[[throttr]]\n"] {
        let told = Config::parse("t", &format!("{table}{tls}")).expect_err("no address").plain();
        assert!(told.contains("this table has only `unix`; add `listen`"), "{told}");
        parse(&format!("{table}listen = '127.0.0.1:0'\n{tls}"));
    }
}
