//! Starts with a remote store: doors are bound at once, nothing is decided before the store has
//! answered or `start_timeout` is over, and the process can be watched and stopped meanwhile.
//!
//! Limits are per hour, and a decision has a minute, so that no test depends on how fast it runs.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use rustix::process::Signal;
use serde_json::json;

use crate::engines::{etcd, redis, until};
use crate::http::{Reply, send_to};
use crate::jarl;
use crate::program::{Program, command};
use crate::text::Client;
use crate::upstream::Upstream;

const DOORS: &str = "
[text]
listen = '127.0.0.1:0'
[[jarl]]
service = 'jobs'
listen = '127.0.0.1:0'
limit = '10 per 1h'
exact = true
[http]
listen = '127.0.0.1:0'
[admin]
listen = '127.0.0.1:0'
[[rule]]
match = 'k *'
limit = '10 per 1h'
[[rule]]
match = 'deny *'
limit = '10 per 1h'
on_store_error = 'deny'
";

/// The server at the moment at which its last door is bound.
fn bound(kind: &str, url: &str, start_timeout: &str) -> Program {
    let store = format!(
        "[store]\nkind = '{kind}'\nurl = '{url}'\ntimeout = '1m'\n\
         start_timeout = '{start_timeout}'\n"
    );
    let mut program = Program::start(&[DOORS, &store].concat());
    program.wait_for_line(|line| line.starts_with("listening door=admin "));
    program
}

fn ask(program: &Program, path: &str) -> Reply {
    send_to(program.address("http"), "GET", path, "Host: localhost\r\n", "")
}

fn check(http: SocketAddr, key: &str) -> Reply {
    let headers = "Host: localhost\r\nContent-Type: application/json\r\n";
    send_to(http, "POST", "/v1/check", headers, &json!({ "key": key }).to_string())
}

/// How many datagrams were dropped because they came before the start was over.
fn dropped(program: &Program) -> u64 {
    let line = "tidegate_bad_input_total{door=\"text\",reason=\"before_start\"} ";
    let page = ask(program, "/metrics").body;
    let count = page.lines().find_map(|found| found.strip_prefix(line));
    count.map_or(0, |count| count.parse().expect("a number"))
}

/// The start still waits after the store was tried in vain several times.
fn waits_on(program: &Program) {
    until(|| {
        let page = ask(program, "/metrics").body;
        let tries = page.lines().filter(|line| line.starts_with("tidegate_store_errors_total{"));
        let tries = tries.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
        tries.sum::<u64>() >= 6
    });
    let ready = ask(program, "/readyz");
    assert_eq!((ready.status, &ready.json()["ready"]), (503, &json!(false)));
    assert!(ready.json()["store_away"].is_string(), "{}", ready.body);
}

/// Asks from the moment at which the doors are bound: never more is granted than the limit.
fn grants_no_more_than_the_limit(kind: &str, url: &str) {
    let mut program = bound(kind, url, "10m");
    let (http, service) = (program.address("http"), program.address("jarl"));
    thread::scope(|scope| {
        let checks: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(move || (0..20).filter(|_| check(http, "k a").status == 200).count())
            })
            .collect();
        let callers: Vec<_> = (0..30).map(|_| scope.spawn(move || jarl::delay(service))).collect();
        let text = Client::new(program.address("text"));
        (0..50).for_each(|_| text.send(b"over_limit k b"));
        program.wait_until_ready();
        (0..50).for_each(|_| text.send(b"1 over_limit k b"));
        let mut passed = 0;
        // Those that came before are dropped, or answered as all others.
        for _ in 0..100 - dropped(&program) {
            let reply = String::from_utf8(text.reply()).expect("text");
            passed += usize::from(reply.trim_start_matches("1 ").starts_with("ok N "));
        }
        assert_eq!(passed, 10, "datagrams");
        let passed: usize = checks.into_iter().map(|one| one.join().expect("answers")).sum();
        assert_eq!(passed, 10, "requests over HTTP");
        let delays = callers.into_iter().map(|one| one.join().expect("an answer"));
        assert_eq!(delays.filter(|delay| *delay == 0.0).count(), 10, "callers of a service");
    });
}

#[test]
fn no_use_is_granted_uncounted_beside_a_redis() {
    let server = redis::Server::start(&[]);
    grants_no_more_than_the_limit("redis", &server.url());
}

#[test]
fn no_use_is_granted_uncounted_beside_an_etcd() {
    let member = etcd::Member::start(&[]);
    grants_no_more_than_the_limit("etcd", &member.url());
}

#[test]
fn requests_are_held_and_health_is_answered_until_the_store_answers() {
    let server = redis::Server::start(&[]);
    server.halt();
    let mut program = bound("redis", &server.url(), "10m");
    let http = program.address("http");
    let text = Client::new(program.address("text"));
    (0..3).for_each(|_| text.send(b"over_limit k a"));
    thread::scope(|scope| {
        let held = scope.spawn(move || check(http, "deny a"));
        assert_eq!(ask(&program, "/healthz").status, 200);
        assert!(ask(&program, "/metrics").body.contains("tidegate_build_info"));
        waits_on(&program);
        let admin = program.address("admin");
        for (path, status) in [("/healthz", 200), ("/readyz", 503), ("/metrics", 200)] {
            let reply = send_to(admin, "GET", path, "Host: localhost\r\n", "");
            assert_eq!(reply.status, status, "{path}");
        }
        assert!(!held.is_finished());
        server.go_on();
        program.wait_until_ready();
        let reply = held.join().expect("an answer");
        assert_eq!((reply.status, &reply.json()["limits"][0]["remaining"]), (200, &json!(9)));
    });
    assert_eq!(ask(&program, "/readyz").status, 200);
    assert_eq!(dropped(&program), 3);
    assert!(text.ask("over_limit k a").starts_with("ok N 1.0 10.0 3600"));
}

#[test]
fn an_error_is_no_answer_and_its_cause_is_told_once() {
    let server = redis::Server::start(&["--requirepass", "right"]);
    let url = format!("redis://:wrong@127.0.0.1:{}", server.port());
    let mut program = bound("redis", &url, "1s");
    let told = program.wait_for_line(|line| line.contains("start_timeout"));
    assert!(told.contains("authentication failed") && !told.contains(":wrong"), "{told}");
    program.wait_until_ready();
    assert_eq!(check(program.address("http"), "k a").status, 200);
    assert_eq!(check(program.address("http"), "deny a").status, 429);
    program.signal(Signal::TERM);
    let rest = program.rest_of_stderr();
    assert!(!rest.iter().any(|line| line.contains("authentication")), "{rest:#?}");
}

/// A server that accepts and never says a word.
fn silent() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    (listener, address.to_string())
}

#[test]
fn a_store_that_says_nothing_is_waited_for_no_longer_than_told() {
    for kind in ["redis", "etcd"] {
        let (_listener, address) = silent();
        let scheme = if kind == "redis" { "redis" } else { "http" };
        let mut program = bound(kind, &format!("{scheme}://{address}"), "300ms");
        program.wait_for_line(|line| line.contains("start_timeout"));
        program.wait_until_ready();
        assert_eq!(check(program.address("http"), "k a").status, 200);
        assert_eq!(check(program.address("http"), "deny a").status, 429);
        assert_eq!(jarl::delay(program.address("jarl")), 0.0);
    }
}

#[test]
fn a_start_that_waits_can_be_stopped() {
    let (_listener, address) = silent();
    for signal in [Signal::TERM, Signal::INT] {
        let mut program = bound("redis", &format!("redis://{address}"), "10m");
        let connect = |door| TcpStream::connect(program.address(door)).expect("the door is bound");
        let (_caller, mut held) = (connect("jarl"), connect("http"));
        write!(held, "GET /v1/top HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("a request");
        waits_on(&program);
        program.signal(signal);
        assert_eq!(program.exit_status().code(), Some(0));
        let mut reply = String::new();
        held.read_to_string(&mut reply).expect("the connection ends");
        // Nothing, if the request was not read yet.
        assert!(reply.is_empty() || reply.starts_with("HTTP/1.1 503 "), "{reply}");
    }
}

#[test]
fn the_documents_proxy_waits_too_and_can_be_stopped() {
    let (_listener, address) = silent();
    let upstream = Upstream::start();
    let url = format!("http://{}", upstream.address());
    let flags = ["proxy", "--port", "0", "--http", "127.0.0.1:0", "--etcd-addresses", &address];
    let flags = flags.into_iter().chain([&*url]);
    let mut program = Program::spawn(command(flags), tempfile::tempdir().expect("a folder"));
    program.wait_for_line(|line| line.starts_with("listening door=http "));
    let _held = TcpStream::connect(program.address("proxy")).expect("the door is bound");
    waits_on(&program);
    program.signal(Signal::TERM);
    assert_eq!(program.exit_status().code(), Some(0));
}
