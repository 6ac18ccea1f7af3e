//! A thousand requests that wait on one path while clients leave at random: never more than the
//! limit in a window, everybody who stays is served in the order of arrival, and nothing is left
//! behind.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, channel};

use tidegate::clock::Clock;
use tidegate_core::time::{DAY, MINUTE};

use super::house::{House, START};
use super::{Client, Upstream, eventually, ok};
use crate::program::PATIENCE;

const CLIENTS: usize = 1000;
const LIMIT: usize = 7;
/// How many leave before each window, and while it begins.
const LEAVE: usize = 3;

/// Numbers that look random and are always the same.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        (mixed >> 33) as usize % bound
    }
}

/// A request that reached the upstream: its number, and the minute in which it did.
type Start = (usize, u64);

struct Scene {
    house: House,
    starts: Receiver<Start>,
    clients: BTreeMap<usize, Client>,
    /// Who waits and will stay.
    left: Vec<usize>,
    served: Vec<Start>,
    windows: usize,
}

impl Scene {
    fn new(limit: &str) -> Self {
        let clock = Clock::manual(START);
        let (tell, starts) = channel();
        let upstream = {
            let clock = clock.clone();
            Upstream::answering(move |request| {
                let number = request.first.split(['?', ' ']).nth(2).expect("a number");
                let number = number.parse().expect("a number");
                // Nobody listens once the test is over.
                let _ = tell.send((number, clock.now().unix / MINUTE));
                ok("")
            })
        };
        let house = House::at(clock, upstream.address, limit);
        let (clients, left, served) = (BTreeMap::new(), Vec::new(), Vec::new());
        Self { house, starts, clients, left, served, windows: 1 }
    }

    /// All come, one after another, and as many as may go.
    fn gather(&mut self) {
        for number in 0..CLIENTS {
            self.clients.insert(number, self.house.ask(&format!("/busy?{number}")));
            if number < LIMIT {
                let start = self.starts.recv_timeout(PATIENCE).expect("it goes at once");
                assert_eq!(start.0, number);
                self.served.push(start);
            } else {
                self.left.push(number);
                self.house.until_waiting(self.left.len());
            }
        }
        assert_eq!(self.house.allowed(), LIMIT);
    }

    /// Some of those who wait change their mind.
    fn leavers(&mut self, dice: &mut Dice) -> Vec<Client> {
        let count = dice.below(LEAVE + 1).min(self.left.len());
        let leave = |_| {
            let number = self.left.remove(dice.below(self.left.len()));
            self.clients.remove(&number).expect("it has not left")
        };
        (0..count).map(leave).collect()
    }

    /// Notes who has started, but for those who have left meanwhile.
    fn drain(&mut self) {
        for start in self.starts.try_iter() {
            if self.clients.contains_key(&start.0) {
                self.left.retain(|number| *number != start.0);
                self.served.push(start);
            }
        }
    }

    /// The next minute begins, and while it does some leave.
    fn next_window(&mut self, dice: &mut Dice) {
        drop(self.leavers(dice));
        self.house.until_waiting(self.left.len());
        let leavers = self.leavers(dice);
        self.house.clock.advance(MINUTE);
        drop(leavers);
        self.windows += 1;
        let most = LIMIT * self.windows;
        // First all have left who wanted to, then all have gone who may.
        eventually(|| self.house.summary()["connections"] == self.clients.len());
        eventually(|| self.house.gate.waiting.is_empty() || self.house.allowed() == most);
        eventually(|| {
            self.drain();
            self.house.gate.waiting.len() == self.left.len()
        });
        assert!(self.house.allowed() <= most, "{} of {most}", self.house.allowed());
    }

    /// Everybody who stayed has an answer, and then nothing is left.
    fn end(mut self) {
        for client in self.clients.values_mut() {
            assert_eq!(client.read().status(), 200);
        }
        self.clients.clear();
        eventually(|| self.house.summary()["connections"] == 0);
        assert_eq!((self.house.gate.waiting.len(), self.house.gate.uses.len()), (0, 0));
        self.house.clock.advance(DAY);
        let limiter = &self.house.gate.limiter;
        eventually(|| {
            limiter.sweep(1000);
            // The other one is the probe's.
            limiter.size().keys == 1
        });
        self.house.close();
        assert_eq!(self.house.summary()["upstream_connections"], 0);
    }
}

/// Plays it all; returns the numbers of those who stayed in the order of their starts, by minute.
fn play(limit: &str, seed: u64) -> Vec<Vec<usize>> {
    let mut dice = Dice(seed);
    let mut scene = Scene::new(limit);
    scene.gather();
    while !scene.left.is_empty() {
        scene.next_window(&mut dice);
    }
    assert_eq!(scene.served.len(), scene.clients.len(), "everybody who stayed was served");
    assert!(scene.clients.len() < CLIENTS - CLIENTS / 8, "hardly anybody left");
    let minutes: Vec<u64> = scene.served.iter().map(|(_, minute)| *minute).collect();
    assert!(minutes.is_sorted());
    let by_minute = scene.served.chunk_by(|one, next| one.1 == next.1);
    let by_minute = by_minute.map(|starts| starts.iter().map(|(number, _)| *number).collect());
    let by_minute: Vec<Vec<usize>> = by_minute.collect();
    scene.end();
    by_minute
}

#[test]
fn a_thousand_wait_for_their_minutes_and_some_leave() {
    let mut last = None;
    for mut started in play(&format!("limit = '{LIMIT} per minute'"), 1) {
        assert!(started.len() <= LIMIT, "{started:?}");
        // Those of one minute go together, over several connections; minutes do not mix.
        started.sort_unstable();
        assert!(last < started.first().copied(), "{last:?} before {started:?}");
        last = started.last().copied();
    }
}

#[test]
fn a_thousand_go_one_by_one_in_the_exact_order_of_arrival() {
    let limit = format!("limit = ['{LIMIT} per minute', '1 in flight']");
    let by_minute = play(&limit, 2);
    assert!(by_minute.iter().all(|started| started.len() <= LIMIT));
    let order = by_minute.concat();
    assert!(order.is_sorted(), "{order:?}");
}
