//! From a caller to its answer, without a socket: book, encode.
//!
//! The door's loops, the golden vectors and the allocation test all go through
//! [`Corridor::answer`]. It neither knows who called nor how the answer travels.

use tidegate_core::{Now, Op};
use tidegate_wire::jarl::{self as wire, ANSWER_BYTES_MAX, Rounding};

use super::config;
use crate::limiter::{Desk, Unfit};

/// A call as this door books it.
const ONE_CALL: Op = Op::Take(1);

/// The way to the limiter for the callers of one service.
pub struct Corridor {
    desk: Desk,
    key: Box<[u8]>,
    bytes: [u8; ANSWER_BYTES_MAX],
}

impl Corridor {
    /// For the callers of `service`.
    #[must_use]
    pub fn new(desk: Desk, service: &str) -> Self {
        Self::of_key(desk, config::key(service).into())
    }

    pub(super) fn of_key(desk: Desk, key: Box<[u8]>) -> Self {
        Self { desk, key, bytes: [0; ANSWER_BYTES_MAX] }
    }

    /// Where decisions are made.
    pub(super) fn desk(&self) -> &Desk {
        &self.desk
    }

    /// Books one call at `now` and says in the protocol's words how long the caller must wait.
    ///
    /// # Errors
    /// If the rule of the service is one that this door cannot ask: nothing is booked.
    pub fn answer(&mut self, now: Now) -> Result<&[u8], Unfit> {
        let delay = self.desk.delay(&self.key, ONE_CALL, now)?;
        let rounding = if delay.firm { Rounding::Up } else { Rounding::Nearest };
        Ok(wire::encode(&mut self.bytes, delay.span, rounding))
    }
}
