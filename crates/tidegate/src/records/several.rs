//! Taking from several counters in one step: all of them, or none.

use tidegate_core::Now;
use tidegate_core::key::same;

use super::record::{RecordEntry, RecordValue};
use super::{Life, Nanos, RecordProbe, Records, Use, find, units_left};
use crate::table::{Locked, Spot};

/// One of several takes that are made together.
#[derive(Clone, Copy)]
pub struct RecordTake<'a> {
    /// The counter's key.
    pub key: &'a [u8],
    /// Where its record lies.
    pub probe: RecordProbe<'a>,
    /// How much is taken.
    pub cost: u64,
    /// What a counter is made with if there is none.
    pub quota: u64,
    /// How long it then lives.
    pub life: Life,
}

/// A counter as it stands, or as it would be made.
#[derive(Clone, Copy)]
struct Standing {
    quota: u64,
    expiry: Nanos,
}

impl Records {
    /// Takes every cost from its counter if each has as much, in one step. Counters that are
    /// absent or have expired are made first, unless nothing is taken. A key may be named several
    /// times. Shows for each take what remains and the whole units of its life that are left.
    pub fn consume_all(
        &self,
        takes: &[RecordTake<'_>],
        now: Now,
        mut see: impl FnMut(u64, u64),
    ) -> bool {
        let mut shards = self.lock_all(takes);
        let mut standing: Vec<Option<Standing>> = Vec::with_capacity(takes.len());
        for take in takes {
            let earlier = takes[..standing.len()].iter().position(|one| same(one.key, take.key));
            standing.push(match earlier {
                Some(at) => standing[at],
                None => stand(shards.of(self, take), take, now),
            });
        }
        let granted = self.grant(&mut shards, takes, &standing, now);
        for (at, take) in takes.iter().enumerate() {
            let Some(Standing { quota, expiry }) = standing[at] else {
                see(0, 0);
                continue;
            };
            let spent = if granted { spent_until(takes, at + 1, take) } else { 0 };
            see(quota.saturating_sub(spent), units_left(take.life.unit, expiry, now));
        }
        granted
    }

    /// Every shard of the takes once, locked in the order of their numbers.
    fn lock_all(&self, takes: &[RecordTake<'_>]) -> Shards<'_> {
        let mut numbers: Vec<usize> =
            takes.iter().map(|take| self.table.shard_of(take.probe.hash())).collect();
        numbers.sort_unstable();
        numbers.dedup();
        Shards(numbers.into_iter().map(|number| (number, self.table.lock(number))).collect())
    }

    /// Takes from all if all have enough; otherwise, or if one cannot be made, from none.
    fn grant(
        &self,
        shards: &mut Shards<'_>,
        takes: &[RecordTake<'_>],
        standing: &[Option<Standing>],
        now: Now,
    ) -> bool {
        let enough = |at: usize| {
            let spent = spent_until(takes, at + 1, &takes[at]);
            standing[at].is_some_and(|counter| counter.quota >= spent)
        };
        if !(0..takes.len()).all(enough) {
            return false;
        }
        let mut made = Vec::with_capacity(takes.len());
        for take in takes {
            let shard = shards.of(self, take);
            let found = find(shard, take.probe.hash(), take.key);
            let spot = live(shard, found, now);
            made.push(spot.is_none());
            if let Some(spot) = spot {
                let record = shard.entry(spot);
                if let RecordValue::Counter(quota) = &mut record.value {
                    *quota = quota.saturating_sub(take.cost);
                }
                record.count(Use::Write, now);
                continue;
            }
            let value = RecordValue::Counter(take.quota.saturating_sub(take.cost));
            if !self.make(shard, found, take.key, take.probe.hash(), value, take.life, now) {
                made.pop();
                self.take_back(shards, takes, &made, now);
                return false;
            }
        }
        true
    }

    /// Undoes the first takes, the last of them first; `made` says which of them made its counter.
    fn take_back(
        &self,
        shards: &mut Shards<'_>,
        takes: &[RecordTake<'_>],
        made: &[bool],
        now: Now,
    ) {
        for (take, made) in takes.iter().zip(made).rev() {
            let shard = shards.of(self, take);
            let found = find(shard, take.probe.hash(), take.key);
            let Some(spot) = live(shard, found, now) else { continue };
            if *made {
                self.remove(shard, spot);
            } else if let RecordValue::Counter(quota) = &mut shard.entry(spot).value {
                *quota = quota.saturating_add(take.cost);
            }
        }
    }
}

/// What the takes before `end` that name the same key as `take` cost together.
fn spent_until(takes: &[RecordTake<'_>], end: usize, take: &RecordTake<'_>) -> u64 {
    let same_key = takes[..end].iter().filter(|other| same(other.key, take.key));
    same_key.fold(0, |sum, other| sum.saturating_add(other.cost))
}

fn live(shard: &mut Locked<'_, RecordEntry>, found: Option<Spot>, now: Now) -> Option<Spot> {
    found.filter(|spot| !shard.entry(*spot).expired(now))
}

/// `None` where there is a buffer.
fn stand(shard: &mut Locked<'_, RecordEntry>, take: &RecordTake<'_>, now: Now) -> Option<Standing> {
    let found = find(shard, take.probe.hash(), take.key);
    let Some(spot) = live(shard, found, now) else {
        return Some(Standing { quota: take.quota, expiry: take.life.expiry(now) });
    };
    let record = shard.entry(spot);
    match record.value {
        RecordValue::Counter(quota) => Some(Standing { quota, expiry: record.expiry }),
        RecordValue::Buffer(_) => None,
    }
}

/// Shards that are locked together.
struct Shards<'a>(Vec<(usize, Locked<'a, RecordEntry>)>);

impl<'a> Shards<'a> {
    fn of(&mut self, records: &Records, take: &RecordTake<'_>) -> &mut Locked<'a, RecordEntry> {
        let number = records.table.shard_of(take.probe.hash());
        let at = self.0.binary_search_by_key(&number, |(number, _)| *number);
        &mut self.0[at.expect("the shards of all takes are locked")].1
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::super::{Settings, Unit};
    use super::*;

    const NOW: Now = Now { mono: 1 << 60, unix: 1 << 60 };

    fn records(max_records: usize) -> Arc<Records> {
        Records::new(Settings { max_records, max_bytes: 1 << 24 })
    }

    /// Takes `cost` of each key, from quotas of ten; what remains of each.
    fn take(records: &Records, takes: &[(&str, u64)]) -> (bool, Vec<u64>) {
        let life = Life { unit: Unit::Seconds, amount: 60 };
        let takes: Vec<RecordTake<'_>> = takes
            .iter()
            .map(|(key, cost)| {
                let key = key.as_bytes();
                RecordTake { key, probe: records.probe(key), cost: *cost, quota: 10, life }
            })
            .collect();
        let mut remaining = Vec::new();
        let granted = records.consume_all(&takes, NOW, |rest, left| {
            assert_eq!(left, 59);
            remaining.push(rest);
        });
        (granted, remaining)
    }

    fn quota(records: &Records, key: &str) -> Option<u64> {
        let key = key.as_bytes();
        records.query(key, records.probe(key), NOW).map(|counter| counter.quota)
    }

    #[test]
    fn all_take_or_none_does() {
        let records = records(100);
        assert_eq!(take(&records, &[("a", 4), ("b", 7)]), (true, vec![6, 3]));
        assert_eq!(take(&records, &[("a", 1), ("b", 4)]), (false, vec![6, 3]));
        assert_eq!(take(&records, &[("new", 1), ("b", 4)]), (false, vec![10, 3]));
        assert_eq!(quota(&records, "new"), None, "nothing is made where nothing is taken");
        assert_eq!(take(&records, &[("a", 6), ("b", 3)]), (true, vec![0, 0]));
        assert_eq!(take(&records, &[]), (true, vec![]));
        assert_eq!(take(&records, &[("c", 11)]), (false, vec![10]));
    }

    #[test]
    fn a_key_named_twice_counts_twice() {
        let records = records(100);
        assert_eq!(take(&records, &[("a", 6), ("a", 5)]), (false, vec![10, 10]));
        assert_eq!(quota(&records, "a"), None);
        assert_eq!(take(&records, &[("a", 6), ("a", 4)]), (true, vec![4, 0]));
        assert_eq!(quota(&records, "a"), Some(0));
    }

    #[test]
    fn a_full_table_undoes_what_was_begun() {
        let records = records(2);
        assert_eq!(take(&records, &[("a", 1)]), (true, vec![9]));
        assert!(!take(&records, &[("a", 1), ("b", 1), ("b", 1), ("c", 1)]).0);
        assert_eq!(quota(&records, "a"), Some(9));
        assert_eq!(quota(&records, "b"), None);
        assert_eq!(records.size().records(), 1);
    }

    #[test]
    fn threads_that_name_the_same_keys_in_other_orders_lose_nothing() {
        let records = records(10_000);
        let keys: Vec<String> = (0..64).map(|n| format!("key {n}")).collect();
        let life = Life { unit: Unit::Hours, amount: 1 };
        let granted: u64 = thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|thread: usize| {
                    let (records, keys) = (&records, &keys);
                    scope.spawn(move || {
                        let mut granted = 0;
                        for round in 0..500 {
                            let named = (0..8).map(|n| {
                                let n = if thread.is_multiple_of(2) { n } else { 7 - n };
                                keys[(round + 8 * n) % keys.len()].as_bytes()
                            });
                            let takes: Vec<RecordTake<'_>> = named
                                .map(|key| {
                                    let probe = records.probe(key);
                                    RecordTake { key, probe, cost: 1, quota: 150, life }
                                })
                                .collect();
                            granted += u64::from(records.consume_all(&takes, NOW, |_, _| {}));
                        }
                        granted
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
        });
        let spent: u64 = keys.iter().filter_map(|key| quota(&records, key)).map(|q| 150 - q).sum();
        assert_eq!(spent, 8 * granted);
        assert!(granted > 0 && granted < 2000, "{granted}: some were refused");
    }
}
