//! HTTP/2 from clients that keep to nothing, before an upstream of HTTP/1.1: frames written by
//! hand, since no client's library would send them. What reaches the upstream means one thing.

use std::sync::mpsc::{Receiver, channel};

use super::{Message, Upstream, eventually, metric, ok, proxy};
use crate::http2::{
    DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, RST_STREAM, Raw, frame, header_block,
};
use crate::program::{PATIENCE, Program};

/// Sends a request of these fields, one in each line, and this body.
fn ask(client: &mut Raw, fields: &str, body: Option<&str>) {
    let over = if body.is_none() { END_STREAM } else { 0 };
    client.write(&frame(HEADERS, END_HEADERS | over, 1, &header_block(fields)));
    if let Some(body) = body {
        client.write(&frame(DATA, END_STREAM, 1, body.as_bytes()));
    }
}

/// Reads until the request is answered in some way. A connection that is closed is an answer, too.
fn answered(client: &mut Raw) {
    while let Some((kind, ..)) = client.read() {
        if matches!(kind, HEADERS | RST_STREAM | GOAWAY) {
            return;
        }
    }
}

fn client_of(program: &Program) -> Raw {
    Raw::connect(program.address("proxy"))
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
        let mut client = client_of(&program);
        ask(&mut client, &format!("{PLAIN}{fields}"), Some(body));
        answered(&mut client);
        let request = seen.recv_timeout(PATIENCE).expect("it arrives");
        assert_eq!((request.first.as_str(), request.text().as_str()), ("POST /a HTTP/1.1", body));
        assert_eq!(request.header("host"), Some("a"));
    }
    // A host that says something else than the authority does not count.
    let mut client = client_of(&program);
    ask(&mut client, &format!("{PLAIN}host: b"), None);
    answered(&mut client);
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
        let mut client = client_of(&program);
        ask(&mut client, &format!("{PLAIN}{fields}"), body);
        answered(&mut client);
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
        let mut client = client_of(&program);
        ask(&mut client, fields, None);
        answered(&mut client);
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
    let mut first = client_of(&program);
    ask(&mut first, get.trim_end(), None);
    answered(&mut first);
    let mut second = client_of(&program);
    ask(&mut second, get.trim_end(), None);
    let waiting = "tidegate_waiting{door=\"proxy\"}";
    eventually(|| metric(&program, waiting) == 1.0);
    drop(second);
    eventually(|| metric(&program, waiting) == 0.0);
}
