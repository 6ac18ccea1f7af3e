//! From callers to their answers, without a socket: book, encode.
//!
//! The door's loops, the golden vectors and the allocation test all go through
//! [`Corridor::answer`]. It neither knows who called nor how the answer travels.

use tidegate_core::{Now, Op};
use tidegate_wire::jarl::{self as wire, ANSWER_BYTES_MAX, Rounding};

use super::config;
use crate::limiter::{Delay, Desk, Unfit};

/// A call as this door books it.
const ONE_CALL: Op = Op::Take(1);

/// The way to the limiter for the callers of one service.
pub struct Corridor {
    desk: Desk,
    key: Box<[u8]>,
    delays: Vec<Delay>,
    bytes: [u8; ANSWER_BYTES_MAX],
}

impl Corridor {
    /// For the callers of `service`.
    #[must_use]
    pub fn new(desk: Desk, service: &str) -> Self {
        Self::of_key(desk, config::key(service).into())
    }

    pub(super) fn of_key(desk: Desk, key: Box<[u8]>) -> Self {
        Self { desk, key, delays: Vec::new(), bytes: [0; ANSWER_BYTES_MAX] }
    }

    /// Where decisions are made.
    pub(super) fn desk(&self) -> &Desk {
        &self.desk
    }

    /// Books `calls` at `now`, and says to `tell` in the protocol's words how long each caller must
    /// wait, in order.
    ///
    /// # Errors
    /// If the rule of the service is one that this door cannot ask: nothing is booked.
    pub fn answer(
        &mut self,
        calls: usize,
        now: Now,
        mut tell: impl FnMut(&[u8]),
    ) -> Result<(), Unfit> {
        self.desk.delays(&self.key, ONE_CALL, calls, now, &mut self.delays)?;
        for delay in &self.delays {
            let rounding = if delay.firm { Rounding::Up } else { Rounding::Nearest };
            tell(wire::encode(&mut self.bytes, delay.span, rounding));
        }
        Ok(())
    }
}
