//! What INFO, CONNECTION and CONNECTIONS tell, in the order in which the protocol tells it.
//!
//! Counts by kind of request are given in arrays by [`RequestKind::index`]; the two orders of the
//! wire are known only here. CONSUME, CONSUME MANY and EVENT have no place in either.

use super::{ID_BYTES, RequestKind};

/// Bytes of a connection's record.
pub const CONNECTION_BYTES: usize = 237;

/// Bytes of an INFO behind its status.
pub const INFO_BYTES: usize = 432;

/// Bytes of an address in a connection's record: ASCII, padded with zeroes, cut.
pub const ADDRESS_BYTES: usize = 16;

/// Bytes of the version in an INFO: ASCII, padded with zeroes, cut.
pub const VERSION_BYTES: usize = 16;

/// The order of the counts in a connection's record.
const CONNECTION_ORDER: [RequestKind; 18] = [
    RequestKind::Insert,
    RequestKind::Set,
    RequestKind::Query,
    RequestKind::Get,
    RequestKind::Update,
    RequestKind::Purge,
    RequestKind::List,
    RequestKind::Info,
    RequestKind::Stat,
    RequestKind::Stats,
    RequestKind::Publish,
    RequestKind::Subscribe,
    RequestKind::Unsubscribe,
    RequestKind::Connections,
    RequestKind::Connection,
    RequestKind::Channels,
    RequestKind::Channel,
    RequestKind::Whoami,
];

/// The order of the counts in an INFO.
const INFO_ORDER: [RequestKind; 18] = [
    RequestKind::Insert,
    RequestKind::Query,
    RequestKind::Update,
    RequestKind::Purge,
    RequestKind::Get,
    RequestKind::Set,
    RequestKind::List,
    RequestKind::Info,
    RequestKind::Stats,
    RequestKind::Stat,
    RequestKind::Subscribe,
    RequestKind::Unsubscribe,
    RequestKind::Publish,
    RequestKind::Channel,
    RequestKind::Channels,
    RequestKind::Whoami,
    RequestKind::Connection,
    RequestKind::Connections,
];

/// What a connection came over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// `00`
    #[default]
    Tcp,
    /// `01`
    Unix,
}

/// One connection, as CONNECTION and CONNECTIONS tell it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionRecord {
    /// Its id.
    pub id: [u8; ID_BYTES],
    /// What it came over.
    pub transport: Transport,
    /// 4 or 6.
    pub ip_version: u8,
    /// The peer's address; [`padded`] makes one from a text.
    pub address: [u8; ADDRESS_BYTES],
    /// The peer's port.
    pub port: u16,
    /// When it was accepted, in Unix nanoseconds.
    pub connected_at_ns: u64,
    /// Bytes that were read from it.
    pub read_bytes: u64,
    /// Bytes that were written to it.
    pub written_bytes: u64,
    /// Bytes of payloads that it published.
    pub published_bytes: u64,
    /// Bytes of payloads that were pushed to it.
    pub received_bytes: u64,
    /// Bytes that its buffers have room for.
    pub allocated_bytes: u64,
    /// Bytes of its buffers that are in use.
    pub consumed_bytes: u64,
    /// Its requests, by [`RequestKind::index`].
    pub requests: [u64; RequestKind::COUNT],
}

impl ConnectionRecord {
    /// Appends the record's bytes.
    pub fn append(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.id);
        // The type of a connection: a client. There is no other.
        out.push(0);
        out.push(self.transport as u8);
        out.push(self.ip_version);
        out.extend_from_slice(&self.address);
        out.extend_from_slice(&self.port.to_le_bytes());
        let figures = [
            self.connected_at_ns,
            self.read_bytes,
            self.written_bytes,
            self.published_bytes,
            self.received_bytes,
            self.allocated_bytes,
            self.consumed_bytes,
        ];
        let counts = CONNECTION_ORDER.map(|kind| self.requests[kind.index()]);
        append_all(out, &figures);
        append_all(out, &counts);
    }

    /// Reads a record. A transport that is unknown reads as TCP.
    #[must_use]
    pub fn read(bytes: &[u8; CONNECTION_BYTES]) -> Self {
        let mut rest = Fields(bytes);
        let id = rest.bytes();
        let [_client, transport, ip_version] = rest.bytes();
        let mut record = Self {
            id,
            transport: if transport == 1 { Transport::Unix } else { Transport::Tcp },
            ip_version,
            address: rest.bytes(),
            port: u16::from_le_bytes(rest.bytes()),
            connected_at_ns: rest.number(),
            read_bytes: rest.number(),
            written_bytes: rest.number(),
            published_bytes: rest.number(),
            received_bytes: rest.number(),
            allocated_bytes: rest.number(),
            consumed_bytes: rest.number(),
            requests: [0; RequestKind::COUNT],
        };
        for kind in CONNECTION_ORDER {
            record.requests[kind.index()] = rest.number();
        }
        record
    }
}

/// A count since the start, and over the last full minute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CountRate {
    /// Since the start.
    pub total: u64,
    /// Over the last full minute.
    pub per_minute: u64,
}

/// The server's figures, as INFO tells them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Info {
    /// The server's clock, in Unix seconds.
    pub now_s: u64,
    /// All requests.
    pub requests: CountRate,
    /// The requests of each kind, by [`RequestKind::index`].
    pub kinds: [CountRate; RequestKind::COUNT],
    /// Bytes that were read.
    pub read_bytes: CountRate,
    /// Bytes that were written.
    pub written_bytes: CountRate,
    /// Records.
    pub keys: u64,
    /// Records that are counters.
    pub counters: u64,
    /// Records that are buffers.
    pub buffers: u64,
    /// Bytes in counters.
    pub counter_bytes: u64,
    /// Bytes in buffers.
    pub buffer_bytes: u64,
    /// Subscriptions.
    pub subscriptions: u64,
    /// Channels that have a subscriber.
    pub channels: u64,
    /// When the server started, in Unix nanoseconds.
    pub started_at_ns: u64,
    /// Connections.
    pub connections: u64,
    /// The server's version; [`padded`] makes one from a text.
    pub version: [u8; VERSION_BYTES],
}

impl Info {
    pub(super) fn append(&self, out: &mut Vec<u8>) {
        append_all(out, &[self.now_s, self.requests.total, self.requests.per_minute]);
        for kind in INFO_ORDER {
            let CountRate { total, per_minute } = self.kinds[kind.index()];
            append_all(out, &[total, per_minute]);
        }
        append_all(
            out,
            &[
                self.read_bytes.total,
                self.read_bytes.per_minute,
                self.written_bytes.total,
                self.written_bytes.per_minute,
                self.keys,
                self.counters,
                self.buffers,
                self.counter_bytes,
                self.buffer_bytes,
                self.subscriptions,
                self.channels,
                self.started_at_ns,
                self.connections,
            ],
        );
        out.extend_from_slice(&self.version);
    }

    /// Reads what stands behind the status of an INFO.
    #[must_use]
    pub fn read(bytes: &[u8; INFO_BYTES]) -> Self {
        let mut rest = Fields(bytes);
        let mut info = Self { now_s: rest.number(), requests: rest.rate(), ..Self::default() };
        for kind in INFO_ORDER {
            info.kinds[kind.index()] = rest.rate();
        }
        info.read_bytes = rest.rate();
        info.written_bytes = rest.rate();
        info.keys = rest.number();
        info.counters = rest.number();
        info.buffers = rest.number();
        info.counter_bytes = rest.number();
        info.buffer_bytes = rest.number();
        info.subscriptions = rest.number();
        info.channels = rest.number();
        info.started_at_ns = rest.number();
        info.connections = rest.number();
        info.version = rest.bytes();
        info
    }
}

/// The fields of a record, taken one behind the other. Taking more than there are gives
/// zeroes; the lengths are fixed, and a test reads every field back.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn bytes<const LEN: usize>(&mut self) -> [u8; LEN] {
        let (field, rest) = self.0.split_first_chunk().unwrap_or((&[0; LEN], &[]));
        self.0 = rest;
        *field
    }

    fn number(&mut self) -> u64 {
        u64::from_le_bytes(self.bytes())
    }

    fn rate(&mut self) -> CountRate {
        CountRate { total: self.number(), per_minute: self.number() }
    }
}

/// A text as so many bytes: cut, or padded with zeroes.
#[must_use]
pub fn padded<const LEN: usize>(text: &str) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    let len = text.len().min(LEN);
    bytes[..len].copy_from_slice(&text.as_bytes()[..len]);
    bytes
}

fn append_all(out: &mut Vec<u8>, numbers: &[u64]) {
    for number in numbers {
        out.extend_from_slice(&number.to_le_bytes());
    }
}
