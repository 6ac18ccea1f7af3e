//! What a bucket's limits mean for its division.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use tidegate_core::rules::Rule;
use tidegate_core::time::{Nanos, Now, SECOND};
use tidegate_core::{Algorithm, Limit};

use super::slices::HELD_LIFE;

/// How a bucket is divided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Terms {
    /// There is no limit: every request passes.
    Unlimited,
    /// Every request passes, and is written down.
    Shadow,
    /// Nothing passes.
    Denied,
    /// Streams have leases of the rate.
    Leases(Rate),
    /// Streams have slices, bought each second.
    Slices(SlicePlan),
}

/// A token bucket to divide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Uses per period; at least 1.
    pub amount: u64,
    /// The period; at least 1 ns.
    pub period: Nanos,
    /// Uses allowed at once.
    pub burst: u64,
    /// Which count it is. What was taken from another is not in this one.
    pub count: u64,
}

/// What slices must know of the limits that they are bought from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlicePlan {
    /// The most that can be had at once.
    capacity: u64,
    /// The periods of the limits that count in windows of the wall clock.
    windows: Vec<Nanos>,
    /// Whether some limit remembers when each use happened.
    remembers_uses: bool,
    /// The shortest period.
    period: Nanos,
    /// Which count it is. What was taken from another cannot be given back to this one.
    count: u64,
}

/// The shortest period of a limit that slices can obey. A slice lives for 2 s, takes 1 s to arrive,
/// and its uses must fall into the window, or the log, from which they were taken. So there are no
/// slices in the last 3 s of a window, and before them there must be time for one, however late
/// within its second a stream buys.
pub const SLICE_PERIOD_MIN: Nanos = 5 * SECOND;

impl Terms {
    /// The terms of a key under a rule. `remote` if its counts are in a remote store.
    #[must_use]
    pub fn of_rule(rule: &Rule, remote: bool) -> Self {
        // Leases are for a key that no other bucket has: each charges the count whatever the others
        // do. So the buckets that share a count buy slices from it.
        let mut terms = Self::of(&rule.limits, rule.shadow, remote || rule.shared);
        if let Terms::Leases(Rate { count, .. }) | Terms::Slices(SlicePlan { count, .. }) =
            &mut terms
        {
            let mut hasher = DefaultHasher::new();
            (&rule.name, &rule.limits, rule.shared, remote).hash(&mut hasher);
            *count = hasher.finish();
        }
        terms
    }

    /// The terms of a key with these limits. `remote` if its counts are in a remote store.
    ///
    /// Nothing passes where slices cannot keep the limit: uses in flight, whose end no Envoy
    /// reports, and windows and logs shorter than [`SLICE_PERIOD_MIN`].
    #[must_use]
    pub fn of(limits: &[Limit], shadow: bool, remote: bool) -> Self {
        let short = |limit: &Limit| {
            (limit.counts_in_windows() || limit.remembers_uses()) && limit.period < SLICE_PERIOD_MIN
        };
        match limits {
            [] => Terms::Unlimited,
            _ if shadow => Terms::Shadow,
            [Limit { amount: 1.., period: 1.., algorithm: Algorithm::Gcra { burst } }]
                if !remote =>
            {
                let &[Limit { amount, period, .. }] = limits else { return Terms::Denied };
                Terms::Leases(Rate { amount, period, burst: *burst, count: 0 })
            }
            _ if limits.iter().any(|limit| limit.denies() || limit.ends() || short(limit)) => {
                Terms::Denied
            }
            _ => Terms::Slices(SlicePlan {
                capacity: limits.iter().map(Limit::capacity).min().unwrap_or(0),
                windows: limits
                    .iter()
                    .filter(|limit| limit.counts_in_windows())
                    .map(|limit| limit.period)
                    .collect(),
                remembers_uses: limits.iter().any(Limit::remembers_uses),
                period: limits.iter().map(|limit| limit.period).min().unwrap_or(0),
                count: 0,
            }),
        }
    }
}

impl Rate {
    /// Uses in this time, rounded down.
    pub(super) fn uses_in(&self, span: Nanos) -> u64 {
        let uses = u128::from(span) * u128::from(self.amount) / u128::from(self.period);
        u64::try_from(uses).unwrap_or(u64::MAX)
    }

    /// The time that so many uses take, rounded up.
    pub(super) fn time_of(&self, uses: u64) -> Nanos {
        let span = (u128::from(uses) * u128::from(self.period)).div_ceil(u128::from(self.amount));
        Nanos::try_from(span).unwrap_or(Nanos::MAX)
    }
}

impl SlicePlan {
    pub(super) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Whether a use may come to be counted as late as it happens, and not when it was taken.
    pub(super) fn remembers_uses(&self) -> bool {
        self.remembers_uses
    }

    /// Whether what is left of a slice can be given back. Only windows know from which one it
    /// was taken; a log would drop the newest use, which may be another's.
    pub(super) fn refundable(&self) -> bool {
        !self.windows.is_empty() && !self.remembers_uses
    }

    /// How long until a window ends; for ever if there are none.
    pub(super) fn window_left(&self, now: Now) -> Nanos {
        let left = self.windows.iter().map(|period| period - now.unix % period);
        left.min().unwrap_or(Nanos::MAX)
    }

    /// For how long a quiet stream may hold the same slice. A window bounds that by its end. In a
    /// log a slice must end within a period after it was taken.
    pub(super) fn hold_max(&self) -> Nanos {
        if self.refundable() { Nanos::MAX } else { self.period.saturating_sub(HELD_LIFE) }
    }

    /// The most uses that quiet streams may hold together: others must have some, too. What cannot
    /// be given back is written down twice.
    pub(super) fn held_max(&self) -> u64 {
        self.capacity / if self.refundable() { 2 } else { 4 }
    }
}
