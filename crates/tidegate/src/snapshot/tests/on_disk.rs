//! The files of a snapshot: what every crash leaves of them, damage, links and permissions.

use std::os::unix::fs::{PermissionsExt, symlink};

use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::*;

/// What a file was found as, or what it is made for a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    Missing,
    Damaged,
    /// Sound, with counts of so many keys.
    Keys(u64),
}

use Content::{Damaged, Keys, Missing};

fn handle_with(keys: u64) -> LimiterHandle {
    let handle = handle(START, rules());
    for key in 0..keys {
        let key = format!("log key {key}");
        decide(&handle, Key::take(key.as_bytes(), 1));
    }
    handle
}

/// Files in a folder of their own, as an earlier process left them.
struct Disk {
    folder: TempDir,
}

impl Disk {
    fn new(newest: Content, previous: Content, half_written: Content) -> Self {
        let disk = Self { folder: tempfile::tempdir().expect("a folder") };
        let path = disk.path();
        put(&path, newest);
        put(&files::previous(&path), previous);
        put(&files::aside(&path), half_written);
        disk
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("snapshot")
    }

    /// Starts a server, which crashes at the rename numbered `renames`.
    fn start(&self, renames: usize) -> (Option<(SnapshotSource, u64)>, Vec<Unusable>) {
        let handle = handle(START, rules());
        let rename = until_a_crash(renames);
        let found = Snapshot::restore_by(handle.limiter(), &records(), &self.path(), rename);
        (found.restored.map(|(source, restored)| (source, restored.keys)), found.unusable)
    }

    /// Writes a snapshot of so many keys and crashes at the rename numbered `renames`; whether it
    /// came to the end.
    fn write(&self, keys: u64, renames: usize) -> bool {
        let handle = handle_with(keys);
        let rename = until_a_crash(renames);
        Snapshot::write_by(handle.limiter(), &records(), &self.path(), rename).is_ok()
    }

    fn names(&self) -> Vec<String> {
        let names = fs::read_dir(self.folder.path()).expect("a folder");
        let mut names: Vec<_> =
            names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn put(path: &Path, content: Content) {
    match content {
        Missing => {}
        Damaged => fs::write(path, b"TIDEGATE and then nothing that makes sense").expect("written"),
        Keys(keys) => {
            let (_folder, sound) = written(&handle_with(keys));
            fs::copy(sound, path).expect("copied");
        }
    }
}

/// Renames until the crash, and nothing after it.
fn until_a_crash(mut renames: usize) -> impl FnMut(&Path, &Path) -> io::Result<()> {
    move |from, to| {
        if renames == 0 {
            return Err(io::Error::other("the process has crashed"));
        }
        renames -= 1;
        fs::rename(from, to)
    }
}

const NO_CRASH: usize = usize::MAX;
const ALL: [Content; 3] = [Missing, Damaged, Keys(2)];

/// What a start must find.
fn best(newest: Content, previous: Content) -> Option<(SnapshotSource, u64)> {
    match (newest, previous) {
        (Keys(keys), _) => Some((SnapshotSource::Newest, keys)),
        (_, Keys(keys)) => Some((SnapshotSource::Previous, keys)),
        _ => None,
    }
}

#[test]
fn a_crash_at_any_step_leaves_what_was_sound() {
    for (newest, previous) in ALL
        .iter()
        .flat_map(|newest| [Missing, Damaged, Keys(1)].map(|previous| (*newest, previous)))
    {
        let best = best(newest, previous);
        for (half_written, crash_in_start, crash_in_write) in ALL
            .iter()
            .flat_map(|half| (0..=2).map(move |start| (*half, start)))
            .flat_map(|(half, start)| (0..=2).map(move |write| (half, start, write)))
        {
            let case = (newest, previous, half_written, crash_in_start, crash_in_write);
            let disk = Disk::new(newest, previous, half_written);
            assert_eq!(disk.start(crash_in_start).0, best, "{case:?}");
            assert_eq!(disk.start(NO_CRASH).0, best, "after a start that crashed: {case:?}");
            let whole = disk.write(3, crash_in_write);
            let found = disk.start(NO_CRASH).0;
            if whole {
                assert_eq!(found, Some((SnapshotSource::Newest, 3)), "{case:?}");
            } else {
                let keys = |best: Option<(SnapshotSource, u64)>| best.map(|(_, keys)| keys);
                assert_eq!(keys(found), keys(best), "after a write that crashed: {case:?}");
            }
            assert!(disk.write(4, NO_CRASH), "{case:?}");
            assert_eq!(disk.start(NO_CRASH).0, Some((SnapshotSource::Newest, 4)), "{case:?}");
        }
    }
}

#[test]
fn a_damaged_file_is_kept_aside_and_the_previous_one_restored() {
    let disk = Disk::new(Damaged, Keys(1), Missing);
    let damaged = fs::read(disk.path()).expect("a file");
    let (found, unusable) = disk.start(NO_CRASH);
    assert_eq!(found, Some((SnapshotSource::Previous, 1)));
    assert_eq!(unusable.len(), 1);
    assert_eq!(unusable[0].file, disk.path());
    let aside = unusable[0].aside.as_ref().expect("renamed");
    assert!(!aside.replaced);
    assert_eq!(fs::read(&aside.name).expect("kept"), damaged);
    assert_eq!(disk.names(), ["snapshot.damaged", "snapshot.previous"]);
    // The sound one stays until there are two newer ones.
    assert!(disk.write(3, NO_CRASH));
    assert_eq!(disk.names(), ["snapshot", "snapshot.damaged", "snapshot.previous"]);
    put(&disk.path(), Damaged);
    let (found, unusable) = disk.start(NO_CRASH);
    assert_eq!(found, Some((SnapshotSource::Previous, 1)));
    assert!(unusable[0].aside.as_ref().expect("renamed").replaced, "the older one is gone");
}

#[test]
fn two_damaged_files_are_both_kept() {
    let disk = Disk::new(Damaged, Damaged, Missing);
    let (found, unusable) = disk.start(NO_CRASH);
    assert_eq!((found, unusable.len()), (None, 2));
    assert_eq!(disk.names(), ["snapshot.damaged", "snapshot.previous.damaged"]);
}

#[test]
fn a_link_is_neither_followed_nor_written_through() {
    let elsewhere = Disk::new(Keys(5), Missing, Missing);
    let disk = Disk::new(Missing, Missing, Missing);
    for file in [disk.path(), files::previous(&disk.path())] {
        symlink(elsewhere.path(), &file).expect("a link");
        let refused = check(&disk.path()).expect_err("a link").to_string();
        assert!(refused.contains("symbolic link"), "{refused}");
        // One that appears after the start.
        assert_eq!(disk.start(0).0, None);
        fs::remove_file(file).expect("removed");
    }
    let sound = fs::read(elsewhere.path()).expect("a file");
    symlink(elsewhere.path(), files::aside(&disk.path())).expect("a link");
    symlink(elsewhere.path(), disk.path()).expect("a link");
    assert!(disk.write(3, NO_CRASH));
    assert_eq!(fs::read(elsewhere.path()).expect("a file"), sound, "untouched");
    assert_eq!(disk.start(NO_CRASH).0, Some((SnapshotSource::Newest, 3)));
    assert!(!fs::symlink_metadata(disk.path()).expect("a file").is_symlink());
}

#[test]
fn a_path_that_cannot_hold_snapshots_is_refused() {
    let disk = Disk::new(Keys(1), Keys(2), Keys(3));
    let names = disk.names();
    check(&disk.path()).expect("a folder that can be written");
    check(Path::new("without-a-folder.snapshot")).expect("the working folder");
    assert_eq!(disk.names(), names, "nothing is left behind");
    let refused = |path: &Path, why: &str| {
        let told = check(path).expect_err("refused").to_string();
        assert!(told.contains(why) && told.contains(&*path.to_string_lossy()), "{told}");
    };
    refused(&disk.folder.path().join("missing/snapshot"), "does not exist");
    refused(&disk.path().join("snapshot"), "not a folder");
    refused(Path::new("/proc/self/snapshot"), "cannot be written");
    refused(Path::new("/"), "must name a file");
    refused(disk.folder.path(), "not a regular file");
    let pipe = disk.folder.path().join("pipe");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).expect("a pipe");
    refused(&pipe, "not a regular file");
}

#[test]
fn nobody_else_can_read_the_files() {
    let disk = Disk::new(Keys(1), Missing, Missing);
    for name in disk.names() {
        let file = disk.folder.path().join(name);
        fs::set_permissions(file, fs::Permissions::from_mode(0o644)).expect("a file");
    }
    disk.start(NO_CRASH);
    for keys in 2..4 {
        assert!(disk.write(keys, NO_CRASH));
        for name in disk.names() {
            let mode = fs::metadata(disk.folder.path().join(&name)).expect("a file").permissions();
            assert_eq!(mode.mode() & 0o777, 0o600, "{name}");
        }
    }
    assert_eq!(disk.names(), ["snapshot", "snapshot.previous"]);
}
