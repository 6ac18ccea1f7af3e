//! The upstream of both proxies: it answers each request with what only that request can know.

use std::io::{BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use crate::clock::{WATCHDOG, pause_ms};
use crate::message::Message;

/// Bytes of an answer that is larger than every buffer on its way.
pub(crate) const LARGE_BYTES: usize = 8 << 20;
/// How long the answer to a slow request takes.
const SLOW_MS: u64 = 100;

/// A running upstream. Its threads end with the test's process.
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
}

impl Upstream {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                thread::spawn(move || serve(stream));
            }
        });
        Self { address }
    }
}

/// What it answers to a request with this method, path, and body.
pub(crate) fn echo(method: &str, path: &str, body: &[u8]) -> Vec<u8> {
    [format!("{method} {path} {}\n", body.len()).as_bytes(), body].concat()
}

fn serve(stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    // A client that stops in the middle of a body must not keep this thread for ever.
    let _ = stream.set_write_timeout(Some(WATCHDOG));
    let mut stream = BufReader::new(stream);
    while let Some(request) = Message::read(&mut stream) {
        let mut first = request.first.split(' ');
        let (method, path) = (first.next().unwrap_or_default(), first.next().unwrap_or_default());
        if path.starts_with("/slow") {
            pause_ms(SLOW_MS);
        }
        let body = if path.starts_with("/large") {
            vec![b'x'; LARGE_BYTES]
        } else {
            echo(method, path, &request.body)
        };
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        if stream.get_mut().write_all(&[head.as_bytes(), &body].concat()).is_err() {
            return;
        }
    }
}
