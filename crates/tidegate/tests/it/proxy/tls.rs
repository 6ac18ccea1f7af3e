//! TLS on either side, with certificates that the tests make.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{self, Receiver};

use http_body_util::{Empty, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustix::process::Signal;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ServerConfig};
use tokio::io::{
    AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _,
    BufReader,
};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::http2::text;
use super::{Upstream, config, eventually, metric};
use crate::papers::Papers;
use crate::program::{PATIENCE, Program};

fn shown(path: &Path) -> String {
    path.display().to_string()
}

/// What the proxy answers over TLS when `protocol` is offered.
async fn get(
    address: SocketAddr,
    mut tls: ClientConfig,
    protocol: &[u8],
) -> Result<(Version, String), Box<dyn std::error::Error + Send + Sync>> {
    tls.alpn_protocols = vec![protocol.to_vec()];
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from("gate.example")?;
    let stream = TlsConnector::from(Arc::new(tls)).connect(name, stream).await?;
    let io = TokioIo::new(stream);
    let request = Request::get("https://gate.example/a").header("host", "gate.example");
    let request = request.body(Empty::<Bytes>::new())?;
    let response = if protocol == b"h2" {
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await?;
        tokio::spawn(connection);
        sender.send_request(request).await?
    } else {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await?;
        tokio::spawn(connection);
        sender.send_request(request).await?
    };
    Ok((response.version(), text(response).await))
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_speak_tls_and_agree_on_a_protocol() {
    let papers = Papers::new();
    papers.sign("gate", "gate.example");
    papers.sign("client", "client.example");
    let upstream = Upstream::mirror();
    let (cert, key, ca) = (papers.path("gate.pem"), papers.path("gate.key"), papers.path("ca.pem"));
    let (cert, key, ca) = (shown(&cert), shown(&key), shown(&ca));
    let open = format!("limit = 'none'\ntls = {{ cert = '{cert}', key = '{key}' }}");
    let program = Program::serve(&config(&format!("http://{}", upstream.address), &open));
    let trusting = || ClientConfig::builder().with_root_certificates(papers.roots());
    for (protocol, version) in [(&b"h2"[..], Version::HTTP_2), (&b"http/1.1"[..], Version::HTTP_11)]
    {
        let tls = trusting().with_no_client_auth();
        let (spoken, seen) = get(program.address("proxy"), tls, protocol).await.expect("an answer");
        assert_eq!(spoken, version);
        assert!(seen.contains("x-forwarded-proto: https"), "{seen}");
        assert!(seen.contains("proto=https"), "{seen}");
    }
    let closed =
        format!("limit = 'none'\ntls = {{ cert = '{cert}', key = '{key}', client_ca = '{ca}' }}");
    let program = Program::serve(&config(&format!("http://{}", upstream.address), &closed));
    let address = program.address("proxy");
    let stranger = trusting().with_no_client_auth();
    assert!(get(address, stranger, b"http/1.1").await.is_err(), "no certificate, no answer");
    let (chain, key) = papers.own("client");
    let known = trusting().with_client_auth_cert(chain, key).expect("a certificate");
    assert!(get(address, known, b"http/1.1").await.is_ok());
}

/// An upstream behind TLS that answers with the protocol it was asked over: its port, and how many
/// connections were made to it.
async fn secure_upstream(papers: &Papers, protocols: &[&[u8]]) -> (u16, Arc<AtomicUsize>) {
    let (chain, key) = papers.own("upstream");
    let tls = ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key);
    let mut tls = tls.expect("a certificate");
    tls.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    let connections = Arc::new(AtomicUsize::new(0));
    let made = connections.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            made.fetch_add(1, SeqCst);
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                let service = service_fn(|request: Request<Incoming>| async move {
                    let text = format!("{:?} {}", request.version(), request.uri().path());
                    Ok::<_, std::convert::Infallible>(Response::new(Full::new(Bytes::from(text))))
                });
                let io = TokioIo::new(stream);
                if http2 {
                    let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                    let _ = server.serve_connection(io, service).await;
                } else {
                    let server = hyper::server::conn::http1::Builder::new();
                    let _ = server.serve_connection(io, service).await;
                }
            });
        }
    });
    (port, connections)
}

#[tokio::test(flavor = "multi_thread")]
async fn upstreams_are_spoken_to_over_tls_and_must_be_who_they_say() {
    let papers = Papers::new();
    papers.sign("upstream", "localhost");
    let ca = shown(&papers.path("ca.pem"));
    let ask = |program: &Program| {
        let mut client = super::Client::of(program);
        let first = client.get("/first").status();
        let answer = client.get("/a");
        assert_eq!(first, answer.status());
        (answer.status(), answer.text())
    };
    let both: [&[u8]; 2] = [b"h2", b"http/1.1"];
    for (protocols, http2, version) in [
        (&both[..], true, "HTTP/2.0"),
        (&both[..], false, "HTTP/1.1"),
        (&both[1..], true, "HTTP/1.1"),
    ] {
        let (port, connections) = secure_upstream(&papers, protocols).await;
        let settings = format!("limit = 'none'\nhttp2 = {http2}\nupstream_ca = '{ca}'");
        let program = Program::serve(&config(&format!("https://localhost:{port}"), &settings));
        let answer = tokio::task::block_in_place(|| ask(&program));
        assert_eq!(answer, (200, format!("{version} /a")), "{http2}");
        assert_eq!(connections.load(SeqCst), 1, "used again, whatever is spoken");
    }
    let (port, _) = secure_upstream(&papers, &both).await;
    let settings = format!("limit = 'none'\nupstream_ca = '{ca}'");
    let another = Program::serve(&config(&format!("https://127.0.0.1:{port}"), &settings));
    assert_eq!(tokio::task::block_in_place(|| ask(&another)).0, 502, "not whom it was looked for");
    let strangers = Papers::new();
    let ca = shown(&strangers.path("ca.pem"));
    let settings = format!("limit = 'none'\nupstream_ca = '{ca}'");
    let mistrusting = Program::serve(&config(&format!("https://localhost:{port}"), &settings));
    assert_eq!(tokio::task::block_in_place(|| ask(&mistrusting)).0, 502);
}

/// An upstream behind TLS that takes little at a time, and answers with how long bodies were: its
/// port, and how each connection ended.
async fn sipping_upstream(papers: &Papers) -> (u16, Receiver<io::Result<()>>) {
    let (chain, key) = papers.own("upstream");
    let tls = ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key);
    let acceptor = TlsAcceptor::from(Arc::new(tls.expect("a certificate")));
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(4096).expect("an option");
    socket.bind(([127, 0, 0, 1], 0).into()).expect("a free port");
    let listener = socket.listen(16).expect("it listens");
    let port = listener.local_addr().expect("an address").port();
    let (told, ends) = mpsc::channel();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, told) = (acceptor.clone(), told.clone());
            tokio::spawn(async move {
                let stream = acceptor.accept(stream).await.expect("a handshake");
                let _ = told.send(sip(BufReader::with_capacity(SIP, stream)).await);
            });
        }
    });
    (port, ends)
}

const SIP: usize = 512;

/// Answers until the other side says goodbye; an error if it is just gone.
async fn sip(mut stream: impl AsyncBufRead + AsyncWrite + Unpin) -> io::Result<()> {
    loop {
        let (mut line, mut length) = (String::new(), 0);
        while line != "\r\n" {
            line.clear();
            if stream.read_line(&mut line).await? == 0 {
                return Ok(());
            }
            if let Some(told) = line.strip_prefix("content-length: ") {
                length = told.trim().parse().expect("a length");
            }
        }
        let mut sip = [0; SIP];
        let mut left: usize = length;
        while left > 0 {
            let most = left.min(SIP);
            left -= stream.read_exact(&mut sip[..most]).await?;
        }
        let text = length.to_string();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", text.len());
        stream.write_all(format!("{head}{text}").as_bytes()).await?;
        stream.flush().await?;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_goes_to_the_end_over_tls_to_an_upstream_that_takes_its_time() {
    let papers = Papers::new();
    papers.sign("upstream", "localhost");
    let ca = shown(&papers.path("ca.pem"));
    let (port, ends) = sipping_upstream(&papers).await;
    let settings = format!("limit = 'none'\nupstream_ca = '{ca}'");
    let program = Program::serve(&config(&format!("https://localhost:{port}"), &settings));
    tokio::task::block_in_place(|| {
        for length in [1, 100_000, 3_000_000, 5_000_001] {
            let mut client = super::Client::of(&program);
            let head = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n");
            client.send(head.as_bytes());
            client.send(&vec![b'x'; length]);
            let answer = client.read();
            assert_eq!((answer.status(), answer.text()), (200, length.to_string()));
        }
        // Idle connections are closed as TLS wants it.
        program.signal(Signal::TERM);
        ends.recv_timeout(PATIENCE).expect("an end").expect("a goodbye");
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn who_leaves_or_says_nothing_over_tls_is_not_waited_for() {
    let papers = Papers::new();
    papers.sign("gate", "gate.example");
    let (cert, key) = (shown(&papers.path("gate.pem")), shown(&papers.path("gate.key")));
    let settings = format!(
        "limit = '1 per day'\nalgorithm = 'sliding-log'\nhead_timeout = '1h'\n\
         tls = {{ cert = '{cert}', key = '{key}' }}\n[server]\nshutdown_grace = '10min'"
    );
    let upstream = Upstream::mirror();
    let mut program = Program::serve(&config(&format!("http://{}", upstream.address), &settings));
    let tls = ClientConfig::builder().with_root_certificates(papers.roots()).with_no_client_auth();
    let connector = TlsConnector::from(Arc::new(tls));
    let ask = async || {
        let stream = TcpStream::connect(program.address("proxy")).await.expect("accepted");
        let name = ServerName::try_from("gate.example").expect("a name");
        let mut stream = connector.connect(name, stream).await.expect("a handshake");
        stream.write_all(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n").await.expect("sent");
        stream
    };
    let mut first = ask().await;
    first.read_exact(&mut [0; 12]).await.expect("an answer");
    let second = ask().await;
    let waiting = |count: f64| {
        let series = "tidegate_waiting{door=\"proxy\"}";
        tokio::task::block_in_place(|| eventually(|| metric(&program, series) == count));
    };
    waiting(1.0);
    drop(second);
    waiting(0.0);
    let _silent = TcpStream::connect(program.address("proxy")).await.expect("accepted");
    program.signal(Signal::TERM);
    drop(first);
    tokio::task::block_in_place(|| assert!(program.exit_status().success()));
}

#[test]
fn files_that_are_no_certificates_are_told_before_anything_opens() {
    let upstream = "http://127.0.0.1:9";
    let settings = "tls = { cert = 'none.pem', key = 'none.key' }";
    let mut program = Program::start(&config(upstream, settings));
    assert_eq!(program.exit_status().code(), Some(2));
    let said = program.rest_of_stderr().join("\n");
    assert!(said.contains("cannot read the certificate none.pem"), "{said}");
}
