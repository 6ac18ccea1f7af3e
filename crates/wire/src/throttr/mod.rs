//! The Throttr protocol: binary requests and replies over a byte stream, answered in order.
//!
//! - [`value`]: the numbers of N bytes, units of time, and what an UPDATE changes
//! - [`request`]: the requests, and writing them
//! - [`parse`](parse()): the server's side of a request: what the front of a buffer holds
//! - [`reply`]: the server's answers, appended to the caller's buffer
//! - [`fragments`]: the answers that list, written one fragment at a time
//! - [`figures`]: what INFO, CONNECTION and CONNECTIONS tell
//! - [`ask`]: the client's side: reading replies
//!
//! Integers are little-endian. N is 1, 2, 4 or 8 bytes, belongs to the listener and is never
//! announced. Parsing borrows from the buffer and allocates nothing, whatever a length declares.

pub mod ask;
pub mod figures;
pub mod fragments;
mod kind;
mod parse;
pub mod reply;
pub mod request;
#[cfg(test)]
mod tests;
pub mod value;

pub use kind::RequestKind;
pub use parse::{BrokenRequest, Front, parse};
pub use request::{Request, Take, Takes, Unwritable};
pub use value::{Attribute, Ttl, Unit, UpdateChange, ValueSize};

/// The longest key, and the longest name of a channel: their lengths have one byte.
pub const KEY_BYTES_MAX: usize = 255;

/// The most takes of one CONSUME MANY.
pub const TAKES_MAX: usize = 32;

/// The most bytes of a fragment behind its index and count: fixed parts and keys together.
pub const FRAGMENT_BYTES_MAX: usize = 2048;

/// Bytes of a connection's id.
pub const ID_BYTES: usize = 16;

/// The longest request where values and payloads may have `value_max` bytes.
///
/// A buffer of so many bytes can hold whatever [`parse`](parse()) calls incomplete.
#[must_use]
pub const fn request_bytes_max(size: ValueSize, value_max: usize) -> usize {
    let n = size.bytes();
    // A SET has the longest header; an EVENT's payload may be a SET, but is itself a payload.
    let with_value = (3 + 2 * n + KEY_BYTES_MAX).saturating_add(value_max);
    let with_takes = 2 + TAKES_MAX * (2 + 3 * n + KEY_BYTES_MAX);
    if with_value > with_takes { with_value } else { with_takes }
}
