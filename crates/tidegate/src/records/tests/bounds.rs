//! What a full table refuses, what a sweep does at most, and what a record takes.

use tidegate_core::limit::{Algorithm, Limit};
use tidegate_core::rules::{Consistency, OnFull, OnStoreError, Pattern, Rule, RuleSet};

use super::super::capacity::SLOT_BYTES;
use super::*;
use crate::clock::Clock;
use crate::limiter::{Key, Request};
use crate::metrics::{Door, Metrics};
use crate::stores::memory;

#[test]
fn a_record_takes_what_was_promised() {
    // An index that has just doubled has 16 cells for 7 entries.
    let index = 4.0 * 16.0 / 7.0;
    assert!(size_of::<RecordEntry>() as f64 + index <= 120.0);
    const { assert!(SLOT_BYTES <= 120) };
    let room = Room(records(100));
    assert!(room.insert("twelve bytes", 1, seconds(1), START));
    assert_eq!(room.0.size().bytes, SLOT_BYTES);
}

#[test]
fn new_keys_are_refused_when_it_is_full_and_live_ones_stay() {
    let room = Room(records(3));
    for key in ["a", "b", "c"] {
        assert!(room.insert(key, 1, seconds(10), START));
    }
    assert!(!room.insert("d", 1, seconds(10), START));
    assert!(!room.set("d", "x", seconds(10), START));
    assert_eq!(room.consume("d", 1, 5, seconds(10), START), (false, 0, 0));
    let full = room.0.consume(b"d", room.0.probe(b"d"), 1, 5, seconds(10), START);
    assert_eq!(full.refusal, Some(ConsumeRefusal::Full));
    assert_eq!(room.keys(START), ["a", "b", "c"]);
    // The room of one that has expired is there at once, without a sweep in between.
    assert!(room.ttl("b", UpdateChange::Patch, 1, START));
    let over = START.after(SECOND);
    assert!(room.insert("d", 1, seconds(10), over));
    assert!(!room.insert("b", 1, seconds(10), over));
    assert_eq!(room.keys(over), ["a", "c", "d"]);
    assert_eq!(room.consume("a", 1, 5, seconds(10), over), (true, 0, 8));
}

#[test]
fn bytes_are_bounded_too() {
    let max_bytes = 3 * SLOT_BYTES + 100;
    let room = Room(Records::new(Settings { max_records: 100, max_bytes }));
    assert!(room.set("a", &"x".repeat(100), seconds(10), START));
    assert!(room.insert("b", 1, seconds(10), START));
    assert!(room.insert("c", 1, seconds(10), START));
    assert!(!room.insert("d", 1, seconds(10), START));
    assert!(!room.set("a", &"y".repeat(101), seconds(10), START));
    assert_eq!(room.get("a", START), Some((vec![b'x'; 100], 9)));
    assert!(room.set("a", "", seconds(10), START));
    assert!(!room.set("d", "", seconds(10), START), "a record takes more than its value");
    assert!(room.purge("b", START));
    assert!(room.set("d", &"z".repeat(100), seconds(10), START));
    let size = room.0.size();
    assert_eq!((size.counters, size.buffers), (1, 2));
    assert_eq!((size.bytes, size.value_bytes), (3 * SLOT_BYTES + 100, 100));
}

#[test]
fn what_has_expired_makes_room_for_a_longer_value() {
    let max_bytes = 2 * SLOT_BYTES + 100;
    let room = Room(Records::new(Settings { max_records: 100, max_bytes }));
    assert!(room.set("a", "short", seconds(10), START));
    assert!(room.set("b", &"x".repeat(95), seconds(1), START));
    assert!(!room.set("a", "longer than before", seconds(10), START));
    let over = START.after(SECOND);
    assert!(room.set("a", &"y".repeat(100), seconds(10), over));
    assert_eq!(room.get("a", over), Some((vec![b'y'; 100], 9)));
    // The same for one that has expired itself.
    let over = START.after(20 * SECOND);
    assert!(room.insert("b", 1, seconds(10), over));
    assert!(room.set("a", &"z".repeat(100), seconds(10), over));
    assert!(!room.set("c", "", seconds(10), over));
}

#[test]
fn bounds_can_be_changed_within_the_reservation() {
    let room = Room(records(3));
    assert!(room.insert("a", 1, seconds(10), START) && room.insert("b", 1, seconds(10), START));
    assert!(room.0.resize(Settings { max_records: 1, max_bytes: 1 << 20 }));
    assert!(!room.insert("c", 1, seconds(10), START));
    assert_eq!(room.keys(START), ["a", "b"], "nothing that lives is evicted");
    assert!(room.0.resize(Settings { max_records: 3, max_bytes: 1 << 20 }));
    assert!(room.insert("c", 1, seconds(10), START));
    assert!(!room.0.resize(Settings { max_records: 4, max_bytes: 0 }), "needs a restart");
    assert!(room.purge("a", START));
    assert!(!room.insert("a", 1, seconds(10), START));
}

#[test]
fn records_that_expire_together_are_swept_a_few_at_a_time() {
    const MANY: usize = 20_000;
    let records = records(MANY);
    for n in 0..MANY {
        let key = n.to_string();
        assert!(records.insert(
            key.as_bytes(),
            records.probe(key.as_bytes()),
            1,
            seconds(9),
            START
        ));
    }
    let over = START.after(9 * SECOND);
    let left = || records.size().records();
    assert!(records.sweep(64, over) <= 64);
    assert!(left() >= MANY - 64);
    // However much there is to bury, a request buries little of it.
    let before = left();
    assert!(records.insert(b"new", records.probe(b"new"), 1, seconds(9), over));
    assert!(left() + 4 > before, "{} of {before}", left());
    let before = left();
    assert!(records.query(b"77", records.probe(b"77"), over).is_none());
    assert_eq!(left(), before);
    // Sweeps that go on come round.
    let mut sweeps = 0;
    while left() > 1 {
        records.sweep(1_000, over);
        sweeps += 1;
        assert!(sweeps < 1_000, "{} are never looked at", left());
    }
    assert_eq!(records.list(over).len(), 1);
}

#[test]
fn nobody_looks_for_the_dead_before_the_first_can_die() {
    const MANY: u64 = 2_000;
    let room = Room(records(MANY as usize * 2));
    for n in 0..MANY {
        assert!(room.insert(&n.to_string(), 1, seconds(60), START));
    }
    assert!(!room.0.earliest.passed(START.after(60 * SECOND - 1)));
    assert!(room.0.earliest.passed(START.after(60 * SECOND)));
    // A life that was shortened counts.
    assert!(room.ttl("7", UpdateChange::Patch, 10, START));
    let ten = START.after(10 * SECOND);
    assert!(room.0.earliest.passed(ten));
    // Rounds of the sweep find out what is left.
    while room.0.earliest.passed(ten) {
        room.0.sweep(256, ten);
    }
    assert_eq!(room.0.size().records() as u64, MANY - 1);
    assert!(!room.0.earliest.passed(START.after(60 * SECOND - 1)));
    assert!(room.0.earliest.passed(START.after(60 * SECOND)));
    // So does a buffer that is written again, and one that comes back from a snapshot.
    assert!(room.set("b", "x", seconds(50), START) && room.set("b", "x", seconds(40), START));
    assert!(room.0.earliest.passed(START.after(40 * SECOND)));
    let again = Room(records(MANY as usize * 2));
    room.0.export(START, |kept| assert!(again.0.import(kept, START)));
    assert!(again.0.earliest.passed(START.after(40 * SECOND)));
    assert!(!again.0.earliest.passed(START.after(40 * SECOND - 1)));
}

#[test]
fn a_full_table_of_dead_records_takes_every_new_one() {
    const MANY: usize = 5_000;
    let records = records(MANY);
    for round in 0..3 {
        let now = START.after(round * 10 * SECOND);
        for n in 0..MANY {
            let key = format!("{round} {n}");
            let probe = records.probe(key.as_bytes());
            assert!(records.insert(key.as_bytes(), probe, 1, seconds(9), now), "{key}");
        }
        assert_eq!(records.list(now).len(), MANY);
    }
}

#[test]
fn keys_and_records_share_their_bytes() {
    let limit = Limit { amount: 5, period: DAY, algorithm: Algorithm::Gcra { burst: 5 } };
    let rule = Rule {
        name: "all".into(),
        pattern: Pattern::new("*"),
        limits: vec![limit],
        shared: false,
        shadow: false,
        consistency: Consistency::Exact,
        on_store_error: OnStoreError::Allow,
        on_full: OnFull::Deny,
    };
    let metrics = Arc::new(Metrics::new());
    let settings = memory::Settings { max_keys: 100, max_bytes: 1_000 };
    let rules = RuleSet::new(vec![rule], None);
    let limiter = crate::limiter::Limiter::new(Clock::manual(START), metrics, rules, settings);
    let handle = limiter.handle(Door::Http);
    let allowed = |key: String| {
        let keys = [Key::take(key.as_bytes(), 1)];
        let decision = handle.decide(&Request::all_or_nothing(&keys), START, None);
        decision.expect("a valid request").ready().expect("in memory").is_allowed()
    };
    let room = Room(Records::beside(&limiter, 100));
    assert!(room.set("a", &"x".repeat(300), seconds(10), START));
    let keys = (0..100).filter(|n| allowed(format!("key {n}"))).count();
    assert!((1..9).contains(&keys), "{keys} keys beside a large record");
    assert!(room.0.size().bytes + SLOT_BYTES < 1_000, "alone it would fit");
    assert!(!room.insert("b", 1, seconds(10), START));
    assert!(!room.set("a", &"x".repeat(400), seconds(10), START));
    assert!(room.purge("a", START));
    assert!(allowed("another".into()));
    assert!(room.insert("b", 1, seconds(10), START));
    assert!(limiter.size().bytes + room.0.size().bytes <= 1_000);
}
