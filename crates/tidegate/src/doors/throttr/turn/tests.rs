//! A loop that is turned by hand, with a clock that is moved by hand.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use tidegate_core::Now;
use tidegate_wire::throttr::{Request, ValueSize};

use super::super::corridor::Corridor;
use super::super::guest::Floor;
use super::super::hall::Hall;
use super::super::permits::Permits;
use super::*;
use crate::clock::Clock;
use crate::doors::io::limits::Bounds;
use crate::metrics::Metrics;
use crate::records::{Records, Settings};

const SIZE: ValueSize = ValueSize::Bits16;

/// A loop that turns when it is told to.
fn open() -> (Loop, Ready) {
    let clock = Clock::manual(Now { mono: 1 << 60, unix: 1 << 60 });
    let records = Records::new(Settings { max_records: 100, max_bytes: 64 << 20 });
    let floor = Floor::new(Arc::new(Post::new().expect("an eventfd")));
    let (hall, metrics) = (Hall::new(clock.clone()), Arc::new(Metrics::new()));
    let corridor = Corridor::new(records, hall, floor, metrics, SIZE, 100);
    let trusted = Allow::default();
    let bounds =
        Bounds { connections: 3, per_source: None, trusted, keeps_descriptors_back: false };
    let parts = Parts {
        limits: Limits::new(Door::Throttr, bounds, &Arc::default(), clock.clone()),
        bench: Bench::new(corridor, clock),
        listener: None,
        deal_to: Vec::new(),
        allow: Arc::default(),
        idle_max: Duration::from_secs(60),
    };
    (Loop::new(parts).expect("an epoll"), Ready::new())
}

/// A client of this loop.
fn client(turning: &mut Loop) -> UnixStream {
    let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
    ours.set_nonblocking(true).expect("a socket");
    theirs.set_nonblocking(true).expect("a socket");
    let place = turning.limits.admit(None, &ours).expect("a place");
    turning.seat(ours.into(), Peer::Unix, place);
    theirs
}

fn say(mut client: &UnixStream, request: Request<'_>) {
    let mut bytes = Vec::new();
    request.encode(SIZE, &mut bytes).expect("a request that can be written");
    client.write_all(&bytes).expect("the socket takes it");
}

/// What has come so far.
fn heard(mut client: &UnixStream) -> Vec<u8> {
    let mut bytes = vec![0; 1000];
    let count = client.read(&mut bytes).unwrap_or(0);
    bytes.truncate(count);
    bytes
}

#[test]
fn an_event_goes_out_before_the_reply_to_what_came_later() {
    let (mut turning, mut ready) = open();
    let reader = client(&mut turning);
    // Somebody in another loop publishes, and the reader asks before this one looks.
    let hall = turning.bench.corridor.hall.clone();
    let mut floor = Floor::new(Arc::new(Post::new().expect("an eventfd")));
    let now = turning.bench.clock.now();
    let writer = Guest::enter(Peer::Unix, 0, &hall, &mut floor, now).expect("randomness");
    assert!(hall.channels.publish(b"*", b"hi", &writer.card).somebody);
    say(&reader, Request::Query { key: b"none" });
    turning.turn(&mut ready);
    assert_eq!(heard(&reader), b"\x19\x01\x02\x00*hi\x00");
}

#[test]
fn a_bell_that_comes_after_its_letter_was_read_falls_silent() {
    let (mut turning, mut ready) = open();
    rustix::io::write(turning.post.bell(), &1u64.to_ne_bytes()).expect("an eventfd");
    turning.turn(&mut ready);
    let left = rustix::io::read(turning.post.bell(), &mut [0; 8]);
    assert_eq!(left, Err(rustix::io::Errno::AGAIN));
}

#[test]
fn who_is_silent_for_too_long_is_closed() {
    let (mut turning, mut ready) = open();
    let (silent, busy) = (client(&mut turning), client(&mut turning));
    turning.bench.clock.advance(50 * SECOND);
    say(&busy, Request::Query { key: b"none" });
    turning.turn(&mut ready);
    turning.bench.clock.advance(11 * SECOND);
    turning.look_around();
    assert_eq!(turning.connections.len(), 1);
    assert_eq!((&silent).read(&mut [0; 9]).expect("the end"), 0);
    assert_eq!(heard(&busy), [0]);
}

#[test]
fn who_is_idle_gives_way_and_who_listens_does_not() {
    let (mut turning, mut ready) = open();
    let (listening, idle, begun) =
        (client(&mut turning), client(&mut turning), client(&mut turning));
    say(&listening, Request::Subscribe { channel: b"news" });
    (&begun).write_all(&[2]).expect("the socket takes it");
    turning.turn(&mut ready);
    turning.bench.clock.advance(2 * SECOND);
    let _newcomer = client(&mut turning);
    turning.turn(&mut ready);
    assert_eq!((&idle).read(&mut [0; 9]).expect("the end"), 0);
    assert_eq!((turning.connections.len(), heard(&listening)), (3, vec![1]));

    // A request that stands still is no reason to stay, and neither is one that is no more.
    turning.bench.clock.advance(5 * SECOND);
    turning.look_around();
    let _newcomer = client(&mut turning);
    turning.turn(&mut ready);
    assert_eq!((&begun).read(&mut [0; 9]).expect("the end"), 0);
    turning.bench.clock.advance(61 * SECOND);
    turning.look_around();
    assert_eq!(turning.connections.len(), 1, "only who listens is left");
    say(&listening, Request::Unsubscribe { channel: b"news" });
    turning.turn(&mut ready);
    turning.bench.clock.advance(61 * SECOND);
    turning.look_around();
    assert_eq!(turning.connections.len(), 0);
}

#[test]
fn who_was_told_to_go_may_read_for_a_while() {
    let (mut turning, mut ready) = open();
    let lost = client(&mut turning);
    (&lost).write_all(&[2, 0, 0xff]).expect("the socket takes it");
    turning.turn(&mut ready);
    assert_eq!(heard(&lost), [0]);
    assert_eq!((&lost).read(&mut [0; 9]).expect("the end"), 0);
    assert_eq!(turning.connections.len(), 1, "closing could take back what it has not read");
    turning.bench.clock.advance(LINGER_MAX + 1);
    turning.look_around();
    assert_eq!(turning.connections.len(), 0);
}

#[test]
fn who_does_not_read_loses_events() {
    const EVENTS: u64 = 100;
    let (mut turning, mut ready) = open();
    let _deaf = client(&mut turning);
    let hall = turning.bench.corridor.hall.clone();
    let mut floor = Floor::new(Arc::new(Post::new().expect("an eventfd")));
    let now = turning.bench.clock.now();
    let writer = Guest::enter(Peer::Unix, 0, &hall, &mut floor, now).expect("randomness");
    for _ in 0..EVENTS {
        hall.channels.publish(b"*", &[7; 60_000], &writer.card);
        turning.turn(&mut ready);
    }
    let lost = hall.sum().figure(Figure::Lost).total;
    assert!(lost > EVENTS / 2 && lost < EVENTS, "{lost}");
}

#[test]
fn replies_to_a_client_that_left_reach_nobody_else() {
    let (mut turning, mut ready) = open();
    let (leaving, staying) = (client(&mut turning), client(&mut turning));
    say(&leaving, Request::Whoami);
    drop(leaving);
    turning.turn(&mut ready);
    assert_eq!(turning.connections.len(), 1, "its reply could not be written");
    say(&staying, Request::Query { key: b"none" });
    turning.turn(&mut ready);
    assert_eq!(heard(&staying), [0]);
}

#[test]
fn who_leaves_a_long_answer_unread_loses_it_sooner_if_others_wait() {
    for (others_wait, patience) in [(false, 30 * SECOND), (true, SECOND)] {
        let (mut turning, _) = open();
        let permits = Permits::new(4 << 20);
        let _deaf = client(&mut turning);
        let mut permit = permits.wait(1);
        permit.set_bytes(4 << 20);
        let bytes = vec![0; 4 << 20];
        turning.answered(Answer { slot: 0, generation: 0, bytes, permit });
        thread::scope(|scope| {
            if others_wait {
                scope.spawn(|| drop(permits.wait(1)));
                while !permits.are_wanted() {
                    thread::yield_now();
                }
            }
            turning.bench.clock.advance(patience);
            turning.look_around();
            assert_eq!(turning.connections.len(), 1);
            turning.bench.clock.advance(SECOND + 1);
            turning.look_around();
            assert_eq!(turning.connections.len(), 0);
        });
    }
}
