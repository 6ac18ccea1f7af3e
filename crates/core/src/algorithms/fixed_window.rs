//! One counter: at most `amount` in each window of the wall clock.

use super::aligned::{Aligned, Place};
use super::{Law, judge_room, memory, until_allowed};
use crate::limit::Limit;
use crate::time::{Nanos, Now};
use crate::verdict::{Judgement, Op, Outcome, Verdict};

/// The uses of one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub(crate) window: Aligned,
    pub(crate) count: u64,
}

/// The algorithm.
pub(crate) struct FixedWindow;

/// The memory, if its window is the one of `now`.
fn current<'a>(limit: &Limit, memory: Option<&'a Window>, now: Now) -> Option<&'a Window> {
    memory.filter(|memory| memory.window.place(limit.period, now) == Place::Here)
}

impl Law for FixedWindow {
    memory!(Window, FixedWindow);

    fn judge(limit: &Limit, memory: Option<&Window>, op: Op, now: Now) -> Judgement {
        let used = current(limit, memory, now).map_or(0, |memory| memory.count);
        judge_room(op, limit.amount.saturating_sub(used), used as f64)
    }

    fn apply(
        limit: &Limit,
        memory: Option<Window>,
        op: Op,
        judgement: &Judgement,
        outcome: Outcome,
        now: Now,
    ) -> Option<Window> {
        if outcome == Outcome::Refused || matches!(op, Op::Release { .. }) {
            return memory;
        }
        let here = current(limit, memory.as_ref(), now).copied();
        let Window { window, count } =
            here.unwrap_or_else(|| Window { window: Aligned::open(limit.period, now), count: 0 });
        let count = match op {
            // A use of an earlier window is no longer counted: there is nothing to give back.
            Op::Refund(_) if here.is_none() => return memory,
            Op::Refund(uses) => count.saturating_sub(uses),
            _ => count.saturating_add(judgement.granted),
        };
        (count > 0).then_some(Window { window, count })
    }

    fn explain(
        limit: &Limit,
        memory: Option<&Window>,
        op: Op,
        judgement: &Judgement,
        now: Now,
    ) -> Verdict {
        let here = current(limit, memory, now);
        let left = here.map_or(0, |here| here.window.until_left(limit.period, now));
        let remaining = limit.amount.saturating_sub(here.map_or(0, |here| here.count));
        let delay = until_allowed(op, judgement, |cost| match cost {
            cost if cost <= remaining => 0,
            cost if cost > limit.amount => Nanos::MAX,
            _ => left,
        });
        Verdict { allowed: judgement.allowed, remaining, rate: judgement.rate, delay, reset: left }
    }

    fn forgotten(limit: &Limit, memory: &Window, now: Now) -> bool {
        memory.window.forgotten(limit.period, now)
    }
}
