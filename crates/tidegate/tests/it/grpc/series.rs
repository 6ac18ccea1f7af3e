//! What the door tells of itself in `/metrics`.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use super::{Client, DOORS, call};
use crate::program::Program;

/// The page of `/metrics`.
pub(super) fn metrics(program: &Program) -> String {
    let mut stream = TcpStream::connect(program.address("http")).expect("the door is open");
    let request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(request).expect("it is read");
    let mut page = String::new();
    stream.read_to_string(&mut page).expect("a page");
    page
}

#[test]
fn calls_are_counted_by_method_and_code() {
    let program = Program::serve(DOORS);
    let mut client = Client::new(&program);
    for domain in ["d", "d", ""] {
        let _ = client.call(call(domain, &["k=v"]));
    }
    let page = metrics(&program);
    for line in [
        "tidegate_grpc_calls_total{method=\"ShouldRateLimit\",code=\"ok\"} 2",
        "tidegate_grpc_calls_total{method=\"ShouldRateLimit\",code=\"unknown\"} 1",
        "tidegate_grpc_connections 1",
        "tidegate_grpc_held_bytes 0",
    ] {
        assert!(page.lines().any(|told| told == line), "no {line} in {page}");
    }
}

/// The low bits of the clock choose them.
#[test]
fn some_calls_are_timed() {
    let program = Program::serve(DOORS);
    let mut client = Client::new(&program);
    let is_timed = (0..50).any(|_| {
        for _ in 0..100 {
            let _ = client.call(call("d", &["k=v"]));
        }
        let page = metrics(&program);
        let count =
            page.lines().find_map(|line| line.strip_prefix("tidegate_grpc_call_seconds_count "));
        count.expect("the series is there") != "0"
    });
    assert!(is_timed, "none of 5,000 calls was timed");
}
