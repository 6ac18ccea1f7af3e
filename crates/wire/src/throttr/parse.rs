//! What the front of a buffer holds: a request, the beginning of one, or what ends a connection.
//!
//! A header is judged as soon as it is there: an unknown type or a value that is too long is
//! refused before its body arrives, so a server never waits, or makes room, for what it will
//! refuse.

use super::kind::type_byte;
use super::request::{Request, Takes};
use super::value::{Attribute, Ttl, Unit, UpdateChange, ValueSize, for_size, number};
use super::{ID_BYTES, TAKES_MAX};

/// What the front of a buffer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Front<'a> {
    /// A whole request, which borrows from the buffer.
    Request {
        /// The request.
        request: Request<'a>,
        /// How many bytes of the buffer it is.
        bytes: usize,
    },
    /// The beginning of a request, or nothing: read more. It never has as many bytes as
    /// [`request_bytes_max`](super::request_bytes_max).
    Incomplete,
    /// No request, and nothing behind it can be understood: flush the replies so far and close.
    Broken(BrokenRequest),
}

/// Why a stream of requests cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrokenRequest {
    /// No request has this type.
    UnknownType(u8),
    /// The value of a SET, or the payload of a PUBLISH or EVENT, is longer than is allowed here.
    ValueTooLong {
        /// How long it would be.
        bytes: u64,
    },
    /// A CONSUME MANY has more takes than [`TAKES_MAX`].
    TooManyTakes(u8),
    /// The payload of an EVENT is an EVENT.
    NestedEvent,
    /// The payload of an EVENT is not one whole request.
    UnevenEvent,
}

impl BrokenRequest {
    /// A word for a metric's label.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::UnknownType(_) => "unknown_type",
            Self::ValueTooLong { .. } => "value_too_long",
            Self::TooManyTakes(_) => "too_many_takes",
            Self::NestedEvent => "nested_event",
            Self::UnevenEvent => "uneven_event",
        }
    }
}

/// Reads the front of `bytes` as a listener of this value size does, which takes values and
/// payloads of up to `value_max` bytes.
#[must_use]
#[inline]
pub fn parse(bytes: &[u8], size: ValueSize, value_max: usize) -> Front<'_> {
    for_size!(size, front(bytes, value_max))
}

#[inline]
fn front<const N: usize>(bytes: &[u8], value_max: usize) -> Front<'_> {
    let Some(&kind) = bytes.first() else { return Front::Incomplete };
    let whole = match kind {
        type_byte::INSERT => insert::<N>(bytes),
        type_byte::QUERY => keyed(bytes, |key| Request::Query { key }),
        type_byte::UPDATE => update::<N>(bytes),
        type_byte::PURGE => keyed(bytes, |key| Request::Purge { key }),
        type_byte::GET => keyed(bytes, |key| Request::Get { key }),
        type_byte::CONSUME => consume::<N>(bytes),
        type_byte::SET => return set::<N>(bytes, value_max),
        _ => return cold::<N>(kind, bytes, value_max),
    };
    complete(whole)
}

/// A request and its length.
type Whole<'a> = (Request<'a>, usize);

#[inline(always)]
fn complete(whole: Option<Whole<'_>>) -> Front<'_> {
    match whole {
        Some((request, bytes)) => Front::Request { request, bytes },
        None => Front::Incomplete,
    }
}

/// Splits off a header whose last byte is the length of the key behind it.
#[inline(always)]
fn header(bytes: &[u8], len: usize) -> Option<(&[u8], &[u8])> {
    let (header, rest) = bytes.split_at_checked(len)?;
    let key = rest.get(..usize::from(header[len - 1]))?;
    Some((header, key))
}

#[inline(always)]
fn keyed<'a>(bytes: &'a [u8], request: impl FnOnce(&'a [u8]) -> Request<'a>) -> Option<Whole<'a>> {
    let (_, key) = header(bytes, 2)?;
    Some((request(key), 2 + key.len()))
}

/// `01 | quota N | ttl_type 1 | ttl N | klen 1 | key`
#[inline(always)]
fn insert<const N: usize>(bytes: &[u8]) -> Option<Whole<'_>> {
    let (header, key) = header(bytes, 3 + 2 * N)?;
    let quota = number::<N>(&header[1..]);
    Some((Request::Insert { quota, ttl: ttl::<N>(&header[1 + N..]), key }, 3 + 2 * N + key.len()))
}

/// `03 | attribute 1 | change 1 | value N | klen 1 | key`
#[inline(always)]
fn update<const N: usize>(bytes: &[u8]) -> Option<Whole<'_>> {
    let (header, key) = header(bytes, 4 + N)?;
    let attribute = Attribute::from_byte(header[1]);
    let change = UpdateChange::from_byte(header[2]);
    let value = number::<N>(&header[3..]);
    Some((Request::Update { attribute, change, value, key }, 4 + N + key.len()))
}

/// `40 | cost N | quota N | ttl_type 1 | ttl N | klen 1 | key`
#[inline(always)]
fn consume<const N: usize>(bytes: &[u8]) -> Option<Whole<'_>> {
    let (header, key) = header(bytes, 3 + 3 * N)?;
    let cost = number::<N>(&header[1..]);
    let quota = number::<N>(&header[1 + N..]);
    let ttl = ttl::<N>(&header[1 + 2 * N..]);
    Some((Request::Consume { cost, quota, ttl, key }, 3 + 3 * N + key.len()))
}

/// `ttl_type 1 | ttl N`
#[inline(always)]
fn ttl<const N: usize>(bytes: &[u8]) -> Ttl {
    Ttl { unit: Unit::from_byte(bytes[0]), amount: number::<N>(&bytes[1..]) }
}

/// `05 | ttl_type 1 | ttl N | klen 1 | vlen N | key | value`
#[inline]
fn set<const N: usize>(bytes: &[u8], value_max: usize) -> Front<'_> {
    let Some((header, rest)) = bytes.split_at_checked(3 + 2 * N) else { return Front::Incomplete };
    let key_len = usize::from(header[2 + N]);
    let value_len = match length::<N>(&header[3 + N..], value_max) {
        Ok(len) => len,
        Err(broken) => return Front::Broken(broken),
    };
    let whole = || {
        let (key, rest) = rest.split_at_checked(key_len)?;
        let value = rest.get(..value_len)?;
        let request = Request::Set { ttl: ttl::<N>(&header[1..]), key, value };
        Some((request, header.len() + key_len + value_len))
    };
    complete(whole())
}

/// A declared length of N bytes, if it is allowed. One that is allowed fits memory, so it can be
/// added to the lengths of a header and a key.
#[inline(always)]
fn length<const N: usize>(bytes: &[u8], value_max: usize) -> Result<usize, BrokenRequest> {
    let declared = number::<N>(bytes);
    match usize::try_from(declared) {
        Ok(len) if len <= value_max && len <= usize::MAX / 2 => Ok(len),
        _ => Err(BrokenRequest::ValueTooLong { bytes: declared }),
    }
}

/// Requests off the hot path, in a function of their own so that they do not slow the others.
#[inline(never)]
fn cold<const N: usize>(kind: u8, bytes: &[u8], value_max: usize) -> Front<'_> {
    complete(match kind {
        type_byte::LIST => Some((Request::List, 1)),
        type_byte::INFO => Some((Request::Info, 1)),
        type_byte::STAT => keyed(bytes, |key| Request::Stat { key }),
        type_byte::STATS => Some((Request::Stats, 1)),
        type_byte::SUBSCRIBE => keyed(bytes, |channel| Request::Subscribe { channel }),
        type_byte::UNSUBSCRIBE => keyed(bytes, |channel| Request::Unsubscribe { channel }),
        type_byte::PUBLISH => match payload::<N>(bytes, value_max) {
            Ok(found) => {
                found.map(|(channel, payload, len)| (Request::Publish { channel, payload }, len))
            }
            Err(broken) => return Front::Broken(broken),
        },
        type_byte::CONNECTIONS => Some((Request::Connections, 1)),
        type_byte::CONNECTION => bytes[1..]
            .first_chunk()
            .map(|&id: &[u8; ID_BYTES]| (Request::Connection { id }, 1 + ID_BYTES)),
        type_byte::CHANNELS => Some((Request::Channels, 1)),
        type_byte::CHANNEL => keyed(bytes, |channel| Request::Channel { channel }),
        type_byte::WHOAMI => Some((Request::Whoami, 1)),
        type_byte::EVENT => return event::<N>(bytes, value_max),
        type_byte::CONSUME_MANY => return consume_many::<N>(bytes),
        unknown => return Front::Broken(BrokenRequest::UnknownType(unknown)),
    })
}

/// A channel, a payload and the length of all.
type Payload<'a> = (&'a [u8], &'a [u8], usize);

/// `type 1 | clen 1 | plen N | channel | payload`
fn payload<const N: usize>(
    bytes: &[u8],
    value_max: usize,
) -> Result<Option<Payload<'_>>, BrokenRequest> {
    let Some((header, rest)) = bytes.split_at_checked(2 + N) else { return Ok(None) };
    let channel_len = usize::from(header[1]);
    let payload_len = length::<N>(&header[2..], value_max)?;
    let Some((channel, rest)) = rest.split_at_checked(channel_len) else { return Ok(None) };
    let Some(payload) = rest.get(..payload_len) else { return Ok(None) };
    Ok(Some((channel, payload, header.len() + channel_len + payload_len)))
}

/// An EVENT whose payload is one request, and no EVENT itself: a chain of them could go deep.
fn event<const N: usize>(bytes: &[u8], value_max: usize) -> Front<'_> {
    let (channel, payload, len) = match payload::<N>(bytes, value_max) {
        Ok(Some(found)) => found,
        Ok(None) => return Front::Incomplete,
        Err(broken) => return Front::Broken(broken),
    };
    if payload.first() == Some(&type_byte::EVENT) {
        return Front::Broken(BrokenRequest::NestedEvent);
    }
    match front::<N>(payload, value_max) {
        Front::Request { bytes, .. } if bytes == payload.len() => {
            Front::Request { request: Request::Event { channel, payload }, bytes: len }
        }
        Front::Request { .. } | Front::Incomplete => Front::Broken(BrokenRequest::UnevenEvent),
        Front::Broken(broken) => Front::Broken(broken),
    }
}

/// `41 | n 1 | n x (cost N | quota N | ttl_type 1 | ttl N | klen 1) | the n keys`
fn consume_many<const N: usize>(bytes: &[u8]) -> Front<'_> {
    let Some(&count) = bytes.get(1) else { return Front::Incomplete };
    let takes = usize::from(count);
    if takes > TAKES_MAX {
        return Front::Broken(BrokenRequest::TooManyTakes(count));
    }
    let each = 2 + 3 * N;
    let whole = || {
        let (heads, rest) = bytes[2..].split_at_checked(takes * each)?;
        let key_bytes = heads.chunks_exact(each).map(|head| usize::from(head[each - 1])).sum();
        let keys = rest.get(..key_bytes)?;
        let request = Request::ConsumeMany { takes: Takes::read(heads, keys, each) };
        Some((request, 2 + heads.len() + key_bytes))
    };
    complete(whole())
}

/// Reads one take's head, and its key from the front of `keys`.
pub(super) fn take<'a, const N: usize>(
    head: &[u8],
    keys: &'a [u8],
) -> Option<(super::Take<'a>, &'a [u8])> {
    let (key, rest) = keys.split_at_checked(usize::from(*head.get(1 + 3 * N)?))?;
    let take = super::Take {
        cost: number::<N>(head),
        quota: number::<N>(&head[N..]),
        ttl: ttl::<N>(&head[2 * N..]),
        key,
    };
    Some((take, rest))
}
