//! The Redis protocol, RESP2 and RESP3: requests are arrays of bulk strings or inline commands, and
//! are answered in order.
//!
//! - [`parse`]: the server's side of a request: what the front of a buffer holds
//! - `inline`: the words of an inline command
//! - [`arguments`]: the arguments of a request
//! - [`number`]: integers as Redis and its modules read them
//! - [`reply`]: the server's replies, appended to the caller's buffer
//! - [`request`]: the client's side: writing requests
//!
//! Arguments are bytes, and borrow from the buffer. A declared length allocates nothing.

pub mod arguments;
mod inline;
pub mod number;
pub mod parse;
pub mod reply;
pub mod request;
#[cfg(test)]
mod tests;

pub use arguments::Arguments;
pub use parse::{ParsedFront, Parser, ProtocolError, RequestBounds};
pub use reply::ProtocolVersion;

/// The most arguments of a request, the command's name included.
pub const ARGUMENTS_MAX: usize = 1024;

/// The longest line: an inline command, or the line that declares a length.
pub const LINE_BYTES_MAX: usize = 64 << 10;

/// Before a client has authenticated: the most arguments, and the longest of them.
pub const UNAUTHENTICATED_ARGUMENTS_MAX: usize = 10;
/// See [`UNAUTHENTICATED_ARGUMENTS_MAX`].
pub const UNAUTHENTICATED_BYTES_MAX: usize = 16_384;

/// All arguments of a request together, beside the longest of them: as many keys as fit into one
/// request may have 1024 bytes each.
pub const REQUEST_BYTES_MAX: usize = 2 << 20;

/// The longest request where an argument may have `value_max` bytes.
///
/// A buffer of so many bytes can hold whatever a [`Parser`] calls incomplete.
#[must_use]
pub const fn request_bytes_max(value_max: usize) -> usize {
    REQUEST_BYTES_MAX.saturating_add(value_max).saturating_add(LINE_BYTES_MAX)
}
