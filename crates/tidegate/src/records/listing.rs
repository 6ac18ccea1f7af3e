//! All live records in the order of their insertion.
//!
//! The table knows no order: each record has a number, and a listing sorts by it. A listing copies
//! a few records under each lock, so that it keeps no other loop waiting.

use tidegate_core::{Nanos, Now};

use super::record::{RecordEntry, RecordValue};
use super::{RecordKind, RecordProbe, Records, Stat, Unit};
use crate::table::{Name, WalkStep};

/// Cells looked at under one lock, at least.
pub(super) const WALK_STRIDE: usize = 64;

/// One record as others see it.
pub struct ListedRecord {
    name: Name,
    /// What it is.
    pub kind: RecordKind,
    /// The unit of its life.
    pub unit: Unit,
    /// When it expires, in nanoseconds since the Unix epoch; [`Nanos::MAX`] if it never does.
    pub expires_at: Nanos,
    /// What is left of its life; [`Nanos::MAX`] if all of it.
    pub left_nanos: Nanos,
    /// What a counter has left to take; 0 for a buffer.
    pub quota: u64,
    /// Bytes of a buffer's value; 0 for a counter, whose number is as long as the reader's.
    pub value_bytes: usize,
    /// How much it is used.
    pub stat: Stat,
    sequence: u64,
}

impl ListedRecord {
    /// Its key.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        self.name.as_bytes()
    }

    fn new(record: &RecordEntry, now: Now) -> Self {
        let left_nanos = record.left_nanos(now);
        Self {
            name: Name::new(record.name.as_bytes()),
            kind: record.value.kind(),
            unit: record.unit,
            expires_at: now.unix.saturating_add(left_nanos),
            left_nanos,
            quota: match record.value {
                RecordValue::Counter(quota) => quota,
                RecordValue::Buffer(_) => 0,
            },
            value_bytes: record.value.heap_bytes(),
            stat: record.stat(now),
            sequence: record.sequence,
        }
    }
}

impl Records {
    /// One live record. Looking at it counts as no use.
    #[must_use]
    pub fn look(&self, key: &[u8], probe: RecordProbe<'_>, now: Now) -> Option<ListedRecord> {
        self.live(key, probe, now, |record| Some(ListedRecord::new(record, now)))
    }

    /// The live records, oldest insertion first. It takes about as much memory as they do.
    #[must_use]
    pub fn list(&self, now: Now) -> Vec<ListedRecord> {
        let mut listed = Vec::with_capacity(self.table.len());
        for number in 0..self.table.shards() {
            let before = listed.len();
            let mut walk = self.table.walk(number);
            loop {
                // Room is made before the lock is taken.
                listed.reserve(4 * WALK_STRIDE);
                let step = walk.step(WALK_STRIDE, |record| {
                    if !record.expired(now) {
                        listed.push(ListedRecord::new(record, now));
                    }
                });
                match step {
                    WalkStep::On => {}
                    WalkStep::Anew => listed.truncate(before),
                    WalkStep::Done => break,
                }
            }
        }
        listed.sort_unstable_by_key(|record| record.sequence);
        listed.dedup_by_key(|record| record.sequence);
        listed
    }
}
