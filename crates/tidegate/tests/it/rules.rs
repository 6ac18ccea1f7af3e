//! Rules changed while the real program runs, and taken back by its reloads.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::http::{Reply, send_to};
use crate::program::{DOORS, Program, tidegate};

const RULE: &str = "[[rule]]\nname = 'r'\nmatch = 'k*'\nlimit = '2 per day'\n";

fn send(program: &Program, method: &str, path: &str, body: &Value) -> Reply {
    let headers = "Host: localhost\r\nContent-Type: application/json\r\n";
    send_to(program.address("admin"), method, path, headers, &body.to_string())
}

/// How many of ten uses are allowed.
fn take(program: &Program, key: &str) -> usize {
    let taken = |_: &usize| {
        let out = tidegate(["check", key, "--server", &program.url()]);
        out.status.code() == Some(0)
    };
    (0..10).filter(taken).count()
}

#[test]
fn a_change_lives_until_the_next_reload() {
    let mut program = Program::serve(&format!("{RULE}{DOORS}"));
    assert_eq!(take(&program, "k"), 2);
    let reply = send(&program, "PUT", "/v1/rules/r", &json!({"limit": "5 per day"}));
    assert_eq!((reply.status, &reply.json()["changed"]), (200, &json!(true)));
    let line = program.wait_for_line(|line| line.contains("rule changed over the API"));
    assert!(line.contains("5 per day"), "{line}");
    assert_eq!(take(&program, "k"), 3, "what was used is still counted");

    // A file with a mistake in it changes nothing.
    program.write_config(&format!("{RULE}limt = 1\n{DOORS}"));
    program.wait_for_line(|line| line.contains("configuration not reloaded"));
    assert_eq!(send(&program, "GET", "/v1/rules/r", &json!({})).json()["changed"], true);

    program.write_config(&format!("{RULE}{DOORS}"));
    program.wait_for_line(|line| line.contains("changes made over the API are undone"));
    program.wait_for_line(|line| line.contains("configuration reloaded"));
    let rule = send(&program, "GET", "/v1/rules/r", &json!({})).json();
    assert_eq!((&rule["changed"], &rule["limit"]), (&json!(false), &json!("2 per day")));
    assert_eq!(take(&program, "k"), 0);
}

#[test]
fn a_rule_is_added_and_removed() {
    let mut program = Program::serve(&format!("{RULE}{DOORS}"));
    let rule = json!({"match": "k bad", "limit": "1 per day"});
    assert_eq!(send(&program, "PUT", "/v1/rules/block", &rule).status, 201);
    assert_eq!((take(&program, "k bad"), take(&program, "k good")), (1, 2));
    let list = send(&program, "GET", "/v1/rules", &json!({})).json();
    let names = list["rules"].as_array().expect("a list").iter().map(|rule| &rule["name"]);
    assert_eq!(names.collect::<Vec<_>>(), ["block", "r", "default"]);
    assert_eq!(send(&program, "DELETE", "/v1/rules/block", &json!({})).status, 204);
    assert_eq!(take(&program, "k bad"), 2);
    program.signal(Signal::HUP);
    program.wait_for_line(|line| line.contains("configuration reloaded"));
}

#[test]
fn a_mistake_names_its_field_and_changes_nothing() {
    let program = Program::serve(&format!("{RULE}{DOORS}"));
    let reply = send(&program, "PUT", "/v1/rules/r", &json!({"limit": "2 per dy"}));
    assert_eq!((reply.status, reply.header("content-type")), (400, "application/problem+json"));
    assert_eq!(reply.json()["errors"][0]["field"], "limit");
    let forwarded = "Host: localhost\r\nContent-Type: application/json\r\nX-Forwarded-For: ::1\r\n";
    let body = r#"{"limit":"9 per day"}"#;
    let reply = send_to(program.address("admin"), "PUT", "/v1/rules/r", forwarded, body);
    assert_eq!((reply.status, &reply.json()["reason"]), (403, &json!("forwarded")));
    assert_eq!(take(&program, "k"), 2);
}
