//! Stopping: who is being served is served, and who waits is told to come back.

use std::io::{Read, Write};
use std::sync::mpsc::{Receiver, Sender, channel};

use http_body_util::Full;
use hyper::Request;
use hyper::body::Bytes;
use rustix::process::Signal;
use tokio::task::block_in_place;
use tokio_tungstenite::tungstenite::Message as Words;

use super::http2::{prior_knowledge, text};
use super::websocket::{connect, echo};
use super::{Client, Message, Upstream, eventually, metric, ok, proxy};
use crate::program::{PATIENCE, Program};

/// With more patience with silent clients than the tests have.
fn settings(limit: &str, grace: &str) -> String {
    format!("limit = '{limit}'\nhead_timeout = '1h'\n[server]\nshutdown_grace = '{grace}'")
}

fn serve(upstream: &Upstream, grace: &str) -> Program {
    proxy(upstream.address, &settings("1 in flight", grace))
}

/// An upstream that says when a request has come, and answers when it is told to.
fn patient() -> (Upstream, Receiver<()>, Sender<()>) {
    let (tell, started) = channel();
    let (go, gone) = channel::<()>();
    let gone = std::sync::Mutex::new(gone);
    let upstream = Upstream::answering(move |request| {
        tell.send(()).expect("the test listens");
        gone.lock().expect("no panic").recv_timeout(PATIENCE).expect("the test says when");
        ok(&request.first)
    });
    (upstream, started, go)
}

#[test]
fn what_is_under_way_is_finished_and_idle_connections_are_closed() {
    let (upstream, started, go) = patient();
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
    let (old, started, go) = patient();
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
    assert_eq!(busy.read().text(), "GET /a HTTP/1.1");
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_of_http2_are_finished_and_no_new_ones_begin() {
    let (upstream, started, go) = patient();
    let mut program = serve(&upstream, "60s");
    let sender = prior_knowledge(program.address("proxy")).await;
    let ask = || {
        let mut sender = sender.clone();
        tokio::spawn(async move {
            let request = Request::get("http://a/a").body(Full::<Bytes>::default());
            sender.send_request(request.expect("a request")).await
        })
    };
    let busy = ask();
    block_in_place(|| started.recv_timeout(PATIENCE).expect("it starts"));
    let held = ask();
    block_in_place(|| eventually(|| metric(&program, "tidegate_waiting{door=\"proxy\"}") == 1.0));
    let mut silent = Client::of(&program);
    program.signal(Signal::TERM);
    block_in_place(|| assert!(silent.closed()));
    for stream in [busy, held] {
        go.send(()).expect("the upstream listens");
        let answer = stream.await.expect("no panic").expect("an answer");
        assert_eq!(text(answer).await, "GET /a HTTP/1.1");
    }
    // It has ended, and not only its streams.
    block_in_place(|| eventually(|| sender.is_closed()));
    block_in_place(|| assert!(program.exit_status().success()));
}

#[test]
fn a_tunnel_goes_on_until_it_is_closed() {
    let mut program = proxy(echo(), &settings("none", "60s"));
    let mut silent = Client::of(&program);
    let mut tunnel = connect(program.address("proxy"));
    program.signal(Signal::TERM);
    assert!(silent.closed());
    tunnel.send(Words::text("hello")).expect("sent");
    assert_eq!(tunnel.read().expect("an echo"), Words::text("hello"));
    drop(tunnel);
    assert!(program.exit_status().success());
}

#[test]
fn a_tunnel_does_not_outlive_the_grace() {
    let mut program = proxy(echo(), &settings("none", "500ms"));
    let _open = connect(program.address("proxy"));
    program.signal(Signal::TERM);
    assert!(program.exit_status().success());
}

#[test]
fn a_request_behind_its_answer_leaves_whole() {
    let (told, taken) = channel();
    let upstream = Upstream::new(move |mut stream| {
        let Some(_) = Message::read_head(&mut stream) else { return };
        stream.get_mut().write_all(ok("enough").as_bytes()).expect("the proxy reads");
        let mut body = String::new();
        let _ = stream.read_to_string(&mut body);
        told.send(body).expect("the test waits");
    });
    let mut program = serve(&upstream, "60s");
    let mut client = Client::of(&program);
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nfirst");
    assert_eq!(client.read().text(), "enough");
    let mut silent = Client::of(&program);
    program.signal(Signal::TERM);
    assert!(silent.closed());
    client.send(b"again");
    assert_eq!(taken.recv_timeout(PATIENCE).expect("the upstream is told"), "firstagain");
    assert!(program.exit_status().success());
}

#[test]
fn half_a_head_holds_up_nobody() {
    let (upstream, started, go) = patient();
    let mut program = serve(&upstream, "1h");
    let half = b"GET /a HTTP/1.1\r\nHost: a";
    let mut halves: Vec<Client> = (0..8).map(|_| Client::of(&program)).collect();
    halves.iter_mut().for_each(|client| client.send(half));
    // One of them begins another request on a connection that is of use.
    go.send(()).expect("the upstream listens");
    let mut second = Client::of(&program);
    second.get("/b");
    started.recv_timeout(PATIENCE).expect("it starts");
    second.send(half);
    halves.push(second);
    let mut busy = Client::of(&program);
    busy.send(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n");
    started.recv_timeout(PATIENCE).expect("it starts");
    program.signal(Signal::TERM);
    halves.iter_mut().for_each(|client| assert!(client.closed()));
    go.send(()).expect("the upstream listens");
    assert_eq!(busy.read().status(), 200);
    assert!(program.exit_status().success());
}

#[test]
fn a_client_of_http2_that_takes_no_leave_holds_up_nobody() {
    let upstream = Upstream::mirror();
    let mut program = serve(&upstream, "1h");
    let mut client = Client::of(&program);
    // A preface, settings, and the beginning of a head that does not end.
    client.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
    client.send(b"\0\0\x05\x01\0\0\0\0\x01\x82");
    program.signal(Signal::TERM);
    client.all();
    assert!(program.exit_status().success());
}
