//! Records on their way to a snapshot and back.
//!
//! The bytes of the file are the snapshot's; here is only what a record is made of.

use std::sync::atomic::Ordering::Relaxed;

use tidegate_core::{Nanos, Now};

use super::listing::WALK_STRIDE;
use super::record::{RecordEntry, RecordValue};
use super::tally::{Minute, Minutes};
use super::{KEY_BYTES_MAX, Records, Unit, find};
use crate::table::{Name, WalkStep};

/// Where numbers in the order of insertion end. No process makes so many records: a higher number
/// in a file is damage.
const SEQUENCE_MAX: u64 = 1 << 62;

/// One record as it is written down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeptRecord {
    pub(crate) key: Vec<u8>,
    pub(crate) value: RecordValue,
    pub(crate) unit: Unit,
    /// On the monotonic clock.
    pub(crate) expiry: Nanos,
    /// Its place in the order of insertion.
    pub(crate) sequence: u64,
    /// Reads and writes since it was made.
    pub(crate) totals: [u64; 2],
    /// Which minute of the monotonic clock the following are about.
    pub(crate) minute: u32,
    /// Reads and writes in that minute, then in the one before it.
    pub(crate) by_minute: [u32; 4],
}

impl KeptRecord {
    fn new(record: &RecordEntry) -> Self {
        let Minutes { number, running, last } = record.minutes;
        Self {
            key: record.name.as_bytes().to_vec(),
            value: record.value.clone(),
            unit: record.unit,
            expiry: record.expiry,
            sequence: record.sequence,
            totals: record.totals,
            minute: number.0,
            by_minute: [running[0], running[1], last[0], last[1]],
        }
    }

    /// Whether it is something that a record can be.
    pub(crate) fn is_sound(&self) -> bool {
        self.key.len() <= KEY_BYTES_MAX && self.sequence < SEQUENCE_MAX
    }

    /// The same after the monotonic clock was set by as much. Which minute was which is lost.
    pub(crate) fn shifted(mut self, offset: i64) -> Self {
        if offset != 0 {
            // What never expires does not do so after a reboot either.
            if self.expiry < Nanos::MAX {
                self.expiry = self.expiry.saturating_add_signed(offset);
            }
            (self.minute, self.by_minute) = (0, [0; 4]);
        }
        self
    }
}

impl Records {
    /// Shows every live record, a shard at a time; no lock is held while `see` works.
    pub(crate) fn export(&self, now: Now, mut see: impl FnMut(KeptRecord)) {
        let mut shard = Vec::new();
        for number in 0..self.table.shards() {
            let mut walk = self.table.walk(number);
            loop {
                let step = walk.step(WALK_STRIDE, |record| {
                    if !record.expired(now) {
                        shard.push(KeptRecord::new(record));
                    }
                });
                match step {
                    WalkStep::On => {}
                    WalkStep::Anew => shard.clear(),
                    WalkStep::Done => break,
                }
            }
            shard.drain(..).for_each(&mut see);
        }
    }

    /// Takes a record of an earlier process back, in its old place of the order. `false` if there
    /// is no room, or one of that key.
    pub(crate) fn import(&self, kept: KeptRecord, now: Now) -> bool {
        let hash = self.hash(&kept.key);
        let [reads, writes, last_reads, last_writes] = kept.by_minute;
        let record = RecordEntry {
            name: Name::new(&kept.key),
            value: kept.value,
            expiry: kept.expiry,
            sequence: kept.sequence,
            totals: kept.totals,
            minutes: Minutes {
                number: Minute(kept.minute),
                running: [reads, writes],
                last: [last_reads, last_writes],
            },
            unit: kept.unit,
        };
        self.sequence.fetch_max(kept.sequence.saturating_add(1), Relaxed);
        let mut shard = self.lock(hash);
        let free = find(&mut shard, hash, &kept.key).is_none();
        free && self.add(&mut shard, hash, record, now)
    }
}
