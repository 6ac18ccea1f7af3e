//! Uses that a remote store grants in one window and that are told in the next: they are given back
//! and taken anew. The store is real, and halted while the clock is moved by hand.

use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use super::remote::attempt;
use super::stores::{at, decide_anywhere, node, runtime};
use super::*;
use crate::stores::remote::engines::{redis, until};
use crate::stores::remote::settings::StoreKind;
use crate::waiting::{
    Admitted, WaitFuture, WaitRequest, WaiterBounds, WaiterLimit, WaitingRequests,
};

const KEY: &[u8] = b"k a";

fn poll(request: Pin<&mut WaitFuture<'_>>) -> Option<Admitted> {
    match request.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Some(result.expect("it is admitted")),
        Poll::Pending => None,
    }
}

/// What is left of each limit. Whatever was asked for before has been answered then: questions
/// about one key are answered in their order.
fn left(handle: &LimiterHandle) -> Vec<u64> {
    let peek = runtime().block_on(decide_anywhere(handle, &[KEY], Op::Peek(1), true));
    let rows = peek.expect("a valid request").rows;
    rows.limits.iter().map(|row| row.verdict.remaining).collect()
}

/// A use that is granted in the last moment of a window, of a request that has or has not waited in
/// line, starts in the window that knows of it.
fn starts_where_it_is_counted(algorithm: Algorithm, in_line: bool) {
    let log = limit(10, 30 * DAY, Algorithm::SlidingLog);
    let rules = vec![rule("k", vec![limit(1, DAY, algorithm), log])];
    let server = redis::Server::start(&[]);
    let clock = Clock::manual(START);
    let limiter = node(clock.clone(), rules, &at(StoreKind::Redis, vec![server.url()]));
    let waiting = WaitingRequests::new(&limiter);
    let waiters = WaiterLimit::new(limiter.metrics(), Door::Http, WaiterBounds::default());
    let handle = limiter.handle(Door::Http);
    let ask = WaitRequest { key: KEY, cost: 1, max_wait: None, can_end: true };
    let mut request = pin!(waiting.admit(&handle, &waiters, ask));
    let mut window = START.unix;
    if in_line {
        let taken = runtime().block_on(decide_anywhere(&handle, &[KEY], Op::Take(1), true));
        assert!(taken.expect("a valid request").is_allowed());
        until(|| {
            assert_eq!(poll(request.as_mut()), None, "another has the only use");
            waiting.len() == 1
        });
        // All that it has asked in this window is answered.
        left(&handle);
        clock.advance(DAY);
        window += DAY;
    }
    clock.advance(DAY - 5);
    server.halt();
    // If the first look finds the answer to an earlier question, the second asks anew.
    for _ in 0..2 {
        assert_eq!(poll(request.as_mut()), None, "the store has not answered");
    }
    server.go_on();
    let before = if in_line { 8 } else { 9 };
    assert_eq!(left(&handle), [0, before], "it was granted");
    clock.advance(10);
    window += DAY;
    let mut admitted = None;
    until(|| {
        admitted = poll(request.as_mut());
        admitted.is_some()
    });
    let started = admitted.expect("it is admitted").started.unix;
    assert_eq!(started - started % DAY, window, "where it starts");
    assert_eq!(left(&handle), [0, before], "counted once, and where it starts");
}

#[test]
fn a_use_whose_window_has_ended_is_taken_anew() {
    for algorithm in [Algorithm::FixedWindow, Algorithm::InFlight { per_window: true }] {
        for in_line in [false, true] {
            starts_where_it_is_counted(algorithm, in_line);
        }
    }
}

#[test]
fn what_is_given_back_after_its_window_is_not_taken_from_the_next() {
    let server = redis::Server::start(&[]);
    let clock = Clock::manual(START);
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindow] {
        let name = format!("{algorithm:?}");
        let settings = at(StoreKind::Redis, vec![server.url()]);
        let settings =
            crate::stores::remote::settings::Settings { prefix: Some(name.clone()), ..settings };
        let rules = vec![rule("k", vec![limit(3, DAY, algorithm)])];
        let handle = node(clock.clone(), rules, &settings).handle(Door::Http);
        let (pending, early) = attempt(&handle, KEY);
        assert!(early.verdict.is_allowed());
        clock.advance(DAY + DAY / 2);
        let taken = runtime().block_on(decide_anywhere(&handle, &[KEY], Op::Take(1), true));
        assert!(taken.expect("a valid request").is_allowed());
        let before = left(&handle);
        pending.give_back(early);
        assert_eq!(left(&handle), before, "{name}");
    }
}
