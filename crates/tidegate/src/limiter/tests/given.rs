//! Limits that requests bring themselves: counted under the door's rule for given limits, exact to
//! the nanosecond, and overruled by every rule that matches.

use tidegate_core::limit::AMOUNT_MAX;
use tidegate_core::time::SECOND;

use super::super::Outcome;
use super::stores::{at, node};
use super::*;
use crate::stores::remote::engines::redis;
use crate::stores::remote::settings::StoreKind;

/// `amount` uses per `seconds`, `burst` at once.
fn given(burst: u64, amount: u64, seconds: u64) -> Limit {
    limit(amount, seconds * SECOND, Algorithm::Throttle { burst })
}

fn with_given(mut rules: Vec<Rule>) -> Vec<Rule> {
    rules.push(Rule::of_given_limits("resp:throttle"));
    rules
}

/// A handle of the only door whose requests bring limits.
fn door(rules: Vec<Rule>, settings: memory::Settings) -> LimiterHandle {
    limiter(with_given(rules), settings).handle(Door::Resp)
}

fn decide(handle: &LimiterHandle, key: &str, op: KeyOp, limit: &Limit) -> (Verdict, Rows) {
    let keys = [Key::new(key.as_bytes(), op).limited_by(limit)];
    let request = Request::all_or_nothing(&keys).with_end();
    let mut rows = Rows::default();
    let decided = handle.decide_async(&request, handle.now(), &mut rows);
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    (runtime.block_on(decided).expect("a valid request"), rows)
}

/// The five numbers of an answer to `CL.THROTTLE`.
fn five_numbers(handle: &LimiterHandle, key: &str, quantity: i64, limit: &Limit) -> [i64; 5] {
    let op = match quantity {
        0 => KeyOp::Peek(0),
        1.. => KeyOp::Take(quantity as u64),
        _ => {
            let cost = quantity.unsigned_abs();
            KeyOp::Refund { cost, taken: handle.now(), in_flight: true }
        }
    };
    let mut verdict = decide(handle, key, op, limit).0;
    if quantity < 0 {
        let until_given_back = verdict.delay;
        verdict = decide(handle, key, KeyOp::Peek(0), limit).0;
        assert_eq!(verdict.is_allowed(), until_given_back == 0);
        verdict.delay = until_given_back;
    }
    let limited = !verdict.is_allowed();
    let seconds = |span: Nanos| span.div_ceil(SECOND) as i64;
    let retry = match limited {
        true if verdict.delay != Nanos::MAX => seconds(verdict.delay),
        _ => -1,
    };
    let Verdict { capacity, remaining, reset, .. } = verdict;
    [limited.into(), capacity as i64, remaining as i64, retry, seconds(reset)]
}

#[test]
fn a_rule_that_matches_decides_alone_and_other_doors_have_no_such_limits() {
    let handle = door(vec![rule("k", vec![fixed(1)])], ROOMY);
    let roomy = given(100, 100, 60);
    assert_eq!(decide(&handle, "k a", KeyOp::Take(1), &roomy).0.amount, 1);
    let (verdict, rows) = decide(&handle, "k a", KeyOp::Take(1), &roomy);
    assert_eq!((verdict.outcome, rows.refused_by.as_deref()), (Outcome::Refused, Some("k")));
    let (verdict, rows) = decide(&handle, "x", KeyOp::Take(100), &roomy);
    assert_eq!((verdict.outcome, verdict.amount), (Outcome::Allowed, 100));
    assert_eq!(&*rows.limits[0].rule, "resp:throttle");
    let (verdict, rows) = decide(&handle, "x", KeyOp::Take(1), &roomy);
    assert_eq!(rows.refused_by.as_deref(), Some("resp:throttle"));
    assert_eq!(verdict.outcome, Outcome::Refused);
    let other = handle.limiter().handle(Door::Http);
    assert_eq!(decide(&other, "x", KeyOp::Take(1), &roomy).0.outcome, Outcome::NoRule);
}

#[test]
fn what_is_given_survives_a_reload_and_is_swept_when_it_says_nothing() {
    let handle = door(Vec::new(), ROOMY);
    let (limiter, limit) = (handle.limiter(), given(2, 1, 10));
    decide(&handle, "x", KeyOp::Take(2), &limit);
    limiter.install(RuleSet::new(with_given(vec![rule("new", vec![fixed(1)])]), None));
    assert!(!decide(&handle, "x", KeyOp::Take(1), &limit).0.is_allowed());
    assert_eq!(limiter.size().keys, 1);
    limiter.clock().advance(2 * DAY);
    limiter.sweep(1 << 20);
    assert_eq!(limiter.size().keys, 0);
}

#[test]
fn a_full_table_refuses_new_keys() {
    let handle = door(Vec::new(), memory::Settings { max_keys: 1, max_bytes: 1 << 20 });
    let limit = given(5, 1, 10);
    assert!(decide(&handle, "x", KeyOp::Take(1), &limit).0.is_allowed());
    assert!(!decide(&handle, "y", KeyOp::Take(1), &limit).0.is_allowed());
    assert!(decide(&handle, "x", KeyOp::Take(1), &limit).0.is_allowed());
}

#[test]
fn a_remote_store_counts_them_as_memory_does() {
    let server = redis::Server::start(&[]);
    let there = node(
        Clock::manual(START),
        with_given(Vec::new()),
        &at(StoreKind::Redis, vec![server.url()]),
    )
    .handle(Door::Resp);
    let here = door(Vec::new(), ROOMY);
    let limits = [given(3, 7, 60), given(3, 5, 60), given(1, 1, 3600)];
    for (step, quantity) in [1, 2, 1, -1, 1, 0, 3, -9, 3, 1].into_iter().enumerate() {
        for handle in [&here, &there] {
            handle.limiter().clock().advance(SECOND / 3);
        }
        let limit = &limits[step % limits.len()];
        let said = five_numbers(&here, "x", quantity, limit);
        assert_eq!(five_numbers(&there, "x", quantity, limit), said, "step {step}");
    }
}

proptest! {
    #![proptest_config(many_cases())]

    /// The bucket against exact fractions: what is owed, in units that every amount divides.
    #[test]
    fn a_bucket_is_exact(
        amounts in prop::collection::vec(1..12_u64, 1..3),
        steps in prop::collection::vec((0..3_usize, 1..6_u64, wait(), any::<bool>()), 1..60),
    ) {
        /// All amounts divide it: a nanosecond has so many parts.
        const PARTS: u128 = 27_720;
        let handle = door(Vec::new(), ROOMY);
        let limit_of = |index: usize| {
            let amount = amounts[index % amounts.len()];
            given(4 + amount % 3, amount, 7)
        };
        // When the bucket is empty, in parts of a nanosecond, and the amount it was written by.
        let (mut empty, mut written) = (0_u128, 0);
        for (index, cost, pause, refund) in steps {
            handle.limiter().clock().advance(pause);
            let (limit, now) = (limit_of(index), u128::from(handle.now().mono) * PARTS);
            let known = match written == limit.amount {
                true => empty,
                false => empty.next_multiple_of(PARTS),
            };
            let one = u128::from(limit.period) * PARTS / u128::from(limit.amount);
            let owed = known.saturating_sub(now);
            let capacity = one * u128::from(limit.capacity());
            let quantity = if refund { -(cost as i64) } else { cost as i64 };
            let said = five_numbers(&handle, "x", quantity, &limit);
            let cost = one * u128::from(cost);
            let wanted = if refund { owed.saturating_sub(cost) } else { owed + cost };
            let allowed = wanted <= capacity;
            let after = if allowed { wanted } else { owed };
            if allowed {
                (empty, written) = (now + after, limit.amount);
            }
            let seconds = |parts: u128| parts.div_ceil(PARTS).div_ceil(u128::from(SECOND)) as i64;
            let never = allowed || !refund && cost > capacity;
            let retry = if never { -1 } else { seconds(wanted - capacity) };
            let remaining = (capacity.saturating_sub(after) / one) as i64;
            let (limited, most) = (i64::from(!allowed), limit.capacity() as i64);
            prop_assert_eq!(said, [limited, most, remaining, retry, seconds(after)]);
        }
    }
}

#[test]
fn the_largest_numbers_neither_wrap_nor_pass() {
    let handle = door(Vec::new(), ROOMY);
    let slow =
        limit(1, tidegate_core::limit::PERIOD_MAX, Algorithm::Throttle { burst: AMOUNT_MAX });
    let (verdict, _) = decide(&handle, "x", KeyOp::Take(AMOUNT_MAX), &slow);
    assert_eq!((verdict.outcome, verdict.delay), (Outcome::Refused, Nanos::MAX), "no such moment");
    assert!(decide(&handle, "x", KeyOp::Take(1), &slow).0.is_allowed());
    let quick = limit(AMOUNT_MAX, SECOND, Algorithm::Throttle { burst: AMOUNT_MAX });
    assert!(decide(&handle, "y", KeyOp::Take(AMOUNT_MAX), &quick).0.is_allowed());
    assert!(!decide(&handle, "y", KeyOp::Take(1), &quick).0.is_allowed());
}
