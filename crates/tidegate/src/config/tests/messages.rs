//! What a file's author reads after a common slip: what is wrong, and the line that would be right.

use std::fs;

use super::{check, check_rule};
use crate::config::{Config, ConfigSource};

#[test]
fn numbers_and_spans_are_told_with_an_example() {
    check(
        "[memory]\nmax_keys = '1M'\n[snapshot]\nevery = 60\n[server]\nshutdown_grace = true",
        &[
            "t:2:12: invalid type: string \"1M\"; write a whole number: 1_000_000",
            "t:4:9: a unit of time is missing; write a span with a unit: \"60s\"",
            "t:6:18: invalid type: boolean `true`; expected a span with a unit: \"10s\"",
        ],
    );
}

#[test]
fn tables_with_one_bracket_are_told_with_two() {
    let told = Config::parse("t", "[http]\n[http.authorize]\nname = 'a'").expect_err("a table");
    let line = "t:2:1: \"authorize\" must be a list of tables; \
                write [[http.authorize]] with two brackets";
    assert_eq!(told.plain(), line);
}

#[test]
fn a_match_is_one_pattern_of_some_keys() {
    check(
        "[[rule]]\nmatch = ['a', 'b']\nlimit = '1/s'",
        &["t:2:9: `match` is one pattern, not a list; \
           write one pattern here, and a second [[rule]] for the next"],
    );
    for name in ["", "name = 'a'\n"] {
        let line = 2 + name.lines().count();
        check(
            &format!("[[rule]]\n{name}match = ''\nlimit = '1/s'"),
            &[&format!(
                "t:{line}:9: `match` is empty: it names no key; \
                 say which keys it is for: match = \"ws ip=*\""
            )],
        );
    }
}

#[test]
fn a_misspelt_name_is_not_missing_as_well() {
    let check = |rule: &str, expected: &str| check(&format!("[[rule]]\n{rule}"), &[expected]);
    check(
        "mach = 'a'\nlimit = '1/s'",
        "t:2:1: unknown name \"mach\" in [[rule]]; did you mean \"match\"?",
    );
    check(
        "match = 'a'\nlimt = '1/s'",
        "t:3:1: unknown name \"limt\" in [[rule]]; did you mean \"limit\"?",
    );
}

#[test]
fn settings_in_a_wrong_place_are_told_with_the_right_one() {
    check_rule(
        "limit = '5/min'\nburst = 4",
        &["t:4:1: unknown name \"burst\" in [[rule]]; write it in the limit: \"5/min burst 4\""],
    );
    check(
        "match = 'a'\nlimit = '1/s'\nlisten = '127.0.0.1:1'",
        &[
            "t:1:1: unknown name \"match\" in the file; \
             it belongs in a rule: write it below [[rule]]",
            "t:2:1: unknown name \"limit\" in the file; \
             it belongs in a rule: write it below [[rule]]",
            "t:3:1: unknown name \"listen\" in the file; \
             it belongs in the table of a door: write it below [http]",
        ],
    );
    check(
        "[text]\nhost = '127.0.0.1'\nport = 2000",
        &[
            "t:2:1: unknown name \"host\" in [text]; write listen = \"127.0.0.1:8080\"",
            "t:3:1: unknown name \"port\" in [text]; write listen = \"127.0.0.1:2000\"",
        ],
    );
    check(
        "[text]\nlisten = 'localhost:80800'",
        &["t:2:10: port 80800 is above 65535; write a port from 1 to 65535"],
    );
    check_rule(
        "limit = '10 per minute, 100 per hour'",
        &["t:3:23: `, 100 per hour` is not expected here; \
           write a list: [\"10 per minute\", \"100 per hour\"]"],
    );
}

#[test]
fn tables_that_are_there_twice_are_told_once() {
    let second = "put all of its settings into the first one; \
                  tables of which there may be several have two brackets, as [[rule]]";
    check(
        "[http]\nlisten = '127.0.0.1:1'\n[text]\nallow = ['::1']\nallow = ['::1']\n\
         [http]\nlisten = '127.0.0.1:2'\n[server]\nlog_format = 'json'\nlog_format = 'json'",
        &[
            "t:5:1: \"allow\" is set twice in this table; keep one of the two lines",
            &format!("t:6:2: the table \"http\" is there twice; {second}"),
            "t:10:1: \"log_format\" is set twice in this table; keep one of the two lines",
            // The check adds the door.
            &format!("t:11:2: the table \"http\" is there twice; {second}"),
        ],
    );
}

#[test]
fn typographic_quotes_are_told() {
    check(
        "[text]\nlisten = “127.0.0.1:1”",
        &["t:2:10: these are typographic quotes; write \"...\""],
    );
}

#[test]
fn a_file_that_is_no_text_is_told_with_what_would_be_right() {
    let folder = tempfile::tempdir().unwrap();
    let told = |name: &str| {
        let source = ConfigSource::File(folder.path().join(name));
        source.load().map(|_| ()).expect_err(name).plain()
    };
    fs::write(folder.path().join("bytes"), [0xff]).unwrap();
    assert!(told(".").ends_with("it is a folder; name a file in this folder"), "{}", told("."));
    assert!(told("bytes").ends_with("it is not UTF-8; save it as UTF-8"), "{}", told("bytes"));
    assert!(told("none").contains("check the path"), "{}", told("none"));
}

#[test]
fn no_secret_is_in_what_is_told() {
    for text in [
        "[resp]\npassword = 'hunter2'",
        "[resp]\npassword = ['hunter2']",
        "[resp]\nusers = 'hunter2'",
        "[resp.users]\nanna = 'hunter2'",
        "[resp]\nusers = { anna = ['hunter2'] }",
        "[resp]\npasswort = 'hunter2'",
        "[resp]\npassword = hunter2",
        "[store]\nkind = 'redis'\nurl = 'redis://me:hunter2@a'\npassword = 'hunter2'",
        "[store]\nkind = 'redis'\nurl = 'me:hunter2@a'\nprefx = 'a'",
        "[store]\nkind = 'redis'\nurl = 'http://me:hunter2@a'",
    ] {
        let problems = Config::parse("t", &format!("{text}\n[http]")).map(|_| ()).expect_err(text);
        let told = problems.drawn(false) + &problems.plain();
        assert!(!told.contains("hunter2"), "{told}");
    }
}
