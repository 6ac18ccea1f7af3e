//! Uses that are told late, and in another order than they happened: what comes of them is what
//! would have come of telling them in time, or less.

use proptest::prelude::*;
use tidegate_core::{Algorithm, Limit, LimitVerdict, Nanos, algorithms};

use crate::common::{Key, amounts, at, config, periods};

/// Uses by the order in which they are told: how long after the first moment each happened, in
/// 1/24 of the period and in nanoseconds.
fn uses() -> impl Strategy<Value = Vec<(u64, u64)>> {
    let gap = prop_oneof![3 => 0..6_u64, 3 => 0..24_u64, 1 => 0..72_u64];
    prop::collection::vec((gap, prop_oneof![2 => Just(0), 1 => 0..3_u64]), 1..40)
}

fn times(period: Nanos, uses: &[(u64, u64)]) -> Vec<Nanos> {
    // Past the time at which the clocks began, whatever the period.
    uses.iter().map(|(part, extra)| 4 * period + period / 24 * part + extra).collect()
}

/// Tells of a use at the moment that is its own, and answers when the next may come.
fn record(key: &mut Key, used_at: Nanos) -> Nanos {
    let next = algorithms::record(&key.limit, &mut key.state, 1, used_at, at(used_at)).next;
    used_at.saturating_add(next)
}

fn told(limit: Limit, times: &[Nanos]) -> Key {
    let mut key = Key::new(limit.amount, limit.period, limit.algorithm);
    for &time in times {
        record(&mut key, time);
    }
    key
}

fn sorted(times: &[Nanos]) -> Vec<Nanos> {
    let mut times = times.to_vec();
    times.sort_unstable();
    times
}

/// What is said of the key at the last of its uses, and at several moments after that.
fn afterwards(key: &mut Key, times: &[Nanos]) -> Vec<LimitVerdict> {
    let last = times.iter().max().copied().unwrap_or(0);
    let period = key.limit.period;
    [0, 1, period / 5, period / 2, period - 1, period, period + 1, 2 * period]
        .map(|span| key.peek(1, at(last + span)))
        .to_vec()
}

fn counts_everything() -> impl Strategy<Value = Algorithm> {
    prop_oneof![
        Just(Algorithm::FixedWindow),
        Just(Algorithm::SlidingWindow),
        Just(Algorithm::SlidingLog),
        amounts().prop_map(|burst| Algorithm::Smockron { burst }),
    ]
}

/// What a bucket owes at the last of these uses, told in order, in 1/period of a use.
fn owed(limit: &Limit, times: &[Nanos]) -> u128 {
    let (mut owed, mut before) = (0_u128, 0);
    for &time in times {
        let paid = u128::from(time - before) * u128::from(limit.amount);
        owed = owed.saturating_sub(paid) + u128::from(limit.period);
        before = time;
    }
    owed
}

/// How long until a bucket owes nothing.
fn paid_after(limit: &Limit, owed: u128) -> Nanos {
    u64::try_from(owed.div_ceil(limit.amount.into())).unwrap_or(Nanos::MAX)
}

proptest! {
    #![proptest_config(config(400))]

    #[test]
    fn logs_and_windows_count_each_use_where_it_belongs(
        amount in amounts(), period in periods(), algorithm in counts_everything(), uses in uses(),
    ) {
        let limit = Limit { amount, period, algorithm };
        let times = times(period, &uses);
        let mut late = told(limit, &times);
        let mut timely = told(limit, &sorted(&times));
        prop_assert_eq!(afterwards(&mut late, &times), afterwards(&mut timely, &times));
    }

    #[test]
    fn a_log_and_a_window_hold_what_a_list_holds(
        amount in amounts(), period in periods(), uses in uses(),
    ) {
        let times = times(period, &uses);
        let last = times.iter().max().copied().unwrap_or(0);
        let left = |count: usize| amount.saturating_sub(count as u64);
        let limit = Limit { amount, period, algorithm: Algorithm::SlidingLog };
        let recent = times.iter().filter(|time| last - **time < period).count();
        prop_assert_eq!(told(limit, &times).peek(1, at(last)).remaining, left(recent));
        let limit = Limit { amount, period, algorithm: Algorithm::FixedWindow };
        let window = |time: Nanos| at(time).unix / period;
        let here = times.iter().filter(|time| window(**time) == window(last)).count();
        prop_assert_eq!(told(limit, &times).peek(1, at(last)).remaining, left(here));
        let limit = Limit { amount, period, algorithm: Algorithm::SlidingWindow };
        let before = times.iter().filter(|time| window(**time) + 1 == window(last)).count();
        let weight = u128::from(period - at(last).unix % period) * before as u128;
        let used = (weight + u128::from(period) * here as u128).div_ceil(period.into());
        let left = u128::from(amount).saturating_sub(used);
        prop_assert_eq!(u128::from(told(limit, &times).peek(1, at(last)).remaining), left);
    }

    /// In order a bucket is exact; in any other order it never owes more.
    #[test]
    fn a_bucket_never_owes_more_than_in_time(
        amount in amounts(), burst in amounts(), period in periods(), uses in uses(),
    ) {
        let limit = Limit { amount, period, algorithm: Algorithm::Gcra { burst } };
        let times = times(period, &uses);
        let in_order = sorted(&times);
        let mut timely = told(limit, &in_order);
        let exact = owed(&limit, &in_order);
        let last = at(*in_order.last().unwrap());
        prop_assert_eq!(timely.peek(1, last).reset, paid_after(&limit, exact));
        let mut late = told(limit, &times);
        let both = [&mut late, &mut timely].map(|key| afterwards(key, &times));
        for (late, timely) in both[0].iter().zip(&both[1]) {
            prop_assert!(late.delay <= timely.delay && late.reset <= timely.reset);
            prop_assert!(late.remaining >= timely.remaining);
        }
    }

    /// A client that was over its limit all the time owes all of its uses, in any order.
    #[test]
    fn a_bucket_that_owed_all_the_time_is_exact(
        amount in 1..30_u64, period in periods(),
        burst in 1..30_u64, later in prop::collection::vec(any::<u64>(), 0..30),
    ) {
        let limit = Limit { amount, period, algorithm: Algorithm::Gcra { burst } };
        // A use is worth so long; the first of them keep the bucket owing until the last is told.
        let interval = period / amount;
        let start = 4 * period;
        let span = interval.saturating_mul(burst - 1).max(1);
        let mut times = vec![start; burst as usize];
        times.extend(later.iter().map(|random| start + random % span));
        let mut late = told(limit, &times);
        let in_order = sorted(&times);
        let last = at(*in_order.last().unwrap());
        prop_assert_eq!(late.peek(1, last).reset, paid_after(&limit, owed(&limit, &in_order)));
        let mut timely = told(limit, &in_order);
        prop_assert_eq!(afterwards(&mut late, &times), afterwards(&mut timely, &times));
    }

    /// What knows its last use only takes the others as of then, and never as of when it was told.
    #[test]
    fn averages_and_bookings_count_from_their_last_use(
        amount in amounts(), period in periods(), uses in uses(), which in 0..4_u8,
    ) {
        let algorithm = match which {
            0 | 1 => Algorithm::Average { strict: which == 1 },
            _ => Algorithm::Jarl { exact: which == 3 },
        };
        let limit = Limit { amount, period, algorithm };
        let times = times(period, &uses);
        let latest: Vec<Nanos> = times
            .iter()
            .scan(0, |latest, time| {
                *latest = (*time).max(*latest);
                Some(*latest)
            })
            .collect();
        let (mut late, mut timely) = (told(limit, &[]), told(limit, &[]));
        for (time, latest) in times.iter().zip(latest) {
            prop_assert_eq!(record(&mut late, *time).max(latest), record(&mut timely, latest));
            prop_assert_eq!(&late.state, &timely.state);
        }
    }

    /// One record of several uses counts as that many records of one use. Exceptions: `average`
    /// rounds differently, `jarl` books the callers of one record together, and a bucket that
    /// learns of uses from before its debt began remembers more of them together than one by one.
    #[test]
    fn a_record_of_several_uses_is_several_records(
        amount in amounts(), period in periods(), algorithm in counts_everything(), uses in uses(),
        costs in prop::collection::vec(1..9_u64, 40), bucket in any::<bool>(),
    ) {
        let algorithm = if bucket { Algorithm::Gcra { burst: amount } } else { algorithm };
        let limit = Limit { amount, period, algorithm };
        let (mut whole, mut single) = (told(limit, &[]), told(limit, &[]));
        let times = times(period, &uses);
        let times = if bucket { sorted(&times) } else { times };
        for (&time, &cost) in times.iter().zip(&costs) {
            let recorded = algorithms::record(&limit, &mut whole.state, cost, time, at(time));
            let next = (0..cost).map(|_| record(&mut single, time)).last();
            prop_assert_eq!(Some(time.saturating_add(recorded.next)), next);
            prop_assert_eq!(&whole.state, &single.state);
        }
    }

    /// Whoever keeps to the rate is not delayed, however late and in whatever order it is told.
    #[test]
    fn whoever_keeps_to_the_rate_is_not_delayed(
        amount in 1..20_u64, count in 1..60_u64, order in prop::collection::vec(any::<u16>(), 60),
        which in 0..6_u8,
    ) {
        let period = 12_000_000_000;
        let algorithm = match which {
            0 => Algorithm::Gcra { burst: amount },
            1 => Algorithm::FixedWindow,
            2 => Algorithm::SlidingWindow,
            3 => Algorithm::SlidingLog,
            4 => Algorithm::Smockron { burst: amount },
            _ => Algorithm::Average { strict: true },
        };
        let limit = Limit { amount, period, algorithm };
        let mut key = told(limit, &[]);
        let step = 2 * period / amount;
        let mut times: Vec<(u16, Nanos)> =
            order.iter().zip(0..count).map(|(order, n)| (*order, 4 * period + n * step)).collect();
        let now = at(4 * period + count * step);
        if which < 5 {
            times.sort_unstable();
        }
        for (_, time) in times {
            prop_assert!(record(&mut key, time) <= now.mono);
        }
        prop_assert!(key.peek(1, now).allowed);
    }
}
