//! What doors ask of the limiter: keys, and what is to be done with each.

use tidegate_core::{Limit, Nanos, Now, Op};

use crate::stores::memory::TakenFrom;

/// The most keys that one request may carry.
pub const KEYS_MAX: usize = 32;

/// One request: 1 to [`KEYS_MAX`] keys.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The keys with their operations.
    pub keys: &'a [Key<'a>],
    /// Whether one refusal refuses all keys.
    pub together: Together,
    /// Whether the caller will report when the uses end. Keys that limit uses in flight need it.
    pub can_end: bool,
}

impl<'a> Request<'a> {
    /// All keys or none of them.
    #[must_use]
    pub fn all_or_nothing(keys: &'a [Key<'a>]) -> Self {
        Self { keys, together: Together::AllOrNothing, can_end: false }
    }

    /// The same request by a caller that reports when the uses end.
    #[must_use]
    pub fn with_end(self) -> Self {
        Self { can_end: true, ..self }
    }
}

/// What a refusal of one key means for the other keys of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Together {
    /// Nothing is taken unless every key is granted.
    AllOrNothing,
    /// Each key is decided by itself.
    Each,
}

/// One key of a request.
#[derive(Clone, Copy, Debug)]
pub struct Key<'a> {
    /// The key, at most 1024 bytes.
    pub bytes: &'a [u8],
    /// What is to be done.
    pub op: KeyOp,
    /// What limits it.
    pub limits: LimitSource<'a>,
}

/// What limits a key.
#[derive(Clone, Copy, Debug)]
pub enum LimitSource<'a> {
    /// The rule that is for it.
    ByRule,
    /// The rule that matches it, and if there is none, this limit, which the request itself has
    /// brought. It counts under the door's rule for given limits, in a slot of its own.
    Given(&'a Limit),
    /// The rule of this name, whichever keys it matches; nothing, if there is none.
    Named {
        /// Its name.
        rule: &'a str,
        /// Holds in place of the rule's one limit: of the same algorithm and period.
        limit: Option<&'a Limit>,
    },
}

impl<'a> Key<'a> {
    /// A key and what is to be done with it.
    #[must_use]
    pub fn new(bytes: &'a [u8], op: KeyOp) -> Self {
        Self { bytes, op, limits: LimitSource::ByRule }
    }

    /// The same key with a limit of the request's own, for the case that no rule matches it.
    #[must_use]
    pub fn limited_by(self, limit: &'a Limit) -> Self {
        Self { limits: LimitSource::Given(limit), ..self }
    }

    /// The same key under the rule of this name; `limit` holds in place of the rule's one limit.
    #[must_use]
    pub fn under(self, rule: &'a str, limit: Option<&'a Limit>) -> Self {
        Self { limits: LimitSource::Named { rule, limit }, ..self }
    }

    /// The rule that it names, if it names one.
    #[must_use]
    pub fn rule(&self) -> Option<&'a str> {
        match self.limits {
            LimitSource::Named { rule, .. } => Some(rule),
            LimitSource::ByRule | LimitSource::Given(_) => None,
        }
    }

    /// Refuses a cost of 0. Only a look at a limit that the request has brought may have it: that
    /// limit may be smaller than what is owed.
    #[inline(always)]
    pub(super) fn check_cost(&self) -> Result<(), InvalidRequest> {
        use KeyOp::{Peek, Refuse, Take, TakeOrLeave, TakeOrRecord, TakeUpTo};
        match self.op {
            Peek(0) if matches!(self.limits, LimitSource::Given(_)) => Ok(()),
            Peek(0) | Take(0) | TakeUpTo(0) | TakeOrRecord(0) | Refuse(0) => {
                Err(InvalidRequest::CostZero)
            }
            TakeOrLeave(WaitAttempt { cost: 0, .. }) => Err(InvalidRequest::CostZero),
            _ => Ok(()),
        }
    }

    /// A use of this cost.
    #[must_use]
    pub fn take(bytes: &'a [u8], cost: u64) -> Self {
        Self::new(bytes, KeyOp::Take(cost))
    }

    /// A look at what a use of this cost would meet.
    #[must_use]
    pub fn peek(bytes: &'a [u8], cost: u64) -> Self {
        Self::new(bytes, KeyOp::Peek(cost))
    }
}

/// An operation on one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyOp {
    /// Would a use of this cost be allowed? Nothing changes.
    Peek(u64),
    /// A use of this cost, whole or not at all.
    Take(u64),
    /// As many uses as there are, up to this many.
    TakeUpTo(u64),
    /// A use by a request that waits: a refusal writes and counts nothing, because the request
    /// will try again.
    TakeOrLeave(WaitAttempt),
    /// A use of this cost that counts even if it is refused, as envoyproxy/ratelimit counts: a
    /// refused one is written down where windows are fixed, and held where uses are in flight. No
    /// cost is too much. Each key is decided by itself.
    TakeOrRecord(u64),
    /// Uses that have already happened. They are counted whole and never refused, however many
    /// they are; the verdict is the one of an allowed take, with the delay until the next use.
    Record {
        /// How many uses happened; 0 if a `gcra` key shall only be as new at `at` and no earlier.
        cost: u64,
        /// When they happened, on the monotonic clock; ahead of now for uses that were delayed.
        at: Nanos,
        /// How long ago they should have been reported. A late report delays no caller that a
        /// timely one would not have delayed.
        late: Nanos,
    },
    /// Uses in flight have ended.
    Release {
        /// How many.
        cost: u64,
        /// The time of the verdict that granted them.
        started: Now,
        /// Where that verdict says that they were taken from.
        from: TakenFrom,
    },
    /// Uses that were granted and are not made.
    Refund {
        /// How many.
        cost: u64,
        /// The time of the verdict that granted them.
        taken: Now,
        /// Whether uses in flight are given back with them; otherwise a release does that.
        in_flight: bool,
    },
    /// A request that was tried and gives up: answered as a peek, counted as refused.
    Refuse(u64),
}

/// A try of a request that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitAttempt {
    /// How many uses it wants.
    pub cost: u64,
    /// The longest wait that may be booked for it, where the algorithm books.
    pub booking_max: Nanos,
    /// Whether it has waited already: it is counted as delayed then.
    pub waited: bool,
    /// Whether it is first in the line of its count. Others are refused while requests are in line.
    pub first_in_line: bool,
}

impl KeyOp {
    /// The operation as algorithms know it.
    #[inline(always)]
    pub(super) fn for_limits(self) -> Op {
        match self {
            KeyOp::Peek(cost) | KeyOp::Refuse(cost) => Op::Peek(cost),
            KeyOp::Take(cost) | KeyOp::TakeOrLeave(WaitAttempt { cost, .. }) => Op::Take(cost),
            KeyOp::TakeUpTo(cost) => Op::TakeUpTo(cost),
            KeyOp::TakeOrRecord(cost) => Op::Take(cost),
            KeyOp::Record { cost, at, .. } => Op::Record { cost, at },
            KeyOp::Release { cost, started, .. } => Op::Release { cost, started },
            KeyOp::Refund { cost, .. } => Op::Refund(cost),
        }
    }

    /// How many uses it is about.
    #[must_use]
    pub fn cost(self) -> u64 {
        self.for_limits().cost()
    }

    /// Whether it is a use: it makes a slot for a key that has none.
    #[inline(always)]
    pub(super) fn is_use(self) -> bool {
        use KeyOp::{Record, Take, TakeOrLeave, TakeOrRecord, TakeUpTo};
        matches!(self, Take(_) | TakeUpTo(_) | TakeOrLeave(_) | TakeOrRecord(_) | Record { .. })
    }

    /// Whether it takes uses that an end or a refund can give back.
    pub(super) fn takes(self) -> bool {
        self.is_use() && !matches!(self, KeyOp::Record { .. })
    }

    /// The try of a request that waits, if it is one.
    #[inline(always)]
    pub(super) fn attempt(self) -> Option<WaitAttempt> {
        match self {
            KeyOp::TakeOrLeave(attempt) => Some(attempt),
            _ => None,
        }
    }

    /// Whether it gives something back.
    pub(super) fn gives_back(self) -> bool {
        matches!(self, KeyOp::Release { .. } | KeyOp::Refund { .. })
    }

    /// Whether a limit can refuse it.
    pub(super) fn can_be_refused(self) -> bool {
        !self.gives_back() && !matches!(self, KeyOp::Record { .. })
    }
}

/// Why a request cannot be decided at all: bad input, never a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRequest {
    /// The key is longer than keys may be.
    #[error("the key is longer than {} bytes", tidegate_core::key::KEY_BYTES_MAX)]
    KeyTooLong,
    /// There are more keys than a request may carry, or none.
    #[error("a request carries 1 to {KEYS_MAX} keys")]
    TooManyKeys,
    /// Nothing is asked for.
    #[error("the cost must be at least 1")]
    CostZero,
    /// More is asked for than can ever be had.
    #[error("the cost exceeds the limit: at most {limit} uses at once")]
    CostAboveLimit {
        /// The most that can be had at once.
        limit: u64,
    },
    /// The key's uses cannot be given back, and it is asked for together with keys of another
    /// store.
    #[error(
        "uses of this key cannot be given back: it cannot be asked for together with keys whose \
         counts lie in another store"
    )]
    NoRefund,
    /// The key's rule books callers, and this request cannot wait.
    #[error("this key books callers: use a request that can wait")]
    Books,
    /// The key's limit is on uses in flight, and this door cannot say when a use ends.
    #[error("this key limits uses in flight: use a request that can report when the use ends")]
    NeedsEnd,
}

impl InvalidRequest {
    /// The reason in metrics.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            InvalidRequest::KeyTooLong => "key_too_long",
            InvalidRequest::TooManyKeys => "too_many_keys",
            InvalidRequest::CostZero => "cost_zero",
            InvalidRequest::CostAboveLimit { .. } => "cost_above_limit",
            InvalidRequest::NoRefund => "no_refund",
            InvalidRequest::Books => "booking_key",
            InvalidRequest::NeedsEnd => "in_flight_key",
        }
    }
}
