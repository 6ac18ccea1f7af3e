//! The examples of the gatekeeper, with a real request through each of them.

#[allow(dead_code, reason = "its `main` is for people")]
#[path = "../examples/gatekeeper_axum.rs"]
mod gatekeeper_axum;
#[allow(dead_code, reason = "its `main` is for people")]
#[path = "../examples/gatekeeper_tonic.rs"]
mod gatekeeper_tonic;

use std::time::Duration;

use tidegate_client::clock::UnixClock;
use tidegate_client::gatekeeper::{Config, Domain, Gatekeeper, Master};
use tidegate_client::zmq::{Batch, Options, SubSocket};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tonic::{Code, Request};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

const T: i64 = 1_700_000_000_000;

/// A gatekeeper whose master is away.
fn gatekeeper(domain: &str) -> (Gatekeeper, Domain) {
    let nobody = "tcp://127.0.0.1:1";
    let masters = [Master::new(nobody, nobody, [domain])];
    let config = Config { clock: UnixClock::manual(T), ..Config::new(masters) };
    let gatekeeper = Gatekeeper::connect(&config).unwrap();
    let domain = gatekeeper.domain(domain).unwrap();
    (gatekeeper, domain)
}

async fn asked(address: std::net::SocketAddr) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = b"GET /?q=secret HTTP/1.1\r\nHost: localhost\r\nUser-Agent: test/1 (a)\r\n\
        Connection: close\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn axum_answers_or_sends_away() {
    let (gatekeeper, domain) = gatekeeper("api");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = gatekeeper.clone();
    tokio::spawn(async move { gatekeeper_axum::serve(listener, serving).await.unwrap() });
    let answer = asked(address).await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("hello\n"), "{answer}");
    assert!(gatekeeper.remember(domain, b"127.0.0.1", T + 20));
    assert!(asked(address).await.starts_with("HTTP/1.1 200 OK\r\n"), "after a short wait");
    assert!(gatekeeper.remember(domain, b"127.0.0.1", T + 7_500));
    let answer = asked(address).await;
    assert!(answer.starts_with("HTTP/1.1 503 Service Unavailable\r\n"), "{answer}");
    assert!(answer.contains("retry-after: 8\r\n"), "{answer}");
    let stats = gatekeeper.stats();
    assert_eq!((stats.accepted, stats.delayed, stats.rejected), (1, 1, 1));
}

/// What is told of a request is six frames, and the last says what was asked for.
#[tokio::test]
async fn masters_are_told_what_was_asked_for() {
    let master = SubSocket::new(&Options::default());
    master.subscribe(b"").await.unwrap();
    let accounting = master.bind("tcp://127.0.0.1:0").await.unwrap();
    let masters = [Master::new(format!("tcp://{accounting}"), "tcp://127.0.0.1:1", ["api"])];
    let config = Config { clock: UnixClock::manual(T), ..Config::new(masters) };
    let gatekeeper = Gatekeeper::connect(&config).unwrap();
    let domain = gatekeeper.domain("api").unwrap();
    let heard = tokio::time::timeout(Duration::from_secs(60), gatekeeper.heard(domain));
    heard.await.expect("the master is there");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { gatekeeper_axum::serve(listener, gatekeeper).await.unwrap() });
    assert!(asked(address).await.starts_with("HTTP/1.1 200 OK\r\n"));
    let mut batch = Batch::new();
    // It asks who is delayed, too.
    let frames = loop {
        master.receive(&mut batch, 1).await.unwrap();
        let mut room = [&b""[..]; 8];
        let frames = batch.frames(0, &mut room);
        if frames[1] == b"ACCEPTED" {
            break frames.concat();
        }
    };
    let expected = format!("api\0ACCEPTED127.0.0.1{T}GET / test/1 (a)");
    assert_eq!(String::from_utf8(frames).unwrap(), expected);
}

#[tokio::test]
async fn tonic_answers_or_sends_away() {
    let (gatekeeper, domain) = gatekeeper("grpc");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = gatekeeper.clone();
    tokio::spawn(async move { gatekeeper_tonic::serve(listener, serving).await.unwrap() });
    let endpoint = tonic::transport::Endpoint::new(format!("http://{address}")).unwrap();
    let mut client = HealthClient::new(endpoint.connect().await.unwrap());
    let asked = || {
        let mut request = Request::new(HealthCheckRequest::default());
        request.metadata_mut().insert("x-api-key", "k1".parse().unwrap());
        request.set_timeout(Duration::from_secs(60));
        request
    };
    assert_eq!(client.check(asked()).await.unwrap().into_inner().status, 1);
    assert!(gatekeeper.remember(domain, b"k1", T + 7_500));
    let status = client.check(asked()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(status.metadata().get("retry-after").unwrap(), "8");
    let nobody = Request::new(HealthCheckRequest::default());
    assert_eq!(client.check(nobody).await.unwrap().into_inner().status, 1);
}
