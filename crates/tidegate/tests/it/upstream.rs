//! A plain upstream that tells the test of every request that reaches it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use crate::program::PATIENCE;

/// An upstream that answers every request with 204. Its threads end with the test's process.
pub(crate) struct Upstream {
    address: SocketAddr,
    requests: Receiver<String>,
}

impl Upstream {
    /// Starts one on a free port.
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let (told, requests) = channel();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let told = told.clone();
                thread::spawn(move || answer(stream, &told));
            }
        });
        Self { address, requests }
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits for the next request and returns its first line.
    pub(crate) fn next(&self) -> String {
        self.requests.recv_timeout(PATIENCE).expect("a request reaches the upstream")
    }

    /// How many requests have come that nobody has waited for.
    pub(crate) fn more(&self) -> usize {
        self.requests.try_iter().count()
    }
}

fn answer(stream: TcpStream, told: &Sender<String>) {
    let mut writer = stream.try_clone().expect("a socket");
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    while let Some(first) = lines.next() {
        // No request of these tests has a body: an empty line is its end.
        if lines.by_ref().any(|line| line.is_empty()) {
            let _ = told.send(first);
        }
        if writer.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").is_err() {
            return;
        }
    }
}
