//! Connections that go on as something else: a real WebSocket client and server, and raw bytes.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use tokio_tungstenite::tungstenite::{self, Message as Words, WebSocket};

use super::{Client, Message, Upstream, eventually, metric, proxy};
use crate::program::PATIENCE;

/// A WebSocket server that says everything again.
pub(super) fn echo() -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let Ok(mut socket) = tungstenite::accept(stream) else { return };
                while let Ok(words) = socket.read() {
                    if words.is_close() || socket.send(words).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

pub(super) fn connect(address: std::net::SocketAddr) -> WebSocket<TcpStream> {
    let stream = TcpStream::connect(address).expect("the proxy accepts");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    tungstenite::client("ws://a.example/socket", stream).expect("a handshake").0
}

#[test]
fn a_websocket_holds_its_use_until_it_is_closed() {
    let program = proxy(echo(), "limit = '1 in flight'");
    let address = program.address("proxy");
    let mut first = connect(address);
    for number in 0..100 {
        let words = Words::text(format!("{number} {}", "x".repeat(number * 1000)));
        first.send(words.clone()).expect("sent");
        assert_eq!(first.read().expect("an echo"), words);
    }
    let second = thread::spawn(move || connect(address));
    eventually(|| metric(&program, "tidegate_waiting{door=\"proxy\"}") == 1.0);
    drop(first);
    let mut second = second.join().expect("no panic");
    second.send(Words::text("hello")).expect("sent");
    assert_eq!(second.read().expect("an echo"), Words::text("hello"));
}

#[test]
fn a_tunnel_in_which_nobody_says_anything_is_closed() {
    let settings = "limit = '1 in flight'\ntunnel_timeout = '200ms'";
    let program = proxy(echo(), settings);
    let mut silent = connect(program.address("proxy"));
    silent.send(Words::text("hello")).expect("sent");
    assert_eq!(silent.read().expect("an echo"), Words::text("hello"));
    assert!(silent.read().is_err(), "the proxy has closed");
    // The use has been given back.
    connect(program.address("proxy"));
}

#[test]
fn a_tunnel_in_which_somebody_talks_stays_open() {
    let program = proxy(echo(), "limit = 'none'\ntunnel_timeout = '300ms'");
    let mut talking = connect(program.address("proxy"));
    let mut silent = connect(program.address("proxy"));
    let closed = thread::spawn(move || silent.read().is_err());
    let mut talk = || {
        talking.send(Words::text("hello")).expect("sent");
        assert_eq!(talking.read().expect("an echo"), Words::text("hello"));
    };
    // It is the older of the two.
    while !closed.is_finished() {
        talk();
    }
    assert!(closed.join().expect("no panic"), "the proxy has closed");
    talk();
}

#[test]
fn bytes_that_come_with_the_answer_or_right_behind_the_request_are_not_lost() {
    let upstream = Upstream::new(|mut stream| {
        let Some(request) = Message::read_head(&mut stream) else { return };
        assert_eq!(request.header("upgrade"), Some("echo"));
        assert_eq!(request.header("connection"), Some("upgrade"));
        let head = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\n\
            Upgrade: echo\r\n\r\nfirst ";
        stream.get_mut().write_all(head).expect("the proxy reads");
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).expect("until the client is done");
        stream.get_mut().write_all(&bytes).expect("the proxy reads");
    });
    let program = proxy(upstream.address, "");
    let mut client = Client::of(&program);
    client.send(
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nright behind",
    );
    let answer = Message::read_head(&mut client.stream).expect("an answer");
    assert_eq!(answer.status(), 101);
    assert_eq!(
        (answer.header("upgrade"), answer.header("connection")),
        (Some("echo"), Some("upgrade"))
    );
    super::half_close(&client.stream);
    let mut bytes = String::new();
    client.stream.read_to_string(&mut bytes).expect("all of it");
    assert_eq!(bytes, "first right behind");
}

#[test]
fn an_upgrade_that_the_upstream_declines_or_invents_does_no_harm() {
    let upstream = Upstream::answering(|request| match request.first.as_str() {
        "GET /invented HTTP/1.1" => {
            "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n".into()
        }
        _ => super::ok("no"),
    });
    let program = proxy(upstream.address, "");
    let mut client = Client::of(&program);
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n");
    assert_eq!(client.read().text(), "no");
    assert_eq!(Client::of(&program).get("/invented").status(), 502);
}
