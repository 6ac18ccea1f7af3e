//! Leases: never more than the limit in any span, and most of it in use.

use proptest::prelude::*;
use tidegate_core::time::{MINUTE, Nanos, SECOND};
use tidegate_core::{Algorithm, Limit};

use super::simulation::{Event, Simulation};
use crate::quota::LEASE_LIFE;

/// A stopped Envoy obeys what waited in its socket when it goes on, however late. So the promise
/// holds for stops that the server does not take for the end: between two reports are 5 s, the stop
/// and a delay, and 15 s are silence.
const STOP_MAX_S: u64 = 9;

fn gcra(amount: u64, period: Nanos, burst: u64) -> Limit {
    Limit { amount, period, algorithm: Algorithm::Gcra { burst } }
}

/// The most that was admitted in any span t beyond R * t and B. After a change of the limit what
/// was granted before it may be used until its lease ends.
fn overshoot(simulation: &Simulation) -> f64 {
    let mut worst = f64::MIN;
    for (place, (since, limit)) in simulation.limits.iter().enumerate() {
        let next = simulation.limits.get(place + 1);
        // The bucket's next turn is up to a second later.
        let begin = if place == 0 { 0 } else { since + LEASE_LIFE + SECOND * 11 / 10 };
        let end = next.map_or(Nanos::MAX, |(changed, _)| *changed);
        let per_ns = limit.amount as f64 / limit.period as f64;
        let (mut level, mut last) = (0.0_f64, 0);
        for (at, _, uses) in &simulation.admitted {
            if (begin..end).contains(&at.mono) {
                level = (level - per_ns * (at.mono - last.max(begin)) as f64).max(0.0);
                level += *uses as f64;
                last = at.mono;
                worst = worst.max(level - limit.capacity() as f64);
            }
        }
    }
    worst
}

fn check(simulation: &Simulation) {
    let over = overshoot(simulation);
    assert!(over <= 1e-6, "{over} too many");
}

#[test]
fn three_envoys_use_most_of_the_limit_and_no_more() {
    for limit in [gcra(60, SECOND, 60), gcra(10, SECOND, 10), gcra(600, MINUTE, 600)] {
        let mut simulation = Simulation::new(limit, SECOND, 1);
        (0..3).for_each(|_| simulation.happen(Event::Join { load: 110_000 }));
        simulation.run(40 * SECOND);
        simulation.messages = 0;
        simulation.run(40 * SECOND);
        let whole = limit.amount * (40 * SECOND) / limit.period;
        let used = simulation.used(None, 40 * SECOND);
        assert!(used * 10 >= whole * 9, "{used} of {whole} under {limit}");
        assert!(simulation.messages < 60, "{} messages", simulation.messages);
        check(&simulation);
    }
}

#[test]
fn the_share_of_an_idle_envoy_moves_to_a_busy_one() {
    let mut simulation = Simulation::new(gcra(60, SECOND, 60), SECOND, 2);
    simulation.happen(Event::Join { load: 100_000 });
    simulation.happen(Event::Join { load: 100_000 });
    simulation.run(40 * SECOND);
    simulation.happen(Event::Load { envoy: 0, load: 1_000 });
    simulation.run(20 * SECOND);
    simulation.run(5 * SECOND);
    let used = simulation.used(Some(1), 5 * SECOND);
    assert!(used >= 250 * 8 / 10, "{used} in 5 s");
    check(&simulation);
}

#[test]
fn a_newcomer_has_a_trickle_at_once_and_its_share_soon() {
    let mut simulation = Simulation::new(gcra(60, SECOND, 60), 0, 3);
    simulation.happen(Event::Join { load: 100_000 });
    simulation.run(40 * SECOND);
    simulation.happen(Event::Join { load: 100_000 });
    simulation.run(SECOND / 10);
    assert!(simulation.used(Some(1), SECOND / 10) > 0);
    simulation.run(20 * SECOND);
    let (old, new) = (simulation.used(Some(0), 5 * SECOND), simulation.used(Some(1), 5 * SECOND));
    assert!(new * 10 >= old * 8, "{old} and {new}");
    check(&simulation);
}

/// Other doors find nothing then, so nothing is kept back for them but a twentieth of the rate.
#[test]
fn a_small_burst_is_leased_whole() {
    for (amount, period, burst) in
        [(1, SECOND, 1), (2, SECOND, 2), (60, SECOND, 1), (1, MINUTE, 1), (1_000, SECOND, 20)]
    {
        let limit = gcra(amount, period, burst);
        let mut simulation = Simulation::new(limit, SECOND, 4);
        (0..3).for_each(|_| simulation.happen(Event::Join { load: 2_000_000 }));
        simulation.happen(Event::Others { load: 1_000 });
        simulation.run(120 * SECOND);
        simulation.run(120 * SECOND);
        let whole = limit.amount * (120 * SECOND) / limit.period;
        let used = simulation.used(None, 120 * SECOND);
        // An Envoy admits at most one use in a step of the simulation.
        assert!(used * 10 >= whole * 8, "{used} of {whole} under {limit}");
        check(&simulation);
        // When the Envoys are gone, others have it.
        (0..3).for_each(|envoy| simulation.happen(Event::Load { envoy, load: 0 }));
        simulation.run(90 * SECOND);
        simulation.run(120 * SECOND);
        assert!(simulation.used(None, 120 * SECOND) * 2 >= whole.min(120), "{limit}");
        check(&simulation);
    }
}

#[test]
fn slow_limits_are_divided_too() {
    let mut simulation = Simulation::new(gcra(30, MINUTE, 30), SECOND, 4);
    (0..3).for_each(|_| simulation.happen(Event::Join { load: 2_000 }));
    simulation.run(120 * SECOND);
    let used = simulation.used(None, 60 * SECOND);
    assert!(used >= 27, "{used} of 30");
    check(&simulation);
}

fn any_limit() -> impl Strategy<Value = Limit> {
    prop_oneof![
        Just(gcra(60, SECOND, 60)),
        Just(gcra(10, SECOND, 10)),
        Just(gcra(100, MINUTE, 100)),
        Just(gcra(5, SECOND, 40)),
        Just(gcra(50, SECOND, 5)),
        Just(gcra(1_000, SECOND, 20)),
        (1_u64..100, 1_u64..4, 1_u64..5).prop_map(|(amount, period_s, burst)| gcra(
            amount,
            period_s * SECOND,
            burst
        )),
        (1_u64..200, 1_u64..20, 1_u64..200).prop_map(|(amount, period_s, burst)| gcra(
            amount,
            period_s * SECOND,
            burst
        )),
    ]
}

fn any_event() -> impl Strategy<Value = Event> {
    let load = prop_oneof![Just(0_u64), Just(500), 0_u64..200_000];
    prop_oneof![
        2 => load.clone().prop_map(|load| Event::Join { load }),
        4 => (0_usize..8, load).prop_map(|(envoy, load)| Event::Load { envoy, load }),
        2 => (0_usize..8).prop_map(|envoy| Event::Close { envoy }),
        2 => (0_usize..8).prop_map(|envoy| Event::Kill { envoy }),
        2 => (0_usize..8, 1_u64..=STOP_MAX_S)
            .prop_map(|(envoy, span_s)| Event::Stop { envoy, span_s }),
        1 => (0_u64..4_000_000_000).prop_map(|unix_s| Event::Clock { unix_s }),
    ]
}

fn any_load_of_others() -> impl Strategy<Value = Event> {
    (0_u64..200_000).prop_map(|load| Event::Others { load })
}

fn any_stall() -> impl Strategy<Value = Event> {
    (1_u64..9).prop_map(|span_s| Event::Stall { span_s })
}

fn play(limit: Limit, seed: u64, events: &[(u64, Event)]) -> Simulation {
    let mut simulation = Simulation::new(limit, SECOND, seed);
    simulation.happen(Event::Join { load: 100_000 });
    simulation.run(8 * SECOND);
    for (wait_ms, event) in events {
        simulation.happen(*event);
        simulation.run(wait_ms * 10_000_000);
    }
    simulation
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn no_span_holds_too_many_uses(
        limit in any_limit(),
        seed: u64,
        events in prop::collection::vec(
            (1_u64..800, prop_oneof![
                8 => any_event(), 2 => any_load_of_others(), 1 => any_stall()
            ]), 1..30),
    ) {
        let over = overshoot(&play(limit, seed, &events));
        prop_assert!(over <= 1e-6, "{over} too many");
    }

    // What other doors admit while a new server knows nothing of the old one's leases is beyond it.
    #[test]
    fn a_restart_admits_nothing_twice(
        limit in any_limit(),
        seed: u64,
        events in prop::collection::vec(
            (1_u64..1500, prop_oneof![4 => any_event(), 1 => Just(Event::Restart)]), 1..30),
    ) {
        let over = overshoot(&play(limit, seed, &events));
        prop_assert!(over <= 1e-6, "{over} too many");
    }

    #[test]
    fn a_changed_limit_holds_once_old_leases_have_ended(
        limit in any_limit(),
        seed: u64,
        events in prop::collection::vec(
            (1_u64..1500, prop_oneof![
                8 => any_event(),
                2 => any_load_of_others(),
                2 => any_limit().prop_map(Event::Limit),
                1 => any_limit().prop_map(Event::Rule),
                1 => Just(Event::Rule(gcra(60, SECOND, 60))),
            ]), 1..20),
    ) {
        let over = overshoot(&play(limit, seed, &events));
        prop_assert!(over <= 1e-6, "{over} too many");
    }
}

/// A short run, unless `PROPTEST_CASES` asks for more.
pub(super) fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(500)
}
