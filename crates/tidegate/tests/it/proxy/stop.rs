//! Stopping: who is being served is served, and who waits is told to come back.

use std::sync::mpsc::channel;

use rustix::process::Signal;

use super::{Client, Upstream, eventually, metric, ok, proxy};
use crate::program::{PATIENCE, Program};

fn serve(upstream: &Upstream, grace: &str) -> Program {
    let settings = format!("limit = '1 in flight'\n[server]\nshutdown_grace = '{grace}'");
    proxy(upstream.address, &settings)
}

#[test]
fn what_is_under_way_is_finished_and_idle_connections_are_closed() {
    let (tell, started) = channel();
    let (go, gone) = channel::<()>();
    let gone = std::sync::Mutex::new(gone);
    let upstream = Upstream::answering(move |request| {
        tell.send(()).expect("the test listens");
        gone.lock().expect("no panic").recv_timeout(PATIENCE).expect("the test says when");
        ok(&request.first)
    });
    let mut program = serve(&upstream, "60s");
    let mut idle = Client::of(&program);
    go.send(()).expect("the upstream listens");
    idle.get("/idle");
    started.recv_timeout(PATIENCE).expect("it starts");
    let mut busy = Client::of(&program);
    busy.send(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n");
    started.recv_timeout(PATIENCE).expect("it starts");
    let mut held = Client::of(&program);
    held.send(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n");
    eventually(|| metric(&program, "tidegate_waiting{door=\"proxy\"}") == 1.0);
    program.signal(Signal::TERM);
    assert!(idle.closed());
    go.send(()).expect("the upstream listens");
    // Its loop may not have heard of the end yet; the connection is closed all the same.
    assert_eq!(busy.read().status(), 200);
    assert!(busy.closed());
    started.recv_timeout(PATIENCE).expect("who waited starts");
    go.send(()).expect("the upstream listens");
    assert_eq!(held.read().status(), 200);
    assert!(program.exit_status().success());
}

#[test]
fn who_still_waits_near_the_end_is_told_to_come_back() {
    let upstream = Upstream::new(|stream| {
        // Answers nobody, and lives as long as the connection.
        let mut stream = stream;
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
    });
    let mut program = serve(&upstream, "1s");
    let mut busy = Client::of(&program);
    busy.send(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n");
    eventually(|| metric(&program, "tidegate_proxy_upstream_connections{proxy=\"api\"}") == 1.0);
    let mut held = Client::of(&program);
    held.send(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n");
    eventually(|| metric(&program, "tidegate_waiting{door=\"proxy\"}") == 1.0);
    program.signal(Signal::TERM);
    let answer = held.read();
    assert_eq!((answer.status(), answer.header("retry-after")), (503, Some("1")));
    assert!(answer.text().contains("\"reason\":\"stopping\""));
    assert!(program.exit_status().success());
}

#[test]
fn new_settings_do_not_wait_for_old_requests() {
    let (tell, started) = channel();
    let (go, gone) = channel::<()>();
    let gone = std::sync::Mutex::new(gone);
    let old = Upstream::answering(move |_| {
        tell.send(()).expect("the test listens");
        gone.lock().expect("no panic").recv_timeout(PATIENCE).expect("the test says when");
        ok("old")
    });
    let new = Upstream::answering(|_| ok("new"));
    let mut program = serve(&old, "60s");
    let address = program.address("proxy");
    let mut busy = Client::of(&program);
    busy.send(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n");
    started.recv_timeout(PATIENCE).expect("it starts");
    let text = std::fs::read_to_string(program.config_path()).expect("a file");
    let text = text.replacen("127.0.0.1:0", &address.to_string(), 1);
    program.write_config(&text.replace(&old.address.to_string(), &new.address.to_string()));
    program.wait_for_line(|line| line == format!("listening door=proxy addr={address}"));
    assert_eq!(Client::new(address).get("/b").text(), "new");
    go.send(()).expect("the upstream listens");
    assert_eq!(busy.read().text(), "old");
}
