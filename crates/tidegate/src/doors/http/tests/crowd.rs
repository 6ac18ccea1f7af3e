//! Several clients at the door's real sockets, where the bounds are the kernel's or the accept
//! loop's. Nothing sleeps: each step waits for bytes, and a lost one fails at [`LOST`].

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use tidegate_core::time::SECOND;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::timeout;

use super::super::Config;
use super::{House, door};
use crate::doors::http_server::connections::{HttpBounds, HttpServer};
use crate::metrics::Door;

/// Long after everything should have happened.
const LOST: Duration = Duration::from_secs(120);
const ASK: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";

fn bounds(max_connections: u32) -> HttpBounds {
    Config { max_connections, ..Config::default() }.bounds()
}

async fn open(house: &House, bounds: HttpBounds) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = HttpServer::new(Door::Http, &house.gate, house.router.clone(), bounds, None);
    tokio::spawn(server.accept(listener));
    address
}

async fn read_answer(stream: &mut TcpStream) {
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\nok\n") {
        let byte = timeout(LOST, stream.read_u8()).await.expect("an answer");
        answer.push(byte.expect("the connection stays open"));
    }
    assert!(answer.starts_with(b"HTTP/1.1 200 "));
}

async fn ask(stream: &mut TcpStream) {
    stream.write_all(ASK).await.unwrap();
    read_answer(stream).await;
}

#[tokio::test]
async fn past_the_cap_a_client_waits_until_another_leaves() {
    let house = door();
    let address = open(&house, bounds(2)).await;
    let mut first = TcpStream::connect(address).await.unwrap();
    let mut second = TcpStream::connect(address).await.unwrap();
    ask(&mut first).await;
    ask(&mut second).await;
    // The kernel takes the third, and its request; the door does not.
    let mut third = TcpStream::connect(address).await.unwrap();
    third.write_all(ASK).await.unwrap();
    for _ in 0..100 {
        ask(&mut first).await;
        ask(&mut second).await;
        let early = third.try_read(&mut [0; 1]).map_err(|error| error.kind());
        assert_eq!(early, Err(ErrorKind::WouldBlock), "both places are taken");
    }
    drop(first);
    read_answer(&mut third).await;
    ask(&mut second).await;
}

#[tokio::test]
async fn past_the_cap_who_has_been_idle_gives_way() {
    let house = door();
    let address = open(&house, bounds(2)).await;
    let mut first = TcpStream::connect(address).await.unwrap();
    let mut second = TcpStream::connect(address).await.unwrap();
    ask(&mut first).await;
    house.clock.advance(SECOND);
    ask(&mut second).await;
    house.clock.advance(SECOND);
    let mut third = TcpStream::connect(address).await.unwrap();
    ask(&mut third).await;
    assert_eq!(timeout(LOST, first.read(&mut [0; 1])).await.expect("an end").unwrap(), 0);
    ask(&mut second).await;
    assert_eq!(house.bad_input("gave_way"), 1);
}

#[tokio::test]
async fn a_client_that_never_reads_is_cut() {
    let house = door();
    let bounds = HttpBounds { write_stall: Duration::from_millis(20), ..bounds(1) };
    let address = open(&house, bounds).await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(1).unwrap();
    let mut deaf = socket.connect(address).await.unwrap();
    // More answers than the smallest window holds.
    deaf.write_all(&ASK.repeat(300)).await.unwrap();
    // The only place is free again once the deaf one has been cut.
    let mut next = TcpStream::connect(address).await.unwrap();
    ask(&mut next).await;
    let mut rest = Vec::new();
    let cut = timeout(LOST, deaf.read_to_end(&mut rest)).await.expect("an end");
    assert!(cut.is_err() || rest.len() < 300 * ASK.len(), "not all answers can have arrived");
}
