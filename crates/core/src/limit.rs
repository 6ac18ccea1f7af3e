//! The limit grammar and what a limit is.
//!
//! `22 per 20s` · `100/min` · `5/s burst 20` · `100 in flight` · `100 in flight per minute` · `none`

use crate::time::{DAY, HOUR, MICROSECOND, MILLISECOND, MINUTE, Nanos, SECOND};

/// The largest amount of a limit, burst and cost: whole numbers that f64 still tells apart.
pub const AMOUNT_MAX: u64 = 1 << 53;
/// The shortest period of a limit.
pub const PERIOD_MIN: Nanos = MILLISECOND;
/// The longest period of a limit.
pub const PERIOD_MAX: Nanos = 366 * DAY;
/// The most timestamps that a `sliding-log` or `smockron` limit may hold.
pub const LOG_STAMPS_MAX: u64 = 1_000_000;
/// The most bookings that a `jarl` limit may hold.
pub const JARL_STAMPS_MAX: u64 = 10_000_000;

/// One limit of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Uses per period, or uses in flight; 1 to [`AMOUNT_MAX`].
    pub amount: u64,
    /// The period; 0 only for a plain `in flight`, which has none.
    pub period: Nanos,
    /// How uses are counted.
    pub algorithm: Algorithm,
}

/// How uses are counted, with what only that algorithm needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// Token bucket.
    Gcra {
        /// Uses allowed at once.
        burst: u64,
    },
    /// A counter in windows aligned on the Unix epoch.
    FixedWindow,
    /// Two counters, weighted by the elapsed share of the window.
    SlidingWindow,
    /// Exact: no window of `period` ever holds more than the amount.
    SlidingLog,
    /// Seed 000's average.
    Average {
        /// Whether refused attempts are counted.
        strict: bool,
    },
    /// Seed 003's bookings.
    Jarl {
        /// Whether starts are booked instead of arrivals.
        exact: bool,
    },
    /// Seed 004's rule.
    Smockron {
        /// Uses before the rate takes effect.
        burst: u64,
    },
    /// Uses that have not ended.
    InFlight {
        /// Whether a use is also given back when the window in which it started ends.
        per_window: bool,
    },
}

impl Algorithm {
    /// The name in configuration files.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Algorithm::Gcra { .. } => "gcra",
            Algorithm::FixedWindow => "fixed-window",
            Algorithm::SlidingWindow => "sliding-window",
            Algorithm::SlidingLog => "sliding-log",
            Algorithm::Average { .. } => "average",
            Algorithm::Jarl { .. } => "jarl",
            Algorithm::Smockron { .. } => "smockron",
            Algorithm::InFlight { .. } => "in-flight",
        }
    }
}

impl Limit {
    /// The largest cost that can ever be allowed at once.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        match self.algorithm {
            Algorithm::Gcra { burst } | Algorithm::Smockron { burst } => burst,
            _ => self.amount,
        }
    }

    /// Whether a use under this limit has an end that must be told.
    #[must_use]
    pub fn ends(&self) -> bool {
        matches!(self.algorithm, Algorithm::InFlight { .. })
    }

    /// Whether counts made under `self` still mean the same under `other`.
    #[must_use]
    pub fn keeps_counts_of(&self, other: &Limit) -> bool {
        self.period == other.period && self.algorithm.name() == other.algorithm.name()
    }
}
