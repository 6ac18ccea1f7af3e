//! The server's side of the text protocol: reading requests and writing replies.
//!
//! A request is `[ID ]COMMAND`. What is not exactly that is [`Ignored`]: the door counts it by
//! reason and never answers, because the source of a datagram may be forged.
//!
//! A reply is written, id first, at the start of the caller's buffer, and its length is returned.
//! Nothing allocates, and nothing is cut: a buffer that might be too short is an error. A buffer of
//! [`super::REPLY_BYTES_MAX`] bytes is enough for every request that was parsed.

use super::number::{U64_BYTES_MAX, put_tenths, put_u64, tenths};
use super::{DATAGRAM_BYTES_MAX, LINE_BYTES_MAX, STATS_BYTES_MAX};

/// A well-formed request. It borrows from its datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// The digits that the reply must begin with, byte for byte as they came.
    pub id: Option<&'a [u8]>,
    /// What is asked.
    pub command: TextCommand<'a>,
}

/// What a request asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextCommand<'a> {
    /// Make one use of this key. The key may be empty.
    OverLimit(&'a [u8]),
    /// Tell the statistics of this key.
    GetStats(&'a [u8]),
    /// Make one use of each of the keys that this JSON names; see [`super::CheckLimit`].
    CheckLimit(&'a [u8]),
    /// Tell how full the table is.
    GetSize,
    /// Tell that you are there.
    Ping,
}

/// Why a datagram gets no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ignored {
    /// It is longer than [`DATAGRAM_BYTES_MAX`].
    TooLong,
    /// It is no request of this protocol.
    Unrecognised,
    /// `check_limit` with anything but a JSON object of strings.
    BadJson,
    /// `check_limit` with a control byte in `origin`, `ua` or `ip`.
    ControlByte,
}

impl Ignored {
    /// The reason as a metric's label.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Ignored::TooLong => "too_long",
            Ignored::Unrecognised => "unrecognised",
            Ignored::BadJson => "bad_json",
            Ignored::ControlByte => "control_byte",
        }
    }
}

/// Reads one datagram. The JSON of `check_limit` is not looked at yet.
///
/// # Errors
/// [`Ignored`] for everything that must not be answered.
#[inline]
pub fn parse(datagram: &[u8]) -> Result<Request<'_>, Ignored> {
    if datagram.len() > DATAGRAM_BYTES_MAX {
        return Err(Ignored::TooLong);
    }
    let (id, rest) = split_id(datagram).ok_or(Ignored::Unrecognised)?;
    let command = command(rest).ok_or(Ignored::Unrecognised)?;
    Ok(Request { id, command })
}

/// Splits `123 rest` into its id and the rest. Digits without exactly a space behind them are
/// neither an id nor the start of a command.
pub(super) fn split_id(datagram: &[u8]) -> Option<(Option<&[u8]>, &[u8])> {
    let digits = datagram.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if digits == 0 {
        return Some((None, datagram));
    }
    let (id, rest) = datagram.split_at(digits);
    Some((Some(id), rest.strip_prefix(b" ")?))
}

fn command(text: &[u8]) -> Option<TextCommand<'_>> {
    if let Some(rest) = text.strip_prefix(b"over_limit ") {
        argument(rest).map(TextCommand::OverLimit)
    } else if let Some(rest) = text.strip_prefix(b"get_stats ") {
        argument(rest).map(TextCommand::GetStats)
    } else if let Some(rest) = text.strip_prefix(b"check_limit ") {
        argument(rest).map(TextCommand::CheckLimit)
    } else {
        match text {
            b"get_size" => Some(TextCommand::GetSize),
            b"ping" => Some(TextCommand::Ping),
            _ => None,
        }
    }
}

/// The argument without the one newline that may end it. There may be no other.
fn argument(rest: &[u8]) -> Option<&[u8]> {
    let argument = rest.strip_suffix(b"\n").unwrap_or(rest);
    (!argument.contains(&b'\n')).then_some(argument)
}

/// What an `ok …` line tells about a use of a key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReplyLine {
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
pub struct StatsReply {
    /// Uses that were tried since the key was remembered.
    pub requests: u64,
    /// How many of them were over the limit.
    pub over: u64,
    /// The highest rate of the previous completed bucket.
    pub last_max_rate: u64,
}

/// What `get_size` tells about the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SizeReply {
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
pub fn over_limit(out: &mut [u8], id: Option<&[u8]>, line: &ReplyLine) -> Result<usize, NoRoom> {
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
    stats: &StatsReply,
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
pub fn get_size(out: &mut [u8], id: Option<&[u8]>, size: &SizeReply) -> Result<usize, NoRoom> {
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
pub(super) fn put_line(out: &mut [u8; LINE_BYTES_MAX], line: &ReplyLine) -> usize {
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

#[cfg(test)]
mod tests;
