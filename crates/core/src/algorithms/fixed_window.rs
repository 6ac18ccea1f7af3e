//! One counter: at most `amount` in each window of the wall clock.

use super::aligned::{Aligned, WindowPlace};
use super::{Law, judge_room, memory, narrow, until_allowed, wide};
use crate::limit::Limit;
use crate::state::State;
use crate::time::{Nanos, Now};
use crate::verdict::{JointOutcome, Judgement, LimitVerdict, Op};

/// The uses of one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub(crate) window: Aligned,
    count: [u8; 7],
    /// Whether several keys count here, each of which would remember another window.
    pub(crate) common: bool,
}

impl Window {
    pub(crate) fn new(window: Aligned, count: u64, common: bool) -> Self {
        Self { window, count: narrow(count), common }
    }

    pub(crate) fn count(&self) -> u64 {
        wide(self.count)
    }
}

/// The algorithm.
pub(crate) struct FixedWindow;

/// The memory, if its window is the one of `now`.
fn current<'a>(limit: &Limit, memory: Option<&'a Window>, now: Now) -> Option<&'a Window> {
    memory.filter(|memory| {
        barred(limit, memory, now) || memory.window.place(limit.period, now) == WindowPlace::Here
    })
}

/// Whether the wall clock is back before a count that several keys share.
fn barred(limit: &Limit, memory: &Window, now: Now) -> bool {
    memory.common && memory.window.is_ahead(limit.period, now)
}

fn room(limit: &Limit, here: Option<&Window>, now: Now) -> u64 {
    match here {
        Some(here) if barred(limit, here, now) => 0,
        here => limit.amount.saturating_sub(here.map_or(0, Window::count)),
    }
}

/// How long until `cost` fits, which it does not now, if nothing else is used.
fn until(limit: &Limit, here: &Window, cost: u64, now: Now) -> Nanos {
    let (window, period) = (&here.window, limit.period);
    if !barred(limit, here, now) {
        return window.until_left(period, now);
    }
    let fits = cost <= limit.amount.saturating_sub(here.count());
    let entered = window.until_entered(period, now);
    let back = if fits { entered } else { window.until_next(period, now) };
    back.min(window.until_forgotten(period, now))
}

impl Law for FixedWindow {
    memory!(Window, FixedWindow);

    fn judge(limit: &Limit, memory: Option<&Window>, op: Op, now: Now) -> Judgement {
        let here = current(limit, memory, now);
        judge_room(op, room(limit, here, now), here.map_or(0, Window::count) as f64)
    }

    /// In the midst of a window nothing changes but its count: there is nothing to divide.
    #[inline(always)]
    fn take_at_once(limit: &Limit, state: &mut State, cost: u64, now: Now) -> Option<Judgement> {
        let State::FixedWindow(here) = state else { return None };
        let before = here.count();
        let after = before.checked_add(cost).filter(|after| *after <= limit.amount)?;
        if here.common || !here.window.is_surely_here(limit.period, now) {
            return None;
        }
        here.count = narrow(after);
        Some(Judgement::pass(cost, before as f64 + cost as f64))
    }

    fn apply(
        limit: &Limit,
        memory: Option<Window>,
        op: Op,
        judgement: &Judgement,
        outcome: JointOutcome,
        now: Now,
    ) -> Option<Window> {
        if let (Op::Record { .. }, Some(memory)) = (op, memory)
            && memory.window.begins_after(limit.period, now)
        {
            // A use of a window that is no longer held counts in no other.
            return Some(memory);
        }
        let memory = memory.map(|memory| match memory.common {
            true => memory,
            false => Window { window: memory.window.seen(limit.period, now), ..memory },
        });
        if outcome == JointOutcome::Refused || matches!(op, Op::Release { .. }) {
            return memory;
        }
        let common = memory.is_some_and(|memory| memory.common);
        let opened = Aligned::open(limit.period, now);
        let here = current(limit, memory.as_ref(), now).copied();
        let mut window = here.map_or(opened, |here| here.window);
        let count = here.map_or(0, |here| here.count());
        let count = match op {
            // A use of an earlier window is no longer counted: there is nothing to give back.
            Op::Refund(_) if here.is_none() => return memory,
            Op::Refund(uses) => count.saturating_sub(uses),
            _ => count.saturating_add(judgement.granted),
        };
        if let Some(memory) = memory.filter(|memory| memory.common) {
            // Each key that counts here is remembered for as long as it would be alone.
            window.ends = memory.window.ends.max(opened.ends);
        }
        (common || count > 0).then(|| Window::new(window, count, common))
    }

    fn explain(
        limit: &Limit,
        memory: Option<&Window>,
        op: Op,
        judgement: &Judgement,
        now: Now,
    ) -> LimitVerdict {
        let here = current(limit, memory, now);
        let remaining = room(limit, here, now);
        let reset = here.map_or(0, |here| until(limit, here, limit.amount, now));
        let delay = until_allowed(op, judgement, |cost| match here {
            _ if cost <= remaining => 0,
            _ if cost > limit.amount => Nanos::MAX,
            Some(here) => until(limit, here, cost, now),
            None => 0,
        });
        LimitVerdict { allowed: judgement.allowed, remaining, rate: judgement.rate, delay, reset }
    }

    fn forgotten(limit: &Limit, memory: &Window, now: Now) -> bool {
        memory.window.forgotten(limit.period, now)
    }

    fn join(limit: &Limit, one: &Window, other: &Window) -> Window {
        let start = |memory: &Window| memory.window.aligned_start(limit.period);
        // The uses of an older window are kept from coming back by the mark.
        let (newer, older) = if start(one) < start(other) { (other, one) } else { (one, other) };
        let same = start(newer) == start(older);
        let count = newer.count().max(if same { older.count() } else { 0 });
        let ends = newer.window.ends.max(older.window.ends);
        Window::new(Aligned { start: start(newer), ends }, count, true)
    }
}
