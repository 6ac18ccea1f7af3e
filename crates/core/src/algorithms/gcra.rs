//! Token bucket, in the form known as GCRA: `amount` per `period` steadily, `burst` at once.
//!
//! The bucket's debt is kept exactly, in units of 1/period of a use: a use adds `period` units,
//! a nanosecond pays back `amount` of them. No division, no rounding, no drift; and since the
//! unit does not depend on the amount, a reload that changes the amount keeps the count.
//!
//! A use that is reported late, after others that happened later, adds what would be left of it.
//! If the bucket has been owing ever since the use, that is all of it; time in which the bucket
//! owed nothing would have paid the use back. So the bucket remembers for how long it has been
//! owing. What it owed before that is no longer known, and a late use counts for the least that can
//! be left of it: the count is exact for uses reported in order, and otherwise never above the
//! exact one.

use super::{Law, div_ceil_nanos, memory, until_allowed};
use crate::limit::{Algorithm, Limit};
use crate::state::State;
use crate::time::{Nanos, Now};
use crate::verdict::{JointOutcome, Judgement, LimitVerdict, Op};

/// What is owed at one moment. In bytes, because four words would make every state larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GcraDebt {
    at: [u8; 8],
    /// The debt at `at`: far above any burst, and saturating, since records are never refused.
    debt: [u8; 15],
    /// How long it has been owing at `at`, without a break.
    busy: [u8; 8],
}

impl GcraDebt {
    #[inline(always)]
    pub(crate) fn new(at: Nanos, debt: u128, busy: Nanos) -> Self {
        let [debt @ .., _] = debt.min(DEBT_MAX).to_le_bytes();
        Self { at: at.to_le_bytes(), debt, busy: busy.to_le_bytes() }
    }

    #[inline(always)]
    pub(crate) fn at(&self) -> Nanos {
        u64::from_le_bytes(self.at)
    }

    #[inline(always)]
    pub(crate) fn debt(&self) -> u128 {
        let mut word = [0; 16];
        word[..15].copy_from_slice(&self.debt);
        u128::from_le_bytes(word)
    }

    #[inline(always)]
    pub(crate) fn busy(&self) -> Nanos {
        u64::from_le_bytes(self.busy)
    }

    pub(crate) fn moved(&self, at: Nanos) -> Self {
        Self::new(at, self.debt(), self.busy())
    }

    /// Since when it has been owing.
    fn since(&self) -> Nanos {
        self.at().saturating_sub(self.busy())
    }
}

/// The most that is owed.
pub(crate) const DEBT_MAX: u128 = (1 << 120) - 1;

/// The algorithm.
pub(crate) struct Gcra;

fn units(limit: &Limit, uses: u64) -> u128 {
    u128::from(uses) * u128::from(limit.period)
}

fn burst(limit: &Limit) -> u64 {
    match limit.algorithm {
        Algorithm::Gcra { burst } => burst,
        _ => limit.amount,
    }
}

/// The debt that is left at `now`.
fn owed(limit: &Limit, bucket: Option<&GcraDebt>, now: Now) -> u128 {
    bucket.map_or(0, |bucket| {
        let elapsed = now.mono.saturating_sub(bucket.at());
        bucket.debt().saturating_sub(u128::from(elapsed) * u128::from(limit.amount))
    })
}

/// The bucket after its debt has become `debt` at `now`, of which `owed` was left from before.
#[inline(always)]
fn after(bucket: Option<&GcraDebt>, owed: u128, debt: u128, now: Nanos) -> GcraDebt {
    // A decision made on an older reading of the clock must not turn the bucket's time back.
    let at = bucket.map_or(now, |bucket| bucket.at().max(now));
    let busy = match bucket {
        Some(bucket) if owed > 0 => bucket.busy().saturating_add(at - bucket.at()),
        _ => 0,
    };
    GcraDebt::new(at, debt, busy)
}

/// The bucket after `uses` that happened at `at`, before the bucket's own time.
fn after_late(limit: &Limit, bucket: &GcraDebt, uses: u64, at: Nanos) -> GcraDebt {
    let since = bucket.since();
    let idle = u128::from(since.saturating_sub(at)) * u128::from(limit.amount);
    match units(limit, uses).saturating_sub(idle) {
        0 => *bucket,
        left => {
            let busy = bucket.at() - since.min(at);
            GcraDebt::new(bucket.at(), bucket.debt().saturating_add(left), busy)
        }
    }
}

/// Whole uses that fit beside the debt.
fn room(limit: &Limit, owed: u128) -> u64 {
    let free = units(limit, burst(limit)).saturating_sub(owed);
    match u64::try_from(free) {
        Ok(free) => free / limit.period,
        Err(_) => u64::try_from(free / u128::from(limit.period)).unwrap_or(u64::MAX),
    }
}

/// What must be owed now for the bucket to be empty again no earlier than `at`. A bucket's worth
/// at most: one record from far ahead must not bury a key.
fn ahead(limit: &Limit, at: Nanos, now: Nanos) -> u128 {
    let span = u128::from(at.saturating_sub(now)) * u128::from(limit.amount);
    span.min(units(limit, burst(limit)))
}

fn rate(limit: &Limit, owed: u128) -> f64 {
    match (i64::try_from(owed), i64::try_from(limit.period)) {
        // Almost always: a signed word converts in one instruction, and exactly as an unsigned.
        (Ok(owed), Ok(period)) => owed as f64 / period as f64,
        // By halves: 128 bits convert in a call.
        _ => {
            let owed = (owed >> 64) as u64 as f64 * 2f64.powi(64) + owed as u64 as f64;
            owed / limit.period as f64
        }
    }
}

impl Law for Gcra {
    memory!(GcraDebt, Gcra);

    #[inline(always)]
    fn judge(limit: &Limit, bucket: Option<&GcraDebt>, op: Op, now: Now) -> Judgement {
        let owed = owed(limit, bucket, now);
        let granted = match op {
            // What asks for no use has room beside any, also where more is owed than fits.
            Op::Peek(0) => 0,
            Op::Peek(cost) | Op::Take(cost) => {
                if owed.saturating_add(units(limit, cost)) > units(limit, burst(limit)) {
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

    #[inline(always)]
    fn take(limit: &Limit, state: &mut State, cost: u64, now: Now) -> Judgement {
        if let Some(judgement) = Self::take_at_once(limit, state, cost, now) {
            return judgement;
        }
        let owed = owed(limit, Self::read(state), now);
        if owed == 0 {
            *state = State::None;
        }
        Judgement::refuse(rate(limit, owed))
    }

    /// The debt is written where it lies.
    #[inline(always)]
    fn take_at_once(limit: &Limit, state: &mut State, cost: u64, now: Now) -> Option<Judgement> {
        let bucket = Self::read(state);
        let owed = owed(limit, bucket, now);
        let debt = owed.saturating_add(units(limit, cost));
        if debt > units(limit, burst(limit)) {
            return None;
        }
        let kept = after(bucket, owed, debt, now.mono);
        match state {
            State::Gcra(bucket) => *bucket = kept,
            _ => *state = State::Gcra(kept),
        }
        Some(Judgement::pass(cost, rate(limit, debt)))
    }

    #[inline(always)]
    fn apply(
        limit: &Limit,
        bucket: Option<GcraDebt>,
        op: Op,
        judgement: &Judgement,
        outcome: JointOutcome,
        now: Now,
    ) -> Option<GcraDebt> {
        if outcome == JointOutcome::Refused {
            return bucket;
        }
        let now = match (op, &bucket) {
            (Op::Record { cost, at }, Some(bucket)) if at < bucket.at() => {
                return Some(after_late(limit, bucket, cost, at));
            }
            (Op::Record { at, .. }, _) => Now { mono: now.mono.min(at), ..now },
            _ => now,
        };
        let owed = owed(limit, bucket.as_ref(), now);
        let debt = match op {
            Op::Refund(uses) => owed.saturating_sub(units(limit, uses)),
            Op::Record { cost, at } => {
                let from = bucket.map_or(now.mono, |bucket| bucket.at().max(now.mono));
                owed.max(ahead(limit, at, from)).saturating_add(units(limit, cost))
            }
            _ => owed.saturating_add(units(limit, judgement.granted)),
        };
        (debt > 0).then(|| after(bucket.as_ref(), owed, debt, now.mono))
    }

    fn explain(
        limit: &Limit,
        bucket: Option<&GcraDebt>,
        op: Op,
        judgement: &Judgement,
        now: Now,
    ) -> LimitVerdict {
        let owed = owed(limit, bucket, now);
        // Until the clock has caught up with the bucket, nothing is paid back.
        let behind = bucket.map_or(0, |bucket| bucket.at().saturating_sub(now.mono));
        let paid_after = |debt| match div_ceil_nanos(debt, limit.amount) {
            0 => 0,
            span => span.saturating_add(behind),
        };
        let delay = until_allowed(op, judgement, |cost| {
            let capacity = units(limit, burst(limit));
            let wanted = units(limit, cost);
            if wanted > capacity {
                return Nanos::MAX;
            }
            paid_after(owed.saturating_add(wanted).saturating_sub(capacity))
        });
        LimitVerdict {
            allowed: judgement.allowed,
            remaining: room(limit, owed),
            rate: judgement.rate,
            delay,
            reset: paid_after(owed),
        }
    }

    #[inline]
    fn forgotten(limit: &Limit, bucket: &GcraDebt, now: Now) -> bool {
        owed(limit, Some(bucket), now) == 0
    }

    fn join(limit: &Limit, one: &GcraDebt, other: &GcraDebt) -> GcraDebt {
        let at = one.at().max(other.at());
        let owed = |bucket| owed(limit, Some(bucket), Now { mono: at, unix: 0 });
        let busy = at - one.since().min(other.since());
        GcraDebt::new(at, owed(one).max(owed(other)), busy)
    }
}
