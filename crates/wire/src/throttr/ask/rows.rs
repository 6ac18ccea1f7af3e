//! The rows of LIST, STATS, CONNECTIONS and CHANNELS as a client reads them.

use super::super::figures::{CONNECTION_BYTES, ConnectionRecord};
use super::super::fragments::{ChannelRow, KeyStat, Listed, ListingRow, RecordKind};
use super::super::reply::{ChannelSubscriber, SUBSCRIBER_BYTES, Stat};
use super::super::value::number_of;
use super::super::{RequestKind, Unit, ValueSize};

/// One fragment of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment<'a> {
    kind: RequestKind,
    size: ValueSize,
    fixed: &'a [u8],
    keys: &'a [u8],
}

/// A row that can be read from a fragment.
pub trait ReadRow<'a>: ListingRow + Sized {
    /// The kind of request whose answer has such rows.
    const KIND: RequestKind;

    /// Reads a row from its fixed part and its key. `None` where a byte is unknown.
    fn read(size: ValueSize, fixed: &[u8], key: &'a [u8]) -> Option<Self>;
}

impl<'a> Fragment<'a> {
    pub(super) const fn new(
        kind: RequestKind,
        size: ValueSize,
        fixed: &'a [u8],
        keys: &'a [u8],
    ) -> Self {
        Self { kind, size, fixed, keys }
    }

    /// The rows, in order. `None` is a row that this client cannot read, or all of them where rows
    /// of another kind are asked for.
    pub fn rows<R: ReadRow<'a>>(&self) -> impl Iterator<Item = Option<R>> + use<'a, R> {
        let Self { kind, size, fixed, keys } = *self;
        let each = fixed_bytes(kind, size);
        let mut keys = keys;
        fixed.chunks_exact(each).zip(key_lens(kind, fixed, each)).map(move |(fixed, key_len)| {
            let (key, rest) = keys.split_at_checked(key_len)?;
            keys = rest;
            if kind == R::KIND { R::read(size, fixed, key) } else { None }
        })
    }
}

/// Bytes of a row's fixed part.
pub(super) fn fixed_bytes(kind: RequestKind, size: ValueSize) -> usize {
    match kind {
        RequestKind::List => Listed::fixed_bytes(size),
        RequestKind::Stats => KeyStat::fixed_bytes(size),
        RequestKind::Channels => ChannelRow::fixed_bytes(size),
        _ => ConnectionRecord::fixed_bytes(size),
    }
}

/// The lengths of the keys behind the fixed parts.
pub(super) fn key_lens(
    kind: RequestKind,
    fixed: &[u8],
    each: usize,
) -> impl Iterator<Item = usize> + use<'_> {
    let keyed = matches!(kind, RequestKind::List | RequestKind::Stats | RequestKind::Channels);
    fixed.chunks_exact(each).map(move |fixed| if keyed { usize::from(fixed[0]) } else { 0 })
}

impl<'a> ReadRow<'a> for Listed<'a> {
    const KIND: RequestKind = RequestKind::List;

    fn read(_: ValueSize, fixed: &[u8], key: &'a [u8]) -> Option<Self> {
        let kind = match fixed[1] {
            0 => RecordKind::Counter,
            1 => RecordKind::Buffer,
            _ => return None,
        };
        let unit = Unit::from_byte(fixed[2])?;
        let bytes_used = number_of(&fixed[11..]);
        Some(Self { key, kind, unit, expires_at_ns: u64_at(fixed, 3), bytes_used })
    }
}

impl<'a> ReadRow<'a> for KeyStat<'a> {
    const KIND: RequestKind = RequestKind::Stats;

    fn read(_: ValueSize, fixed: &[u8], key: &'a [u8]) -> Option<Self> {
        Some(Self { key, stat: stat(fixed[1..].first_chunk()?) })
    }
}

impl ReadRow<'_> for ConnectionRecord {
    const KIND: RequestKind = RequestKind::Connections;

    fn read(_: ValueSize, fixed: &[u8], _: &[u8]) -> Option<Self> {
        let fixed: &[u8; CONNECTION_BYTES] = fixed.first_chunk()?;
        Some(Self::read(fixed))
    }
}

impl<'a> ReadRow<'a> for ChannelRow<'a> {
    const KIND: RequestKind = RequestKind::Channels;

    fn read(_: ValueSize, fixed: &[u8], channel: &'a [u8]) -> Option<Self> {
        Some(Self {
            channel,
            read_bytes: u64_at(fixed, 1),
            written_bytes: u64_at(fixed, 9),
            connections: u64_at(fixed, 17),
        })
    }
}

pub(super) fn stat(bytes: &[u8; 32]) -> Stat {
    Stat {
        reads_per_minute: u64_at(bytes, 0),
        writes_per_minute: u64_at(bytes, 8),
        reads: u64_at(bytes, 16),
        writes: u64_at(bytes, 24),
    }
}

pub(super) fn subscriber(bytes: &[u8; SUBSCRIBER_BYTES]) -> ChannelSubscriber {
    let mut id = [0; 16];
    id.copy_from_slice(&bytes[..16]);
    ChannelSubscriber {
        id,
        subscribed_at_ns: u64_at(bytes, 16),
        read_bytes: u64_at(bytes, 24),
        written_bytes: u64_at(bytes, 32),
    }
}

/// The eight bytes from `at` on, which must be there.
pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    number_of(&bytes[at..at + 8])
}
