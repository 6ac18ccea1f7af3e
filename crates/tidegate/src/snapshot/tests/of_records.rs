//! What a restart keeps of records: values, lives, units, statistics and their order.

use super::*;
use crate::records::{Life, RecordKind, Unit, UpdateChange};

const MAX: u64 = u64::MAX;

fn life(unit: Unit, amount: u64) -> Life {
    Life { unit, amount }
}

/// A few records of each kind, used a little.
fn some_records(now: Now) -> Arc<Records> {
    let records = records();
    let probe = |key: &[u8]| records.probe(key);
    let long = [b'l'; 255];
    assert!(records.insert(b"minute", probe(b"minute"), 7, life(Unit::Seconds, 60), now));
    assert!(records.set(b"", probe(b""), b"EHLO", life(Unit::Hours, 2), now));
    assert!(records.insert(&long, probe(&long), MAX, life(Unit::Minutes, 90), now));
    assert!(records.set(b"empty", probe(b"empty"), b"", life(Unit::Milliseconds, MAX), now));
    assert!(records.insert(b"ever", probe(b"ever"), 1, life(Unit::Hours, MAX), now));
    for n in 0..100 {
        let key = format!("many {n}");
        let (key, probe) = (key.as_bytes(), probe(key.as_bytes()));
        assert!(records.insert(key, probe, n, life(Unit::Minutes, 30 + n), now));
    }
    records.query(b"minute", probe(b"minute"), now);
    records.update_quota(b"minute", probe(b"minute"), UpdateChange::Decrease, 2, MAX, now);
    // One that has come again stands behind all others.
    assert!(records.purge(b"many 3", probe(b"many 3"), now));
    assert!(records.insert(b"many 3", probe(b"many 3"), 3, life(Unit::Minutes, 33), now));
    records
}

/// A record's key, kind, unit, life left, quota and value.
type Seen = (Vec<u8>, RecordKind, Unit, Nanos, u64, Option<Vec<u8>>);

/// All that there is to see, but for statistics.
fn seen(records: &Records, now: Now) -> Vec<Seen> {
    let listed = records.list(now).into_iter().map(|record| {
        let key = record.key();
        let value = records.get(key, records.probe(key), now, |value, _, _| value.to_vec());
        (key.to_vec(), record.kind, record.unit, record.left_nanos, record.quota, value)
    });
    listed.collect()
}

fn written_with(records: &Records, now: Now) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("snapshot");
    let handle = handle(now, rules());
    use_all(&handle);
    Snapshot::write(handle.limiter(), records, &path).expect("written");
    (folder, path)
}

fn restored(path: &Path, now: Now) -> (Restored, Arc<Records>) {
    let after = records();
    let handle = handle(now, rules());
    (Snapshot::read(handle.limiter(), &after, path).expect("sound"), after)
}

#[test]
fn a_restart_within_one_boot_keeps_records_as_they_were() {
    let before = some_records(START);
    let (_folder, path) = written_with(&before, START);
    for away in [0, 59 * SECOND, MINUTE, 31 * MINUTE, 3 * HOUR] {
        // Where the wall clock stands does not matter.
        let now = Now { mono: START.mono + away, unix: START.unix / 2 };
        let (restored, after) = restored(&path, now);
        let live = before.list(now);
        assert_eq!(restored.records as usize, live.len());
        assert_eq!((restored.dropped, restored.lost), (105 - restored.records, 0));
        assert_eq!(seen(&after, now), seen(&before, now), "after {away}");
    }
    let (_, after) = restored(&path, START);
    let stat = |records: &Records, now| records.stat(b"minute", records.probe(b"minute"), now);
    for now in [START, START.after(59 * SECOND)] {
        assert_eq!(stat(&after, now), stat(&before, now));
    }
    // What comes after stands behind what was there.
    assert!(after.insert(b"new", after.probe(b"new"), 1, life(Unit::Seconds, 1), START));
    let last = after.list(START).pop().map(|record| record.key().to_vec());
    assert_eq!(last.as_deref(), Some(&b"new"[..]));
}

#[test]
fn after_a_reboot_lives_go_on_by_the_wall_clock() {
    let before = some_records(START);
    let (_folder, path) = written_with(&before, START);
    as_of_another_boot(&path);
    for away in [0, SECOND, MINUTE - 1, MINUTE, 31 * MINUTE, 3 * HOUR] {
        let now = Now { mono: 401 * DAY, unix: START.unix + away };
        let (restored, after) = restored(&path, now);
        let expected = seen(&before, START.after(away));
        assert_eq!(restored.records as usize, expected.len());
        assert_eq!(seen(&after, now), expected, "after {away}");
        let (old, new) = (START.after(away), now);
        let stat = |records: &Records, now| records.stat(b"", records.probe(b""), now);
        let totals = |stat: Option<records::Stat>| stat.map(|stat| (stat.reads, stat.writes));
        assert_eq!(totals(stat(&after, new)), totals(stat(&before, old)).map(|(_, w)| (1, w)));
    }
    // A wall clock that was set back ages nothing.
    let now = Now { mono: 401 * DAY, unix: START.unix - 5 * HOUR };
    let (_, after) = restored(&path, now);
    let left = |records: &Records, now| {
        records.look(b"minute", records.probe(b"minute"), now).map(|record| record.left_nanos)
    };
    assert_eq!(left(&after, now), left(&before, START));
}

#[test]
fn records_without_room_are_dropped_and_counted() {
    let before = some_records(START);
    let (_folder, path) = written_with(&before, START);
    let after = Records::new(records::Settings { max_records: 10, max_bytes: 1 << 20 });
    let handle = handle(START, rules());
    let restored = Snapshot::read(handle.limiter(), &after, &path).expect("sound");
    assert_eq!((restored.records, restored.lost, restored.dropped), (10, 95, 0));
    assert_eq!(after.list(START).len(), 10);
}

#[test]
fn damaged_records_are_found_and_nothing_is_restored() {
    let before = records();
    assert!(before.insert(b"key", before.probe(b"key"), 7, life(Unit::Seconds, 60), START));
    assert!(before.set(b"buffer", before.probe(b"buffer"), b"x", life(Unit::Hours, 1), START));
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("snapshot");
    let limiter = handle(START, rules());
    Snapshot::write(limiter.limiter(), &before, &path).expect("written");
    let sound = fs::read(&path).expect("a file");
    let refused = |bytes: &[u8]| {
        fs::write(&path, bytes).expect("written");
        let after = records();
        let problem = Snapshot::read(limiter.limiter(), &after, &path).expect_err("damaged");
        assert_eq!(after.size().records(), 0, "{problem}");
    };
    for at in 0..sound.len() {
        let mut damaged = sound.clone();
        damaged[at] ^= 0x55;
        refused(&damaged);
        refused(&sound[..at]);
    }
}

#[test]
fn records_that_cannot_be_are_refused_although_the_sum_is_right() {
    let kept = records::KeptRecord {
        key: b"key".to_vec(),
        value: records::RecordValue::Counter(1),
        unit: Unit::Seconds,
        expiry: MAX,
        sequence: 7,
        totals: [0; 2],
        minute: 0,
        by_minute: [0; 4],
    };
    let read = |kept: &records::KeptRecord| {
        let header = Header { boot: Vec::new(), now: START, rules: Vec::new() };
        let mut writer = SnapshotWriter::begin(Vec::new(), &header).expect("in memory");
        writer.record(kept).expect("in memory");
        let file = writer.end().expect("in memory").0;
        SnapshotReader::begin(&*file).expect("sound").entry().map(|entry| match entry {
            Some(SnapshotEntry::Record(kept)) => kept,
            _ => panic!("a record was written"),
        })
    };
    assert_eq!(read(&kept).expect("sound"), kept);
    for unit in Unit::ALL {
        let kept = records::KeptRecord { unit, ..kept.clone() };
        assert_eq!(read(&kept).expect("sound"), kept);
    }
    let long = records::KeptRecord { key: vec![b'k'; 256], ..kept.clone() };
    assert!(matches!(read(&long), Err(SnapshotProblem::Damaged(_))));
    let last = records::KeptRecord { sequence: MAX, ..kept };
    assert!(matches!(read(&last), Err(SnapshotProblem::Damaged(_))));
}

#[test]
fn a_snapshot_from_before_there_were_records_is_still_read() {
    let before = handle(START, rules());
    use_all(&before);
    let (_folder, path) = written(&before);
    let mut file = fs::read(&path).expect("a file");
    let as_version = |file: &mut Vec<u8>, version: u32| {
        file[8..12].copy_from_slice(&version.to_le_bytes());
        let end = file.len() - 4;
        let sum = crc32fast::hash(&file[..end]);
        file[end..].copy_from_slice(&sum.to_le_bytes());
        fs::write(&path, file).expect("written");
    };
    as_version(&mut file, 1);
    let after = handle(START, rules());
    let restored = Snapshot::read(after.limiter(), &records(), &path).expect("sound");
    assert_eq!((restored.keys, restored.records, restored.dropped), (54, 0, 0));
    for version in [0, 3, MAX as u32] {
        as_version(&mut file, version);
        let refused = Snapshot::read(after.limiter(), &records(), &path);
        assert!(matches!(refused, Err(SnapshotProblem::Version { .. })), "{version}");
    }
    // It had no records: one in it is damage.
    let (_folder, path) = written_with(&some_records(START), START);
    let mut file = fs::read(&path).expect("a file");
    file[8..12].copy_from_slice(&1u32.to_le_bytes());
    fs::write(&path, &file).expect("written");
    let refused = Snapshot::read(after.limiter(), &records(), &path);
    assert!(matches!(refused, Err(SnapshotProblem::Damaged(_))));
}
