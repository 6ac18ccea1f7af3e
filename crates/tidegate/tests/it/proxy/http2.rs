//! HTTP/2 on either side: from clients that begin with it, to upstreams that want it, and a real
//! gRPC service in between.

use std::net::SocketAddr;

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2::{self, SendRequest};
use hyper::header::HeaderMap;
use hyper::service::service_fn;
use hyper::{Request, Response, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Endpoint, Server};
use tonic_health::ServingStatus;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use super::{Client, Upstream, metric, ok, proxy};

/// A client that speaks HTTP/2 from the first byte.
pub(super) async fn prior_knowledge(address: SocketAddr) -> SendRequest<Full<Bytes>> {
    let stream = TcpStream::connect(address).await.expect("the proxy accepts");
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .expect("the proxy speaks HTTP/2");
    tokio::spawn(connection);
    sender
}

pub(super) async fn text(response: Response<Incoming>) -> String {
    let bytes = response.into_body().collect().await.expect("a whole body").to_bytes();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_may_speak_http2_to_an_upstream_that_does_not() {
    let upstream = Upstream::mirror();
    let program = proxy(upstream.address, "limit = '1000 per day'");
    let mut sender = prior_knowledge(program.address("proxy")).await;
    let request = Request::post("http://a.example/b?c")
        .header("cookie", "one=1")
        .header("cookie", "two=2")
        .body(Full::new(Bytes::from_static(b"hello")))
        .expect("a request");
    let response = sender.send_request(request).await.expect("an answer");
    assert_eq!((response.status().as_u16(), response.version()), (200, Version::HTTP_2));
    let seen = text(response).await;
    for line in [
        "POST /b?c HTTP/1.1",
        "host: a.example",
        "cookie: one=1; two=2",
        "content-length: 5",
        "x-forwarded-host: a.example",
    ] {
        assert!(seen.lines().any(|found| found == line), "{line} is not in\n{seen}");
    }
    assert!(seen.ends_with("\n\nhello"), "{seen}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_not_read_is_reset_and_the_others_go_on() {
    let long = ok(&"x".repeat(16 << 20));
    let upstream = Upstream::answering(move |request| match request.first.as_str() {
        "GET /long HTTP/1.1" => long.clone(),
        _ => ok("short"),
    });
    let settings = "limit = '1 in flight'\nstall_timeout = '100ms'";
    let program = proxy(upstream.address, settings);
    let mut sender = prior_knowledge(program.address("proxy")).await;
    let mut ask = async |path: &str| {
        let uri = format!("http://a{path}");
        let request = Request::get(uri).body(Full::<Bytes>::default()).expect("a request");
        sender.send_request(request).await.expect("an answer")
    };
    let unread = ask("/long").await;
    assert_eq!(text(ask("/short").await).await, "short");
    let cut = "tidegate_bad_input_total{door=\"proxy\",reason=\"reader_slow\"}";
    tokio::task::block_in_place(|| super::eventually(|| metric(&program, cut) == 1.0));
    assert!(unread.into_body().collect().await.is_err(), "it was reset");
    // Its use was given back, and the connection is of use.
    let whole = text(ask("/long").await).await;
    assert_eq!(whole.len(), 16 << 20);
    assert_eq!(metric_of(&program, cut), 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_whose_upstream_takes_its_time_is_not_its_clients_fault() {
    let (go, gone) = std::sync::mpsc::channel::<()>();
    let gone = std::sync::Mutex::new(gone);
    let long = ok(&"x".repeat(16 << 20));
    let upstream = Upstream::new(move |mut stream| {
        let Some(request) = super::Message::read(&mut stream) else { return };
        let out = stream.get_mut();
        if request.first == "GET /long HTTP/1.1" {
            let _ = std::io::Write::write_all(out, long.as_bytes());
            return;
        }
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nfirst";
        std::io::Write::write_all(out, head).expect("the proxy reads");
        let _ = gone.lock().expect("no panic").recv();
        let _ = std::io::Write::write_all(out, b" last");
    });
    let program = proxy(upstream.address, "limit = 'none'\nstall_timeout = '100ms'");
    let mut sender = prior_knowledge(program.address("proxy")).await;
    let mut ask = async |path: &str| {
        let uri = format!("http://a{path}");
        let request = Request::get(uri).body(Full::<Bytes>::default()).expect("a request");
        sender.send_request(request).await.expect("an answer").into_body()
    };
    let mut slow = ask("/slow").await;
    let first = slow.frame().await.expect("a part").expect("no error").into_data();
    assert_eq!(first.expect("bytes"), "first");
    // One that its client does not read is cut for that, and the slow one was longer at it.
    let unread = ask("/long").await;
    let cut = "tidegate_bad_input_total{door=\"proxy\",reason=\"reader_slow\"}";
    tokio::task::block_in_place(|| super::eventually(|| metric(&program, cut) == 1.0));
    go.send(()).expect("the upstream listens");
    assert_eq!(slow.collect().await.expect("a whole body").to_bytes(), " last");
    assert_eq!(metric_of(&program, cut), 1.0);
    drop(unread);
}

fn metric_of(program: &crate::program::Program, series: &str) -> f64 {
    tokio::task::block_in_place(|| metric(program, series))
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_wait_apart_and_are_out_of_the_line_when_they_are_reset() {
    let (go, gone) = std::sync::mpsc::channel::<()>();
    let gone = std::sync::Mutex::new(gone);
    let upstream = Upstream::answering(move |request| {
        let _ = gone.lock().expect("no panic").recv();
        ok(&request.first)
    });
    let program = proxy(upstream.address, "limit = '1 in flight'");
    let sender = prior_knowledge(program.address("proxy")).await;
    let ask = |query: &str| {
        let mut sender = sender.clone();
        let uri = format!("http://a/b?{query}");
        tokio::spawn(async move {
            let request = Request::get(uri).body(Full::default()).expect("a request");
            text(sender.send_request(request).await.expect("an answer")).await
        })
    };
    let series = "tidegate_waiting{door=\"proxy\"}";
    let waiting = |count: f64| {
        tokio::task::block_in_place(|| super::eventually(|| metric(&program, series) == count));
    };
    let first = ask("first");
    tokio::task::block_in_place(|| super::eventually(|| upstream.connections() == 1));
    let leaving = ask("leaving");
    waiting(1.0);
    let last = ask("last");
    waiting(2.0);
    leaving.abort();
    waiting(1.0);
    drop(go);
    assert_eq!(first.await.expect("no panic"), "GET /b?first HTTP/1.1");
    assert_eq!(last.await.expect("no panic"), "GET /b?last HTTP/1.1");
    waiting(0.0);
}

/// A real gRPC service.
async fn health() -> SocketAddr {
    let (reporter, service) = tonic_health::server::health_reporter();
    reporter.set_service_status("tides", ServingStatus::Serving).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let incoming = TcpIncoming::from(listener);
    tokio::spawn(Server::builder().add_service(service).serve_with_incoming(incoming));
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn grpc_passes_with_its_trailers() {
    let upstream = health().await;
    let program = proxy(upstream, "http2 = true\nlimit = '1000 per day'");
    let endpoint = Endpoint::from_shared(format!("http://{}", program.address("proxy")));
    let channel = endpoint.expect("an address").connect().await.expect("the proxy accepts");
    let mut client = HealthClient::new(channel);
    let ask = |service: &str| HealthCheckRequest { service: service.to_owned() };
    let answer = client.check(ask("tides")).await.expect("an answer").into_inner();
    assert_eq!(answer.status, 1);
    let unknown = client.check(ask("moons")).await.expect_err("a status in the trailers");
    assert_eq!(unknown.code(), tonic::Code::NotFound);
    let mut watch = client.watch(ask("tides")).await.expect("a stream").into_inner();
    assert_eq!(watch.message().await.expect("whole").expect("a message").status, 1);
}

/// An upstream of HTTP/2 that answers with what it saw: the fields, a line for the body, and the
/// fields behind it.
async fn scribe() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let lines = |fields: &HeaderMap| -> String {
        fields
            .iter()
            .map(|(name, value)| format!("{name}: {}\n", value.to_str().unwrap()))
            .collect()
    };
    let note = move |request: Request<Incoming>| async move {
        let head = lines(request.headers());
        let body = request.into_body().collect().await?;
        let behind = body.trailers().map(lines).unwrap_or_default();
        let text = String::from_utf8_lossy(&body.to_bytes()).into_owned();
        Ok::<_, hyper::Error>(Response::new(Full::new(Bytes::from(format!(
            "{head}\n{text}\n\n{behind}"
        )))))
    };
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let serving = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), service_fn(note));
            tokio::spawn(serving);
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn lengths_are_said_once_over_http2_and_fields_behind_a_body_mean_no_harm() {
    let upstream = scribe().await;
    let program = proxy(upstream, "http2 = true\nlimit = '1000 per day'");
    tokio::task::block_in_place(|| {
        let mut client = Client::of(&program);
        client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello");
        let seen = client.read().text();
        assert_eq!(seen.matches("content-length: 5\n").count(), 1, "{seen}");
        assert!(seen.ends_with("\n\nhello\n\n"), "{seen}");
        client.send(
            b"POST / HTTP/1.1\r\nHost: a\r\nTrailer: x-sum\r\nTransfer-Encoding: chunked\r\n\r\n\
              2\r\nhi\r\n0\r\nx-sum: 42\r\nx-forwarded-for: 6.6.6.6\r\nauthorization: evil\r\n\r\n",
        );
        let seen = client.read().text();
        assert!(!seen.contains("content-length") && !seen.contains("transfer-encoding"), "{seen}");
        assert!(seen.ends_with("\n\nhi\n\nx-sum: 42\n"), "{seen}");
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn many_streams_get_more_than_one_connection() {
    let upstream = health().await;
    let program = proxy(upstream, "http2 = true\nlimit = '1000 in flight'");
    let endpoint = Endpoint::from_shared(format!("http://{}", program.address("proxy")));
    let channel = endpoint.expect("an address").connect().await.expect("the proxy accepts");
    let mut client = HealthClient::new(channel);
    let mut open = Vec::new();
    for _ in 0..150 {
        let ask = HealthCheckRequest { service: "tides".to_owned() };
        let mut watch = client.watch(ask).await.expect("a stream").into_inner();
        assert_eq!(watch.message().await.expect("whole").expect("a message").status, 1);
        open.push(watch);
    }
    let connections = "tidegate_proxy_upstream_connections{proxy=\"api\"}";
    tokio::task::block_in_place(|| assert_eq!(metric(&program, connections), 2.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_http1_reaches_an_upstream_of_http2() {
    let upstream = health().await;
    let program = proxy(upstream, "http2 = true\nlimit = '1000 per day'");
    tokio::task::block_in_place(|| {
        let mut client = Client::of(&program);
        for _ in 0..3 {
            let answer = client.get("/nothing.here/At");
            // gRPC's way to say that there is no such method.
            assert_eq!((answer.status(), answer.header("grpc-status")), (200, Some("12")));
        }
    });
    let connections = "tidegate_proxy_upstream_connections{proxy=\"api\"}";
    tokio::task::block_in_place(|| assert!(metric(&program, connections) >= 1.0));
}
