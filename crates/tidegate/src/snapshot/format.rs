//! The bytes of a snapshot: version 2, little-endian, one checksum over everything.
//!
//! `TIDEGATE`, version u32, boot id, mono u64, unix u64, rules u32, each rule, entries, 0 u8,
//! number of entries u64, CRC-32 of all before it. Texts and states carry their length. Version 1
//! had no records, and is still read.

use std::io::{self, Read, Write};

use crc32fast::Hasher;
use tidegate_core::{Now, State};

use super::SnapshotProblem;
use crate::limiter;
use crate::records::{self, RecordValue, Unit};

const MAGIC: &[u8; 8] = b"TIDEGATE";
const VERSION: u32 = 2;
const END: u8 = 0;
const KEY: u8 = 1;
const SHARED: u8 = 2;
const RECORD: u8 = 3;
const COUNTER: u8 = 0;
const BUFFER: u8 = 1;

/// One thing that a snapshot holds.
pub(super) enum SnapshotEntry {
    /// A count of the limiter.
    Count(limiter::KeptCount),
    Record(records::KeptRecord),
}

/// When and under which boot a snapshot was begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) boot: Vec<u8>,
    pub(super) now: Now,
    pub(super) rules: Vec<OldRule>,
}

/// A rule as it was when the snapshot was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OldRule {
    pub(super) number: u32,
    pub(super) name: Vec<u8>,
    /// The algorithm's name and the period of each limit.
    pub(super) limits: Vec<(Vec<u8>, u64)>,
}

/// Writes a snapshot and sums it up on the way.
pub(super) struct SnapshotWriter<W> {
    to: W,
    sum: Hasher,
    entries: u64,
    /// One entry at a time is put together here.
    entry: Vec<u8>,
    state: Vec<u8>,
}

impl<W: Write> SnapshotWriter<W> {
    pub(super) fn begin(to: W, header: &Header) -> io::Result<Self> {
        let mut writer =
            Self { to, sum: Hasher::new(), entries: 0, entry: Vec::new(), state: Vec::new() };
        let mut head = MAGIC.to_vec();
        head.extend(VERSION.to_le_bytes());
        put_text(&mut head, &header.boot);
        head.extend(header.now.mono.to_le_bytes());
        head.extend(header.now.unix.to_le_bytes());
        head.extend((header.rules.len() as u32).to_le_bytes());
        for rule in &header.rules {
            head.extend(rule.number.to_le_bytes());
            put_text(&mut head, &rule.name);
            head.push(rule.limits.len() as u8);
            for (algorithm, period) in &rule.limits {
                put_text(&mut head, algorithm);
                head.extend(period.to_le_bytes());
            }
        }
        writer.put(&head)?;
        Ok(writer)
    }

    pub(super) fn count(
        &mut self,
        rule: u32,
        name: Option<&[u8]>,
        tally: [u64; 3],
        states: &[State],
    ) -> io::Result<()> {
        self.entry.clear();
        self.entry.push(if name.is_some() { KEY } else { SHARED });
        self.entry.extend(rule.to_le_bytes());
        put_text(&mut self.entry, name.unwrap_or_default());
        tally.iter().for_each(|word| self.entry.extend(word.to_le_bytes()));
        self.entry.push(states.len() as u8);
        for state in states {
            self.state.clear();
            state.encode(&mut self.state);
            self.entry.extend((self.state.len() as u32).to_le_bytes());
            self.entry.extend(&self.state);
        }
        self.put_entry()
    }

    pub(super) fn record(&mut self, kept: &records::KeptRecord) -> io::Result<()> {
        self.entry.clear();
        self.entry.push(RECORD);
        put_text(&mut self.entry, &kept.key);
        match &kept.value {
            RecordValue::Counter(quota) => {
                self.entry.push(COUNTER);
                self.entry.extend(quota.to_le_bytes());
            }
            RecordValue::Buffer(bytes) => {
                self.entry.push(BUFFER);
                put_text(&mut self.entry, bytes);
            }
        }
        self.entry
            .extend(Unit::ALL.iter().zip(0u8..).filter(|(u, _)| **u == kept.unit).map(|u| u.1));
        for word in [kept.expiry, kept.sequence, kept.totals[0], kept.totals[1]] {
            self.entry.extend(word.to_le_bytes());
        }
        self.entry.extend(kept.minute.to_le_bytes());
        kept.by_minute.iter().for_each(|uses| self.entry.extend(uses.to_le_bytes()));
        self.put_entry()
    }

    fn put_entry(&mut self) -> io::Result<()> {
        self.sum.update(&self.entry);
        self.entries += 1;
        self.to.write_all(&self.entry)
    }

    /// Writes the end; returns what was written to, and how many entries there are.
    pub(super) fn end(mut self) -> io::Result<(W, u64)> {
        let mut end = vec![END];
        end.extend(self.entries.to_le_bytes());
        self.put(&end)?;
        let sum = self.sum.clone().finalize();
        self.to.write_all(&sum.to_le_bytes())?;
        Ok((self.to, self.entries))
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sum.update(bytes);
        self.to.write_all(bytes)
    }
}

fn put_text(out: &mut Vec<u8>, text: &[u8]) {
    out.extend((text.len() as u32).to_le_bytes());
    out.extend(text);
}

/// Reads a snapshot and sums it up on the way.
pub(super) struct SnapshotReader<R> {
    from: R,
    sum: Hasher,
    entries: u64,
    version: u32,
    pub(super) header: Header,
}

impl<R: Read> SnapshotReader<R> {
    pub(super) fn begin(from: R) -> Result<Self, SnapshotProblem> {
        let header = Header { boot: Vec::new(), now: Now::default(), rules: Vec::new() };
        let mut reader = Self { from, sum: Hasher::new(), entries: 0, version: 0, header };
        if reader.bytes::<8>()? != *MAGIC {
            return Err(SnapshotProblem::NotASnapshot);
        }
        reader.version = reader.u32()?;
        if !(1..=VERSION).contains(&reader.version) {
            return Err(SnapshotProblem::Version { found: reader.version, known: VERSION });
        }
        reader.header.boot = reader.text()?;
        reader.header.now = Now { mono: reader.u64()?, unix: reader.u64()? };
        for _ in 0..reader.u32()? {
            let (number, name) = (reader.u32()?, reader.text()?);
            let mut limits = Vec::new();
            for _ in 0..reader.bytes::<1>()?[0] {
                limits.push((reader.text()?, reader.u64()?));
            }
            reader.header.rules.push(OldRule { number, name, limits });
        }
        Ok(reader)
    }

    /// The next entry; `None` at a sound end.
    pub(super) fn entry(&mut self) -> Result<Option<SnapshotEntry>, SnapshotProblem> {
        let entry = match self.bytes::<1>()?[0] {
            END => return self.end().map(|()| None),
            kind @ (KEY | SHARED) => SnapshotEntry::Count(self.count(kind == KEY)?),
            RECORD if self.version > 1 => SnapshotEntry::Record(self.record()?),
            _ => return Err(SnapshotProblem::Damaged("an entry of an unknown kind")),
        };
        self.entries += 1;
        Ok(Some(entry))
    }

    fn count(&mut self, named: bool) -> Result<limiter::KeptCount, SnapshotProblem> {
        let (rule, name) = (self.u32()?, self.text()?);
        let tally = [self.u64()?, self.u64()?, self.u64()?];
        let mut states = Vec::new();
        for _ in 0..self.bytes::<1>()?[0] {
            let state = State::decode(&self.text()?);
            states
                .push(state.map_err(|_| SnapshotProblem::Damaged("a state that cannot be read"))?);
        }
        Ok(limiter::KeptCount { rule, name: named.then_some(name), tally, states })
    }

    fn record(&mut self) -> Result<records::KeptRecord, SnapshotProblem> {
        let damaged = || SnapshotProblem::Damaged("a record that cannot be read");
        let key = self.text()?;
        let value = match self.bytes::<1>()?[0] {
            COUNTER => RecordValue::Counter(self.u64()?),
            BUFFER => RecordValue::Buffer(self.text()?.into()),
            _ => return Err(damaged()),
        };
        let unit = self.bytes::<1>()?[0];
        let unit = *Unit::ALL.get(usize::from(unit)).ok_or_else(damaged)?;
        let (expiry, sequence) = (self.u64()?, self.u64()?);
        let totals = [self.u64()?, self.u64()?];
        let minute = self.u32()?;
        let by_minute = [self.u32()?, self.u32()?, self.u32()?, self.u32()?];
        let kept =
            records::KeptRecord { key, value, unit, expiry, sequence, totals, minute, by_minute };
        if kept.is_sound() { Ok(kept) } else { Err(damaged()) }
    }

    fn end(&mut self) -> Result<(), SnapshotProblem> {
        if self.u64()? != self.entries {
            return Err(SnapshotProblem::Damaged("entries are missing"));
        }
        let expected = self.sum.clone().finalize();
        if self.u32()? != expected {
            return Err(SnapshotProblem::Damaged("the checksum does not match"));
        }
        match self.from.read(&mut [0])? {
            0 => Ok(()),
            _ => Err(SnapshotProblem::Damaged("there are bytes after the end")),
        }
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], SnapshotProblem> {
        let mut bytes = [0; N];
        self.from.read_exact(&mut bytes)?;
        self.sum.update(&bytes);
        Ok(bytes)
    }

    fn u32(&mut self) -> Result<u32, SnapshotProblem> {
        self.bytes().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, SnapshotProblem> {
        self.bytes().map(u64::from_le_bytes)
    }

    /// Bytes behind their length, which is believed only as far as there are bytes.
    fn text(&mut self) -> Result<Vec<u8>, SnapshotProblem> {
        let len = self.u32()?;
        let mut text = Vec::new();
        if Read::take(&mut self.from, len.into()).read_to_end(&mut text)? < len as usize {
            return Err(SnapshotProblem::Damaged("it ends too early"));
        }
        self.sum.update(&text);
        Ok(text)
    }
}
