//! The limiter in process beside the `governor` crate: decisions per second and bytes per key.
//!
//! Ours and the peer take turns in every round and the ratio of medians is printed, because a
//! time alone means little on a shared machine. Both visit the same 16-byte keys in the same
//! random order, from memory that is laid out in that order. Ours runs with its metrics and
//! statistics on. A rule of two limits stands beside two of the peer's limiters. What two threads
//! decide is told beside what they decide at two limiters that share nothing (`apart`): that much
//! the machine gives.
//! Usage: `cargo bench --bench limiter [-- KEYS... [gcra] [average] [two]]`.

use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::{Arc, Barrier};
use std::thread;

use governor::clock::DefaultClock;
use governor::state::keyed::DefaultKeyedStateStore;
use governor::{Quota, RateLimiter};
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use tidegate::clock::Clock;
use tidegate::limiter::{self, Limiter, LimiterHandle, Request};
use tidegate::metrics::{Door, Metrics};
use tidegate::stores::memory::Settings;
use tidegate_core::Nanos;
use tidegate_core::limit::{Algorithm, Limit};
use tidegate_core::rules::{Consistency, OnFull, OnStoreError, Pattern, Rule, RuleSet};
use tidegate_core::time::SECOND;

/// Turns of each contender: many short ones, because the machine's speed moves within seconds.
const ROUNDS: usize = 31;
/// Decisions of a turn.
const TURN: usize = 200_000;
/// Keys to take turns from, in random order: more than a turn, so that no turn repeats the last.
const PICKS: usize = 5 * TURN;
/// What a door makes of a full receive call.
const BATCH: usize = 64;

/// What is measured unless arguments name some of it.
const ALL: [&str; 3] = ["gcra", "average", "two gcra"];

type Governor = RateLimiter<String, DefaultKeyedStateStore<String>, DefaultClock>;
type Key = [u8; 16];

fn key(number: usize) -> Key {
    let mut key = *b"ws ip=0000000000";
    let mut rest = number;
    for digit in key[6..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    key
}

/// A random order that is the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % below as u64) as usize
    }
}

fn limits(name: &str) -> Vec<Limit> {
    let limit = |amount, period, algorithm| Limit { amount, period, algorithm };
    let gcra = |amount, period| limit(amount, period, Algorithm::Gcra { burst: amount });
    match name {
        "average" => vec![limit(1000, SECOND, Algorithm::Average { strict: false })],
        "two gcra" => vec![gcra(1000, SECOND), gcra(30_000, 60 * SECOND)],
        _ => vec![gcra(1000, SECOND)],
    }
}

fn limiter(algorithm: &str, max_keys: usize) -> Arc<Limiter> {
    let rule = Rule {
        name: "ws".into(),
        pattern: Pattern::new("ws ip=*"),
        limits: limits(algorithm),
        shared: false,
        shadow: false,
        consistency: Consistency::Exact,
        on_store_error: OnStoreError::Allow,
        on_full: OnFull::Share,
    };
    let rules = RuleSet::new(vec![rule], None);
    let settings = Settings { max_keys, max_bytes: 8 << 30 };
    Limiter::new(Clock::system(), Arc::new(Metrics::new()), rules, settings)
}

fn governor() -> Governor {
    RateLimiter::keyed(Quota::per_second(NonZeroU32::new(1000).unwrap_or(NonZeroU32::MIN)))
}

fn clock(id: ClockId) -> Nanos {
    let time = clock_gettime(id);
    time.tv_sec as u64 * SECOND + time.tv_nsec as u64
}

/// Nanoseconds of this thread's CPU time for each of `count` decisions.
fn cpu_nanos(count: usize, work: impl FnOnce()) -> f64 {
    let start = clock(ClockId::ThreadCPUTime);
    work();
    (clock(ClockId::ThreadCPUTime) - start) as f64 / count as f64
}

fn median(samples: &mut [f64]) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

fn singles(handle: &LimiterHandle, keys: &[Key]) {
    for key in keys {
        let key = [limiter::Key::take(key, 1)];
        assert!(handle.decide(&Request::all_or_nothing(&key), handle.now(), None).is_ok());
    }
}

fn batches(handle: &LimiterHandle, keys: &[Key]) {
    let mut out = Vec::with_capacity(BATCH);
    for keys in keys.chunks(BATCH) {
        let mut batch = [limiter::Key::take(&[], 1); BATCH];
        for (slot, key) in batch.iter_mut().zip(keys) {
            slot.bytes = key;
        }
        handle.decide_batch(&batch[..keys.len()], handle.now(), &mut out);
        assert!(out.iter().all(Result::is_ok));
    }
}

/// A limiter of the peer has one limit: for several, a key is checked in as many.
fn peers(governors: &[Governor], keys: &[String]) {
    let mut allowed = 0;
    for key in keys {
        allowed += u32::from(governors.iter().all(|governor| governor.check_key(key).is_ok()));
    }
    std::hint::black_box(allowed);
}

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|n| n.parse::<usize>().ok()).unwrap_or(0);
    pages * 4096
}

/// Bytes that the process grew by while `fill` ran, for each of `count` keys.
fn bytes_per_key(count: usize, fill: impl FnOnce()) -> f64 {
    let before = resident_bytes();
    fill();
    resident_bytes().saturating_sub(before) as f64 / count as f64
}

fn sequence(count: usize, seed: u64) -> Vec<Key> {
    let mut dice = Dice(seed);
    (0..PICKS).map(|_| key(dice.roll(count))).collect()
}

/// Wall nanoseconds until both of two threads are done, for each decision of all. Each has a core
/// of its own: the system may take longer to find out that another is idle than a turn lasts.
fn two_threads(
    limiters: [&Arc<Limiter>; 2],
    parts: [&[Key]; 2],
    run: fn(&LimiterHandle, &[Key]),
) -> f64 {
    let together = Barrier::new(2);
    let work = |number: usize| {
        let mut core = CpuSet::new();
        core.set(number);
        // Without a second core, or the right to choose, it is measured all the same.
        let _ = sched_setaffinity(None, &core);
        let handle = limiters[number].handle(Door::Text);
        together.wait();
        let start = clock(ClockId::Monotonic);
        run(&handle, parts[number]);
        clock(ClockId::Monotonic) - start
    };
    let spans = thread::scope(|scope| {
        let threads = [0, 1].map(|number| {
            scope.spawn({
                let work = &work;
                move || work(number)
            })
        });
        threads.map(|thread| thread.join().unwrap_or_default())
    });
    spans.into_iter().max().unwrap_or_default() as f64 / (2 * TURN) as f64
}

fn wall(work: impl FnOnce()) -> f64 {
    let start = clock(ClockId::Monotonic);
    work();
    (clock(ClockId::Monotonic) - start) as f64 / TURN as f64
}

/// A limiter that remembers so many keys, and the bytes that each of them takes.
fn filled(name: &str, count: usize) -> (Arc<Limiter>, f64) {
    // Room to spare: a table under pressure would forget keys that are past their limit, and the
    // figure would be for fewer keys than it says.
    let limiter = limiter(name, count.max(8_000_000) / 4 * 5);
    let handle = limiter.handle(Door::Text);
    let bytes = bytes_per_key(count, || (0..count).for_each(|n| singles(&handle, &[key(n)])));
    assert_eq!(limiter.size().keys, count, "every key is remembered");
    (limiter, bytes)
}

fn run(count: usize, names: &[&str]) {
    let mut table = Vec::new();
    let most = names.iter().map(|name| limits(name).len()).max().unwrap_or(1);
    let peer: Vec<_> = (0..most).map(|_| governor()).collect();
    for governor in &peer {
        let bytes = bytes_per_key(count, || {
            (0..count).for_each(|n| {
                let name = String::from_utf8_lossy(&key(n)).into_owned();
                let _ = governor.check_key(&name);
            });
        });
        println!("{count} keys: governor {bytes:.0} bytes per key");
    }
    let ours: Vec<_> = names
        .iter()
        .map(|&name| {
            let (limiter, bytes) = filled(name, count);
            println!("{count} keys: {name} {bytes:.0} bytes per key");
            let handle = limiter.handle(Door::Text);
            (name, limiter, handle, filled(name, count).0)
        })
        .collect();
    let (picks, others) = (sequence(count, 0x9e37_79b9), sequence(count, 0x51_7cc1));
    let names: Vec<String> =
        picks.iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect();
    for (name, limiter, handle, other) in &ours {
        let mut samples: [Vec<f64>; 9] = Default::default();
        let (shared, apart) = ([limiter; 2], [limiter, other]);
        // Nobody finds keys in the cache because somebody has just asked for the same ones.
        let mut turns = (0..PICKS).step_by(TURN).cycle().map(|start| start..start + TURN);
        for _ in 0..ROUNDS {
            let mut turn = || turns.next().unwrap_or_default();
            let governors = &peer[..limits(name).len()];
            let both = |turn: Range<usize>| [&picks[turn.clone()], &others[turn]];
            let one = |turn: Range<usize>, run: fn(&LimiterHandle, &[Key])| {
                wall(|| run(handle, &picks[turn]))
            };
            samples[0].push(cpu_nanos(TURN, || peers(governors, &names[turn()])));
            samples[1].push(cpu_nanos(TURN, || singles(handle, &picks[turn()])));
            samples[2].push(cpu_nanos(TURN, || batches(handle, &picks[turn()])));
            samples[3].push(one(turn(), singles));
            samples[4].push(two_threads(shared, both(turn()), singles));
            samples[5].push(two_threads(apart, both(turn()), singles));
            samples[6].push(one(turn(), batches));
            samples[7].push(two_threads(shared, both(turn()), batches));
            samples[8].push(two_threads(apart, both(turn()), batches));
        }
        let [peer, single, batch, one, two, two_apart, one_batch, two_batch, two_batch_apart] =
            samples.map(|mut s| median(&mut s));
        table.push(format!(
            "{count:>9} keys {name:>8}: governor {peer:4.0} ns, single {single:4.0} ns ({:.1}x), \
             batch {batch:4.0} ns ({:.1}x), two threads {:.2}x single (apart {:.2}x), \
             {:.2}x batch (apart {:.2}x)",
            peer / single,
            peer / batch,
            one / two,
            one / two_apart,
            one_batch / two_batch,
            one_batch / two_batch_apart,
        ));
    }
    table.iter().for_each(|line| println!("{line}"));
}

fn main() {
    let wanted: Vec<usize> = std::env::args().filter_map(|arg| arg.parse().ok()).collect();
    let sizes = if wanted.is_empty() { vec![1_000, 1_000_000, 10_000_000] } else { wanted };
    let named: Vec<&str> =
        ALL.into_iter().filter(|name| std::env::args().any(|arg| name.starts_with(&arg))).collect();
    let names = if named.is_empty() { &ALL[..] } else { &named };
    sizes.into_iter().for_each(|count| run(count, names));
}
