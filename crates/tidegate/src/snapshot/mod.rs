//! Keys, records and statistics on disk, so that a restart does not forgive.
//!
//! A snapshot is written aside, synced and renamed into place, and the one before it is kept.
//! Within one boot the monotonic clock goes on, so states come back as they were; after a reboot
//! they are aged by as much as the wall clock moved, and never by more. Records keep what is left
//! of their lives by the same rule. Uses in flight end with the process that held them.

mod format;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use tidegate_core::rules::Rule;
use tidegate_core::{Now, State};

use self::format::{Entry, Header, OldRule, Reader, Writer};
use crate::limiter::{Import, Limiter};
use crate::records::Records;

/// Why a snapshot cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
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

/// What came back from a snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
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

/// The snapshot file of a limiter and its records.
pub struct Snapshot;

impl Snapshot {
    /// Reads `path` back. No file is no error: nothing was written yet. The whole
    /// file is checked before any of it is believed.
    pub fn restore(limiter: &Limiter, records: &Records, path: &Path) -> Result<Restored, Problem> {
        let mut file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Restored::default()),
            file => file?,
        };
        let mut check = Reader::begin(BufReader::new(&file)).map_err(shortened)?;
        while check.entry().map_err(shortened)?.is_some() {}
        file.rewind()?;
        let mut reader = Reader::begin(BufReader::new(&file))?;
        let now = limiter.clock().now();
        let offset = offset(&reader.header, &boot_id(), now);
        let rules = meanings(&reader.header.rules, limiter.numbered_rules());
        let mut restored = Restored::default();
        while let Some(entry) = reader.entry()? {
            *match entry {
                Entry::Count(mut kept) => {
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
                Entry::Record(kept) => {
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

    /// Writes everything that is remembered to `path`; returns the number of counts and records.
    /// Decisions go on: a shard is held only while it is copied.
    pub fn write(limiter: &Limiter, records: &Records, path: &Path) -> io::Result<u64> {
        let aside = beside(path, "new");
        let written = write_aside(limiter, records, &aside);
        if written.is_err() {
            // What is half written is of no use to anybody.
            let _ = fs::remove_file(&aside);
        }
        let written = written?;
        keep_previous(path)?;
        fs::rename(&aside, path)?;
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
        Ok(written)
    }
}

/// A file that ends too early was cut short.
fn shortened(problem: Problem) -> Problem {
    match problem {
        Problem::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            Problem::Damaged("it ends too early")
        }
        other => other,
    }
}

fn write_aside(limiter: &Limiter, records: &Records, aside: &Path) -> io::Result<u64> {
    // Keys can name people: nobody else needs to read them.
    let file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(aside)?;
    let rules =
        limiter.numbered_rules().iter().map(|(number, rule)| old_rule(*number, rule)).collect();
    let now = limiter.clock().now();
    let header = Header { boot: boot_id(), now, rules };
    let mut writer = Writer::begin(BufWriter::with_capacity(1 << 20, file), &header)?;
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
    Ok(entries)
}

/// Gives the snapshot that is about to be replaced a second name.
fn keep_previous(path: &Path) -> io::Result<()> {
    let previous = beside(path, "previous");
    match fs::remove_file(&previous) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    match fs::hard_link(path, &previous) {
        // The first snapshot has none before it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // Not every file system has links.
        Err(_) => fs::copy(path, &previous).map(|_| ()),
        Ok(()) => Ok(()),
    }
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    name.into()
}

/// Names this boot of the machine; empty where that cannot be told, and then every start counts
/// as the first after a reboot.
fn boot_id() -> Vec<u8> {
    fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim_ascii().to_vec()
}

/// What to add to old monotonic stamps so that they mean the same moment now.
fn offset(header: &Header, boot: &[u8], now: Now) -> i64 {
    if !boot.is_empty() && header.boot == boot {
        return 0;
    }
    // A wall clock that stands earlier than when the file was written has told nothing.
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
