//! Rules that let nothing pass, asked at every door that can refuse.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::engines::redis;
use crate::http::{Reply, send_to};
use crate::program::{DOORS, Program, tidegate};
use crate::text::Client;
use crate::upstream::Upstream;

const RULES: &str = "
[[rule]]
name = 'blocked'
match = 'bad *'
limit = 'deny'
[[rule]]
name = 'tried'
match = 'tried *'
limit = 'deny'
shadow = true
[[rule]]
name = 'few'
match = 'few *'
limit = '2 per day'
[default]
limit = 'deny'
";

fn post(door: SocketAddr, path: &str, body: &Value) -> Reply {
    let headers = "Host: localhost\r\nContent-Type: application/json\r\n";
    send_to(door, "POST", path, headers, &body.to_string())
}

fn check_refusal(reply: &Reply, rule: &str) {
    assert_eq!((reply.status, reply.header("retry-after")), (429, ""), "{}", reply.body);
    let json = reply.json();
    assert_eq!((&json["allowed"], &json["refused_by"]), (&json!(false), &json!(rule)));
    assert_eq!(json["delay_ms"], Value::Null);
    let limit = &json["limits"][0];
    let told = ["limit", "amount", "period_ms", "remaining", "retry_after_ms", "reset_ms"];
    let expected = [json!("deny"), json!(0), Value::Null, json!(0), Value::Null, Value::Null];
    assert_eq!(told.map(|name| limit[name].clone()), expected);
}

/// Everything that a program with these rules says at its HTTP door.
fn check_http(door: SocketAddr) {
    for path in ["/v1/check", "/v1/wait"] {
        check_refusal(&post(door, path, &json!({"key": "bad a"})), "blocked");
        check_refusal(&post(door, path, &json!({"key": "bad a", "cost": 5000})), "blocked");
        check_refusal(&post(door, path, &json!({"key": "anything else"})), "default");
        assert_eq!(post(door, path, &json!({"key": "tried a"})).status, 200);
    }
    let both = post(door, "/v1/check", &json!({"keys": ["few a", "bad a"]}));
    check_refusal(&both, "blocked");
    for _ in 0..2 {
        assert_eq!(post(door, "/v1/check", &json!({"key": "few a"})).status, 200);
    }
    let metrics = send_to(door, "GET", "/metrics", "Host: localhost\r\n", "").body;
    let counted = |rule: &str, verdict: &str| {
        let line =
            format!("decisions_total{{door=\"http\",rule=\"{rule}\",verdict=\"{verdict}\"}} ");
        let line =
            metrics.lines().find_map(|found| found.strip_prefix(&format!("tidegate_{line}")));
        line.map(|count| count.parse::<u64>().expect("a number"))
    };
    assert_eq!(counted("blocked", "refuse"), Some(5));
    assert_eq!(counted("tried", "shadow"), Some(2));
}

#[test]
fn nothing_passes_at_any_door() {
    let upstream = Upstream::start();
    let proxy = format!(
        "[[proxy]]\nname = 'bad'\nlisten = '127.0.0.1:0'\nupstream = 'http://{}'\n",
        upstream.address()
    );
    let program = Program::serve(&format!("{RULES}{DOORS}{proxy}"));
    check_http(program.address("http"));
    let text = Client::new(program.address("text"));
    assert_eq!(text.ask("over_limit bad b"), "ok Y 0.0 0.0 1");
    assert_eq!(text.ask("over_limit tried b"), "ok N 0.0 0.0 1");
    assert_eq!(text.ask("get_stats bad b"), "n_req=0 n_over=0 last_max_rate=0 key=bad b");
    let reply = send_to(program.address("proxy"), "GET", "/a", "Host: localhost\r\n", "");
    assert_eq!(
        (reply.status, reply.header("retry-after")),
        (429, ""),
        "it waits for ever otherwise"
    );
    assert_eq!(reply.json()["refused_by"], "blocked");
    assert_eq!(upstream.more(), 0);
    let url = program.url();
    for words in [&["check", "bad a"][..], &["wait", "bad a"], &["exec", "bad a", "--", "true"]] {
        let (first, rest) = words.split_first().expect("a command");
        let out = tidegate([&[*first, "--server", &url], rest].concat());
        assert_eq!(out.status.code(), Some(3), "{words:?}: {out:?}");
    }
}

#[test]
fn no_store_is_asked_for_it() {
    let server = redis::Server::start(&[]);
    let store = |url: &str| format!("[store]\nkind = 'redis'\nurl = '{url}'\ntimeout = '20s'\n");
    let program = Program::serve(&format!("{RULES}{DOORS}{}", store(&server.url())));
    crate::remote::until_store_answers(program.address("http"));
    // Without it the other rules allow what they cannot count.
    drop(server);
    check_http(program.address("http"));
    let text = Client::new(program.address("text"));
    assert_eq!(text.ask("over_limit bad b"), "ok Y 0.0 0.0 1");
}

#[test]
fn a_rule_is_blocked_over_the_api() {
    let rule = "[[rule]]\nname = 'r'\nmatch = 'k*'\nlimit = '2 per day'\nalgorithm = 'average'\n\
                replicas = 2\n";
    let program = Program::serve(&format!("{rule}{DOORS}"));
    let door = program.address("http");
    let put = |body: Value| {
        let headers = "Host: localhost\r\nContent-Type: application/json\r\n";
        send_to(program.address("admin"), "PUT", "/v1/rules/r", headers, &body.to_string())
    };
    assert_eq!(post(door, "/v1/check", &json!({"key": "k"})).status, 200);
    let reply = put(json!({"limit": "deny"}));
    assert_eq!((reply.status, &reply.json()["in_force"]), (200, &json!(["deny"])));
    check_refusal(&post(door, "/v1/check", &json!({"key": "k"})), "r");
    assert_eq!(put(json!({"limit": ["deny", "1/s"]})).status, 400);
    assert_eq!(put(json!({"limit": "4 per day"})).status, 200);
    assert_eq!(post(door, "/v1/check", &json!({"key": "k"})).status, 200);
}
