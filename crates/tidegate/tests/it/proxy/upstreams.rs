//! What upstreams do that a client must not suffer from, and the connections that are kept to them.

use std::io::{Read, Write};
use std::net::SocketAddr;

use socket2::{Domain, Socket, Type};
use tidegate::clock::Clock;
use tidegate_core::time::SECOND;

use super::house::{House, START};
use super::{Client, Message, Upstream, eventually, metric, ok, proxy};

const PLENTY: &str = "limit = '1000000 per day'";
/// More than there are loops: each has some of them.
const SEVERAL: usize = 16;

#[test]
fn an_answer_that_came_before_the_whole_request_leaves_its_connection_to_nobody() {
    let upstream = Upstream::new(|mut stream| {
        while let Some(request) = Message::read_head(&mut stream) {
            // Nothing of a body is read.
            let answer = ok(&request.first);
            if stream.get_mut().write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    });
    let program = proxy(upstream.address, PLENTY);
    let mut busy = Vec::new();
    for _ in 0..SEVERAL {
        let mut client = Client::of(&program);
        client.send(b"POST /long HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\npart");
        assert_eq!(client.read().status(), 200);
        // It may go on at any time; nobody else waits for that.
        busy.push(client);
        assert_eq!(Client::of(&program).get("/short").text(), "GET /short HTTP/1.1");
    }
}

#[test]
fn an_answer_whose_length_is_not_plain_is_not_passed_on() {
    let answer = |head: &'static str| {
        let upstream = Upstream::answering(move |_| format!("HTTP/1.1 200 OK\r\n{head}"));
        let program = proxy(upstream.address, PLENTY);
        Client::of(&program).get("/")
    };
    let coded = answer("Transfer-Encoding: gzip, chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n");
    assert_eq!(coded.status(), 502);
    let unequal = answer("Content-Length: 2\r\nContent-Length: 3\r\n\r\nhi!");
    assert_eq!(unequal.status(), 502);
    let twice = answer("Content-Length: 2\r\nContent-Length: 2\r\n\r\nhi");
    assert_eq!((twice.status(), twice.text().as_str()), (200, "hi"));
    let lengths = twice.headers.iter().filter(|(name, _)| name == "content-length");
    assert_eq!(lengths.count(), 1);
}

#[test]
fn an_upstream_that_stops_within_its_answer_is_not_waited_for() {
    let upstream = Upstream::new(|mut stream| {
        let Some(_) = Message::read(&mut stream) else { return };
        let part = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello";
        stream.get_mut().write_all(part).expect("the proxy reads");
        // Until the proxy has had enough.
        let _ = stream.read(&mut [0]);
    });
    let program = proxy(upstream.address, &format!("{PLENTY}\nresponse_timeout = '200ms'"));
    let mut client = Client::of(&program);
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut bytes = Vec::new();
    let ended = client.stream.read_to_end(&mut bytes);
    assert!(!ended.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock), "cut");
    let series = "tidegate_proxy_upstream_errors_total{proxy=\"api\",kind=\"body\"}";
    eventually(|| metric(&program, series) == 1.0);
}

#[test]
fn a_connection_that_is_not_made_in_time_is_a_bad_gateway() {
    let upstream = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    upstream.bind(&any.into()).expect("a free port");
    upstream.listen(0).expect("it listens");
    let address = upstream.local_addr().expect("an address").as_socket().expect("of IP");
    // Nobody is accepted: once the line is full, who connects gets no answer.
    let crowd: Vec<Socket> = (0..4)
        .map(|_| {
            let one = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
            one.set_nonblocking(true).expect("an option");
            let _ = one.connect(&address.into());
            one
        })
        .collect();
    let program = proxy(address, &format!("{PLENTY}\nconnect_timeout = '100ms'"));
    assert_eq!(Client::of(&program).get("/").status(), 502);
    let series = "tidegate_proxy_upstream_errors_total{proxy=\"api\",kind=\"connect\"}";
    assert_eq!(metric(&program, series), 1.0);
    drop(crowd);
}

#[test]
fn no_more_connections_are_kept_than_may_be() {
    let upstream = Upstream::mirror();
    let program = proxy(upstream.address, &format!("{PLENTY}\nidle_upstream = 0"));
    let mut client = Client::of(&program);
    for number in 1..=3 {
        assert_eq!(client.get("/").status(), 200);
        assert_eq!(upstream.connections(), number);
    }
}

#[test]
fn connections_are_kept_for_as_long_as_they_may_be() {
    let upstream = Upstream::mirror();
    let settings = format!("{PLENTY}\nidle_upstream_timeout = '10s'");
    let house = House::at(Clock::manual(START), upstream.address, &settings);
    let mut client = house.client();
    assert_eq!(client.get("/").status(), 200);
    house.advance(9 * SECOND);
    assert_eq!((client.get("/").status(), upstream.connections()), (200, 1));
    assert_eq!(house.summary()["upstream_connections"], 1);
    house.advance(21 * SECOND);
    eventually(|| house.summary()["upstream_connections"] == 0);
}
