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
        for &delay in &self.delays {
            tell(encode(&mut self.bytes, delay));
        }
        Ok(())
    }

    /// Has one call booked in a remote store; `tell` is told, perhaps before this returns.
    ///
    /// # Errors
    /// As [`Self::answer`]: nobody is told.
    pub(super) fn ask(
        &self,
        now: Now,
        tell: impl FnOnce(Delay) + Send + 'static,
    ) -> Result<(), Unfit> {
        self.desk.ask(&[&self.key], ONE_CALL, false, now, |answer| tell(answer.wait()))
    }

    /// As [`Self::ask`], for a caller that there is no room to keep: what its rule says for the
    /// case that the store cannot be asked.
    ///
    /// # Errors
    /// As [`Self::answer`].
    pub(super) fn answer_crowded(&self, now: Now) -> Result<Delay, Unfit> {
        Ok(self.desk.answer_crowded(&[&self.key], ONE_CALL, false, now)?.wait())
    }

    /// A delay in the protocol's words.
    pub(super) fn words(&mut self, delay: Delay) -> &[u8] {
        encode(&mut self.bytes, delay)
    }
}

fn encode(bytes: &mut [u8; ANSWER_BYTES_MAX], delay: Delay) -> &[u8] {
    let rounding = if delay.firm { Rounding::Up } else { Rounding::Nearest };
    wire::encode(bytes, delay.span, rounding)
}
