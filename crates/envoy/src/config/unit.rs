//! Units of time, as the protocol numbers them and the configuration names them.
//!
//! A month is 30 days and a year 365, whatever the calendar says: envoyproxy/ratelimit counts so.

use tidegate_core::time::{DAY, HOUR, MINUTE, Nanos, SECOND};

/// A unit of `requests_per_unit`. The numbers are those of `RateLimitResponse.RateLimit.Unit`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unit {
    /// No unit: unlimited, or a period that is no unit.
    #[default]
    Unknown = 0,
    /// A second.
    Second = 1,
    /// 60 seconds.
    Minute = 2,
    /// 60 minutes.
    Hour = 3,
    /// 24 hours.
    Day = 4,
    /// 30 days.
    Month = 5,
    /// 365 days.
    Year = 6,
    /// 7 days.
    Week = 7,
}

impl Unit {
    const NAMED: [(Unit, &'static str, Nanos); 7] = [
        (Unit::Second, "SECOND", SECOND),
        (Unit::Minute, "MINUTE", MINUTE),
        (Unit::Hour, "HOUR", HOUR),
        (Unit::Day, "DAY", DAY),
        (Unit::Month, "MONTH", 30 * DAY),
        (Unit::Year, "YEAR", 365 * DAY),
        (Unit::Week, "WEEK", 7 * DAY),
    ];

    /// The number on the wire.
    #[must_use]
    pub fn number(self) -> i32 {
        self as i32
    }

    /// The unit of an override on the wire, whose enumeration has no week.
    #[must_use]
    pub fn of_override(number: i32) -> Option<Self> {
        Self::of_number(number).filter(|unit| *unit != Unit::Week)
    }

    /// The unit of this number, as answers and xDS resources have it.
    #[must_use]
    pub fn of_number(number: i32) -> Option<Self> {
        Self::NAMED.iter().map(|(unit, ..)| *unit).find(|unit| unit.number() == number)
    }

    /// The unit of this name, in upper or lower case.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::NAMED.iter().find(|(_, known, _)| known.eq_ignore_ascii_case(name)).map(|u| u.0)
    }

    /// The unit that lasts as long, or `Unknown`.
    #[must_use]
    pub fn of_period(period: Nanos) -> Self {
        Self::NAMED.iter().find(|(.., nanos)| *nanos == period).map_or(Unit::Unknown, |u| u.0)
    }

    /// The name in upper case.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMED.iter().find(|(unit, ..)| *unit == self).map_or("UNKNOWN", |u| u.1)
    }

    /// How long it lasts; `Unknown` has no length.
    #[must_use]
    pub fn period(self) -> Option<Nanos> {
        Self::NAMED.iter().find(|(unit, ..)| *unit == self).map(|u| u.2)
    }
}
