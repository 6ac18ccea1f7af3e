//! One loop on a manual clock, with clients on real sockets: who makes room, and what is said
//! where there is none.

use std::io::{Read as _, Write as _};
use std::net::{TcpStream, UdpSocket};

use tidegate_core::time::{DAY, HOUR};

use super::*;
use crate::clock::Clock;
use crate::config::Config;
use crate::doors::io::tcp;
use crate::limiter::Limiter;

const START: Now = Now { mono: HOUR, unix: 20_000 * DAY };

const PLENTY: &str = "
[[jarl]]
service = 'a'
listen = '127.0.0.1:0'
limit = '1000 per 1s'
";

/// A loop that nobody turns but the test, and where its clients call.
struct House {
    turning: Loop,
    door: SocketAddr,
    limiter: Arc<Limiter>,
}

impl House {
    /// The loop of service `a`, at which `max` clients may linger.
    fn new(file: &str, max: usize) -> Self {
        let config = Config::parse("t", file).expect("a sound file");
        let (memory, metrics) = (config.file.memory.settings(), Metrics::new().into());
        let limiter = Limiter::new(Clock::manual(START), metrics, config.rules, memory);
        if file.contains("[store]") {
            limiter.keep_elsewhere(&config.file.store).expect("sound settings");
        }
        let (door, mut listeners) = tcp::bind(([127, 0, 0, 1], 0).into(), 1).expect("a port");
        let listener = listeners.pop().expect("a listener");
        let corridor = Corridor::new(limiter.desk(Door::Jarl), "a");
        let allow = Arc::new(ArcSwap::from_pointee(Allow::default()));
        let sources = Sources::new(100, None, Allow::default());
        let turning =
            Loop::new(corridor, listener, allow, max, sources, Arc::default()).expect("an epoll");
        Self { turning, door, limiter }
    }

    /// Clients that call at once, and are taken in.
    fn callers(&mut self, count: usize) -> Vec<TcpStream> {
        let connect = |_| TcpStream::connect(self.door).expect("somebody listens");
        let callers: Vec<TcpStream> = (0..count).map(connect).collect();
        let mut found = 0;
        while found < count {
            found += self.turning.accept(count - found);
        }
        callers
    }

    /// Moves the time, and does what is due then.
    fn advance(&mut self, span: Nanos) {
        self.limiter.clock().advance(span);
        self.turning.now = self.limiter.clock().now();
        self.turning.see_out();
    }

    /// Which clients linger, oldest first. None does from then on.
    fn lingering(&mut self) -> Vec<SocketAddr> {
        let guests = std::iter::from_fn(|| self.turning.lingering.remove_oldest());
        let peer = |caller: Caller| TcpStream::from(caller.socket).peer_addr().expect("a client");
        guests.map(|guest| peer(guest.socket)).collect()
    }

    fn count(&self, series: &str) -> u64 {
        let page = self.limiter.metrics().encode(Default::default());
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
    let ticket = Ticket { place: 0, generation: 0 };
    let guest = &house.turning.lingering.at(ticket).expect("the first guest").socket;
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    while recv(guest, &mut [0; 8], flags).is_err() {}
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
    let broken = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let broken = TcpListener::from(OwnedFd::from(broken));
    let name = EventData::new_u64(LISTENER);
    epoll::add(&house.turning.epoll, &broken, name, EventFlags::IN).expect("room");
    house.turning.listener = Some(broken);
    assert_eq!(house.turning.take_in(1), (1, false));
    assert_eq!(house.turning.accept_at, None, "somebody made room");
    assert_eq!(house.turning.take_in(5), (1, true));
    assert!(house.turning.lingering.is_empty());
    assert_eq!(house.turning.accept_at, Some(START.mono + ACCEPT_PAUSE));
    house.advance(ACCEPT_PAUSE - 1);
    assert!(house.turning.accept_at.is_some(), "not yet");
    house.advance(1);
    assert_eq!(house.turning.accept_at, None);
    let listener = house.turning.listener.as_ref().expect("it is still there");
    epoll::delete(&house.turning.epoll, listener).expect("it is waited for again");
}

#[test]
fn who_stays_is_watched_and_then_left() {
    let mut house = House::new(PLENTY, 8);
    let callers = house.callers(1);
    house.advance(FRESH_MAX - 1);
    assert!(house.turning.lingering.fresh_since().is_some(), "it may leave by itself");
    house.advance(1);
    assert!(house.turning.lingering.fresh_since().is_none(), "it was looked at");
    house.advance(LINGER_MAX - FRESH_MAX - 1);
    assert!(!house.turning.lingering.is_empty());
    house.advance(1);
    assert!(house.turning.lingering.is_empty());
    drop(callers);
}

/// A loop that asks a store which is away, with so much room; what two callers are told.
fn told_without_store(on_store_error: &str, room: usize) -> (House, Vec<String>) {
    let file = format!(
        "{PLENTY}[store]\nkind = 'redis'\nurl = 'redis://127.0.0.1:1'\n\
         [[rule]]\nmatch = 'jarl service=a'\nlimit = '1 per 1h'\nalgorithm = 'jarl'\n\
         exact = true\non_store_error = '{on_store_error}'\n"
    );
    let mut house = House::new(&file, 8);
    let mailbox = Mailbox::new(room).expect("a bell");
    let bell = EventData::new_u64(BELL);
    epoll::add(&house.turning.epoll, mailbox.bell(), bell, EventFlags::IN).expect("room");
    house.turning.pending = Some(Pending { mailbox: mailbox.clone(), booked: Vec::new() });
    let mut callers = house.callers(2);
    house.turning.answer_booked();
    while mailbox.is_owed() {
        house.turning.turn(&mut Vec::with_capacity(EVENTS_MAX));
    }
    let mut told: Vec<String> = callers.iter_mut().map(read).collect();
    told.sort_unstable();
    (house, told)
}

/// The rules decide for those whom there is no room to keep, and for those whom the store does not
/// answer, and in the same words.
#[test]
fn who_is_not_kept_is_told_what_the_rule_says() {
    let errors = |kind| format!("tidegate_store_errors_total{{store=\"redis\",kind=\"{kind}\"}}");
    let told = [
        ("allow", ["0.000", "0.000"]),
        ("deny", ["1.000", "1.000"]),
        ("local", ["0.000", "3600.000"]),
    ];
    for (on_store_error, expected) in told {
        for room in 0..=2 {
            let (house, told) = told_without_store(on_store_error, room);
            assert_eq!(told, expected, "{on_store_error}, room for {room}");
            assert_eq!(house.count(&errors("crowded")), 2 - room as u64);
            assert_eq!(house.count(&errors("away")), room as u64);
        }
    }
}
