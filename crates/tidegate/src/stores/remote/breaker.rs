//! Whether the store is asked at all: not while it is known to be away.
//!
//! A lost connection opens the breaker at once; answers that fail or do not come open it after a
//! few in a row. While it is open, no update goes to the store: the worker tries the store with one
//! heartbeat at a time, and the first answer closes the breaker. Only faults of the whole store
//! count. A busy key does not, nor does one failed node of several, nor a store that is late with
//! some answers while others come. Pure.

use tidegate_core::Nanos;

use super::engine::Blame;

/// Failures in a row that open it.
const FAILURES_MAX: u32 = 3;

/// The breaker of one store.
#[derive(Debug)]
pub(super) struct Breaker {
    failures: u32,
    open: bool,
    /// Since when the store has been silent, not counting time in which the worker did not run.
    silent_since: Nanos,
}

impl Breaker {
    /// Open: the store has not answered yet.
    pub(super) fn new() -> Self {
        Self { failures: 0, open: true, silent_since: 0 }
    }

    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    /// The store has answered; `true` if that closes the breaker.
    pub(super) fn answered(&mut self, now: Nanos) -> bool {
        self.failures = 0;
        self.silent_since = now;
        std::mem::take(&mut self.open)
    }

    /// The worker did not run until now: that was not the store's silence.
    pub(super) fn overslept(&mut self, now: Nanos) {
        self.silent_since = now;
    }

    /// Whether nothing has been heard for so long.
    pub(super) fn is_silent(&self, now: Nanos, span: Nanos) -> bool {
        now.saturating_sub(self.silent_since) > span
    }

    /// The store has failed, or kept silent. `true` if that opens the breaker.
    pub(super) fn failed(&mut self, blame: Blame) -> bool {
        if blame == Blame::Partial {
            return false;
        }
        self.failures = self.failures.saturating_add(1);
        let opens = !self.open && (blame == Blame::Gone || self.failures >= FAILURES_MAX);
        self.open |= opens;
        opens
    }
}

#[cfg(test)]
mod tests {
    use super::Blame::{Counts, Gone, Partial};
    use super::*;

    #[test]
    fn a_lost_connection_opens_it_at_once_and_silence_after_a_few() {
        let mut breaker = Breaker::new();
        assert!(breaker.is_open() && breaker.answered(5) && !breaker.is_open());
        assert!(breaker.failed(Gone) && breaker.is_open());
        assert!(breaker.answered(6));
        assert!(!breaker.failed(Counts) && !breaker.failed(Counts));
        assert!(!breaker.answered(7), "it was not open");
        assert!(!breaker.is_silent(10, 3) && breaker.is_silent(11, 3));
        breaker.overslept(11);
        assert!(!breaker.is_silent(14, 3) && breaker.is_silent(15, 3) && !breaker.is_open());
        assert!(!breaker.failed(Counts) && !breaker.failed(Partial) && !breaker.failed(Counts));
        assert!(!breaker.failed(Partial) && breaker.failed(Counts), "three of the whole store");
        assert!(!breaker.failed(Counts), "it opens once");
    }
}
