//! One loop on a manual clock, with clients on real sockets: who makes room, and what is said
//! where there is none.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use tidegate_core::Now;
use tidegate_core::time::{DAY, HOUR};

use super::handler::LINGER_MAX;
use super::*;
use crate::clock::Clock;
use crate::config::Config as File;
use crate::doors::io::event_loop::{ACCEPT_PAUSE, FRESH_MAX};
use crate::doors::io::inbox::LoopInbox;
use crate::doors::io::listener;
use crate::doors::io::test_loop::TestLoop;
use crate::limiter::Limiter;
use crate::metrics::{Metrics, Sizes};

const START: Now = Now { mono: HOUR, unix: 20_000 * DAY };

const PLENTY: &str = "
[[jarl]]
service = 'a'
listen = '127.0.0.1:0'
limit = '1000 per 1s'
";

/// A loop that nobody turns but the test, and where its clients call.
struct House {
    turning: TestLoop<JarlHandler>,
    door: SocketAddr,
    limiter: Arc<Limiter>,
}

impl House {
    /// The loop of service `a`, at which `max` clients may linger.
    fn new(file: &str, max: u32) -> Self {
        let config = File::parse("t", file).expect("a sound file");
        let (memory, metrics) = (config.file.memory.settings(), Arc::new(Metrics::new()));
        let clock = Clock::manual(START);
        let limiter = Limiter::new(clock.clone(), metrics.clone(), config.rules, memory);
        if file.contains("[store]") {
            limiter.use_store(&config.file.store).expect("sound settings");
        }
        let bound = listener::bind_tcp(([127, 0, 0, 1], 0).into(), 1).expect("a port");
        let (door, mut listeners) = bound;
        let inbox = LoopInbox::new().expect("an eventfd");
        let key = config.file.jarl[0].key().into();
        let handler = JarlHandler::of_key(limiter.handle(Door::Jarl), key, inbox.clone());
        let turning = TestLoop::new(handler, inbox, listeners.pop(), (clock, metrics), max);
        Self { turning, door, limiter }
    }

    /// Clients that call at once, and are let in.
    fn callers(&mut self, count: usize) -> Vec<TcpStream> {
        let connect = |_| TcpStream::connect(self.door).expect("somebody listens");
        let callers: Vec<TcpStream> = (0..count).map(connect).collect();
        self.turning.accept(count);
        callers
    }

    /// Which clients linger, oldest first. None does from then on.
    fn lingering(&mut self) -> Vec<SocketAddr> {
        self.turning.dismiss_all()
    }

    fn count(&self, series: &str) -> u64 {
        let page = self.limiter.metrics().encode(Sizes::default());
        let line = page.lines().find_map(|line| line.strip_prefix(series));
        line.map_or(0, |count| count.trim().parse().expect("a number"))
    }

    fn turned_away(&self) -> u64 {
        self.count("tidegate_bad_input_total{door=\"jarl\",reason=\"too_many_connections\"}")
    }
}

fn read(caller: &mut TcpStream) -> String {
    let mut answer = String::new();
    caller.read_to_string(&mut answer).expect("a clean end");
    answer
}

fn addresses(callers: &[TcpStream]) -> Vec<SocketAddr> {
    callers.iter().map(|caller| caller.local_addr().expect("an address")).collect()
}

#[test]
fn who_has_lingered_longest_makes_room_and_nobody_does_before() {
    let mut house = House::new(PLENTY, 2);
    let mut callers = house.callers(2);
    assert_eq!(house.turned_away(), 0, "there was room");
    callers.extend(house.callers(1));
    assert_eq!(house.turned_away(), 1);
    assert_eq!(house.lingering(), addresses(&callers)[1..]);
    assert!(callers.iter_mut().all(|caller| read(caller) == "0.000"));
}

#[test]
fn who_makes_room_is_not_reset_by_what_it_sent() {
    let mut house = House::new(PLENTY, 1);
    let mut first = house.callers(1).remove(0);
    first.write_all(b"hello").expect("it is still there");
    while !house.turning.first_has_input() {}
    let second = house.callers(1);
    assert_eq!(house.lingering(), addresses(&second));
    assert_eq!(read(&mut first), "0.000");
    assert!(first.take_error().expect("a socket").is_none(), "a reset came");
}

/// A socket that is no listener stands for a system that is short of something.
#[test]
fn whoever_lingers_makes_room_before_accepting_pauses() {
    let mut house = House::new(PLENTY, 8);
    let _callers = house.callers(2);
    house.turning.break_listener();
    assert_eq!(house.turning.accept_batch(1), (1, false));
    assert!(!house.turning.pauses(), "somebody made room");
    assert_eq!(house.turning.accept_batch(5), (1, true));
    assert!(house.turning.connections() == 0 && house.turning.pauses());
    house.turning.advance(ACCEPT_PAUSE - 1);
    assert!(house.turning.pauses(), "not yet");
    house.turning.advance(1);
    assert!(!house.turning.pauses() && house.turning.waits_for_clients());
}

#[test]
fn who_stays_is_watched_and_then_left() {
    let mut house = House::new(PLENTY, 8);
    let callers = house.callers(1);
    house.turning.advance(FRESH_MAX - 1);
    assert!(house.turning.has_fresh(), "it may leave by itself");
    house.turning.advance(1);
    assert!(!house.turning.has_fresh(), "it was looked at");
    house.turning.advance(LINGER_MAX - FRESH_MAX - 1);
    assert_eq!(house.turning.connections(), 1);
    house.turning.advance(1);
    assert_eq!(house.turning.connections(), 0);
    drop(callers);
}

/// A loop that asks a store which is away, and what two callers are told.
fn told_without_store(on_store_error: &str) -> (House, Vec<String>) {
    let file = format!(
        "{PLENTY}[store]\nkind = 'redis'\nurl = 'redis://127.0.0.1:1'\n\
         [[rule]]\nmatch = 'jarl service=a'\nlimit = '1 per 1h'\nalgorithm = 'jarl'\n\
         exact = true\non_store_error = '{on_store_error}'\n"
    );
    let mut house = House::new(&file, 8);
    let mut callers = house.callers(2);
    while house.turning.has_waiting() {
        house.turning.turn();
    }
    let mut told: Vec<String> = callers.iter_mut().map(read).collect();
    told.sort_unstable();
    (house, told)
}

/// The rules decide for callers whom the store does not answer.
#[test]
fn who_has_no_store_is_told_what_the_rule_says() {
    let away = "tidegate_store_errors_total{store=\"redis\",kind=\"away\"}";
    let told = [
        ("allow", ["0.000", "0.000"]),
        ("deny", ["1.000", "1.000"]),
        ("local", ["0.000", "3600.000"]),
    ];
    for (on_store_error, expected) in told {
        let (house, told) = told_without_store(on_store_error);
        assert_eq!(told, expected, "{on_store_error}");
        assert_eq!(house.count(away), 2);
    }
}
