//! Load on doors that answer requests on a stream, one after another.
//!
//! - [`load`]: connections spread over threads, each with a pipeline of requests
//! - [`connection`]: one of them
//! - [`flags`]: how many connections, threads, requests and keys
//! - [`once`]: one question on a connection of its own
//! - [`http1`], [`resp`]: what doors and peers of these protocols are asked and answer
//!
//! What is said on the stream is each door's own [`Speech`].

mod connection;
mod flags;
pub(crate) mod http1;
mod load;
mod once;
pub(crate) mod resp;

use std::io;

pub(crate) use self::flags::Flags;
pub(crate) use self::load::StreamLoad;
pub(crate) use self::once::ask_once;

/// The bytes that are sent, and how many answers came back. Each connection has a clone of its own.
pub(crate) trait Speech: Clone + Sync {
    /// Appends the request for this key.
    fn ask(&mut self, key: u64, out: &mut Vec<u8>);

    /// Reads the whole answers at the front of `bytes`.
    fn read(&mut self, bytes: &[u8]) -> io::Result<Answers>;
}

/// What stands at the front of a buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answers {
    pub(crate) count: u64,
    pub(crate) refused: u64,
    pub(crate) bytes: usize,
}

/// Bytes of every key.
pub(crate) const KEY_BYTES: usize = 12;

/// The text of a key: `k` and eleven digits.
pub(crate) fn key_of(number: u64) -> [u8; KEY_BYTES] {
    let mut key = [b'0'; KEY_BYTES];
    key[0] = b'k';
    let mut rest = number;
    for digit in key[1..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    key
}
