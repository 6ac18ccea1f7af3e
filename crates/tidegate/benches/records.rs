//! The records in process: time of inserting, reading and changing, bytes for each, and what
//! others feel while a million expire. Times are of this machine and this run: compare ratios.
//! Usage: `cargo bench --bench records [-- RECORDS]`.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tidegate::clock::Clock;
use tidegate::records::{Life, RecordProbe, Records, Settings, Unit, UpdateChange};
use tidegate_core::Nanos;
use tidegate_core::Now;
use tidegate_core::time::SECOND;

const MILLION: usize = 1_000_000;
/// What a door makes of one read of a full pipeline.
const BATCH: usize = 64;
const ROUNDS: usize = 7;

type Key = [u8; 12];

fn key(number: usize) -> Key {
    let mut key = *b"ip=000000000";
    let mut rest = number;
    for digit in key[3..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    key
}

fn clock(id: ClockId) -> Nanos {
    let time = clock_gettime(id);
    time.tv_sec as u64 * SECOND + time.tv_nsec as u64
}

/// Nanoseconds of this thread's CPU time for each of `count` uses.
fn cpu_nanos(count: usize, work: impl FnOnce()) -> f64 {
    let start = clock(ClockId::ThreadCPUTime);
    work();
    (clock(ClockId::ThreadCPUTime) - start) as f64 / count as f64
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

fn resident_bytes() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<usize>().ok());
    kib.unwrap_or(0) << 10
}

fn seconds(amount: u64) -> Life {
    Life { unit: Unit::Seconds, amount }
}

/// Probes and prefetches a batch ahead, then uses each record, as a door does.
fn batches<'r>(records: &'r Records, keys: &[Key], mut each: impl FnMut(&Key, RecordProbe<'r>)) {
    let mut probes = [records.probe(&[]); BATCH];
    for keys in keys.chunks(BATCH) {
        for (key, probe) in keys.iter().zip(&mut probes) {
            *probe = records.probe(key);
            probe.prefetch();
        }
        probes[..keys.len()].iter_mut().for_each(RecordProbe::prefetch_slot);
        keys.iter().zip(&probes).for_each(|(key, probe)| each(key, *probe));
    }
}

fn insert_all(records: &Records, count: usize, life: Life, now: Now) -> Vec<f64> {
    let each = |million: usize| {
        let numbers = million * MILLION..((million + 1) * MILLION).min(count);
        let keys: Vec<Key> = numbers.map(key).collect();
        cpu_nanos(keys.len(), || {
            batches(records, &keys, |key, probe| assert!(records.insert(key, probe, 9, life, now)));
        })
    };
    (0..count.div_ceil(MILLION)).map(each).collect()
}

/// Random keys of `count`, in an order that is the same in every run.
fn picks(count: usize) -> Vec<Key> {
    let mut dice = 0x9e37_79b9_7f4a_7c15_u64;
    let roll = || {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        key((dice % count as u64) as usize)
    };
    std::iter::repeat_with(roll).take(MILLION).collect()
}

fn uses(records: &Records, count: usize, now: Now) {
    let keys = picks(count);
    let (mut reads, mut writes) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        reads.push(cpu_nanos(MILLION, || {
            batches(records, &keys, |key, probe| assert!(records.query(key, probe, now).is_some()));
        }));
        writes.push(cpu_nanos(MILLION, || {
            batches(records, &keys, |key, probe| {
                assert!(records.update_quota(key, probe, UpdateChange::Increase, 1, u64::MAX, now));
            });
        }));
    }
    let (reads, writes) = (median(reads), median(writes));
    println!("{count:>9} records: QUERY {reads:.0} ns, UPDATE {writes:.0} ns");
}

/// Wall times of batches, sorted.
fn waits(records: &Records, keys: &[Key], now: Now, enough: impl Fn(usize) -> bool) -> Vec<u64> {
    let mut waits = Vec::new();
    for keys in keys.chunks(BATCH).cycle() {
        let start = clock(ClockId::Monotonic);
        batches(records, keys, |key, probe| assert!(records.query(key, probe, now).is_some()));
        waits.push(clock(ClockId::Monotonic) - start);
        if enough(waits.len()) {
            break;
        }
    }
    waits.sort_unstable();
    waits
}

/// A million records expire at once while another million are read, with and without a sweep.
fn expiry() {
    let records = Records::new(Settings { max_records: 4 * MILLION, max_bytes: 4 << 30 });
    let now = Clock::system().now();
    insert_all(&records, MILLION, seconds(3_600), now);
    for number in MILLION..2 * MILLION {
        let key = key(number);
        assert!(records.insert(&key, records.probe(&key), 9, seconds(1), now));
    }
    let (now, keys) = (now.after(SECOND), picks(MILLION));
    let usual = waits(&records, &keys, now, |count| count == 100_000);
    let swept = AtomicBool::new(false);
    let during = thread::scope(|scope| {
        scope.spawn(|| {
            while records.size().records() > MILLION {
                records.sweep(256, now);
                thread::sleep(Duration::from_micros(500));
            }
            swept.store(true, Relaxed);
        });
        waits(&records, &keys, now, |_| swept.load(Relaxed))
    });
    for (name, waits) in [("usually", &usual), ("while a million are swept", &during)] {
        let at = |share: f64| waits[((waits.len() - 1) as f64 * share) as usize] as f64 / 1e3;
        println!(
            "batches of {BATCH}, {name}: p50 {:.1} us, p99 {:.1} us, p99.99 {:.1} us, of {}",
            at(0.5),
            at(0.99),
            at(0.9999),
            waits.len()
        );
    }
}

fn main() {
    let given = std::env::args().skip(1).find_map(|argument| argument.parse::<usize>().ok());
    let count = given.unwrap_or(10 * MILLION);
    let now = Clock::system().now();
    let records = Records::new(Settings { max_records: count, max_bytes: 8 << 30 });
    let before = resident_bytes();
    let times = insert_all(&records, count, seconds(36_000), now);
    let bytes = resident_bytes().saturating_sub(before) as f64 / count as f64;
    let (first, last) = (times[0], times[times.len() - 1]);
    println!("{count} INSERTs: first million {first:.0} ns each, last {last:.0} ns");
    println!("all millions: {times:.0?}");
    println!("{bytes:.1} bytes for each, of which {} are accounted for", {
        records.size().bytes / count
    });
    for count in [1_000, MILLION, count] {
        uses(&records, count.min(records.size().records()), now);
    }
    drop(records);
    expiry();
}
