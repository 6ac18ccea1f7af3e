//! HTTP/1.1 through the proxy: connections kept, bodies streamed, and what happens when one side
//! fails the other.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::sync::mpsc::channel;
use std::thread;

use super::{Client, Message, Upstream, api, eventually, half_close, metric, ok, proxy};
use crate::program::{PATIENCE, Program};

const PLENTY: &str = "limit = '1000000 per day'";

#[test]
fn connections_are_kept_on_both_sides() {
    let upstream = Upstream::mirror();
    let program = proxy(upstream.address, PLENTY);
    let mut client = Client::of(&program);
    for number in 0..50 {
        let answer = client.get(&format!("/{number}"));
        assert_eq!(answer.status(), 200);
        assert!(answer.text().starts_with(&format!("GET /{number} HTTP/1.1\n")));
    }
    assert_eq!(upstream.connections(), 1);
    assert_eq!(
        metric(&program, "tidegate_proxy_responses_total{proxy=\"api\",class=\"2xx\"}"),
        50.0
    );
    assert_eq!(metric(&program, "tidegate_proxy_connections{proxy=\"api\"}"), 1.0);
    assert_eq!(metric(&program, "tidegate_proxy_overhead_seconds_count{proxy=\"api\"}"), 50.0);
    let told: serde_json::Value = serde_json::from_str(&api(&program, "/v1/proxies")).unwrap();
    let api = &told["proxies"][0];
    assert_eq!((api["name"].as_str(), api["upstream_up"].as_bool()), (Some("api"), Some(true)));
    assert_eq!(api["overhead_ms"]["count"], 50);
    assert!(api["overhead_ms"]["p99"].as_f64().unwrap() > 0.0);
    drop(client);
    eventually(|| metric(&program, "tidegate_proxy_connections{proxy=\"api\"}") == 0.0);
}

#[test]
fn bodies_stream_both_ways_at_the_pace_of_the_slower_side() {
    // Neither side sends its second half before it has seen the first half of the other's.
    const HALF: usize = 8 << 20;
    let upstream = Upstream::new(|mut stream| {
        let Some(_) = Message::read_head(&mut stream) else { return };
        let mut half = vec![0; HALF];
        stream.read_exact(&mut half).expect("the first half");
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 2 * HALF);
        stream.get_mut().write_all(head.as_bytes()).expect("a head");
        stream.get_mut().write_all(&half).expect("the first half");
        stream.read_exact(&mut half).expect("the second half");
        stream.get_mut().write_all(&half).expect("the second half");
    });
    let program = proxy(upstream.address, PLENTY);
    let mut client = Client::of(&program);
    let (first, second) = (vec![1; HALF], vec![2; HALF]);
    let length = 2 * HALF;
    client
        .send(format!("PUT /a HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n").as_bytes());
    client.send(&first);
    let answer = Message::read_head(&mut client.stream).expect("a head before the end of the body");
    assert_eq!(answer.header("content-length"), Some(length.to_string().as_str()));
    let mut half = vec![0; HALF];
    client.stream.read_exact(&mut half).expect("the first half");
    assert!(half == first);
    client.send(&second);
    client.stream.read_exact(&mut half).expect("the second half");
    assert!(half == second);
}

#[test]
fn trailers_pass_both_ways() {
    let upstream = Upstream::answering(|request| {
        let sum = request.header("x-sum").unwrap_or("none");
        format!(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: x-sum\r\n\r\n\
             5\r\nhello\r\n0\r\nx-sum: {sum}!\r\n\r\n"
        )
    });
    let program = proxy(upstream.address, PLENTY);
    let mut client = Client::of(&program);
    client.send(
        b"POST / HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nTrailer: x-sum\r\n\
          Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nx-sum: 42\r\n\r\n",
    );
    let answer = client.read();
    assert_eq!((answer.text().as_str(), answer.header("x-sum")), ("hello", Some("42!")));
}

#[test]
fn a_body_is_asked_for_only_when_it_is_expected() {
    let upstream = Upstream::mirror();
    let program = proxy(upstream.address, PLENTY);
    let mut client = Client::of(&program);
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n");
    let asked = Message::read_head(&mut client.stream).expect("an interim answer");
    assert_eq!(asked.first, "HTTP/1.1 100 Continue");
    client.send(b"hello");
    let answer = client.read();
    assert_eq!(answer.status(), 200);
    assert!(answer.text().ends_with("\n\nhello"), "{}", answer.text());
    assert!(!answer.text().contains("expect"), "{}", answer.text());
}

#[test]
fn answers_without_a_body_have_none() {
    let upstream = Upstream::answering(|request| match request.first.as_str() {
        "HEAD /a HTTP/1.1" => "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n".to_owned(),
        "GET /b HTTP/1.1" => "HTTP/1.1 204 No Content\r\n\r\n".to_owned(),
        "GET /c HTTP/1.1" => "HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\n\r\n".to_owned(),
        _ => ok("rest"),
    });
    let program = proxy(upstream.address, PLENTY);
    let mut client = Client::of(&program);
    client.send(b"HEAD /a HTTP/1.1\r\nHost: a\r\n\r\n");
    let head = Message::read_head(&mut client.stream).expect("a head");
    assert_eq!(head.header("content-length"), Some("5"));
    assert_eq!(client.get("/b").status(), 204);
    assert_eq!(client.get("/c").status(), 304);
    assert_eq!(client.get("/d").text(), "rest");
    assert_eq!(upstream.connections(), 1);
}

#[test]
fn an_upstream_that_dies_within_its_answer_is_not_taken_for_one_that_ended() {
    for (head, part) in
        [("Content-Length: 10", "hello"), ("Transfer-Encoding: chunked", "5\r\nhello\r\n")]
    {
        let upstream = Upstream::new(move |mut stream| {
            let Some(_) = Message::read(&mut stream) else { return };
            let text = format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n{part}");
            stream.get_mut().write_all(text.as_bytes()).expect("the proxy reads");
        });
        let program = proxy(upstream.address, PLENTY);
        let mut client = Client::of(&program);
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        let text = client.all();
        assert!(text.contains("hello") && !text.contains("\r\n0\r\n"), "{text}");
        let series = "tidegate_proxy_upstream_errors_total{proxy=\"api\",kind=\"body\"}";
        eventually(|| metric(&program, series) == 1.0);
    }
}

#[test]
fn an_upstream_that_is_not_there_is_a_bad_gateway_and_comes_back() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    drop(listener);
    let program = proxy(address, PLENTY);
    let mut client = Client::of(&program);
    for _ in 0..5 {
        let answer = client.get("/");
        assert_eq!(answer.status(), 502);
        assert_eq!(answer.header("content-type"), Some("application/problem+json"));
        assert!(answer.text().contains("\"reason\":\"upstream_unreachable\""));
    }
    assert_eq!(metric(&program, "tidegate_proxy_upstream_up{proxy=\"api\"}"), 0.0);
    let backing_off = "tidegate_proxy_upstream_errors_total{proxy=\"api\",kind=\"backing_off\"}";
    assert!(metric(&program, backing_off) > 0.0, "not everybody is made to wait for a dead one");
    let listener = TcpListener::bind(address).expect("the same port");
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let _ = stream.write_all(ok("back").as_bytes());
        }
    });
    eventually(|| client.get("/").status() == 200);
    assert_eq!(metric(&program, "tidegate_proxy_upstream_up{proxy=\"api\"}"), 1.0);
}

#[test]
fn an_upstream_that_is_silent_or_speaks_something_else_is_told_apart() {
    let upstream = Upstream::new(|mut stream| {
        let Some(request) = Message::read(&mut stream) else { return };
        if request.first.starts_with("GET /nonsense") {
            stream.get_mut().write_all(b"220 mail.example ready\r\n").expect("the proxy reads");
        }
        // Until the proxy has had enough.
        let _ = stream.read(&mut [0]);
    });
    let program = proxy(upstream.address, &format!("{PLENTY}\nresponse_timeout = '200ms'"));
    let mut client = Client::of(&program);
    assert_eq!(client.get("/nonsense").status(), 502);
    assert_eq!(client.get("/silence").status(), 504);
    assert_eq!(client.get("/silence").status(), 504);
}

#[test]
fn a_request_is_sent_again_where_the_upstream_closed_an_idle_connection() {
    let (closed, on_close) = channel();
    let upstream = Upstream::new(move |mut stream| {
        let Some(request) = Message::read(&mut stream) else { return };
        stream.get_mut().write_all(ok(&request.first).as_bytes()).expect("the proxy reads");
        half_close(&stream);
        // The proxy closes in turn: from then on it knows.
        let _ = stream.read(&mut [0]);
        closed.send(()).expect("the test listens");
    });
    let program = proxy(upstream.address, PLENTY);
    let mut client = Client::of(&program);
    for number in 0..5 {
        client.send(
            format!("POST /{number} HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi").as_bytes(),
        );
        assert_eq!(client.read().text(), format!("POST /{number} HTTP/1.1"));
        on_close.recv_timeout(PATIENCE).expect("the idle connection is closed");
    }
}

#[test]
fn slow_clients_are_cut_and_the_others_are_not() {
    let upstream = Upstream::mirror();
    let settings = "head_timeout = '300ms'\nidle_timeout = '300ms'\nstall_timeout = '300ms'";
    let program = proxy(upstream.address, &format!("{PLENTY}\n{settings}"));
    let mut silent = Client::of(&program);
    let mut dripping = Client::of(&program);
    dripping.send(b"GET / HTTP/1.1\r\nHost: a\r\nX-Slow: ");
    let mut half_sent = Client::of(&program);
    half_sent.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nhello");
    let mut idle = Client::of(&program);
    assert_eq!(idle.get("/").status(), 200);
    assert!(silent.closed() && dripping.closed() && idle.closed());
    let mut rest = Vec::new();
    let _ = half_sent.stream.read_to_end(&mut rest);
    let bad =
        |reason: &str| format!("tidegate_bad_input_total{{door=\"proxy\",reason=\"{reason}\"}}");
    eventually(|| metric(&program, &bad("head_slow")) == 1.0);
    eventually(|| metric(&program, &bad("body_slow")) == 1.0);
    assert_eq!(Client::of(&program).get("/").status(), 200);
}

#[test]
fn a_client_that_does_not_read_is_cut() {
    let upstream = Upstream::new(|mut stream| {
        let Some(_) = Message::read(&mut stream) else { return };
        let _ = stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\n\r\n");
        while stream.get_mut().write_all(&[0; 1 << 16]).is_ok() {}
    });
    let program = proxy(upstream.address, &format!("{PLENTY}\nstall_timeout = '300ms'"));
    let mut client = Client::of(&program);
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let cut = "tidegate_bad_input_total{door=\"proxy\",reason=\"reader_slow\"}";
    eventually(|| metric(&program, cut) == 1.0);
    eventually(|| metric(&program, "tidegate_proxy_upstream_connections{proxy=\"api\"}") == 0.0);
}

#[test]
fn long_keys_bodies_and_heads_are_refused() {
    let upstream = Upstream::mirror();
    let program = proxy(upstream.address, &format!("{PLENTY}\nmax_body = '1KiB'"));
    let long = format!("/{}", "x".repeat(1100));
    let answer = Client::of(&program).get(&long);
    assert_eq!(answer.status(), 414);
    assert!(answer.text().contains("key_too_long"));
    let mut client = Client::of(&program);
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1025\r\n\r\n");
    assert_eq!(client.read().status(), 413);
    let mut client = Client::of(&program);
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    client.send(format!("401\r\n{}\r\n", "x".repeat(0x401)).as_bytes());
    assert_eq!(client.read().status(), 413);
    let mut client = Client::of(&program);
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\nX: ");
    client.send(&vec![b'x'; 80 << 10]);
    assert_eq!(client.read().status(), 431);
    assert_eq!(Client::of(&program).get("/").status(), 200);
}

#[test]
fn the_access_log_has_a_line_for_each_request() {
    let upstream = Upstream::mirror();
    let program = proxy(upstream.address, &format!("{PLENTY}\naccess_log = 'access.txt'"));
    let mut client = Client::of(&program);
    client.get("/a?b");
    client.send(b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n");
    client.read();
    let path = program.folder().join("access.txt");
    let mode = std::fs::metadata(&path).expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "it is nobody else's business");
    let lines = || std::fs::read_to_string(&path).unwrap_or_default();
    eventually(|| lines().lines().count() == 2);
    let text = lines();
    let first = text.lines().next().unwrap();
    assert!(first.contains(" client=127.0.0.1 method=GET path=/a status=200 bytes="), "{first}");
    assert!(text.contains("method=CONNECT") && text.contains("status=405"), "{text}");
}

#[test]
fn the_access_log_may_be_the_log() {
    let upstream = Upstream::mirror();
    let mut program = proxy(upstream.address, &format!("{PLENTY}\naccess_log = true"));
    assert_eq!(Client::of(&program).get("/a?b").status(), 200);
    let line = program.wait_for_line(|line| line.contains("path=/a"));
    assert!(line.contains("access") && line.contains("status=200"), "{line}");
}

#[test]
fn the_access_log_as_json_has_a_field_for_each_thing() {
    let upstream = Upstream::mirror();
    let settings = format!("{PLENTY}\naccess_log = true\n[server]\nlog_format = 'json'");
    let mut program = proxy(upstream.address, &settings);
    let mut client = Client::of(&program);
    let length = client.get("/a?b").body.len();
    client.send(b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n");
    client.read();
    let mut next = || -> serde_json::Value {
        let line = program.wait_for_line(|line| line.contains("\"target\":\"access\""));
        serde_json::from_str(&line).expect("an object")
    };
    let first = next();
    let expected = serde_json::json!({
        "proxy": "api", "client": "127.0.0.1", "method": "GET", "path": "/a", "status": 200,
        "bytes": length, "waited_ms": 0.0, "cut": false,
    });
    for (field, value) in expected.as_object().expect("an object") {
        assert_eq!(&first[field], value, "{field} of {first}");
    }
    assert!(first["upstream_ms"].is_number() && first["timestamp"].is_string(), "{first}");
    let second = next();
    assert_eq!(
        (second["method"].as_str(), second["status"].as_u64()),
        (Some("CONNECT"), Some(405))
    );
    assert!(second.get("upstream_ms").is_none(), "{second}");
}

#[test]
fn failures_of_the_upstream_are_told_without_an_access_log_and_not_each() {
    let upstream = Upstream::new(|mut stream| {
        let Some(request) = Message::read(&mut stream) else { return };
        let answer = match request.first.as_str() {
            "GET /nonsense HTTP/1.1" => "nonsense\r\n\r\n",
            _ => "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf",
        };
        let _ = stream.get_mut().write_all(answer.as_bytes());
    });
    let program = proxy(upstream.address, PLENTY);
    let dead = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
    let mut down = proxy(dead, PLENTY);
    for _ in 0..20 {
        for path in ["/nonsense", "/cut"] {
            let mut client = Client::of(&program);
            client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes());
            let _ = Message::read(&mut client.stream);
        }
        assert_eq!(Client::of(&down).get("/").status(), 502);
    }
    let told = |mut program: Program, what: &str, most: usize| {
        program.signal(rustix::process::Signal::TERM);
        let lines = program.rest_of_stderr();
        let count = lines.iter().filter(|line| line.contains(what)).count();
        assert!((1..=most).contains(&count), "{count} of {what:?} in {lines:#?}");
        let warned = |line: &String| line.contains("WARN") && line.contains("proxy=api");
        assert!(lines.iter().filter(|line| line.contains(what)).all(warned), "{lines:#?}");
        lines
    };
    // One for each loop, and one more should the test be slow.
    let loops = std::thread::available_parallelism().map_or(1, usize::from);
    let lines = told(program, "not valid HTTP", 2 * loops);
    let cut = |line: &&String| line.contains("within its answer");
    assert!((1..=2 * loops).contains(&lines.iter().filter(cut).count()), "{lines:#?}");
    let line = down.wait_for_line(|line| line.contains("cannot be reached"));
    assert!(line.contains("WARN") && line.contains(&format!("upstream=http://{dead}")), "{line}");
    assert!(!line.contains('{') && !line.contains("Os"), "no Rust: {line}");
    down.signal(rustix::process::Signal::TERM);
    let more = down.rest_of_stderr();
    assert!(!more.iter().any(|line| line.contains("cannot be reached")), "once: {more:#?}");
}

#[test]
fn an_answer_that_breaks_off_is_cut_in_the_access_log() {
    let half = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf";
    let upstream = Upstream::new(move |mut stream| {
        if Message::read(&mut stream).is_some() {
            let _ = stream.get_mut().write_all(half.as_bytes());
        }
    });
    let program = proxy(upstream.address, &format!("{PLENTY}\naccess_log = 'access.txt'"));
    let mut client = Client::of(&program);
    client.send(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(Message::read(&mut client.stream).is_none(), "it is not whole");
    let path = program.folder().join("access.txt");
    let text = || std::fs::read_to_string(&path).unwrap_or_default();
    eventually(|| text().lines().count() == 1);
    assert!(text().contains(" status=200 bytes=4 ") && text().ends_with(" cut\n"), "{}", text());
}

#[test]
fn who_comes_beyond_the_bound_is_served_when_somebody_has_left() {
    let upstream = Upstream::mirror();
    let program = proxy(upstream.address, &format!("{PLENTY}\nmax_connections = 2"));
    let connections = || metric(&program, "tidegate_proxy_connections{proxy=\"api\"}");
    let mut inside = [Client::of(&program), Client::of(&program)];
    inside.iter_mut().for_each(|client| assert_eq!(client.get("/").status(), 200));
    let mut outside = Client::of(&program);
    outside.send(b"GET /late HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(inside[0].get("/").status(), 200);
    assert_eq!(connections(), 2.0);
    drop(inside);
    assert_eq!(outside.read().status(), 200);
}

#[test]
fn the_door_comes_back_when_files_are_there_again() {
    let upstream = Upstream::mirror();
    let settings = super::config(&format!("http://{}", upstream.address), PLENTY);
    let mut program = Program::serve_with_few_files(&settings);
    let takers: Vec<_> = (0..100)
        .map(|_| TcpStream::connect(program.address("http")).expect("the kernel accepts"))
        .collect();
    program.wait_for_line(|line| line.contains("too few file descriptors door=\"http\""));
    let mut waiting = Client::of(&program);
    waiting.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    program.wait_for_line(|line| line.contains("too few file descriptors door=\"proxy\""));
    drop(takers);
    assert_eq!(waiting.read().status(), 200);
}

#[test]
fn another_spelling_of_a_path_evades_no_limit_and_goes_upstream_as_it_came() {
    let upstream = Upstream::mirror();
    // Without windows, so that none begins meanwhile.
    let settings = "limit = '4 per day'\nalgorithm = 'gcra'\non_limit = 'reject'";
    let program = proxy(upstream.address, settings);
    let mut client = Client::of(&program);
    for path in ["/login", "//login", "/./login", "/%2e/login"] {
        let answer = client.get(path);
        assert_eq!(answer.status(), 200, "{path}");
        assert!(answer.text().starts_with(&format!("GET {path} HTTP/1.1")), "{}", answer.text());
    }
    for path in ["/login", "//login", "/x/../login", "/%6Cogin", "/..%2flogin?again"] {
        assert_eq!(client.get(path).status(), 429, "{path}");
    }
    assert_eq!(client.get("/Login").status(), 200);
    assert_eq!(client.get("/login/").status(), 200);
}
