//! HTTP/2 from clients that keep to nothing, before an upstream of HTTP/1.1: frames written by
//! hand, since no client's library would send them. What reaches the upstream means one thing.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, channel};

use super::{Message, Upstream, eventually, metric, ok, proxy};
use crate::program::{PATIENCE, Program};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// A client that writes whatever it is told to.
struct Raw(TcpStream);

impl Raw {
    fn of(program: &Program) -> Self {
        let stream = TcpStream::connect(program.address("proxy")).expect("the proxy accepts");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let mut raw = Self(stream);
        raw.0.write_all(PREFACE).expect("sent");
        raw.frame(SETTINGS, 0, 0, &[]);
        raw
    }

    fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
        let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
        self.0.write_all(&[&head, payload].concat()).expect("sent");
    }

    /// A request of these fields, one in each line, and this body.
    fn ask(&mut self, fields: &str, body: Option<&str>) {
        let mut block = Vec::new();
        for field in fields.lines() {
            let (name, value) = field.split_once(": ").expect("a name and a value");
            // Literal, never indexed, in as many bytes as there are.
            block.push(0x10);
            for text in [name, value] {
                block.push(u8::try_from(text.len()).ok().filter(|n| *n < 127).expect("short"));
                block.extend_from_slice(text.as_bytes());
            }
        }
        let over = if body.is_none() { END_STREAM } else { 0 };
        self.frame(HEADERS, END_HEADERS | over, 1, &block);
        if let Some(body) = body {
            self.frame(DATA, END_STREAM, 1, body.as_bytes());
        }
    }

    /// Reads until the request is answered in some way.
    fn answered(&mut self) {
        loop {
            let mut head = [0; 9];
            // A connection that is closed is an answer, too.
            let Ok(()) = self.0.read_exact(&mut head) else { return };
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut payload = vec![0; length as usize];
            let Ok(()) = self.0.read_exact(&mut payload) else { return };
            if matches!(head[3], HEADERS | RST_STREAM | GOAWAY) {
                return;
            }
        }
    }
}

/// An upstream that tells what reaches it.
fn witness() -> (Upstream, Receiver<Message>) {
    let (tell, seen) = channel();
    let upstream = Upstream::answering(move |request| {
        tell.send(request.clone()).expect("the test listens");
        ok("seen")
    });
    (upstream, seen)
}

const PLAIN: &str = ":method: POST\n:scheme: http\n:authority: a\n:path: /a\n";

#[test]
fn what_is_sent_means_what_was_framed() {
    let (upstream, seen) = witness();
    let program = proxy(upstream.address, "limit = 'none'");
    // A second request hides in each body, for whoever takes the wrong word for its end.
    let body = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";
    let length = format!("content-length: {}", body.len());
    for fields in ["x-a: b", &length] {
        let mut client = Raw::of(&program);
        client.ask(&format!("{PLAIN}{fields}"), Some(body));
        client.answered();
        let request = seen.recv_timeout(PATIENCE).expect("it arrives");
        assert_eq!((request.first.as_str(), request.text().as_str()), ("POST /a HTTP/1.1", body));
        assert_eq!(request.header("host"), Some("a"));
    }
    // A host that says something else than the authority does not count.
    let mut client = Raw::of(&program);
    client.ask(&format!("{PLAIN}host: b"), None);
    client.answered();
    let request = seen.recv_timeout(PATIENCE).expect("it arrives");
    let hosts: Vec<_> = request.headers.iter().filter(|(name, _)| name == "host").collect();
    assert_eq!(hosts, [&("host".to_owned(), "a".to_owned())]);
    assert!(seen.try_recv().is_err(), "nothing else has arrived");
}

#[test]
fn what_means_two_things_is_not_sent() {
    let (upstream, seen) = witness();
    let program = proxy(upstream.address, "limit = 'none'");
    let body = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";
    for (fields, body) in [
        ("content-length: 0", Some(body)),
        ("content-length: 5", Some(body)),
        ("content-length: 999", Some(body)),
        ("content-length: 5", None),
        ("content-length: 41\ncontent-length: 0", Some(body)),
        ("transfer-encoding: chunked", Some("0\r\n\r\nGET /smuggled HTTP/1.1\r\n\r\n")),
        ("connection: x-a", None),
        ("keep-alive: 1", None),
        ("upgrade: websocket", None),
        ("te: gzip", None),
        ("x-a: b\r\nx-c: d".replace("\r\n", "\r").as_str(), None),
        ("x-A: b", None),
        ("x a: b", None),
        (":path: /b", None),
        (":unknown: b", None),
    ] {
        let mut client = Raw::of(&program);
        client.ask(&format!("{PLAIN}{fields}"), body);
        client.answered();
        if let Ok(request) = seen.try_recv() {
            panic!("{fields:?} reached the upstream as {request:?}");
        }
    }
    for fields in [
        ":method: CONNECT\n:authority: a:1",
        ":method: GET\n:scheme: http\n:authority: a\n:path: a",
        ":method: GET\n:scheme: http\n:authority: u@a\n:path: /a",
        ":method: GET\n:scheme: http\n:path: /a",
        ":method: GET\n:scheme: http\n:path: /a\nhost: a\nhost: b",
        ":method: GET\n:scheme: http\n:authority: a\n:path: /a b HTTP/1.1",
    ] {
        let mut client = Raw::of(&program);
        client.ask(fields, None);
        client.answered();
        if let Ok(request) = seen.try_recv() {
            panic!("{fields:?} reached the upstream as {request:?}");
        }
    }
}

#[test]
fn whoever_waits_and_closes_its_connection_is_out_of_the_line() {
    let (upstream, _seen) = witness();
    let program = proxy(upstream.address, "limit = '1 per day'\nalgorithm = 'sliding-log'");
    let get = PLAIN.replace("POST", "GET");
    let mut first = Raw::of(&program);
    first.ask(get.trim_end(), None);
    first.answered();
    let mut second = Raw::of(&program);
    second.ask(get.trim_end(), None);
    let waiting = "tidegate_waiting{door=\"proxy\"}";
    eventually(|| metric(&program, waiting) == 1.0);
    drop(second);
    eventually(|| metric(&program, waiting) == 0.0);
}
