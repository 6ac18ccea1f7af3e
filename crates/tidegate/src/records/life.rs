//! How long a record lives, and what is left of it: units, expiry, remaining time.
//!
//! All of it on the monotonic clock, in nanoseconds that saturate. Reads no clock.

use tidegate_core::time::{HOUR, MICROSECOND, MILLISECOND, MINUTE, SECOND};
use tidegate_core::{Nanos, Now};

use super::{Unit, UpdateChange};

/// Whole units that are left until `expiry`: 60 s that were just given read as 59.
#[inline]
pub(super) fn units_left(unit: Unit, expiry: Nanos, now: Now) -> u64 {
    let left = expiry.saturating_sub(now.mono).saturating_sub(1);
    // Each arm divides by a constant, which is several times as fast as by a variable.
    match unit {
        Unit::Nanoseconds => left,
        Unit::Microseconds => left / MICROSECOND,
        Unit::Milliseconds => left / MILLISECOND,
        Unit::Seconds => left / SECOND,
        Unit::Minutes => left / MINUTE,
        Unit::Hours => left / HOUR,
    }
}

/// Nanoseconds that are left until `expiry`; [`Nanos::MAX`] if that never comes.
pub(super) fn left_nanos(expiry: Nanos, now: Now) -> Nanos {
    if expiry == Nanos::MAX { Nanos::MAX } else { expiry.saturating_sub(now.mono) }
}

/// How long a record shall live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// What it is counted in, also in answers about what is left.
    pub unit: Unit,
    /// How many of them. None means that the record has expired as soon as it is made.
    pub amount: u64,
}

impl Life {
    /// The same span in nanoseconds; the longest lasts for ever.
    #[inline]
    #[must_use]
    pub fn nanos(self) -> Nanos {
        self.amount.saturating_mul(self.unit.nanos())
    }

    /// The moment at which a life that begins now has ended.
    #[inline]
    pub(super) fn expiry(self, now: Now) -> Nanos {
        now.mono.saturating_add(self.nanos())
    }

    /// The expiry of a record after its life was changed by this one.
    pub(super) fn changed(self, change: UpdateChange, expiry: Nanos, now: Now) -> Nanos {
        match change {
            UpdateChange::Patch => self.expiry(now),
            UpdateChange::Increase => expiry.saturating_add(self.nanos()),
            UpdateChange::Decrease => expiry.saturating_sub(self.nanos()),
        }
    }
}
