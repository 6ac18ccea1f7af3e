//! Bytes of one connection that wait: added at the back, taken from the front.
//!
//! What was taken is dropped once it is most of the buffer. So taking costs no more than adding,
//! however little is taken at a time.

/// Buffers larger than this are given back when they are empty.
const KEEP_BYTES_MAX: usize = 4 << 10;

/// Bytes that wait.
#[derive(Default)]
pub(super) struct ByteQueue {
    bytes: Vec<u8>,
    /// How many of them were taken.
    taken: usize,
}

impl ByteQueue {
    #[inline]
    pub(super) fn waiting(&self) -> &[u8] {
        &self.bytes[self.taken..]
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.taken
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The buffer, to which bytes may be added at the end.
    #[inline]
    pub(super) fn back(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Takes bytes from the front. Gives room back if little is left: otherwise a client that reads
    /// nearly all would keep the room of its longest pipeline.
    pub(super) fn take(&mut self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        self.taken += bytes;
        let left = self.len();
        let is_roomy = self.bytes.capacity() / 4 > left.max(KEEP_BYTES_MAX);
        if is_roomy || self.taken > self.bytes.len() / 2 {
            self.bytes.drain(..self.taken);
            self.taken = 0;
        }
        if is_roomy && left > 0 {
            self.bytes.shrink_to(2 * left);
        }
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.taken = 0;
    }

    /// Gives a large buffer back if it is empty.
    pub(super) fn trim(&mut self) {
        if self.is_empty() {
            trim(&mut self.bytes);
        }
    }

    pub(super) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// The room that counts for it.
    pub(super) fn room(&self) -> usize {
        if self.is_empty() { 0 } else { room(&self.bytes) }
    }
}

/// Gives a large buffer back if it is empty.
pub(super) fn trim(buffer: &mut Vec<u8>) {
    if buffer.is_empty() && buffer.capacity() > KEEP_BYTES_MAX {
        *buffer = Vec::new();
    }
}

/// What a buffer takes. One that is kept when it is empty counts by what is in it.
pub(super) fn room(buffer: &Vec<u8>) -> usize {
    if buffer.capacity() > KEEP_BYTES_MAX { buffer.capacity() } else { buffer.len() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_stays_in_order_and_room_is_given_back() {
        let mut queue = ByteQueue::default();
        let all: Vec<u8> = (0..100_000_u32).map(|at| (at % 251) as u8).collect();
        queue.back().extend_from_slice(&all);
        for taken in 0..all.len() {
            assert_eq!(queue.len(), all.len() - taken);
            assert_eq!(queue.waiting().first(), all.get(taken));
            queue.take(1);
            let bound = (4 * queue.len()).max(5 * KEEP_BYTES_MAX);
            assert!(queue.capacity() <= bound.max(2 * all.len()), "{}", queue.capacity());
        }
        assert!(queue.capacity() < 5 * KEEP_BYTES_MAX, "{}", queue.capacity());
        queue.back().extend_from_slice(b"ab");
        queue.take(1);
        assert_eq!(queue.waiting(), b"b");
    }
}
