//! Crowds of connections at the doors of the real program: whoever does nothing gives way, no
//! source takes more than its share, and idle connections end.

use std::io::{Read, Write};
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
    !matches!(stream.read(&mut [0; 1]), Ok(1))
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
    let series = format!("tidegate_bad_input_total{{door=\"{door}\",reason=\"{reason}\"}} ");
    let mut page = ureq::get(format!("{}/metrics", program.url())).call().expect("the page");
    let page = page.body_mut().read_to_string().expect("text");
    let value = page.lines().find_map(|line| line.strip_prefix(&series));
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
