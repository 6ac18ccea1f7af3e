//! A try takes what a use would take, or leaves no trace at all.

use super::*;

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
fn expected(model: &mut Model, key: u8, cost: u64, booking_max: Nanos, now: Now) -> Tried {
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
        return Tried::Later(delay.max().unwrap_or(0));
    }
    if booked > booking_max {
        return Tried::TooLong;
    }
    model.apply(key, Op::Take(cost), &judged, Outcome::Granted, now);
    Tried::Taken(Taken { held: None, booked, window_start: None })
}

proptest! {
    #![proptest_config(many_cases())]

    #[test]
    fn a_try_takes_whole_or_leaves_no_trace(
        limits in prop::collection::vec(any_limit(), 1..4),
        steps in prop::collection::vec(step(), 1..100),
    ) {
        let desk = desk(vec![rule("k", limits.clone())]);
        let capacity = limits.iter().map(Limit::capacity).min().unwrap();
        let mut model = Model::new(&limits);
        for step in steps {
            let now = desk.now();
            match step {
                Step::Try { key, cost, booking_max } => {
                    let name = name(key);
                    let take =
                        Take { key: &name, cost, can_end: false, booking_max, waited: false };
                    let tried = desk.try_take_here(&take, now, |_| true);
                    if cost > capacity {
                        prop_assert_eq!(tried, Err(Unfit::CostAboveLimit { limit: capacity }));
                    } else {
                        prop_assert_eq!(
                            tried, Ok(expected(&mut model, key, cost, booking_max, now))
                        );
                    }
                }
                Step::Use { key } => {
                    let (allowed, _) = model.decide(&[key], Op::Take(1), now);
                    let answer = desk.answer(&[&name(key)], Op::Take(1), now).expect("fit");
                    prop_assert_eq!(answer.allowed, allowed);
                }
                Step::Pass(span) => desk.limiter().clock().advance(span),
            }
        }
    }
}

#[test]
fn nobody_passes_whom_others_are_before() {
    let desk = desk(vec![rule("k", vec![fixed(1)])]);
    let take = |waited| Take { key: b"k a", cost: 1, can_end: false, booking_max: 0, waited };
    assert_eq!(desk.try_take_here(&take(false), START, |_| false), Ok(Tried::Behind));
    let window_start = Some(START.mono);
    let taken = Taken { held: None, booked: 0, window_start };
    assert_eq!(desk.try_take_here(&take(true), START, |_| true), Ok(Tried::Taken(taken)));
}

#[test]
fn whoever_is_turned_away_is_counted_once() {
    let desk = desk(vec![rule("k", vec![limit(2, DAY, Algorithm::Average { strict: true })])]);
    let take = Take { key: b"k a", cost: 1, can_end: false, booking_max: 0, waited: false };
    let tries: Vec<_> = (0..50).map(|_| desk.try_take_here(&take, START, |_| true)).collect();
    let taken = tries.iter().filter(|tried| matches!(tried, Ok(Tried::Taken(_)))).count();
    let requests = desk.limiter().stats(b"k a", START);
    assert_eq!((requests.requests, requests.over), (taken as u64, 0));
    let answer = desk.refuse(b"k a", 1, START).expect("fit");
    assert_eq!((answer.allowed, answer.refused_by.as_deref()), (false, Some("k")));
    assert_eq!(desk.limiter().stats(b"k a", START).over, 1);
}

#[test]
fn a_use_in_flight_that_was_tried_for_is_given_back() {
    let in_flight = limit(1, 0, Algorithm::InFlight { per_window: false });
    let desk = desk(vec![rule("k", vec![in_flight])]);
    let take = Take { key: b"k a", cost: 1, can_end: true, booking_max: 0, waited: false };
    let held = Some(TakenFrom::Slot);
    for _ in 0..3 {
        let taken = Taken { held, booked: 0, window_start: None };
        assert_eq!(desk.try_take_here(&take, START, |_| true), Ok(Tried::Taken(taken)));
        assert_eq!(desk.try_take_here(&take, START, |_| true), Ok(Tried::Later(Nanos::MAX)));
        desk.release(&[(b"k a", TakenFrom::Slot)], 1, START, START);
    }
    let no_end = Take { can_end: false, ..take };
    assert_eq!(desk.try_take_here(&no_end, START, |_| true), Err(Unfit::NeedsEnd));
}
