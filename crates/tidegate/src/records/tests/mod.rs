//! Records on a manual clock: every ruling of the protocol, one by one.

mod bounds;
mod model;
mod threads;

use tidegate_core::time::{DAY, MINUTE, SECOND};

use super::*;

const START: Now = Now { mono: 500 * DAY, unix: 20_000 * DAY };
const U16: u64 = u16::MAX as u64;

fn records(max_records: usize) -> Arc<Records> {
    Records::new(Settings { max_records, max_bytes: 1 << 24 })
}

fn seconds(amount: u64) -> Life {
    Life { unit: Unit::Seconds, amount }
}

/// The operations without their probes.
struct Room(Arc<Records>);

impl Room {
    fn insert(&self, key: &str, quota: u64, life: Life, now: Now) -> bool {
        let key = key.as_bytes();
        self.0.insert(key, self.0.probe(key), quota, life, now)
    }
    fn query(&self, key: &str, now: Now) -> Option<(u64, u64)> {
        let key = key.as_bytes();
        self.0.query(key, self.0.probe(key), now).map(|read| (read.quota, read.left))
    }
    fn quota(&self, key: &str, change: UpdateChange, value: u64, now: Now) -> bool {
        let key = key.as_bytes();
        self.0.update_quota(key, self.0.probe(key), change, value, U16, now)
    }
    fn ttl(&self, key: &str, change: UpdateChange, value: u64, now: Now) -> bool {
        let key = key.as_bytes();
        self.0.update_ttl(key, self.0.probe(key), change, value, now)
    }
    fn purge(&self, key: &str, now: Now) -> bool {
        self.0.purge(key.as_bytes(), self.0.probe(key.as_bytes()), now)
    }
    fn set(&self, key: &str, value: &str, life: Life, now: Now) -> bool {
        let key = key.as_bytes();
        self.0.set(key, self.0.probe(key), value.as_bytes(), life, now)
    }
    fn get(&self, key: &str, now: Now) -> Option<(Vec<u8>, u64)> {
        let key = key.as_bytes();
        self.0.get(key, self.0.probe(key), now, |value, _, left| (value.to_vec(), left))
    }
    fn consume(&self, key: &str, cost: u64, quota: u64, life: Life, now: Now) -> (bool, u64, u64) {
        let key = key.as_bytes();
        let consumed = self.0.consume(key, self.0.probe(key), cost, quota, life, now);
        (consumed.taken, consumed.remaining, consumed.left)
    }
    fn keys(&self, now: Now) -> Vec<String> {
        let listed = self.0.list(now).into_iter();
        listed.map(|record| String::from_utf8_lossy(record.key()).into_owned()).collect()
    }
}

#[test]
fn what_remains_is_one_nanosecond_short_of_the_whole() {
    let room = Room(records(100));
    assert!(room.insert("abc", 7, seconds(60), START));
    assert_eq!(room.query("abc", START), Some((7, 59)));
    assert_eq!(room.query("abc", START.after(59 * SECOND)), Some((7, 0)));
    assert!(room.set("abd", "EHLO", seconds(30), START));
    assert_eq!(room.get("abd", START), Some((b"EHLO".to_vec(), 29)));
}

#[test]
fn a_record_expires_at_its_very_nanosecond() {
    let room = Room(records(100));
    assert!(room.insert("a", 1, seconds(1), START));
    let last = START.after(SECOND - 1);
    assert_eq!(room.query("a", last), Some((1, 0)));
    assert!(!room.insert("a", 2, seconds(1), last));
    let over = START.after(SECOND);
    assert_eq!(room.query("a", over), None);
    assert!(!room.quota("a", UpdateChange::Patch, 5, over));
    assert!(!room.ttl("a", UpdateChange::Patch, 5, over));
    assert!(room.insert("a", 2, seconds(1), over));
    assert_eq!(room.query("a", over), Some((2, 0)));
    assert!(room.insert("ns", 1, Life { unit: Unit::Nanoseconds, amount: 1 }, START));
    assert_eq!(room.query("ns", START), Some((1, 0)));
    assert_eq!(room.query("ns", START.after(1)), None);
}

#[test]
fn kinds_are_kept_apart() {
    let room = Room(records(100));
    assert!(room.insert("counter", 7, seconds(60), START));
    assert!(room.set("buffer", "x", seconds(60), START));
    assert!(!room.insert("counter", 9, seconds(90), START));
    assert!(!room.insert("buffer", 9, seconds(90), START));
    assert!(!room.set("counter", "y", seconds(90), START));
    assert_eq!(room.query("counter", START), Some((7, 59)));
    assert_eq!(room.get("counter", START), None);
    assert_eq!(room.query("buffer", START), None);
    assert!(!room.quota("buffer", UpdateChange::Patch, 1, START));
    assert!(room.set("buffer", "longer", Life { unit: Unit::Minutes, amount: 2 }, START));
    assert_eq!(room.get("buffer", START), Some((b"longer".to_vec(), 1)));
    assert!(room.ttl("buffer", UpdateChange::Increase, 1, START));
    assert_eq!(room.get("buffer", START), Some((b"longer".to_vec(), 2)));
}

#[test]
fn quotas_stop_at_both_ends_and_change_nothing_beyond() {
    let room = Room(records(100));
    assert!(room.insert("a", 7, seconds(60), START));
    assert!(!room.quota("a", UpdateChange::Decrease, 8, START));
    assert_eq!(room.query("a", START), Some((7, 59)));
    assert!(room.quota("a", UpdateChange::Decrease, 7, START));
    assert_eq!(room.query("a", START), Some((0, 59)));
    assert!(room.quota("a", UpdateChange::Increase, U16, START));
    assert!(!room.quota("a", UpdateChange::Increase, 1, START));
    assert!(!room.quota("a", UpdateChange::Increase, u64::MAX, START));
    assert_eq!(room.query("a", START), Some((U16, 59)));
    assert!(room.quota("a", UpdateChange::Patch, 3, START));
    assert_eq!(room.query("a", START), Some((3, 59)));
    assert!(!room.quota("missing", UpdateChange::Patch, 3, START));
}

#[test]
fn lives_are_shifted_and_saturate() {
    let room = Room(records(100));
    assert!(room.insert("a", 7, seconds(60), START));
    assert!(room.ttl("a", UpdateChange::Increase, 10, START));
    assert_eq!(room.query("a", START), Some((7, 69)));
    assert!(room.ttl("a", UpdateChange::Decrease, 20, START));
    assert_eq!(room.query("a", START), Some((7, 49)));
    assert!(room.ttl("a", UpdateChange::Patch, 5, START.after(SECOND)));
    assert_eq!(room.query("a", START.after(SECOND)), Some((7, 4)));
    assert!(room.ttl("a", UpdateChange::Increase, u64::MAX, START));
    let ever = (u64::MAX - START.mono - 1) / SECOND;
    assert_eq!(room.query("a", START), Some((7, ever)));
    assert!(room.ttl("a", UpdateChange::Decrease, u64::MAX, START));
    assert_eq!(room.query("a", START), None);
    assert!(room.insert("a", 8, Life { unit: Unit::Hours, amount: u64::MAX }, START));
    let end = Now { mono: u64::MAX - 1, ..START };
    assert_eq!(room.query("a", end), Some((8, 0)));
}

#[test]
fn a_life_of_nothing_is_over_at_once() {
    let room = Room(records(100));
    assert!(room.insert("a", 1, seconds(0), START));
    assert!(room.insert("a", 1, seconds(0), START));
    assert_eq!(room.query("a", START), None);
    assert!(room.set("b", "x", seconds(0), START));
    assert_eq!(room.get("b", START), None);
    assert!(room.set("c", "x", seconds(9), START));
    assert!(room.set("c", "y", seconds(0), START));
    assert_eq!(room.get("c", START), None);
    assert!(room.insert("d", 1, seconds(9), START));
    assert!(room.ttl("d", UpdateChange::Patch, 0, START));
    assert_eq!(room.query("d", START), None);
    assert_eq!(room.consume("e", 1, 3, seconds(0), START), (true, 2, 0));
    assert_eq!(room.consume("e", 1, 3, seconds(0), START), (true, 2, 0));
}

#[test]
fn consuming_makes_takes_and_refuses_in_one_step() {
    let room = Room(records(100));
    assert_eq!(room.consume("a", 2, 5, seconds(60), START), (true, 3, 59));
    // The quota and life of later requests do not count while the record lives.
    assert_eq!(room.consume("a", 3, 50, seconds(600), START), (true, 0, 59));
    assert_eq!(room.consume("a", 1, 5, seconds(60), START), (false, 0, 59));
    assert_eq!(room.consume("a", 0, 5, seconds(60), START), (true, 0, 59));
    // What is left is told in the unit of the request.
    let minutes = Life { unit: Unit::Minutes, amount: 1 };
    assert_eq!(room.consume("a", 1, 5, minutes, START), (false, 0, 0));
    let over = START.after(MINUTE);
    assert_eq!(room.consume("a", 1, 5, seconds(60), over), (true, 4, 59));
    // More than there can ever be takes nothing.
    assert_eq!(room.consume("b", 6, 5, seconds(60), START), (false, 5, 59));
    assert_eq!(room.query("b", START), Some((5, 59)));
    assert!(room.set("c", "x", seconds(60), START));
    assert_eq!(room.consume("c", 0, 5, seconds(60), START), (false, 0, 59));
}

#[test]
fn purging_removes_live_records_only() {
    let room = Room(records(100));
    assert!(!room.purge("a", START));
    assert!(room.insert("a", 1, seconds(1), START));
    assert!(room.purge("a", START));
    assert!(!room.purge("a", START));
    assert!(room.insert("a", 1, seconds(1), START));
    assert!(!room.purge("a", START.after(SECOND)));
}

#[test]
fn listings_follow_insertion() {
    let room = Room(records(100_000));
    for n in 0..500 {
        assert!(room.insert(&format!("key {n}"), 1, seconds(60 + n), START));
    }
    assert!(room.purge("key 7", START));
    assert!(room.insert("key 7", 1, seconds(600), START));
    let later = START.after(60 * SECOND);
    assert!(room.insert("key 0", 1, seconds(600), later));
    let expected: Vec<String> =
        (1..500).filter(|n| *n != 7).chain([7, 0]).map(|n| format!("key {n}")).collect();
    assert_eq!(room.keys(later), expected);
}

#[test]
fn statistics_count_uses_by_minute() {
    let room = Room(records(100));
    let stat = |now| room.0.stat(b"a", room.0.probe(b"a"), now);
    let start = Now { mono: 1000 * MINUTE, ..START };
    assert_eq!(stat(start), None);
    assert!(room.insert("a", 9, seconds(6000), start));
    assert_eq!(stat(start), Some(Stat::default()), "making is not a use");
    for _ in 0..3 {
        room.query("a", start);
    }
    assert!(room.quota("a", UpdateChange::Decrease, 1, start));
    assert!(!room.quota("a", UpdateChange::Decrease, 100, start));
    assert_eq!(room.get("a", start), None);
    let figures =
        |now| stat(now).map(|s| (s.reads_per_minute, s.writes_per_minute, s.reads, s.writes));
    assert_eq!(figures(start), Some((0, 0, 3, 1)));
    // The wall clock may do as it likes.
    let next = Now { mono: start.mono + MINUTE, unix: 0 };
    assert_eq!(figures(next), Some((3, 1, 3, 1)));
    room.query("a", next);
    assert_eq!(figures(next), Some((3, 1, 4, 1)));
    // A loop with an older clock loses nothing.
    room.query("a", start);
    assert_eq!(figures(next.after(MINUTE)), Some((2, 0, 5, 1)));
    assert_eq!(figures(next.after(2 * MINUTE)), Some((0, 0, 5, 1)));
}
