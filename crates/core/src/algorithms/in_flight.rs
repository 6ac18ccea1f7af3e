//! Uses that have not ended: at most `amount` of them at once.
//!
//! Plain, a use is held until it is released. Per window, it is held until then or until the
//! window in which it started ends, whichever comes first. The windows are those of
//! `fixed-window`. Whether a use started in the current window, the monotonic clock says.
//!
//! What ends is counted only if it can be one of the uses held: one that started before the first
//! of them has been given back already, with its window or by forgetting the key.

use super::aligned::{Aligned, WindowPlace};
use super::{Law, judge_room, memory, narrow, until_allowed, wide};
use crate::limit::{Algorithm, Limit};
use crate::time::{Nanos, Now};
use crate::verdict::{JointOutcome, Judgement, LimitVerdict, Op};

/// The uses held. In bytes, because four words would make every state larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldUses {
    start: [u8; 8],
    ends: [u8; 8],
    first: [u8; 8],
    count: [u8; 7],
}

impl HeldUses {
    pub(crate) fn new(window: Aligned, first: Nanos, count: u64) -> Self {
        Self {
            start: window.start.to_le_bytes(),
            ends: window.ends.to_le_bytes(),
            first: first.to_le_bytes(),
            count: narrow(count),
        }
    }

    /// The window they started in; means nothing for a limit without one.
    pub(crate) fn window(&self) -> Aligned {
        Aligned { start: u64::from_le_bytes(self.start), ends: u64::from_le_bytes(self.ends) }
    }

    fn seen(self, limit: &Limit, now: Now) -> Self {
        Self::new(self.window().seen(limit.period, now), self.first(), self.count())
    }

    /// When the first of them started.
    pub(crate) fn first(&self) -> Nanos {
        u64::from_le_bytes(self.first)
    }

    pub(crate) fn count(&self) -> u64 {
        wide(self.count)
    }

    /// The uses of two holders together. Those of an older window have been given back.
    pub(crate) fn and(&self, other: &Self) -> Self {
        let (one, two) = (self.window(), other.window());
        if one.start != two.start {
            return if one.start < two.start { *other } else { *self };
        }
        let window = Aligned { ends: one.ends.max(two.ends), ..one };
        let first = self.first().min(other.first());
        Self::new(window, first, self.count().saturating_add(other.count()))
    }

    /// What is left of the uses of all when those of the others are taken out; the oldest of them
    /// started at `first`.
    pub(crate) fn without(&self, others: &Self, first: Nanos) -> Option<Self> {
        // Others of an older window hold nothing any more.
        let same = self.window().start == others.window().start;
        let count = self.count().saturating_sub(if same { others.count() } else { 0 });
        (count > 0).then(|| Self::new(self.window(), first, count))
    }
}

/// The algorithm.
pub(crate) struct InFlight;

fn per_window(limit: &Limit) -> bool {
    matches!(limit.algorithm, Algorithm::InFlight { per_window: true })
}

/// What is held at `now`, if anything.
fn current<'a>(limit: &Limit, held: Option<&'a HeldUses>, now: Now) -> Option<&'a HeldUses> {
    held.filter(|held| {
        !per_window(limit) || held.window().place(limit.period, now) == WindowPlace::Here
    })
}

fn open(limit: &Limit, now: Now) -> HeldUses {
    let window = if per_window(limit) {
        Aligned::open(limit.period, now)
    } else {
        Aligned { start: 0, ends: 0 }
    };
    HeldUses::new(window, now.mono, 0)
}

impl Law for InFlight {
    memory!(HeldUses, InFlight);

    fn judge(limit: &Limit, held: Option<&HeldUses>, op: Op, now: Now) -> Judgement {
        let used = current(limit, held, now).map_or(0, HeldUses::count);
        match op {
            // A use that has already happened is not in flight, and no caller would release it.
            Op::Record { .. } => Judgement::pass(0, used as f64),
            _ => judge_room(op, limit.amount.saturating_sub(used), used as f64),
        }
    }

    fn apply(
        limit: &Limit,
        held: Option<HeldUses>,
        op: Op,
        judgement: &Judgement,
        outcome: JointOutcome,
        now: Now,
    ) -> Option<HeldUses> {
        let held = held.map(|held| if per_window(limit) { held.seen(limit, now) } else { held });
        if outcome == JointOutcome::Refused {
            return held;
        }
        let held = match (current(limit, held.as_ref(), now), op) {
            (Some(here), _) => *here,
            (None, Op::Take(_) | Op::TakeUpTo(_)) => open(limit, now),
            // Whatever ends now started in a window that is over: nothing is left to give back.
            (None, _) => return held,
        };
        let count = match op {
            Op::Release { started, .. } if started.mono < held.first() => held.count(),
            Op::Release { cost, .. } => held.count().saturating_sub(cost),
            Op::Refund(uses) => held.count().saturating_sub(uses),
            _ => held.count().saturating_add(judgement.granted),
        };
        // Two threads may read the clock in one order and decide in the other. Without a window,
        // a use that seemed not to be among those held would never be given back.
        let first = if per_window(limit) { held.first() } else { held.first().min(now.mono) };
        (count > 0).then(|| HeldUses::new(held.window(), first, count))
    }

    fn explain(
        limit: &Limit,
        held: Option<&HeldUses>,
        op: Op,
        judgement: &Judgement,
        now: Now,
    ) -> LimitVerdict {
        let here = current(limit, held, now);
        let left = here.map_or(0, |held| {
            // When a use will end is unknown; without windows, time alone gives nothing back.
            if per_window(limit) { held.window().until_left(limit.period, now) } else { Nanos::MAX }
        });
        let remaining = limit.amount.saturating_sub(here.map_or(0, HeldUses::count));
        let delay = until_allowed(op, judgement, |cost| match cost {
            cost if cost <= remaining => 0,
            cost if cost > limit.amount => Nanos::MAX,
            _ => left,
        });
        LimitVerdict {
            allowed: judgement.allowed,
            remaining,
            rate: judgement.rate,
            delay,
            reset: left,
        }
    }

    fn forgotten(limit: &Limit, held: &HeldUses, now: Now) -> bool {
        per_window(limit) && held.window().forgotten(limit.period, now)
    }

    fn join(_: &Limit, one: &HeldUses, other: &HeldUses) -> HeldUses {
        let (one_window, other_window) = (one.window(), other.window());
        if one_window.start != other_window.start {
            return if one_window.start < other_window.start { *other } else { *one };
        }
        let ends = one_window.ends.max(other_window.ends);
        let window = Aligned { ends, ..one_window };
        HeldUses::new(window, one.first().min(other.first()), one.count().max(other.count()))
    }
}
