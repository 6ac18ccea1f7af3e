//! What the tests of the algorithms share: a key with one limit, and how hard to try.

use proptest::prelude::ProptestConfig;
use tidegate_core::algorithms::{apply, explain, forgotten, judge};
use tidegate_core::time::SECOND;
use tidegate_core::{Algorithm, Judgement, Limit, Nanos, Now, Op, Outcome, State, Verdict};

/// A modest number of cases, or many where `TIDEGATE_SOAK` is set.
pub(crate) fn config(cases: u32) -> ProptestConfig {
    let soak = std::env::var_os("TIDEGATE_SOAK").is_some_and(|value| value == "1");
    ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(if soak { cases * 100 } else { cases })
    }
}

/// One key under one limit.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    pub(crate) limit: Limit,
    pub(crate) state: State,
}

impl Key {
    pub(crate) fn new(amount: u64, period: Nanos, algorithm: Algorithm) -> Self {
        Self { limit: Limit { amount, period, algorithm }, state: State::None }
    }

    pub(crate) fn judge(&self, op: Op, now: Now) -> Judgement {
        judge(&self.limit, &self.state, op, now)
    }

    /// Asks, and writes what came of it.
    pub(crate) fn ask(&mut self, op: Op, now: Now) -> Verdict {
        let judgement = self.judge(op, now);
        let outcome = if judgement.allowed { Outcome::Granted } else { Outcome::Refused };
        apply(&self.limit, &mut self.state, op, &judgement, outcome, now);
        explain(&self.limit, &self.state, op, &judgement, now)
    }

    pub(crate) fn take(&mut self, cost: u64, now: Now) -> Verdict {
        self.ask(Op::Take(cost), now)
    }

    pub(crate) fn peek(&mut self, cost: u64, now: Now) -> Verdict {
        self.ask(Op::Peek(cost), now)
    }

    pub(crate) fn forgotten(&self, now: Now) -> bool {
        forgotten(&self.limit, &self.state, now)
    }

    /// Drops the state if the law says that it may be dropped.
    pub(crate) fn forget(&mut self, now: Now) {
        if self.forgotten(now) {
            self.state = State::None;
        }
    }
}

/// A moment on both clocks, `mono` nanoseconds in.
pub(crate) fn at(mono: Nanos) -> Now {
    Now { mono, unix: 1_700_000_000 * SECOND + mono }
}
