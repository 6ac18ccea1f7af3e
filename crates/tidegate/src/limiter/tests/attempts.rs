//! A try takes what a use would take, or leaves no trace at all.

use super::*;
use crate::limiter::Outcome as Decided;

/// What is compared of a verdict: its outcome, its delay, and how long it is booked to wait.
type Said = (Decided, Nanos, Nanos);

fn attempt(
    handle: &LimiterHandle,
    key: &[u8],
    attempt: WaitAttempt,
    can_end: bool,
) -> Result<Verdict, InvalidRequest> {
    let keys = [Key::new(key, KeyOp::TakeOrLeave(attempt))];
    let request = Request { can_end, ..Request::all_or_nothing(&keys) };
    Ok(handle.decide(&request, handle.now(), None)?.ready().expect("in memory"))
}

const FIRST: WaitAttempt =
    WaitAttempt { cost: 1, booking_max: 0, waited: false, first_in_line: true };

#[derive(Clone, Debug)]
enum Step {
    Try { key: u8, cost: u64, booking_max: Nanos },
    Use { key: u8 },
    Pass(Nanos),
}

fn step() -> impl Strategy<Value = Step> {
    let booking_max = prop_oneof![Just(0), 0..3 * PERIOD, Just(Nanos::MAX)];
    prop_oneof![
        5 => (0..3u8, 1..3u64, booking_max)
            .prop_map(|(key, cost, booking_max)| Step::Try { key, cost, booking_max }),
        2 => (0..3u8).prop_map(|key| Step::Use { key }),
        2 => wait().prop_map(Step::Pass),
    ]
}

/// What a try must say, and whether it takes.
fn expected(model: &mut Model, key: u8, cost: u64, booking_max: Nanos, now: Now) -> Said {
    let judged = model.judge(key, Op::Take(cost), now);
    let against: Vec<_> = judged.iter().filter(|judged| !judged.allowed).collect();
    let booked = against.iter().map(|judged| judged.booked).max().unwrap_or(0);
    if against.iter().any(|judged| judged.booked == 0) {
        let states = &model.states[&key];
        let delays = model
            .limits
            .iter()
            .zip(states)
            .zip(&judged)
            .filter(|(_, judged)| !judged.allowed && judged.booked == 0);
        let delay = delays.map(|((limit, state), _)| {
            let peek = algorithms::judge(limit, state, Op::Peek(cost), now);
            algorithms::explain(limit, state, Op::Peek(cost), &peek, now).delay
        });
        return (Decided::Later, delay.max().unwrap_or(0), 0);
    }
    if booked > booking_max {
        return (Decided::TooLong, booked, 0);
    }
    model.apply(key, Op::Take(cost), &judged, JointOutcome::Granted, now);
    (Decided::Allowed, 0, booked)
}

proptest! {
    #![proptest_config(many_cases())]

    #[test]
    fn a_try_takes_whole_or_leaves_no_trace(
        limits in prop::collection::vec(any_limit(), 1..4),
        steps in prop::collection::vec(step(), 1..100),
    ) {
        let handle = handle(vec![rule("k", limits.clone())]);
        let capacity = limits.iter().map(Limit::capacity).min().unwrap();
        let mut model = Model::new(&limits);
        for step in steps {
            let now = handle.now();
            match step {
                Step::Try { key, cost, booking_max } => {
                    let name = name(key);
                    let what = WaitAttempt { cost, booking_max, ..FIRST };
                    let tried = attempt(&handle, &name, what, false)
                        .map(|verdict| (verdict.outcome, verdict.delay, verdict.booked));
                    if cost > capacity {
                        let invalid = InvalidRequest::CostAboveLimit { limit: capacity };
                        prop_assert_eq!(tried, Err(invalid));
                    } else {
                        prop_assert_eq!(
                            tried, Ok(expected(&mut model, key, cost, booking_max, now))
                        );
                    }
                }
                Step::Use { key } => {
                    let (allowed, _) = model.decide(&[key], Op::Take(1), now);
                    let said = decide_all(&handle, &[&name(key)], Op::Take(1), now).expect("fit");
                    prop_assert_eq!(said.is_allowed(), allowed);
                }
                Step::Pass(span) => handle.limiter().clock().advance(span),
            }
        }
    }
}

#[test]
fn nobody_passes_whom_others_are_before() {
    struct Crowded;
    impl Waiters for Crowded {
        fn is_free(&self, count: &Count<'_>) -> bool {
            count.name != b"k a"
        }
        fn freed(&self, _: &Count<'_>) {}
        fn freed_anywhere(&self, _: u32) {}
        fn renewed(&self, _: &Limiter) {}
    }
    let handle = handle(vec![rule("k", vec![fixed(1)])]);
    handle.limiter().set_waiters(Arc::new(Crowded));
    let newcomer = WaitAttempt { first_in_line: false, ..FIRST };
    let said = |key, how| attempt(&handle, key, how, false).expect("fit").outcome;
    assert_eq!(said(b"k a", newcomer), Decided::Behind);
    assert_eq!(said(b"k b", newcomer), Decided::Allowed);
    let waited =
        attempt(&handle, b"k a", WaitAttempt { waited: true, ..FIRST }, false).expect("fit");
    assert_eq!((waited.outcome, waited.window_start), (Decided::Allowed, START.mono));
    assert_eq!(said(b"k a", newcomer), Decided::Behind, "known or not");
}

#[test]
fn whoever_is_turned_away_is_counted_once() {
    let handle = handle(vec![rule("k", vec![limit(2, DAY, Algorithm::Average { strict: true })])]);
    let tries = (0..50).map(|_| attempt(&handle, b"k a", FIRST, false).expect("fit"));
    let taken = tries.filter(Verdict::is_allowed).count();
    let requests = handle.limiter().stats(b"k a", START);
    assert_eq!((requests.requests, requests.over), (taken as u64, 0));
    let keys = [Key::new(b"k a", KeyOp::Refuse(1))];
    let mut rows = Rows::default();
    let refused = handle.decide(&Request::all_or_nothing(&keys), START, Some(&mut rows));
    let refused = refused.expect("fit").ready().expect("in memory");
    assert_eq!((refused.is_allowed(), refused.granted), (false, 0));
    assert_eq!(rows.refused_by.as_deref(), Some("k"));
    assert_eq!(handle.limiter().stats(b"k a", START).over, 1);
}

#[test]
fn a_use_in_flight_that_was_tried_for_is_given_back() {
    let in_flight = limit(1, 0, Algorithm::InFlight { per_window: false });
    let handle = handle(vec![rule("k", vec![in_flight])]);
    let take = || attempt(&handle, b"k a", FIRST, true).expect("fit");
    for _ in 0..3 {
        let taken = take();
        assert_eq!((taken.outcome, taken.held), (Decided::Allowed, Some(TakenFrom::Slot)));
        let blocked = take();
        assert_eq!((blocked.outcome, blocked.delay), (Decided::Later, Nanos::MAX));
        handle.release_uses(b"k a", 1, START, TakenFrom::Slot);
    }
    assert_eq!(attempt(&handle, b"k a", FIRST, false), Err(InvalidRequest::NeedsEnd));
}
