//! Requests over their limit: held, refused, let go in order, and forgotten when they leave.

use std::io::{Read, Write};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use super::{Client, Message, Upstream, eventually, metric, ok, proxy};
use crate::program::{PATIENCE, Program};

const WAITING: &str = "tidegate_waiting{door=\"proxy\"}";

/// An upstream that tells of each request that has started and answers when it is told to; but
/// for `/b`, which it answers at once.
struct Paced {
    upstream: Upstream,
    started: Receiver<String>,
    go: Sender<()>,
}

impl Paced {
    fn new() -> Self {
        let (tell, started) = channel();
        let (go, gone) = channel::<()>();
        let gone = Arc::new(Mutex::new(gone));
        let upstream = Upstream::answering(move |request| {
            if request.first.starts_with("GET /b ") {
                return ok("at once");
            }
            tell.send(request.first.clone()).expect("the test listens");
            gone.lock().expect("no panic").recv_timeout(PATIENCE).expect("the test says when");
            ok(&request.text())
        });
        Self { upstream, started, go }
    }

    fn next(&self) -> String {
        self.started.recv_timeout(PATIENCE).expect("a request starts")
    }

    fn let_go(&self) {
        self.go.send(()).expect("the upstream listens");
    }
}

fn waiting(program: &Program, count: usize) {
    eventually(|| metric(program, WAITING) == count as f64);
}

#[test]
fn the_next_goes_when_one_has_ended_in_the_order_of_arrival() {
    let paced = Paced::new();
    let program = proxy(paced.upstream.address, "limit = '1 in flight'");
    let mut clients = Vec::new();
    for number in 0..6 {
        let mut client = Client::of(&program);
        client.send(format!("GET /a?{number} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes());
        clients.push(client);
        if number == 0 {
            assert_eq!(paced.next(), "GET /a?0 HTTP/1.1");
        }
        waiting(&program, number);
    }
    // Another path is another resource.
    let mut other = Client::of(&program);
    assert_eq!(other.get("/b").text(), "at once");
    paced.let_go();
    for (number, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.read().status(), 200);
        if number < 5 {
            assert_eq!(paced.next(), format!("GET /a?{} HTTP/1.1", number + 1));
            paced.let_go();
        }
    }
    waiting(&program, 0);
    assert_eq!(metric(&program, "tidegate_proxy_wait_seconds_count{proxy=\"api\"}"), 5.0);
}

#[test]
fn a_body_is_not_asked_for_before_its_turn() {
    let upstream = Upstream::mirror();
    let settings = "limit = '1 per 1h'\nalgorithm = 'sliding-log'\nmax_wait = '10ms'";
    let program = proxy(upstream.address, settings);
    let mut client = Client::of(&program);
    assert_eq!(client.get("/a").status(), 200);
    client
        .send(b"POST /a HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n");
    assert_eq!(client.read().status(), 429, "and no 100 before it");
}

#[test]
fn who_leaves_is_out_of_the_line_and_takes_nothing() {
    let paced = Paced::new();
    let program = proxy(paced.upstream.address, "limit = '1 in flight'\nidle_upstream = 0");
    let mut first = Client::of(&program);
    first.send(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n");
    paced.next();
    let before = program.files();
    // Every kind of request that could go unnoticed.
    let big = 1 << 20;
    for request in [
        "GET /a?1 HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
        "POST /a?2 HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello".to_owned(),
        "POST /a?3 HTTP/1.1\r\nHost: a\r\nContent-Length: 50\r\n\r\nhello".to_owned(),
        "POST /a?4 HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"
            .to_owned(),
        format!("POST /a?5 HTTP/1.1\r\nHost: a\r\nContent-Length: {big}\r\n\r\n")
            + &"x".repeat(100 << 10),
        "GET /a?6 HTTP/1.1\r\nHost: a\r\n\r\nGET /a?7 HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
        "POST /a?8 HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi\r\n".to_owned(),
    ] {
        let mut client = Client::of(&program);
        client.send(request.as_bytes());
        waiting(&program, 1);
        drop(client);
        eventually(|| metric(&program, WAITING) == 0.0);
    }
    // What comes later is noticed, too.
    let mut client = Client::of(&program);
    client.send(b"GET /a?9 HTTP/1.1\r\nHost: a\r\n\r\n");
    waiting(&program, 1);
    client.send(b"GET /a?10 HTTP/1.1\r\nHost: a\r\n\r\n");
    drop(client);
    eventually(|| metric(&program, WAITING) == 0.0);
    let mut last = Client::of(&program);
    last.send(b"GET /a?last HTTP/1.1\r\nHost: a\r\n\r\n");
    waiting(&program, 1);
    paced.let_go();
    first.read();
    assert_eq!(paced.next(), "GET /a?last HTTP/1.1");
    paced.let_go();
    last.read();
    drop((first, last));
    eventually(|| metric(&program, "tidegate_proxy_connections{proxy=\"api\"}") == 0.0);
    // Ten have been here; a loop that was still starting has opened a few files of its own.
    eventually(|| program.files() <= before + 5);
}

#[test]
fn a_body_that_came_along_while_waiting_arrives_whole() {
    let paced = Paced::new();
    let program = proxy(paced.upstream.address, "limit = '1 in flight'");
    let mut first = Client::of(&program);
    first.send(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n");
    paced.next();
    let body: String = (0..300_000).map(|n| char::from(b'a' + (n % 26) as u8)).collect();
    let mut second = Client::of(&program);
    let mut writer = second.stream.get_ref().try_clone().expect("the same socket");
    let head = format!("POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", body.len());
    let sent = body.clone();
    let writing = std::thread::spawn(move || {
        writer.write_all(head.as_bytes()).and_then(|()| writer.write_all(sent.as_bytes()))
    });
    waiting(&program, 1);
    paced.let_go();
    first.read();
    paced.next();
    paced.let_go();
    assert!(second.read().text() == body);
    writing.join().expect("no panic").expect("the proxy reads it all");
}

#[test]
fn over_the_limit_and_not_to_wait_is_429_with_all_that_a_client_needs() {
    let upstream = Upstream::mirror();
    let settings = "limit = '2 per day'\nalgorithm = 'sliding-log'\non_limit = 'reject'";
    let program = proxy(upstream.address, settings);
    let mut client = Client::of(&program);
    assert_eq!(client.get("/a").status(), 200);
    assert_eq!(client.get("/a?other=query").status(), 200);
    let answer = client.get("/a");
    assert_eq!(answer.status(), 429);
    let seconds: u64 = answer.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=86_400).contains(&seconds));
    assert_eq!(answer.header("ratelimit-policy"), Some("\"proxy:api\";q=2;w=86400"));
    assert_eq!(answer.header("ratelimit"), Some(format!("\"proxy:api\";r=0;t={seconds}").as_str()));
    assert_eq!(answer.header("content-type"), Some("application/problem+json"));
    let json: serde_json::Value = serde_json::from_str(&answer.text()).unwrap();
    assert_eq!(
        (json["status"].as_u64(), json["refused_by"].as_str()),
        (Some(429), Some("proxy:api"))
    );
    // The connection is of use, and `/a/` is another resource.
    assert_eq!(client.get("/a/").status(), 200);
    let refused = "tidegate_decisions_total{door=\"proxy\",rule=\"proxy:api\",verdict=\"refuse\"}";
    assert_eq!(metric(&program, refused), 1.0);
}

#[test]
fn answers_tell_what_is_left_of_a_limit_if_they_are_to() {
    let upstream = Upstream::answering(|_| {
        "HTTP/1.1 200 OK\r\nRateLimit: \"own\";r=7\r\nContent-Length: 0\r\n\r\n".to_owned()
    });
    let standing = |settings: &str| {
        let limit = "limit = ['3 per day', '9 in flight']\nalgorithm = 'sliding-log'\n";
        let program = proxy(upstream.address, &format!("{limit}{settings}"));
        let mut client = Client::of(&program);
        client.get("/a");
        let answer = client.get("/a");
        let of = |name: &str| {
            let lines = answer.headers.iter().filter(|(found, _)| found == name);
            // The day goes on.
            lines.map(|(_, line)| line.split(";t=").next().unwrap().to_owned()).collect::<Vec<_>>()
        };
        (of("ratelimit-policy"), of("ratelimit"))
    };
    assert_eq!(standing(""), (vec![], vec!["\"own\";r=7".to_owned()]));
    let (policy, state) = standing("ratelimit_headers = true");
    assert_eq!(policy, ["\"proxy:api#1\";q=3;w=86400, \"proxy:api#2\";q=9"]);
    assert_eq!(state, ["\"own\";r=7", "\"proxy:api#1\";r=1"]);
}

#[test]
fn a_wait_has_an_end_if_there_is_one() {
    let upstream = Upstream::mirror();
    let settings = "limit = '1 per day'\nalgorithm = 'sliding-log'\nmax_wait = '100ms'\n\
                    access_log = 'access.txt'";
    let program = proxy(upstream.address, settings);
    let mut client = Client::of(&program);
    assert_eq!(client.get("/a").status(), 200);
    let answer = client.get("/a");
    assert_eq!(answer.status(), 429);
    // It has waited, if in vain: only those that have are counted there.
    assert_eq!(metric(&program, "tidegate_proxy_wait_seconds_count{proxy=\"api\"}"), 1.0);
    let log = program.folder().join("access.txt");
    let waited = |line: &str| line.contains("status=429") && line.ends_with(" upstream_ms=-");
    eventually(|| std::fs::read_to_string(&log).is_ok_and(|log| log.lines().any(waited)));
    assert!(answer.header("retry-after").is_some() && answer.header("ratelimit").is_some());
    waiting(&program, 0);
}

#[test]
fn a_crowd_has_bounds() {
    let upstream = Upstream::mirror();
    let settings = "limit = '1 per day'\nalgorithm = 'sliding-log'\nmax_waiters = 2\n\
                    max_waiters_total = 3";
    let program = proxy(upstream.address, settings);
    for path in ["/a", "/b"] {
        assert_eq!(Client::of(&program).get(path).status(), 200);
    }
    let mut held = Vec::new();
    for (number, path) in ["/a", "/a"].into_iter().enumerate() {
        let mut client = Client::of(&program);
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes());
        held.push(client);
        waiting(&program, number + 1);
    }
    let answer = Client::of(&program).get("/a");
    assert_eq!((answer.status(), answer.header("retry-after")), (503, Some("1")));
    assert!(answer.text().contains("\"reason\":\"crowded\""));
    let mut third = Client::of(&program);
    third.send(b"GET /b HTTP/1.1\r\nHost: a\r\n\r\n");
    waiting(&program, 3);
    assert_eq!(Client::of(&program).get("/b").status(), 503);
    drop((held, third));
    waiting(&program, 0);
}

#[test]
fn a_raised_limit_frees_those_who_wait() {
    let upstream = Upstream::mirror();
    let settings = "limit = '1 per day'\nalgorithm = 'sliding-log'\nreplicas = 1";
    let program = proxy(upstream.address, settings);
    let mut client = Client::of(&program);
    assert_eq!(client.get("/a").status(), 200);
    client.send(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n");
    waiting(&program, 1);
    // Everything else stays as it is, so the connection does, too.
    let text = std::fs::read_to_string(program.config_path()).expect("a file");
    program.write_config(&text.replace("1 per day", "2 per day"));
    assert_eq!(client.read().status(), 200);
    client.send(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n");
    waiting(&program, 1);
    program.write_config(
        &text.replace("1 per day", "9 per day").replace("replicas = 1", "replicas = 3"),
    );
    assert_eq!(client.read().status(), 200, "a third of it is more than there was");
    client.send(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n");
    waiting(&program, 1);
    program.write_config(&text.replace("1 per day", "9 per day"));
    assert_eq!(client.read().status(), 200);
}

#[test]
fn a_body_that_came_along_counts_towards_what_it_may_be() {
    let paced = Paced::new();
    let program = proxy(paced.upstream.address, "limit = '1 in flight'\nmax_body = '1KiB'");
    let mut first = Client::of(&program);
    first.send(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n");
    paced.next();
    let mut long = Client::of(&program);
    long.send(b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    long.send(format!("401\r\n{}\r\n0\r\n\r\n", "x".repeat(0x401)).as_bytes());
    waiting(&program, 1);
    paced.let_go();
    assert_eq!(first.read().status(), 200);
    assert_eq!(long.read().status(), 413);
}

#[test]
fn a_use_in_flight_ends_however_its_request_does() {
    let upstream = Upstream::new(|mut stream| {
        let Some(request) = Message::read(&mut stream) else { return };
        let out = stream.get_mut();
        let _ = match request.first.as_str() {
            "GET /die HTTP/1.1" => out.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx"),
            "GET /close HTTP/1.1" => Ok(()),
            "GET /endless HTTP/1.1" => {
                let _ = out.write_all(b"HTTP/1.1 200 OK\r\n\r\nx");
                stream.read(&mut [0]).map(|_| ())
            }
            // It answers one request for each connection, and says so.
            _ => {
                out.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
            }
        };
    });
    let settings = "limit = '1 in flight'\nkey = 'all'\nresponse_timeout = '10s'";
    let program = proxy(upstream.address, settings);
    for path in ["/fine", "/die", "/close", "/fine", "/endless", "/fine"] {
        let mut client = Client::of(&program);
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes());
        let mut byte = [0];
        client.stream.read_exact(&mut byte).expect("an answer begins");
    }
    assert_eq!(Client::of(&program).get("/fine").status(), 200);
    waiting(&program, 0);
}
