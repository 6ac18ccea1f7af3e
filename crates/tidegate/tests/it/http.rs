//! The HTTP door of the real program, asked over real sockets by a client of a few lines.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::Command;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::engines::until;
use crate::program::{PATIENCE, Program, binary};

/// The periods are long, so that no test depends on how fast it runs.
const CONFIG: &str = r#"
[[rule]]
name = "ws-ip"
match = "ws ip=*"
limit = "2 per hour"

[[rule]]
name = "jobs"
match = "jobs"
limit = "1 in flight"

[text]
listen = "127.0.0.1:0"

[http]
listen = ["127.0.0.1:0", "127.0.0.1:0"]
names = ["limits.example"]

[admin]
listen = "127.0.0.1:0"
"#;

/// How often a test asks for something that must come before it gives up.
const TRIES_MAX: usize = 100_000;

/// An answer, whole.
pub(crate) struct Reply {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: String,
}

impl Reply {
    pub(crate) fn read(mut stream: TcpStream) -> Self {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).expect("an answer");
        let text = String::from_utf8(bytes).expect("text");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
        Self { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        let line = self.head.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")));
        line.unwrap_or_default()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).expect("JSON")
    }
}

fn connect(program: &Program) -> TcpStream {
    connect_to(program.address("http"))
}

fn connect_to(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("the door is open");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream
}

/// Sends one request, whole, and reads the answer to its end.
fn send(program: &Program, method: &str, path: &str, headers: &str, body: &str) -> Reply {
    send_to(program.address("http"), method, path, headers, body)
}

/// As [`send`], to whoever answers at `address`.
pub(crate) fn send_to(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> Reply {
    let mut stream = connect_to(address);
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\n{headers}Content-Length: {length}\r\n\
         Connection: close\r\n\r\n{body}"
    )
    .expect("the door reads");
    Reply::read(stream)
}

pub(crate) fn ask(program: &Program, method: &str, path: &str) -> Reply {
    let host = format!("Host: {}\r\n", program.address("http"));
    send(program, method, path, &host, "")
}

fn administer(program: &Program, method: &str, path: &str) -> Reply {
    send_to(program.address("admin"), method, path, "Host: localhost\r\n", "")
}

fn check(program: &Program, body: &Value) -> Reply {
    let headers = "Host: localhost\r\nContent-Type: application/json\r\n";
    send(program, "POST", "/v1/check", headers, &body.to_string())
}

/// Sends the same check many times over one connection, without waiting in between.
pub(crate) fn check_many(program: &Program, body: &Value) {
    let body = body.to_string();
    let head = "POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
    let one = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
    let last = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let mut stream = connect(program);
    stream.write_all((one.repeat(100) + last).as_bytes()).expect("the door reads");
    let mut answers = String::new();
    stream.read_to_string(&mut answers).expect("answers");
    assert_eq!(answers.matches("HTTP/1.1 ").count(), 101);
}

fn names(value: &Value) -> BTreeSet<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

#[test]
fn a_key_is_checked_shown_and_reset() {
    let program = Program::serve(CONFIG);
    let allowed = check(&program, &json!({"key": "ws ip=1"}));
    assert_eq!(allowed.status, 200);
    let expected = BTreeSet::from(["allowed", "delay_ms", "refused_by", "limits"]);
    assert_eq!(names(&allowed.json()), expected);
    let of_a_limit = BTreeSet::from([
        "key",
        "rule",
        "limit",
        "amount",
        "period_ms",
        "remaining",
        "rate",
        "retry_after_ms",
        "reset_ms",
    ]);
    assert_eq!(names(&allowed.json()["limits"][0]), of_a_limit);
    assert_eq!(allowed.json()["limits"][0]["limit"], "2 per hour");

    check(&program, &json!({"key": "ws ip=1"}));
    let refused = check(&program, &json!({"keys": ["ws ip=2", "ws ip=1"]}));
    assert_eq!(refused.status, 429);
    assert_eq!(refused.json()["refused_by"], "ws-ip");
    let retry_after: u64 = refused.header("retry-after").parse().expect("whole seconds");
    assert!((1..=1800).contains(&retry_after), "{retry_after}");

    let shown = administer(&program, "GET", "/v1/keys/ws%20ip=1");
    assert_eq!((shown.status, &shown.json()["allowed"]), (200, &json!(false)));
    assert_eq!(shown.json()["stats"]["requests"], 3);
    assert_eq!(administer(&program, "DELETE", "/v1/keys/ws%20ip=1").status, 204);
    let shown = administer(&program, "GET", "/v1/keys/ws%20ip=1");
    assert_eq!((shown.status, &shown.json()["allowed"]), (200, &json!(true)));

    let top = administer(&program, "GET", "/v1/top?by=used&count=5");
    assert_eq!((top.status, &top.json()["by"]), (200, &json!("used")));
}

#[test]
fn uses_in_flight_end_and_lapse() {
    let program = Program::serve(CONFIG);
    let held = check(&program, &json!({"key": "jobs", "hold_ms": 3_600_000}));
    assert_eq!(held.status, 200);
    let path = format!("/v1/uses/{}", held.json()["use"].as_str().expect("an id"));
    let refused = check(&program, &json!({"key": "jobs", "hold_ms": 1}));
    assert_eq!((refused.status, refused.header("retry-after")), (429, "1"));
    assert_eq!(ask(&program, "DELETE", &path).status, 204);
    assert_eq!(ask(&program, "DELETE", &path).status, 404);

    let brief = check(&program, &json!({"key": "jobs", "hold_ms": 1}));
    assert_eq!(brief.status, 200);
    // Nobody ends it, so it has to end by itself.
    let free = |_| administer(&program, "GET", "/v1/keys/jobs").json()["allowed"] == true;
    assert!((0..TRIES_MAX).any(free), "it did not lapse");
    let path = format!("/v1/uses/{}", brief.json()["use"].as_str().expect("an id"));
    assert_eq!(ask(&program, "DELETE", &path).status, 404);
}

#[test]
fn bad_input_is_a_problem_and_is_counted() {
    let program = Program::serve(CONFIG);
    let json = "Host: localhost\r\nContent-Type: application/json\r\n";
    let text = "Host: localhost\r\nContent-Type: text/plain\r\n";
    let long = "x".repeat(70_000);
    let cases = [
        (400, "json", send(&program, "POST", "/v1/check", json, "{")),
        (400, "field", send(&program, "POST", "/v1/check", json, r#"{"kee":"a"}"#)),
        (400, "cost_zero", check(&program, &json!({"key": "ws ip=1", "cost": 0}))),
        (400, "cost_above_limit", check(&program, &json!({"key": "ws ip=1", "cost": 3}))),
        (400, "in_flight_key", check(&program, &json!({"key": "jobs"}))),
        (400, "key_too_long", check(&program, &json!({"key": "x".repeat(1025)}))),
        (413, "body_too_large", send(&program, "POST", "/v1/check", json, &long)),
        (415, "content_type", send(&program, "POST", "/v1/check", text, "{}")),
        (404, "path", ask(&program, "GET", "/nowhere")),
        (405, "method", ask(&program, "PUT", "/v1/check")),
        (403, "host", send(&program, "GET", "/healthz", "Host: evil.example\r\n", "")),
    ];
    let page = ask(&program, "GET", "/metrics").body;
    for (status, reason, reply) in cases {
        assert_eq!((reply.status, reply.header("content-type")), (status, PROBLEM), "{reason}");
        assert_eq!(reply.json()["reason"], reason);
        let counted = format!("{{door=\"http\",reason=\"{reason}\"}} 1");
        assert!(page.contains(&counted), "{counted} in {page}");
        assert_eq!(reply.header("allow"), if status == 405 { "post" } else { "" });
    }
    let named = send(&program, "GET", "/healthz", "Host: limits.example\r\n", "");
    assert_eq!((named.status, named.body.as_str()), (200, "ok\n"));
}

const PROBLEM: &str = "application/problem+json";

/// The series of the contract that this build has; each is there once its case has happened.
const SERIES: [(&str, &[&str]); 20] = [
    ("tidegate_decisions_total", &["door", "rule", "verdict"]),
    ("tidegate_decision_seconds", &["door"]),
    ("tidegate_bad_input_total", &["door", "reason"]),
    ("tidegate_keys", &[]),
    ("tidegate_keys_max", &[]),
    ("tidegate_records_max", &[]),
    ("tidegate_memory_bytes", &[]),
    ("tidegate_memory_max_bytes", &[]),
    ("tidegate_waiting_max", &["door"]),
    ("tidegate_ready", &[]),
    ("tidegate_config_reloads_total", &["result"]),
    ("tidegate_config_last_reload_successful", &[]),
    ("tidegate_config_last_reload_success_timestamp_seconds", &[]),
    ("process_cpu_seconds_total", &[]),
    ("process_resident_memory_bytes", &[]),
    ("process_virtual_memory_bytes", &[]),
    ("process_open_fds", &[]),
    ("process_max_fds", &[]),
    ("process_start_time_seconds", &[]),
    ("tidegate_build_info", &["version"]),
];

fn scrape(program: &Program) -> prometheus_parse::Scrape {
    let reply = ask(program, "GET", "/metrics");
    let openmetrics = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert_eq!((reply.status, reply.header("content-type")), (200, openmetrics));
    // The parser passes over what it does not know, so every line has to count alone first.
    for line in reply.body.lines().filter(|line| !line.starts_with('#')) {
        let alone = prometheus_parse::Scrape::parse([Ok(line.to_owned())].into_iter());
        assert_eq!(alone.expect("a sample").samples.len(), 1, "{line}");
    }
    let lines = reply.body.lines().map(|line| Ok(line.to_owned()));
    prometheus_parse::Scrape::parse(lines).expect("a page of metrics")
}

#[test]
fn metrics_are_read_by_somebody_elses_parser() {
    let program = Program::serve(CONFIG);
    ask(&program, "GET", "/nowhere");
    // Times are sampled: ask until one was taken.
    let timed = |page: &prometheus_parse::Scrape| {
        page.samples.iter().any(|sample| sample.metric == "tidegate_decision_seconds")
    };
    let pages = (0..TRIES_MAX).map(|_| {
        check_many(&program, &json!({"keys": ["ws ip=1", "ws ip=2", "free"]}));
        scrape(&program)
    });
    let page = pages.into_iter().find(timed).expect("a sampled time");
    for (name, labels) in SERIES {
        let sample = page.samples.iter().find(|sample| sample.metric == name);
        let sample = sample.unwrap_or_else(|| panic!("no {name}"));
        let found: BTreeSet<&str> = sample.labels.keys().map(String::as_str).collect();
        assert_eq!(found, labels.iter().copied().collect(), "{name}");
    }
    for sample in &page.samples {
        let raw = sample.labels.values().find(|value| value.contains("ip="));
        assert_eq!(raw, None, "a raw key is no label");
    }
    let decided = page.samples.iter().find(|sample| {
        sample.metric == "tidegate_decisions_total"
            && sample.labels.get("door") == Some("http")
            && sample.labels.get("rule") == Some("ws-ip")
            && sample.labels.get("verdict") == Some("allow")
    });
    // Two keys, twice each, before both were used up.
    let count = decided.map(|sample| sample.value.clone());
    assert_eq!(count, Some(prometheus_parse::Value::Untyped(4.0)));
}

#[test]
fn several_addresses_are_one_door() {
    let program = Program::serve(CONFIG);
    let addresses: Vec<_> =
        program.listening().iter().filter(|(door, _)| door == "http").map(|(_, at)| *at).collect();
    assert_eq!(addresses.len(), 2);
    for address in addresses {
        let mut stream = TcpStream::connect(address).expect("the door is open");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        write!(stream, "GET /readyz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")
            .expect("the door reads");
        let reply = Reply::read(stream);
        let ready = json!({"ready": true, "draining": false, "last_reload_error": null});
        assert_eq!((reply.status, reply.json()), (200, ready));
    }
}

#[test]
fn those_who_are_not_allowed_are_cut() {
    let config = CONFIG.replace("names =", "allow = [\"192.0.2.0/24\"]\nnames =");
    let program = Program::serve(&config);
    let mut stream = connect(&program);
    let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let mut answer = Vec::new();
    // Closed or reset, according to what had arrived; answered in no case.
    let _ = stream.read_to_end(&mut answer);
    assert_eq!(answer, b"");
}

#[test]
fn running_out_of_descriptors_does_not_end_the_door() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tidegate.toml");
    std::fs::write(&path, CONFIG).expect("the file can be written");
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -n 48; exec \"$0\" serve -c \"$1\""]);
    shell.args([OsStr::new(binary()), path.as_os_str()]).env_remove("RUST_LOG");
    let mut program = Program::spawn(shell, folder);
    program.wait_until_ready();

    let crowd: Vec<TcpStream> = (0..100).map(|_| connect(&program)).collect();
    program.wait_for_line(|line| line.contains("cannot accept"));
    drop(crowd);
    // Until the door has closed what the crowd left, it may turn newcomers away.
    until(|| {
        let mut stream = connect(&program);
        let asked = stream.write_all(b"GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n");
        let mut answer = String::new();
        asked.is_ok()
            && stream.read_to_string(&mut answer).is_ok()
            && answer.starts_with("HTTP/1.0 200")
    });
}

#[test]
fn a_request_under_way_is_finished_before_the_program_ends() {
    let mut program = Program::serve(CONFIG);
    let body = r#"{"key":"ws ip=1"}"#;
    let mut stream = connect(&program);
    write!(
        stream,
        "POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nExpect: 100-continue\r\n\r\n",
        body.len()
    )
    .expect("the door reads");
    let go_on = b"HTTP/1.1 100 Continue\r\n\r\n";
    let mut answer = vec![0; go_on.len()];
    stream.read_exact(&mut answer).expect("an answer");
    assert_eq!(answer, go_on, "the door has the head and waits for the body");
    program.signal(Signal::TERM);
    stream.write_all(body.as_bytes()).expect("the door still reads");
    assert_eq!(Reply::read(stream).status, 200);
    assert!(program.exit_status().success());
}

/// A request to `/v1/wait` that is in line.
fn in_line(program: &Program, before: u64, body: &Value) -> TcpStream {
    let body = body.to_string();
    let mut stream = connect(program);
    write!(
        stream,
        "POST /v1/wait HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
    .expect("the door reads");
    wait_for_waiters(program, before + 1);
    stream
}

fn wait_for_waiters(program: &Program, expected: u64) {
    let line = format!("tidegate_waiting{{door=\"http\"}} {expected}");
    let there = || ask(program, "GET", "/metrics").body.lines().any(|said| said == line);
    assert!((0..TRIES_MAX).any(|_| there()), "{expected} never waited");
}

#[test]
fn a_client_that_leaves_is_out_of_its_line_and_the_next_is_served() {
    let program = Program::serve(CONFIG);
    let held = check(&program, &json!({"key": "jobs", "hold_ms": 3_600_000}));
    let wish = json!({"key": "jobs", "hold_ms": 3_600_000});
    let leaves = in_line(&program, 0, &wish);
    let mut behind = in_line(&program, 1, &wish);
    let stays = in_line(&program, 2, &wish);
    drop(leaves);
    // Also one that has sent something behind its request.
    behind.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("sent");
    drop(behind);
    wait_for_waiters(&program, 1);
    let id = held.json()["use"].as_str().expect("an id").to_owned();
    assert_eq!(ask(&program, "DELETE", &format!("/v1/uses/{id}")).status, 204);
    assert_eq!(Reply::read(stays).status, 200);
    wait_for_waiters(&program, 0);
}

#[test]
fn those_who_wait_are_sent_away_when_the_server_stops() {
    let mut program = Program::serve(CONFIG);
    check(&program, &json!({"key": "ws ip=a", "cost": 2}));
    let waits = in_line(&program, 0, &json!({"key": "ws ip=a"}));
    program.signal(Signal::TERM);
    let reply = Reply::read(waits);
    assert_eq!((reply.status, reply.header("retry-after")), (503, "1"));
    assert!(program.exit_status().success());
}

#[test]
fn who_closes_only_its_own_side_is_answered_unless_it_waits() {
    let program = Program::serve(CONFIG);
    let post = |path: &str, body: &str| {
        format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    let half_closed = |parts: [&[u8]; 2]| {
        let mut stream = connect(&program);
        parts.iter().for_each(|part| stream.write_all(part).expect("the door reads"));
        stream.shutdown(Shutdown::Write).expect("one side is closed");
        Reply::read(stream).status
    };
    let check = post("/v1/check", r#"{"key":"free"}"#);
    // Wherever it is parted: the end may come at any moment.
    for (split, _) in check.char_indices() {
        let (head, rest) = check.as_bytes().split_at(split);
        assert_eq!(half_closed([head, rest]), 200, "{split}");
    }
    let wait = post("/v1/wait", r#"{"key":"jobs","hold_ms":3600000}"#);
    assert_eq!(half_closed([wait.as_bytes(), b""]), 200, "what does not wait is answered");
    let waits = in_line(&program, 0, &json!({"key": "jobs", "hold_ms": 3_600_000}));
    waits.shutdown(Shutdown::Write).expect("one side is closed");
    wait_for_waiters(&program, 0);
}

#[test]
fn half_a_head_does_not_hold_up_the_end() {
    let config = format!("{CONFIG}\n[server]\nshutdown_grace = '1h'\n");
    let mut program = Program::serve(&config);
    let mut halves: Vec<TcpStream> = (0..8).map(|_| connect(&program)).collect();
    for stream in &mut halves {
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: local").expect("the door reads");
    }
    let mut second = connect(&program);
    second.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("sent");
    let mut byte = [0];
    second.read_exact(&mut byte).expect("an answer begins");
    second.write_all(b"GET /healthz HTTP/1.1\r\nHost: local").expect("the door reads");
    program.signal(Signal::TERM);
    assert!(program.exit_status().success());
}
