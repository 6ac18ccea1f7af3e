//! Keys, records and statistics on disk, so that a restart does not forgive.
//!
//! A snapshot is written aside, synced and renamed into place, and the one before it is kept: it
//! is read where the newest one is missing or damaged.
//! Within one boot the monotonic clock goes on, so states come back as they were; after a reboot
//! they are aged by as much as the wall clock moved, and never by more. Records keep what is left
//! of their lives by the same rule. Uses in flight end with the process that held them.

mod files;
mod format;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fs;
use std::io::{self, BufReader, BufWriter, Seek, Write};
use std::path::{Path, PathBuf};

use tidegate_core::rules::Rule;
use tidegate_core::{Nanos, Now, State};

pub use self::files::{Aside, BadPath, check};
use self::format::{Header, OldRule, SnapshotEntry, SnapshotReader, SnapshotWriter};
use crate::limiter::{Import, Limiter};
use crate::records::Records;

/// Why a snapshot cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotProblem {
    /// It cannot be read or written.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The file is something else.
    #[error("it is not a snapshot of Tidegate")]
    NotASnapshot,
    /// It was written by another version.
    #[error("it has format version {found}; this program reads versions up to {known}")]
    Version {
        /// The version of the file.
        found: u32,
        /// The version that this program writes; it reads those before it, too.
        known: u32,
    },
    /// Its content cannot be trusted.
    #[error("it is damaged: {0}")]
    Damaged(&'static str),
}

/// A snapshot that was written.
#[derive(Clone, Copy, Debug)]
pub struct WrittenSnapshot {
    /// Counts and records in it.
    pub entries: u64,
    /// When it was begun, in Unix time.
    pub at: Nanos,
}

/// What came back from a snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// When the snapshot was begun, in Unix time.
    pub written: Nanos,
    /// Counts that live on.
    pub keys: u64,
    /// Counts that found no room and went into those that keys without a slot share.
    pub shared: u64,
    /// Counts that found no room under a rule that does not share: their keys are forgiven.
    pub forgiven: u64,
    /// Records that live on.
    pub records: u64,
    /// Records that found no room.
    pub lost: u64,
    /// Counts whose rule is gone or means something else now, or that say nothing any more, and
    /// records that have expired.
    pub dropped: u64,
}

/// Which of the files counts come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotSource {
    /// The one that was written last.
    Newest,
    /// The one before it.
    Previous,
}

impl SnapshotSource {
    /// Its name, for logs and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Newest => "newest",
            Self::Previous => "previous",
        }
    }

    fn file(self, path: &Path) -> PathBuf {
        match self {
            Self::Newest => path.to_owned(),
            Self::Previous => files::previous(path),
        }
    }
}

/// A file that could not be used.
#[derive(Debug)]
pub struct Unusable {
    /// Its name until now.
    pub file: PathBuf,
    /// Why it could not be used.
    pub problem: SnapshotProblem,
    /// Where it lies now, or why it could not be moved there.
    pub aside: io::Result<Aside>,
}

/// What a start found on disk.
#[derive(Debug, Default)]
pub struct FoundSnapshot {
    /// What was restored, and from which file.
    pub restored: Option<(SnapshotSource, Restored)>,
    /// The files that could not be used, and were set aside.
    pub unusable: Vec<Unusable>,
}

/// The snapshot file of a limiter and its records.
pub struct Snapshot;

impl Snapshot {
    /// Restores from `path`, or from the previous snapshot if there is no such file or it cannot
    /// be used. Files that cannot be used are set aside.
    #[must_use]
    pub fn restore(limiter: &Limiter, records: &Records, path: &Path) -> FoundSnapshot {
        Self::restore_by(limiter, records, path, |from, to| fs::rename(from, to))
    }

    fn restore_by(
        limiter: &Limiter,
        records: &Records,
        path: &Path,
        mut rename: impl FnMut(&Path, &Path) -> io::Result<()>,
    ) -> FoundSnapshot {
        let mut found = FoundSnapshot::default();
        for source in [SnapshotSource::Newest, SnapshotSource::Previous] {
            let file = source.file(path);
            match Self::read(limiter, records, &file) {
                Ok(restored) => {
                    found.restored = Some((source, restored));
                    break;
                }
                Err(SnapshotProblem::Io(error)) if error.kind() == io::ErrorKind::NotFound => {}
                Err(problem) => {
                    let aside = files::set_aside(&file, &mut rename);
                    found.unusable.push(Unusable { file, problem, aside });
                }
            }
        }
        found
    }

    /// Reads one file back. The whole of it is checked before any of it is believed.
    fn read(
        limiter: &Limiter,
        records: &Records,
        file: &Path,
    ) -> Result<Restored, SnapshotProblem> {
        let mut file = files::open(file)?;
        files::keep_private(&file);
        let mut check = SnapshotReader::begin(BufReader::new(&file)).map_err(shortened)?;
        while check.entry().map_err(shortened)?.is_some() {}
        file.rewind()?;
        let mut reader = SnapshotReader::begin(BufReader::new(&file))?;
        let now = limiter.clock().now();
        let offset = offset(&reader.header, &boot_id(), now);
        let rules = meanings(&reader.header.rules, limiter.numbered_rules());
        let mut restored = Restored { written: reader.header.now.unix, ..Restored::default() };
        while let Some(entry) = reader.entry()? {
            *match entry {
                SnapshotEntry::Count(mut kept) => {
                    kept.states.iter_mut().for_each(|state| age(state, offset));
                    let import = match rules.get(&kept.rule) {
                        Some((number, rule)) => limiter.import(kept, *number, rule, now),
                        None => Import::Unknown,
                    };
                    match import {
                        Import::Kept => &mut restored.keys,
                        Import::Shared => &mut restored.shared,
                        Import::NoRoom => &mut restored.forgiven,
                        Import::Unknown => &mut restored.dropped,
                    }
                }
                SnapshotEntry::Record(kept) => {
                    let kept = kept.shifted(offset);
                    if kept.expiry <= now.mono {
                        &mut restored.dropped
                    } else if records.import(kept, now) {
                        &mut restored.records
                    } else {
                        &mut restored.lost
                    }
                }
            } += 1;
        }
        Ok(restored)
    }

    /// Writes everything that is remembered to `path`. Decisions go on: a shard is held only while
    /// it is copied. Where this fails, what was there before is still there.
    pub fn write(limiter: &Limiter, records: &Records, path: &Path) -> io::Result<WrittenSnapshot> {
        Self::write_by(limiter, records, path, |from, to| fs::rename(from, to))
    }

    fn write_by(
        limiter: &Limiter,
        records: &Records,
        path: &Path,
        rename: impl FnMut(&Path, &Path) -> io::Result<()>,
    ) -> io::Result<WrittenSnapshot> {
        let aside = files::aside(path);
        let written = write_aside(limiter, records, &aside)
            .and_then(|written| files::publish(path, rename).map(|()| written));
        if written.is_err() {
            // A half-written file is of no use.
            let _ = fs::remove_file(&aside);
        }
        let written = written?;
        files::sync_folder(path)?;
        Ok(written)
    }
}

/// A file that ends too early was cut short.
fn shortened(problem: SnapshotProblem) -> SnapshotProblem {
    match problem {
        SnapshotProblem::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            SnapshotProblem::Damaged("it ends too early")
        }
        other => other,
    }
}

fn write_aside(limiter: &Limiter, records: &Records, aside: &Path) -> io::Result<WrittenSnapshot> {
    let file = files::create(aside)?;
    let rules =
        limiter.numbered_rules().iter().map(|(number, rule)| old_rule(*number, rule)).collect();
    let now = limiter.clock().now();
    let header = Header { boot: boot_id(), now, rules };
    let mut writer = SnapshotWriter::begin(BufWriter::with_capacity(1 << 20, file), &header)?;
    let mut outcome = Ok(());
    limiter.export(|rule, name, tally, states| {
        if outcome.is_ok() {
            outcome = writer.count(rule, name, tally, states);
        }
    });
    records.export(now, |kept| {
        if outcome.is_ok() {
            outcome = writer.record(&kept);
        }
    });
    outcome?;
    let (mut to, entries) = writer.end()?;
    to.flush()?;
    to.get_ref().sync_all()?;
    Ok(WrittenSnapshot { entries, at: now.unix })
}

/// Names this boot of the machine; empty where that is unknown, and then every start counts as the
/// first after a reboot.
fn boot_id() -> Vec<u8> {
    fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim_ascii().to_vec()
}

/// What to add to old monotonic stamps so that they mean the same moment now.
fn offset(header: &Header, boot: &[u8], now: Now) -> i64 {
    // Within one boot the clock cannot have gone back; where it has, as in another time namespace,
    // its stamps mean nothing here.
    if !boot.is_empty() && header.boot == boot && header.now.mono <= now.mono {
        return 0;
    }
    // A wall clock that is earlier than when the file was written says nothing about the time away.
    let away = now.unix.saturating_sub(header.now.unix);
    let offset = i128::from(now.mono) - i128::from(header.now.mono) - i128::from(away);
    i64::try_from(offset).unwrap_or(if offset < 0 { i64::MIN } else { i64::MAX })
}

fn age(state: &mut State, offset: i64) {
    if matches!(state, State::InFlight(_)) {
        *state = State::None;
    }
    state.shift(offset);
}

fn old_rule(number: u32, rule: &Rule) -> OldRule {
    let limits = rule.limits.iter().map(|l| (l.algorithm.name().into(), l.period)).collect();
    OldRule { number, name: rule.name.as_bytes().into(), limits }
}

/// By their old numbers, the rules that still mean the same, with their new numbers.
fn meanings(old: &[OldRule], new: Vec<(u32, Rule)>) -> HashMap<u32, (u32, Rule)> {
    let before: HashMap<&[u8], &OldRule> = old.iter().map(|rule| (&*rule.name, rule)).collect();
    new.into_iter()
        .filter_map(|(number, rule)| {
            let before = before.get(rule.name.as_bytes())?;
            let same = old_rule(number, &rule).limits == before.limits;
            same.then_some((before.number, (number, rule)))
        })
        .collect()
}
