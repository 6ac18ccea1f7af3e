//! With room for every key the limiter says exactly what the plain law says, in both directions,
//! and its fast path says what the general path says.

use super::*;

#[derive(Clone, Debug)]
struct Step {
    keys: Vec<u8>,
    op: Op,
    wait: Nanos,
}

fn step() -> impl Strategy<Value = Step> {
    let op = prop_oneof![
        6 => Just(Op::Take(1)),
        1 => (1..3u64).prop_map(Op::Take),
        1 => (1..3u64).prop_map(Op::Peek),
        1 => (1..9u64).prop_map(Op::TakeUpTo),
    ];
    let keys = prop::collection::vec(0..5u8, 1..5);
    (keys, op, wait()).prop_map(|(keys, op, wait)| Step { keys, op, wait })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 1..120)
}

fn fits(limits: &[Limit], op: Op) -> bool {
    matches!(op, Op::TakeUpTo(_)) || limits.iter().all(|limit| op.cost() <= limit.capacity())
}

/// What a verdict shows: the first limit that refuses, else the one nearest its amount.
fn shown_of(limits: &[Limit], judged: &[Judgement]) -> (bool, f64, u64, Nanos) {
    let refusing = judged.iter().position(|judged| !judged.allowed);
    let mut shown = 0;
    for (at, (limit, judged_here)) in limits.iter().zip(judged).enumerate() {
        let share = |limit: &Limit, judged: &Judgement| judged.rate / limit.amount as f64;
        if share(limit, judged_here) > share(&limits[shown], &judged[shown]) {
            shown = at;
        }
    }
    let shown = refusing.unwrap_or(shown);
    let Limit { amount, period, .. } = limits[shown];
    (refusing.is_none(), judged[shown].rate, amount, period)
}

/// Every operation of a door but those that give back. The moment of a record counts from one
/// period ago.
fn any_op() -> impl Strategy<Value = KeyOp> {
    let cost = || prop_oneof![4 => Just(1_u64), 1 => 1..4_u64];
    let booking_max = prop_oneof![Just(0), 0..3 * PERIOD, Just(Nanos::MAX)];
    let attempt = (cost(), booking_max, any::<bool>(), any::<bool>()).prop_map(
        |(cost, booking_max, waited, first_in_line)| WaitAttempt {
            cost,
            booking_max,
            waited,
            first_in_line,
        },
    );
    let late = prop_oneof![4 => Just(0), 1 => 0..PERIOD];
    prop_oneof![
        6 => cost().prop_map(KeyOp::Take),
        6 => attempt.prop_map(KeyOp::TakeOrLeave),
        1 => cost().prop_map(KeyOp::Peek),
        1 => (1..9_u64).prop_map(KeyOp::TakeUpTo),
        1 => cost().prop_map(KeyOp::Refuse),
        2 => (1..9_u64, 0..2 * PERIOD, late)
            .prop_map(|(cost, at, late)| KeyOp::Record { cost, at, late }),
    ]
}

fn limit_of_any_kind() -> impl Strategy<Value = Limit> {
    let in_flight = (1..6_u64, any::<bool>()).prop_map(|(amount, per_window)| {
        let period = if per_window { PERIOD } else { 0 };
        limit(amount, period, Algorithm::InFlight { per_window })
    });
    prop_oneof![4 => any_limit(), 1 => in_flight]
}

/// Mostly one limit: the fast path leaves all others to the general path.
fn limits_for_paths() -> impl Strategy<Value = Vec<Limit>> {
    prop_oneof![
        4 => prop::collection::vec(limit_of_any_kind(), 1..2),
        1 => prop::collection::vec(limit_of_any_kind(), 2..4),
    ]
}

/// Requests wait for the count of the key 0.
struct OneLine;

impl Waiters for OneLine {
    fn is_free(&self, count: &Count<'_>) -> bool {
        count.name != name(0)
    }

    fn freed(&self, _: &Count<'_>) {}

    fn freed_anywhere(&self, _: u32) {}

    fn renewed(&self, _: &Limiter) {}
}

/// The verdict on one key, by the way that is taken with or without rows.
fn decide_by(
    handle: &LimiterHandle,
    key: Key<'_>,
    can_end: bool,
    rows: Option<&mut Rows>,
) -> Result<Verdict, InvalidRequest> {
    let keys = [key];
    let request = Request { can_end, ..Request::all_or_nothing(&keys) };
    handle.decide(&request, handle.now(), rows).map(|decided| decided.ready().expect("in memory"))
}

/// Whether a caller that goes early breaks a limit, by what each limit says.
fn is_firm(verdict: &Verdict, rows: &Rows, shadow: bool) -> bool {
    let firmly = |row: &LimitRow| {
        let promises = row.limit.algorithm != Algorithm::Jarl { exact: false };
        promises && row.verdict.delay == verdict.delay
    };
    !shadow && verdict.delay > 0 && rows.limits.iter().any(firmly)
}

proptest! {
    #![proptest_config(many_cases())]

    #[test]
    fn a_request_of_several_keys_is_decided_as_the_law_says(
        limits in prop::collection::vec(any_limit(), 1..4),
        steps in steps(),
    ) {
        let handle = handle(vec![rule("k", limits.clone())]);
        let mut model = Model::new(&limits);
        for Step { keys, op, wait } in steps {
            handle.limiter().clock().advance(wait);
            let now = handle.now();
            let names = names(&keys);
            let answer = decide_all(&handle, &borrowed(&names), op, now);
            if !fits(&limits, op) {
                let invalid = matches!(answer, Err(InvalidRequest::CostAboveLimit { .. }));
                prop_assert!(invalid, "{:?}", answer);
                continue;
            }
            let answer = answer.expect("a valid request");
            let (allowed, judged) = model.decide(&keys, op, now);
            prop_assert_eq!(answer.is_allowed(), allowed);
            prop_assert_eq!(answer.refused_by().is_none(), allowed);
            prop_assert_eq!(answer.rows.limits.len(), judged.len() * limits.len());
            let said = answer.rows.limits.chunks(limits.len());
            for ((key, judged), said) in judged.iter().zip(said) {
                let states = &model.states[key];
                for (at, (judgement, said)) in judged.iter().zip(said).enumerate() {
                    let verdict =
                        algorithms::explain(&limits[at], &states[at], op, judgement, now);
                    prop_assert_eq!(keys[said.key], *key);
                    prop_assert_eq!(said.verdict, verdict);
                }
            }
        }
    }

    #[test]
    fn a_verdict_shows_the_limit_that_the_law_says(
        limits in prop::collection::vec(any_limit(), 1..4),
        steps in steps(),
    ) {
        let handle = handle(vec![rule("k", limits.clone())]);
        let mut model = Model::new(&limits);
        for Step { keys, op, wait } in steps {
            handle.limiter().clock().advance(wait);
            let now = handle.now();
            for key in keys {
                let verdict = decide_one(&handle, &name(key), op, now);
                if !fits(&limits, op) {
                    prop_assert!(verdict.is_err());
                    continue;
                }
                let verdict = verdict.expect("a valid request");
                let (_, judged) = model.decide(&[key], op, now);
                let shown = (verdict.is_allowed(), verdict.rate, verdict.amount, verdict.period);
                prop_assert_eq!(shown, shown_of(&limits, &judged[0].1));
            }
        }
    }

    /// One key without rows, a batch, and one key with rows, which the general path decides: the
    /// same verdicts, statistics, metrics and later answers.
    #[test]
    fn the_fast_path_says_writes_and_counts_what_the_general_path_does(
        limits in limits_for_paths(),
        shadow: bool,
        steps in prop::collection::vec(
            (prop::collection::vec(0..5_u8, 1..4), any_op(), wait()),
            1..80,
        ),
    ) {
        let rules = || vec![Rule { shadow, ..rule("k", limits.clone()) }];
        let handles: [LimiterHandle; 3] = [0, 1, 2].map(|_| handle(rules()));
        let [single, batch, general] = &handles;
        handles.iter().for_each(|handle| handle.limiter().set_waiters(Arc::new(OneLine)));
        // A batch comes from doors that cannot tell the end of a use.
        let can_end = limits.iter().any(Limit::ends);
        for (keys, op, wait) in steps {
            handles.iter().for_each(|handle| handle.limiter().clock().advance(wait));
            let now = single.now();
            let op = match op {
                KeyOp::Record { cost, at, late } => {
                    KeyOp::Record { cost, at: now.mono - PERIOD + at, late }
                }
                op => op,
            };
            let names = names(&keys);
            let asked: Vec<Key<'_>> = names.iter().map(|name| Key::new(name, op)).collect();
            let mut of_batch = Vec::new();
            if !can_end {
                batch.decide_batch(&asked, now, &mut of_batch);
            }
            for (at, key) in asked.into_iter().enumerate() {
                let mut rows = Rows::default();
                let expected = decide_by(general, key, can_end, Some(&mut rows));
                prop_assert_eq!(decide_by(single, key, can_end, None), expected);
                let of_batch = match can_end {
                    true => decide_by(batch, key, can_end, None),
                    false => {
                        let decided = of_batch[at].as_ref().map_err(|invalid| *invalid);
                        decided.map(|decided| match decided {
                            Decision::Ready(verdict) => *verdict,
                            Decision::Pending(_) => panic!("counts lie in memory"),
                        })
                    }
                };
                prop_assert_eq!(of_batch, expected);
                if let (Ok(verdict), KeyOp::Take(_) | KeyOp::Peek(_)) = (expected, op) {
                    prop_assert_eq!(verdict.firm, is_firm(&verdict, &rows, shadow));
                }
            }
            for key in (0..5).filter(|_| statistics_stay(now)) {
                let stats = general.limiter().stats(&name(key), now);
                prop_assert_eq!(single.limiter().stats(&name(key), now), stats);
                prop_assert_eq!(batch.limiter().stats(&name(key), now), stats);
            }
        }
        prop_assert_eq!(counted(single), counted(general));
        prop_assert_eq!(counted(batch), counted(general));
        let all: Vec<_> = (0..5).map(name).collect();
        let later = |handle| decide_held(handle, &borrowed(&all), Op::Peek(1), single.now());
        prop_assert_eq!(later(single), later(general));
        prop_assert_eq!(later(batch), later(general));
    }
}
