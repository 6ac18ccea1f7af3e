//! What is counted for people to see, how long it stays, and who is on top.

use super::*;

const BUCKET: Nanos = 300 * SECOND;

fn gcra(amount: u64) -> Limit {
    limit(amount, SECOND, Algorithm::Gcra { burst: amount })
}

fn stats(handle: &LimiterHandle, key: &str) -> (u64, u64, u64) {
    let KeyStats { requests, over, last_max_rate } =
        handle.limiter().stats(key.as_bytes(), handle.now());
    (requests, over, last_max_rate)
}

fn sweep_all(limiter: &Limiter) {
    for _ in 0..2 * limiter.size().total.div_ceil(256) {
        limiter.sweep(256);
    }
}

#[test]
fn requests_refusals_and_the_highest_rate_of_the_last_bucket() {
    let handle = handle(vec![rule("k", vec![fixed(3)])]);
    assert_eq!(stats(&handle, "k a"), (0, 0, 0), "unknown");
    (0..5).for_each(|_| drop(take(&handle, &["k a"])));
    assert_eq!(stats(&handle, "k a"), (5, 2, 0), "no bucket is complete");
    handle.limiter().clock().advance(BUCKET);
    assert_eq!(stats(&handle, "k a"), (5, 2, 3));
    handle.limiter().clock().advance(BUCKET);
    assert_eq!(stats(&handle, "k a"), (5, 2, 0), "not seen in the last one");
    assert!(handle.limiter().reset(b"k a"));
    assert_eq!(stats(&handle, "k a"), (0, 0, 0));
    assert!(!handle.limiter().reset(b"k a"));
}

#[test]
fn keys_stay_for_two_buckets_without_pressure_whatever_the_table_s_size() {
    for max_keys in [2, 5, 8, 1_000] {
        let settings = memory::Settings { max_keys, max_bytes: 1 << 20 };
        let handle = limiter(vec![rule("k", vec![gcra(5)])], settings).handle(Door::Http);
        drop(take(&handle, &["k a"]));
        handle.limiter().clock().advance(2 * BUCKET + BUCKET - 1);
        sweep_all(handle.limiter());
        assert_eq!(stats(&handle, "k a").0, 1, "of {max_keys}");
        handle.limiter().clock().advance(1);
        sweep_all(handle.limiter());
        assert_eq!(handle.limiter().size().keys, 0, "of {max_keys}");
    }
}

#[test]
fn under_pressure_only_the_limit_protects_a_key() {
    let settings = memory::Settings { max_keys: 16, max_bytes: 1 << 20 };
    let handle = limiter(vec![rule("k", vec![gcra(1)])], settings).handle(Door::Http);
    for n in 0..8 {
        assert!(take(&handle, &[&format!("k old {n}")]).is_allowed());
    }
    handle.limiter().clock().advance(SECOND);
    for n in 0..16 {
        assert!(take(&handle, &[&format!("k new {n}")]).is_allowed(), "{n} finds a slot");
    }
    assert_eq!(handle.limiter().size().keys, 16);
    assert_eq!(stats(&handle, "k old 3").0, 0, "it made room");
    for n in 0..16 {
        assert!(!take(&handle, &[&format!("k new {n}")]).is_allowed(), "{n} is alive");
    }
}

#[test]
fn a_table_of_dead_keys_is_emptied_a_little_at_a_time() {
    let handle = handle(vec![rule("k", vec![gcra(1)]), rule("live", vec![fixed(2)])]);
    let limiter = handle.limiter();
    for n in 0..5_000 {
        let _ = decide_one(&handle, format!("k {n}").as_bytes(), Op::Take(1), handle.now());
    }
    (0..50).for_each(|n| drop(take(&handle, &[&format!("live {n}")])));
    limiter.clock().advance(4 * BUCKET);
    let total = limiter.size().total;
    let mut swept = 0;
    for _ in 0..2 * total.div_ceil(256) {
        let some = limiter.sweep(256);
        assert!(some <= 256, "no more than it was asked to look at");
        swept += some;
    }
    assert_eq!((swept, limiter.size().keys), (5_000, 50));
    assert!((0..50).all(|n| remaining(&handle, &format!("live {n}")) == 1));
}

#[test]
fn the_busiest_and_the_most_refused_come_first() {
    let shared = Rule { shared: true, ..rule("shared", vec![fixed(1)]) };
    let handle = handle(vec![rule("k", vec![fixed(4)]), rule("wide", vec![fixed(99)]), shared]);
    for n in 0..8u8 {
        (0..n).for_each(|_| drop(take(&handle, &[&format!("k {n}")])));
    }
    (0..9).for_each(|_| drop(take(&handle, &["wide x"])));
    (0..2).for_each(|_| drop(take(&handle, &["shared x"])));
    let top = |by, count| -> Vec<String> {
        let keys = handle.limiter().top(by, count).into_iter();
        keys.map(|top| String::from_utf8(top.key).expect("text")).collect()
    };
    assert_eq!(top(TopBy::Used, 3), ["wide x", "k 7", "k 6"]);
    assert_eq!(top(TopBy::Refused, 2), ["k 7", "k 6"].map(String::from));
    assert_eq!(top(TopBy::Refused, 100).len(), 4, "only those that were");
    assert!(top(TopBy::Refused, 100).contains(&"shared".to_owned()), "by its rule's name");
    assert_eq!(top(TopBy::Used, 0).len(), 0);
    assert_eq!(top(TopBy::Used, 100).len(), 9);
}

/// As many keys as the table is made for, all found again, and one more that shares. A soak takes
/// ten million of them and a gigabyte.
#[test]
fn millions_of_keys_work() {
    let keys: usize = match std::env::var_os("TIDEGATE_SOAK") {
        Some(_) => 10_000_000,
        None => 100_000,
    };
    let settings = memory::Settings { max_keys: keys, max_bytes: 4 << 30 };
    let handle = limiter(vec![rule("k", vec![fixed(1)])], settings).handle(Door::Text);
    let now = handle.now();
    for expected in [false, true] {
        for first in (0..keys).step_by(1_000) {
            let names: Vec<Vec<u8>> =
                (first..first + 1_000).map(|n| format!("k {n:014}").into_bytes()).collect();
            let each = decide_each(&handle, &borrowed(&names), Op::Take(1), now);
            let is_over = |said: &Result<Verdict, _>| !said.as_ref().expect("fit").is_allowed();
            assert!(each.iter().all(|said| is_over(said) == expected), "{first}");
        }
    }
    let size = handle.limiter().size();
    assert_eq!(size.keys, keys);
    assert!(size.bytes <= 96 * keys, "{} bytes per key", size.bytes / keys);
    assert!(take(&handle, &["k one more"]).is_allowed());
    assert_eq!(handle.limiter().size().keys, keys, "it has no slot");
}
