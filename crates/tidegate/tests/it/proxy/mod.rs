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
mod vectors;
mod waiting;
mod websocket;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::engines::until as eventually;
use crate::program::{PATIENCE, Program};

/// The program with one proxy to `upstream`, named `api`, with these settings, and `/metrics`.
fn proxy(upstream: SocketAddr, settings: &str) -> Program {
    Program::serve(&config(&format!("http://{upstream}"), settings))
}

fn config(upstream: &str, settings: &str) -> String {
    format!(
        "[[proxy]]\nname = 'api'\nlisten = '127.0.0.1:0'\nupstream = '{upstream}'\n{settings}\n\
         [http]\nlisten = '127.0.0.1:0'\n[admin]\nlisten = '127.0.0.1:0'\n"
    )
}

/// A message as a test reads it: the first line, the headers in lower case, and the body.
#[derive(Clone, Debug)]
struct Message {
    first: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Message {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    fn status(&self) -> u16 {
        self.first.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status")
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Reads a head; `None` at the end of the stream.
    fn read_head(stream: &mut impl BufRead) -> Option<Self> {
        let mut line = || {
            let mut line = Vec::new();
            stream.read_until(b'\n', &mut line).ok().filter(|count| *count > 0)?;
            Some(String::from_utf8_lossy(&line).trim_end().to_owned())
        };
        let first = line()?;
        let mut headers = Vec::new();
        loop {
            match line()?.split_once(':') {
                Some((name, value)) => {
                    headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
                }
                None => return Some(Self { first, headers, body: Vec::new() }),
            }
        }
    }

    /// Reads a whole message; one without a length has no body.
    fn read(stream: &mut impl BufRead) -> Option<Self> {
        let mut message = Self::read_head(stream)?;
        let chunked = message.header("transfer-encoding") == Some("chunked");
        if let Some(length) = message.header("content-length").and_then(|text| text.parse().ok()) {
            message.body = vec![0; length];
            stream.read_exact(&mut message.body).ok()?;
        }
        if chunked {
            message.read_chunks(stream)?;
        }
        Some(message)
    }

    /// Reads chunks to the last one, and the trailers behind it among the headers.
    fn read_chunks(&mut self, stream: &mut impl BufRead) -> Option<()> {
        loop {
            let mut size = String::new();
            stream.read_line(&mut size).ok()?;
            let size = usize::from_str_radix(size.trim_end(), 16).ok()?;
            if size == 0 {
                let trailers = Self::read_head(&mut BufReader::new(Stitched(b"x\n", stream)))?;
                self.headers.extend(trailers.headers);
                return Some(());
            }
            let mut chunk = vec![0; size + 2];
            stream.read_exact(&mut chunk).ok()?;
            self.body.extend_from_slice(&chunk[..size]);
        }
    }
}

/// Trailers look like a head without its first line.
struct Stitched<'a, R>(&'static [u8], &'a mut R);

impl<R: BufRead> Read for Stitched<'_, R> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        if let [byte, rest @ ..] = self.0 {
            self.0 = rest;
            out[0] = *byte;
            return Ok(1);
        }
        // A byte at a time, so that nothing beyond the trailers is swallowed.
        self.1.read(&mut out[..1])
    }
}

/// A client on one connection.
struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    fn new(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("the proxy accepts");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        Self { stream: BufReader::new(stream) }
    }

    fn of(program: &Program) -> Self {
        Self::new(program.address("proxy"))
    }

    fn send(&mut self, bytes: &[u8]) {
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
    fn closed(&mut self) -> bool {
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Ok(count) => count == 0,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

/// An upstream of a few lines, with a thread for each connection.
struct Upstream {
    address: SocketAddr,
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
    fn answering(answer: impl Fn(&Message) -> String + Send + Sync + 'static) -> Self {
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
fn mirrored(request: &Message) -> String {
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
fn api(program: &Program, path: &str) -> String {
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
