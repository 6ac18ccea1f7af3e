//! The Throttr door: the real program over TCP and Unix sockets, and its corridor without either.

mod channels;
mod figures;
mod hostile;
mod model;
mod sockets;

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;

use tidegate_wire::throttr::{Request, Ttl, Unit, ValueSize};

use crate::engines::until;
use crate::program::{PATIENCE, Program};

/// One listener of 16 bits, and `/metrics`.
const DOOR: &str = r#"
[[throttr]]
listen = "127.0.0.1:0"
[http]
listen = "127.0.0.1:0"
"#;

/// The value size of [`DOOR`].
const SIZE: ValueSize = ValueSize::Bits16;

const MINUTE: Ttl = Ttl::new(60, Unit::Seconds);

/// Requests one behind the other, as a listener of [`SIZE`] reads them.
fn written(requests: &[Request<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for request in requests {
        request.encode(SIZE, &mut bytes).expect("a request that can be written");
    }
    bytes
}

/// Either kind of socket.
trait Socket: Read + Write {
    fn end(&self);
}

impl Socket for TcpStream {
    fn end(&self) {
        let _ = self.shutdown(Shutdown::Write);
    }
}

impl Socket for UnixStream {
    fn end(&self) {
        let _ = self.shutdown(Shutdown::Write);
    }
}

/// A client that waits for what it expects, and no longer than is patient.
struct Client<S = TcpStream>(S);

impl Client {
    /// Connects to the door that was told last.
    fn new(program: &Program) -> Self {
        let stream = TcpStream::connect(program.address("throttr")).expect("the door is open");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
        stream.set_nodelay(true).expect("no delay");
        Self(stream)
    }
}

impl Client<UnixStream> {
    fn unix(path: &std::path::Path) -> Self {
        let stream = UnixStream::connect(path).expect("the door is open");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        Self(stream)
    }
}

impl<S: Socket> Client<S> {
    fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).expect("the door takes it");
    }

    /// The next bytes, so many.
    fn read(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.0.read_exact(&mut bytes).expect("the door answers");
        bytes
    }

    /// Asks, and returns the first bytes of the answer.
    fn ask(&mut self, request: &Request<'_>, count: usize) -> Vec<u8> {
        self.send(&written(&[*request]));
        self.read(count)
    }

    /// Whether a request that answers with a status alone succeeded.
    fn does(&mut self, request: &Request<'_>) -> bool {
        self.ask(request, 1) == [1]
    }

    /// The id of this connection.
    fn id(&mut self) -> [u8; 16] {
        let answer = self.ask(&Request::Whoami, 17);
        answer[1..].try_into().expect("16 bytes")
    }

    /// All that still comes until the door closes the connection; a reset is an end too.
    fn rest(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self.0.read_to_end(&mut bytes) {
            Ok(_) => bytes,
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => bytes,
            Err(error) => panic!("no end: {error}"),
        }
    }

    /// Says that nothing more will be sent.
    fn end(&self) {
        self.0.end();
    }

    /// Reads one event: its channel and its payload.
    fn event(&mut self) -> (Vec<u8>, Vec<u8>) {
        let head = self.read(4);
        assert_eq!(head[0], 0x19, "an event: {head:?}");
        let channel = self.read(head[1].into());
        (channel, self.read(u16::from_le_bytes([head[2], head[3]]).into()))
    }
}

/// The value of a series of `/metrics`, 0 if it is not there.
fn metric(program: &Program, series: &str) -> u64 {
    let mut page = ureq::get(format!("{}/metrics", program.url())).call().expect("the page");
    let page = page.body_mut().read_to_string().expect("text");
    let value = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    value.map_or(0, |value| value.parse().expect("a number"))
}

/// Bad input that was counted under this reason.
fn bad_input(program: &Program, reason: &str) -> u64 {
    let series = format!("tidegate_bad_input_total{{door=\"throttr\",reason=\"{reason}\"}}");
    metric(program, &series)
}

/// The number of eight bytes at this place.
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}
