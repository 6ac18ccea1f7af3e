//! What is counted for each key beside its limits, packed into three words.
//!
//! Requests and refusals since the key was remembered (48 bits each, saturating), the highest
//! rate of the current and of the previous 300-second bucket (24 bits each: the shown rate is
//! capped below that), the bucket, and the rule that the slot belongs to (24 bits each).

use tidegate_core::time::SECOND;
use tidegate_core::{Nanos, Now};

/// The length of a statistics bucket; buckets are aligned on the epoch.
const BUCKET: Nanos = 300 * SECOND;
/// A key not used stays for this many buckets, so that two full ones have passed in any case.
const KEEP_BUCKETS: u32 = 3;
const COUNT_BITS: u32 = 48;
const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;
const SMALL_BITS: u32 = 24;
const SMALL_MASK: u64 = (1 << SMALL_BITS) - 1;
/// The largest rule number that fits.
pub(crate) const RULE_MAX: u32 = SMALL_MASK as u32;

/// Statistics of one key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyStats {
    /// Uses asked for since the key was remembered.
    pub requests: u64,
    /// Those of them that were over the limit.
    pub over: u64,
    /// The highest rate of the previous completed bucket, cut to an integer.
    pub last_max_rate: u64,
}

/// The packed form.
///
/// Word 0: requests, low 16 bits of the rule. Word 1: refusals, high 8 bits of the rule, low 8
/// of the bucket. Word 2: current maximum, previous maximum, high 16 bits of the bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeyTally([u64; 3]);

/// The statistics bucket of a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StatsBucket(u32);

impl StatsBucket {
    /// The bucket that holds `now`. 24 bits last until 2129.
    pub(crate) fn of(now: Now) -> Self {
        Self(((now.unix / BUCKET) & SMALL_MASK) as u32)
    }
}

impl KeyTally {
    /// Nothing counted, for a slot of this rule.
    pub(crate) fn new(rule: u32, bucket: StatsBucket) -> Self {
        let mut tally = Self::default();
        tally.0[0] |= u64::from(rule & 0xffff) << COUNT_BITS;
        tally.0[1] |= u64::from(rule >> 16 & 0xff) << COUNT_BITS;
        tally.set_bucket(bucket);
        tally
    }

    /// The rule that the slot belongs to.
    #[inline]
    pub(crate) fn rule(&self) -> u32 {
        (self.0[0] >> COUNT_BITS) as u32 | ((self.0[1] >> COUNT_BITS) as u32 & 0xff) << 16
    }

    fn bucket(&self) -> StatsBucket {
        StatsBucket((self.0[1] >> 56) as u32 | ((self.0[2] >> COUNT_BITS) as u32) << 8)
    }

    fn set_bucket(&mut self, bucket: StatsBucket) {
        self.0[1] = self.0[1] & (u64::MAX >> 8) | u64::from(bucket.0 & 0xff) << 56;
        self.0[2] = self.0[2] & COUNT_MAX | u64::from(bucket.0 >> 8) << COUNT_BITS;
    }

    fn maxima(&self) -> (u64, u64) {
        (self.0[2] & SMALL_MASK, self.0[2] >> SMALL_BITS & SMALL_MASK)
    }

    fn set_maxima(&mut self, current: u64, previous: u64) {
        self.0[2] = self.0[2] & !COUNT_MAX | previous << SMALL_BITS | current;
    }

    /// Counts one request that read `rate`.
    #[inline]
    pub(crate) fn count(&mut self, over: bool, rate: f64, bucket: StatsBucket) {
        if self.0[0] & COUNT_MAX < COUNT_MAX {
            self.0[0] += 1;
        }
        if over && self.0[1] & COUNT_MAX < COUNT_MAX {
            self.0[1] += 1;
        }
        // The cast cuts to an integer, and takes what is not a number for 0.
        let rate = u64::from(rate as u32).min(SMALL_MASK);
        if self.bucket() != bucket && self.turn_to(bucket, rate) {
            return;
        }
        let (current, previous) = self.maxima();
        if rate > current {
            self.set_maxima(rate, previous);
        }
    }

    /// Begins another bucket with this rate, unless it is the one just before the current: a wall
    /// clock that steps back a little stays in the newer one. Where it was far ahead it was wrong:
    /// the key follows it back, or its maxima would stand still for as long.
    #[cold]
    fn turn_to(&mut self, bucket: StatsBucket, rate: u64) -> bool {
        let before = self.bucket().0;
        if bucket.0.checked_add(1) == Some(before) {
            return false;
        }
        let previous = if bucket.0 == before + 1 { self.maxima().0 } else { 0 };
        self.set_maxima(rate, previous);
        self.set_bucket(bucket);
        true
    }

    /// What people are shown.
    pub(crate) fn stats(&self, bucket: StatsBucket) -> KeyStats {
        let (current, previous) = self.maxima();
        KeyStats {
            requests: self.0[0] & COUNT_MAX,
            over: self.0[1] & COUNT_MAX,
            last_max_rate: match bucket.0.saturating_sub(self.bucket().0) {
                0 => previous,
                1 => current,
                _ => 0,
            },
        }
    }

    /// Whether these statistics are out of date.
    pub(crate) fn stale(&self, bucket: StatsBucket) -> bool {
        bucket.0.saturating_sub(self.bucket().0) >= KEEP_BUCKETS
    }

    /// The words without the rule, for a snapshot.
    pub(crate) fn words(&self) -> [u64; 3] {
        self.0
    }

    /// The tally that gave these words, now for another number of the rule.
    pub(crate) fn restored(words: [u64; 3], rule: u32) -> Self {
        let mut tally = Self(words);
        tally.0[0] &= COUNT_MAX;
        tally.0[1] &= COUNT_MAX | 0xff << 56;
        tally.0[0] |= u64::from(rule & 0xffff) << COUNT_BITS;
        tally.0[1] |= u64::from(rule >> 16 & 0xff) << COUNT_BITS;
        tally
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(seconds: u64) -> StatsBucket {
        StatsBucket::of(Now { mono: 0, unix: seconds * SECOND })
    }

    #[test]
    fn the_previous_bucket_is_shown_once_it_is_complete() {
        let mut tally = KeyTally::new(7, at(0));
        tally.count(false, 3.9, at(0));
        tally.count(true, 2.0, at(299));
        assert_eq!(tally.stats(at(299)), KeyStats { requests: 2, over: 1, last_max_rate: 0 });
        assert_eq!(tally.stats(at(300)).last_max_rate, 3);
        assert_eq!(tally.stats(at(600)).last_max_rate, 0);
        tally.count(false, 1.0, at(300));
        assert_eq!(tally.stats(at(301)).last_max_rate, 3);
        tally.count(false, 1.0, at(900));
        assert_eq!(tally.stats(at(900)).last_max_rate, 0);
    }

    #[test]
    fn it_is_stale_only_after_two_full_buckets() {
        let tally = KeyTally::new(1, at(299));
        assert!(!tally.stale(at(899)));
        assert!(tally.stale(at(900)));
    }

    proptest! {
        #[test]
        fn packing_keeps_every_field_apart(
            rule in 0..=RULE_MAX, other in 0..=RULE_MAX,
            uses in prop::collection::vec(
                (any::<bool>(), -1e9..1e9f64, 0..5_000_000_000u64), 0..50
            ),
        ) {
            let mut tally = KeyTally::new(rule, at(0));
            let (mut requests, mut refusals) = (0, 0);
            let (mut bucket, mut current, mut previous) = (0u64, 0u64, 0u64);
            for (over, rate, second) in uses {
                let now = (second / 300) & SMALL_MASK;
                let now = if now + 1 == bucket { bucket } else { now };
                tally.count(over, rate, at(second));
                requests += 1;
                refusals += u64::from(over);
                if now != bucket {
                    previous = if now == bucket + 1 { current } else { 0 };
                    current = 0;
                    bucket = now;
                }
                current = current.max((rate.max(0.0) as u64).min(SMALL_MASK));
                let shown = tally.stats(at(bucket * 300));
                let expected = KeyStats { requests, over: refusals, last_max_rate: previous };
                prop_assert_eq!(shown, expected);
                prop_assert_eq!(tally.rule(), rule);
            }
            let restored = KeyTally::restored(tally.words(), other);
            prop_assert_eq!(restored.rule(), other);
            prop_assert_eq!(restored.stats(at(bucket * 300)), tally.stats(at(bucket * 300)));
        }
    }
}
