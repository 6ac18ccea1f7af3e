//! The server's answers, appended to the caller's buffer. Numbers saturate at the value size.
//!
//! Here, and only here, a success becomes `01` and a failure `00`. The answers that list are
//! written by [`fragments`](super::fragments).

use super::ID_BYTES;
use super::figures::{ConnectionRecord, Info};
use super::kind::type_byte;
use super::value::{Unit, ValueSize, for_size, put, saturated};

pub(super) const FAILURE: u8 = 0;
pub(super) const SUCCESS: u8 = 1;

/// Bytes of a [`subscriber`].
pub(super) const SUBSCRIBER_BYTES: usize = ID_BYTES + 3 * 8;

/// A status byte alone: the whole answer to INSERT, UPDATE, PURGE, SET, SUBSCRIBE, UNSUBSCRIBE and
/// PUBLISH, the failure of any other request, and what precedes the reply to an EVENT's payload.
#[inline]
pub fn status(out: &mut Vec<u8>, success: bool) {
    out.push(u8::from(success));
}

/// To QUERY: `01 | quota N | ttl_type 1 | ttl N`.
#[inline]
pub fn query(out: &mut Vec<u8>, size: ValueSize, quota: u64, unit: Unit, left: u64) {
    for_size!(size, query_sized(out, quota, unit, left));
}

#[inline(always)]
fn query_sized<const N: usize>(out: &mut Vec<u8>, quota: u64, unit: Unit, left: u64) {
    let mut reply = [0; 2 + 2 * 8];
    reply[0] = SUCCESS;
    reply[1..1 + N].copy_from_slice(&saturated::<N>(quota));
    reply[1 + N] = unit.byte();
    reply[2 + N..2 + 2 * N].copy_from_slice(&saturated::<N>(left));
    out.extend_from_slice(&reply[..2 + 2 * N]);
}

/// To GET: `01 | ttl_type 1 | ttl N | vlen N | value`, or `00` if the value is longer than N bytes
/// can say.
#[inline]
pub fn get(out: &mut Vec<u8>, size: ValueSize, unit: Unit, left: u64, value: &[u8]) {
    let len = value.len() as u64;
    if len > size.max() {
        return status(out, false);
    }
    out.push(SUCCESS);
    out.push(unit.byte());
    put(out, size, left);
    put(out, size, len);
    out.extend_from_slice(value);
}

/// To CONSUME: `status 1 | remaining N | ttl N`, always all three.
#[inline]
pub fn consume(out: &mut Vec<u8>, size: ValueSize, taken: bool, remaining: u64, left: u64) {
    for_size!(size, consume_sized(out, taken, remaining, left));
}

#[inline(always)]
fn consume_sized<const N: usize>(out: &mut Vec<u8>, taken: bool, remaining: u64, left: u64) {
    let mut reply = [0; 1 + 2 * 8];
    reply[0] = u8::from(taken);
    reply[1..1 + N].copy_from_slice(&saturated::<N>(remaining));
    reply[1 + N..1 + 2 * N].copy_from_slice(&saturated::<N>(left));
    out.extend_from_slice(&reply[..1 + 2 * N]);
}

/// To CONSUME MANY: `status 1 | n x (remaining N | ttl N)` in the order of the takes; the n is the
/// request's.
pub fn consume_many(
    out: &mut Vec<u8>,
    size: ValueSize,
    taken: bool,
    takes: impl IntoIterator<Item = (u64, u64)>,
) {
    status(out, taken);
    for (remaining, left) in takes {
        put(out, size, remaining);
        put(out, size, left);
    }
}

/// How often a record was read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// Reads in the last full minute.
    pub reads_per_minute: u64,
    /// Writes in the last full minute.
    pub writes_per_minute: u64,
    /// Reads since it was made.
    pub reads: u64,
    /// Writes since it was made.
    pub writes: u64,
}

impl Stat {
    pub(super) fn append(&self, out: &mut Vec<u8>) {
        let figures = [self.reads_per_minute, self.writes_per_minute, self.reads, self.writes];
        for figure in figures {
            out.extend_from_slice(&figure.to_le_bytes());
        }
    }
}

/// To STAT: `01 | reads/min | writes/min | total reads | total writes`, 8 bytes each.
pub fn stat(out: &mut Vec<u8>, stat: &Stat) {
    out.push(SUCCESS);
    stat.append(out);
}

/// To INFO: `01` and 432 bytes.
pub fn info(out: &mut Vec<u8>, info: &Info) {
    out.push(SUCCESS);
    info.append(out);
}

/// To CONNECTION: `01` and the record.
pub fn connection(out: &mut Vec<u8>, record: &ConnectionRecord) {
    out.push(SUCCESS);
    record.append(out);
}

/// To WHOAMI: `01` and the connection's id.
pub fn whoami(out: &mut Vec<u8>, id: &[u8; ID_BYTES]) {
    out.push(SUCCESS);
    out.extend_from_slice(id);
}

/// One subscriber of a channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelSubscriber {
    /// The connection's id.
    pub id: [u8; ID_BYTES],
    /// Since when, in Unix nanoseconds.
    pub subscribed_at_ns: u64,
    /// Bytes of payloads that it got from the channel.
    pub read_bytes: u64,
    /// Bytes of payloads that it published to the channel.
    pub written_bytes: u64,
}

/// The beginning of an answer to CHANNEL: `01 | n u64`. Behind it stand n [`subscriber`]s.
pub fn channel(out: &mut Vec<u8>, subscribers: u64) {
    out.push(SUCCESS);
    out.extend_from_slice(&subscribers.to_le_bytes());
}

/// One subscriber in an answer to CHANNEL.
pub fn subscriber(out: &mut Vec<u8>, subscriber: &ChannelSubscriber) {
    out.extend_from_slice(&subscriber.id);
    let figures = [subscriber.subscribed_at_ns, subscriber.read_bytes, subscriber.written_bytes];
    for figure in figures {
        out.extend_from_slice(&figure.to_le_bytes());
    }
}

/// A payload or a channel's name is longer than the value size can say: the event cannot be pushed
/// to such a listener's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DoesNotFit;

/// Pushed to a subscriber: `19 | clen 1 | plen N | channel | payload`.
///
/// # Errors
/// [`DoesNotFit`], and nothing is appended. Listeners of another size may have published more.
pub fn event(
    out: &mut Vec<u8>,
    size: ValueSize,
    channel: &[u8],
    payload: &[u8],
) -> Result<(), DoesNotFit> {
    let channel_len = u8::try_from(channel.len()).map_err(|_| DoesNotFit)?;
    let payload_len = payload.len() as u64;
    if payload_len > size.max() {
        return Err(DoesNotFit);
    }
    out.push(type_byte::EVENT);
    out.push(channel_len);
    put(out, size, payload_len);
    out.extend_from_slice(channel);
    out.extend_from_slice(payload);
    Ok(())
}
