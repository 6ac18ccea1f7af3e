//! `gcra` against a bucket of tokens, `average` against the formula of its document.

use proptest::prelude::*;
use tidegate_core::{Algorithm, Nanos};

use crate::common::{Key, Walk, amounts, config, periods, steps};

/// A bucket that is filled and emptied, in 1/period of a token.
struct Bucket {
    tokens: u128,
    at: Nanos,
}

proptest! {
    #![proptest_config(config(300))]

    #[test]
    fn gcra_is_a_bucket_of_tokens(
        amount in amounts(),
        burst in amounts(),
        period in periods(),
        steps in steps(true, true),
    ) {
        let mut key = Key::new(amount, period, Algorithm::Gcra { burst });
        let full = u128::from(burst) * u128::from(period);
        let mut bucket = Bucket { tokens: full, at: 0 };
        let mut walk = Walk::new(period);
        for step in &steps {
            let now = walk.step(step);
            let time = now.mono.max(bucket.at);
            let filled = u128::from(time - bucket.at) * u128::from(amount);
            let tokens = (bucket.tokens + filled).min(full);

            let cost = if step.kind == 0 { burst } else { step.cost };
            let wanted = u128::from(cost) * u128::from(period);
            let verdict = key.take(cost, now);
            prop_assert_eq!(verdict.allowed, wanted <= tokens);
            let left = if verdict.allowed { tokens - wanted } else { tokens };
            prop_assert_eq!(u128::from(verdict.remaining), left / u128::from(period));
            // What is refused leaves no trace, not even the time at which it was asked for.
            // Once full, the bucket is forgotten, and the time with it.
            if verdict.allowed {
                bucket = Bucket { tokens: left, at: time };
            } else if tokens == full {
                bucket = Bucket { tokens: full, at: 0 };
            }
        }
    }

    #[test]
    fn average_is_its_documents_formula(
        amount in 1..30_u64,
        period in periods(),
        strict in any::<bool>(),
        steps in steps(true, true),
    ) {
        let mut key = Key::new(amount, period, Algorithm::Average { strict });
        let mut memory: Option<(Nanos, f64)> = None;
        let mut walk = Walk::new(period);
        for step in &steps {
            let now = walk.step(step);
            let verdict = key.take(1, now);
            let past = memory.filter(|&(t0, rate)| {
                let age = now.mono.saturating_sub(t0) as f64;
                age <= period as f64 * (20.0 + (1.0 + rate).ln())
            });
            let time = past.map_or(now.mono, |(t0, _)| t0.max(now.mono));
            let rate = past.map_or(0.0, |(t0, rate)| {
                let interval = time - t0;
                let x = interval as f64 / period as f64;
                let a = (-x).exp();
                // The formula as it is written loses its digits where x is small: there, the
                // first terms of its series.
                let fresh = if x < 1e-4 { 1.0 - x / 2.0 + x * x / 6.0 } else { (1.0 - a) / x };
                if interval <= 1 { rate + 1.0 } else { fresh + a * rate }
            });
            // Where the two are as good as equal, what was decided is taken over.
            prop_assert!((verdict.rate - rate).abs() < 1e-9, "{} {}", verdict.rate, rate);
            if (rate - amount as f64).abs() > 1e-9 {
                prop_assert_eq!(verdict.allowed, rate < amount as f64);
            }
            if verdict.allowed || strict {
                memory = Some((time, verdict.rate));
            }
        }
    }

    /// A use of cost n is n uses at one instant.
    #[test]
    fn average_costs_are_single_uses(
        amount in 1..40_u64,
        before in 0..40_u64,
        gap in 0..3_000_000_u64,
        cost in 1..40_u64,
    ) {
        let mut whole = Key::new(amount, 1_000_000, Algorithm::Average { strict: false });
        let now = crate::common::at(5_000_000);
        for _ in 0..before {
            whole.take(1, now);
        }
        let mut single = whole.clone();
        let later = now.after(gap);
        let verdict = whole.take(cost, later);
        let all = (0..cost).all(|_| single.take(1, later).allowed);
        prop_assert_eq!(verdict.allowed, all);
        if all {
            prop_assert!((whole.take(1, later).rate - single.take(1, later).rate).abs() < 1e-9);
        }
    }
}
