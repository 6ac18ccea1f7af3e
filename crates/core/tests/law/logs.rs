//! `sliding-log`, `jarl` and `smockron` against lists of all that ever happened.

use std::collections::VecDeque;

use proptest::prelude::*;
use tidegate_core::{Algorithm, Nanos, Op};

use crate::common::{Key, Walk, amounts, config, periods, steps};

/// No window of `period`, open at its start, holds more than `amount`.
fn never_more_than(uses: &[(Nanos, u64)], amount: u64, period: Nanos) -> bool {
    uses.iter().all(|&(end, _)| {
        let inside = uses.iter().filter(|&&(at, _)| at <= end && end - at < period);
        inside.map(|(_, cost)| cost).sum::<u64>() <= amount
    })
}

proptest! {
    #![proptest_config(config(300))]

    #[test]
    fn sliding_log_counts_the_last_period(
        amount in amounts(),
        period in periods(),
        steps in prop_oneof![steps(true, true), steps(true, false)],
    ) {
        let mut key = Key::new(amount, period, Algorithm::SlidingLog);
        let mut uses: Vec<(Nanos, u64)> = Vec::new();
        let mut all = Vec::new();
        let late = steps.iter().any(|step| step.late > 0);
        let mut walk = Walk::new(period);
        for step in &steps {
            let now = walk.step(step);
            let time = uses.last().map_or(now.mono, |last| last.0.max(now.mono));
            let recent = uses.iter().filter(|(at, _)| time - at < period);
            let used: u64 = recent.map(|(_, cost)| cost).sum();
            let cost = if step.kind == 0 { amount } else { step.cost };
            let verdict = key.take(cost, now);
            prop_assert_eq!(verdict.allowed, used + cost <= amount);
            if verdict.allowed {
                uses.push((time, cost));
                all.push((time, cost));
            } else if used == 0 {
                // All is forgotten, and the time with it.
                uses.clear();
            }
        }
        // A reading that comes late to a forgotten key is the one thing that nobody can see.
        prop_assert!(late || never_more_than(&all, amount, period));
    }

    /// The document, word for word, in f64 seconds.
    #[test]
    fn jarl_is_the_documents_formula(
        requests in 1..12_u64,
        period in periods(),
        steps in steps(true, true),
    ) {
        let mut key = Key::new(requests, period, Algorithm::Jarl { exact: false });
        let base = (period as f64 / 1e9 / requests as f64).max(0.01);
        let mut held: VecDeque<Nanos> = VecDeque::new();
        let mut backoff = 0;
        let mut walk = Walk::new(period);
        for step in &steps {
            let now = walk.step(step);
            let time = held.back().map_or(now.mono, |last| now.mono.max(*last));
            let cost = if step.kind % 4 == 0 { step.cost.min(requests) } else { 1 };
            let mut delay = 0.0;
            for _ in 0..cost {
                held.push_back(time);
                delay = 0.0;
                let mut full = false;
                if held.len() as u64 > requests {
                    let d = time - held.pop_front().unwrap();
                    if d < period {
                        full = true;
                        backoff += 1;
                        delay = base * f64::from(backoff) + (period - d) as f64 / 1e9;
                    }
                }
                if !full {
                    backoff = 0;
                }
            }
            let verdict = key.take(cost, now);
            prop_assert_eq!(verdict.allowed, delay == 0.0);
            let told = verdict.delay as f64 / 1e9;
            prop_assert!((told - delay).abs() <= 2e-9 + delay * 1e-12, "{} {}", told, delay);
        }
    }

    #[test]
    fn jarl_exact_books_starts(
        requests in 1..12_u64,
        period in periods(),
        steps in steps(true, true),
    ) {
        let mut key = Key::new(requests, period, Algorithm::Jarl { exact: true });
        let mut starts: Vec<Nanos> = Vec::new();
        let mut latest = 0;
        let mut walk = Walk::new(period);
        for step in &steps {
            let now = walk.step(step);
            latest = now.mono.max(latest);
            let before = starts.len().checked_sub(requests as usize).map(|index| starts[index]);
            let start = before.map_or(latest, |start| latest.max(start + period));
            let peeked = key.peek(1, now);
            let verdict = key.take(1, now);
            prop_assert_eq!(verdict.delay, if start == latest { 0 } else { start - now.mono });
            prop_assert_eq!(verdict.allowed, verdict.delay == 0);
            prop_assert_eq!(peeked.delay, verdict.delay);
            starts.push(start);
        }
        let starts: Vec<_> = starts.into_iter().map(|start| (start, 1)).collect();
        prop_assert!(never_more_than(&starts, requests, period));
    }

    /// Several uses that start together: still no window with too many.
    #[test]
    fn jarl_exact_holds_with_costs(
        requests in 1..12_u64,
        period in periods(),
        steps in steps(true, false),
    ) {
        let mut key = Key::new(requests, period, Algorithm::Jarl { exact: true });
        let mut starts: Vec<(Nanos, u64)> = Vec::new();
        let mut walk = Walk::new(period);
        for step in &steps {
            let now = walk.step(step);
            let cost = step.cost.min(requests);
            starts.push((now.mono + key.take(cost, now).delay, cost));
        }
        prop_assert!(never_more_than(&starts, requests, period));
    }

    /// The document, word for word, in whole multiples of 1/amount nanoseconds.
    #[test]
    fn smockron_is_the_documents_rule(
        amount in amounts(),
        burst in 1..8_u64,
        period in periods(),
        steps in steps(true, true),
    ) {
        let mut key = Key::new(amount, period, Algorithm::Smockron { burst });
        let scaled = |at: Nanos| i128::from(at) * i128::from(amount);
        let mut history: Vec<Nanos> = Vec::new();
        let mut next = 0_i128;
        let mut latest = 0;
        let mut walk = Walk::new(period);
        for step in &steps {
            let now = walk.step(step);
            let time = now.mono.max(latest);
            let record = step.kind % 4 == 0;
            let used_at = match step.kind / 4 % 3 {
                0 => now.mono,
                1 => now.mono - step.cost * 1000,
                _ => now.mono + period / 4 * step.cost,
            };
            let op = if record { Op::Record { cost: 1, at: used_at } } else { Op::Take(1) };
            let allowed = scaled(time) >= next;
            let verdict = key.ask(op, now);
            prop_assert_eq!(verdict.allowed, allowed || record);
            if verdict.allowed {
                latest = time;
                history.push(if record { used_at } else { time });
                history.sort_unstable();
                let since = scaled(time) - i128::from(burst) * i128::from(period);
                let recent = history.iter().filter(|at| scaled(**at) > since).count() as u64;
                let start = history[history.len() - 1].max(time);
                next = if recent < burst { 0 } else { scaled(start) + i128::from(period) };
                if recent == 0 {
                    // All is forgotten, and the time with it.
                    latest = 0;
                    history.clear();
                }
            }
            // The first whole nanosecond at which the next use is allowed.
            let wait = (next - scaled(now.mono)).max(0) as u128;
            let open = scaled(now.mono.max(latest)) >= next;
            let wait = if open { 0 } else { wait.div_ceil(u128::from(amount)) as u64 };
            prop_assert_eq!(key.peek(1, now).delay, wait);
            if record {
                prop_assert_eq!(verdict.delay, wait);
            }
        }
    }
}
