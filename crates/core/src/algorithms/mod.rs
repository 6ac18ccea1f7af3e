//! Every algorithm of the contract, one file each, behind one dispatch.
//!
//! An algorithm is five pure functions over its own memory. The dispatch here hands it that
//! memory, or `None` when nothing is remembered or when what is remembered is past its horizon:
//! so forgetting a key can never change an answer.
//!
//! To add one: a file with an `impl Law`, a variant in [`State`] and in
//! [`limit::Algorithm`](crate::limit::Algorithm), and its name in `algorithm_names!`; the compiler
//! and the property tests name the rest.

pub(crate) mod aligned;
pub mod average;
mod deny;
pub mod fixed_window;
pub mod gcra;
pub mod in_flight;
pub mod jarl;
mod runs;
pub mod sliding_log;
pub mod sliding_window;
pub mod smockron;
pub(crate) mod stamps;
pub mod throttle;

use std::mem;

use crate::limit::{Algorithm, Limit};
use crate::state::State;
use crate::time::{Nanos, Now};
use crate::verdict::{JointOutcome, Judgement, LimitVerdict, Op, Recorded};

/// The definition of one algorithm.
///
/// `now.mono` may lie before the time of what is remembered (two threads read the clock in one
/// order and decide in the other): then no time has passed. Arithmetic saturates, never fails.
pub(crate) trait Law: Sized {
    /// What it remembers of a key.
    type Memory;

    /// The memory inside `state`, if it is of this algorithm.
    fn read(state: &State) -> Option<&Self::Memory>;
    /// Takes the memory out of `state`, if it is of this algorithm.
    fn unwrap(state: State) -> Option<Self::Memory>;
    /// Puts the memory into a state.
    fn wrap(memory: Self::Memory) -> State;

    /// What it thinks of `op`, given what it remembers. Cheap: no more than a decision needs.
    fn judge(limit: &Limit, memory: Option<&Self::Memory>, op: Op, now: Now) -> Judgement;

    /// Writes the outcome of the whole request; returns the memory to keep, if any.
    /// Never called for [`Op::Peek`].
    fn apply(
        limit: &Limit,
        memory: Option<Self::Memory>,
        op: Op,
        judgement: &Judgement,
        outcome: JointOutcome,
        now: Now,
    ) -> Option<Self::Memory>;

    /// The whole verdict, from the memory as it is after the outcome was applied.
    fn explain(
        limit: &Limit,
        memory: Option<&Self::Memory>,
        op: Op,
        judgement: &Judgement,
        now: Now,
    ) -> LimitVerdict;

    /// Writes down uses that have already happened, and returns how long until the next one: the
    /// same as [`Self::judge`], [`Self::apply`] and the delay of [`Self::explain`]. `memory` may be
    /// past its horizon. `now` is when the uses should have been reported, see [`record`].
    #[inline]
    fn record(
        limit: &Limit,
        memory: Option<Self::Memory>,
        (cost, at): (u64, Nanos),
        now: Now,
    ) -> (Option<Self::Memory>, Recorded) {
        let op = Op::Record { cost, at };
        let memory = memory.filter(|memory| !Self::forgotten(limit, memory, now));
        let judgement = Self::judge(limit, memory.as_ref(), op, now);
        let kept = Self::apply(limit, memory, op, &judgement, JointOutcome::Granted, now);
        let live = kept.as_ref().filter(|memory| !Self::forgotten(limit, memory, now));
        let next = Self::explain(limit, live, op, &judgement, now).delay;
        (kept, Recorded { rate: judgement.rate, next })
    }

    /// Judges a use of this cost and applies the judgement, where this is the only limit: the same
    /// as [`Self::judge`] and [`Self::apply`].
    #[inline(always)]
    fn take(limit: &Limit, state: &mut State, cost: u64, now: Now) -> Judgement {
        if let Some(judgement) = Self::take_at_once(limit, state, cost, now) {
            return judgement;
        }
        let op = Op::Take(cost);
        let judgement = Self::judge(limit, live::<Self>(limit, state, now), op, now);
        let outcome = if judgement.allowed { JointOutcome::Granted } else { JointOutcome::Refused };
        let memory = Self::unwrap(mem::take(state)).filter(|m| !Self::forgotten(limit, m, now));
        let kept = Self::apply(limit, memory, op, &judgement, outcome, now);
        *state = kept.map_or(State::None, Self::wrap);
        judgement
    }

    /// As [`Self::take`], for the usual case: one look at the state shows that the use is allowed.
    /// `None`, and nothing is written, in every other case.
    #[inline(always)]
    fn take_at_once(
        _limit: &Limit,
        _state: &mut State,
        _cost: u64,
        _now: Now,
    ) -> Option<Judgement> {
        None
    }

    /// Whether the memory is so old that dropping it changes no later answer.
    fn forgotten(limit: &Limit, memory: &Self::Memory, now: Now) -> bool;

    /// One memory for several keys that shall count together: it never allows what either of the
    /// two, with the same uses after it, would not.
    fn join(limit: &Limit, one: &Self::Memory, other: &Self::Memory) -> Self::Memory;
}

/// Implements the three conversions between [`State`] and a law's memory.
macro_rules! memory {
    ($memory:ty, $variant:ident) => {
        type Memory = $memory;

        fn read(state: &crate::state::State) -> Option<&Self::Memory> {
            match state {
                crate::state::State::$variant(memory) => Some(memory),
                _ => None,
            }
        }

        fn unwrap(state: crate::state::State) -> Option<Self::Memory> {
            match state {
                crate::state::State::$variant(memory) => Some(memory),
                _ => None,
            }
        }

        fn wrap(memory: Self::Memory) -> crate::state::State {
            crate::state::State::$variant(memory)
        }
    };
}
use memory;

/// Evaluates the body with `$law` naming the algorithm of the limit.
macro_rules! with_law {
    ($limit:expr, $law:ident => $body:expr) => {
        match $limit.algorithm {
            Algorithm::Gcra { .. } => with_law!(@ gcra::Gcra, $law, $body),
            Algorithm::FixedWindow => with_law!(@ fixed_window::FixedWindow, $law, $body),
            Algorithm::SlidingWindow => with_law!(@ sliding_window::SlidingWindow, $law, $body),
            Algorithm::SlidingLog => with_law!(@ sliding_log::SlidingLog, $law, $body),
            Algorithm::Average { .. } => with_law!(@ average::Average, $law, $body),
            Algorithm::Jarl { .. } => with_law!(@ jarl::Jarl, $law, $body),
            Algorithm::Smockron { .. } => with_law!(@ smockron::Smockron, $law, $body),
            Algorithm::InFlight { .. } => with_law!(@ in_flight::InFlight, $law, $body),
            Algorithm::Throttle { .. } => with_law!(@ throttle::Throttle, $law, $body),
            Algorithm::Deny => with_law!(@ deny::Deny, $law, $body),
        }
    };
    (@ $type:ty, $law:ident, $body:expr) => {{
        type $law = $type;
        $body
    }};
}

fn live<'a, L: Law>(limit: &Limit, state: &'a State, now: Now) -> Option<&'a L::Memory> {
    L::read(state).filter(|memory| !L::forgotten(limit, memory, now))
}

/// What `limit` thinks of `op` on a key in `state`. Nothing is written.
#[inline(always)]
#[must_use]
pub fn judge(limit: &Limit, state: &State, op: Op, now: Now) -> Judgement {
    with_law!(limit, L => L::judge(limit, live::<L>(limit, state, now), op, now))
}

/// Writes what became of the whole request into `state`. A peek writes nothing.
#[inline(always)]
pub fn apply(
    limit: &Limit,
    state: &mut State,
    op: Op,
    judgement: &Judgement,
    outcome: JointOutcome,
    now: Now,
) {
    let outcome = match op {
        Op::Peek(_) => return,
        Op::Take(_) | Op::TakeUpTo(_) => outcome,
        // What has already happened is written down whatever else was asked for.
        Op::Record { .. } | Op::Release { .. } | Op::Refund(_) => JointOutcome::Granted,
    };
    with_law!(limit, L => {
        let memory = L::unwrap(mem::take(state)).filter(|m| !L::forgotten(limit, m, now));
        *state = L::apply(limit, memory, op, judgement, outcome, now).map_or(State::None, L::wrap);
    });
}

/// Judges a use of this cost and applies the judgement, where this is the only limit: the same as
/// [`judge`] and [`apply`], with one look at the state.
#[inline(always)]
pub fn take(limit: &Limit, state: &mut State, cost: u64, now: Now) -> Judgement {
    // The default algorithm of rules, and short: it is inlined wherever a key is decided.
    if let Algorithm::Gcra { .. } = limit.algorithm {
        return gcra::Gcra::take(limit, state, cost, now);
    }
    take_by_law(limit, state, cost, now)
}

#[inline(never)]
fn take_by_law(limit: &Limit, state: &mut State, cost: u64, now: Now) -> Judgement {
    with_law!(limit, L => L::take(limit, state, cost, now))
}

/// Writes down `cost` uses that have already happened at `at`, and returns when the next one is
/// allowed: the same as [`judge`], [`apply`] and [`explain`], with one look at the state.
///
/// `now` is the moment at which a timely caller would have reported the uses, and the answer counts
/// from there. It may be long ago, and uses may be reported in another order than they happened:
/// logs and windows count each where it belongs, a bucket as far as it knows its past, `average`
/// and `jarl` at the time of their last. So a late report delays no caller that a timely report
/// would not have delayed.
#[inline(always)]
pub fn record(limit: &Limit, state: &mut State, cost: u64, at: Nanos, now: Now) -> Recorded {
    with_law!(limit, L => {
        let (kept, recorded) = L::record(limit, L::unwrap(mem::take(state)), (cost, at), now);
        *state = kept.map_or(State::None, L::wrap);
        recorded
    })
}

/// As [`take`], except that nothing is written where the use is not allowed: not even by the
/// algorithms that remember attempts or book callers. For callers that will ask again.
#[inline(always)]
pub fn take_if_allowed(limit: &Limit, state: &mut State, cost: u64, now: Now) -> Judgement {
    let op = Op::Take(cost);
    with_law!(limit, L => {
        if let Some(judgement) = L::take_at_once(limit, state, cost, now) {
            return judgement;
        }
        let judgement = L::judge(limit, live::<L>(limit, state, now), op, now);
        if judgement.allowed {
            let memory = L::unwrap(mem::take(state)).filter(|m| !L::forgotten(limit, m, now));
            let kept = L::apply(limit, memory, op, &judgement, JointOutcome::Granted, now);
            *state = kept.map_or(State::None, L::wrap);
        }
        judgement
    })
}

/// All that can be said of `limit` and the key, once the outcome has been applied to `state`.
#[must_use]
pub fn explain(
    limit: &Limit,
    state: &State,
    op: Op,
    judgement: &Judgement,
    now: Now,
) -> LimitVerdict {
    with_law!(limit, L => L::explain(limit, live::<L>(limit, state, now), op, judgement, now))
}

/// Whether `state` may be dropped without changing any later answer.
#[must_use]
pub fn forgotten(limit: &Limit, state: &State, now: Now) -> bool {
    with_law!(limit, L => live::<L>(limit, state, now).is_none())
}

/// How long `state` may still say something, if nothing is added: at least that long it must be
/// kept, and not for more than about twice as long. Never more than `most`.
#[must_use]
pub fn horizon(limit: &Limit, state: &State, most: Nanos, now: Now) -> Nanos {
    let mut span = limit.period.clamp(1, most);
    while span < most && !forgotten(limit, state, now.after(span)) {
        span = span.saturating_mul(2).min(most);
    }
    span
}

/// Lets the keys of `other` count in `state` too: it comes to hold for each of them alone.
pub fn join(limit: &Limit, state: &mut State, other: &State) {
    with_law!(limit, L => {
        let joined = match (L::read(state), L::read(other)) {
            (Some(one), Some(other)) => L::wrap(L::join(limit, one, other)),
            (None, Some(_)) => other.clone(),
            (_, None) => return,
        };
        *state = joined;
    });
    state.share();
}

/// `ceil(dividend / divisor)`, saturating at the end of time.
fn div_ceil_nanos(dividend: u128, divisor: u64) -> u64 {
    let quotient = if let Ok(small) = u64::try_from(dividend) {
        u128::from(small.div_ceil(divisor))
    } else {
        dividend.div_ceil(u128::from(divisor))
    };
    u64::try_from(quotient).unwrap_or(u64::MAX)
}

/// The judgement of an algorithm for which `room` single uses fit at this moment, beside a use of
/// the key of `used` requests per period.
fn judge_room(op: Op, room: u64, used: f64) -> Judgement {
    match op {
        Op::Peek(cost) | Op::Take(cost) if cost > room => Judgement::refuse(used),
        Op::TakeUpTo(most) if most > 0 && room == 0 => Judgement::refuse(used),
        Op::Peek(cost) => Judgement::pass(cost, used),
        Op::Take(cost) | Op::Record { cost, .. } => Judgement::pass(cost, used + cost as f64),
        Op::TakeUpTo(most) => Judgement::pass(most.min(room), used + most.min(room) as f64),
        Op::Release { .. } | Op::Refund(_) => Judgement::pass(0, used),
    }
}

/// The delay to report: `until(cost)` is how long until a use of this cost would be allowed.
/// After a record, which is never refused, that is the time of the next use.
fn until_allowed(op: Op, judgement: &Judgement, until: impl FnOnce(u64) -> Nanos) -> Nanos {
    match op {
        Op::Record { .. } => until(1),
        _ if judgement.allowed => 0,
        _ => until(op.least()),
    }
}

/// A count in seven bytes: far above any amount, and saturating, since records are never refused.
fn narrow(count: u64) -> [u8; 7] {
    let [bytes @ .., _] = count.min((1 << 56) - 1).to_le_bytes();
    bytes
}

fn wide(bytes: [u8; 7]) -> u64 {
    let mut word = [0; 8];
    word[..7].copy_from_slice(&bytes);
    u64::from_le_bytes(word)
}
