//! Whether the store is asked at all: not while it is known to be away.
//!
//! A lost connection opens the breaker at once, answers that fail or do not come after a few in a
//! row. While it is open nobody is sent to the store but one probe at a time; the first answer
//! closes it. Only the silence and the errors of the whole store count: a busy key does not, nor
//! one of several nodes that has others beside it. Pure.

use super::engine::Blame;

/// Failures in a row that open it.
const FAILURES_MAX: u32 = 3;

/// The breaker of one store.
#[derive(Debug)]
pub(super) struct Breaker {
    failures: u32,
    open: bool,
}

impl Breaker {
    /// Open: nobody has heard of the store yet.
    pub(super) fn new() -> Self {
        Self { failures: 0, open: true }
    }

    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    /// The store has answered; `true` if that closes the breaker.
    pub(super) fn answered(&mut self) -> bool {
        self.failures = 0;
        std::mem::take(&mut self.open)
    }

    /// The store has failed, or kept silent. `true` if that opens the breaker.
    pub(super) fn failed(&mut self, blame: Blame) -> bool {
        if blame == Blame::APart {
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
    use super::Blame::{APart, Counts, Gone};
    use super::*;

    #[test]
    fn a_lost_connection_opens_it_at_once_and_silence_after_a_few() {
        let mut breaker = Breaker::new();
        assert!(breaker.is_open() && breaker.answered() && !breaker.is_open());
        assert!(breaker.failed(Gone) && breaker.is_open());
        assert!(breaker.answered());
        assert!(!breaker.failed(Counts) && !breaker.failed(Counts));
        assert!(!breaker.answered(), "it was not open");
        assert!(!breaker.failed(Counts) && !breaker.failed(APart) && !breaker.failed(Counts));
        assert!(!breaker.failed(APart) && breaker.failed(Counts), "three of the whole store");
        assert!(!breaker.failed(Counts), "it opens once");
    }
}
