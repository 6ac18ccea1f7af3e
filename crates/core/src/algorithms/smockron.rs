//! The Smockron rule: once `burst` uses lie within `burst / rate`, the next one may come `1 / rate`
//! after the last.
//!
//! The history holds when accepted uses came and when delayed ones will go, so moments ahead of
//! now count as well. Each record decides when the next use is allowed, and that answer stands
//! until the next record. It is not a token bucket: an old burst is not paid back while it lies
//! in the window.

use super::stamps::Stamps;
use super::{Law, div_ceil_nanos, judge_room, memory, until_allowed};
use crate::limit::{Algorithm, Limit};
use crate::time::{Nanos, Now};
use crate::verdict::{JointOutcome, Judgement, LimitVerdict, Op, Recorded};

/// The newest uses, `burst` at most, and what follows from them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    pub(crate) stamps: Stamps,
    /// When the last record was made: the key's time never runs backwards.
    pub(crate) latest: Nanos,
    /// When the next use is allowed: the first whole nanosecond; 0 is at any time.
    pub(crate) next: Nanos,
}

impl History {
    pub(crate) fn heap_bytes(&self) -> usize {
        self.stamps.heap_bytes()
    }
}

/// The algorithm.
pub(crate) struct Smockron;

fn burst(limit: &Limit) -> u64 {
    match limit.algorithm {
        Algorithm::Smockron { burst } => burst,
        _ => limit.amount,
    }
}

fn key_time(history: Option<&History>, now: Now) -> Nanos {
    history.map_or(now.mono, |history| history.latest.max(now.mono))
}

/// Whether `at` lies after `now - burst / rate`.
fn recent(limit: &Limit, at: Nanos, now: Nanos) -> bool {
    let age = u128::from(now.saturating_sub(at)) * u128::from(limit.amount);
    age < u128::from(burst(limit)) * u128::from(limit.period)
}

fn used(limit: &Limit, history: Option<&History>, now: Now) -> u64 {
    let now = key_time(history, now);
    history.map_or(0, |history| history.stamps.count(|at| recent(limit, at, now)))
}

/// Whether the next use must wait. The end of time stands for a moment beyond it: it never comes.
fn waits(history: &History, now: Now) -> bool {
    history.next == Nanos::MAX || key_time(Some(history), now) < history.next
}

/// Single uses that would be allowed at this moment. One is whenever the stored time has come,
/// even with a full history; each that follows needs room in it.
fn room(limit: &Limit, history: Option<&History>, now: Now) -> u64 {
    match history {
        Some(history) if waits(history, now) => 0,
        _ => burst(limit).saturating_sub(used(limit, history, now)).max(1),
    }
}

/// `uses / rate`, up to the next whole nanosecond.
fn span(limit: &Limit, uses: u64) -> Nanos {
    div_ceil_nanos(u128::from(uses) * u128::from(limit.period), limit.amount)
}

/// How long until `cost` uses fit, if nothing else is used.
fn until(limit: &Limit, history: Option<&History>, cost: u64, now: Now) -> Nanos {
    if cost > burst(limit) {
        return Nanos::MAX;
    }
    let Some(history) = history.filter(|_| cost > room(limit, history, now)) else { return 0 };
    let used = used(limit, Some(history), now);
    let surplus = used.saturating_add(cost).saturating_sub(burst(limit));
    let leaves = if cost > 1 && surplus > 0 {
        let oldest = history.stamps.nth_oldest(history.stamps.total() - used + surplus);
        oldest.map_or(0, |oldest| oldest.saturating_add(span(limit, burst(limit))))
    } else {
        0
    };
    leaves.max(history.next).saturating_sub(now.mono)
}

/// Drops what no longer counts and decides when the next use is allowed.
fn settle(limit: &Limit, mut history: Box<History>, now: Now) -> Option<Box<History>> {
    let now = key_time(Some(&history), now);
    history.latest = now;
    history.stamps.keep(burst(limit), |at| recent(limit, at, now));
    let newest = history.stamps.newest()?;
    history.next = if history.stamps.total() < burst(limit) {
        0
    } else {
        newest.max(now).saturating_add(span(limit, 1))
    };
    Some(history)
}

impl Law for Smockron {
    memory!(Box<History>, Smockron);

    fn judge(limit: &Limit, history: Option<&Box<History>>, op: Op, now: Now) -> Judgement {
        let history = history.map(Box::as_ref);
        judge_room(op, room(limit, history, now), used(limit, history, now) as f64)
    }

    fn apply(
        limit: &Limit,
        history: Option<Box<History>>,
        op: Op,
        judgement: &Judgement,
        outcome: JointOutcome,
        now: Now,
    ) -> Option<Box<History>> {
        if outcome == JointOutcome::Refused {
            return history;
        }
        let (at, uses) = match op {
            Op::Record { cost, at } => (at, cost),
            Op::Refund(uses) => {
                let mut history = history?;
                history.stamps.drop_newest(uses);
                return settle(limit, history, now);
            }
            _ => (key_time(history.as_deref(), now), judgement.granted),
        };
        if uses == 0 {
            return history;
        }
        let mut history = history.unwrap_or_default();
        history.stamps.insert(at, uses);
        settle(limit, history, now)
    }

    fn explain(
        limit: &Limit,
        history: Option<&Box<History>>,
        op: Op,
        judgement: &Judgement,
        now: Now,
    ) -> LimitVerdict {
        let history = history.map(Box::as_ref);
        let reset = history.map_or(0, |history| {
            let newest = history.stamps.newest().unwrap_or(0);
            newest.saturating_add(span(limit, burst(limit))).max(history.next)
        });
        LimitVerdict {
            allowed: judgement.allowed,
            remaining: room(limit, history, now),
            rate: judgement.rate,
            delay: until_allowed(op, judgement, |cost| until(limit, history, cost, now)),
            reset: reset.saturating_sub(now.mono),
        }
    }

    fn record(
        limit: &Limit,
        history: Option<Box<History>>,
        (cost, at): (u64, Nanos),
        now: Now,
    ) -> (Option<Box<History>>, Recorded) {
        let mut history = history.unwrap_or_default();
        let before = used(limit, Some(&history), now);
        if before == 0 && !waits(&history, now) {
            // All of it is forgotten; only its allocation is kept.
            (history.latest, history.next) = (0, 0);
            history.stamps.clear();
        }
        history.stamps.insert(at, cost);
        let kept = settle(limit, history, now);
        let wait = kept.as_ref().filter(|history| waits(history, now));
        let next = wait.map_or(0, |history| history.next.saturating_sub(now.mono));
        (kept, Recorded { rate: before as f64 + cost as f64, next })
    }

    fn forgotten(limit: &Limit, history: &Box<History>, now: Now) -> bool {
        !waits(history, now) && used(limit, Some(history), now) == 0
    }

    fn join(_: &Limit, one: &Box<History>, other: &Box<History>) -> Box<History> {
        Box::new(History {
            stamps: one.stamps.join(&other.stamps),
            latest: one.latest.max(other.latest),
            next: one.next.max(other.next),
        })
    }
}
