//! Crowds of connections at the doors of the real program: whoever does nothing gives way, no
//! source takes more than its share, and idle connections end.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};

use socket2::{Domain, Socket, Type};

use crate::engines::until;
use crate::program::{PATIENCE, Program};

const ASK: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";

fn connect(address: SocketAddr) -> TcpStream {
    connect_from([127, 0, 0, 1].into(), address)
}

/// A connection that comes from `source`.
fn connect_from(source: IpAddr, address: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.bind(&SocketAddr::new(source, 0).into()).expect("a free port");
    socket.connect(&address.into()).expect("the door is open");
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream
}

fn crowd(address: SocketAddr, count: usize) -> Vec<TcpStream> {
    (0..count).map(|_| connect(address)).collect()
}

/// Whether the server has closed the connection; waits until it has.
fn is_closed(mut stream: &TcpStream) -> bool {
    match stream.read(&mut [0; 1]) {
        Ok(count) => count == 0,
        Err(error) if error.kind() == ErrorKind::ConnectionReset => true,
        Err(error) => panic!("neither bytes nor an end: {error}"),
    }
}

/// Asks, and reads until the answer ends like that.
fn asks(mut stream: &TcpStream, request: &[u8], end: &[u8]) -> bool {
    if stream.write_all(request).is_err() {
        return false;
    }
    let mut answer = Vec::new();
    let mut byte = [0; 1];
    while !answer.ends_with(end) {
        match stream.read(&mut byte) {
            Ok(1) => answer.push(byte[0]),
            _ => return false,
        }
    }
    true
}

/// Whether the connection is healthy in the words of HTTP.
fn is_served(stream: &TcpStream) -> bool {
    asks(stream, ASK, b"\r\n\r\nok\n")
}

fn bad_input(program: &Program, door: &str, reason: &str) -> u64 {
    value(program, &format!("tidegate_bad_input_total{{door=\"{door}\",reason=\"{reason}\"}} "))
}

/// The value of a series, which ends with a space; 0 if it is not there.
fn value(program: &Program, series: &str) -> u64 {
    let page = ureq::get(format!("{}/metrics", program.url())).call();
    // Where descriptors are short, the connection may be refused.
    let Ok(page) = page.and_then(|mut page| page.body_mut().read_to_string()) else { return 0 };
    let value = page.lines().find_map(|line| line.strip_prefix(series));
    value.map_or(0, |value| value.parse().expect("a number"))
}

mod http {
    use super::*;

    fn open(settings: &str) -> Program {
        let rule = "[[rule]]\nmatch = 'slow'\nlimit = '1 per 1000h'\n";
        Program::serve(&format!("{rule}[http]\nlisten = '127.0.0.1:0'\n{settings}"))
    }

    #[test]
    fn an_idle_crowd_gives_way() {
        let program = open("max_connections = 8");
        let address = program.address("http");
        let silent = crowd(address, 8);
        let honest: Vec<TcpStream> = (0..4).map(|_| connect(address)).collect();
        assert!(honest.iter().all(is_served));
        assert!(silent[..4].iter().all(is_closed), "those that came first");
        // Whoever comes again finds the honest ones busy, or gives way itself.
        let _again = crowd(address, 8);
        assert!(is_served(&connect(address)));
        assert!(bad_input(&program, "http", "gave_way") >= 5);
    }

    #[test]
    fn a_source_has_its_share_and_no_more() {
        let program = open("max_connections = 100\nmax_connections_per_source = 3");
        let address = program.address("http");
        let taken = crowd(address, 3);
        assert!(taken.iter().all(is_served));
        assert!(is_closed(&connect(address)));
        let other = connect_from([127, 0, 0, 2].into(), address);
        assert!(is_served(&other));
        drop(taken);
        until(|| is_served(&connect(address)));
        assert!(bad_input(&program, "http", "too_many_from_source") >= 1);
    }

    #[test]
    fn idle_connections_end_and_those_that_wait_do_not() {
        let program = open("idle_timeout = '200ms'");
        let address = program.address("http");
        let (silent, served) = (connect(address), connect(address));
        assert!(is_served(&served));
        let wait = |body: &str| {
            format!(
                "POST /v1/wait HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                 Content-Length: {}\r\n\r\n{body}",
                body.len()
            )
        };
        let waiting = connect(address);
        let taken = wait(r#"{"key":"slow"}"#);
        assert!(asks(&waiting, taken.as_bytes(), b"200 OK\r\n"));
        let waiting = connect(address);
        let longer = wait(r#"{"key":"slow","max_wait_ms":1000}"#);
        assert!(asks(&waiting, longer.as_bytes(), b"429 Too Many Requests\r\n"));
        assert!(is_closed(&silent) && is_closed(&served));
    }
}

mod proxy {
    use super::*;
    use crate::upstream::Upstream;

    /// A proxy in front of an upstream that answers everything, and `/metrics`.
    fn open(upstream: &Upstream, settings: &str) -> Program {
        Program::serve(&format!(
            "[[proxy]]\nname = 'api'\nlisten = '127.0.0.1:0'\nlimit = '1 per 1000h'\n\
             upstream = 'http://{}'\n{settings}\n\
             [[rule]]\nmatch = 'api path=/free'\nlimit = 'none'\n[http]\nlisten = '127.0.0.1:0'\n",
            upstream.address()
        ))
    }

    fn is_served(stream: &TcpStream) -> bool {
        asks(stream, b"GET /free HTTP/1.1\r\nHost: a\r\n\r\n", b"HTTP/1.1 204 No Content\r\n")
    }

    #[test]
    fn an_idle_crowd_gives_way_and_who_waits_does_not() {
        let upstream = Upstream::start();
        let program = open(&upstream, "max_connections = 4\nidle_timeout = '1h'");
        let address = program.address("proxy");
        let slow = b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n";
        let waiting = connect(address);
        assert!(asks(&waiting, slow, b"HTTP/1.1 204 No Content\r\n"));
        (&waiting).write_all(slow).expect("the proxy reads");
        let silent = crowd(address, 3);
        // Each loop accepts by itself: whoever comes now comes later than all of them.
        until(|| value(&program, "tidegate_proxy_connections{proxy=\"api\"} ") == 4);
        let honest = crowd(address, 3);
        assert!(honest.iter().all(is_served));
        assert!(silent.iter().all(is_closed));
        waiting.set_nonblocking(true).expect("a socket");
        let kept = loop {
            match (&waiting).read(&mut [0; 1024]) {
                Ok(0) => break false,
                Ok(_) => {}
                Err(error) => break error.kind() == ErrorKind::WouldBlock,
            }
        };
        assert!(kept, "it waits for its turn");
        assert_eq!(bad_input(&program, "proxy", "gave_way"), 3);
    }

    #[test]
    fn a_source_has_its_share_and_no_more() {
        let upstream = Upstream::start();
        let program = open(&upstream, "max_connections_per_source = 2");
        let address = program.address("proxy");
        let taken = crowd(address, 2);
        assert!(taken.iter().all(is_served));
        assert!(is_closed(&connect(address)));
        assert!(is_served(&connect_from([127, 0, 0, 2].into(), address)));
        assert_eq!(bad_input(&program, "proxy", "too_many_from_source"), 1);
        drop(taken);
        until(|| is_served(&connect(address)));
    }

    #[test]
    fn idle_connections_end_and_those_that_wait_do_not() {
        let upstream = Upstream::start();
        let program = open(&upstream, "idle_timeout = '200ms'\nmax_wait = '1s'");
        let address = program.address("proxy");
        let (silent, served, waiting) = (connect(address), connect(address), connect(address));
        assert!(is_served(&served));
        let slow = b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n";
        assert!(asks(&waiting, slow, b"HTTP/1.1 204 No Content\r\n"));
        assert!(asks(&waiting, slow, b"HTTP/1.1 429 Too Many Requests\r\n"));
        assert!(is_closed(&silent));
        while !is_closed(&served) {}
        assert_eq!(bad_input(&program, "proxy", "head_slow"), 0);
    }
}

mod throttr {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn open(settings: &str) -> Program {
        let at = "listen = '127.0.0.1:0'\n";
        Program::serve(&format!("[[throttr]]\n{at}{settings}\n[http]\n{at}"))
    }

    /// WHOAMI is answered with a status and an id.
    fn is_served(mut stream: impl Read + Write) -> bool {
        stream.write_all(b"\x18").is_ok() && stream.read_exact(&mut [0; 17]).is_ok()
    }

    /// SUBSCRIBE to a channel of one letter.
    fn subscribe(mut stream: &TcpStream) {
        stream.write_all(b"\x11\x01a").expect("the door reads");
        let mut status = [0];
        stream.read_exact(&mut status).expect("an answer");
        assert_eq!(status, [1]);
    }

    #[test]
    fn an_idle_crowd_gives_way_and_subscribers_do_not() {
        let program = open("max_connections = 5");
        let address = program.address("throttr");
        let subscriber = connect(address);
        subscribe(&subscriber);
        let silent = crowd(address, 4);
        assert!(silent.iter().all(is_served));
        // Until the crowd has been idle for a second, newcomers are closed at once.
        let mut honest = Vec::new();
        until(|| {
            let stream = connect(address);
            let served = is_served(&stream);
            honest.extend(served.then_some(stream));
            honest.len() == 3
        });
        // The loop of each one that gives way closes it, in its own time.
        until(|| silent.iter().filter(|stream| is_closed_now(stream)).count() >= 3);
        assert!(is_served(&subscriber));
        assert!(bad_input(&program, "throttr", "gave_way") >= 3);
    }

    /// Whether the server has closed the connection already.
    fn is_closed_now(mut stream: &TcpStream) -> bool {
        stream.set_nonblocking(true).expect("a socket");
        !matches!(stream.read(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock)
    }

    #[test]
    fn a_source_has_its_share_and_a_unix_socket_is_one_source() {
        let program = open("unix = 'gate.sock'\nmax_connections_per_source = 2");
        let address = program.address("throttr");
        let taken = crowd(address, 2);
        assert!(taken.iter().all(is_served));
        assert!(is_closed(&connect(address)));
        assert!(is_served(&connect_from([127, 0, 0, 2].into(), address)));
        let path = &program.paths()[0];
        let unix = || UnixStream::connect(path).expect("the door is open");
        let (one, two) = (unix(), unix());
        assert!(is_served(&one) && is_served(&two));
        assert!(!is_served(&unix()));
        assert_eq!(bad_input(&program, "throttr", "too_many_from_source"), 2);
        drop(taken);
        until(|| is_served(&connect(address)));
    }

    #[test]
    fn idle_connections_end_and_subscribers_stay() {
        let program = open("idle_timeout = '100ms'");
        let address = program.address("throttr");
        let (subscriber, idle, begun) = (connect(address), connect(address), connect(address));
        subscribe(&subscriber);
        (&begun).write_all(b"\x02").expect("the door reads");
        assert!(is_served(&idle));
        assert!(is_closed(&idle) && is_closed(&begun));
        assert!(is_served(&subscriber));
    }
}

mod jarl {
    use super::*;

    #[test]
    fn a_source_has_its_share() {
        let program = Program::serve(
            "[[jarl]]\nservice = 'a'\nlisten = '127.0.0.1:0'\nlimit = '100 per 1000h'\n\
             max_connections_per_source = 2\n[http]\nlisten = '127.0.0.1:0'\n",
        );
        let address = program.address("jarl");
        let answer = |mut stream: &TcpStream| {
            let mut answer = String::new();
            let _ = stream.read_to_string(&mut answer);
            answer
        };
        // Nobody leaves, so that the first two are there when the third comes, for a second.
        until(|| {
            let callers = crowd(address, 2);
            let all = callers.iter().all(|caller| !answer(caller).is_empty());
            all && answer(&connect(address)).is_empty()
        });
        let other = connect_from([127, 0, 0, 2].into(), address);
        assert!(!answer(&other).is_empty());
        assert!(bad_input(&program, "jarl", "too_many_from_source") >= 1);
        // They are closed soon, whatever they do.
        until(|| !answer(&connect(address)).is_empty());
    }
}

#[test]
fn administration_answers_when_the_other_doors_are_full() {
    let at = "listen = '127.0.0.1:0'\n";
    let config = format!("[[throttr]]\n{at}[http]\n{at}max_connections = 2\n[admin]\n{at}");
    let mut program = Program::serve_with_few_files(&config);
    let (throttr, http) = (program.address("throttr"), program.address("http"));
    // Subscribers never give way: they take all descriptors that clients may have.
    let listen = |stream: &mut TcpStream| drop(stream.write_all(b"\x11\x01a"));
    let mut subscribers = crowd(throttr, 100);
    subscribers.iter_mut().for_each(listen);
    program.wait_for_line(|line| line.contains("too few file descriptors door=\"throttr\""));
    // Whoever has begun a head does not give way either.
    let mut half = crowd(http, 10);
    half.iter_mut().for_each(|stream| drop(stream.write_all(b"GET /healthz HTTP/1.1\r\n")));
    for _ in 0..3 {
        assert!(is_served(&connect(program.address("admin"))));
    }
}

#[test]
fn a_crowd_at_one_door_gives_way_to_those_at_another_where_descriptors_are_short() {
    let at = "listen = '127.0.0.1:0'\n";
    let mut program = Program::serve_with_few_files(&format!("[[throttr]]\n{at}[http]\n{at}"));
    let _idle = crowd(program.address("throttr"), 100);
    program.wait_for_line(|line| line.contains("too few file descriptors door=\"throttr\""));
    let honest = crowd(program.address("http"), 3);
    assert!(honest.iter().all(is_served));
    assert!(bad_input(&program, "throttr", "gave_way") >= 1);
}

#[test]
fn a_crowd_that_keeps_coming_takes_no_descriptor_that_is_kept_back() {
    let at = "listen = '127.0.0.1:0'\n";
    for (door, files_max) in [("http", 72), ("throttr", 72), ("admin", 79)] {
        let config = format!("[[throttr]]\n{at}[http]\n{at}[admin]\n{at}");
        let program = Program::serve_with_few_files(&config);
        let mut idle = Vec::new();
        // Whoever gives way makes room for one newcomer, not for two.
        until(|| {
            idle.push(connect(program.address(door)));
            bad_input(&program, door, "gave_way") >= 60
        });
        let files = program.files();
        assert!(files <= files_max, "{files} at {door}");
        until(|| is_served(&connect(program.address("http"))));
        until(|| is_served(&connect(program.address("admin"))));
        until(|| asks(&connect(program.address("throttr")), b"\x02\x00", b"\x00"));
    }
}

#[test]
fn a_reload_changes_the_limits() {
    let config =
        |max: u32| format!("[http]\nlisten = '127.0.0.1:0'\nmax_connections_per_source = {max}\n");
    let mut program = Program::serve(&config(1));
    let taken = connect(program.address("http"));
    assert!(is_served(&taken));
    assert!(is_closed(&connect(program.address("http"))));
    program.write_config(&config(2));
    program.wait_for_line(|line| line.contains("configuration reloaded"));
    let both = crowd(program.address("http"), 2);
    assert!(both.iter().all(is_served));
    assert!(is_closed(&connect(program.address("http"))));
}
