//! Failures of the upstream: all are counted, some are logged.
//!
//! An upstream that cannot be reached is logged where connections are made, when that begins and
//! when it ends. Other failures are logged here: at most one line per kind every [`TELL_EVERY`]
//! ticks, with how many there were since the last line.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use super::figures::{Lane, UpstreamError};
use super::ticks::{Tick, Ticks};

/// The least number of ticks between two log lines of one kind.
const TELL_EVERY: Tick = 100;

/// What one loop remembers of its upstream's failures.
pub(super) struct Failures {
    proxy: Arc<str>,
    lane: Arc<Lane>,
    ticks: Rc<Ticks>,
    timeout: Told,
    closed: Told,
    body: Told,
    protocol: Told,
}

/// When a kind was last logged, and how often it has happened since.
#[derive(Default)]
struct Told {
    at: Cell<Option<Tick>>,
    since: Cell<u64>,
}

impl Told {
    /// Counts one; returns how many there were since the last line, if a line is due.
    fn count(&self, now: Tick) -> Option<u64> {
        let count = self.since.get() + 1;
        let due = self.at.get().is_none_or(|at| now >= at + TELL_EVERY);
        self.since.set(if due { 0 } else { count });
        if due {
            self.at.set(Some(now));
        }
        due.then_some(count)
    }
}

impl Failures {
    pub(super) fn new(proxy: Arc<str>, lane: Arc<Lane>, ticks: Rc<Ticks>) -> Self {
        Self {
            proxy,
            lane,
            ticks,
            timeout: Told::default(),
            closed: Told::default(),
            body: Told::default(),
            protocol: Told::default(),
        }
    }

    /// A request has failed at its upstream.
    pub(super) fn count(&self, error: UpstreamError) {
        self.lane.failed(error);
        let (told, what) = match error {
            // Logged where connections are made.
            UpstreamError::Connect | UpstreamError::BackingOff => return,
            UpstreamError::Timeout => (&self.timeout, "the upstream did not answer in time"),
            UpstreamError::Closed => (&self.closed, "the upstream closed before it answered"),
            UpstreamError::Body => (&self.body, "the upstream broke off within its answer"),
            UpstreamError::Protocol => (&self.protocol, "the upstream's answer is not valid HTTP"),
        };
        if let Some(requests) = told.count(self.ticks.now()) {
            tracing::warn!(proxy = %self.proxy, requests, "{what}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_told_at_once_and_the_others_with_the_next() {
        let told = Told::default();
        assert_eq!(told.count(1000), Some(1));
        assert_eq!((told.count(1000), told.count(1099)), (None, None));
        assert_eq!(told.count(1100), Some(3));
        assert_eq!(told.count(1101), None);
        assert_eq!(told.count(9000), Some(2));
    }
}
