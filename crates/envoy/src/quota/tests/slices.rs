//! Slices: windows and logs never hold more than their amount.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tidegate_core::rules::Rule;
use tidegate_core::time::{Nanos, Now, SECOND};
use tidegate_core::{Algorithm, Limit, State};

use super::leases::cases;
use super::simulation::{Count, Event, Simulation};
use crate::quota::slices::HELD_LIFE;
use crate::quota::{
    Action, Assignment, BUCKETS_PER_STREAM_MAX, Bank, Division, Grant, Report, RequestId,
    STREAMS_MAX, StreamId, Terms, TooManyStreams,
};

fn limit(algorithm: Algorithm, amount: u64, period_s: u64) -> Limit {
    Limit { amount, period: period_s * SECOND, algorithm }
}

/// What was admitted.
type Admitted = [(Now, Option<usize>, u64)];

/// The most uses in any window of the wall clock.
fn busiest_window(admitted: &Admitted, period: Nanos) -> u64 {
    let mut windows: BTreeMap<u64, u64> = BTreeMap::new();
    for (at, _, uses) in admitted {
        *windows.entry(at.unix / period).or_default() += uses;
    }
    windows.into_values().max().unwrap_or(0)
}

/// The most uses in any half-open span of a period.
fn busiest_span(admitted: &Admitted, period: Nanos) -> u64 {
    let (mut most, mut sum, mut first) = (0, 0, 0);
    for (at, _, uses) in admitted {
        sum += uses;
        while at.mono - admitted[first].0.mono >= period {
            sum -= admitted[first].2;
            first += 1;
        }
        most = most.max(sum);
    }
    most
}

/// The most uses beyond any of the limits that there were. After a change Envoys may use what they
/// had before, and it is not in the new count.
fn excess(simulation: &Simulation, busiest: fn(&Admitted, Nanos) -> u64) -> u64 {
    let (admitted, mut most) = (&simulation.admitted, 0);
    for (place, (since, limit)) in simulation.limits.iter().enumerate() {
        let begin = if place == 0 { 0 } else { since + HELD_LIFE + SECOND * 11 / 10 };
        let end = simulation.limits.get(place + 1).map_or(Nanos::MAX, |(changed, _)| *changed);
        let first = admitted.partition_point(|(at, ..)| at.mono < begin);
        let last = admitted.partition_point(|(at, ..)| at.mono < end);
        let uses = busiest(&admitted[first..last.max(first)], limit.period);
        most = most.max(uses.saturating_sub(limit.amount));
    }
    most
}

/// Another rule, often with the same limit.
fn any_rule(algorithm: Algorithm) -> impl Strategy<Value = Event> {
    let periods = prop_oneof![Just(10_u64), Just(60), 5_u64..40];
    let amounts = prop_oneof![Just(100_u64), 1_u64..300];
    (amounts, periods)
        .prop_map(move |(amount, period_s)| Event::Rule(limit(algorithm, amount, period_s)))
}

fn any_event() -> impl Strategy<Value = Event> {
    // Some ask for nothing, or now and then.
    let load = prop_oneof![Just(0_u64), 0_u64..300, 0_u64..60_000];
    prop_oneof![
        2 => load.clone().prop_map(|load| Event::Join { load }),
        3 => (0_usize..8, load).prop_map(|(envoy, load)| Event::Load { envoy, load }),
        1 => (0_usize..8).prop_map(|envoy| Event::Close { envoy }),
        1 => (0_usize..8).prop_map(|envoy| Event::Kill { envoy }),
        2 => (0_u64..30_000).prop_map(|load| Event::Others { load }),
    ]
}

fn play(limit: Limit, seed: u64, events: &[(u64, Event)]) -> Simulation {
    let mut simulation = Simulation::new(limit, SECOND, seed);
    simulation.happen(Event::Join { load: 50_000 });
    simulation.run(8 * SECOND);
    for (wait, event) in events {
        simulation.happen(*event);
        simulation.run(wait * SECOND / 100);
    }
    simulation
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn no_window_holds_too_many(
        (amount, period_s) in (1_u64..300, 5_u64..40),
        seed: u64,
        events in prop::collection::vec(
            (1_u64..800, prop_oneof![
                8 => any_event(),
                1 => any_rule(Algorithm::FixedWindow),
                1 => Just(Event::Restart),
                1 => (1_u64..9).prop_map(|span_s| Event::Stall { span_s })
            ]), 1..25),
    ) {
        let limit = limit(Algorithm::FixedWindow, amount, period_s);
        let over = excess(&play(limit, seed, &events), busiest_window);
        prop_assert_eq!(over, 0);
    }

    #[test]
    fn no_span_of_a_log_holds_too_many(
        (amount, period_s) in (1_u64..300, 5_u64..40),
        seed: u64,
        events in prop::collection::vec(
            (1_u64..800, prop_oneof![
                8 => any_event(),
                1 => any_rule(Algorithm::SlidingLog),
            ]), 1..25),
    ) {
        let limit = limit(Algorithm::SlidingLog, amount, period_s);
        let over = excess(&play(limit, seed, &events), busiest_span);
        prop_assert_eq!(over, 0);
    }

    // What Envoys use after the server has ended counts from when it ended.
    #[test]
    fn a_restart_shortens_the_period_of_a_log_by_what_envoys_held(
        (amount, period_s) in (1_u64..300, 9_u64..40),
        seed: u64,
        events in prop::collection::vec(
            (1_u64..800, prop_oneof![4 => any_event(), 1 => Just(Event::Restart)]), 1..25),
    ) {
        let limit = limit(Algorithm::SlidingLog, amount, period_s);
        let simulation = play(limit, seed, &events);
        let most = busiest_span(&simulation.admitted, limit.period - HELD_LIFE);
        prop_assert!(most <= amount, "{most} of {amount}");
    }
}

#[test]
fn slices_use_most_of_a_window_and_near_half_of_a_log() {
    for (algorithm, percent) in [(Algorithm::FixedWindow, 90), (Algorithm::SlidingLog, 35)] {
        let limit = limit(algorithm, 300, 30);
        let mut simulation = Simulation::new(limit, SECOND, 5);
        (0..3).for_each(|_| simulation.happen(Event::Join { load: 10_000 }));
        simulation.run(67 * SECOND);
        simulation.run(120 * SECOND);
        let used = simulation.used(None, 120 * SECOND);
        assert!(used * 100 >= 1_200 * percent, "{used} of 1200 by {algorithm:?}");
    }
}

/// Envoy's default lets requests pass that have no assignment.
#[test]
fn no_slice_ends_before_the_next_arrives() {
    for period_s in [5, 10, 60] {
        let limit = limit(Algorithm::FixedWindow, 30 * period_s, period_s);
        for seed in 0..5 {
            let mut simulation = Simulation::new(limit, SECOND, seed);
            (0..3).for_each(|_| simulation.happen(Event::Join { load: 20_000 }));
            simulation.run(100 * SECOND);
            let lapses: usize = simulation.envoys.iter().map(|envoy| envoy.lapses).sum();
            assert_eq!(lapses, 0, "windows of {period_s} s, seed {seed}");
            assert!(simulation.used(None, 60 * SECOND) > 0);
        }
    }
}

/// What it holds is enough for a user who comes now and then.
#[test]
fn a_quiet_bucket_lets_its_next_request_pass() {
    // While something was reported a log pays for a use each second, twice.
    for (algorithm, amount) in [(Algorithm::FixedWindow, 100), (Algorithm::SlidingLog, 1_000)] {
        let mut simulation = Simulation::new(limit(algorithm, amount, 3_600), SECOND, 7);
        // A request every 25 s, and before the first one there is no assignment.
        simulation.happen(Event::Join { load: 40 });
        simulation.run(275 * SECOND);
        let used = simulation.used(None, 275 * SECOND);
        assert!(used >= 9, "{used} of 11 requests under {algorithm:?}");
    }
}

#[test]
fn quiet_streams_leave_most_to_others_and_give_back_what_they_hold() {
    let limit = limit(Algorithm::FixedWindow, 8, 3_600);
    let mut simulation = Simulation::new(limit, 0, 1);
    (0..8).for_each(|_| simulation.happen(Event::Join { load: 200 }));
    simulation.run(8 * SECOND);
    (0..8).for_each(|envoy| simulation.happen(Event::Load { envoy, load: 0 }));
    simulation.run(40 * SECOND);
    let left = |simulation: &mut Simulation| {
        let mut bank = Count { limit, state: simulation.bank.state.clone() };
        bank.take_up_to(b"", 8, RequestId(0), simulation.now).expect("an answer").uses
    };
    let used = simulation.used(None, 50 * SECOND);
    let (held, most) = (8 - used - left(&mut simulation), limit.amount / 2);
    assert!((1..=most).contains(&held), "{held} are held, {used} are used");
    // After 12 reports of zero.
    simulation.run(40 * SECOND);
    assert_eq!(left(&mut simulation), 8 - used);
}

/// A bank in a remote store, which answers nothing by itself.
#[derive(Default)]
struct Remote {
    asked: Vec<(RequestId, u64)>,
    recorded: u64,
    refunded: u64,
}

impl Bank for Remote {
    fn take_up_to(&mut self, _: &[u8], most: u64, request: RequestId, _: Now) -> Option<Grant> {
        self.asked.push((request, most));
        None
    }

    fn record(&mut self, _: &[u8], uses: u64, _: Nanos, _: Now) {
        self.recorded += uses;
    }

    fn refund(&mut self, _: &[u8], uses: u64, _: Now) {
        self.refunded += uses;
    }
}

const STREAM: StreamId = StreamId(1);
const REPORT: Report<'_> = Report { key: b"web", allowed: 1, denied: 0, is_first: false };

/// A division that has been running for a while, with one stream.
fn running() -> (Division, Now) {
    let mut division = Division::new(Now::default());
    division.open(STREAM).expect("the first stream");
    (division, Now::default().after(100 * SECOND))
}

fn actions(out: &mut Vec<Assignment>) -> Vec<Action> {
    out.drain(..).map(|assignment| assignment.action).collect()
}

#[test]
fn a_grant_may_come_later_once_and_for_its_own_window() {
    let terms = Terms::of(&[limit(Algorithm::FixedWindow, 100, 10)], false, true);
    let (mut division, now) = running();
    let (mut bank, mut out) = (Remote::default(), Vec::new());
    division.report(STREAM, REPORT, &terms, now, &mut bank, &mut out);
    let (request, _) = bank.asked.pop().expect("a question");
    assert_eq!(actions(&mut out), []);
    division.granted(request, Grant::counted(7), now.after(SECOND), &mut bank, &mut out);
    let slice = Action::TokenBucket {
        max_tokens: 7,
        tokens_per_fill: 1,
        fill_interval_s: 31_536_000,
        ttl_s: 2,
    };
    assert_eq!(actions(&mut out), [Action::DenyAll { ttl_s: 2 }, slice]);
    division.granted(request, Grant::counted(7), now.after(SECOND), &mut bank, &mut out);
    assert_eq!(actions(&mut out), [], "answered before");
    division.tick(|_| terms.clone(), now.after(2 * SECOND), &mut bank, &mut out);
    let (request, _) = bank.asked.pop().expect("another question");
    division.granted(request, Grant::counted(7), now.after(9 * SECOND), &mut bank, &mut out);
    assert_eq!(actions(&mut out), [Action::DenyAll { ttl_s: 4 }], "its window is over");
}

/// What a rule lets pass while its store is away is not in the store's count.
#[test]
fn what_was_not_counted_is_given_and_never_given_back() {
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingLog] {
        // A bucket that is busy, and one that is quiet and holds a use.
        for (requests, is_counted) in [(9, true), (9, false), (0, true), (0, false)] {
            let terms = Terms::of(&[limit(algorithm, 1_000, 100)], false, true);
            let (mut division, mut now) = running();
            let (mut bank, mut out) = (Remote::default(), Vec::new());
            let mut given = 0;
            for second in 0..20 {
                if second % 5 == 0 {
                    let report = Report { allowed: 0, denied: requests, ..REPORT };
                    division.report(STREAM, report, &terms, now, &mut bank, &mut out);
                }
                division.tick(|_| terms.clone(), now, &mut bank, &mut out);
                for (request, uses) in std::mem::take(&mut bank.asked) {
                    let grant = Grant { uses, is_counted };
                    division.granted(request, grant, now, &mut bank, &mut out);
                }
                let slices = actions(&mut out).into_iter();
                given += slices.filter(|it| matches!(it, Action::TokenBucket { .. })).count();
                now = now.after(SECOND);
            }
            // It leaves, and has used nothing.
            let mut zero = || {
                let report = Report { allowed: 0, denied: 0, ..REPORT };
                division.report(STREAM, report, &terms, now, &mut bank, &mut Vec::new());
                division.tick(|_| terms.clone(), now, &mut bank, &mut Vec::new());
                now = now.after(5 * SECOND);
            };
            (0..12).for_each(|_| zero());
            assert!(given > 5, "{given} to {requests} requests under {algorithm:?}");
            let corrected = bank.recorded + bank.refunded > 0;
            assert_eq!(corrected, is_counted, "{requests} requests under {algorithm:?}");
        }
    }
}

#[test]
fn every_envoy_has_its_part_of_what_is_too_little_for_all() {
    for amount in [1, 2, 60] {
        let limit = limit(Algorithm::FixedWindow, amount, 10);
        let mut simulation = Simulation::new(limit, SECOND / 10, 3);
        (0..3).for_each(|_| simulation.happen(Event::Join { load: 100_000 }));
        simulation.run(307 * SECOND);
        let used: Vec<u64> =
            (0..3).map(|envoy| simulation.used(Some(envoy), 300 * SECOND)).collect();
        let whole = amount * 30;
        assert!(used.iter().all(|used| used * 5 >= whole), "{used:?} of {whole}");
    }
}

#[test]
fn a_stream_that_reports_too_much_does_not_bury_the_key() {
    let limit = limit(Algorithm::Gcra { burst: 5 }, 5, 1);
    for shadow in [false, true] {
        let terms = Terms::of(&[limit], shadow, false);
        let (mut division, now) = running();
        let mut bank = Count { limit, state: State::None };
        let report = Report { allowed: u64::MAX, is_first: true, ..REPORT };
        for _ in 0..3 {
            division.report(STREAM, report, &terms, now, &mut bank, &mut Vec::new());
        }
        let later = now.after(2 * SECOND);
        assert!(
            bank.take_up_to(b"", 1, RequestId(0), later) == Some(Grant::counted(1)),
            "shadow: {shadow}"
        );
    }
}

#[test]
fn a_stream_without_an_assignment_is_told_at_once() {
    let of = |algorithm| Terms::of(&[limit(algorithm, 100, 10)], false, false);
    let (leases, slices) = (of(Algorithm::Gcra { burst: 100 }), of(Algorithm::FixedWindow));
    let deny = Action::DenyAll { ttl_s: 12 };
    let mut bank = Count { limit: limit(Algorithm::FixedWindow, 100, 10), state: State::None };
    let mut out = Vec::new();
    for terms in [&leases, &slices] {
        // The server has just begun.
        let mut division = Division::new(Now::default());
        division.open(STREAM).expect("the first stream");
        let first = Report { is_first: true, ..REPORT };
        division.report(STREAM, first, terms, Now::default(), &mut bank, &mut out);
        assert_eq!(actions(&mut out), [deny]);
    }
    // What it has is of a rule that is gone.
    let (mut division, now) = running();
    division.report(STREAM, REPORT, &slices, now, &mut bank, &mut out);
    out.clear();
    division.rules_changed();
    division.tick(|_| leases.clone(), now.after(SECOND), &mut bank, &mut out);
    assert_eq!(actions(&mut out), [deny]);
}

/// With Envoy's default these requests have passed.
#[test]
fn what_passed_before_the_first_answer_is_counted() {
    let of = |algorithm| Terms::of(&[limit(algorithm, 100, 10)], false, false);
    for (terms, is_counted) in [
        (of(Algorithm::FixedWindow), true),
        (of(Algorithm::Gcra { burst: 10 }), true),
        (Terms::Unlimited, false),
        (Terms::Denied, false),
    ] {
        let (mut division, now) = running();
        let (mut bank, mut out) = (Remote::default(), Vec::new());
        // After a stream has broken, Envoy reports what passed by an assignment of before.
        let again = Report { key: b"again", allowed: 9, ..REPORT };
        let first = Report { allowed: 777, is_first: true, ..REPORT };
        for report in [again, first, first] {
            division.report(STREAM, report, &terms, now, &mut bank, &mut out);
        }
        let asked = bank.asked.iter().filter(|(_, uses)| *uses == 777).count();
        assert_eq!(asked, usize::from(is_counted), "{terms:?}");
    }
}

#[test]
fn terms_follow_from_limits() {
    let check = |limits: &[Limit], shadow, expected| {
        let (mut division, now) = running();
        let (mut bank, mut out) = (Remote::default(), Vec::new());
        let terms = Terms::of(limits, shadow, false);
        division.report(STREAM, REPORT, &terms, now, &mut bank, &mut out);
        assert_eq!(actions(&mut out), [expected], "{limits:?}");
    };
    let (allow, deny) = (Action::AllowAll { ttl_s: 12 }, Action::DenyAll { ttl_s: 12 });
    check(&[], false, allow);
    check(&[limit(Algorithm::FixedWindow, 1, 60)], true, allow);
    check(&[Limit::DENY], false, deny);
    check(&[limit(Algorithm::FixedWindow, 1, 1)], false, deny);
    check(&[limit(Algorithm::InFlight { per_window: true }, 1, 60)], false, deny);
}

#[test]
fn a_removed_limit_allows_all_and_a_new_one_divides() {
    let (mut division, now) = running();
    let (mut bank, mut out) = (Remote::default(), Vec::new());
    let sliced = Terms::of(&[limit(Algorithm::FixedWindow, 100, 10)], false, true);
    division.report(STREAM, REPORT, &sliced, now, &mut bank, &mut out);
    assert_eq!(bank.asked.len(), 1);
    // In the turn of the bucket, and no sooner.
    division.rules_changed();
    assert_eq!(actions(&mut out), []);
    let now = now.after(SECOND);
    division.tick(|_| Terms::Unlimited, now, &mut bank, &mut out);
    assert_eq!(actions(&mut out), [Action::AllowAll { ttl_s: 12 }]);
    division.rules_changed();
    division.tick(|_| sliced.clone(), now.after(SECOND), &mut bank, &mut out);
    assert_eq!(bank.asked.len(), 2);
}

/// Nothing is granted yet, and Envoys must not go on allowing all.
#[test]
fn a_new_limit_denies_until_the_server_may_grant() {
    let limits = [Algorithm::FixedWindow, Algorithm::Gcra { burst: 100 }];
    for (algorithm, old) in limits.into_iter().zip([Terms::Unlimited, Terms::Shadow]) {
        let now = Now::default();
        let mut division = Division::new(now);
        division.open(STREAM).expect("the first stream");
        let (mut bank, mut out) = (Remote::default(), Vec::new());
        division.report(STREAM, REPORT, &old, now, &mut bank, &mut out);
        assert_eq!(actions(&mut out), [Action::AllowAll { ttl_s: 12 }]);
        let divided = Terms::of(&[limit(algorithm, 100, 10)], false, false);
        division.rules_changed();
        division.tick(|_| divided.clone(), now.after(SECOND), &mut bank, &mut out);
        assert_eq!(actions(&mut out), [Action::DenyAll { ttl_s: 12 }]);
    }
}

/// The windows of both end at the same time, and the second count knows nothing of the first.
#[test]
fn nothing_is_given_back_to_the_count_of_another_rule() {
    let terms_of = |name: &str, period_s| {
        let limit = limit(Algorithm::FixedWindow, 100, period_s);
        Terms::of_rule(&Rule::new(name, "*", vec![limit]), true)
    };
    let first = terms_of("first", 600);
    let next = [terms_of("first", 300), terms_of("second", 600)];
    for (next, is_other) in [(&first, false), (&next[0], true), (&next[1], true)] {
        let (mut division, mut now) = running();
        let (mut bank, mut out) = (Remote::default(), Vec::new());
        let none = Report { allowed: 0, ..REPORT };
        division.report(STREAM, REPORT, &first, now, &mut bank, &mut out);
        let (request, uses) = bank.asked.pop().expect("a question");
        division.granted(request, Grant::counted(uses), now, &mut bank, &mut out);
        // One that is answered when the rule is another.
        now = now.after(SECOND);
        division.tick(|_| first.clone(), now, &mut bank, &mut out);
        let asked = bank.asked.pop();
        division.rules_changed();
        now = now.after(SECOND);
        division.tick(|_| next.clone(), now, &mut bank, &mut out);
        if let Some((request, uses)) = asked {
            division.granted(request, Grant::counted(uses), now, &mut bank, &mut out);
        }
        for _ in 0..10 {
            now = now.after(SECOND);
            division.tick(|_| next.clone(), now, &mut bank, &mut out);
        }
        division.report(STREAM, none, next, now, &mut bank, &mut out);
        assert_eq!(bank.refunded == 0, is_other, "{} given back", bank.refunded);
    }
}

#[test]
fn leases_are_charged_to_the_count_of_another_rule_at_once() {
    let limit = limit(Algorithm::Gcra { burst: 60 }, 60, 1);
    let terms_of = |name: &str| Terms::of_rule(&Rule::new(name, "*", vec![limit]), false);
    let (mut division, now) = running();
    let (mut bank, mut out) = (Count { limit, state: State::None }, Vec::new());
    division.report(STREAM, REPORT, &terms_of("first"), now, &mut bank, &mut out);
    let Some(Action::TokenBucket { max_tokens, .. }) = actions(&mut out).pop() else {
        panic!("a lease");
    };
    bank.state = State::None;
    division.rules_changed();
    let now = now.after(SECOND / 100);
    division.tick(|_| terms_of("second"), now, &mut bank, &mut out);
    let left = bank.take_up_to(b"", 60, RequestId(0), now).expect("an answer").uses;
    assert!(left + u64::from(max_tokens) <= 60, "{left} beside {max_tokens}");
}

#[test]
fn what_is_to_be_written_down_later_is_written_down_at_the_end() {
    let terms = Terms::of(&[limit(Algorithm::SlidingLog, 100, 60)], false, true);
    let (mut division, now) = running();
    let (mut bank, mut out) = (Remote::default(), Vec::new());
    division.report(STREAM, REPORT, &terms, now, &mut bank, &mut out);
    let (request, _) = bank.asked.pop().expect("a question");
    division.granted(request, Grant::counted(7), now, &mut bank, &mut out);
    division.settle(now, &mut bank);
    assert_eq!(bank.recorded, 7);
    // And once.
    division.tick(|_| terms.clone(), now.after(4 * SECOND), &mut bank, &mut out);
    assert_eq!(bank.recorded, 7);
}

/// The buckets of one count would each lease all of it.
#[test]
fn a_shared_count_is_not_leased() {
    let mut rule = Rule::new("shared", "*", vec![limit(Algorithm::Gcra { burst: 9 }, 9, 1)]);
    assert!(matches!(Terms::of_rule(&rule, false), Terms::Leases(_)));
    rule.shared = true;
    assert!(matches!(Terms::of_rule(&rule, false), Terms::Slices(_)));
}

#[test]
fn beyond_the_bounds_nothing_is_remembered() {
    let (mut division, now) = running();
    let (mut bank, mut out) = (Remote::default(), Vec::new());
    let terms = Terms::of(&[limit(Algorithm::FixedWindow, 100, 10)], false, true);
    for number in 0..=BUCKETS_PER_STREAM_MAX {
        let key = format!("web user={number}");
        let report = Report { key: key.as_bytes(), ..REPORT };
        let terms = if number < BUCKETS_PER_STREAM_MAX { &Terms::Unlimited } else { &terms };
        division.report(STREAM, report, terms, now, &mut bank, &mut out);
    }
    assert_eq!(actions(&mut out).last(), Some(&Action::DenyAll { ttl_s: 12 }));
    assert_eq!(bank.asked, []);
    // Envoy shall not report it for ever.
    let report = Report { key: b"web user=zero", allowed: 0, ..REPORT };
    assert!(!division.report(STREAM, report, &terms, now, &mut bank, &mut out));
    assert_eq!(actions(&mut out), [Action::Abandon]);
    for number in 2..=STREAMS_MAX as u64 {
        division.open(StreamId(number)).expect("room");
    }
    assert_eq!(division.open(StreamId(0)), Err(TooManyStreams));
    division.close(STREAM);
    assert_eq!(division.open(StreamId(0)), Ok(()));
}
