//! Until when each client must wait, as the masters said last. Bounded, sharded, expiring.
//!
//! No client waits longer than a master said. A delay that does not fit is dropped, which lets its
//! client pass. The table knows no sockets and no clock; the time comes with each call.

use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use parking_lot::Mutex;

/// Shards of a large table: so many that loops seldom meet.
const SHARDS_MAX: usize = 256;
/// A shard is worth its lock from about so many entries on.
const SHARD_ENTRIES_MIN: usize = 1_024;
/// Shards that are swept for one delay that finds no room.
const SWEEPS_MAX: usize = 4;
/// A sweep takes this share of the shards.
const SWEEP_SHARE: usize = 8;
/// The most bytes of an identifier that stay inside its entry.
const INLINE_BYTES: usize = 30;

/// Identifiers and their times.
pub(super) struct DelayTable {
    shards: Box<[Shard]>,
    seed: RandomState,
    len: AtomicUsize,
    max: usize,
    cursor: AtomicUsize,
}

// Two shards in one cache line would make two cores fight over locks that have nothing in common.
#[repr(align(64))]
#[derive(Default)]
struct Shard {
    /// Whether it may have entries: most shards have none, and a lookup then takes no lock.
    used: AtomicBool,
    entries: Mutex<HashTable<Entry>>,
}

struct Entry {
    until_ms: i64,
    domain: u16,
    name: Name,
}

/// An identifier's bytes: short ones inline, so that comparing them follows no pointer.
enum Name {
    Inline { len: u8, bytes: [u8; INLINE_BYTES] },
    Heap(Box<[u8]>),
}

impl Name {
    fn new(identifier: &[u8]) -> Self {
        if identifier.len() > INLINE_BYTES {
            return Name::Heap(identifier.into());
        }
        let mut bytes = [0; INLINE_BYTES];
        bytes[..identifier.len()].copy_from_slice(identifier);
        Name::Inline { len: identifier.len() as u8, bytes }
    }

    #[inline]
    fn as_bytes(&self) -> &[u8] {
        match self {
            Name::Inline { len, bytes } => &bytes[..usize::from(*len).min(INLINE_BYTES)],
            Name::Heap(bytes) => bytes,
        }
    }
}

impl Entry {
    #[inline]
    fn is(&self, domain: u16, identifier: &[u8]) -> bool {
        self.domain == domain && self.name.as_bytes() == identifier
    }
}

impl DelayTable {
    /// A table for up to `max` entries.
    pub(super) fn new(max: usize) -> Self {
        let shards = (max / SHARD_ENTRIES_MIN + 1).next_power_of_two().min(SHARDS_MAX);
        Self {
            shards: (0..shards).map(|_| Shard::default()).collect(),
            seed: RandomState::default(),
            len: AtomicUsize::new(0),
            max: max.max(1),
            cursor: AtomicUsize::new(0),
        }
    }

    /// Entries that are kept, some of which may have expired.
    pub(super) fn len(&self) -> usize {
        self.len.load(Relaxed)
    }

    /// Clients choose identifiers, hence the seed; they do not choose domains. The two are compared
    /// apart, so that no pair is ever taken for another.
    #[inline(always)]
    fn hash(&self, domain: u16, identifier: &[u8]) -> u64 {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut hasher = self.seed.build_hasher();
        hasher.write(identifier);
        hasher.finish().wrapping_add(u64::from(domain).wrapping_mul(ODD))
    }

    #[inline]
    fn shard(&self, hash: u64) -> &Shard {
        // The table in the shard uses the lowest and the highest bits.
        &self.shards[(hash >> 40) as usize & (self.shards.len() - 1)]
    }

    /// Until when a client must wait, which may be past.
    #[inline(always)]
    pub(super) fn until(&self, domain: u16, identifier: &[u8]) -> Option<i64> {
        let hash = self.hash(domain, identifier);
        let shard = self.shard(hash);
        if !shard.used.load(Relaxed) {
            return None;
        }
        let entries = shard.entries.lock();
        Some(entries.find(hash, |entry| entry.is(domain, identifier))?.until_ms)
    }

    /// Remembers what a master says. The newest counts, be it earlier or later than the one before:
    /// masters send in order, and one whose limit was raised takes a delay back. `false` if it did
    /// not fit among those that still wait.
    pub(super) fn remember(
        &self,
        domain: u16,
        identifier: &[u8],
        until_ms: i64,
        now_ms: i64,
    ) -> bool {
        let hash = self.hash(domain, identifier);
        let mut room = self.len() < self.max;
        loop {
            let shard = self.shard(hash);
            let mut entries = shard.entries.lock();
            if let Some(entry) = entries.find_mut(hash, |entry| entry.is(domain, identifier)) {
                entry.until_ms = until_ms;
                return true;
            }
            if until_ms <= now_ms {
                return true;
            }
            if room {
                let entry = Entry { until_ms, domain, name: Name::new(identifier) };
                let hash_of = |entry: &Entry| self.hash(entry.domain, entry.name.as_bytes());
                entries.insert_unique(hash, entry, hash_of);
                shard.used.store(true, Relaxed);
                self.len.fetch_add(1, Relaxed);
                return true;
            }
            drop(entries);
            room = self.make_room(hash, now_ms);
            if !room {
                return false;
            }
        }
    }

    /// Removes expired entries until one fits.
    fn make_room(&self, hash: u64, now_ms: i64) -> bool {
        self.sweep_shard(self.shard(hash), now_ms);
        for _ in 1..SWEEPS_MAX.min(self.shards.len()) {
            if self.len() < self.max {
                break;
            }
            self.sweep_next(now_ms);
        }
        self.len() < self.max
    }

    /// Removes expired entries from a share of the table; repeated calls reach all of it.
    pub(super) fn sweep(&self, now_ms: i64) {
        if self.len() > 0 {
            (0..self.shards.len().div_ceil(SWEEP_SHARE)).for_each(|_| self.sweep_next(now_ms));
        }
    }

    fn sweep_next(&self, now_ms: i64) {
        let next = self.cursor.fetch_add(1, Relaxed) & (self.shards.len() - 1);
        self.sweep_shard(&self.shards[next], now_ms);
    }

    fn sweep_shard(&self, shard: &Shard, now_ms: i64) {
        if !shard.used.load(Relaxed) {
            return;
        }
        let mut entries = shard.entries.lock();
        let before = entries.len();
        entries.retain(|entry| entry.until_ms > now_ms);
        shard.used.store(!entries.is_empty(), Relaxed);
        self.len.fetch_sub(before - entries.len(), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn pairs_that_read_alike_stay_apart() {
        let table = DelayTable::new(100);
        let pairs: [(u16, &[u8]); 6] =
            [(0, b"1a"), (1, b"a"), (0, b""), (1, b""), (0x61, b""), (0, b"a\0")];
        for (at, (domain, identifier)) in pairs.iter().enumerate() {
            assert!(table.remember(*domain, identifier, 100 + at as i64, 0));
        }
        for (at, (domain, identifier)) in pairs.iter().enumerate() {
            assert_eq!(table.until(*domain, identifier), Some(100 + at as i64));
        }
        assert_eq!(table.until(0, b"a"), None);
    }

    #[test]
    fn the_newest_word_counts_be_it_earlier() {
        let table = DelayTable::new(1);
        assert!(table.remember(0, b"a", 500, 0));
        assert!(table.remember(0, b"a", 900, 0));
        assert!(table.remember(0, b"a", 300, 0));
        assert_eq!((table.until(0, b"a"), table.len()), (Some(300), 1));
    }

    #[test]
    fn a_table_full_of_those_that_wait_forgets_newcomers() {
        let table = DelayTable::new(2);
        assert!(table.remember(0, b"a", 100, 0));
        assert!(table.remember(0, b"b", 200, 0));
        assert!(!table.remember(0, b"c", 300, 99));
        assert_eq!(table.until(0, b"c"), None);
        assert_eq!(table.until(0, b"a"), Some(100), "nobody is pushed out");
        assert!(table.remember(0, b"c", 300, 100), "a had its time");
        assert_eq!((table.until(0, b"a"), table.len()), (None, 2));
    }

    #[test]
    fn many_are_found_and_swept() {
        let table = DelayTable::new(100_000);
        assert!(table.shards.len() > 1);
        let name = |at: u32| format!("{at:0>width$}", width = (at % 40) as usize).into_bytes();
        for at in 0..20_000 {
            assert!(table.remember(0, &name(at), 1 + i64::from(at), 0));
        }
        assert_eq!(table.len(), 20_000);
        for _ in 0..SWEEP_SHARE {
            table.sweep(10_000);
        }
        assert_eq!(table.len(), 10_000);
        for at in 0..20_000 {
            let expected = (at >= 10_000).then_some(1 + i64::from(at));
            assert_eq!(table.until(0, &name(at)), expected);
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Remember(u16, Vec<u8>, i64),
        Pass(i64),
        Sweep,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let identifier = prop::collection::vec(0..3_u8, 0..3).prop_map(|few| few.repeat(13));
        let step = prop_oneof![
            8 => (0..3_u16, identifier, 0..60_i64).prop_map(|(d, i, t)| Step::Remember(d, i, t)),
            3 => (0..20_i64).prop_map(Step::Pass),
            1 => Just(Step::Sweep),
        ];
        prop::collection::vec(step, 0..200)
    }

    proptest! {
        /// The obvious model: a map of those that still wait, never more than there is room for.
        #[test]
        fn it_knows_what_an_obvious_map_knows(max in 1..12_usize, steps in steps()) {
            let table = DelayTable::new(max);
            let mut model: BTreeMap<(u16, Vec<u8>), i64> = BTreeMap::new();
            let mut now = 0;
            for step in steps {
                match step {
                    Step::Pass(span) => now += span,
                    Step::Sweep => table.sweep(now),
                    Step::Remember(domain, identifier, span) => {
                        let until = now + span - 10;
                        let key = (domain, identifier);
                        model.retain(|_, until| *until > now);
                        let waits = until > now;
                        let fits = model.contains_key(&key) || !waits || model.len() < max;
                        // An entry past its time may still be there, and then takes the word.
                        let known = table.until(key.0, &key.1).is_some();
                        let taken = table.remember(key.0, &key.1, until, now);
                        prop_assert!(taken == fits || known, "{key:?}");
                        if taken {
                            model.insert(key, until);
                        }
                    }
                }
                prop_assert!(table.len() <= max);
                for ((domain, identifier), until) in &model {
                    let found = table.until(*domain, identifier).filter(|found| *found > now);
                    prop_assert_eq!(found, Some(*until).filter(|until| *until > now));
                }
                let waiting = model.values().filter(|until| **until > now).count();
                let names = (0..3_u16).flat_map(|domain| {
                    let few = [vec![], vec![0], vec![1], vec![2]];
                    few.into_iter().map(move |few| (domain, few.repeat(13)))
                });
                let seen = names.filter(|(domain, identifier)| {
                    table.until(*domain, identifier).is_some_and(|until| until > now)
                });
                prop_assert!(seen.count() <= waiting, "nobody waits whom the model does not know");
            }
        }
    }
}
