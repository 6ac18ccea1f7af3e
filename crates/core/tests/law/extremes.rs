//! The largest amounts, periods, costs and times: arithmetic saturates and nothing panics.

use proptest::prelude::*;
use tidegate_core::limit::{AMOUNT_MAX, Limit, PERIOD_MAX, PERIOD_MIN};
use tidegate_core::{Now, Op, State};

use crate::common::{Key, any_algorithm, config};

fn extreme() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..3_u64,
        Just(AMOUNT_MAX - 1),
        Just(AMOUNT_MAX),
        Just(AMOUNT_MAX + 1),
        Just(PERIOD_MAX),
        Just(u64::MAX / 2),
        u64::MAX - 2..=u64::MAX,
        any::<u64>(),
    ]
}

fn limits() -> impl Strategy<Value = Limit> {
    let amount = || prop_oneof![Just(1), Just(2), Just(AMOUNT_MAX), 1..AMOUNT_MAX];
    let algorithm = any_algorithm(amount());
    let period = prop_oneof![Just(PERIOD_MIN), Just(PERIOD_MAX), PERIOD_MIN..PERIOD_MAX];
    (amount(), period, algorithm).prop_map(|(amount, period, algorithm)| Limit {
        amount,
        period,
        algorithm,
    })
}

fn ops() -> impl Strategy<Value = Op> {
    prop_oneof![
        extreme().prop_map(Op::Peek),
        extreme().prop_map(Op::Take),
        extreme().prop_map(Op::TakeUpTo),
        (extreme(), extreme()).prop_map(|(cost, at)| Op::Record { cost, at }),
        extreme().prop_map(Op::Refund),
        (extreme(), extreme(), extreme())
            .prop_map(|(cost, mono, unix)| Op::Release { cost, started: Now { mono, unix } }),
    ]
}

proptest! {
    #![proptest_config(config(1500))]

    /// Clocks that leap anywhere, forwards and back: every answer is still an answer.
    #[test]
    fn nothing_panics(
        limit in limits(),
        steps in prop::collection::vec((ops(), extreme(), extreme()), 1..40),
        offset in any::<i64>(),
    ) {
        let mut key = Key::new(limit.amount, limit.period, limit.algorithm);
        for (op, mono, unix) in steps {
            let now = Now { mono, unix };
            let verdict = key.ask(op, now);
            prop_assert!(verdict.remaining <= limit.capacity());
            prop_assert!(verdict.rate.is_finite() && verdict.rate >= 0.0);
            prop_assert!(!verdict.allowed || op.least() <= limit.capacity());
            let mut bytes = Vec::new();
            key.state.encode(&mut bytes);
            prop_assert_eq!(&State::decode(&bytes).unwrap(), &key.state);
            let mut moved = key.clone();
            moved.state.shift(offset);
            moved.ask(op, now);
        }
    }

    /// With the clock standing still, what fits at once is all there ever is.
    #[test]
    fn a_clock_that_stands_still_gives_nothing_back(
        limit in limits(),
        mono in extreme(),
        unix in extreme(),
        costs in prop::collection::vec(extreme(), 1..20),
    ) {
        let now = Now { mono, unix };
        let mut key = Key::new(limit.amount, limit.period, limit.algorithm);
        let mut used = 0_u64;
        for cost in costs.into_iter().filter(|cost| *cost > 0) {
            if key.take(cost, now).allowed {
                used = used.saturating_add(cost);
            }
            prop_assert!(used <= limit.capacity());
        }
    }
}
