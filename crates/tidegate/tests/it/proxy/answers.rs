//! Answers as upstreams write them: in pieces, with more before and behind them, and against the
//! law.

use std::io::{Read, Write};
use std::net::TcpStream;

use super::{Client, Message, Upstream, ok, proxy};

const PLENTY: &str = "limit = '1000000 per day'";
const BODY: &str = "hello, world";

/// Writes byte by byte.
fn trickle(stream: &mut TcpStream, bytes: &[u8]) {
    stream.set_nodelay(true).expect("an option");
    bytes.iter().for_each(|byte| stream.write_all(&[*byte]).expect("the proxy reads"));
}

#[test]
fn answers_come_through_however_they_are_cut() {
    let chunks = "4\r\nhell\r\n8;x=\"y\"\r\no, world\r\n0\r\nx-sum: 12\r\n\r\n";
    let answers = [
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{BODY}", BODY.len()),
        format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Empty:\r\n\r\n{chunks}"),
        // Hints and the like are for this hop, and before the answer.
        format!(
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n\
             HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}"
        ),
    ];
    let upstream = Upstream::new(move |mut stream| {
        while let Some(request) = Message::read(&mut stream) {
            let number: usize = request.header("x-number").unwrap().parse().unwrap();
            let whole = request.header("x-whole").is_some();
            let answer = answers[number].as_bytes();
            match whole {
                true => stream.get_mut().write_all(answer).expect("the proxy reads"),
                false => trickle(stream.get_mut(), answer),
            }
        }
    });
    let program = proxy(upstream.address, PLENTY);
    let mut client = Client::of(&program);
    for number in 0..3 {
        for how in ["X-Whole: yes", "X-Whole-Not: no"] {
            let lines = format!("GET / HTTP/1.1\r\nHost: a\r\nX-Number: {number}\r\n{how}\r\n\r\n");
            client.send(lines.as_bytes());
            let answer = client.read();
            assert_eq!((answer.status(), answer.text().as_str()), (200, BODY), "{number} {how}");
            assert!(answer.header("link").is_none());
            assert_eq!(answer.header("x-empty").is_some(), number == 1);
        }
    }
    assert_eq!(upstream.connections(), 1, "all of them over one connection");
}

#[test]
fn what_an_upstream_says_beyond_its_answer_reaches_nobody() {
    let upstream = Upstream::new(|mut stream| {
        let Some(request) = Message::read(&mut stream) else { return };
        let more = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nstolen";
        let answer = match request.first.as_str() {
            "GET /long HTTP/1.1" => format!("{}{more}", ok(&"x".repeat(100_000))),
            "GET /none HTTP/1.1" => format!("HTTP/1.1 204 No Content\r\n\r\n{more}"),
            _ => format!("{}{more}", ok("own")),
        };
        let _ = stream.get_mut().write_all(answer.as_bytes());
        // Open until the proxy has had enough of it.
        let _ = stream.read(&mut [0]);
    });
    let program = proxy(upstream.address, PLENTY);
    for (number, (path, length)) in [("/own", 3), ("/long", 100_000), ("/none", 0), ("/own", 3)]
        .into_iter()
        .cycle()
        .take(12)
        .enumerate()
    {
        let answer = Client::of(&program).get(path);
        assert_eq!(answer.body.len(), length, "{path}");
        assert_eq!(upstream.connections(), number + 1, "nobody goes where there is more");
    }
}

#[test]
fn an_answer_may_end_with_its_connection() {
    let upstream = Upstream::new(|mut stream| {
        let Some(request) = Message::read(&mut stream) else { return };
        let old = request.first == "GET /old HTTP/1.1";
        let first = if old { "HTTP/1.0 200 Fine" } else { "HTTP/1.1 200 Fine" };
        let text = format!("{first}\r\nX-A: b\r\n\r\n{}", "x".repeat(200_000));
        stream.get_mut().write_all(text.as_bytes()).expect("the proxy reads");
    });
    let program = proxy(upstream.address, PLENTY);
    let mut client = Client::of(&program);
    for (number, path) in ["/old", "/new", "/old"].into_iter().enumerate() {
        let answer = client.get(path);
        assert_eq!(answer.first, "HTTP/1.1 200 Fine", "its own words are kept");
        assert_eq!((answer.body.len(), answer.header("x-a")), (200_000, Some("b")));
        assert_eq!(upstream.connections(), number + 1);
    }
}

#[test]
fn what_is_no_answer_is_a_bad_gateway() {
    for (bad, why) in [
        ("HTTP/1.1 103 Early Hints\r\n\r\n".repeat(40), "nothing but hints"),
        (format!("HTTP/1.1 200 OK\r\nA: {}\r\n\r\n", "x".repeat(70_000)), "a head without end"),
        (format!("HTTP/1.1 200 OK\r\n{}\r\n", "A: b\r\n".repeat(101)), "too many fields"),
        ("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n".to_owned(), "nobody asked"),
        ("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".to_owned(), "too old"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 1, 1\r\n\r\nx".to_owned(), "a list of lengths"),
        ("HTTP/2.0 200 OK\r\n\r\n".to_owned(), "another version"),
        ("HTTP/1.1 200 OK\r\nA".to_owned(), "half a head"),
    ] {
        let upstream = Upstream::new(move |mut stream| {
            let Some(_) = Message::read(&mut stream) else { return };
            let _ = stream.get_mut().write_all(bad.as_bytes());
        });
        let program = proxy(upstream.address, PLENTY);
        assert_eq!(Client::of(&program).get("/").status(), 502, "{why}");
    }
}

#[test]
fn chunks_that_are_none_cut_the_answer() {
    for bad in ["5\r\nhelloX", "zz\r\n", "\r\n", "5\r\nhello\r\n0\r\nno field\r\n\r\n"] {
        let upstream = Upstream::answering(move |_| {
            format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n{bad}")
        });
        let program = proxy(upstream.address, PLENTY);
        let mut client = Client::of(&program);
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        let text = client.all();
        assert!(text.contains("hi") && !text.contains("\r\n0\r\n"), "{bad:?}: {text}");
    }
}

#[test]
fn an_answer_may_begin_before_its_request_ends_and_both_go_on() {
    // Says every chunk back as it comes.
    let upstream = Upstream::new(|mut stream| {
        let Some(_) = Message::read_head(&mut stream) else { return };
        let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        stream.get_mut().write_all(head).expect("the proxy reads");
        let mut bytes = [0; 1000];
        while let Ok(count @ 1..) = stream.read(&mut bytes) {
            let out = stream.get_mut();
            let _ = write!(out, "{count:x}\r\n");
            let _ = out.write_all(&[&bytes[..count], b"\r\n"].concat());
            if bytes[..count].ends_with(b"0\r\n\r\n") {
                let _ = out.write_all(b"0\r\n\r\n");
            }
        }
    });
    let program = proxy(upstream.address, PLENTY);
    let mut client = Client::of(&program);
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    let head = Message::read_head(&mut client.stream).expect("a head before the body");
    assert_eq!(head.status(), 200);
    for word in ["one", "two", "three"] {
        let chunk = format!("{:x}\r\n{word}\r\n", word.len());
        client.send(chunk.as_bytes());
        // The upstream's chunk holds ours, in as many pieces as it read.
        let mut heard = String::new();
        while !heard.contains(word) {
            let mut byte = [0];
            client.stream.read_exact(&mut byte).expect("what was said");
            heard.push(char::from(byte[0]));
        }
    }
    client.send(b"0\r\n\r\n");
    let mut rest = String::new();
    while !rest.ends_with("\r\n0\r\n\r\n") {
        let mut byte = [0];
        client.stream.read_exact(&mut byte).expect("the end");
        rest.push(char::from(byte[0]));
    }
}

#[test]
fn a_client_that_reads_nothing_before_it_has_sent_everything_is_answered() {
    const LENGTH: usize = 20 << 20;
    let (told, taken) = std::sync::mpsc::channel();
    // Answers at once, and takes the body all the same.
    let upstream = Upstream::new(move |mut stream| {
        let Some(_) = Message::read_head(&mut stream) else { return };
        stream.get_mut().write_all(ok("enough").as_bytes()).expect("the proxy reads");
        let body = std::io::copy(&mut stream.take(LENGTH as u64), &mut std::io::sink());
        told.send(body.expect("a body")).expect("the test waits");
    });
    let program = proxy(upstream.address, PLENTY);
    let mut client = Client::of(&program);
    let head = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {LENGTH}\r\n\r\n");
    client.send(head.as_bytes());
    client.send(&vec![b'x'; LENGTH]);
    assert_eq!(client.read().text(), "enough");
    let taken = taken.recv_timeout(crate::program::PATIENCE).expect("the upstream gets it");
    assert_eq!(taken, LENGTH as u64);
}

#[test]
fn a_request_that_breaks_off_behind_its_answer_is_cut_at_the_upstream() {
    let (told, cut) = std::sync::mpsc::channel();
    let upstream = Upstream::new(move |mut stream| {
        let Some(_) = Message::read_head(&mut stream) else { return };
        let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n";
        stream.get_mut().write_all(head).expect("the proxy reads");
        let mut body = Vec::new();
        let _ = stream.read_to_end(&mut body);
        told.send(String::from_utf8_lossy(&body).into_owned()).expect("the test waits");
    });
    let program = proxy(upstream.address, PLENTY);
    let mut client = Client::of(&program);
    let head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n";
    client.send(head.as_bytes());
    assert_eq!(Message::read_head(&mut client.stream).expect("a head").status(), 200);
    drop(client);
    let body = cut.recv_timeout(crate::program::PATIENCE).expect("the upstream is told");
    assert!(!body.contains("0\r\n\r\n"), "{body:?} looks whole");
}

#[test]
fn fields_behind_a_body_pass_if_they_were_announced_and_mean_no_harm() {
    let upstream = Upstream::mirror();
    let program = proxy(upstream.address, PLENTY);
    let mut client = Client::of(&program);
    client.send(
        b"POST / HTTP/1.1\r\nHost: a\r\nTrailer: x-sum, x-forwarded-for, host\r\n\
          Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nx-sum: 42\r\nx-other: 1\r\n\
          x-forwarded-for: 6.6.6.6\r\nhost: evil\r\n\r\n",
    );
    let seen = client.read().text();
    assert!(seen.contains("x-sum: 42"), "{seen}");
    for absent in ["x-other", "6.6.6.6", "evil"] {
        assert!(!seen.contains(absent), "{absent} in {seen}");
    }
}
