//! Token bucket whose limit comes with each request: `burst` uses at once, `amount` per `period`.
//!
//! What is remembered is the moment at which the bucket will owe nothing, exactly: whole
//! nanoseconds and a part of one, in units of 1/amount. So a count can be forgotten, and kept in a
//! snapshot, without any limit; and if the next request brings another limit, what is owed in time
//! stays.

use super::{Law, div_ceil_nanos, memory, until_allowed};
use crate::limit::{Algorithm, Limit};
use crate::time::{Nanos, Now};
use crate::verdict::{JointOutcome, Judgement, LimitVerdict, Op};

/// No bucket owes for longer than until here: clients get such times as signed numbers.
const LATEST: Nanos = i64::MAX as Nanos;

/// When a bucket owes nothing any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Empty {
    /// On the monotonic clock.
    pub(crate) at: Nanos,
    /// The part of a nanosecond after that, in units of 1/`parts`.
    pub(crate) rest: u64,
    pub(crate) parts: u64,
}

pub(crate) struct Throttle;

fn burst(limit: &Limit) -> u64 {
    match limit.algorithm {
        Algorithm::Throttle { burst } => burst,
        _ => limit.amount,
    }
}

/// So many uses, in units of 1/amount of a nanosecond.
fn units(limit: &Limit, uses: u64) -> u128 {
    u128::from(limit.period) * u128::from(uses)
}

/// What is owed now, in the same units.
fn owed(limit: &Limit, memory: Option<&Empty>, now: Now) -> u128 {
    let Some(empty) = memory.filter(|empty| empty.at >= now.mono) else { return 0 };
    let rest = match empty.rest {
        // Another limit counts in other units: a part of a nanosecond becomes a whole one.
        1.. if empty.parts != limit.amount => limit.amount,
        rest => rest,
    };
    u128::from(empty.at - now.mono) * u128::from(limit.amount) + u128::from(rest)
}

fn room(limit: &Limit, owed: u128) -> u64 {
    let free = units(limit, burst(limit)).saturating_sub(owed);
    u64::try_from(free / u128::from(limit.period.max(1))).unwrap_or(u64::MAX)
}

/// The memory of a bucket that owes so much now; `None` if that is beyond the latest moment.
fn after(limit: &Limit, owed: u128, now: Now) -> Option<Empty> {
    let parts = limit.amount.max(1);
    let span = u64::try_from(owed / u128::from(parts)).ok()?;
    let at = now.mono.checked_add(span).filter(|at| *at <= LATEST)?;
    Some(Empty { at, rest: (owed % u128::from(parts)) as u64, parts })
}

fn rate(limit: &Limit, owed: u128) -> f64 {
    owed as f64 / limit.period.max(1) as f64
}

impl Law for Throttle {
    memory!(Empty, Throttle);

    fn judge(limit: &Limit, memory: Option<&Empty>, op: Op, now: Now) -> Judgement {
        let owed = owed(limit, memory, now);
        let granted = match op {
            Op::Peek(cost) | Op::Take(cost) => {
                let wanted = owed.saturating_add(units(limit, cost));
                if wanted > units(limit, burst(limit)) || after(limit, wanted, now).is_none() {
                    return Judgement::refuse(rate(limit, owed));
                }
                cost
            }
            Op::TakeUpTo(most) => match most.min(room(limit, owed)) {
                0 if most > 0 => return Judgement::refuse(rate(limit, owed)),
                granted => granted,
            },
            Op::Record { cost, .. } => cost,
            Op::Release { .. } | Op::Refund(_) => 0,
        };
        let taken = if matches!(op, Op::Peek(_)) { 0 } else { units(limit, granted) };
        Judgement::pass(granted, rate(limit, owed.saturating_add(taken)))
    }

    fn apply(
        limit: &Limit,
        memory: Option<Empty>,
        op: Op,
        judgement: &Judgement,
        outcome: JointOutcome,
        now: Now,
    ) -> Option<Empty> {
        if outcome == JointOutcome::Refused || matches!(op, Op::Release { .. }) {
            return memory;
        }
        let owed = owed(limit, memory.as_ref(), now);
        let left = match op {
            // As redis-cell has it: what would still be owed must fit, or nothing changes.
            Op::Refund(uses) => match owed.saturating_sub(units(limit, uses)) {
                left if left > units(limit, burst(limit)) => return memory,
                left => left,
            },
            _ => owed.saturating_add(units(limit, judgement.granted)),
        };
        if left == 0 {
            return None;
        }
        // Records are never refused: one that goes too far leaves the bucket as it is.
        after(limit, left, now).or(memory)
    }

    fn explain(
        limit: &Limit,
        memory: Option<&Empty>,
        op: Op,
        judgement: &Judgement,
        now: Now,
    ) -> LimitVerdict {
        let owed = owed(limit, memory, now);
        let capacity = units(limit, burst(limit));
        let delay = match op {
            // Until what would still be owed fits; 0 if it does, and so if it was given back.
            Op::Refund(uses) => {
                let left = owed.saturating_sub(units(limit, uses));
                div_ceil_nanos(left.saturating_sub(capacity), limit.amount.max(1))
            }
            _ => until_allowed(op, judgement, |cost| {
                let wanted = units(limit, cost);
                let owed_then = owed.saturating_add(wanted);
                match owed_then.checked_sub(capacity) {
                    // Waiting does not help: it can never fit, or ends after the latest moment.
                    _ if wanted > capacity || after(limit, owed_then, now).is_none() => Nanos::MAX,
                    Some(over) if over > 0 => div_ceil_nanos(over, limit.amount.max(1)),
                    _ => 0,
                }
            }),
        };
        LimitVerdict {
            allowed: judgement.allowed,
            remaining: room(limit, owed),
            rate: judgement.rate,
            delay,
            reset: div_ceil_nanos(owed, limit.amount.max(1)),
        }
    }

    fn forgotten(_: &Limit, empty: &Empty, now: Now) -> bool {
        empty.at < now.mono || empty.at == now.mono && empty.rest == 0
    }

    fn join(_: &Limit, one: &Empty, other: &Empty) -> Empty {
        let part = |a: &Empty, b: &Empty| u128::from(a.rest) * u128::from(b.parts);
        let first = (one.at, part(one, other)) < (other.at, part(other, one));
        if first { *other } else { *one }
    }
}
