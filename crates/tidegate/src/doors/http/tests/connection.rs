//! One connection from its first byte to its end, over a pipe in memory. Time is virtual: it
//! moves on by itself when everybody waits.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::task::JoinHandle;
use tokio::time::{Duration, Instant, advance};

use super::super::Config;
use super::{House, door};
use crate::doors::http_server::connections::HttpServer;
use crate::doors::http_server::connections::PeerAddress;
use crate::doors::http_server::host::LocalAddress;
use crate::doors::io::certificates::Certificates;
use crate::metrics::Door;
use crate::settings::tls::Tls;

fn connect(house: &House) -> (DuplexStream, JoinHandle<()>) {
    connect_with(house, None)
}

fn connect_with(
    house: &House,
    certificates: Option<Arc<Certificates>>,
) -> (DuplexStream, JoinHandle<()>) {
    let (ours, theirs) = duplex(64 << 10);
    let bounds = Config::default().bounds();
    let server: Arc<HttpServer> =
        HttpServer::new(Door::Http, &house.gate, house.router.clone(), bounds, certificates);
    let place = server.limits().admit(None, &std::io::stdin()).unwrap();
    let local = LocalAddress { ip: Ipv4Addr::new(10, 0, 0, 7).into(), tls: false };
    let peer = PeerAddress(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 8)));
    (ours, tokio::spawn(async move { server.converse(theirs, place, None, local, peer).await }))
}

/// Sends `text` and reads until the door closes the connection.
async fn talk(house: &House, text: &str) -> String {
    let (mut stream, serving) = connect(house);
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    serving.await.unwrap();
    String::from_utf8(answer).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_silent_client_is_cut() {
    let house = door();
    let started = Instant::now();
    assert_eq!(talk(&house, "").await, "");
    assert_eq!(started.elapsed().as_secs(), 75, "idle from the start");
    assert_eq!(house.bad_input("head_slow"), 0);
    let started = Instant::now();
    assert_eq!(talk(&house, "GET /healthz HTTP/1.1\r\nHost: local").await, "");
    assert_eq!(started.elapsed().as_secs(), 5, "a head has begun");
    assert_eq!(house.bad_input("head_slow"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_client_is_idle_between_requests_and_slow_within_a_head() {
    let house = door();
    let (mut stream, serving) = connect(&house);
    let started = Instant::now();
    for _ in 0..3 {
        advance(Duration::from_secs(70)).await;
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\nok\n") {
            answer.push(stream.read_u8().await.unwrap());
        }
    }
    // Bytes now and then do not make a head faster.
    for byte in b"GET /" {
        advance(Duration::from_millis(900)).await;
        stream.write_all(&[*byte]).await.unwrap();
        // The door reads it before time goes on.
        tokio::task::yield_now().await;
    }
    assert_eq!(stream.read_to_end(&mut Vec::new()).await.unwrap(), 0);
    assert_eq!(started.elapsed().as_millis(), 3 * 70_000 + 900 + 5_000);
    serving.await.unwrap();
    assert_eq!(house.bad_input("head_slow"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_slow_body_is_cut() {
    let house = door();
    let head = "POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                Content-Length: 20\r\n\r\n{\"key\"";
    let answer = talk(&house, head).await;
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert_eq!(house.bad_input("body_slow"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_slow_handshake_is_cut_and_counted() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (cert, key) = (folder.path().join("cert"), folder.path().join("key"));
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let certificates = Certificates::read(
        Some(&Tls { cert, key, client_ca: None, client_names: Vec::new() }),
        &[],
    )
    .unwrap();
    let house = door();
    let (mut stream, serving) = connect_with(&house, certificates);
    stream.write_all(&[22, 3, 1]).await.unwrap();
    let started = Instant::now();
    assert_eq!(stream.read_to_end(&mut Vec::new()).await.unwrap(), 0);
    serving.await.unwrap();
    assert_eq!(started.elapsed().as_secs(), 5);
    assert_eq!((house.bad_input("handshake_slow"), house.bad_input("head_slow")), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn what_is_not_http_is_counted() {
    let house = door();
    let answer = talk(&house, "\x16\x03\x01 hello\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert_eq!(house.bad_input("http"), 1);
    let long = format!("GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: {}", "a".repeat(32 << 10));
    let answer = talk(&house, &long).await;
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    assert_eq!(house.bad_input("http"), 2);
}

#[tokio::test(start_paused = true)]
async fn the_listeners_own_address_is_a_good_host() {
    let house = door();
    let ask = |host| format!("GET /healthz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    assert!(talk(&house, &ask("10.0.0.7:80")).await.starts_with("HTTP/1.1 200 "));
    assert!(talk(&house, &ask("10.0.0.8:80")).await.starts_with("HTTP/1.1 403 "));
}

#[tokio::test(start_paused = true)]
async fn a_chunked_body_is_bounded_too() {
    let house = door();
    let mut ask =
        "POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                   Transfer-Encoding: chunked\r\n\r\n"
            .to_owned();
    ask.push_str("8000\r\n");
    ask.push_str(&" ".repeat(0x8000));
    ask.push_str("\r\nffffffff\r\n");
    ask.push_str(&" ".repeat(0x9000));
    // The pipe is smaller than what is sent, and the door stops reading: write from the side.
    let (stream, serving) = connect(&house);
    let (mut read, mut write) = tokio::io::split(stream);
    let writing = tokio::spawn(async move {
        let _ = write.write_all(ask.as_bytes()).await;
    });
    let mut answer = Vec::new();
    let _ = read.read_to_end(&mut answer).await;
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    assert_eq!(house.bad_input("body_too_large"), 1);
    writing.await.unwrap();
    serving.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn draining_closes_idle_connections_and_finishes_busy_ones() {
    let house = door();
    let (mut idle, idle_serving) = connect(&house);
    idle.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut first = [0; 12];
    idle.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");

    let (mut busy, busy_serving) = connect(&house);
    let head = "POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                Content-Length: 17\r\n\r\n{\"key\"";
    busy.write_all(head.as_bytes()).await.unwrap();
    // The door has seen the head before it is told to stop.
    tokio::task::yield_now().await;
    house.gate.door.shutdown.set();
    idle_serving.await.unwrap();

    busy.write_all(b":\"ws ip=a\"}").await.unwrap();
    let mut answer = String::new();
    busy.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(answer.contains("connection: close"), "{answer}");
    busy_serving.await.unwrap();
}
