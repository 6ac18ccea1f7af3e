//! What a limit is, and how a written one becomes one.
//!
//! The grammar itself is in `limit/grammar.rs`. Here are its results: a [`Spec`] is what was
//! written, and a [`Limit`] is that together with the rule's algorithm, checked. How replicas
//! split one is in `limit/share.rs`.

mod grammar;
mod share;

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

pub use grammar::{GrammarError, parse_duration};
pub use share::{REPLICAS_MAX, ReplicaShare};

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limit {
    /// Uses per period, or uses in flight; 1 to [`AMOUNT_MAX`]. 0 only for `deny`, and for the
    /// part of a replica for which nothing is left, see [`ReplicaShare`]; that is a fixed window
    /// or in flight.
    pub amount: u64,
    /// The period; 0 only for a plain `in flight` and for `deny`, which have none.
    pub period: Nanos,
    /// How uses are counted.
    pub algorithm: Algorithm,
}

/// How uses are counted, with what only that algorithm needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
    /// An exponentially weighted average of the rate.
    Average {
        /// Whether refused attempts are counted.
        strict: bool,
    },
    /// Bookings of the JARL protocol.
    Jarl {
        /// Whether starts are booked instead of arrivals.
        exact: bool,
    },
    /// The rule of the Smockron protocol.
    Smockron {
        /// Uses before the rate takes effect.
        burst: u64,
    },
    /// Uses that have not ended.
    InFlight {
        /// Whether a use is also given back when the window in which it started ends.
        per_window: bool,
    },
    /// Token bucket for limits that come with each request; no configuration names it.
    Throttle {
        /// Uses allowed at once.
        burst: u64,
    },
    /// Nothing passes, and nothing is counted.
    Deny,
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
            Algorithm::Throttle { .. } => "throttle",
            Algorithm::Deny => "deny",
        }
    }
}

/// What the limiter asks about a limit. The matches name every algorithm, so that the compiler asks
/// each question of a new one.
#[deny(clippy::wildcard_enum_match_arm)]
impl Limit {
    /// Nothing passes.
    pub const DENY: Limit = Limit { amount: 0, period: 0, algorithm: Algorithm::Deny };

    /// Whether nothing ever passes, whatever else happens.
    #[must_use]
    pub fn denies(&self) -> bool {
        self.algorithm == Algorithm::Deny
    }

    /// The largest cost that can ever be allowed at once.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        use Algorithm::{Average, Deny, FixedWindow, InFlight, Jarl, SlidingLog, SlidingWindow};
        match self.algorithm {
            Algorithm::Gcra { burst }
            | Algorithm::Smockron { burst }
            | Algorithm::Throttle { burst } => burst,
            FixedWindow | SlidingWindow | SlidingLog | Deny => self.amount,
            Average { .. } | Jarl { .. } | InFlight { .. } => self.amount,
        }
    }

    /// Whether a use under this limit has an end that the caller must report.
    #[must_use]
    pub fn ends(&self) -> bool {
        matches!(self.algorithm, Algorithm::InFlight { .. })
    }

    /// How many uses it can remember one by one, if it does so.
    #[must_use]
    pub fn stamps_max(&self) -> Option<u64> {
        use Algorithm::{Average, Deny, FixedWindow, Gcra, InFlight, SlidingWindow, Throttle};
        match self.algorithm {
            Algorithm::SlidingLog | Algorithm::Smockron { .. } => Some(LOG_STAMPS_MAX),
            Algorithm::Jarl { .. } => Some(JARL_STAMPS_MAX),
            FixedWindow | SlidingWindow | Deny => None,
            Gcra { .. } | Average { .. } | InFlight { .. } | Throttle { .. } => None,
        }
    }

    /// Whether it remembers uses one by one.
    #[must_use]
    pub fn remembers_uses(&self) -> bool {
        self.stamps_max().is_some()
    }

    /// Whether it counts in windows of the wall clock.
    #[must_use]
    pub fn counts_in_windows(&self) -> bool {
        use Algorithm::{Average, Deny, Gcra, Jarl, SlidingLog, Smockron, Throttle};
        match self.algorithm {
            Algorithm::FixedWindow | Algorithm::SlidingWindow => true,
            Algorithm::InFlight { per_window } => per_window,
            SlidingLog | Deny | Gcra { .. } | Average { .. } => false,
            Jarl { .. } | Smockron { .. } | Throttle { .. } => false,
        }
    }

    /// Whether a use that was counted can be taken back as if it had never been asked for.
    #[must_use]
    pub fn can_refund(&self) -> bool {
        use Algorithm::{Deny, FixedWindow, Gcra, InFlight, SlidingLog, SlidingWindow, Smockron};
        match self.algorithm {
            Algorithm::Average { strict } => !strict,
            Algorithm::Jarl { .. } => false,
            FixedWindow | SlidingWindow | SlidingLog | Deny | Gcra { .. } => true,
            Smockron { .. } | InFlight { .. } | Algorithm::Throttle { .. } => true,
        }
    }

    /// Whether counts made under `self` still mean the same under `other`.
    #[must_use]
    pub fn keeps_counts_of(&self, other: &Limit) -> bool {
        self.period == other.period && self.algorithm.name() == other.algorithm.name()
    }
}

/// Defines [`AlgorithmName`] with every name once.
macro_rules! algorithm_names {
    ($($(#[$attribute:meta])* $variant:ident = $name:literal)*) => {
        /// An algorithm by its name in configuration files, for limits of uses per period. Uses in
        /// flight are chosen by the wording of the limit instead.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub enum AlgorithmName {
            $(#[doc = concat!("`", $name, "`")] $(#[$attribute])* $variant,)*
        }

        impl AlgorithmName {
            /// Every algorithm that can be named.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$variant),*];

            /// The name in configuration files.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

algorithm_names! {
    #[default]
    Gcra = "gcra"
    FixedWindow = "fixed-window"
    SlidingWindow = "sliding-window"
    SlidingLog = "sliding-log"
    Average = "average"
    Jarl = "jarl"
    Smockron = "smockron"
}

impl AlgorithmName {
    /// What to write for an algorithm by a name that others have for it.
    #[must_use]
    pub fn foreign_name(text: &str) -> Option<&'static str> {
        let word = text.to_ascii_lowercase().replace(['-', '_', ' '], "");
        Some(match word.as_str() {
            "inflight" | "concurrency" | "concurrent" | "semaphore" => {
                "leave it out and write the limit as `100 in flight`"
            }
            "tokenbucket" | "leakybucket" | "bucket" => "write `gcra`, which is a token bucket",
            "slidingwindowlog" => "write `sliding-log`",
            "slidingwindowcounter" => "write `sliding-window`",
            _ => return None,
        })
    }

    /// Reads a name.
    ///
    /// # Errors
    /// Where no algorithm has that name.
    pub fn parse(text: &str) -> Result<Self, GrammarError> {
        Self::ALL.into_iter().find(|name| name.name() == text).ok_or_else(|| {
            let known = || format!("algorithms are {}", Self::ALL.map(Self::name).join(", "));
            let remedy = Self::foreign_name(text).map_or_else(known, str::to_owned);
            GrammarError::new(0..text.len(), "this is not the name of an algorithm".into(), remedy)
        })
    }
}

impl FromStr for AlgorithmName {
    type Err = GrammarError;

    fn from_str(text: &str) -> Result<Self, GrammarError> {
        Self::parse(text)
    }
}

impl fmt::Display for AlgorithmName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A limit as it was written, before an algorithm is chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spec {
    kind: Kind,
    amount: u64,
    period: Option<Nanos>,
    burst: Option<(u64, Range<usize>)>,
    /// Where the amount stands in the text: bounds on it are checked later.
    amount_span: Range<usize>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kind {
    #[default]
    None,
    Deny,
    Rate,
    InFlight,
}

impl Spec {
    /// Reads a limit.
    ///
    /// # Errors
    /// Where the text is not of the grammar's form, with the place and the remedy.
    pub fn parse(text: &str) -> Result<Self, GrammarError> {
        grammar::parse_spec(text)
    }

    /// The limit under an algorithm (`gcra` if none was chosen) and its settings, or `None` if
    /// there is to be no limit. For uses in flight the choice means nothing: a rule's other
    /// limits may be what it is for. Neither does it for `deny`, so that a rule can be blocked
    /// for a while and keep its settings.
    ///
    /// # Errors
    /// Where the algorithm does not have what was asked for, or cannot hold so many uses.
    pub fn with(
        &self,
        choice: Option<AlgorithmName>,
        strict: Option<bool>,
        exact: Option<bool>,
    ) -> Result<Option<Limit>, GrammarError> {
        let algorithm = match self.kind {
            Kind::None => return Ok(None),
            Kind::Deny => return self.denying(choice.unwrap_or_default()).map(Some),
            Kind::InFlight => Algorithm::InFlight { per_window: self.period.is_some() },
            Kind::Rate => self.algorithm(choice.unwrap_or_default(), strict, exact)?,
        };
        let limit = Limit { amount: self.amount, period: self.period.unwrap_or(0), algorithm };
        self.check_stamps(&limit)?;
        Ok(Some(limit))
    }

    fn denying(&self, choice: AlgorithmName) -> Result<Limit, GrammarError> {
        if !matches!(choice, AlgorithmName::Jarl | AlgorithmName::Smockron) {
            return Ok(Limit::DENY);
        }
        let message = format!("`{choice}` delays callers and cannot refuse them");
        let remedy = "write a limit such as `1 per 60s`, or choose another algorithm";
        Err(GrammarError::new(self.amount_span.clone(), message, remedy))
    }

    fn algorithm(
        &self,
        name: AlgorithmName,
        strict: Option<bool>,
        exact: Option<bool>,
    ) -> Result<Algorithm, GrammarError> {
        let foreign = |setting: &str, home: &str| {
            let message = format!("`{setting} = true` has no meaning for `{name}`");
            let remedy = format!("leave out `{setting}`, or choose `algorithm = \"{home}\"`");
            GrammarError::new(self.amount_span.clone(), message, remedy)
        };
        if strict == Some(true) && name != AlgorithmName::Average {
            return Err(foreign("strict", "average"));
        }
        if exact == Some(true) && name != AlgorithmName::Jarl {
            return Err(foreign("exact", "jarl"));
        }
        let burst = self.burst.as_ref().map_or(self.amount, |(burst, _)| *burst);
        let algorithm = match name {
            AlgorithmName::Gcra => Algorithm::Gcra { burst },
            AlgorithmName::FixedWindow => Algorithm::FixedWindow,
            AlgorithmName::SlidingWindow => Algorithm::SlidingWindow,
            AlgorithmName::SlidingLog => Algorithm::SlidingLog,
            AlgorithmName::Average => Algorithm::Average { strict: strict.unwrap_or(false) },
            AlgorithmName::Jarl => Algorithm::Jarl { exact: exact.unwrap_or(false) },
            AlgorithmName::Smockron => Algorithm::Smockron { burst },
        };
        match &self.burst {
            Some((_, span)) if !matches!(name, AlgorithmName::Gcra | AlgorithmName::Smockron) => {
                let message = format!("`burst` has no meaning for `{name}`");
                let remedy = "leave it out, or choose `gcra` or `smockron`";
                Err(GrammarError::new(span.clone(), message, remedy))
            }
            _ => Ok(algorithm),
        }
    }

    /// Algorithms that remember single uses hold only so many.
    fn check_stamps(&self, limit: &Limit) -> Result<(), GrammarError> {
        let Some(most) = limit.stamps_max().filter(|most| limit.capacity() > *most) else {
            return Ok(());
        };
        let name = limit.algorithm.name();
        let span = self.burst.as_ref().map_or(&self.amount_span, |(_, span)| span);
        let message = format!("`{name}` would have to remember {} uses", limit.capacity());
        let remedy = format!("`{name}` holds at most {most}; `gcra` has no such bound");
        Err(GrammarError::new(span.clone(), message, remedy))
    }
}

/// The limit as the grammar reads it.
impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.denies() {
            return f.write_str("deny");
        }
        write!(f, "{}", self.amount)?;
        if matches!(self.algorithm, Algorithm::InFlight { .. }) {
            f.write_str(" in flight")?;
        }
        match self.period {
            0 => {}
            SECOND => f.write_str(" per second")?,
            MINUTE => f.write_str(" per minute")?,
            HOUR => f.write_str(" per hour")?,
            DAY => f.write_str(" per day")?,
            period => write!(f, " per {}", Duration(period))?,
        }
        if self.capacity() != self.amount {
            write!(f, " burst {}", self.capacity())?;
        }
        Ok(())
    }
}

/// Shows nanoseconds as [`parse_duration`] reads them, in the largest unit that is exact: `90s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Duration(pub Nanos);

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [
            (DAY, "d"),
            (HOUR, "h"),
            (MINUTE, "min"),
            (SECOND, "s"),
            (MILLISECOND, "ms"),
            (MICROSECOND, "us"),
            (1, "ns"),
        ];
        let exact = units.iter().find(|(nanos, _)| self.0 > 0 && self.0.is_multiple_of(*nanos));
        let (nanos, name) = exact.unwrap_or(&(SECOND, "s"));
        write!(f, "{}{name}", self.0 / nanos)
    }
}
