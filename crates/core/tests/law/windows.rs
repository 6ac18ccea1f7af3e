//! `fixed-window` and `sliding-window` against the list of all uses.

use proptest::prelude::*;
use tidegate_core::{Algorithm, Nanos, Now};

use crate::common::{Key, Walk, amounts, config, periods, steps};

/// The uses of the window that begins `back` periods before that of `unix`.
fn uses_in_window(uses: &[(Nanos, u64)], period: Nanos, unix: Nanos, back: u64) -> u64 {
    let window = unix / period - back;
    uses.iter().filter(|(at, _)| at / period == window).map(|(_, cost)| cost).sum()
}

/// What the contract says of stepped clocks, word for word: one current window, its uses, and
/// when it was to end.
struct Stepped {
    period: Nanos,
    window: Option<(u64, Nanos)>,
    uses: u64,
}

impl Stepped {
    fn follow(&mut self, now: Now) {
        let wall = now.unix / self.period;
        let ends = now.mono + (wall + 1) * self.period - now.unix;
        let stays = self.window.is_some_and(|(window, ends)| {
            let in_it = wall == window || wall < window && now.mono < ends;
            in_it && now.mono < ends + self.period
        });
        if !stays {
            self.uses = 0;
            self.window = Some((wall, ends));
        }
    }
}

proptest! {
    #![proptest_config(config(300))]

    #[test]
    fn fixed_window_counts_each_window(
        amount in amounts(),
        period in periods(),
        steps in steps(false, false),
    ) {
        let mut key = Key::new(amount, period, Algorithm::FixedWindow);
        let mut uses = Vec::new();
        let mut walk = Walk::new(period);
        for step in &steps {
            let now = walk.step(step);
            let cost = if step.kind == 0 { amount } else { step.cost };
            let used = uses_in_window(&uses, period, now.unix, 0);
            let verdict = key.take(cost, now);
            prop_assert_eq!(verdict.allowed, used + cost <= amount);
            if verdict.allowed {
                uses.push((now.unix, cost));
            } else if cost <= amount {
                prop_assert_eq!(verdict.delay, period - now.unix % period);
            }
        }
    }

    /// Only a take moves the key into another window, so the model moves only then too.
    #[test]
    fn fixed_window_stays_when_the_wall_clock_steps_back(
        amount in amounts(),
        period in periods(),
        steps in steps(true, false),
    ) {
        let mut key = Key::new(amount, period, Algorithm::FixedWindow);
        let mut model = Stepped { period, window: None, uses: 0 };
        let mut walk = Walk::new(period);
        for step in &steps {
            let now = walk.step(step);
            let cost = if step.kind == 0 { amount } else { step.cost };
            let before = (model.window, model.uses);
            model.follow(now);
            let verdict = key.take(cost, now);
            prop_assert_eq!(verdict.allowed, model.uses + cost <= amount);
            if verdict.allowed {
                model.uses += cost;
            } else {
                (model.window, model.uses) = before;
            }
        }
    }

    /// However the wall clock is stepped back, a window is left after two periods at most.
    #[test]
    fn no_step_holds_a_key(period in periods(), back in 0..100_u64, sliding in any::<bool>()) {
        let algorithm = if sliding { Algorithm::SlidingWindow } else { Algorithm::FixedWindow };
        let mut key = Key::new(1, period, algorithm);
        let now = Walk::new(period).step(&crate::common::Step {
            twelfths: 0, extra: 0, wall: 0, late: 0, cost: 1, kind: 0,
        });
        prop_assert!(key.take(1, now).allowed);
        let stepped = Now { mono: now.mono, unix: now.unix - (back * (period / 10)).min(now.unix) };
        prop_assert!(!key.take(1, stepped).allowed);
        prop_assert!(key.take(1, stepped.after(2 * period)).allowed);
    }

    #[test]
    fn sliding_window_weighs_the_previous_window(
        amount in amounts(),
        period in periods(),
        steps in steps(false, false),
    ) {
        let mut key = Key::new(amount, period, Algorithm::SlidingWindow);
        let mut uses = Vec::new();
        let mut walk = Walk::new(period);
        for step in &steps {
            let now = walk.step(step);
            let cost = if step.kind == 0 { amount } else { step.cost };
            let previous = uses_in_window(&uses, period, now.unix, 1);
            let current = uses_in_window(&uses, period, now.unix, 0);
            let left = period - now.unix % period;
            let weighed = u128::from(previous) * u128::from(left)
                + u128::from(current + cost) * u128::from(period);
            let verdict = key.take(cost, now);
            prop_assert_eq!(verdict.allowed, weighed <= u128::from(amount) * u128::from(period));
            if verdict.allowed {
                uses.push((now.unix, cost));
            }
        }
    }

    /// A step of the wall clock inside a window changes nothing.
    #[test]
    fn sliding_window_slides_on_the_monotonic_clock(
        amount in 1..30_u64,
        costs in prop::collection::vec((1..6_u64, 0..50_u64, 0..1000_u64), 1..40),
    ) {
        let period = 1_000_000;
        let mut steady = Key::new(amount, period, Algorithm::SlidingWindow);
        let mut stepped = steady.clone();
        let start = 1_700_000_000_000_000_000;
        let mut mono = 5 * period;
        for (index, (cost, gap, wall)) in costs.into_iter().enumerate() {
            // All in one window, until the last: then both clocks agree again, one window on.
            mono += gap * 400;
            let into = (mono - 5 * period) % period;
            let unix = start + (mono - 5 * period);
            let window = unix - into;
            let unix_stepped = if index == 0 { unix } else { window + wall * 1000 };
            let one = steady.take(cost, Now { mono, unix });
            let other = stepped.take(cost, Now { mono, unix: unix_stepped });
            prop_assert_eq!(one.allowed, other.allowed);
            if (mono - 5 * period) / period > 0 {
                break;
            }
        }
    }
}
