//! Snapshots on a manual clock: what a restart keeps, ages, drops and refuses.

mod of_given;
mod of_records;
mod on_disk;

use std::sync::Arc;

use tempfile::TempDir;
use tidegate_core::limit::{Algorithm, Limit};
use tidegate_core::rules::{OnFull, Rule, RuleSet};
use tidegate_core::time::{DAY, HOUR, MINUTE, SECOND};
use tidegate_core::{Nanos, Now};

use super::format::{SnapshotReader, SnapshotWriter};
use super::*;
use crate::clock::Clock;
use crate::limiter::{Key, LimiterHandle, Request, Rows};
use crate::metrics::{Door, Metrics};
use crate::records;
use crate::stores::memory::Settings;

const START: Now = Now { mono: 500 * DAY, unix: 20_000 * DAY };

fn rule(name: &str, limits: Vec<Limit>) -> Rule {
    Rule::new(name, &format!("{name} *"), limits)
}

fn limit(amount: u64, period: Nanos, algorithm: Algorithm) -> Limit {
    Limit { amount, period, algorithm }
}

/// One rule for each algorithm, and one with two limits.
fn rules() -> Vec<Rule> {
    let gcra = limit(5, HOUR, Algorithm::Gcra { burst: 5 });
    vec![
        rule("gcra", vec![gcra]),
        rule("fixed", vec![limit(5, DAY, Algorithm::FixedWindow)]),
        rule("sliding", vec![limit(5, DAY, Algorithm::SlidingWindow)]),
        rule("log", vec![limit(5, HOUR, Algorithm::SlidingLog)]),
        rule("average", vec![limit(5, HOUR, Algorithm::Average { strict: true })]),
        rule("jarl", vec![limit(5, HOUR, Algorithm::Jarl { exact: true })]),
        rule("smockron", vec![limit(5, HOUR, Algorithm::Smockron { burst: 5 })]),
        rule("two", vec![gcra, limit(7, DAY, Algorithm::SlidingLog)]),
        rule("flight", vec![limit(5, 0, Algorithm::InFlight { per_window: false })]),
    ]
}

fn handle(now: Now, rules: Vec<Rule>) -> LimiterHandle {
    small_handle(now, rules, 10_000)
}

fn small_handle(now: Now, rules: Vec<Rule>, max_keys: usize) -> LimiterHandle {
    let settings = Settings { max_keys, max_bytes: 1 << 24 };
    let rules = RuleSet::new(rules, None);
    let limiter = Limiter::new(Clock::manual(now), Arc::new(Metrics::new()), rules, settings);
    limiter.handle(Door::Text)
}

fn records() -> Arc<Records> {
    Records::new(records::Settings { max_records: 10_000, max_bytes: 1 << 24 })
}

/// Takes `n` uses under every rule, for the key numbered `n`.
fn use_all(handle: &LimiterHandle) {
    for rule in handle.limiter().rules().rules() {
        for n in 0..7 {
            let key = format!("{} key {n}", rule.name);
            (0..n).for_each(|_| {
                decide(handle, Key::take(key.as_bytes(), 1));
            });
        }
    }
}

/// What was said of a key.
#[derive(Debug, PartialEq)]
struct Said {
    allowed: bool,
    delay: Nanos,
    rows: Rows,
}

fn decide(handle: &LimiterHandle, key: Key<'_>) -> Said {
    let (keys, mut rows) = ([key], Rows::default());
    let request = Request::all_or_nothing(&keys).with_end();
    let decision = handle.decide(&request, handle.now(), Some(&mut rows)).expect("a valid request");
    let verdict = decision.ready().expect("in memory");
    Said { allowed: verdict.is_allowed(), delay: verdict.delay, rows }
}

fn peek(handle: &LimiterHandle, key: &str) -> Said {
    decide(handle, Key::peek(key.as_bytes(), 1))
}

fn written(handle: &LimiterHandle) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("snapshot");
    Snapshot::write(handle.limiter(), &records(), &path).expect("written");
    (folder, path)
}

/// Gives the file another boot's name.
fn as_of_another_boot(path: &Path) {
    let file = fs::read(path).expect("a file");
    let mut reader = SnapshotReader::begin(&*file).expect("sound");
    let header = Header { boot: b"another".to_vec(), ..reader.header.clone() };
    let mut writer = SnapshotWriter::begin(Vec::new(), &header).expect("in memory");
    while let Some(entry) = reader.entry().expect("sound") {
        let written = match entry {
            SnapshotEntry::Count(kept) => {
                writer.count(kept.rule, kept.name.as_deref(), kept.tally, &kept.states)
            }
            SnapshotEntry::Record(kept) => writer.record(&kept),
        };
        written.expect("in memory");
    }
    fs::write(path, writer.end().expect("in memory").0).expect("written");
}

#[test]
fn a_restart_within_one_boot_changes_no_verdict() {
    let before = handle(START, rules());
    use_all(&before);
    before.limiter().clock().advance(MINUTE);
    let (_folder, path) = written(&before);
    before.limiter().clock().advance(10 * MINUTE);
    // The wall clock is somewhere else altogether; only the window of the day may follow it.
    let now = before.now();
    let after = handle(Now { mono: now.mono, unix: now.unix + 2 * HOUR }, rules());
    let restored = Snapshot::read(after.limiter(), &records(), &path).expect("sound");
    assert_eq!(restored.dropped, 0);
    for rule in rules().iter().filter(|rule| !rule.name.starts_with("sliding")) {
        for n in 0..7 {
            let key = format!("{} key {n}", rule.name);
            let (then, now) = (peek(&before, &key), peek(&after, &key));
            if &*rule.name == "flight" {
                assert_eq!(
                    now.rows.limits[0].verdict.remaining, 5,
                    "uses in flight are not restored"
                );
            } else if &*rule.name == "fixed" {
                assert_eq!(now.allowed, then.allowed, "{key}");
                assert_eq!(
                    now.rows.limits[0].verdict.remaining,
                    then.rows.limits[0].verdict.remaining
                );
            } else {
                assert_eq!(now, then, "{key}");
                let stats = after.limiter().stats(key.as_bytes(), before.now());
                assert_eq!(stats, before.limiter().stats(key.as_bytes(), before.now()));
            }
        }
    }
}

#[test]
fn after_a_reboot_states_age_by_the_wall_clock() {
    let before = handle(START, rules());
    use_all(&before);
    let (_folder, path) = written(&before);
    as_of_another_boot(&path);
    for away in [0, SECOND, 20 * MINUTE, 2 * HOUR] {
        let booted = Now { mono: 401 * DAY, unix: START.unix + away };
        let after = handle(booted, rules());
        Snapshot::read(after.limiter(), &records(), &path).expect("sound");
        let expected = handle(START, rules());
        use_all(&expected);
        expected.limiter().clock().advance(away);
        for name in ["gcra", "log", "average", "jarl", "smockron", "two"] {
            for n in 0..7 {
                let key = format!("{name} key {n}");
                assert_eq!(peek(&after, &key), peek(&expected, &key), "{key} after {away}");
            }
        }
    }
}

#[test]
fn a_wall_clock_set_back_forgives_nothing() {
    let before = handle(START, rules());
    use_all(&before);
    let (_folder, path) = written(&before);
    as_of_another_boot(&path);
    let after = handle(Now { mono: 401 * DAY, unix: START.unix - 5 * HOUR }, rules());
    Snapshot::read(after.limiter(), &records(), &path).expect("sound");
    for name in ["gcra", "log", "average", "jarl", "smockron", "two"] {
        let key = format!("{name} key 6");
        assert_eq!(peek(&after, &key), peek(&before, &key), "{key}");
    }
}

#[test]
fn a_smaller_table_forgives_nobody() {
    let before = handle(START, rules());
    use_all(&before);
    let (_folder, path) = written(&before);
    let after = small_handle(START, rules(), 5);
    let restored = Snapshot::read(after.limiter(), &records(), &path).expect("sound");
    assert_eq!((restored.keys, restored.forgiven), (5, 0));
    assert!(restored.shared >= 40, "{restored:?}");
    for rule in rules().iter().filter(|rule| &*rule.name != "flight") {
        for n in 1..7 {
            let key = format!("{} key {n}", rule.name);
            let left = |handle: &LimiterHandle| {
                let limits = peek(handle, &key).rows.limits;
                limits.iter().map(|limit| limit.verdict.remaining).collect::<Vec<_>>()
            };
            let (then, now) = (left(&before), left(&after));
            assert!(
                now.iter().zip(&then).all(|(now, then)| now <= then),
                "{key}: {now:?} {then:?}"
            );
            let allowed =
                |handle: &LimiterHandle| decide(handle, Key::take(key.as_bytes(), 1)).allowed;
            assert!(allowed(&before) || !allowed(&after), "{key}");
        }
    }
}

#[test]
fn what_does_not_share_and_finds_no_room_is_told() {
    let fixed = |on_full| {
        let rule = rule("fixed", vec![limit(5, DAY, Algorithm::FixedWindow)]);
        vec![Rule { on_full, ..rule }]
    };
    let begun = Restored { written: START.unix, ..Restored::default() };
    for (on_full, shared, forgiven) in
        [(OnFull::Share, 4, 0), (OnFull::Deny, 0, 4), (OnFull::Allow, 0, 4)]
    {
        let before = handle(START, fixed(on_full));
        use_all(&before);
        let (_folder, path) = written(&before);
        let after = small_handle(START, fixed(on_full), 2);
        let restored = Snapshot::read(after.limiter(), &records(), &path).expect("sound");
        assert_eq!(restored, Restored { keys: 2, shared, forgiven, ..begun });
        // After a while they say nothing any more, and nothing is lost.
        let late = small_handle(START.after(3 * DAY), fixed(on_full), 2);
        let restored = Snapshot::read(late.limiter(), &records(), &path).expect("sound");
        assert_eq!(restored, Restored { keys: 2, dropped: 4, ..begun });
    }
}

#[test]
fn counts_of_rules_that_changed_are_dropped() {
    let before = handle(START, rules());
    use_all(&before);
    let (_folder, path) = written(&before);
    let mut changed = rules();
    changed[0].limits[0].period = MINUTE;
    changed[3].limits[0].amount = 6;
    changed.remove(4);
    let after = handle(START, changed);
    let restored = Snapshot::read(after.limiter(), &records(), &path).expect("sound");
    assert_eq!(restored.dropped, 12, "six keys of each of two rules");
    assert_eq!(peek(&after, "gcra key 5").rows.limits[0].verdict.remaining, 5);
    // Another amount keeps the count.
    assert_eq!(peek(&after, "log key 5").rows.limits[0].verdict.remaining, 1);
}

#[test]
fn damage_anywhere_is_found_and_nothing_is_restored() {
    let before = handle(START, rules());
    use_all(&before);
    let (_folder, path) = written(&before);
    let sound = fs::read(&path).expect("a file");
    let refused = |bytes: &[u8]| {
        fs::write(&path, bytes).expect("written");
        let after = handle(START, rules());
        let problem = Snapshot::read(after.limiter(), &records(), &path).expect_err("damaged");
        assert_eq!(after.limiter().size().keys, 0, "{problem}");
        problem.to_string()
    };
    for at in (0..sound.len()).step_by(7) {
        let mut damaged = sound.clone();
        damaged[at] ^= 0x55;
        refused(&damaged);
    }
    for len in (0..sound.len()).step_by(11) {
        refused(&sound[..len]);
    }
    assert!(refused(b"{\"json\": true}").contains("not a snapshot"));
    assert!(refused(&[&sound[..], b"x"].concat()).contains("after the end"));
}

#[test]
fn the_previous_snapshot_is_kept() {
    let handle = handle(START, rules());
    let (folder, path) = written(&handle);
    let first = fs::read(&path).expect("a file");
    use_all(&handle);
    Snapshot::write(handle.limiter(), &records(), &path).expect("written");
    assert_eq!(fs::read(files::previous(&path)).expect("kept"), first);
    assert_ne!(fs::read(&path).expect("a file"), first);
    let names = fs::read_dir(folder.path()).expect("a folder").count();
    assert_eq!(names, 2, "nothing else is left behind");
}

#[test]
fn no_file_is_no_error() {
    let handle = handle(START, rules());
    let missing = Path::new("does-not-exist.snapshot");
    let found = Snapshot::restore(handle.limiter(), &records(), missing);
    assert!(found.restored.is_none() && found.unusable.is_empty(), "{found:?}");
}

#[test]
fn a_monotonic_clock_that_stands_earlier_in_the_same_boot_means_another_clock() {
    let before = handle(START, rules());
    use_all(&before);
    let (_folder, path) = written(&before);
    // As in a container whose clocks are its own: old stamps are aged by the wall clock.
    let after = handle(Now { mono: 401 * DAY, unix: START.unix + 2 * HOUR }, rules());
    Snapshot::read(after.limiter(), &records(), &path).expect("sound");
    assert_eq!(peek(&after, "gcra key 5").rows.limits[0].verdict.remaining, 5);
    let at_once = handle(Now { mono: 401 * DAY, unix: START.unix }, rules());
    Snapshot::read(at_once.limiter(), &records(), &path).expect("sound");
    assert_eq!(peek(&at_once, "gcra key 5"), peek(&before, "gcra key 5"));
}
