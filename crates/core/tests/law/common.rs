//! What the tests of the algorithms share: a key with one limit, and how hard to try.

use proptest::prelude::*;
use tidegate_core::algorithms::{apply, explain, forgotten, judge};
use tidegate_core::limit::AlgorithmName;
use tidegate_core::time::SECOND;
use tidegate_core::{
    Algorithm, JointOutcome, Judgement, Limit, LimitVerdict, Nanos, Now, Op, State,
};

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
    pub(crate) fn ask(&mut self, op: Op, now: Now) -> LimitVerdict {
        let judgement = self.judge(op, now);
        let outcome = if judgement.allowed { JointOutcome::Granted } else { JointOutcome::Refused };
        apply(&self.limit, &mut self.state, op, &judgement, outcome, now);
        explain(&self.limit, &self.state, op, &judgement, now)
    }

    pub(crate) fn take(&mut self, cost: u64, now: Now) -> LimitVerdict {
        self.ask(Op::Take(cost), now)
    }

    pub(crate) fn peek(&mut self, cost: u64, now: Now) -> LimitVerdict {
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

/// Seconds since the epoch with which histories begin: no multiple of anything in particular.
const EPOCH: Nanos = 1_700_000_003 * SECOND;

/// One step of a history: how far time goes on, how the clocks err, and what is asked for.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    /// How far both clocks run on, in 1/12 of the period, and nanoseconds beside that.
    pub(crate) twelfths: u64,
    pub(crate) extra: i64,
    /// How far the wall clock is stepped, in 1/4 of the period.
    pub(crate) wall: i64,
    /// How much older than the true time the reading of the clocks is, in nanoseconds.
    pub(crate) late: u64,
    /// What is asked for: a small number, made into a cost by the test.
    pub(crate) cost: u64,
    /// Which operation, made out by the test.
    pub(crate) kind: u8,
}

/// Histories with gaps of nothing, of nanoseconds, of just about a period, and of more.
pub(crate) fn steps(wall: bool, late: bool) -> impl Strategy<Value = Vec<Step>> {
    let gap = prop_oneof![
        4 => (Just(0), Just(0)),
        2 => (Just(0), 1..1000_i64),
        4 => (0..4_u64, -1..=1_i64),
        2 => (0..13_u64, -1..=1_i64),
        1 => (Just(12), -1..=1_i64),
        1 => (12..40_u64, any::<i16>().prop_map(i64::from)),
        1 => (200..400_u64, Just(0)),
    ];
    let wall = prop_oneof![6 => Just(0), u32::from(wall) => -9..=9_i64];
    let late = prop_oneof![4 => Just(0), u32::from(late) => 1..2000_u64];
    let step = (gap, wall, late, 1..6_u64, any::<u8>());
    let step = step.prop_map(|((twelfths, extra), wall, late, cost, kind)| Step {
        twelfths,
        extra,
        wall,
        late,
        cost,
        kind,
    });
    prop::collection::vec(step, 1..60)
}

/// Walks the clocks through a history.
#[derive(Clone, Debug)]
pub(crate) struct Walk {
    period: Nanos,
    now: Now,
}

impl Walk {
    pub(crate) fn new(period: Nanos) -> Self {
        Self { period, now: Now { mono: 77 * SECOND, unix: EPOCH } }
    }

    /// The reading of the clocks at a step.
    pub(crate) fn step(&mut self, step: &Step) -> Now {
        let gap = (self.period / 12 * step.twelfths).saturating_add_signed(step.extra);
        // The longest periods would lead past the end of time: far out, the clocks stand still.
        if self.now.mono.max(self.now.unix) < 1 << 62 {
            self.now = self.now.after(gap);
        }
        // Periods are long or short; a step is a few periods, but never before the epoch.
        let wall = self.period as i64 / 4 * step.wall;
        self.now.unix = self.now.unix.saturating_add_signed(wall).max(EPOCH / 2);
        Now { mono: self.now.mono - step.late, unix: self.now.unix - step.late }
    }
}

/// Amounts small enough to be reached, and some that are not.
pub(crate) fn amounts() -> impl Strategy<Value = u64> {
    prop_oneof![6 => 1..8_u64, 2 => 8..30_u64, 1 => Just(1_000_000), 1 => Just(1 << 53)]
}

/// Every algorithm that takes uses: those that a configuration can choose, by name or by wording,
/// and the one of limits that come with requests.
pub(crate) fn any_algorithm(burst: impl Strategy<Value = u64>) -> impl Strategy<Value = Algorithm> {
    let names: Vec<Option<AlgorithmName>> =
        AlgorithmName::ALL.iter().copied().map(Some).chain([None]).collect();
    let named = (prop::sample::select(names), burst, any::<bool>());
    let named = named.prop_map(|(name, burst, set)| match name {
        None => Algorithm::Throttle { burst },
        Some(name) => of_name(name, burst, set),
    });
    let in_flight = any::<bool>().prop_map(|per_window| Algorithm::InFlight { per_window });
    prop_oneof![AlgorithmName::ALL.len() as u32 + 1 => named, 1 => in_flight]
}

fn of_name(name: AlgorithmName, burst: u64, set: bool) -> Algorithm {
    match name {
        AlgorithmName::Gcra => Algorithm::Gcra { burst },
        AlgorithmName::FixedWindow => Algorithm::FixedWindow,
        AlgorithmName::SlidingWindow => Algorithm::SlidingWindow,
        AlgorithmName::SlidingLog => Algorithm::SlidingLog,
        AlgorithmName::Average => Algorithm::Average { strict: set },
        AlgorithmName::Jarl => Algorithm::Jarl { exact: set },
        AlgorithmName::Smockron => Algorithm::Smockron { burst },
    }
}

/// Periods from the shortest to the longest, round and not.
pub(crate) fn periods() -> impl Strategy<Value = Nanos> {
    prop_oneof![
        Just(1_000_000),
        Just(7_000_003),
        Just(SECOND),
        Just(60 * SECOND),
        Just(366 * 24 * 3600 * SECOND)
    ]
}
