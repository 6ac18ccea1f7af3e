//! `tidegate proxy`, and the same by a link named `rate`.

use std::os::unix::fs::symlink;
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;

use crate::http::send_to;
use crate::program::{Program, binary, command, tidegate};
use crate::upstream::Upstream;

fn started(program: Command) -> Program {
    let mut started = Program::spawn(program, tempfile::tempdir().expect("a folder"));
    started.wait_until_ready();
    started
}

/// What the server says of the path `/a`.
fn peek(program: &Program) -> Value {
    let out = tidegate(["peek", "proxy path=/a", "--json", "--admin", &program.admin_url()]);
    let json: Value = serde_json::from_slice(&out.stdout).expect("a verdict");
    json["limits"][0].clone()
}

#[test]
fn the_documents_program_forwards_counts_and_stops() {
    let upstream = Upstream::start();
    let url = format!("http://{}", upstream.address());
    let flags = ["proxy", "--port", "0", "--rpm", "7", "--http", "127.0.0.1:0"];
    let flags = [&flags[..], &["--admin", "127.0.0.1:0", &url]].concat();
    let mut program = started(command(flags));
    let doors: Vec<&str> = program.listening().iter().map(|(door, _)| door.as_str()).collect();
    assert_eq!(doors, ["proxy", "http", "admin"]);
    assert!(program.address("proxy").ip().is_loopback());
    let reply = send_to(program.address("proxy"), "GET", "/a?b=c", "Host: a\r\n", "");
    assert_eq!(reply.status, 204, "{}", reply.body);
    assert_eq!(upstream.next(), "GET /a?b=c HTTP/1.1");
    let limit = peek(&program);
    assert_eq!((&limit["rule"], &limit["limit"]), (&"proxy:proxy".into(), &"7 per minute".into()));
    program.signal(Signal::TERM);
    assert_eq!(program.exit_status().code(), Some(0));
}

#[test]
fn a_link_named_rate_is_the_program() {
    let upstream = Upstream::start();
    let folder = tempfile::tempdir().expect("a folder");
    let link = folder.path().join("rate");
    symlink(binary(), &link).expect("a link");
    let mut rate = Command::new(&link);
    rate.args(["--port", "0", "--ip", "::1", "--admin", "[::1]:0", "--log-level", "error"]);
    rate.arg(format!("http://{}", upstream.address())).env_remove("RUST_LOG");
    let mut program = started(rate);
    assert!(program.address("proxy").is_ipv6());
    assert_eq!(send_to(program.address("proxy"), "GET", "/a", "Host: a\r\n", "").status, 204);
    let limit = peek(&program);
    assert_eq!(limit["limit"], "100 per minute");
    program.signal(Signal::INT);
    assert!(program.exit_status().success());
    let told = program.rest_of_stderr();
    assert!(!told.iter().any(|line| line.contains("INFO")), "{told:?}");
}

#[test]
fn mistakes_name_the_flag() {
    for (words, named) in [
        (&["--rpm", "0", "http://a"][..], "--rpm"),
        (&["--port", "65536", "http://a"], "--port"),
        (&["--ip", "localhost", "http://a"], "--ip"),
        (&["--http", "8080", "http://a"], "--http"),
        (&["--log-level", "loud", "http://a"], "--log-level"),
        (&["--etcd-addresses", "ftp://a:2379", "http://a"], "[store]"),
        (&["ftp://a"], "URL"),
        (&[], "URL"),
    ] {
        let out = tidegate(["proxy"].iter().chain(words));
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{words:?}: {said}");
        assert!(said.contains(named), "{words:?}: {said}");
        assert!(out.stdout.is_empty());
    }
}
