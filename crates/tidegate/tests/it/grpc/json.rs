//! Calls as JSON at `/json`, decided as at the gRPC door.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};

use serde_json::{Value, json};
use tempfile::TempDir;
use tidegate_envoy::json::write_response;
use tidegate_envoy::proto::descriptor::rate_limit_descriptor::RateLimitOverride;
use tidegate_envoy::proto::ratelimit::RateLimitRequest;

use super::{Client, DOORS, call};
use crate::http::{Reply, send_to};
use crate::program::{PATIENCE, Program};

/// Windows of a year, so that no test depends on how fast it runs or when.
const FILE: &str = "
domain: basic
descriptors:
  - key: one
    rate_limit: { unit: year, requests_per_unit: 1 }
  - key: user
    rate_limit: { unit: year, requests_per_unit: 4, name: users }
    descriptors:
      - key: path
        rate_limit: { unit: year, requests_per_unit: 3 }
  - key: quiet
    shadow_mode: true
    rate_limit: { unit: year, requests_per_unit: 1 }
  - key: free
    rate_limit: { unlimited: true }
  - key: never
    rate_limit: { unit: year, requests_per_unit: 0 }
";

const RULE: &str = "[[rule]]\nname = 'web'\nmatch = 'web *'\nlimit = '2 per 300d'\n";

fn program() -> (Program, TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("basic.yaml"), FILE).expect("a file");
    let table = format!("envoy_config = '{}'\n[http]", folder.path().display());
    (Program::serve(&[RULE, &DOORS.replace("[http]", &table)].concat()), folder)
}

fn post(program: &Program, headers: &str, body: &str) -> Reply {
    let headers = format!("Host: localhost\r\n{headers}");
    send_to(program.address("http"), "POST", "/json", &headers, body)
}

/// A request as JSON.
fn written(request: &RateLimitRequest) -> Value {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let descriptor = |it: &tidegate_envoy::proto::descriptor::RateLimitDescriptor| {
        let entries = { it.entries.iter() }
            .map(|entry| json!({"key": text(&entry.key), "value": text(&entry.value)}));
        let limit = it
            .limit
            .as_ref()
            .map(|it| json!({"requestsPerUnit": it.requests_per_unit, "unit": it.unit}));
        json!({"entries": entries.collect::<Vec<_>>(), "limit": limit,
               "hitsAddend": it.hits_addend, "is_negative_hits": it.is_negative_hits})
    };
    json!({"domain": request.domain, "hits_addend": request.hits_addend,
           "descriptors": request.descriptors.iter().map(descriptor).collect::<Vec<_>>()})
}

/// Without what the time changes.
fn timeless(mut answer: Value) -> Value {
    for status in answer["statuses"].as_array_mut().into_iter().flatten() {
        if let Some(span) = status.get_mut("durationUntilReset") {
            assert!(span.as_str().is_some_and(|span| span.ends_with('s')), "{span}");
            *span = json!("later");
        }
    }
    answer
}

#[test]
fn a_call_is_answered_as_json() {
    let (program, _folder) = program();
    let check = |entries: &str, rest: &str, status: u16, expected: Value| {
        let body = format!(r#"{{"domain":"basic","descriptors":[{{"entries":{entries}}}]{rest}}}"#);
        // `curl -d` says that it sends a form.
        let headers = "Content-Type: application/x-www-form-urlencoded\r\n";
        let reply = post(&program, headers, &body);
        assert_eq!(reply.status, status, "{body}: {}", reply.body);
        assert_eq!(reply.header("content-type"), "application/json");
        assert_eq!(timeless(reply.json()), expected, "{body}");
    };
    let year = |amount| json!({"requestsPerUnit": amount, "unit": "YEAR"});
    let one = r#"[{"key":"one","value":"a"}]"#;
    let status = json!({"code": "OK", "currentLimit": year(1), "durationUntilReset": "later"});
    check(one, "", 200, json!({"overallCode": "OK", "statuses": [status]}));
    let over =
        json!({"code": "OVER_LIMIT", "currentLimit": year(1), "durationUntilReset": "later"});
    check(one, "", 429, json!({"overallCode": "OVER_LIMIT", "statuses": [over]}));
    let named = json!({"name": "users", "requestsPerUnit": 4, "unit": "YEAR"});
    let status = json!({"code": "OK", "currentLimit": named, "limitRemaining": 1,
                        "durationUntilReset": "later"});
    let user = r#"[{"key":"user","value":"a"}]"#;
    check(user, r#","hits_addend":3"#, 200, json!({"overallCode": "OK", "statuses": [status]}));
    let bare = || json!({"overallCode": "OK", "statuses": [{"code": "OK"}]});
    check(r#"[{"key":"unknown"}]"#, "", 200, bare());
    check("[]", "", 200, bare());
    let unlimited = json!({"code": "OK", "limitRemaining": u32::MAX});
    check(r#"[{"key":"free"}]"#, "", 200, json!({"overallCode": "OK", "statuses": [unlimited]}));
}

#[test]
fn a_call_is_decided_as_over_grpc() {
    let ((one, _one), (other, _other)) = (program(), program());
    let mut client = Client::new(&one);
    let descriptors = [
        "one=a",
        "one=b",
        "user=a",
        "user=a,path=/x",
        "user=a,path=/y",
        "quiet=a",
        "free=1",
        "never=1",
        "nothing=1",
        "user=ü %=",
    ];
    // Any sequence will do, but it must be the same each time.
    let mut state = 20_u64;
    let mut next = |most: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize % most
    };
    let mut over = 0;
    for _ in 0..300 {
        let domain = ["basic", "basic", "web", "other", ""][next(5)];
        let asked: Vec<&str> = (0..next(4)).map(|_| descriptors[next(10)]).collect();
        let mut request = call(domain, &asked);
        request.hits_addend = next(3) as u32;
        if let Some(descriptor) = request.descriptors.first_mut() {
            descriptor.hits_addend = [None, None, Some(0), Some(2)][next(4)];
            descriptor.is_negative_hits = next(8) == 0;
            let limit = RateLimitOverride { requests_per_unit: 2, unit: 6 };
            descriptor.limit = (next(8) == 0).then_some(limit);
        }
        let reply = post(&other, "", &written(&request).to_string());
        match client.call(request.clone()) {
            Ok(answer) => {
                let expected = serde_json::from_str(&write_response(&answer)).expect("JSON");
                assert_eq!(timeless(reply.json()), timeless(expected), "{request:?}");
                let status = [500, 200, 429][answer.overall_code as usize];
                assert_eq!(reply.status, status, "{request:?}");
                over += usize::from(status == 429);
            }
            Err(_) => assert_eq!((reply.status, &*reply.body), (400, "Bad Request\n")),
        }
    }
    assert!((20..280).contains(&over), "{over} of 300 calls are over");
}

#[test]
fn one_count_is_behind_both_doors_and_each_counts_its_decisions() {
    let (program, _folder) = program();
    let mut client = Client::new(&program);
    let body = written(&call("web", &["user=a"])).to_string();
    assert_eq!(post(&program, "", &body).json()["statuses"][0]["limitRemaining"], 1);
    assert_eq!(client.ask(call("web", &["user=a"])).1[0].1, 0);
    assert_eq!(post(&program, "", &body).status, 429);
    let page = send_to(program.address("http"), "GET", "/metrics", "Host: localhost\r\n", "").body;
    for line in [
        r#"tidegate_decisions_total{door="http",rule="web",verdict="allow"} 1"#,
        r#"tidegate_decisions_total{door="http",rule="web",verdict="refuse"} 1"#,
        r#"tidegate_decisions_total{door="grpc",rule="web",verdict="allow"} 1"#,
    ] {
        assert!(page.lines().any(|told| told == line), "no {line} in {page}");
    }
}

#[test]
fn what_is_no_call_is_a_bad_request() {
    let (program, _folder) = program();
    let whole = written(&call("web", &["user=a"])).to_string();
    let deep = "[".repeat(60_000);
    let long = format!("{whole}{}", " ".repeat(1 << 20));
    let longer = format!("{whole}{}", " ".repeat(3 << 19));
    let many = written(&call("web", &["a=b"; 33])).to_string();
    for body in [
        "",
        "{",
        "null",
        "[]",
        "domain=web",
        r#"{"domain":"web","descriptors":[{"entries":[{"key":"user"}]}],"colour":1}"#,
        r#"{"Domain":"web","descriptors":[{}]}"#,
        r#"{"domain":"web"}"#,
        r#"{"descriptors":[{"entries":[{"key":"user"}]}]}"#,
        &deep,
        &long,
        &longer,
        &many,
    ] {
        let reply = post(&program, "Content-Type: application/json\r\n", body);
        let shown = &body[..body.len().min(80)];
        assert_eq!((reply.status, &*reply.body), (400, "Bad Request\n"), "{shown}");
    }
    // What is not UTF-8, in a domain and anywhere.
    for body in [&b"{\"domain\":\"\xff\"}"[..], b"\xff\xfe{}"] {
        let mut stream = TcpStream::connect(program.address("http")).expect("the door is open");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let head = "POST /json HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n";
        write!(stream, "{head}Content-Length: {}\r\n\r\n", body.len()).expect("it is read");
        stream.write_all(body).expect("it is read");
        assert_eq!(Reply::read(stream).status, 400);
    }
    for (header, status) in [
        ("Origin: http://localhost\r\n", 403),
        ("Origin: null\r\n", 403),
        ("Sec-Fetch-Site: cross-site\r\n", 403),
        ("Content-Type: text/html\r\n", 200),
        ("Content-Encoding: gzip\r\n", 200),
    ] {
        assert_eq!(post(&program, header, &whole).status, status, "{header}");
    }
    let ask = |method: &str, host: &str| {
        let headers = format!("Host: {host}\r\n");
        send_to(program.address("http"), method, "/json", &headers, &whole).status
    };
    for method in ["GET", "PUT", "DELETE", "OPTIONS", "BREW"] {
        assert_eq!(ask(method, "localhost"), 405, "{method}");
    }
    assert_eq!(ask("POST", "evil.example"), 403);
    // Two calls were counted, of all of these.
    assert_eq!(post(&program, "", &whole).status, 429);
    let page = send_to(program.address("http"), "GET", "/metrics", "Host: localhost\r\n", "").body;
    for (reason, times) in [("json", 10), ("origin", 3), ("body_too_large", 2), ("no_domain", 1)] {
        let line = format!("tidegate_bad_input_total{{door=\"http\",reason=\"{reason}\"}} {times}");
        assert!(page.lines().any(|told| told == line), "no {line} in {page}");
    }
}

#[test]
fn a_connection_has_many_calls_and_half_of_one_harms_nobody() {
    let (program, _folder) = program();
    let body = written(&call("web", &["user=a"])).to_string();
    let one = |more: &str| {
        let length = body.len();
        format!(
            "POST /json HTTP/1.1\r\nHost: localhost\r\n{more}Content-Length: {length}\r\n\r\n{body}"
        )
    };
    let mut half = TcpStream::connect(program.address("http")).expect("the door is open");
    half.write_all(&one("").as_bytes()[..one("").len() - 9]).expect("it is read");
    let mut stream = TcpStream::connect(program.address("http")).expect("the door is open");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let calls = [one(""), one(""), one("Connection: close\r\n")].concat();
    stream.write_all(calls.as_bytes()).expect("they are read");
    let mut answers = String::new();
    stream.read_to_string(&mut answers).expect("answers");
    let statuses: Vec<&str> = { answers.split("HTTP/1.1 ").skip(1) }.map(|it| &it[..3]).collect();
    assert_eq!(statuses, ["200", "200", "429"], "{answers}");
    half.shutdown(Shutdown::Both).expect("it was open");
    let look = json!({"domain": "web", "descriptors": [
        {"entries": [{"key": "user", "value": "b"}]}]});
    assert_eq!(post(&program, "", &look.to_string()).status, 200);
}

#[test]
fn without_a_grpc_door_rules_decide() {
    let program = Program::serve(&[RULE, "[http]\nlisten = '127.0.0.1:0'\n"].concat());
    let mut request = call("web", &["user=a"]);
    assert_eq!(post(&program, "", &written(&request).to_string()).status, 200);
    // There is nowhere to count a limit that comes along: that of the rule holds.
    request.descriptors[0].limit = Some(RateLimitOverride { requests_per_unit: 99, unit: 6 });
    assert_eq!(post(&program, "", &written(&request).to_string()).status, 200);
    assert_eq!(post(&program, "", &written(&request).to_string()).status, 429);
    let reply = send_to(program.address("http"), "GET", "/healthcheck", "Host: localhost\r\n", "");
    assert_eq!((reply.status, &*reply.body), (200, "OK"));
}

#[test]
fn settings_end_with_their_table() {
    let http = "[http]\nlisten = '127.0.0.1:0'\n";
    let grpc = "[grpc]\nlisten = '127.0.0.1:0'\nshadow = true\n";
    let mut program = Program::serve(&[RULE, grpc, http].concat());
    let body = written(&call("web", &["user=a"])).to_string();
    for _ in 0..4 {
        assert_eq!(post(&program, "", &body).status, 200);
    }
    program.write_config(&[RULE, http].concat());
    program.wait_for_line(|line| line.contains("configuration reloaded"));
    assert_eq!(post(&program, "", &body).status, 429);
}
