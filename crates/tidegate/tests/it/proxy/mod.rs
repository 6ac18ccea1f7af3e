//! The proxy door of the real program: between clients of a few lines and upstreams of a few more,
//! and between real ones.

mod answers;
mod boundaries;
mod crowd;
mod downgrade;
mod gatekeeper;
mod house;
mod http2;
mod parked;
mod plain;
mod programs;
mod stop;
mod tls;
mod upstreams;
mod waiting;
mod websocket;

use std::io::{BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::engines::until as eventually;
use crate::message::Message;
use crate::program::{PATIENCE, Program};

/// The program with one proxy to `upstream`, named `api`, with these settings, and `/metrics`.
pub(crate) fn proxy(upstream: SocketAddr, settings: &str) -> Program {
    Program::serve(&config(&format!("http://{upstream}"), settings))
}

fn config(upstream: &str, settings: &str) -> String {
    format!(
        "[[proxy]]\nname = 'api'\nlisten = '127.0.0.1:0'\nupstream = '{upstream}'\n{settings}\n\
         [http]\nlisten = '127.0.0.1:0'\n[admin]\nlisten = '127.0.0.1:0'\n"
    )
}

/// A client on one connection.
pub(crate) struct Client {
    pub(crate) stream: BufReader<TcpStream>,
}

impl Client {
    fn new(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("the proxy accepts");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        Self { stream: BufReader::new(stream) }
    }

    pub(crate) fn of(program: &Program) -> Self {
        Self::new(program.address("proxy"))
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).expect("the proxy reads");
    }

    fn read(&mut self) -> Message {
        Message::read(&mut self.stream).expect("an answer")
    }

    fn get(&mut self, path: &str) -> Message {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: a.example\r\n\r\n").as_bytes());
        self.read()
    }

    /// All that comes until the connection is closed, or reset.
    fn all(&mut self) -> String {
        let mut bytes = Vec::new();
        let _ = self.stream.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Whether the proxy has closed, and nothing was left to read.
    pub(crate) fn closed(&mut self) -> bool {
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Ok(count) => count == 0,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

/// An upstream of a few lines, with a thread for each connection.
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    connections: Arc<AtomicUsize>,
}

impl Upstream {
    /// Hands every connection to `serve`.
    fn new(serve: impl Fn(BufReader<TcpStream>) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let connections = Arc::new(AtomicUsize::new(0));
        let (serve, count) = (Arc::new(serve), connections.clone());
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                count.fetch_add(1, Ordering::SeqCst);
                let serve = serve.clone();
                thread::spawn(move || serve(BufReader::new(stream)));
            }
        });
        Self { address, connections }
    }

    /// Answers every request on a connection with what `answer` makes of it.
    pub(crate) fn answering(answer: impl Fn(&Message) -> String + Send + Sync + 'static) -> Self {
        Self::new(move |mut stream| {
            while let Some(request) = Message::read(&mut stream) {
                if stream.get_mut().write_all(answer(&request).as_bytes()).is_err() {
                    return;
                }
            }
        })
    }

    /// Answers every request with what it saw of it.
    fn mirror() -> Self {
        Self::answering(mirrored)
    }

    /// Connections so far.
    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

/// What was seen of a request: the head, sorted, and the body.
pub(crate) fn mirrored(request: &Message) -> String {
    let mut lines = vec![request.first.clone()];
    let mut headers: Vec<String> =
        request.headers.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    headers.sort();
    lines.extend(headers);
    lines.push(String::new());
    lines.push(request.text());
    ok(&lines.join("\n"))
}

/// A plain answer with this body.
fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

/// What `path` of the HTTP door says.
pub(crate) fn api(program: &Program, path: &str) -> String {
    let mut client = Client::new(program.address("admin"));
    client.get_local(path).text()
}

impl Client {
    fn get_local(&mut self, path: &str) -> Message {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").as_bytes());
        self.read()
    }
}

/// The value of a series in `/metrics`; 0 if it is not there.
fn metric(program: &Program, series: &str) -> f64 {
    let page = api(program, "/metrics");
    let line = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.map_or(0.0, |value| value.parse().expect("a number"))
}

/// Closes one way only.
fn half_close(stream: &BufReader<TcpStream>) {
    let _ = stream.get_ref().shutdown(Shutdown::Write);
}
