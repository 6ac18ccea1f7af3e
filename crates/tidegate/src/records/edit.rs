//! Steps that make a record, or change one of either kind, as clients of Redis expect it.
//!
//! Each is one step under the lock of its key: what it sees is what it changes.

use std::mem;

use tidegate_core::{Nanos, Now};

use super::capacity::Footprint;
use super::record::{RecordEntry, RecordValue};
use super::tally::Use;
use super::{Life, RecordProbe, Records, Unit, find};

/// The largest number that a counter is raised to: clients read it as a signed one.
const SUM_MAX: u64 = i64::MAX as u64;

/// What a record holds, as it is shown and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content<'a> {
    /// The number of a counter.
    Number(u64),
    /// The bytes of a buffer.
    Bytes(&'a [u8]),
}

impl Content<'_> {
    fn to_value(self) -> RecordValue {
        match self {
            Self::Number(number) => RecordValue::Counter(number),
            Self::Bytes(bytes) => RecordValue::Buffer(bytes.into()),
        }
    }
}

/// A live record as a step sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenRecord<'a> {
    /// What it holds.
    pub content: Content<'a>,
    /// What is left of its life; [`Nanos::MAX`] if it never expires.
    pub left: Nanos,
}

/// What a step does to a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordEdit<'a> {
    /// Nothing.
    Keep,
    /// Removes it.
    Remove,
    /// Gives it a new life that begins now.
    Expire(Life),
    /// Makes it, or overwrites what it holds. Without a life it keeps the one that it has; a new
    /// record then lives for ever.
    Put(Content<'a>, Option<Life>),
}

/// Why nothing was added to a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddRefusal {
    /// The key holds a buffer.
    Buffer,
    /// The sum would be larger than a signed number can be.
    Above,
    /// The sum would be below zero.
    Below,
    /// There was no record, and there is no room for one.
    Full,
}

impl Life {
    /// The life of a record that never expires.
    pub const FOREVER: Self = Self { unit: Unit::Milliseconds, amount: u64::MAX };
}

impl Records {
    /// Adds `number` to a counter, or makes one that holds it and never expires. Returns the sum.
    ///
    /// # Errors
    /// Why nothing was added.
    pub fn add_or_insert(
        &self,
        key: &[u8],
        probe: RecordProbe<'_>,
        number: i64,
        now: Now,
    ) -> Result<u64, AddRefusal> {
        let step = |record: &mut RecordEntry| Some(record.add(number, now));
        if let Some(added) = self.live(key, probe, now, step) {
            return added;
        }
        let hash = probe.hash();
        let mut shard = self.lock(hash);
        let found = find(&mut shard, hash, key);
        // Another loop may have made it meanwhile.
        if let Some(spot) = found.filter(|spot| !shard.entry(*spot).expired(now)) {
            return shard.entry(spot).add(number, now);
        }
        let sum = sum(0, number)?;
        let value = RecordValue::Counter(sum);
        let is_made = self.make(&mut shard, found, key, hash, value, Life::FOREVER, now);
        if is_made { Ok(sum) } else { Err(AddRefusal::Full) }
    }

    /// Shows a live record of either kind to `see`, under its lock. `None` if there is none.
    pub fn read<R>(
        &self,
        key: &[u8],
        probe: RecordProbe<'_>,
        now: Now,
        see: impl FnOnce(SeenRecord<'_>) -> R,
    ) -> Option<R> {
        self.live(key, probe, now, |record| {
            record.count(Use::Read, now);
            Some(see(record.seen(now)))
        })
    }

    /// What is left of a record's life; [`Nanos::MAX`] if it never expires, `None` if there is no
    /// live one. Asking for it counts as no use.
    pub fn left(&self, key: &[u8], probe: RecordProbe<'_>, now: Now) -> Option<Nanos> {
        self.live(key, probe, now, |record| Some(record.left_nanos(now)))
    }

    /// Does to a record what `step` says when it sees it, and returns what `step` returns beside
    /// that. `None` if there was no room, and nothing was done.
    pub fn edit<'v, R>(
        &self,
        key: &[u8],
        probe: RecordProbe<'_>,
        now: Now,
        step: impl FnOnce(Option<SeenRecord<'_>>) -> (RecordEdit<'v>, R),
    ) -> Option<R> {
        let hash = probe.hash();
        let mut shard = self.lock(hash);
        let found = find(&mut shard, hash, key);
        let live = found.filter(|spot| !shard.entry(*spot).expired(now));
        let (edit, result) = step(live.map(|spot| shard.entry(spot).seen(now)));
        // What was overwritten is freed behind the lock.
        let mut old = None;
        match (edit, live) {
            (RecordEdit::Keep, _) | (RecordEdit::Remove | RecordEdit::Expire(_), None) => {}
            (RecordEdit::Remove, Some(spot)) => old = Some(self.remove(&mut shard, spot).value),
            (RecordEdit::Expire(life), Some(spot)) => {
                self.begin_life(shard.entry(spot), life, now);
            }
            (RecordEdit::Put(content, life), None) => {
                let life = life.unwrap_or(Life::FOREVER);
                if !self.make(&mut shard, found, key, hash, content.to_value(), life, now) {
                    return None;
                }
            }
            (RecordEdit::Put(content, life), Some(spot)) => {
                let value = content.to_value();
                let after = Footprint::new(&shard.entry(spot).name, &value);
                let record = self.regrow(&mut shard, hash, key, after, now)?;
                old = Some(mem::replace(&mut record.value, value));
                match life {
                    Some(life) => self.begin_life(record, life, now),
                    None => record.count(Use::Write, now),
                }
            }
        }
        drop(shard);
        drop(old);
        Some(result)
    }

    /// Gives a record that is written a life that begins now.
    pub(super) fn begin_life(&self, record: &mut RecordEntry, life: Life, now: Now) {
        record.expiry = life.expiry(now);
        record.unit = life.unit;
        self.earliest.note(record.expiry);
        record.count(Use::Write, now);
    }
}

impl RecordEntry {
    fn seen(&self, now: Now) -> SeenRecord<'_> {
        let content = match &self.value {
            RecordValue::Counter(number) => Content::Number(*number),
            RecordValue::Buffer(bytes) => Content::Bytes(bytes),
        };
        SeenRecord { content, left: self.left_nanos(now) }
    }

    fn add(&mut self, number: i64, now: Now) -> Result<u64, AddRefusal> {
        let RecordValue::Counter(quota) = &mut self.value else { return Err(AddRefusal::Buffer) };
        let sum = sum(*quota, number)?;
        *quota = sum;
        self.count(Use::Write, now);
        Ok(sum)
    }
}

fn sum(quota: u64, number: i64) -> Result<u64, AddRefusal> {
    let sum = i128::from(quota) + i128::from(number);
    if sum < 0 {
        return Err(AddRefusal::Below);
    }
    u64::try_from(sum).ok().filter(|sum| *sum <= SUM_MAX).ok_or(AddRefusal::Above)
}
