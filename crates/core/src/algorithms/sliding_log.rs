//! Exact: no half-open window of `period` ever holds more than `amount` uses.
//!
//! Every use of the last period is remembered. A use at s no longer counts at s + period.

use super::stamps::Stamps;
use super::{Law, judge_room, memory, until_allowed};
use crate::limit::Limit;
use crate::time::{Nanos, Now};
use crate::verdict::{JointOutcome, Judgement, LimitVerdict, Op};

/// The uses of the last period: the newest `amount` of them at most, which decide alone.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoggedUses {
    pub(crate) stamps: Stamps,
}

impl LoggedUses {
    pub(crate) fn heap_bytes(&self) -> usize {
        self.stamps.heap_bytes()
    }
}

/// The algorithm.
pub(crate) struct SlidingLog;

/// The key's time: it never runs backwards.
fn key_time(log: &LoggedUses, now: Now) -> Nanos {
    log.stamps.newest().map_or(now.mono, |newest| newest.max(now.mono))
}

fn used(limit: &Limit, log: Option<&LoggedUses>, now: Now) -> u64 {
    log.map_or(0, |log| {
        let now = key_time(log, now);
        log.stamps.count(|at| now - at.min(now) < limit.period)
    })
}

/// How long until `cost` fits, if nothing else is used.
fn until(limit: &Limit, log: Option<&LoggedUses>, cost: u64, now: Now) -> Nanos {
    let used = used(limit, log, now);
    if cost > limit.amount {
        return Nanos::MAX;
    }
    let surplus = used.saturating_add(cost).saturating_sub(limit.amount);
    let Some(log) = log.filter(|_| surplus > 0) else { return 0 };
    let leaves = log.stamps.nth_oldest(log.stamps.total() - used + surplus).unwrap_or(0);
    leaves.saturating_add(limit.period).saturating_sub(now.mono)
}

impl Law for SlidingLog {
    memory!(Box<LoggedUses>, SlidingLog);

    fn judge(limit: &Limit, log: Option<&Box<LoggedUses>>, op: Op, now: Now) -> Judgement {
        let log = log.map(Box::as_ref);
        let used = used(limit, log, now);
        judge_room(op, limit.amount.saturating_sub(used), used as f64)
    }

    fn apply(
        limit: &Limit,
        log: Option<Box<LoggedUses>>,
        op: Op,
        judgement: &Judgement,
        outcome: JointOutcome,
        now: Now,
    ) -> Option<Box<LoggedUses>> {
        if outcome == JointOutcome::Refused || matches!(op, Op::Release { .. }) {
            return log;
        }
        let mut log = log.unwrap_or_default();
        let asked = now.mono;
        let now = key_time(&log, now);
        match op {
            Op::Refund(uses) => log.stamps.drop_newest(uses),
            // One that lies ahead counts from now: its own stamp would drag the key's time ahead.
            Op::Record { at, .. } => log.stamps.insert(at.min(asked), judgement.granted),
            _ => log.stamps.push(now, judgement.granted),
        }
        log.stamps.keep(limit.amount, |at| now - at.min(now) < limit.period);
        (!log.stamps.is_empty()).then_some(log)
    }

    fn explain(
        limit: &Limit,
        log: Option<&Box<LoggedUses>>,
        op: Op,
        judgement: &Judgement,
        now: Now,
    ) -> LimitVerdict {
        let log = log.map(Box::as_ref);
        let newest = log.and_then(|log| log.stamps.newest());
        let reset = newest.map_or(0, |newest| newest.saturating_add(limit.period));
        LimitVerdict {
            allowed: judgement.allowed,
            remaining: limit.amount.saturating_sub(used(limit, log, now)),
            rate: judgement.rate,
            delay: until_allowed(op, judgement, |cost| until(limit, log, cost, now)),
            reset: reset.saturating_sub(now.mono),
        }
    }

    fn forgotten(limit: &Limit, log: &Box<LoggedUses>, now: Now) -> bool {
        used(limit, Some(log), now) == 0
    }

    fn join(_: &Limit, one: &Box<LoggedUses>, other: &Box<LoggedUses>) -> Box<LoggedUses> {
        Box::new(LoggedUses { stamps: one.stamps.join(&other.stamps) })
    }
}
