//! Requests that wait with a body in every state: they cost nothing while they wait, they stop
//! nobody else, and they come to their end.

use http_body_util::Full;
use hyper::Request;
use hyper::body::Bytes;

use super::http2::prior_knowledge;
use super::{Client, Message, Upstream, eventually, half_close, metric, ok, proxy};
use crate::program::{PATIENCE, Program};

const WAITING: &str = "tidegate_waiting{door=\"proxy\"}";
/// Enough connections to meet every loop.
const CONNECTIONS: usize = 16;
/// Far less than a loop uses that never rests, and far more than all of this needs.
const CPU_TICKS_MAX: u64 = 60;

/// A proxy whose one use of `/a` is taken until the sender is dropped, and where others wait for
/// `max_wait`; every other path is answered at once.
fn occupied(max_wait: &str) -> (Program, Client, std::sync::mpsc::Sender<()>) {
    let (go, gone) = std::sync::mpsc::channel::<()>();
    let gone = std::sync::Mutex::new(gone);
    let (tell, started) = std::sync::mpsc::channel();
    let upstream = Upstream::answering(move |request| {
        if request.first.starts_with("GET /a ") {
            tell.send(()).expect("the test listens");
            let _ = gone.lock().expect("no panic").recv();
        }
        ok("fine")
    });
    let settings = format!("limit = '1 in flight'\nmax_wait = '{max_wait}'");
    let program = proxy(upstream.address, &settings);
    let mut first = Client::of(&program);
    first.send(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n");
    started.recv_timeout(PATIENCE).expect("the first request starts");
    (program, first, go)
}

/// Requests for `/a` with a body in every state.
fn requests() -> Vec<String> {
    let post = |more: &str, body: &str| format!("POST /a HTTP/1.1\r\nHost: a\r\n{more}\r\n{body}");
    let length = |length: usize, sent: usize| {
        post(&format!("Content-Length: {length}\r\n"), &"x".repeat(sent))
    };
    let chunked = |body: &str| post("Transfer-Encoding: chunked\r\n", body);
    let expected = "Expect: 100-continue\r\nContent-Length: 5\r\n";
    let chunk = |size: usize| format!("{size:x}\r\n{}\r\n", "x".repeat(size));
    vec![
        post("", ""),
        length(5, 5),
        length(30_000, 30_000),
        length(60_000, 30_000),
        length(65_536, 65_536),
        length(1 << 20, 100 << 10),
        length(1 << 20, 0),
        chunked(""),
        chunked(&chunk(30_000)),
        chunked(&(chunk(30_000) + "0\r\n\r\n")),
        chunked(&chunk(100 << 10)),
        post(expected, ""),
        post(expected, "hello"),
        post("", "GET /a HTTP/1.1\r\nHost: a\r\n\r\n"),
    ]
}

/// What the program has used of the processors, in the system's ticks.
fn cpu_ticks(program: &Program) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", program.pid())).expect("it runs");
    let behind_name = stat.rsplit(") ").next().expect("a name in parentheses");
    let fields: Vec<&str> = behind_name.split(' ').collect();
    fields[11..13].iter().map(|ticks| ticks.parse::<u64>().expect("a number")).sum()
}

fn honest_clients_are_answered(program: &Program) {
    for _ in 0..CONNECTIONS {
        assert_eq!(Client::of(program).get("/b").status(), 200);
    }
}

#[test]
fn a_body_in_any_state_waits_at_rest_and_stops_nobody() {
    // Longer than it takes until a socket is first asked whether its client has left.
    let (program, first, go) = occupied("2s");
    let mut parked: Vec<(String, Client)> = Vec::new();
    for request in requests() {
        parked.extend((0..CONNECTIONS).map(|_| (request.clone(), Client::of(&program))));
    }
    let before = cpu_ticks(&program);
    parked.iter_mut().for_each(|(request, client)| client.send(request.as_bytes()));
    for (request, client) in &mut parked {
        let answer = Message::read(&mut client.stream).map(|answer| answer.status());
        assert_eq!(answer, Some(429), "{}", &request[..80.min(request.len())]);
    }
    let used = cpu_ticks(&program) - before;
    assert!(used <= CPU_TICKS_MAX, "{used} ticks");
    honest_clients_are_answered(&program);
    drop((first, go));
}

#[test]
fn those_who_leave_a_body_behind_leave_nothing_else() {
    let (program, first, go) = occupied("1h");
    for request in requests() {
        let mut parked: Vec<Client> = (0..CONNECTIONS).map(|_| Client::of(&program)).collect();
        parked.iter_mut().for_each(|client| client.send(request.as_bytes()));
        eventually(|| metric(&program, WAITING) == CONNECTIONS as f64);
        drop(parked);
        eventually(|| metric(&program, WAITING) == 0.0);
        honest_clients_are_answered(&program);
    }
    drop((first, go));
}

#[tokio::test(flavor = "multi_thread")]
async fn shared_streams_with_bodies_wait_at_rest_and_stop_nobody() {
    let (program, first, go) = tokio::task::block_in_place(|| occupied("2s"));
    let before = cpu_ticks(&program);
    let mut parked = Vec::new();
    for size in [0, 5, 30_000, 65_536, 300_000].repeat(CONNECTIONS) {
        let mut sender = prior_knowledge(program.address("proxy")).await;
        let body = Full::new(Bytes::from(vec![b'x'; size]));
        let request = Request::post("http://a/a").body(body).expect("a request");
        parked.push((size, tokio::spawn(async move { sender.send_request(request).await })));
    }
    for (size, answer) in parked {
        let answer = answer.await.expect("no panic").expect("an answer");
        assert_eq!(answer.status().as_u16(), 429, "{size}");
    }
    let used = cpu_ticks(&program) - before;
    assert!(used <= CPU_TICKS_MAX, "{used} ticks");
    tokio::task::block_in_place(|| honest_clients_are_answered(&program));
    drop((first, go));
}

#[test]
fn who_closes_only_its_own_side_is_answered() {
    let (go, gone) = std::sync::mpsc::channel::<()>();
    let gone = std::sync::Mutex::new(gone);
    let (tell, started) = std::sync::mpsc::channel();
    let upstream = Upstream::answering(move |request| {
        if request.first.starts_with("GET /slow ") {
            tell.send(()).expect("the test listens");
            let _ = gone.lock().expect("no panic").recv();
        }
        ok(&request.text())
    });
    let program = proxy(upstream.address, "limit = '1 in flight'");
    let whole = "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello";
    let chunked = "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
                   5\r\nhello\r\n0\r\n\r\n";
    for request in [whole, chunked] {
        // Whole, and in two parts, wherever it is parted: the end may come at any moment.
        for split in 0..request.len() {
            let mut client = Client::of(&program);
            client.send(&request.as_bytes()[..split]);
            client.send(&request.as_bytes()[split..]);
            half_close(&client.stream);
            assert_eq!(client.read().text(), "hello", "{split}");
            assert!(client.closed());
        }
    }
    let two = "GET /a HTTP/1.1\r\nHost: a\r\n\r\nGET /b HTTP/1.1\r\nHost: a\r\n\r\n";
    let mut client = Client::of(&program);
    client.send(two.as_bytes());
    half_close(&client.stream);
    assert_eq!((client.read().status(), client.read().status()), (200, 200));
    // Also while the upstream is at work.
    let mut client = Client::of(&program);
    client.send(b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n");
    half_close(&client.stream);
    started.recv_timeout(PATIENCE).expect("it starts");
    // But a request that waits is given up, for others are in line.
    let mut waits = Client::of(&program);
    waits.send(b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n");
    eventually(|| metric(&program, WAITING) == 1.0);
    half_close(&waits.stream);
    eventually(|| metric(&program, WAITING) == 0.0);
    go.send(()).expect("the upstream listens");
    assert_eq!(client.read().status(), 200);
    assert!(client.closed());
}

#[test]
fn half_a_body_is_no_request() {
    let upstream = Upstream::mirror();
    let program = proxy(upstream.address, "limit = '1 in flight'");
    for request in [
        "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 50\r\n\r\nhello",
        "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
    ] {
        let mut client = Client::of(&program);
        client.send(request.as_bytes());
        half_close(&client.stream);
        assert!(!client.all().starts_with("HTTP/1.1 200"));
        // Its use was given back.
        assert_eq!(Client::of(&program).get("/a").status(), 200);
    }
}
