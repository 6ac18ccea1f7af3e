//! Several threads at once: no update is lost, no bound is passed, nothing is booked twice.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;

use super::*;

const ROUNDS: u64 = 50_000;

#[test]
fn threads_that_hammer_one_key_lose_no_update() {
    let records = records(100);
    let probe = records.probe(b"one");
    assert!(records.insert(b"one", probe, 0, seconds(60), START));
    let down = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    let up = UpdateChange::Increase;
                    assert!(records.update_quota(b"one", probe, up, 3, u64::MAX, START));
                }
            });
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    let change = UpdateChange::Decrease;
                    let done = records.update_quota(b"one", probe, change, 2, u64::MAX, START);
                    down.fetch_add(u64::from(done), Relaxed);
                }
            });
        }
    });
    let down = down.into_inner();
    let read = records.query(b"one", probe, START).expect("it lives");
    assert_eq!(read.quota, 2 * ROUNDS * 3 - 2 * down);
    let stat = records.stat(b"one", probe, START).expect("it lives");
    assert_eq!((stat.reads, stat.writes), (1, 2 * ROUNDS + down));
}

#[test]
fn a_quota_is_consumed_exactly_once() {
    let records = records(100);
    let probe = records.probe(b"one");
    let taken = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    // Each would make the record if it were the first.
                    let life = seconds(60);
                    let consumed = records.consume(b"one", probe, 1, ROUNDS, life, START);
                    taken.fetch_add(u64::from(consumed.taken), Relaxed);
                }
            });
        }
    });
    assert_eq!(taken.into_inner(), ROUNDS);
    assert_eq!(records.query(b"one", probe, START).map(|read| read.quota), Some(0));
}

#[test]
fn a_full_table_is_full_for_all_threads() {
    const MOST: usize = 9_000;
    let records = records(MOST);
    let made = AtomicU64::new(0);
    thread::scope(|scope| {
        for name in ["left", "right"] {
            let (records, made) = (&records, &made);
            scope.spawn(move || {
                for n in 0..MOST {
                    let key = format!("{name} {n}");
                    let probe = records.probe(key.as_bytes());
                    let done = records.insert(key.as_bytes(), probe, 1, seconds(60), START);
                    made.fetch_add(u64::from(done), Relaxed);
                }
            });
        }
    });
    assert_eq!(records.size().records() as u64, made.into_inner());
    // Two that wanted the last place may both have gone without.
    let last = (0..2).map(|n| format!("last {n}"));
    last.for_each(|key| {
        records.insert(key.as_bytes(), records.probe(key.as_bytes()), 1, seconds(60), START);
    });
    assert_eq!(records.size().records(), MOST);
}

#[test]
fn a_listing_shows_what_stays_while_others_come_and_go() {
    let records = records(100_000);
    let insert = |key: &str| {
        records.insert(key.as_bytes(), records.probe(key.as_bytes()), 1, seconds(60), START)
    };
    for n in 0..2_000 {
        assert!(insert(&format!("stays {n}")));
    }
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0.. {
                let key = format!("comes {}", n % 40_000);
                if n / 40_000 % 2 == 0 {
                    insert(&key);
                } else {
                    records.purge(key.as_bytes(), records.probe(key.as_bytes()), START);
                }
                if done.load(Relaxed) {
                    break;
                }
            }
        });
        for _ in 0..20 {
            let listed = records.list(START);
            let stays: Vec<&[u8]> = listed
                .iter()
                .map(ListedRecord::key)
                .filter(|key| key.starts_with(b"stays"))
                .collect();
            assert_eq!(stays.len(), 2_000);
            for (n, key) in stays.iter().enumerate() {
                assert_eq!(*key, format!("stays {n}").as_bytes());
            }
        }
        done.store(true, Relaxed);
    });
}
