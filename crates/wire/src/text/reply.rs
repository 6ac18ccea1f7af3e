//! Replies of the text protocol, as the server writes them.
//!
//! Each function writes one reply, id first, at the start of the caller's buffer and returns its
//! length. Nothing allocates, and nothing is cut: a buffer that might be too short is an error.
//! A buffer of [`super::REPLY_BYTES_MAX`] bytes is enough for every request that was parsed.

use super::number::{U64_BYTES_MAX, put_tenths, put_u64, tenths};
use super::{LINE_BYTES_MAX, STATS_BYTES_MAX};

/// What an `ok …` line tells about a use of a key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// Whether the key is over its limit, so that the use was refused.
    pub over: bool,
    /// The key's rate in uses per period.
    pub rate: f64,
    /// Uses per period that are allowed.
    pub limit: u64,
    /// The period in nanoseconds. Shown in seconds, rounded up.
    pub period_ns: u64,
}

/// What `get_stats` tells about a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Uses that were tried since the key was remembered.
    pub requests: u64,
    /// How many of them were over the limit.
    pub over: u64,
    /// The highest rate of the previous completed bucket.
    pub last_max_rate: u64,
}

/// What `get_size` tells about the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Slots that are occupied.
    pub used: u64,
    /// Slots that are allocated.
    pub total: u64,
    /// Keys that are remembered.
    pub keys: u64,
}

/// The buffer may be too short for the reply. Nothing in it is meant to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom;

impl std::fmt::Display for NoRoom {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("the buffer is too short for the reply")
    }
}

impl std::error::Error for NoRoom {}

/// Answers `over_limit`: `ok Y|N rate limit period`.
///
/// # Errors
/// [`NoRoom`] if the longest such line would not fit.
#[inline]
pub fn over_limit(out: &mut [u8], id: Option<&[u8]>, line: &Line) -> Result<usize, NoRoom> {
    let start = put_id(out, id)?;
    let room = out[start..].first_chunk_mut::<LINE_BYTES_MAX>().ok_or(NoRoom)?;
    Ok(start + put_line(room, line))
}

/// Answers `get_stats`: `n_req=… n_over=… last_max_rate=… key=…`.
///
/// # Errors
/// [`NoRoom`] if the longest such reply for this key would not fit.
pub fn get_stats(
    out: &mut [u8],
    id: Option<&[u8]>,
    stats: &Stats,
    key: &[u8],
) -> Result<usize, NoRoom> {
    let mut at = put_id(out, id)?;
    if out.len() - at < STATS_BYTES_MAX + key.len() {
        return Err(NoRoom);
    }
    at += put_field(&mut out[at..], b"n_req=", stats.requests);
    at += put_field(&mut out[at..], b" n_over=", stats.over);
    at += put_field(&mut out[at..], b" last_max_rate=", stats.last_max_rate);
    at += put(&mut out[at..], b" key=");
    at += put(&mut out[at..], key);
    Ok(at)
}

/// Answers `get_size`: `size=USED/TOTAL keys=N`.
///
/// # Errors
/// [`NoRoom`] if the longest such reply would not fit.
pub fn get_size(out: &mut [u8], id: Option<&[u8]>, size: &Size) -> Result<usize, NoRoom> {
    let mut at = put_id(out, id)?;
    if out.len() - at < "size=/ keys=".len() + 3 * U64_BYTES_MAX {
        return Err(NoRoom);
    }
    at += put_field(&mut out[at..], b"size=", size.used);
    at += put_field(&mut out[at..], b"/", size.total);
    at += put_field(&mut out[at..], b" keys=", size.keys);
    Ok(at)
}

/// Answers `ping`: `pong`.
///
/// # Errors
/// [`NoRoom`] if it does not fit.
pub fn ping(out: &mut [u8], id: Option<&[u8]>) -> Result<usize, NoRoom> {
    let at = put_id(out, id)?;
    let room = out[at..].first_chunk_mut().ok_or(NoRoom)?;
    *room = *b"pong";
    Ok(at + room.len())
}

/// Writes the id and its space. What is left of `out` begins at the returned length.
#[inline]
fn put_id(out: &mut [u8], id: Option<&[u8]>) -> Result<usize, NoRoom> {
    let Some(id) = id else { return Ok(0) };
    if out.len() <= id.len() {
        return Err(NoRoom);
    }
    out[..id.len()].copy_from_slice(id);
    out[id.len()] = b' ';
    Ok(id.len() + 1)
}

/// Writes `ok Y|N rate limit period`. Here, and only here, being over becomes a `Y`.
#[inline]
pub(super) fn put_line(out: &mut [u8; LINE_BYTES_MAX], line: &Line) -> usize {
    out[..5].copy_from_slice(if line.over { b"ok Y " } else { b"ok N " });
    let mut at = 5;
    at += put_tenths(&mut out[at..], tenths(line.rate));
    out[at] = b' ';
    at += 1;
    at += put_u64(&mut out[at..], line.limit);
    out[at..at + 3].copy_from_slice(b".0 ");
    at += 3;
    at + put_u64(&mut out[at..], line.period_ns.div_ceil(1_000_000_000))
}

fn put_field(out: &mut [u8], name: &[u8], n: u64) -> usize {
    let at = put(out, name);
    at + put_u64(&mut out[at..], n)
}

fn put(out: &mut [u8], bytes: &[u8]) -> usize {
    out[..bytes.len()].copy_from_slice(bytes);
    bytes.len()
}
