//! The JARL algorithm: it books every caller, answers how long to wait, and refuses none.
//!
//! The document's formula books arrivals and lengthens the wait of each caller that finds the
//! last period full. Exact mode books the moment at which the call will start, so that no window
//! of `period` ever holds more than `amount` starts. In both, a booking that is a period old is
//! the same as none, which is why only younger ones are kept.

use super::stamps::Stamps;
use super::{Law, memory};
use crate::limit::{Algorithm, Limit};
use crate::time::{MILLISECOND, Nanos, Now};
use crate::verdict::{JointOutcome, Judgement, LimitVerdict, Op};

/// The bookings that still matter: the newest `amount` at most.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bookings {
    pub(crate) stamps: Stamps,
    /// When the last caller came: the key's time never runs backwards.
    pub(crate) latest: Nanos,
    /// How many callers in a row found the period full.
    pub(crate) backoff: u64,
}

impl Bookings {
    pub(crate) fn heap_bytes(&self) -> usize {
        self.stamps.heap_bytes()
    }
}

/// The algorithm.
pub(crate) struct Jarl;

/// The least that each further caller waits longer than the one before.
const STEP_MIN: Nanos = 10 * MILLISECOND;

/// What a caller would be booked for.
struct Booking {
    delay: Nanos,
    at: Nanos,
    backoff: u64,
}

fn exact(limit: &Limit) -> bool {
    matches!(limit.algorithm, Algorithm::Jarl { exact: true })
}

fn key_time(bookings: Option<&Bookings>, now: Now) -> Nanos {
    bookings.map_or(now.mono, |bookings| bookings.latest.max(now.mono))
}

/// Bookings of the last period, and of times to come.
fn live(limit: &Limit, bookings: Option<&Bookings>, now: Nanos) -> u64 {
    let counts = |at: Nanos| now.saturating_sub(at) < limit.period;
    bookings.map_or(0, |bookings| bookings.stamps.count(counts)).min(limit.amount)
}

/// The booking of `cost` callers at once. They start together when the last of them may.
/// The cost must not be above the amount.
fn book(limit: &Limit, bookings: Option<&Bookings>, cost: u64, now: Now) -> Booking {
    let clock = now.mono;
    let now = key_time(bookings, now);
    let live = live(limit, bookings, now);
    let free = limit.amount - live;
    let Some(bookings) = bookings.filter(|_| cost > free) else {
        return Booking { delay: 0, at: now, backoff: 0 };
    };
    let pushed_out = cost - free;
    let stamps = &bookings.stamps;
    let oldest = stamps.nth_oldest(stamps.total() - live + pushed_out).unwrap_or(now);
    if exact(limit) {
        // Wider than a moment, so that at the end of time there still is a wait.
        let wait = u128::from(oldest) + u128::from(limit.period) - u128::from(clock);
        let delay = Nanos::try_from(wait).unwrap_or(Nanos::MAX);
        return Booking { delay, at: oldest.saturating_add(limit.period), backoff: 0 };
    }
    let before = if free > 0 { 0 } else { bookings.backoff };
    let backoff = before.saturating_add(pushed_out);
    let share = (u128::from(limit.period) * u128::from(backoff)).div_ceil(limit.amount.into());
    let steps = share.max(u128::from(STEP_MIN) * u128::from(backoff));
    let steps = Nanos::try_from(steps).unwrap_or(Nanos::MAX);
    let left = limit.period - now.saturating_sub(oldest).min(limit.period);
    Booking { delay: steps.saturating_add(left), at: now, backoff }
}

impl Law for Jarl {
    memory!(Box<Bookings>, Jarl);

    fn judge(limit: &Limit, bookings: Option<&Box<Bookings>>, op: Op, now: Now) -> Judgement {
        let bookings = bookings.map(Box::as_ref);
        let live = live(limit, bookings, key_time(bookings, now));
        let rate = |more: u64| live as f64 + more as f64;
        match op {
            Op::Peek(cost) | Op::Take(cost) => {
                let more = if matches!(op, Op::Peek(_)) { 0 } else { cost };
                let booked = if cost > limit.amount {
                    Nanos::MAX
                } else {
                    book(limit, bookings, cost, now).delay
                };
                match booked {
                    0 => Judgement::pass(cost, rate(more)),
                    _ => Judgement { booked, ..Judgement::refuse(rate(more)) },
                }
            }
            // A slice is spent at once or not at all: it never waits, so it is never booked ahead.
            Op::TakeUpTo(most) => match most.min(limit.amount - live) {
                0 if most > 0 => Judgement::refuse(rate(0)),
                granted => Judgement::pass(granted, rate(granted)),
            },
            Op::Record { cost, .. } => Judgement::pass(cost, rate(cost)),
            Op::Release { .. } | Op::Refund(_) => Judgement::pass(0, rate(0)),
        }
    }

    fn apply(
        limit: &Limit,
        bookings: Option<Box<Bookings>>,
        op: Op,
        judgement: &Judgement,
        outcome: JointOutcome,
        now: Now,
    ) -> Option<Box<Bookings>> {
        let cost = match op {
            Op::Take(cost) if cost <= limit.amount => cost,
            Op::TakeUpTo(_) if outcome == JointOutcome::Granted => judgement.granted,
            // More than the amount would push out bookings that nothing remembers any more.
            Op::Record { cost, .. } => cost.min(limit.amount.max(1)),
            Op::Refund(uses) => {
                let mut bookings = bookings?;
                bookings.stamps.drop_newest(uses);
                return (!bookings.stamps.is_empty()).then_some(bookings);
            }
            _ => 0,
        };
        if cost == 0 {
            return bookings;
        }
        let Booking { at, backoff, .. } = book(limit, bookings.as_deref(), cost, now);
        let latest = key_time(bookings.as_deref(), now);
        let mut bookings = bookings.unwrap_or_default();
        bookings.stamps.push(at, cost);
        bookings.stamps.keep(limit.amount, |at| latest.saturating_sub(at) < limit.period);
        bookings.latest = latest;
        bookings.backoff = backoff;
        Some(bookings)
    }

    fn explain(
        limit: &Limit,
        bookings: Option<&Box<Bookings>>,
        op: Op,
        judgement: &Judgement,
        now: Now,
    ) -> LimitVerdict {
        let bookings = bookings.map(Box::as_ref);
        let delay = match op {
            Op::Record { .. } => match book(limit, bookings, 1, now).delay {
                0 => 0,
                delay if exact(limit) => delay,
                // The formula counts from the key's own time.
                delay => delay.saturating_add(key_time(bookings, now) - now.mono),
            },
            _ if judgement.allowed => 0,
            Op::TakeUpTo(_) => book(limit, bookings, 1, now).delay,
            _ => judgement.booked,
        };
        let newest = bookings.and_then(|bookings| bookings.stamps.newest());
        let reset = newest.map_or(0, |newest| newest.saturating_add(limit.period));
        LimitVerdict {
            allowed: judgement.allowed,
            remaining: limit.amount - live(limit, bookings, key_time(bookings, now)),
            rate: judgement.rate,
            delay,
            reset: reset.saturating_sub(now.mono),
        }
    }

    fn forgotten(limit: &Limit, bookings: &Box<Bookings>, now: Now) -> bool {
        live(limit, Some(bookings), key_time(Some(bookings), now)) == 0
    }

    fn join(_: &Limit, one: &Box<Bookings>, other: &Box<Bookings>) -> Box<Bookings> {
        Box::new(Bookings {
            stamps: one.stamps.join(&other.stamps),
            latest: one.latest.max(other.latest),
            backoff: one.backoff.max(other.backoff),
        })
    }
}
