//! The text door's own law: an exponentially weighted average of the rate of uses.
//!
//! In f64, as its document says. The n-th use at one instant reads n - 1, so `amount` uses fit at
//! once. Strict mode also remembers refused attempts: hammering keeps you out.

use super::{Law, memory, until_allowed};
use crate::limit::{Algorithm, Limit};
use crate::time::{Nanos, Now};
use crate::verdict::{JointOutcome, Judgement, LimitVerdict, Op};

/// The rate as it was at `at`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AverageRate {
    pub(crate) at: Nanos,
    pub(crate) rate: f64,
}

/// The algorithm.
pub(crate) struct Average;

/// Uses closer together than this count as one instant.
const INSTANT: Nanos = 1;

/// Horizons past which the rate is forgotten: `period * (20 + ln(1 + rate))`.
const FORGET_PERIODS: f64 = 20.0;

/// What one more use at `elapsed` after `rate` reads.
fn next_rate(limit: &Limit, rate: f64, elapsed: Nanos) -> f64 {
    if elapsed <= INSTANT {
        return rate + 1.0;
    }
    let x = elapsed as f64 / limit.period as f64;
    let a = (-x).exp();
    // 1 - exp(-x) loses all its digits for small x; exp_m1 keeps them.
    -(-x).exp_m1() / x + a * rate
}

/// What the first of the next uses reads.
fn first_reading(limit: &Limit, memory: Option<&AverageRate>, now: Now) -> f64 {
    memory.map_or(0.0, |m| next_rate(limit, m.rate, now.mono.saturating_sub(m.at)))
}

/// What the last of `cost` uses at this instant reads: each reads one more than the one before.
fn last_reading(limit: &Limit, memory: Option<&AverageRate>, cost: u64, now: Now) -> f64 {
    first_reading(limit, memory, now) + cost.saturating_sub(1) as f64
}

/// How many uses at one instant stay under the limit when the first of them reads `first`.
fn room(limit: &Limit, first: f64) -> u64 {
    (limit.amount as f64 - first).ceil().max(0.0) as u64
}

fn strict(limit: &Limit) -> bool {
    matches!(limit.algorithm, Algorithm::Average { strict: true })
}

/// The time after which a use of `cost` first reads less than the limit. The reading falls
/// steadily with time, so halving the span finds it.
fn time_until_under(limit: &Limit, memory: &AverageRate, cost: u64) -> Nanos {
    let most = limit.amount as f64;
    let reads = |elapsed| next_rate(limit, memory.rate, elapsed) + cost.saturating_sub(1) as f64;
    let (mut over, mut under) = (0, horizon(limit, memory));
    if reads(over) < most {
        return 0;
    }
    if reads(under) >= most {
        // Between the last decay and being forgotten: a forgotten key's first use reads 0.
        return under.saturating_add(1);
    }
    while under - over > 1 {
        let middle = over + (under - over) / 2;
        if reads(middle) >= most { over = middle } else { under = middle }
    }
    under
}

fn horizon(limit: &Limit, memory: &AverageRate) -> Nanos {
    (limit.period as f64 * (FORGET_PERIODS + memory.rate.max(0.0).ln_1p())) as Nanos
}

impl Law for Average {
    memory!(AverageRate, Average);

    #[inline(always)]
    fn judge(limit: &Limit, memory: Option<&AverageRate>, op: Op, now: Now) -> Judgement {
        let most = limit.amount as f64;
        match op {
            // What asks for no use has room beside any.
            Op::Peek(0) => Judgement::pass(0, first_reading(limit, memory, now)),
            Op::Peek(cost) | Op::Take(cost) => {
                let rate = last_reading(limit, memory, cost, now);
                if rate >= most { Judgement::refuse(rate) } else { Judgement::pass(cost, rate) }
            }
            Op::TakeUpTo(wanted) => {
                let first = first_reading(limit, memory, now);
                match wanted.min(room(limit, first)) {
                    0 if wanted > 0 => Judgement::refuse(first),
                    granted => Judgement::pass(granted, first + granted.saturating_sub(1) as f64),
                }
            }
            Op::Record { cost, .. } => {
                Judgement::pass(cost, last_reading(limit, memory, cost, now))
            }
            Op::Release { .. } | Op::Refund(_) => {
                Judgement::pass(0, memory.map_or(0.0, |m| m.rate.max(0.0)))
            }
        }
    }

    #[inline(always)]
    fn apply(
        limit: &Limit,
        memory: Option<AverageRate>,
        op: Op,
        judgement: &Judgement,
        outcome: JointOutcome,
        now: Now,
    ) -> Option<AverageRate> {
        match op {
            // A rate below 0 makes the next use read what the undone one read; a first use that
            // is undone leaves nothing.
            Op::Refund(uses) => {
                let undone = memory.map(|m| AverageRate { rate: m.rate - uses as f64, ..m });
                return undone.filter(|m| m.rate > -1.0);
            }
            Op::Release { .. } => return memory,
            _ if outcome == JointOutcome::Refused && !strict(limit) => return memory,
            _ => {}
        }
        let at = memory.map_or(now.mono, |m| m.at.max(now.mono));
        Some(AverageRate { at, rate: judgement.rate })
    }

    fn explain(
        limit: &Limit,
        memory: Option<&AverageRate>,
        op: Op,
        judgement: &Judgement,
        now: Now,
    ) -> LimitVerdict {
        let after = |m: &AverageRate, span| m.at.saturating_add(span).saturating_sub(now.mono);
        let delay = until_allowed(op, judgement, |cost| match memory {
            _ if cost > limit.amount => Nanos::MAX,
            Some(m) => match time_until_under(limit, m, cost) {
                span if span <= now.mono.saturating_sub(m.at) => 0,
                span => after(m, span),
            },
            None => 0,
        });
        LimitVerdict {
            allowed: judgement.allowed,
            remaining: room(limit, first_reading(limit, memory, now)),
            rate: judgement.rate,
            delay,
            reset: memory.map_or(0, |m| after(m, horizon(limit, m).saturating_add(1))),
        }
    }

    #[inline]
    fn forgotten(limit: &Limit, memory: &AverageRate, now: Now) -> bool {
        let elapsed = now.mono.saturating_sub(memory.at);
        // The logarithm is only worth computing where it could matter.
        elapsed as f64 >= limit.period as f64 * FORGET_PERIODS && elapsed > horizon(limit, memory)
    }

    fn join(_: &Limit, one: &AverageRate, other: &AverageRate) -> AverageRate {
        AverageRate { at: one.at.max(other.at), rate: one.rate.max(other.rate) }
    }
}
