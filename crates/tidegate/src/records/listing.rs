//! All live records in the order of their insertion.

use tidegate_core::{Nanos, Now};

use super::{Kind, Records, Stat, Unit};

/// One record of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its key.
    pub key: Box<[u8]>,
    /// What it is.
    pub kind: Kind,
    /// The unit of its life.
    pub unit: Unit,
    /// When it expires, in nanoseconds since the Unix epoch.
    pub expires_at: Nanos,
    /// Bytes of a buffer's value; a counter has none outside of its number.
    pub value_bytes: usize,
    /// How much it is used.
    pub stat: Stat,
    sequence: u64,
}

impl Records {
    /// The live records, oldest insertion first.
    #[must_use]
    pub fn list(&self, now: Now) -> Vec<Listed> {
        let mut listed = Vec::new();
        for number in 0..self.table.shards() {
            let shard = self.table.lock(number);
            let live = shard.entries().filter(|record| !record.expired(now));
            listed.extend(live.map(|record| Listed {
                key: record.name.as_bytes().into(),
                kind: record.value.kind(),
                unit: record.unit,
                expires_at: now.unix.saturating_add(record.expiry - now.mono),
                value_bytes: record.value.heap_bytes(),
                stat: record.stat(now),
                sequence: record.sequence,
            }));
        }
        listed.sort_unstable_by_key(|record| record.sequence);
        listed
    }
}
