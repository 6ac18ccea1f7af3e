//! The answers that list: LIST, STATS, CONNECTIONS and CHANNELS, written a fragment at a time.
//!
//! `01 | fragments u64 | per fragment: index u64 (from 1) | n u64 | n fixed parts | n keys`. The
//! number of fragments comes first, so a server goes over the lengths once with [`count`],
//! writes the [`head`], and then lets [`Fragments`] append one fragment whenever there is room: an
//! answer of a gigabyte never needs more than a fragment of memory.

use std::iter::Peekable;

use super::figures::{CONNECTION_BYTES, ConnectionRecord};
use super::reply::{SUCCESS, Stat};
use super::value::{Unit, ValueSize, put};
use super::{FRAGMENT_BYTES_MAX, KEY_BYTES_MAX};

/// The most bytes that [`Fragments::append`] appends: a fragment with its index and count.
pub const FRAGMENT_WHOLE_BYTES_MAX: usize = 16 + FRAGMENT_BYTES_MAX;

/// A row of such an answer.
pub trait ListingRow {
    /// Bytes of its fixed part at this value size.
    fn fixed_bytes(size: ValueSize) -> usize;

    /// What stands behind the fixed parts: a key, a channel's name, or nothing. No more than
    /// [`KEY_BYTES_MAX`] bytes of it are written.
    fn key(&self) -> &[u8];

    /// Appends the fixed part; `key_len` is the length of the key in one byte.
    fn append_fixed(&self, size: ValueSize, key_len: u8, out: &mut Vec<u8>);
}

/// Which kind of record a key has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// `00`
    Counter,
    /// `01`
    Buffer,
}

/// A row of LIST: `klen 1, kind 1, ttl_type 1, expires_at u64, bytes_used N`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed<'a> {
    /// The record's key.
    pub key: &'a [u8],
    /// What the record is.
    pub kind: RecordKind,
    /// The unit of its time to live.
    pub unit: Unit,
    /// When it expires, in Unix nanoseconds.
    pub expires_at_ns: u64,
    /// Bytes that it uses.
    pub bytes_used: u64,
}

impl ListingRow for Listed<'_> {
    fn fixed_bytes(size: ValueSize) -> usize {
        1 + 1 + 1 + 8 + size.bytes()
    }

    fn key(&self) -> &[u8] {
        self.key
    }

    fn append_fixed(&self, size: ValueSize, key_len: u8, out: &mut Vec<u8>) {
        out.extend_from_slice(&[key_len, self.kind as u8, self.unit.byte()]);
        out.extend_from_slice(&self.expires_at_ns.to_le_bytes());
        put(out, size, self.bytes_used);
    }
}

/// A row of STATS: `klen 1, 4 x u64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyStat<'a> {
    /// The record's key.
    pub key: &'a [u8],
    /// How often it was read and written.
    pub stat: Stat,
}

impl ListingRow for KeyStat<'_> {
    fn fixed_bytes(_: ValueSize) -> usize {
        1 + 4 * 8
    }

    fn key(&self) -> &[u8] {
        self.key
    }

    fn append_fixed(&self, _: ValueSize, key_len: u8, out: &mut Vec<u8>) {
        out.push(key_len);
        self.stat.append(out);
    }
}

/// A row of CONNECTIONS: the record alone.
impl ListingRow for ConnectionRecord {
    fn fixed_bytes(_: ValueSize) -> usize {
        CONNECTION_BYTES
    }

    fn key(&self) -> &[u8] {
        &[]
    }

    fn append_fixed(&self, _: ValueSize, _: u8, out: &mut Vec<u8>) {
        self.append(out);
    }
}

/// A row of CHANNELS: `clen 1, read u64, write u64, connections u64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelRow<'a> {
    /// The channel's name.
    pub channel: &'a [u8],
    /// Bytes of payloads that its subscribers got.
    pub read_bytes: u64,
    /// Bytes of payloads that were published to it.
    pub written_bytes: u64,
    /// Connections that are subscribed to it.
    pub connections: u64,
}

impl ListingRow for ChannelRow<'_> {
    fn fixed_bytes(_: ValueSize) -> usize {
        1 + 3 * 8
    }

    fn key(&self) -> &[u8] {
        self.channel
    }

    fn append_fixed(&self, _: ValueSize, key_len: u8, out: &mut Vec<u8>) {
        out.push(key_len);
        for figure in [self.read_bytes, self.written_bytes, self.connections] {
            out.extend_from_slice(&figure.to_le_bytes());
        }
    }
}

/// How many fragments rows with keys of these lengths make. The rows that are written afterwards
/// must have the same lengths in the same order.
pub fn count<R: ListingRow>(size: ValueSize, key_lens: impl IntoIterator<Item = usize>) -> u64 {
    let fixed = R::fixed_bytes(size);
    let mut fragments = 0;
    // Full at first, so that the first row opens the first fragment.
    let mut used = FRAGMENT_BYTES_MAX;
    for key_len in key_lens {
        let bytes = fixed + key_len.min(KEY_BYTES_MAX);
        if used + bytes > FRAGMENT_BYTES_MAX {
            fragments += 1;
            used = 0;
        }
        used += bytes;
    }
    fragments
}

/// The beginning of such an answer: `01 | fragments u64`.
pub fn head(out: &mut Vec<u8>, fragments: u64) {
    out.push(SUCCESS);
    out.extend_from_slice(&fragments.to_le_bytes());
}

/// What remains to be written of such an answer.
pub struct Fragments<I: Iterator> {
    size: ValueSize,
    rows: Peekable<I>,
    /// Fragments that were written.
    written: u64,
    /// The keys of the fragment that is being written; kept for its room.
    keys: Vec<u8>,
}

impl<I: Iterator<Item: ListingRow>> Fragments<I> {
    /// All of it.
    pub fn new(size: ValueSize, rows: impl IntoIterator<IntoIter = I>) -> Self {
        Self { size, rows: rows.into_iter().peekable(), written: 0, keys: Vec::new() }
    }

    /// Appends the next fragment, at most [`FRAGMENT_WHOLE_BYTES_MAX`] bytes. `false` says that
    /// there was none left.
    pub fn append(&mut self, out: &mut Vec<u8>) -> bool {
        if self.rows.peek().is_none() {
            return false;
        }
        self.written += 1;
        out.extend_from_slice(&self.written.to_le_bytes());
        let count_at = out.len();
        out.extend_from_slice(&[0; 8]);
        let start = out.len();
        let fixed = I::Item::fixed_bytes(self.size);
        let mut rows: u64 = 0;
        loop {
            let used = out.len() - start + self.keys.len();
            let fits = |row: &I::Item| used + fixed + cut(row.key()).len() <= FRAGMENT_BYTES_MAX;
            let Some(row) = self.rows.next_if(fits) else { break };
            let key = cut(row.key());
            // It was cut to what one byte can say.
            row.append_fixed(self.size, key.len() as u8, out);
            self.keys.extend_from_slice(key);
            rows += 1;
        }
        out[count_at..start].copy_from_slice(&rows.to_le_bytes());
        out.append(&mut self.keys);
        true
    }
}

fn cut(key: &[u8]) -> &[u8] {
    &key[..key.len().min(KEY_BYTES_MAX)]
}
