//! What can be asked of a limit, and what it answers.
//!
//! A decision has two halves, so that several limits can be all or nothing: every limit judges
//! first, and only then is the common outcome applied to each.

use crate::time::{Nanos, Now};

/// What a request wants of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Would a use of this cost be allowed? Changes nothing. One of cost 0 passes always, except
    /// under [`Algorithm::Throttle`](crate::Algorithm::Throttle): as redis-cell has it, a limit
    /// that comes with the request refuses it while more is owed than that limit allows.
    Peek(u64),
    /// Take a use of this cost, whole or not at all.
    Take(u64),
    /// Take as much as there is, up to this much (slices of a shared limit).
    TakeUpTo(u64),
    /// Write down uses that have already happened at `at` (monotonic; may lie ahead of now for
    /// uses that were delayed, and now may be long past). Never refused.
    Record {
        /// How many uses happened.
        cost: u64,
        /// When they happened or will happen.
        at: Nanos,
    },
    /// Give back uses in flight that have ended. Other algorithms ignore it.
    Release {
        /// How many uses end.
        cost: u64,
        /// When they started: a use of an earlier window has already been given back.
        started: Now,
    },
    /// Undo a take whose use did not happen after all, as far as the algorithm can.
    Refund(u64),
}

impl Op {
    /// The uses that the operation asks for.
    #[must_use]
    pub fn cost(self) -> u64 {
        match self {
            Op::Peek(cost) | Op::Take(cost) | Op::TakeUpTo(cost) | Op::Record { cost, .. } => cost,
            Op::Release { .. } | Op::Refund(_) => 0,
        }
    }

    /// The uses that must fit at once for the operation to pass.
    #[must_use]
    pub fn least(self) -> u64 {
        match self {
            Op::TakeUpTo(most) => most.min(1),
            Op::Record { .. } => 0,
            _ => self.cost(),
        }
    }
}

/// What one limit thinks of an operation, before anything is written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Judgement {
    /// Whether this limit would let the operation pass.
    pub allowed: bool,
    /// The uses it would grant: the cost, less for `TakeUpTo`, 0 when refused.
    pub granted: u64,
    /// The use of the key in requests per period, with this one where it counts.
    pub rate: f64,
    /// For algorithms that book instead of refusing: how long this caller must wait.
    pub booked: Nanos,
}

impl Judgement {
    /// Passes with `granted` uses at `rate`.
    #[must_use]
    pub fn pass(granted: u64, rate: f64) -> Self {
        Self { allowed: true, granted, rate, booked: 0 }
    }

    /// Refuses at `rate`.
    #[must_use]
    pub fn refuse(rate: f64) -> Self {
        Self { allowed: false, granted: 0, rate, booked: 0 }
    }
}

/// What follows from a use that was written down.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recorded {
    /// The use of the key in requests per period, with this one.
    pub rate: f64,
    /// How long until the next use is allowed; nothing, if it is now.
    pub next: Nanos,
}

/// What became of the whole request, over all its limits and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JointOutcome {
    /// Every limit agreed: each takes what it granted.
    Granted,
    /// Some limit refused: nothing is taken, though some algorithms remember the attempt.
    Refused,
}

/// All that can be said of one limit of one key, after the outcome was applied.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LimitVerdict {
    /// Whether this limit let the operation pass.
    pub allowed: bool,
    /// Uses of cost 1 that would still be allowed at this moment.
    pub remaining: u64,
    /// The use of the key in requests per period.
    pub rate: f64,
    /// How long until the same operation would be allowed (0 if it was), if nothing else happens
    /// meanwhile; the booked delay for algorithms that book; after a record, how long until the
    /// next use; after a refund, how long until it would be done; [`Nanos::MAX`] if time alone will
    /// never allow it.
    pub delay: Nanos,
    /// How long until the key is as though it had never been used; [`Nanos::MAX`] if unknown.
    pub reset: Nanos,
}
