//! When a client is cut off, tick by tick, while hyper has nothing to do.

use std::future::pending;
use std::io;
use std::sync::Arc;
use std::task::Waker;

use tidegate_core::Now;
use tidegate_core::time::SECOND;

use super::*;
use crate::clock::Clock;
use crate::doors::io::limits::{ConnectionLimits, DoorLimits};
use crate::metrics::Door;
use crate::settings::listen::Allow;

const TIMEOUTS: ClientTimeouts = ClientTimeouts { head: 10, idle: 100, stall: 50, tunnel: 500 };

/// A place at a door without other clients.
fn place() -> ConnectionPlace {
    let clock = Clock::manual(Now { mono: 1000 * SECOND, unix: 0 });
    let (per_source, trusted) = (None, Allow::default());
    let bounds = DoorLimits {
        connections: 1,
        per_source,
        trusted,
        keeps_descriptors_back: false,
        idle_gives_way: true,
    };
    ConnectionLimits::new(Door::Proxy, bounds, &Arc::default(), clock)
        .admit(None, &io::stdin())
        .expect("a place")
}

/// A client, and how it is cut while hyper has nothing to do: asked at each tick in turn.
struct Watched {
    ticks: Rc<Ticks>,
    activity: Rc<ClientActivity>,
}

impl Watched {
    fn new() -> Self {
        let ticks = Rc::new(Ticks::default());
        ticks.advance(1000);
        let activity = ClientActivity::new(&ticks, TIMEOUTS, place());
        Self { ticks, activity }
    }

    /// Lets up to `count` ticks pass; after how many the client was cut, and why.
    fn pass(&self, count: Tick) -> Option<(Tick, Cut)> {
        let mut context = Context::from_waker(Waker::noop());
        let mut watch = pin!(self.activity.bounds(pending::<()>()));
        for passed in 1..=count {
            assert!(watch.as_mut().poll(&mut context).is_pending());
            self.ticks.advance(self.ticks.now() + 1);
            if let Poll::Ready(Err(cut)) = watch.as_mut().poll(&mut context) {
                return Some((passed, cut));
            }
        }
        None
    }
}

#[test]
fn each_phase_has_its_own_timeout() {
    assert_eq!(Watched::new().pass(1000), Some((100, Cut::Idle)), "said nothing");
    let client = Watched::new();
    client.activity.begin_request();
    assert_eq!(client.pass(1000), None, "what we take does not count");
    client.activity.end_request();
    assert_eq!(client.pass(60), None);
    client.activity.has_read();
    assert_eq!(client.pass(1000), Some((10, Cut::SlowHead)), "a head that does not end");
    let client = Watched::new();
    for _ in 0..9 {
        client.activity.has_read();
        assert_eq!(client.pass(1), None);
    }
    client.activity.has_read();
    assert_eq!(client.pass(1000), Some((1, Cut::SlowHead)), "bytes now and then do not help");
    let client = Watched::new();
    client.activity.begin_request();
    client.activity.end_request();
    assert_eq!(client.pass(1000), Some((100, Cut::Idle)));
}

#[test]
fn a_body_that_outlives_its_request_is_no_head_and_no_idleness() {
    let client = Watched::new();
    client.activity.begin_request();
    client.activity.begin_request();
    client.activity.end_request();
    client.activity.has_read();
    assert_eq!(client.pass(1000), None);
    client.activity.end_request();
    assert_eq!(client.pass(1000), Some((100, Cut::Idle)));
}

#[test]
fn what_moves_is_not_cut_and_what_stands_still_is() {
    let client = Watched::new();
    client.activity.begin_request();
    client.activity.want_body(true);
    for _ in 0..10 {
        assert_eq!(client.pass(40), None);
        client.activity.has_read();
    }
    assert_eq!(client.pass(1000), Some((50, Cut::SlowBody)));
    client.activity.want_body(false);
    client.activity.set_write_blocked(true);
    assert_eq!(client.pass(30), None);
    client.activity.set_write_blocked(true);
    assert_eq!(client.pass(1000), Some((20, Cut::SlowReader)), "counted from the beginning");
}

#[test]
fn a_client_that_closed_its_side_is_answered_for_as_long_as_it_takes_what_it_is_sent() {
    let context = Context::from_waker(Waker::noop());
    let client = Watched::new();
    assert!(!client.activity.hides_end(&context), "no request: the end is the end");
    client.activity.begin_request();
    client.activity.want_body(true);
    assert!(client.activity.hides_end(&context), "the rest of the body may be here");
    client.activity.want_body(true);
    assert!(!client.activity.hides_end(&context), "it is not: the body breaks off");
    client.activity.want_body(true);
    assert!(client.activity.hides_end(&context));
    client.activity.want_body(false);
    assert!(client.activity.hides_end(&context) && client.activity.half_closed.get().is_some());
    for _ in 0..3 {
        assert_eq!(client.pass(HALF_CLOSED_MAX - 1), None);
        client.activity.has_written();
    }
    assert_eq!(client.pass(1000), Some((HALF_CLOSED_MAX, Cut::Left)));
}

#[test]
fn a_shared_connection_is_idle_only_while_it_has_no_request() {
    let client = Watched::new();
    client.activity.begin_multiplexing();
    client.activity.has_read();
    assert_eq!(client.pass(99), None, "a ping is no head");
    client.activity.begin_request();
    client.activity.begin_request();
    client.activity.end_request();
    assert_eq!(client.pass(1000), None);
    client.activity.end_request();
    assert_eq!(client.pass(1000), Some((100, Cut::Idle)));
}
