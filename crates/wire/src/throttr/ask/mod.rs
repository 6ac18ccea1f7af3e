//! The client's side: reading replies, a piece at a time.
//!
//! A reply does not say what it answers, so its reader is told what was asked. Short replies are
//! one piece. The answers that list come as a head and one piece per fragment, so that a client
//! needs no more memory than a fragment, and may keep as little of a long list as it likes. Between
//! two replies a server may push an EVENT; its first byte is no status.

pub mod rows;

pub use rows::{Fragment, ReadRow};

use super::figures::{CONNECTION_BYTES, INFO_BYTES};
use super::kind::type_byte;
use super::reply::{ChannelSubscriber, FAILURE, SUBSCRIBER_BYTES, SUCCESS, Stat};
use super::value::number_of;
use super::{Front, ID_BYTES, KEY_BYTES_MAX, Request, RequestKind, Unit, ValueSize, parse};
use rows::{stat, subscriber, u64_at};

/// The most bytes of fixed parts in a fragment that is read. Servers of this protocol stay far
/// below it.
pub const FRAGMENT_READ_BYTES_MAX: usize = 64 * 1024;

/// The most bytes of something that [`ReplyReader::next`] calls incomplete, where values and
/// payloads may have `value_max` bytes.
#[must_use]
pub const fn reply_bytes_max(size: ValueSize, value_max: usize) -> usize {
    let with_value = (2 + 2 * size.bytes() + KEY_BYTES_MAX).saturating_add(value_max);
    // A fixed part has at least 12 bytes, and may declare a key of 255.
    let fragment = 16 + FRAGMENT_READ_BYTES_MAX + FRAGMENT_READ_BYTES_MAX / 12 * KEY_BYTES_MAX;
    if with_value > fragment { with_value } else { fragment }
}

/// What a request will be answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// The kind of the request, or of an EVENT's payload.
    kind: RequestKind,
    /// The takes of a CONSUME MANY.
    takes: usize,
    /// Whether the request is the payload of an EVENT, so that a status comes first.
    in_event: bool,
}

impl Expected {
    /// What answers this request, written at this value size.
    #[must_use]
    pub fn of(request: &Request<'_>, size: ValueSize) -> Self {
        match *request {
            Request::Event { payload, .. } => match parse(payload, size, payload.len()) {
                Front::Request { request, .. } => {
                    Self { in_event: true, ..Self::plainly(&request) }
                }
                // A server closes the connection on such an EVENT.
                Front::Incomplete | Front::Broken(_) => Self::plainly(request),
            },
            _ => Self::plainly(request),
        }
    }

    fn plainly(request: &Request<'_>) -> Self {
        let takes = match request {
            Request::ConsumeMany { takes } => takes.len(),
            _ => 0,
        };
        Self { kind: request.kind(), takes, in_event: false }
    }

    /// The kind of request that is answered; for an EVENT, the kind of its payload.
    #[must_use]
    pub const fn kind(&self) -> RequestKind {
        self.kind
    }

    /// Whether it is the payload of an EVENT.
    #[must_use]
    pub const fn in_event(&self) -> bool {
        self.in_event
    }
}

/// A piece of a reply. Each borrows from the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// A status alone: the answer to a request that has no other, or that there is no such thing.
    Status(bool),
    /// To QUERY.
    Counter {
        /// What the counter holds.
        quota: u64,
        /// The unit of its time to live.
        unit: Unit,
        /// How many whole units remain.
        left: u64,
    },
    /// To GET.
    Buffer {
        /// The unit of its time to live.
        unit: Unit,
        /// How many whole units remain.
        left: u64,
        /// What it holds.
        value: &'a [u8],
    },
    /// To CONSUME.
    Consumed {
        /// Whether the cost was taken.
        taken: bool,
        /// What the counter holds now.
        remaining: u64,
        /// How many whole units remain of its life.
        left: u64,
    },
    /// To CONSUME MANY.
    ConsumedMany {
        /// Whether all costs were taken; if not, none was.
        taken: bool,
        /// What each counter holds and how long it lives, as in a CONSUME.
        takes: TakesLeft<'a>,
    },
    /// To STAT.
    Stat(Stat),
    /// To INFO; [`Info::read`](super::figures::Info::read) reads it.
    Info(&'a [u8; INFO_BYTES]),
    /// To CONNECTION; [`ConnectionRecord::read`](super::figures::ConnectionRecord::read) reads it.
    Connection(&'a [u8; CONNECTION_BYTES]),
    /// To WHOAMI.
    Whoami([u8; ID_BYTES]),
    /// The head of a LIST, STATS, CONNECTIONS or CHANNELS: so many fragments follow.
    Fragments(u64),
    /// One of those fragments.
    Fragment(Fragment<'a>),
    /// The head of a CHANNEL: so many subscribers follow.
    Subscribers(u64),
    /// One of those subscribers.
    Subscriber(ChannelSubscriber),
    /// The EVENT was taken: the reply to its payload follows.
    Executed,
}

/// What is left in the counters of a CONSUME MANY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakesLeft<'a> {
    bytes: &'a [u8],
    size: ValueSize,
}

impl<'a> TakesLeft<'a> {
    /// What each counter holds now, and how many whole units remain of its life.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (u64, u64)> + use<'a> {
        let n = self.size.bytes();
        self.bytes
            .chunks_exact(2 * n)
            .map(move |each| (number_of(&each[..n]), number_of(&each[n..])))
    }
}

/// What the front of a buffer holds for a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incoming<'a> {
    /// A piece of the reply that is expected.
    Piece {
        /// The piece.
        piece: Piece<'a>,
        /// How many bytes of the buffer it is.
        bytes: usize,
        /// Whether the reply ends with it.
        last: bool,
    },
    /// A pushed EVENT.
    Event {
        /// The channel's name.
        channel: &'a [u8],
        /// What was published.
        payload: &'a [u8],
        /// How many bytes of the buffer it is.
        bytes: usize,
    },
    /// The beginning of something, or nothing: read more.
    Incomplete,
    /// No reply. Nothing behind it can be understood: close.
    Broken(BrokenReply),
}

/// Why a stream of replies cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrokenReply {
    /// Something came that was not asked for, and it is no EVENT.
    Unasked(u8),
    /// A status that is neither success nor failure, or a failure of what cannot fail.
    Status(u8),
    /// A unit of time that does not exist.
    Unit(u8),
    /// A value or payload that is longer than this client allows.
    ValueTooLong(u64),
    /// A fragment that is longer than any server's, or not the next one.
    Fragment,
}

impl std::fmt::Display for BrokenReply {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unasked(byte) => write!(out, "byte {byte:#04x} arrived without a request"),
            Self::Status(byte) => write!(out, "{byte:#04x} is not the status of such a reply"),
            Self::Unit(byte) => write!(out, "{byte:#04x} is not a unit of time"),
            Self::ValueTooLong(bytes) => write!(out, "a value of {bytes} bytes is too long"),
            Self::Fragment => write!(out, "a list came in fragments that do not fit together"),
        }
    }
}

impl std::error::Error for BrokenReply {}

/// Reads replies in order, and remembers how far it came in one that has several pieces.
#[derive(Clone, Copy, Debug)]
pub struct ReplyReader {
    size: ValueSize,
    value_max: usize,
    inside: Inside,
}

/// Where in a reply the reader stands.
#[derive(Clone, Copy, Debug)]
enum Inside {
    /// Between two replies.
    Nothing,
    /// Behind an EVENT's status.
    Event,
    Fragments {
        read: u64,
        of: u64,
    },
    Subscribers {
        left: u64,
    },
}

/// A piece, its length, and where the reader stands behind it.
type Read<'a> = Result<Option<(Piece<'a>, usize, Inside)>, BrokenReply>;

impl ReplyReader {
    /// A reader at the beginning of a stream, for values and payloads of up to `value_max` bytes.
    #[must_use]
    pub const fn new(size: ValueSize, value_max: usize) -> Self {
        Self { size, value_max, inside: Inside::Nothing }
    }

    /// Reads the front of `bytes`; `expected` is the oldest request whose reply has not ended.
    pub fn next<'a>(&mut self, bytes: &'a [u8], expected: Option<Expected>) -> Incoming<'a> {
        let Some(&first) = bytes.first() else { return Incoming::Incomplete };
        let read = match (self.inside, expected) {
            // A status cannot be mistaken for it, so it may also stand behind that of an EVENT
            // whose payload published to this very connection.
            (Inside::Nothing | Inside::Event, _) if first == type_byte::EVENT => {
                return self.event(bytes);
            }
            (_, None) => Err(BrokenReply::Unasked(first)),
            (Inside::Nothing, Some(expected)) if expected.in_event => match first {
                SUCCESS => Ok(Some((Piece::Executed, 1, Inside::Event))),
                FAILURE => Ok(Some((Piece::Status(false), 1, Inside::Nothing))),
                status => Err(BrokenReply::Status(status)),
            },
            (Inside::Nothing | Inside::Event, Some(expected)) => self.reply(bytes, expected),
            (Inside::Fragments { read, of }, Some(Expected { kind, .. })) => {
                self.fragment(bytes, kind, read, of)
            }
            (Inside::Subscribers { left }, Some(_)) => Ok(next_subscriber(bytes, left)),
        };
        match read {
            Ok(Some((piece, bytes, inside))) => {
                self.inside = inside;
                Incoming::Piece { piece, bytes, last: matches!(inside, Inside::Nothing) }
            }
            Ok(None) => Incoming::Incomplete,
            Err(broken) => Incoming::Broken(broken),
        }
    }

    fn event<'a>(&self, bytes: &'a [u8]) -> Incoming<'a> {
        let n = self.size.bytes();
        let Some((header, rest)) = bytes.split_at_checked(2 + n) else {
            return Incoming::Incomplete;
        };
        let payload_len = match self.value_len(&header[2..]) {
            Ok(len) => len,
            Err(broken) => return Incoming::Broken(broken),
        };
        let channel_len = usize::from(header[1]);
        match rest.get(..channel_len + payload_len).map(|both| both.split_at(channel_len)) {
            Some((channel, payload)) => {
                Incoming::Event { channel, payload, bytes: 2 + n + channel_len + payload_len }
            }
            None => Incoming::Incomplete,
        }
    }

    /// Reads a reply from its status on: the whole of it, or its head.
    fn reply<'a>(&self, bytes: &'a [u8], expected: Expected) -> Read<'a> {
        let success = match bytes[0] {
            SUCCESS => true,
            FAILURE => false,
            status => return Err(BrokenReply::Status(status)),
        };
        let whole = |piece: Piece<'a>, len: usize| Ok(Some((piece, 1 + len, Inside::Nothing)));
        let body = &bytes[1..];
        let n = self.size.bytes();
        match expected.kind {
            RequestKind::Consume => {
                let Some(body) = body.get(..2 * n) else { return Ok(None) };
                let (remaining, left) = (number_of(&body[..n]), number_of(&body[n..]));
                whole(Piece::Consumed { taken: success, remaining, left }, 2 * n)
            }
            RequestKind::ConsumeMany => {
                let len = 2 * n * expected.takes;
                let Some(bytes) = body.get(..len) else { return Ok(None) };
                let takes = TakesLeft { bytes, size: self.size };
                whole(Piece::ConsumedMany { taken: success, takes }, len)
            }
            kind if never_fails(kind) && !success => Err(BrokenReply::Status(FAILURE)),
            _ if !success => whole(Piece::Status(false), 0),
            RequestKind::Query => match body.get(..1 + 2 * n) {
                Some(body) => {
                    let (quota, left) = (number_of(&body[..n]), number_of(&body[1 + n..]));
                    whole(Piece::Counter { quota, unit: unit(body[n])?, left }, 1 + 2 * n)
                }
                None => Ok(None),
            },
            RequestKind::Get => self.buffer(body),
            kind => fixed(kind, body),
        }
    }

    /// `ttl_type 1 | ttl N | vlen N | value`
    fn buffer<'a>(&self, body: &'a [u8]) -> Read<'a> {
        let n = self.size.bytes();
        let Some((header, rest)) = body.split_at_checked(1 + 2 * n) else { return Ok(None) };
        let unit = unit(header[0])?;
        let left = number_of(&header[1..1 + n]);
        let len = self.value_len(&header[1 + n..])?;
        let Some(value) = rest.get(..len) else { return Ok(None) };
        Ok(Some((Piece::Buffer { unit, left, value }, 1 + header.len() + len, Inside::Nothing)))
    }

    fn value_len(&self, bytes: &[u8]) -> Result<usize, BrokenReply> {
        let declared = number_of(bytes);
        match usize::try_from(declared) {
            Ok(len) if len <= self.value_max && len <= usize::MAX / 2 => Ok(len),
            _ => Err(BrokenReply::ValueTooLong(declared)),
        }
    }

    /// `index u64 | n u64 | n fixed parts | n keys`
    fn fragment<'a>(&self, bytes: &'a [u8], kind: RequestKind, read: u64, of: u64) -> Read<'a> {
        let Some((header, rest)) = bytes.split_at_checked(16) else { return Ok(None) };
        if u64_at(header, 0) != read + 1 {
            return Err(BrokenReply::Fragment);
        }
        let each = rows::fixed_bytes(kind, self.size);
        let rows = usize::try_from(u64_at(header, 8)).unwrap_or(usize::MAX);
        let fixed_len = rows.saturating_mul(each);
        if fixed_len > FRAGMENT_READ_BYTES_MAX {
            return Err(BrokenReply::Fragment);
        }
        let Some((fixed, rest)) = rest.split_at_checked(fixed_len) else { return Ok(None) };
        let keys_len: usize = rows::key_lens(kind, fixed, each).sum();
        let Some(keys) = rest.get(..keys_len) else { return Ok(None) };
        let fragment = Fragment::new(kind, self.size, fixed, keys);
        let inside = match read + 1 == of {
            true => Inside::Nothing,
            false => Inside::Fragments { read: read + 1, of },
        };
        Ok(Some((Piece::Fragment(fragment), 16 + fixed_len + keys_len, inside)))
    }
}

/// Whether a request has no failure: its reply always has a body.
const fn never_fails(kind: RequestKind) -> bool {
    use RequestKind::{Channels, Connections, Info, List, Stats, Whoami};
    matches!(kind, List | Info | Stats | Connections | Channels | Whoami)
}

/// The success of a request whose reply, or its head, has the same length at every value size.
fn fixed(kind: RequestKind, body: &[u8]) -> Read<'_> {
    let whole = |piece, len| Some((piece, 1 + len, Inside::Nothing));
    Ok(match kind {
        RequestKind::Stat => {
            body.first_chunk().and_then(|body: &[u8; 32]| whole(Piece::Stat(stat(body)), 32))
        }
        RequestKind::Info => {
            body.first_chunk().and_then(|body| whole(Piece::Info(body), INFO_BYTES))
        }
        RequestKind::Connection => {
            body.first_chunk().and_then(|body| whole(Piece::Connection(body), CONNECTION_BYTES))
        }
        RequestKind::Whoami => {
            body.first_chunk().and_then(|&id| whole(Piece::Whoami(id), ID_BYTES))
        }
        RequestKind::List
        | RequestKind::Stats
        | RequestKind::Connections
        | RequestKind::Channels => body.first_chunk().map(|&of| match u64::from_le_bytes(of) {
            0 => (Piece::Fragments(0), 9, Inside::Nothing),
            of => (Piece::Fragments(of), 9, Inside::Fragments { read: 0, of }),
        }),
        RequestKind::Channel => body.first_chunk().map(|&left| match u64::from_le_bytes(left) {
            0 => (Piece::Subscribers(0), 9, Inside::Nothing),
            left => (Piece::Subscribers(left), 9, Inside::Subscribers { left }),
        }),
        _ => whole(Piece::Status(true), 0),
    })
}

fn next_subscriber(bytes: &[u8], left: u64) -> Option<(Piece<'_>, usize, Inside)> {
    let bytes: &[u8; SUBSCRIBER_BYTES] = bytes.first_chunk()?;
    let inside = if left == 1 { Inside::Nothing } else { Inside::Subscribers { left: left - 1 } };
    Some((Piece::Subscriber(subscriber(bytes)), SUBSCRIBER_BYTES, inside))
}

fn unit(byte: u8) -> Result<Unit, BrokenReply> {
    Unit::from_byte(byte).ok_or(BrokenReply::Unit(byte))
}
