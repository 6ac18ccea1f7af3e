//! The proxy at the boundaries of minutes, on a clock that is moved by hand and whose wall side is
//! stepped both ways.

use std::sync::mpsc::{Receiver, channel};

use tidegate::clock::Clock;
use tidegate_core::time::{HOUR, MILLISECOND, MINUTE, SECOND};
use tidegate_core::{Nanos, Now};

use super::house::{House, NOTICED, START};
use super::{Client, Upstream, ok};
use crate::program::PATIENCE;

const LIMIT: usize = 5;

struct Scene {
    house: House,
    starts: Receiver<()>,
    clients: Vec<Client>,
}

impl Scene {
    /// At so many seconds past a minute, with its limit used up and others waiting.
    fn new(second: Nanos, waiting: usize) -> Self {
        let start = Now { mono: START.mono, unix: START.unix + second * SECOND };
        let (tell, starts) = channel();
        let upstream = Upstream::answering(move |_| {
            let _ = tell.send(());
            ok("")
        });
        let limit = format!("limit = '{LIMIT} per minute'");
        let house = House::at(Clock::manual(start), upstream.address, &limit);
        let mut scene = Self { house, starts, clients: Vec::new() };
        scene.come(LIMIT);
        scene.expect(LIMIT, 0);
        scene.come(waiting);
        scene.expect(0, waiting);
        scene
    }

    fn come(&mut self, count: usize) {
        self.clients.extend((0..count).map(|_| self.house.ask("/a")));
    }

    /// Exactly so many start now, and exactly so many wait on.
    #[track_caller]
    fn expect(&self, started: usize, waiting: usize) {
        for number in 0..started {
            let start = self.starts.recv_timeout(PATIENCE);
            assert!(start.is_ok(), "only {number} of {started} have started");
        }
        self.house.until_waiting(waiting);
        assert!(self.starts.try_recv().is_err(), "more than {started} have started");
    }
}

#[test]
fn at_the_boundary_exactly_the_limit_starts() {
    let mut scene = Scene::new(50, 7);
    scene.house.advance(10 * SECOND - MILLISECOND);
    scene.expect(0, 7);
    scene.house.advance(MILLISECOND);
    scene.expect(LIMIT, 2);
    scene.house.advance(MINUTE - MILLISECOND);
    scene.expect(0, 2);
    scene.house.advance(MILLISECOND);
    scene.expect(2, 0);
    // What is left of the minute goes to those who come in it.
    scene.house.advance(MINUTE - MILLISECOND);
    scene.come(4);
    scene.expect(3, 1);
    scene.house.advance(MILLISECOND);
    scene.expect(1, 0);
    assert_eq!(scene.house.allowed(), 5 + 5 + 2 + 3 + 1);
    assert!(scene.clients.iter_mut().all(|client| client.read().status() == 200));
    let summary = scene.house.summary();
    assert_eq!(
        (&summary["overhead_ms"]["count"], &summary["wait_ms"]["count"]),
        (&16.into(), &8.into())
    );
    // One that first looks when the minute has begun has been on its way for a millisecond.
    assert!(summary["overhead_ms"]["max"].as_f64() < Some(2.0), "{summary}");
    assert!(summary["wait_ms"]["p90"].as_f64() > Some(9_999.0), "{summary}");
}

#[test]
fn a_wall_clock_that_is_set_back_keeps_the_newer_minute_until_that_is_over() {
    let mut scene = Scene::new(20, 3);
    let now = scene.house.clock.now().unix;
    // Back to the fifteenth second of a minute of the hour before.
    scene.house.set_wall(now - HOUR - 5 * SECOND);
    scene.expect(0, 3);
    scene.house.advance(40 * SECOND - MILLISECOND - NOTICED);
    scene.expect(0, 3);
    // Here the minute ends that began before the step.
    scene.house.advance(MILLISECOND);
    scene.expect(3, 0);
    // The old hour's minute is one of its own, with five seconds left.
    scene.come(3);
    scene.expect(2, 1);
    scene.house.advance(5 * SECOND - MILLISECOND);
    scene.expect(0, 1);
    scene.house.advance(MILLISECOND);
    scene.expect(1, 0);
    assert_eq!(scene.house.allowed(), 5 + 3 + 2 + 1);
}

#[test]
fn a_wall_clock_that_is_set_forward_opens_the_next_minute_at_once() {
    let scene = Scene::new(20, 7);
    let now = scene.house.clock.now().unix;
    scene.house.set_wall(now + 10 * SECOND);
    scene.expect(0, 7);
    scene.house.set_wall(now + HOUR);
    scene.expect(LIMIT, 2);
    // And back again: the newer minute stays, and its limit is used up.
    scene.house.set_wall(now);
    scene.expect(0, 2);
    scene.house.advance(40 * SECOND);
    scene.expect(2, 0);
}

#[test]
fn a_limit_that_is_raised_after_the_boundary_frees_at_once() {
    let mut scene = Scene::new(50, 8);
    scene.house.advance(10 * SECOND);
    scene.expect(LIMIT, 3);
    scene.house.advance(30 * SECOND);
    scene.house.set_limit("limit = '7 per minute'");
    scene.expect(2, 1);
    scene.house.advance(20 * SECOND);
    scene.house.set_limit("limit = '9 per minute'");
    scene.expect(1, 0);
    assert!(scene.clients.iter_mut().all(|client| client.read().status() == 200));
    let summary = scene.house.summary();
    assert_eq!(summary["wait_ms"]["count"], 8);
    // From arrival, over the boundary, until it was raised.
    assert!(summary["wait_ms"]["max"].as_f64() > Some(59_999.0), "{summary}");
}

#[test]
fn in_flight_per_minute_a_use_comes_back_with_its_request_or_with_the_minute() {
    let (tell, starts) = channel();
    let (go, gone) = channel::<()>();
    let gone = std::sync::Mutex::new(gone);
    let upstream = Upstream::answering(move |_| {
        let _ = tell.send(());
        let _ = gone.lock().expect("no panic").recv();
        ok("")
    });
    let limit = "limit = '1 in flight per minute'";
    let house = House::at(Clock::manual(START), upstream.address, limit);
    let started = || assert!(starts.recv_timeout(PATIENCE).is_ok(), "one starts");
    let mut first = house.ask("/a");
    started();
    let mut second = house.ask("/a");
    house.until_waiting(1);
    go.send(()).expect("the upstream waits");
    assert_eq!(first.read().status(), 200);
    started();
    // It is still under way when the next minute begins.
    let mut third = house.ask("/a");
    house.until_waiting(1);
    assert!(starts.try_recv().is_err());
    house.advance(MINUTE);
    house.until_waiting(0);
    // The upstream may answer either of them first.
    for _ in 0..2 {
        go.send(()).expect("the upstream waits");
    }
    for client in [&mut second, &mut third] {
        assert_eq!(client.read().status(), 200);
    }
}
