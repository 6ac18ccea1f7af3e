//! One line at a time, scene by scene.

use super::*;

const PROXY_WAITING: &str = "tidegate_waiting{door=\"proxy\"}";

fn decisions(house: &House, verdict: &str) -> u64 {
    let labels = format!("door=\"proxy\",rule=\"a\",verdict=\"{verdict}\"");
    house.metric(&format!("tidegate_decisions_total{{{labels}}}"))
}

#[test]
fn those_who_wait_go_in_order_when_the_window_opens() {
    let house = House::new(vec![rule("a", vec![fixed(2)])]);
    let mut driver = Driver::new(&house);
    let mut callers: Vec<_> = (0..5).map(|_| Caller::came(&house, ask("a", None))).collect();
    settle(&house, &mut driver, &mut callers);
    let waits = |callers: &[Caller<'_>]| callers.iter().map(Caller::waits).collect::<Vec<_>>();
    assert_eq!(waits(&callers), [false, false, true, true, true]);
    assert_eq!(house.metric(PROXY_WAITING), 3);
    house.clock.advance(10 * SECOND - 1);
    settle(&house, &mut driver, &mut callers);
    assert_eq!(waits(&callers), [false, false, true, true, true], "a nanosecond early");
    house.clock.advance(1 + SECOND);
    settle(&house, &mut driver, &mut callers);
    assert_eq!(waits(&callers), [false, false, false, false, true]);
    let pass = callers[3].pass();
    assert_eq!((pass.waited, pass.due), (11 * SECOND, START.mono + 10 * SECOND));
    house.clock.advance(9 * SECOND);
    settle(&house, &mut driver, &mut callers);
    assert_eq!(callers[4].pass().waited, 20 * SECOND);
    assert_eq!((decisions(&house, "allow"), decisions(&house, "delay")), (2, 3));
    assert_eq!(decisions(&house, "refuse"), 0, "no attempt was counted");
    assert_eq!((house.metric(PROXY_WAITING), house.waiting.len()), (0, 0));
}

#[test]
fn only_the_first_is_woken() {
    let house = House::new(vec![rule("a", vec![fixed(1)])]);
    let mut driver = Driver::new(&house);
    let mut callers: Vec<_> = (0..50).map(|_| Caller::came(&house, ask("a", None))).collect();
    for _ in 0..10 {
        house.clock.advance(10 * SECOND);
        settle(&house, &mut driver, &mut callers);
    }
    assert!(callers[..11].iter().all(|caller| !caller.waits()));
    // Each came, was told when it became the first, and once more when its time came.
    assert!(callers.iter().all(|caller| caller.polls <= 3), "no herd");
    assert!(callers[12..].iter().all(|caller| caller.polls == 1));
}

#[test]
fn a_newcomer_does_not_overtake() {
    let house = House::new(vec![rule("a", vec![in_flight(1)])]);
    let mut driver = Driver::new(&house);
    let first = house.begin("a").unwrap().expect("free");
    let mut callers = vec![Caller::came(&house, ask("a", None))];
    house.release("a", &first, 1);
    assert_eq!(house.begin("a"), Ok(None), "there is room, and somebody waits for it");
    assert!(house.begin("a other").unwrap().is_some(), "another count is free");
    settle(&house, &mut driver, &mut callers);
    assert!(!callers[0].waits());
    house.release("a", &callers[0].pass(), 1);
    assert!(house.begin("a").unwrap().is_some());
}

#[test]
fn the_end_of_a_use_wakes_the_next() {
    let house = House::new(vec![rule("a", vec![in_flight(2)])]);
    let mut driver = Driver::new(&house);
    let mut callers: Vec<_> = (0..4).map(|_| Caller::came(&house, ask("a", None))).collect();
    settle(&house, &mut driver, &mut callers);
    house.release("a", &callers[0].pass(), 1);
    settle(&house, &mut driver, &mut callers);
    assert!(!callers[2].waits() && callers[3].waits());
    callers[3].leave();
    house.release("a", &callers[1].pass(), 1);
    assert_eq!(house.waiting.len(), 0);
    assert!(house.begin("a").unwrap().is_some(), "who left has taken nothing");
}

#[test]
fn who_leaves_tells_the_next() {
    // Two fit at once; the first in line wants both, and one is taken.
    let house = House::new(vec![rule("a", vec![in_flight(2)])]);
    let mut driver = Driver::new(&house);
    let both = WaitRequest { cost: 2, ..ask("a", None) };
    let _one = house.begin("a").unwrap().expect("free");
    let mut callers = vec![Caller::came(&house, both), Caller::came(&house, ask("a", None))];
    settle(&house, &mut driver, &mut callers);
    assert!(callers[1].waits(), "nobody overtakes, though there is room");
    callers[0].leave();
    settle(&house, &mut driver, &mut callers);
    assert!(!callers[1].waits());
}

#[test]
fn a_reset_frees_those_who_wait() {
    let house = House::new(vec![rule("a", vec![fixed(1)])]);
    let mut driver = Driver::new(&house);
    let mut callers: Vec<_> = (0..3).map(|_| Caller::came(&house, ask("a", None))).collect();
    assert!(house.limiter.reset(b"a"));
    settle(&house, &mut driver, &mut callers);
    assert!(!callers[1].waits() && callers[2].waits());
}

#[test]
fn a_raised_limit_frees_those_who_wait_in_the_order_of_arrival() {
    let house = House::new(vec![rule("a", vec![fixed(1)]), rule("b", vec![fixed(1)])]);
    let mut driver = Driver::new(&house);
    let keys = ["a", "b", "b", "a", "b", "a"];
    let mut callers: Vec<_> = keys.iter().map(|key| Caller::came(&house, ask(key, None))).collect();
    house.install(vec![rule("a", vec![fixed(2)]), rule("b", vec![fixed(1)])]);
    settle(&house, &mut driver, &mut callers);
    let waits: Vec<_> = callers.iter().map(Caller::waits).collect();
    assert_eq!(waits, [false, false, true, false, true, true]);
    // Now all keys share one count: one line, in the order in which they came.
    let shared = Rule { shared: true, ..Rule::new("all", "*", vec![fixed(2)]) };
    house.install(vec![shared]);
    settle(&house, &mut driver, &mut callers);
    let waits: Vec<_> = callers.iter().map(Caller::waits).collect();
    assert_eq!(waits, [false, false, false, false, false, true], "the two who came first");
    assert_eq!(house.begin("c"), Ok(None), "whatever the key, it is behind the last of them");
    house.install(Vec::new());
    settle(&house, &mut driver, &mut callers);
    assert!(!callers[5].waits(), "nothing limits it any more");
    assert_eq!(house.waiting.len(), 0);
}

#[test]
fn who_is_freed_within_its_window_was_not_held_up_by_the_room() {
    let house = House::new(vec![rule("a", vec![fixed(1)])]);
    let mut driver = Driver::new(&house);
    house.clock.advance(SECOND);
    let mut callers: Vec<_> = (0..2).map(|_| Caller::came(&house, ask("a", None))).collect();
    house.clock.advance(3 * SECOND);
    house.install(vec![rule("a", vec![fixed(2)])]);
    settle(&house, &mut driver, &mut callers);
    let pass = callers[1].pass();
    assert_eq!((pass.waited, pass.due), (3 * SECOND, START.mono + 4 * SECOND));
}

#[test]
fn who_is_freed_long_after_its_window_began_was_not_held_up_by_the_room() {
    let house = House::new(vec![rule("a", vec![fixed(1)])]);
    let mut driver = Driver::new(&house);
    house.clock.advance(SECOND);
    let mut callers: Vec<_> = (0..4).map(|_| Caller::came(&house, ask("a", None))).collect();
    house.clock.advance(9 * SECOND);
    settle(&house, &mut driver, &mut callers);
    assert_eq!(callers[1].pass().due, START.mono + 10 * SECOND);
    house.clock.advance(3 * SECOND);
    house.install(vec![rule("a", vec![fixed(3)])]);
    settle(&house, &mut driver, &mut callers);
    for caller in &callers[2..] {
        // The second of them never tried in this window before; its line did.
        let pass = caller.pass();
        assert_eq!((pass.waited, pass.due), (12 * SECOND, START.mono + 13 * SECOND));
    }
}

#[test]
fn new_rules_may_make_a_request_unfit() {
    let house = House::new(vec![rule("a", vec![fixed(3)])]);
    let mut driver = Driver::new(&house);
    let three = WaitRequest { cost: 3, ..ask("a", None) };
    let mut callers: Vec<_> = (0..2).map(|_| Caller::came(&house, three)).collect();
    house.install(vec![rule("a", vec![fixed(2)])]);
    settle(&house, &mut driver, &mut callers);
    let unfit = NotAdmitted::Invalid(InvalidRequest::CostAboveLimit { limit: 2 });
    assert_eq!(callers[1].result, Some(Err(unfit)));
}

#[test]
fn what_can_never_be_had_is_told_at_once() {
    let house = House::new(vec![rule("a", vec![in_flight(1)])]);
    let _first = house.begin("a").unwrap().expect("free");
    let mut callers = [Caller::came(&house, ask("a", None))];
    let unfit = |ask| match Caller::came(&house, ask).result {
        Some(Err(NotAdmitted::Invalid(unfit))) => unfit,
        other => panic!("{other:?}"),
    };
    let limit = InvalidRequest::CostAboveLimit { limit: 1 };
    assert_eq!(unfit(WaitRequest { cost: 2, ..ask("a", None) }), limit, "though others wait");
    assert_eq!(unfit(WaitRequest { cost: 0, ..ask("a", None) }), InvalidRequest::CostZero);
    assert_eq!(unfit(WaitRequest { can_end: false, ..ask("a", None) }), InvalidRequest::NeedsEnd);
    callers[0].leave();
    assert_eq!((house.waiting.len(), house.waiters.len()), (0, 0));
}

#[test]
fn whoever_runs_out_of_time_is_refused_once() {
    let house = House::new(vec![rule("a", vec![fixed(1)])]);
    let mut driver = Driver::new(&house);
    let mut callers: Vec<_> =
        (0..3).map(|_| Caller::came(&house, ask("a", Some(3 * SECOND)))).collect();
    callers.push(Caller::came(&house, ask("a", None)));
    house.clock.advance(3 * SECOND - 1);
    settle(&house, &mut driver, &mut callers);
    assert!(callers[1].waits() && callers[2].waits());
    house.clock.advance(1);
    settle(&house, &mut driver, &mut callers);
    for caller in &callers[1..3] {
        let Some(Err(NotAdmitted::TooLate(refusal))) = &caller.result else {
            panic!("{:?}", caller.result)
        };
        let WaitRefusal { verdict, rows } = &**refusal;
        assert!(!verdict.is_allowed());
        assert_eq!((verdict.delay, rows.refused_by.as_deref()), (7 * SECOND, Some("a")));
    }
    assert_eq!(decisions(&house, "refuse"), 2);
    assert_eq!(house.limiter.stats(b"a", house.clock.now()).over, 2);
    house.clock.advance(7 * SECOND);
    settle(&house, &mut driver, &mut callers);
    assert!(!callers[3].waits());
}

#[test]
fn the_last_moment_is_in_time() {
    let house = House::new(vec![rule("a", vec![fixed(1)])]);
    let mut driver = Driver::new(&house);
    let mut callers: Vec<_> =
        (0..2).map(|_| Caller::came(&house, ask("a", Some(10 * SECOND)))).collect();
    house.clock.advance(10 * SECOND);
    settle(&house, &mut driver, &mut callers);
    assert_eq!(callers[1].pass().waited, 10 * SECOND);
}

#[test]
fn waiters_are_bounded_per_key_and_in_total() {
    let bounds = WaiterBounds { per_key: 2, total: 3 };
    let house = House::bounded(vec![rule("a", vec![fixed(1)])], bounds);
    let mut callers: Vec<_> = (0..3).map(|_| Caller::came(&house, ask("a", None))).collect();
    let crowded = |key: &'static str| Caller::came(&house, ask(key, None)).result;
    assert_eq!(crowded("a"), Some(Err(NotAdmitted::TooManyWaiters { per_key: true })));
    assert!(crowded("a2").is_some_and(|result| result.is_ok()), "no need to wait");
    callers.push(Caller::came(&house, ask("a2", None)));
    assert_eq!(crowded("a2"), Some(Err(NotAdmitted::TooManyWaiters { per_key: false })));
    assert!(crowded("a3").is_some_and(|result| result.is_ok()), "no need to wait");
    assert_eq!(crowded("a3"), Some(Err(NotAdmitted::TooManyWaiters { per_key: false })));
    assert_eq!(decisions(&house, "refuse"), 3);
    callers[1].leave();
    assert_eq!(house.waiters.len(), 2);
    callers.push(Caller::came(&house, ask("a", None)));
    assert!(callers[4].waits());
    drop(callers);
    assert_eq!((house.waiters.len(), house.waiting.len()), (0, 0));
    assert_eq!(house.metric(PROXY_WAITING), 0);
}

#[test]
fn a_booking_is_made_once_and_kept() {
    let jarl = limit(1, 10 * SECOND, Algorithm::Jarl { exact: true });
    let house = House::bounded(vec![rule("a", vec![jarl])], WaiterBounds { per_key: 2, total: 9 });
    let mut driver = Driver::new(&house);
    let mut callers: Vec<_> = (0..3).map(|_| Caller::came(&house, ask("a", None))).collect();
    settle(&house, &mut driver, &mut callers);
    assert!(!callers[0].waits() && callers[1].waits() && callers[2].waits());
    let late = Caller::came(&house, ask("a", None)).result;
    assert_eq!(late, Some(Err(NotAdmitted::TooManyWaiters { per_key: true })), "they count, too");
    callers[1].leave();
    let hasty = Caller::came(&house, ask("a", Some(30 * SECOND - 1))).result;
    let Some(Err(NotAdmitted::TooLate(refusal))) = hasty else { panic!("{hasty:?}") };
    assert_eq!(refusal.verdict.delay, 30 * SECOND, "nothing was booked for it");
    for (passed, goes) in [(10, false), (9, false), (1, true)] {
        house.clock.advance(passed * SECOND);
        settle(&house, &mut driver, &mut callers);
        assert_eq!(!callers[2].waits(), goes, "who left has been booked and stays booked");
    }
    let pass = callers[2].pass();
    assert_eq!((pass.waited, pass.due), (20 * SECOND, START.mono + 20 * SECOND));
    assert_eq!((house.waiters.len(), house.waiting.len()), (0, 0));
    assert_eq!(decisions(&house, "delay"), 2);
}

#[test]
fn a_booking_waits_for_limits_that_do_not_book() {
    let jarl = limit(1, 10 * SECOND, Algorithm::Jarl { exact: true });
    let house = House::new(vec![rule("a", vec![jarl, in_flight(1)])]);
    let mut driver = Driver::new(&house);
    let mut callers: Vec<_> = (0..2).map(|_| Caller::came(&house, ask("a", None))).collect();
    house.clock.advance(4 * SECOND);
    house.release("a", &callers[0].pass(), 1);
    settle(&house, &mut driver, &mut callers);
    assert!(callers[1].waits(), "it is booked, and holds its use in flight");
    let in_flight = |house: &House| {
        let (_, rows) = peek(house, "a", 1);
        1 - rows.limits[1].verdict.remaining
    };
    assert_eq!(in_flight(&house), 1);
    callers[1].leave();
    assert_eq!(in_flight(&house), 0, "a use that never began has ended");
}

#[test]
fn a_step_of_the_wall_clock_is_noticed() {
    let house = House::new(vec![rule("a", vec![fixed(1)])]);
    let mut driver = Driver::new(&house);
    let mut callers: Vec<_> = (0..2).map(|_| Caller::came(&house, ask("a", None))).collect();
    settle(&house, &mut driver, &mut callers);
    house.clock.set_unix(START.unix + 10 * SECOND);
    driver.woken.0.store(true, SeqCst);
    settle(&house, &mut driver, &mut callers);
    assert!(!callers[1].waits());
}

#[test]
fn a_full_table_is_tried_again_without_haste() {
    let mut denies = rule("a", vec![in_flight(1)]);
    denies.on_full = tidegate_core::rules::OnFull::Deny;
    let house = House::new(vec![denies]);
    house.limiter.resize(memory::Settings { max_keys: 0, max_bytes: 16 << 20 });
    let mut driver = Driver::new(&house);
    let mut callers = vec![Caller::came(&house, ask("a", None))];
    settle(&house, &mut driver, &mut callers);
    assert_eq!(driver.sleeps_until, START.mono + SECOND);
    house.limiter.resize(memory::Settings { max_keys: 1_000, max_bytes: 16 << 20 });
    house.clock.advance(SECOND);
    settle(&house, &mut driver, &mut callers);
    assert!(!callers[0].waits());
}

#[test]
fn nobody_waits_where_nothing_passes() {
    let bounds = WaiterBounds { per_key: 1, total: 1 };
    let house =
        House::bounded(vec![rule("a", vec![fixed(1)]), rule("b", vec![Limit::DENY])], bounds);
    let mut driver = Driver::new(&house);
    let denied_at_once = house.begin("b");
    assert!(matches!(denied_at_once, Err(NotAdmitted::TooLate(_))), "{denied_at_once:?}");
    house.begin("a").unwrap().expect("free");
    let mut callers =
        vec![Caller::came(&house, ask("a", None)), Caller::came(&house, ask("b", None))];
    settle(&house, &mut driver, &mut callers);
    assert!(callers[0].waits());
    let denied = |caller: &Caller<'_>| match &caller.result {
        Some(Err(NotAdmitted::TooLate(refusal))) => refusal.rows.is_denied(),
        _ => false,
    };
    assert!(denied(&callers[1]), "at once, although no more may wait");
    house.install(vec![rule("a", vec![Limit::DENY])]);
    settle(&house, &mut driver, &mut callers);
    assert!(denied(&callers[0]), "new rules do not leave it waiting");
    assert_eq!((house.metric(PROXY_WAITING), decisions(&house, "refuse")), (0, 1));
}
