//! What the connections of one loop share: the handler, the time, and the buffers that input and
//! output pass through.

use std::sync::Arc;

use tidegate_core::Now;

use super::connection::COPY_BYTES_MAX;
use super::handler::Handler;
use super::output::OutputBuffer;
use super::stream::{READ_BYTES, READ_ROOM};
use crate::metrics::Metrics;

/// What the connections of one loop share.
pub(super) struct Shared<H> {
    pub(super) handler: H,
    pub(super) metrics: Arc<Metrics>,
    /// The time, read before each connection's turn.
    pub(super) now: Now,
    /// Where input lies while the handler looks at it.
    pub(super) scratch: Box<[u8]>,
    /// Where input of TLS lies before it is decrypted.
    pub(super) ciphertext: Box<[u8]>,
    /// Lent to the handler, empty.
    pub(super) output: OutputBuffer,
}

impl<H: Handler> Shared<H> {
    pub(super) fn new(handler: H, metrics: Arc<Metrics>, now: Now, with_tls: bool) -> Self {
        let (read_bytes, ciphertext) =
            if with_tls { (READ_ROOM, READ_BYTES) } else { (READ_BYTES, 0) };
        Self {
            handler,
            metrics,
            now,
            scratch: vec![0; COPY_BYTES_MAX + read_bytes].into(),
            ciphertext: vec![0; ciphertext].into(),
            output: OutputBuffer::new(2 * H::POLICY.output_bytes),
        }
    }

    pub(super) fn bad_input(&self, reason: &'static str) {
        self.metrics.bad_input(H::DOOR, reason);
    }
}
