//! Load on doors that answer requests on a stream, one after another.
//!
//! - [`load`]: connections spread over threads, each with a pipeline of requests
//! - [`connection`]: one of them
//!
//! What is said on the stream is each door's own [`Speech`].

mod connection;
mod load;

use std::io;

pub(super) use self::load::Load;

/// The bytes that are sent, and how many answers came back.
pub(super) trait Speech: Copy + Sync {
    /// Appends the request for this key.
    fn ask(self, key: u64, out: &mut Vec<u8>);

    /// Reads the whole answers at the front of `bytes`.
    fn read(self, bytes: &[u8]) -> io::Result<Answers>;
}

/// What stands at the front of a buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Answers {
    pub(super) count: u64,
    pub(super) refused: u64,
    pub(super) bytes: usize,
}

/// Bytes of every key.
pub(super) const KEY_BYTES: usize = 12;

/// The text of a key: `k` and eleven digits.
pub(super) fn key_of(number: u64) -> [u8; KEY_BYTES] {
    let mut key = [b'0'; KEY_BYTES];
    key[0] = b'k';
    let mut rest = number;
    for digit in key[1..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    key
}
