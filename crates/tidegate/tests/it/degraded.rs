//! What is said while decisions are made without the store that has the counts: in answers, in
//! words, in metrics and in the log.

use std::net::SocketAddr;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::engines::redis::Server;
use crate::http::send_to;
use crate::program::{Program, tidegate};
use crate::remote::store;

const DOOR: &str = "
[http]
listen = '127.0.0.1:0'
[[http.authorize]]
name = 'web'
key = 'client=x'
[[rule]]
name = 'pass'
match = 'pass *'
limit = '5 per 1h'
[[rule]]
name = 'deny'
match = 'deny *'
limit = '5 per 1h'
on_store_error = 'deny'
[[rule]]
name = 'local'
match = 'local *'
limit = '5 per 1h'
on_store_error = 'local'
[[rule]]
name = 'web'
match = 'web *'
limit = '5 per 1h'
";

fn post(http: SocketAddr, path: &str, key: &str) -> (u16, Value) {
    let headers = "Host: localhost\r\nContent-Type: application/json\r\n";
    let reply = send_to(http, "POST", path, headers, &json!({ "key": key }).to_string());
    let has = |name| !reply.header(name).is_empty();
    let answer = reply.json();
    let is_known = answer.get("degraded").is_none() && answer["limits"] != json!([]);
    assert_eq!((has("ratelimit"), has("ratelimit-policy")), (is_known, is_known), "{path} {key}");
    (reply.status, reply.json())
}

fn is_away(line: &str) -> bool {
    line.contains("the store is away")
}

#[test]
fn answers_words_metrics_and_the_log_tell_of_an_outage() {
    let mut redis = Server::start(&[]);
    let mut program = Program::serve(&[DOOR, &*store(&redis.url(), "1m")].concat());
    let http = program.address("http");
    let (status, counted) = post(http, "/v1/check", "pass a");
    assert_eq!((status, &counted["limits"][0]["remaining"]), (200, &json!(4)));
    assert!(counted.get("degraded").is_none() && counted["limits"][0].get("degraded").is_none());
    let standing = || {
        let reply = send_to(http, "GET", "/v1/authorize/web", "Host: localhost\r\n", "");
        assert_eq!(reply.status, 200);
        reply.header("ratelimit").to_owned()
    };
    assert!(standing().starts_with("\"web\";r=4"), "{}", standing());

    redis.kill();
    program.wait_for_line(is_away);
    for path in ["/v1/check", "/v1/wait"] {
        let (status, answer) = post(http, path, "pass a");
        let limit = json!({
            "key": "pass a", "rule": "pass", "limit": "5 per hour", "amount": 5,
            "period_ms": 3_600_000, "remaining": null, "rate": 0.0, "retry_after_ms": 0,
            "reset_ms": null, "degraded": true,
        });
        let expected = json!({
            "allowed": true, "delay_ms": 0, "refused_by": null, "degraded": true,
            "limits": [limit],
        });
        assert_eq!((status, answer), (200, expected), "{path}");
    }
    let (status, denied) = post(http, "/v1/check", "deny a");
    assert_eq!(
        (status, &denied["refused_by"], &denied["degraded"]),
        (429, &json!("deny"), &json!(true))
    );
    assert_eq!(denied["limits"][0]["retry_after_ms"], 1000);
    let (status, local) = post(http, "/v1/check", "local a");
    let limit = &local["limits"][0];
    let told = (status, &limit["remaining"], &limit["degraded"]);
    assert_eq!(told, (200, &json!(4), &json!(true)));
    assert_eq!(post(http, "/v1/check", "nobody's").1.get("degraded"), None, "it has no limit");
    assert_eq!(standing(), "");
    let said = tidegate(["check", "--peek", "pass a", "--server", &program.url()]).stdout;
    let said = String::from_utf8(said).expect("text");
    assert!(said.contains("decided without the store") && said.contains("not counted"), "{said}");
    let page = send_to(http, "GET", "/metrics", "Host: localhost\r\n", "").body;
    for (rule, policy, count) in
        [("pass", "allow", 2), ("deny", "deny", 1), ("local", "local", 1), ("web", "allow", 1)]
    {
        let labels = format!("door=\"http\",rule=\"{rule}\",policy=\"{policy}\"");
        let line = format!("tidegate_degraded_total{{{labels}}} {count}");
        assert!(page.lines().any(|found| found == line), "{line}\n{page}");
    }

    redis.start_again();
    program.wait_for_line(|line| line.contains("the store answers"));
    assert!(post(http, "/v1/check", "pass b").1.get("degraded").is_none());
    program.signal(Signal::TERM);
    let rest = program.rest_of_stderr();
    assert!(!rest.iter().any(|line| is_away(line)), "{rest:#?}");
}

#[test]
fn the_log_tells_of_a_password_that_is_no_longer_right() {
    let redis = Server::start(&[]);
    let mut program = Program::serve(&[DOOR, &*store(&redis.url(), "1m")].concat());
    assert_eq!(redis.ask(&["config", "set", "requirepass", "other"]).trim(), "OK");
    redis.ask(&["-a", "other", "client", "kill", "type", "normal"]);
    program.wait_for_line(|line| line.contains("store is") && line.contains("uthentication"));
}
