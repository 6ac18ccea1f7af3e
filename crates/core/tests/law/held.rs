//! Uses in flight against the list of those that run.

use proptest::prelude::*;
use tidegate_core::{Algorithm, Now, Op, State};

use crate::common::{Key, Walk, amounts, config, periods, steps};

proptest! {
    #![proptest_config(config(300))]

    #[test]
    fn plain_uses_are_held_until_they_end(amount in amounts(), steps in steps(true, true)) {
        let mut key = Key::new(amount, 0, Algorithm::InFlight { per_window: false });
        let mut running: Vec<(u64, Now)> = Vec::new();
        let mut walk = Walk::new(1_000_000_000);
        for step in &steps {
            let now = walk.step(step);
            if step.kind % 2 == 0 && !running.is_empty() {
                let (cost, started) = running.swap_remove(step.kind as usize % running.len());
                let op = if step.kind % 8 == 0 {
                    Op::Refund(cost)
                } else {
                    Op::Release { cost, started }
                };
                key.ask(op, now);
            } else {
                let cost = if step.kind == 1 { amount } else { step.cost };
                let used: u64 = running.iter().map(|(cost, _)| cost).sum();
                let verdict = key.take(cost, now);
                prop_assert_eq!(verdict.allowed, used + cost <= amount);
                if verdict.allowed {
                    running.push((cost, now));
                }
            }
            prop_assert_eq!(key.state == State::None, running.is_empty());
            prop_assert_eq!(key.forgotten(now.after(1 << 62)), running.is_empty());
        }
    }

    #[test]
    fn per_window_uses_also_end_with_their_window(
        amount in amounts(),
        period in periods(),
        steps in steps(false, false),
    ) {
        let mut key = Key::new(amount, period, Algorithm::InFlight { per_window: true });
        let mut running: Vec<(u64, Now)> = Vec::new();
        let mut walk = Walk::new(period);
        for step in &steps {
            let now = walk.step(step);
            if step.kind % 2 == 0 && !running.is_empty() {
                // Of this window or of an earlier one, which then has nothing to give back.
                let (cost, started) = running.swap_remove(step.kind as usize % running.len());
                key.ask(Op::Release { cost, started }, now);
            }
            let here = running.iter().filter(|(_, at)| at.unix / period == now.unix / period);
            let used: u64 = here.map(|(cost, _)| cost).sum();
            let cost = if step.kind == 1 { amount } else { step.cost };
            prop_assert_eq!(key.peek(1, now).remaining, amount - used);
            let verdict = key.take(cost, now);
            prop_assert_eq!(verdict.allowed, used + cost <= amount);
            if verdict.allowed {
                running.push((cost, now));
            } else if cost <= amount {
                prop_assert_eq!(verdict.delay, period - now.unix % period);
            }
        }
    }
}

#[test]
fn a_record_holds_nothing() {
    let mut key = Key::new(1, 0, Algorithm::InFlight { per_window: false });
    key.ask(Op::Record { cost: 1, at: 5 }, crate::common::at(5));
    assert_eq!(key.state, State::None);
}

/// A use that began while the wall clock was back is still of the window it was counted in.
#[test]
fn a_step_of_the_wall_clock_loses_no_use() {
    let minute = 60_000_000_000;
    let mut key = Key::new(1, minute, Algorithm::InFlight { per_window: true });
    let now = crate::common::at(10 * minute);
    assert!(key.take(1, now).allowed);
    key.ask(Op::Release { cost: 1, started: now }, now);
    assert!(key.take(1, now).allowed);
    key.ask(Op::Refund(1), now);
    let first = key.take(1, now);
    assert!(first.allowed);
    let back = Now { mono: now.mono + 5, unix: now.unix - 10 * minute };
    assert!(!key.take(1, back).allowed);
    key.ask(Op::Release { cost: 1, started: now }, back);
    assert!(key.take(1, back).allowed);
    key.ask(Op::Release { cost: 1, started: back }, back);
    assert_eq!(key.state, State::None);
}
