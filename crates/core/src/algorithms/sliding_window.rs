//! Two counters over aligned windows: `previous * (1 - f) + current + cost <= amount`, where f is
//! the share of the current window that has passed.
//!
//! Everything is multiplied by the period, so that the comparison is exact. Which window it is,
//! the wall clock says; f runs on the monotonic clock, so that a step inside a window changes
//! nothing.

use super::aligned::{Aligned, WindowPlace};
use super::{Law, judge_room, memory, narrow, until_allowed, wide};
use crate::limit::Limit;
use crate::time::{Nanos, Now};
use crate::verdict::{JointOutcome, Judgement, LimitVerdict, Op};

/// The uses of a window and of the one before it. In bytes, because four words would make every
/// state of every algorithm larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    start: [u8; 8],
    ends: [u8; 8],
    previous: [u8; 7],
    current: [u8; 7],
    /// Whether several keys count here, each of which would remember other windows.
    pub(crate) common: bool,
}

impl Windows {
    pub(crate) fn new(window: Aligned, previous: u64, current: u64, common: bool) -> Self {
        Self {
            start: window.start.to_le_bytes(),
            ends: window.ends.to_le_bytes(),
            previous: narrow(previous),
            current: narrow(current),
            common,
        }
    }

    /// The same counters in another window.
    pub(crate) fn moved(self, window: Aligned) -> Self {
        Self { start: window.start.to_le_bytes(), ends: window.ends.to_le_bytes(), ..self }
    }

    pub(crate) fn window(&self) -> Aligned {
        Aligned { start: u64::from_le_bytes(self.start), ends: u64::from_le_bytes(self.ends) }
    }

    pub(crate) fn previous(&self) -> u64 {
        wide(self.previous)
    }

    pub(crate) fn current(&self) -> u64 {
        wide(self.current)
    }
}

/// The algorithm.
pub(crate) struct SlidingWindow;

/// The two counters as they stand at one moment.
struct View {
    window: Aligned,
    previous: u64,
    current: u64,
    elapsed: Nanos,
    common: bool,
    /// Whether the wall clock is back before a count that several keys share.
    barred: bool,
}

impl View {
    fn new(limit: &Limit, memory: Option<&Windows>, now: Now) -> Self {
        let opened = Aligned::open(limit.period, now);
        let common = memory.is_some_and(|memory| memory.common);
        let barred = common && memory.is_some_and(|m| m.window().is_ahead(limit.period, now));
        let (mut window, previous, current) = match memory {
            Some(memory) if barred => (memory.window(), memory.previous(), memory.current()),
            Some(memory) => match memory.window().place(limit.period, now) {
                WindowPlace::Here => (memory.window(), memory.previous(), memory.current()),
                WindowPlace::Next => (opened, memory.current(), 0),
                WindowPlace::Remote => (opened, 0, 0),
            },
            None => (opened, 0, 0),
        };
        if let Some(memory) = memory.filter(|memory| memory.common) {
            // Each key that counts here is remembered for as long, and weighs as much, as it
            // would alone.
            window.ends = memory.window().ends.max(opened.ends);
        }
        let elapsed = window.elapsed(limit.period, now);
        Self { window, previous, current, elapsed, common, barred }
    }

    /// The weighted uses, times the period.
    fn used(&self, limit: &Limit) -> u128 {
        u128::from(self.previous) * u128::from(limit.period - self.elapsed)
            + u128::from(self.current) * u128::from(limit.period)
    }

    fn room(&self, limit: &Limit) -> u64 {
        if self.barred {
            return 0;
        }
        let period = u128::from(limit.period);
        let free = (u128::from(limit.amount) * period).saturating_sub(self.used(limit)) / period;
        u64::try_from(free).unwrap_or(u64::MAX)
    }

    fn rate(&self, limit: &Limit) -> f64 {
        self.used(limit) as f64 / limit.period as f64
    }
}

/// How far a window must have passed for `previous` uses to weigh no more than `free`.
fn elapsed_for(limit: &Limit, previous: u64, free: u64) -> Nanos {
    if previous <= free {
        return 0;
    }
    let left = u128::from(free) * u128::from(limit.period) / u128::from(previous);
    limit.period - u64::try_from(left).unwrap_or(limit.period).min(limit.period)
}

/// How long until `cost` fits, if nothing else is used.
fn until(limit: &Limit, memory: Option<&Windows>, view: &View, cost: u64, now: Now) -> Nanos {
    if cost > limit.amount {
        return Nanos::MAX;
    }
    let Some(memory) = memory.filter(|_| cost > view.room(limit)) else { return 0 };
    let forgotten = memory.window().until_forgotten(limit.period, now);
    if view.barred {
        // How much fits then is answered once the wall clock is back.
        return view.window.until_entered(limit.period, now).min(forgotten);
    }
    let free = limit.amount - cost;
    let fits = |current: u64| current <= free;
    let this = elapsed_for(limit, view.previous, free.saturating_sub(view.current));
    // On a reading of the clock from before the window, it has yet to begin.
    let begins = view.window.ends.saturating_sub(now.mono).saturating_sub(limit.period);
    let this = this.saturating_sub(view.elapsed).saturating_add(begins);
    let wait = match view.window.until_back(limit.period, now) {
        Some(back) if fits(view.current) => this.min(back),
        Some(back) => back,
        None => {
            let next = view.window.until_next(limit.period, now);
            if fits(view.current) {
                this.min(next)
            } else {
                next.saturating_add(elapsed_for(limit, view.current, free))
            }
        }
    };
    wait.min(forgotten)
}

/// The counters with uses from before the current window, if the memory still holds their window.
fn with_late(limit: &Limit, memory: Windows, uses: u64, now: Now) -> Windows {
    let Windows { common, .. } = memory;
    let window = memory.window();
    let ago = window.aligned_start(limit.period) - (now.unix - now.unix % limit.period);
    let uses = if ago == limit.period { uses } else { 0 };
    let previous = memory.previous().saturating_add(uses);
    Windows::new(window, previous, memory.current(), common)
}

impl Law for SlidingWindow {
    memory!(Windows, SlidingWindow);

    fn judge(limit: &Limit, memory: Option<&Windows>, op: Op, now: Now) -> Judgement {
        let view = View::new(limit, memory, now);
        judge_room(op, view.room(limit), view.rate(limit))
    }

    fn apply(
        limit: &Limit,
        memory: Option<Windows>,
        op: Op,
        judgement: &Judgement,
        outcome: JointOutcome,
        now: Now,
    ) -> Option<Windows> {
        if let (Op::Record { .. }, Some(memory)) = (op, memory)
            && memory.window().begins_after(limit.period, now)
        {
            return Some(with_late(limit, memory, judgement.granted, now));
        }
        let memory = memory.map(|memory| match memory.common {
            true => memory,
            false => memory.moved(memory.window().seen(limit.period, now)),
        });
        if outcome == JointOutcome::Refused || matches!(op, Op::Release { .. }) {
            return memory;
        }
        let view = View::new(limit, memory.as_ref(), now);
        let current = match op {
            // Which of the two windows a use was in is not known: only the newer gives back.
            Op::Refund(uses) => view.current.saturating_sub(uses),
            _ => view.current.saturating_add(judgement.granted),
        };
        (view.common || view.previous > 0 || current > 0)
            .then(|| Windows::new(view.window, view.previous, current, view.common))
    }

    fn explain(
        limit: &Limit,
        memory: Option<&Windows>,
        op: Op,
        judgement: &Judgement,
        now: Now,
    ) -> LimitVerdict {
        let view = View::new(limit, memory, now);
        let reset = match memory {
            Some(_) if view.previous == 0 && view.current == 0 => 0,
            Some(memory) => memory.window().until_forgotten(limit.period, now),
            None => 0,
        };
        LimitVerdict {
            allowed: judgement.allowed,
            remaining: view.room(limit),
            rate: judgement.rate,
            delay: until_allowed(op, judgement, |cost| until(limit, memory, &view, cost, now)),
            reset,
        }
    }

    fn forgotten(limit: &Limit, memory: &Windows, now: Now) -> bool {
        memory.window().forgotten(limit.period, now)
    }

    fn join(limit: &Limit, one: &Windows, other: &Windows) -> Windows {
        let start = |memory: &Windows| memory.window().aligned_start(limit.period);
        // The uses of windows that are older still are kept from coming back by the mark.
        let (newer, older) = if start(one) < start(other) { (other, one) } else { (one, other) };
        let (previous, current) = match start(newer) - start(older) {
            0 => (older.previous(), older.current()),
            apart if apart == limit.period => (older.current(), 0),
            _ => (0, 0),
        };
        let ends = newer.window().ends.max(older.window().ends);
        let window = Aligned { start: start(newer), ends };
        Windows::new(window, newer.previous().max(previous), newer.current().max(current), true)
    }
}
