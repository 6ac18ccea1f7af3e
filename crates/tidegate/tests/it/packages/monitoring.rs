//! The dashboard and the alert rules: what they ask for is there.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::{Value, json};

use super::{of_repository, run};
use crate::http::{ask, check_many};
use crate::program::Program;

const BOARD: &str = "packaging/grafana/tidegate.json";
const RULES: &str = "packaging/prometheus/tidegate.rules.yml";
/// Decisions are timed by sample.
const TRIES_MAX: usize = 100_000;

/// A server in memory with little room.
const FULL: &str = "
[http]
listen = '127.0.0.1:0'
[memory]
max_keys = 1
[[rule]]
match = 'k *'
limit = '1 per day'
[snapshot]
path = 'tidegate.snapshot'
";

/// A server without its store.
const ALONE: &str = "
[http]
listen = '127.0.0.1:0'
[[rule]]
match = 'k *'
limit = '1 per day'
[store]
kind = 'redis'
url = 'redis://127.0.0.1:9'
start_timeout = '1ms'
";

#[test]
fn alert_rules_fire_when_they_should() {
    run(Command::new("promtool").args(["check", "rules"]).arg(of_repository(RULES)));
    let tests = of_repository("packaging/prometheus/tidegate.rules.test.yml");
    run(Command::new("promtool").args(["test", "rules"]).arg(tests));
}

#[test]
fn every_series_of_the_board_and_the_alerts_exists() {
    let mut shown = BTreeSet::new();
    for config in [FULL, ALONE] {
        let program = Program::serve(config);
        let page = ask(&program, "GET", "/metrics").body;
        for action in ["share", "deny", "allow"] {
            // An alert sees the first event only if there was a sample before it.
            let zero = format!("tidegate_table_full_total{{action=\"{action}\"}} 0\n");
            assert!(page.contains(&zero), "{page}");
        }
        ask(&program, "GET", "/nowhere");
        let mut tries = 0..TRIES_MAX;
        loop {
            let more = tries.next().expect("a decision that was timed");
            check_many(&program, &json!({ "key": format!("k {more}") }));
            let page = ask(&program, "GET", "/metrics").body;
            let samples = page.lines().filter(|line| !line.starts_with('#'));
            let name = |line: &str| line.split(['{', ' ']).next().unwrap_or_default().to_owned();
            let names: BTreeSet<String> = samples.map(name).collect();
            // Decisions by a store that is away are not timed.
            let is_all = names.contains("tidegate_store_up")
                || names.contains("tidegate_decision_seconds_bucket");
            shown.extend(names);
            if is_all {
                break;
            }
        }
    }
    let board = std::fs::read_to_string(of_repository(BOARD)).expect("a dashboard");
    let board: Value = serde_json::from_str(&board).expect("JSON");
    let mut asked = String::new();
    expressions(&board, &mut asked);
    asked.push_str(&std::fs::read_to_string(of_repository(RULES)).expect("rules"));
    let asked = series(&asked);
    assert!(asked.len() > 20, "{asked:?}");
    let missing: Vec<_> = asked.iter().filter(|name| !shown.contains(**name)).collect();
    assert!(missing.is_empty(), "no server shows {missing:?}; there are {shown:?}");
}

/// Collects what the panels and variables of a board ask for.
fn expressions(value: &Value, found: &mut String) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| expressions(item, found)),
        Value::Object(members) => {
            for (name, member) in members {
                if let ("expr" | "definition", Value::String(text)) = (name.as_str(), member) {
                    found.push_str(text);
                    found.push('\n');
                }
                expressions(member, found);
            }
        }
        _ => {}
    }
}

/// The names of our series in a text of PromQL.
fn series(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("tidegate_") || word.starts_with("process_")).collect()
}

#[test]
fn series_are_found_in_expressions() {
    let found = series("sum(rate(tidegate_a_total{b=\"c\"}[5m])) / process_b and tidegate");
    assert_eq!(found, ["process_b", "tidegate_a_total"].into());
}
