//! A loop's buffer for replies, lent to one connection at a time.
//!
//! The buffer is empty whenever it is lent, however the loan before it ended: bytes that were
//! produced for one connection cannot be sent to another.

use std::ops::{Deref, DerefMut};

/// The buffer of one loop.
pub(super) struct OutputBuffer {
    bytes: Vec<u8>,
    /// How much of it is kept between two loans.
    keep_bytes: usize,
}

impl OutputBuffer {
    pub(super) fn new(keep_bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(keep_bytes), keep_bytes }
    }

    /// Lends the buffer, empty.
    pub(super) fn lend(&mut self) -> LentOutput<'_> {
        self.bytes.clear();
        LentOutput(self)
    }
}

/// The buffer, lent to one connection.
pub(super) struct LentOutput<'a>(&'a mut OutputBuffer);

impl Deref for LentOutput<'_> {
    type Target = Vec<u8>;

    fn deref(&self) -> &Vec<u8> {
        &self.0.bytes
    }
}

impl DerefMut for LentOutput<'_> {
    fn deref_mut(&mut self) -> &mut Vec<u8> {
        &mut self.0.bytes
    }
}

impl Drop for LentOutput<'_> {
    fn drop(&mut self) {
        self.0.bytes.clear();
        self.0.bytes.shrink_to(self.0.keep_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loan_begins_empty_however_the_last_one_ended() {
        let mut buffer = OutputBuffer::new(8);
        buffer.lend().extend_from_slice(b"for somebody else");
        assert!(buffer.bytes.is_empty() && buffer.bytes.capacity() < 17);
        let mut lent = buffer.lend();
        lent.extend_from_slice(b"never given back");
        std::mem::forget(lent);
        assert_eq!(*buffer.lend(), b"");
    }
}
