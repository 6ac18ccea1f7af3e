//! One record as it lies in the table: key, value, expiry and statistics in 96 bytes.
//!
//! The size is what bytes per record come from, so it is asserted here.

use tidegate_core::{Nanos, Now};

use super::capacity::Footprint;
use super::life::{Life, left_nanos, units_left};
use super::tally::{Minute, Minutes, Use};
use super::{RecordKind, Stat, Unit};
use crate::table::Name;

/// What a record holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RecordValue {
    Counter(u64),
    Buffer(Box<[u8]>),
}

const _: () = assert!(size_of::<RecordValue>() == 16);

impl RecordValue {
    pub(super) fn kind(&self) -> RecordKind {
        match self {
            RecordValue::Counter(_) => RecordKind::Counter,
            RecordValue::Buffer(_) => RecordKind::Buffer,
        }
    }

    /// Bytes held outside of the record.
    pub(super) fn heap_bytes(&self) -> usize {
        match self {
            RecordValue::Counter(_) => 0,
            RecordValue::Buffer(bytes) => bytes.len(),
        }
    }
}

/// One record.
pub(super) struct RecordEntry {
    pub(super) name: Name,
    pub(super) value: RecordValue,
    /// On the monotonic clock.
    pub(super) expiry: Nanos,
    /// Its place in the order of insertion.
    pub(super) sequence: u64,
    /// Uses since it was made, by kind.
    pub(super) totals: [u64; 2],
    pub(super) minutes: Minutes,
    pub(super) unit: Unit,
}

const _: () = assert!(size_of::<RecordEntry>() <= 96);

impl RecordEntry {
    /// A record that is made now. That is not a use of it: existing clients expect a record they
    /// have just made to have no writes.
    pub(super) fn new(name: Name, value: RecordValue, life: Life, sequence: u64, now: Now) -> Self {
        Self {
            name,
            value,
            expiry: life.expiry(now),
            sequence,
            totals: [0; 2],
            minutes: Minutes { number: Minute::of(now), ..Minutes::default() },
            unit: life.unit,
        }
    }

    /// Whether its time is over.
    #[inline]
    pub(super) fn expired(&self, now: Now) -> bool {
        now.mono >= self.expiry
    }

    /// What is left of its life, in its own unit.
    #[inline]
    pub(super) fn left(&self, now: Now) -> u64 {
        units_left(self.unit, self.expiry, now)
    }

    /// The same in nanoseconds; [`Nanos::MAX`] if it never expires.
    pub(super) fn left_nanos(&self, now: Now) -> Nanos {
        left_nanos(self.expiry, now)
    }

    #[inline]
    pub(super) fn count(&mut self, what: Use, now: Now) {
        let total = &mut self.totals[what as usize];
        *total = total.saturating_add(1);
        self.minutes.count(what, Minute::of(now));
    }

    pub(super) fn stat(&self, now: Now) -> Stat {
        let [reads, writes] = self.minutes.in_last(Minute::of(now));
        Stat {
            reads_per_minute: reads.into(),
            writes_per_minute: writes.into(),
            reads: self.totals[Use::Read as usize],
            writes: self.totals[Use::Write as usize],
        }
    }

    /// What it takes.
    pub(super) fn footprint(&self) -> Footprint {
        Footprint::new(&self.name, &self.value)
    }
}
