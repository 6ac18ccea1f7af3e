//! The table beside a plain map, with hashes that collide a lot.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;

use proptest::prelude::*;

use super::*;

/// Hashes that collide a lot: few homes, few tags.
fn hash_of(key: &u16) -> u64 {
    u64::from(*key % 7) << 56 | u64::from(*key % 3) << 32 | u64::from(*key % 13)
}

#[derive(Clone, Debug)]
enum Step {
    Insert(u16),
    Remove(u16),
    Sweep(u16),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..600u16).prop_map(Step::Insert),
        2 => (0..600u16).prop_map(Step::Remove),
        1 => (0..600u16).prop_map(Step::Sweep),
    ];
    prop::collection::vec(step, 0..800)
}

proptest! {
    #[test]
    fn it_holds_what_a_map_holds(steps in steps()) {
        let table = Table::<u16>::new(20_000);
        let mut model = HashMap::new();
        for step in steps {
            match step {
                Step::Insert(key) => {
                    let mut shard = table.lock(table.shard_of(hash_of(&key)));
                    if shard.find(hash_of(&key), |e| *e == key).is_none() {
                        prop_assert!(shard.insert(hash_of(&key), key, hash_of).is_ok());
                    }
                    model.insert(key, ());
                }
                Step::Remove(key) => {
                    let mut shard = table.lock(table.shard_of(hash_of(&key)));
                    let found = shard.find(hash_of(&key), |e| *e == key);
                    prop_assert_eq!(found.is_some(), model.remove(&key).is_some());
                    if let Some(spot) = found {
                        prop_assert_eq!(shard.remove(spot, hash_of), key);
                    }
                }
                Step::Sweep(below) => {
                    for shard in 0..table.shards() {
                        let mut shard = table.lock(shard);
                        shard.sweep(usize::MAX, hash_of, |e| *e < below, drop);
                    }
                    model.retain(|key, ()| *key >= below);
                }
            }
            prop_assert_eq!(table.len(), model.len());
        }
        for key in 0..600u16 {
            let mut shard = table.lock(table.shard_of(hash_of(&key)));
            let found = shard.find(hash_of(&key), |e| *e == key).is_some();
            prop_assert_eq!(found, model.contains_key(&key));
            let mut probe = table.probe(hash_of(&key));
            probe.prefetch();
            probe.prefetch_slot();
        }
    }
}

/// A key and how often it was used.
struct Used(u32, u64);

fn scattered(used: &Used) -> u64 {
    u64::from(used.0).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[test]
fn no_use_is_lost_while_the_index_grows_and_is_swept() {
    const KEYS: u32 = 3_000;
    const ROUNDS: u64 = 20;
    let table = Table::<Used>::new(20_000);
    let buried = AtomicU64::new(0);
    let work = |thread: u32| {
        for round in 0..ROUNDS {
            for step in 0..KEYS {
                let key = (step * (2 * thread + 1)) % KEYS;
                let hash = scattered(&Used(key, 0));
                if let Some(mut found) = table.probe(hash).find(|e| e.0 == key) {
                    found.1 += 1;
                    continue;
                }
                let mut shard = table.lock(table.shard_of(hash));
                match shard.find(hash, |e| e.0 == key) {
                    Some(spot) => shard.entry(spot).1 += 1,
                    None => assert!(shard.insert(hash, Used(key, 1), scattered).is_ok()),
                }
                let dead = |e: &Used| round % 3 == 2 && e.0 % 5 == thread && e.1 > 1;
                shard.sweep(4, scattered, dead, |e| {
                    buried.fetch_add(e.1, Relaxed);
                });
            }
        }
    };
    thread::scope(|scope| (0..4).for_each(|n| drop(scope.spawn(move || work(n)))));
    let mut uses = buried.load(Relaxed);
    for number in 0..table.shards() {
        table.lock(number).each(|e| uses += e.1);
    }
    assert_eq!(uses, 4 * ROUNDS * u64::from(KEYS));
}

#[test]
fn no_update_under_a_lock_is_lost() {
    let lock = Lock::new((0u64, 0u64));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..100_000 {
                    let both = &mut *lock.lock();
                    both.0 += 1;
                    both.1 = both.0;
                }
            });
        }
    });
    assert_eq!(*lock.lock(), (400_000, 400_000));
}

#[test]
fn a_panic_frees_a_lock() {
    let lock = Lock::new(0);
    let held = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _held = lock.lock();
        panic!("while it is held");
    }));
    assert!(held.is_err());
    *lock.lock() += 1;
}

#[test]
fn an_aim_from_before_the_index_grew_finds_its_entry_or_none() {
    const KEYS: u32 = 5_000;
    let table = Table::<Used>::new(20_000);
    let hash = |key| scattered(&Used(key, 0));
    let early: Vec<_> = (0..KEYS).map(|key| table.probe(hash(key))).collect();
    let mut found = [0, 0];
    for key in 0..KEYS {
        let mut shard = table.lock(table.shard_of(hash(key)));
        assert!(shard.insert(hash(key), Used(key, 0), scattered).is_ok());
        drop(shard);
        for (at, mut probe) in [early[key as usize], table.probe(hash(key))].into_iter().enumerate()
        {
            probe.prefetch_slot();
            if let Some(mut entry) = probe.find(|e| e.0 == key) {
                entry.1 += 1;
                found[at] += 1;
            }
        }
    }
    // Few lie beyond their line; most of the lines that were aimed at early are empty by now.
    assert!(found[1] > KEYS / 10 * 9 && found[0] < KEYS / 2, "{found:?}");
    let mut uses = 0;
    (0..table.shards()).for_each(|number| table.lock(number).each(|e| uses += e.1));
    assert_eq!(uses, u64::from(found[0] + found[1]));
    for (key, probe) in (0..KEYS).zip(&early) {
        assert!(probe.find(|e| e.0 != key && hash(e.0) == hash(key)).is_none());
    }
}
