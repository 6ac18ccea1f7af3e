//! HTTP/2 written by hand, for what no client's library would send.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::program::PATIENCE;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// A client that writes whatever it is told to.
pub(crate) struct Raw(TcpStream);

/// A frame of the server: its kind, its stream and what is in it.
pub(crate) type Frame = (u8, u32, Vec<u8>);

impl Raw {
    /// A client that has greeted the server.
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("the server accepts");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let mut raw = Self(stream);
        raw.write(&[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat());
        raw
    }

    /// Writes these bytes at once.
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).expect("sent");
    }

    /// The next frame; `None` once the connection is closed.
    pub(crate) fn read(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        self.0.read_exact(&mut head).ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        self.0.read_exact(&mut payload).ok()?;
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        Some((head[3], stream, payload))
    }
}

/// The bytes of a frame.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Header fields, one in each line, as a block: never indexed, in as many bytes as there are.
pub(crate) fn header_block(fields: &str) -> Vec<u8> {
    let mut block = Vec::new();
    for field in fields.lines() {
        let (name, value) = field.split_once(": ").expect("a name and a value");
        block.push(0x10);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).ok().filter(|n| *n < 127).expect("short"));
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}
