//! The Smockron protocol: gatekeepers tell a master what they let pass, and the master tells them
//! until when a client must wait.
//!
//! A message is a list of frames; which bytes carry them is the business of ZeroMQ. Accounting goes
//! from gatekeeper to master ([`parse`]), control from master to gatekeeper ([`ControlMessage`]).
//! Both borrow from the frames and allocate nothing. A domain is a topic of its own because a NUL
//! ends it on the wire, and times are ASCII decimal milliseconds: both stop here, and beyond there
//! are a plain domain and nanoseconds.

mod accounting;
mod control;
mod frames;
mod stamp;
#[cfg(test)]
mod tests;

pub use accounting::{Accounting, AccountingFault, AccountingMessage, Status, parse, write_resync};
pub use control::ControlMessage;
pub use frames::{FRAMES_MAX, Frames};
pub use stamp::{MILLISECOND_NS, ms_up};

/// Gatekeepers written in C copy domain and identifier into a buffer of this size, so whatever is
/// published keeps the two together below it.
pub const PAIR_BYTES_END: usize = 255;

/// The most bytes of one accounting message, in all its frames. Log info is the only long one.
pub const MESSAGE_BYTES_MAX: usize = 16 * 1024;

/// A domain without the NUL that ends it on the wire; one that lacks the NUL is tolerated.
fn domain(frame: &[u8]) -> &[u8] {
    frame.strip_suffix(b"\0").unwrap_or(frame)
}

/// The topic that a gatekeeper of a domain subscribes to.
#[must_use]
pub fn topic(domain: &[u8]) -> Vec<u8> {
    let mut topic = Vec::with_capacity(domain.len() + 1);
    topic.extend_from_slice(domain);
    topic.push(0);
    topic
}
