//! Replies as a client hands them out: owned, and put together from their pieces.

use tidegate_wire::throttr::ask::{BrokenReply, Expected, Fragment, Piece};
use tidegate_wire::throttr::figures::{ConnectionRecord, Info};
use tidegate_wire::throttr::fragments::{ChannelRow, KeyStat, Listed, RecordKind};
use tidegate_wire::throttr::reply::{ChannelSubscriber as Subscriber, Stat};
use tidegate_wire::throttr::{ID_BYTES, RequestKind as Kind, Unit};

/// What answers a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// To INSERT, UPDATE, PURGE, SET, SUBSCRIBE, UNSUBSCRIBE and PUBLISH; and `false` to QUERY,
    /// GET, STAT, CONNECTION and CHANNEL where there is no such thing, and to an EVENT that was not
    /// executed.
    Status(bool),
    /// To QUERY.
    Counter(CounterState),
    /// To GET.
    Buffer(Buffer),
    /// To CONSUME.
    Consumed(ConsumeResult),
    /// To CONSUME MANY.
    ConsumedMany(ConsumeManyResult),
    /// To LIST.
    List(Vec<ListedRecord>),
    /// To INFO.
    Info(Box<Info>),
    /// To STAT.
    Stat(Stat),
    /// To STATS.
    Stats(Vec<RecordStats>),
    /// To CONNECTIONS.
    Connections(Vec<ConnectionRecord>),
    /// To CONNECTION.
    Connection(Box<ConnectionRecord>),
    /// To CHANNELS.
    Channels(Vec<Channel>),
    /// To CHANNEL.
    Channel(Vec<Subscriber>),
    /// To WHOAMI.
    Whoami([u8; ID_BYTES]),
    /// A list that has more rows than [`rows_max`](super::Settings::rows_max).
    TooManyRows,
}

/// A counter as QUERY shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterState {
    /// What it holds.
    pub quota: u64,
    /// The unit of its time to live.
    pub unit: Unit,
    /// How many whole units remain.
    pub left: u64,
}

/// A buffer as GET shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// What it holds.
    pub value: Vec<u8>,
    /// The unit of its time to live.
    pub unit: Unit,
    /// How many whole units remain.
    pub left: u64,
}

/// What became of a CONSUME.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConsumeResult {
    /// Whether the cost was taken.
    pub taken: bool,
    /// What the counter holds now.
    pub remaining: u64,
    /// How many whole units remain of its life.
    pub left: u64,
}

/// What became of a CONSUME MANY.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumeManyResult {
    /// Whether all costs were taken; if not, none was.
    pub taken: bool,
    /// The counters, in the order of the takes.
    pub counters: Vec<Left>,
}

/// What is left in one of the counters of a CONSUME MANY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// What it holds now.
    pub remaining: u64,
    /// How many whole units remain of its life.
    pub left: u64,
}

/// A record as LIST shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedRecord {
    /// Its key.
    pub key: Vec<u8>,
    /// What it is.
    pub kind: RecordKind,
    /// The unit of its time to live.
    pub unit: Unit,
    /// When it expires, in Unix nanoseconds.
    pub expires_at_ns: u64,
    /// Bytes that it uses.
    pub bytes_used: u64,
}

/// A record as STATS shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordStats {
    /// Its key.
    pub key: Vec<u8>,
    /// How often it was read and written.
    pub stat: Stat,
}

/// A channel as CHANNELS shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Channel {
    /// Its name.
    pub name: Vec<u8>,
    /// Bytes of payloads that its subscribers got.
    pub read_bytes: u64,
    /// Bytes of payloads that were published to it.
    pub written_bytes: u64,
    /// Connections that are subscribed to it.
    pub connections: u64,
}

/// Adds a piece to the reply that is being put together. Of a list that grows too long nothing is
/// kept, and its remaining pieces are only counted off.
pub(super) fn add(
    partial: &mut Option<Reply>,
    piece: Piece<'_>,
    expected: Expected,
    rows_max: usize,
) -> Result<(), BrokenReply> {
    match piece {
        Piece::Executed => {}
        Piece::Fragment(fragment) => add_rows(partial, fragment, rows_max)?,
        Piece::Subscriber(subscriber) => match partial {
            Some(Reply::Channel(subscribers)) if subscribers.len() < rows_max => {
                subscribers.push(subscriber);
            }
            _ => *partial = Some(Reply::TooManyRows),
        },
        piece => *partial = Some(begun(piece, expected.kind())),
    }
    Ok(())
}

/// The reply that begins with this piece, and mostly ends with it.
fn begun(piece: Piece<'_>, kind: Kind) -> Reply {
    match piece {
        Piece::Counter { quota, unit, left } => Reply::Counter(CounterState { quota, unit, left }),
        Piece::Buffer { unit, left, value } => {
            Reply::Buffer(Buffer { value: value.to_vec(), unit, left })
        }
        Piece::Consumed { taken, remaining, left } => {
            Reply::Consumed(ConsumeResult { taken, remaining, left })
        }
        Piece::ConsumedMany { taken, takes } => {
            let counters = takes.iter().map(|(remaining, left)| Left { remaining, left }).collect();
            Reply::ConsumedMany(ConsumeManyResult { taken, counters })
        }
        Piece::Stat(stat) => Reply::Stat(stat),
        Piece::Info(body) => Reply::Info(Box::new(Info::read(body))),
        Piece::Connection(body) => Reply::Connection(Box::new(ConnectionRecord::read(body))),
        Piece::Whoami(id) => Reply::Whoami(id),
        Piece::Subscribers(_) => Reply::Channel(Vec::new()),
        Piece::Fragments(_) => match kind {
            Kind::List => Reply::List(Vec::new()),
            Kind::Stats => Reply::Stats(Vec::new()),
            Kind::Channels => Reply::Channels(Vec::new()),
            _ => Reply::Connections(Vec::new()),
        },
        Piece::Status(success) => Reply::Status(success),
        // These never begin a reply; `add` has taken them already.
        Piece::Executed | Piece::Fragment(_) | Piece::Subscriber(_) => Reply::Status(true),
    }
}

fn add_rows(
    partial: &mut Option<Reply>,
    fragment: Fragment<'_>,
    rows_max: usize,
) -> Result<(), BrokenReply> {
    let fits = match partial {
        Some(Reply::List(records)) => {
            extend(records, rows_max, fragment.rows(), |row: Listed<'_>| ListedRecord {
                key: row.key.to_vec(),
                kind: row.kind,
                unit: row.unit,
                expires_at_ns: row.expires_at_ns,
                bytes_used: row.bytes_used,
            })?
        }
        Some(Reply::Stats(stats)) => {
            extend(stats, rows_max, fragment.rows(), |row: KeyStat<'_>| RecordStats {
                key: row.key.to_vec(),
                stat: row.stat,
            })?
        }
        Some(Reply::Channels(channels)) => {
            extend(channels, rows_max, fragment.rows(), |row: ChannelRow<'_>| Channel {
                name: row.channel.to_vec(),
                read_bytes: row.read_bytes,
                written_bytes: row.written_bytes,
                connections: row.connections,
            })?
        }
        Some(Reply::Connections(records)) => {
            extend(records, rows_max, fragment.rows(), |row: ConnectionRecord| row)?
        }
        _ => false,
    };
    if !fits {
        *partial = Some(Reply::TooManyRows);
    }
    Ok(())
}

/// Whether all rows of a fragment found their place in the list.
fn extend<R, T>(
    list: &mut Vec<T>,
    rows_max: usize,
    rows: impl Iterator<Item = Option<R>>,
    owned: impl Fn(R) -> T,
) -> Result<bool, BrokenReply> {
    for row in rows {
        if list.len() >= rows_max {
            return Ok(false);
        }
        list.push(owned(row.ok_or(BrokenReply::Fragment)?));
    }
    Ok(true)
}
