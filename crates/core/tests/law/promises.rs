//! What every verdict of every algorithm promises: delay, remaining, reset; and that forgetting
//! changes nothing.

use proptest::prelude::*;
use tidegate_core::limit::Limit;
use tidegate_core::{Algorithm, JointOutcome, LimitVerdict, Nanos, Now, Op, Recorded, algorithms};

use crate::common::{Key, Step, Walk, any_algorithm, config, periods, steps};

/// Any limit of any algorithm, with an amount that a short history can reach.
pub(crate) fn limits() -> impl Strategy<Value = Limit> {
    let amount = prop_oneof![4 => 1..6_u64, 2 => 6..20_u64, 1 => Just(1_000_000)];
    let algorithm = any_algorithm(amount.clone());
    (amount, periods(), algorithm).prop_map(|(amount, period, algorithm)| {
        let algorithm = match algorithm {
            // What would be owed beyond the end of time is not granted, whatever remains.
            Algorithm::Throttle { burst } => Algorithm::Throttle { burst: burst.min(20) },
            other => other,
        };
        let plain = algorithm == Algorithm::InFlight { per_window: false };
        Limit { amount, period: if plain { 0 } else { period }, algorithm }
    })
}

pub(crate) fn walk(limit: &Limit) -> Walk {
    Walk::new(if limit.period == 0 { 1_000_000_000 } else { limit.period })
}

/// Mostly takes, and a share of everything else.
pub(crate) fn op(limit: &Limit, step: &Step, now: Now) -> Op {
    let cost = if step.kind.is_multiple_of(16) { limit.capacity() } else { step.cost };
    match step.kind % 12 {
        0 => Op::TakeUpTo(cost),
        1 => Op::Record { cost, at: now.mono },
        2 => Op::Record { cost: 1, at: now.mono + limit.period / 8 * step.cost },
        3 => Op::Refund(step.cost),
        4 => Op::Release { cost: 1, started: now },
        5 => Op::Peek(cost),
        6..=8 => Op::Take(1),
        _ => Op::Take(cost),
    }
}

fn books(limit: &Limit) -> bool {
    matches!(limit.algorithm, Algorithm::Jarl { .. })
}

fn allowed_after(key: &Key, op: Op, now: Now, span: Nanos) -> bool {
    key.judge(op, now.after(span)).allowed
}

/// A refused operation passes after its delay, and not a nanosecond earlier.
fn check_delay(key: &Key, op: Op, now: Now, verdict: &LimitVerdict) -> Result<(), TestCaseError> {
    let asked = match op {
        Op::Take(cost) => cost,
        Op::Peek(_) | Op::TakeUpTo(_) => op.least(),
        // The delay is that of the next use.
        Op::Record { .. } => 1,
        Op::Release { .. } | Op::Refund(_) => return Ok(()),
    };
    // What the document's formula tells is no promise, and a booking has its own place.
    let document = key.limit.algorithm == Algorithm::Jarl { exact: false };
    if document || books(&key.limit) && matches!(op, Op::Take(_)) {
        return Ok(());
    }
    let op = if matches!(op, Op::Record { .. }) { Op::Peek(asked) } else { op };
    match verdict.delay {
        0 => prop_assert!(
            matches!(op, Op::Take(_) | Op::TakeUpTo(_)) || allowed_after(key, op, now, 0)
        ),
        Nanos::MAX => prop_assert!(asked > key.limit.capacity() || key.limit.period == 0),
        // Not before the end of time.
        delay if delay > 1 << 62 => {}
        delay => {
            prop_assert!(allowed_after(key, op, now, delay), "not allowed after {}", delay);
            prop_assert!(!allowed_after(key, op, now, delay - 1), "allowed before {}", delay);
        }
    }
    Ok(())
}

/// So many single uses pass at this instant, and not one more.
fn check_remaining(key: &Key, now: Now, remaining: u64) -> Result<(), TestCaseError> {
    let mut key = key.clone();
    // The average is kept in f64: a hair beside a whole number, one use more or less is rounding.
    let reading = key.judge(Op::Peek(1), now).rate;
    let beside = (reading - reading.round()).abs();
    if matches!(key.limit.algorithm, Algorithm::Average { .. }) && beside > 0.0 && beside < 1e-9 {
        return Ok(());
    }
    if remaining <= 50 {
        for _ in 0..remaining {
            prop_assert!(key.take(1, now).allowed);
        }
    } else {
        prop_assert!(key.take(remaining, now).allowed);
    }
    prop_assert!(!key.take(1, now).allowed);
    Ok(())
}

/// After its reset a key answers as a new one does.
fn check_reset(key: &Key, now: Now, reset: Nanos) -> Result<(), TestCaseError> {
    // Nobody knows when, or not before the end of time.
    if reset > 1 << 62 {
        return Ok(());
    }
    let mut key = key.clone();
    let mut fresh = Key { state: tidegate_core::State::None, ..key.clone() };
    let mut later = now.after(reset);
    for cost in [1, 2, 1, key.limit.capacity(), 1, 1] {
        prop_assert_eq!(key.take(cost, later), fresh.take(cost, later));
        later = later.after(key.limit.period / 7);
    }
    Ok(())
}

/// A take in one step is the same as a judgement and its own outcome, applied; a mere try is the
/// same where the use is allowed, and nothing where it is not.
fn check_take(key: &Key, cost: u64, now: Now) -> Result<(), TestCaseError> {
    let (mut halves, mut whole) = (key.state.clone(), key.state.clone());
    let op = Op::Take(cost);
    let judgement = algorithms::judge(&key.limit, &halves, op, now);
    let outcome = if judgement.allowed { JointOutcome::Granted } else { JointOutcome::Refused };
    algorithms::apply(&key.limit, &mut halves, op, &judgement, outcome, now);
    prop_assert_eq!(algorithms::take(&key.limit, &mut whole, cost, now), judgement);
    prop_assert_eq!(&whole, &halves);
    let mut tried = key.state.clone();
    prop_assert_eq!(algorithms::take_if_allowed(&key.limit, &mut tried, cost, now), judgement);
    prop_assert_eq!(&tried, if judgement.allowed { &halves } else { &key.state });
    Ok(())
}

/// A record in one step is the same as a judgement, applied and explained.
fn check_record(key: &Key, cost: u64, at: Nanos, now: Now) -> Result<(), TestCaseError> {
    let (mut parts, mut whole) = (key.state.clone(), key.state.clone());
    let op = Op::Record { cost, at };
    let judgement = algorithms::judge(&key.limit, &parts, op, now);
    algorithms::apply(&key.limit, &mut parts, op, &judgement, JointOutcome::Granted, now);
    let next = algorithms::explain(&key.limit, &parts, op, &judgement, now).delay;
    let recorded = algorithms::record(&key.limit, &mut whole, cost, at, now);
    prop_assert_eq!(recorded, Recorded { rate: judgement.rate, next });
    prop_assert_eq!(&whole, &parts);
    Ok(())
}

proptest! {
    #![proptest_config(config(1500))]

    #[test]
    fn verdicts_keep_their_promises(limit in limits(), steps in steps(true, true)) {
        let mut key = Key::new(limit.amount, limit.period, limit.algorithm);
        let mut walk = walk(&limit);
        for step in &steps {
            let now = walk.step(step);
            let op = op(&limit, step, now);
            let before = key.state.clone();
            let verdict = key.ask(op, now);
            prop_assert!(!matches!(op, Op::Peek(_)) || key.state == before);
            prop_assert!(verdict.rate.is_finite() && verdict.rate >= 0.0);
            check_delay(&key, op, now, &verdict)?;
            check_remaining(&key, now, verdict.remaining)?;
            check_reset(&key, now, verdict.reset)?;
        }
    }

    /// What asks for no use passes always. Only limits that come with requests may be smaller than
    /// what is owed by an earlier one, and refuse it then, as redis-cell does.
    #[test]
    fn what_asks_for_nothing_passes(
        limit in limits(), steps in steps(true, true), now_less in any::<bool>(),
    ) {
        let mut key = Key::new(limit.amount, limit.period, limit.algorithm);
        let mut walk = walk(&limit);
        for step in &steps {
            let now = walk.step(step);
            key.ask(op(&limit, step, now), now);
            let mut seen = key.clone();
            if now_less && !matches!(limit.algorithm, Algorithm::InFlight { .. }) {
                // A reload may lower the amount.
                seen.limit.amount = limit.amount.div_ceil(2);
            }
            if !matches!(limit.algorithm, Algorithm::Throttle { .. }) {
                let verdict = seen.peek(0, now);
                prop_assert!(verdict.allowed && verdict.delay == 0, "{:?}", verdict);
                prop_assert_eq!(seen.state, key.state.clone());
            }
        }
    }

    /// A store may drop what is forgotten at any time, or never.
    #[test]
    fn forgetting_never_changes_an_answer(limit in limits(), steps in steps(true, false)) {
        let mut kept = Key::new(limit.amount, limit.period, limit.algorithm);
        let mut dropped = kept.clone();
        let mut walk = walk(&limit);
        for step in &steps {
            let now = walk.step(step);
            dropped.forget(now);
            let op = op(&limit, step, now);
            if step.kind % 5 == 0 {
                continue;
            }
            prop_assert_eq!(kept.ask(op, now), dropped.ask(op, now));
            dropped.forget(now);
        }
    }

    #[test]
    fn what_is_done_in_one_step_is_a_judgement_applied(
        limit in limits(), steps in steps(true, true), common in any::<bool>(),
    ) {
        let mut key = Key::new(limit.amount, limit.period, limit.algorithm);
        let mut walk = walk(&limit);
        for step in &steps {
            let now = walk.step(step);
            if common {
                key.state.share();
            }
            check_take(&key, step.cost, now)?;
            // Around the end of the wall clock's window, to the nanosecond.
            let period = limit.period.max(1);
            let end = now.unix - now.unix % period + period;
            for unix in [end - 1, end, end + 1] {
                check_take(&key, step.cost, Now { unix, ..now })?;
            }
            let span = limit.period / 8 * step.cost;
            check_record(&key, step.cost, now.mono, now)?;
            check_record(&key, 1, now.mono.saturating_add(span), now)?;
            check_record(&key, step.cost, now.mono.saturating_sub(span), now)?;
            key.ask(op(&limit, step, now), now);
        }
    }

    /// What was taken and undone at once was never taken.
    #[test]
    fn a_refund_undoes_a_take(limit in limits(), steps in steps(true, false), cost in 1..4_u64) {
        let mut key = Key::new(limit.amount, limit.period, limit.algorithm);
        let mut walk = walk(&limit);
        let mut now = Now::default();
        for step in &steps {
            now = walk.step(step);
            key.take(step.cost, now);
        }
        let mut undone = key.clone();
        if undone.take(cost, now).allowed {
            undone.ask(Op::Refund(cost), now);
            let (one, other) = (key.peek(1, now), undone.peek(1, now));
            prop_assert_eq!(one.remaining, other.remaining);
        }
    }
}
