//! `fixed-window` and `sliding-window` against the list of all uses.

use proptest::prelude::*;
use tidegate_core::{Algorithm, Nanos, Now};

use crate::common::{Key, Walk, amounts, config, periods, steps};

/// The uses of the window that begins `back` periods before that of `unix`.
fn uses_in_window(uses: &[(Nanos, u64)], period: Nanos, unix: Nanos, back: u64) -> u64 {
    let window = unix / period - back;
    uses.iter().filter(|(at, _)| at / period == window).map(|(_, cost)| cost).sum()
}

/// What the contract says of stepped clocks, word for word: one current window, when it was to
/// end, its uses, and whether it was asked for while the wall clock read an older one.
#[derive(Clone, Copy)]
struct Stepped {
    window: u64,
    ends: Nanos,
    uses: u64,
    left: bool,
}

impl Stepped {
    fn uses(held: Option<Self>, period: Nanos, now: Now) -> Option<Self> {
        let wall = now.unix / period;
        held.filter(|held| {
            // In the newer window until it ends; in the very window for as long as it lasts.
            let stays = wall <= held.window && now.mono < held.ends;
            let is_it = wall == held.window && !held.left && now.mono < held.ends + period;
            stays || is_it
        })
    }

    fn take(held: &mut Option<Self>, amount: u64, cost: u64, period: Nanos, now: Now) -> bool {
        let wall = now.unix / period;
        if let Some(held) = held {
            held.left |= wall < held.window;
        }
        let ends = now.mono + (wall + 1) * period - now.unix;
        let fresh = Self { window: wall, ends, uses: 0, left: false };
        let mut here = Self::uses(*held, period, now).unwrap_or(fresh);
        here.uses += cost;
        let fits = here.uses <= amount;
        if fits {
            *held = Some(here);
        }
        fits
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

    #[test]
    fn fixed_window_stays_when_the_wall_clock_steps_back(
        amount in amounts(),
        period in periods(),
        steps in steps(true, false),
    ) {
        let mut key = Key::new(amount, period, Algorithm::FixedWindow);
        let mut model = None;
        let mut walk = Walk::new(period);
        for step in &steps {
            let now = walk.step(step);
            let cost = if step.kind == 0 { amount } else { step.cost };
            let fits = Stepped::take(&mut model, amount, cost, period, now);
            prop_assert_eq!(key.take(cost, now).allowed, fits);
        }
    }

    /// The stay in the newer window lasts for one period of true time at most, and no longer
    /// than that window itself.
    #[test]
    fn a_stay_lasts_for_a_period_at_most(
        period in periods(),
        into in 0..12_u64,
        back in 1..200_u64,
    ) {
        let mut key = Key::new(1, period, Algorithm::FixedWindow);
        let start = 1_700_000_003_000_000_000 / period * period;
        let now = Now { mono: 77 * period, unix: start + period / 12 * into };
        prop_assert!(key.take(1, now).allowed);
        let stepped = Now { unix: now.unix.saturating_sub(period / 12 * back), ..now };
        prop_assert!(!key.take(1, stepped).allowed);
        prop_assert!(key.take(1, stepped.after(period)).allowed);
    }

    /// However the wall clock is stepped back, nothing weighs after two periods.
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
