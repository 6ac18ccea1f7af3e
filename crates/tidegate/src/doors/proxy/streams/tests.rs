//! How a client is cut, tick by tick, while hyper has nothing to do.

use std::future::pending;
use std::sync::Arc;
use std::task::Waker;

use tidegate_core::Now;
use tidegate_core::time::SECOND;

use super::*;
use crate::clock::Clock;
use crate::doors::io::limits::{Bounds, Limits};
use crate::metrics::Door;
use crate::settings::listen::Allow;

const PATIENCE: Patience = Patience { head: 10, idle: 100, stall: 50, tunnel: 500 };

/// A place at a door that nobody else wants.
fn place() -> Place {
    let clock = Clock::manual(Now { mono: 1000 * SECOND, unix: 0 });
    let (per_source, trusted) = (None, Allow::default());
    let bounds = Bounds { connections: 1, per_source, trusted, keeps_descriptors_back: false };
    Limits::new(Door::Proxy, bounds, &Arc::default(), clock)
        .admit(None, &io::stdin())
        .expect("a place")
}

/// A client, and how it is cut while hyper has nothing to do: asked at each tick in turn.
struct Watched {
    ticks: Rc<Ticks>,
    pulse: Rc<Pulse>,
}

impl Watched {
    fn new() -> Self {
        let ticks = Rc::new(Ticks::default());
        ticks.advance(1000);
        let pulse = Pulse::new(&ticks, PATIENCE, place());
        Self { ticks, pulse }
    }

    /// Lets up to `count` ticks pass; after how many the client was cut, and why.
    fn pass(&self, count: Tick) -> Option<(Tick, Cut)> {
        let mut context = Context::from_waker(Waker::noop());
        let mut watch = pin!(self.pulse.bounds(pending::<()>()));
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
fn each_phase_has_its_own_patience() {
    assert_eq!(Watched::new().pass(1000), Some((100, Cut::Idle)), "said nothing");
    let client = Watched::new();
    client.pulse.begin();
    assert_eq!(client.pass(1000), None, "what we take does not count");
    client.pulse.end();
    assert_eq!(client.pass(60), None);
    client.pulse.has_read();
    assert_eq!(client.pass(1000), Some((10, Cut::SlowHead)), "a head that does not end");
    let client = Watched::new();
    for _ in 0..9 {
        client.pulse.has_read();
        assert_eq!(client.pass(1), None);
    }
    client.pulse.has_read();
    assert_eq!(client.pass(1000), Some((1, Cut::SlowHead)), "bytes now and then do not help");
    let client = Watched::new();
    client.pulse.begin();
    client.pulse.end();
    assert_eq!(client.pass(1000), Some((100, Cut::Idle)));
}

#[test]
fn a_body_that_outlives_its_request_is_no_head_and_no_idleness() {
    let client = Watched::new();
    client.pulse.begin();
    client.pulse.begin();
    client.pulse.end();
    client.pulse.has_read();
    assert_eq!(client.pass(1000), None);
    client.pulse.end();
    assert_eq!(client.pass(1000), Some((100, Cut::Idle)));
}

#[test]
fn what_moves_is_not_cut_and_what_stands_still_is() {
    let client = Watched::new();
    client.pulse.begin();
    client.pulse.want_body(true);
    for _ in 0..10 {
        assert_eq!(client.pass(40), None);
        client.pulse.has_read();
    }
    assert_eq!(client.pass(1000), Some((50, Cut::SlowBody)));
    client.pulse.want_body(false);
    client.pulse.stands_still(&client.pulse.write_blocked, true);
    assert_eq!(client.pass(30), None);
    client.pulse.stands_still(&client.pulse.write_blocked, true);
    assert_eq!(client.pass(1000), Some((20, Cut::SlowReader)), "counted from the beginning");
}

#[test]
fn a_client_that_closed_its_side_is_answered_for_as_long_as_it_takes_what_it_is_sent() {
    let context = Context::from_waker(Waker::noop());
    let client = Watched::new();
    assert!(!client.pulse.keeps_end(&context), "no request: the end is the end");
    client.pulse.begin();
    client.pulse.want_body(true);
    assert!(client.pulse.keeps_end(&context), "the rest of the body may be here");
    client.pulse.want_body(true);
    assert!(!client.pulse.keeps_end(&context), "it is not: the body breaks off");
    client.pulse.want_body(true);
    assert!(client.pulse.keeps_end(&context));
    client.pulse.want_body(false);
    assert!(client.pulse.keeps_end(&context) && client.pulse.has_ended());
    for _ in 0..3 {
        assert_eq!(client.pass(HALF_CLOSED_MAX - 1), None);
        client.pulse.has_written();
    }
    assert_eq!(client.pass(1000), Some((HALF_CLOSED_MAX, Cut::Left)));
}

#[test]
fn a_shared_connection_is_idle_only_while_it_has_no_request() {
    let client = Watched::new();
    client.pulse.share();
    client.pulse.has_read();
    assert_eq!(client.pass(99), None, "a ping is no head");
    client.pulse.begin();
    client.pulse.begin();
    client.pulse.end();
    assert_eq!(client.pass(1000), None);
    client.pulse.end();
    assert_eq!(client.pass(1000), Some((100, Cut::Idle)));
}
