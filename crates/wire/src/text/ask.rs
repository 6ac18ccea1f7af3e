//! The client's side of the text protocol: writing requests and reading replies.
//!
//! What a reply tells is kept as it was shown: a rate is rounded, a period is in whole seconds.

use serde::Deserialize;

use super::DATAGRAM_BYTES_MAX;
use super::number::{U64_BYTES_MAX, put_u64};
use super::parse::{Command, split_id};

/// A request cannot be written in this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unwritable {
    /// The request would be longer than [`DATAGRAM_BYTES_MAX`]; servers ignore such a datagram.
    TooLong,
    /// The key or the JSON holds a newline; servers do not recognise such a request.
    Newline,
}

impl std::fmt::Display for Unwritable {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Unwritable::TooLong => "the request is longer than 1000 bytes, shorten the key",
            Unwritable::Newline => "the key holds a newline, which this protocol cannot carry",
        })
    }
}

impl std::error::Error for Unwritable {}

/// Writes a request at the start of `out` and returns its length.
///
/// # Errors
/// [`Unwritable`] if no server could understand the request.
pub fn request(
    out: &mut [u8; DATAGRAM_BYTES_MAX],
    id: Option<u64>,
    command: Command<'_>,
) -> Result<usize, Unwritable> {
    let mut at = 0;
    if let Some(id) = id {
        at = put_u64(&mut out[..U64_BYTES_MAX], id);
        out[at] = b' ';
        at += 1;
    }
    let (name, argument): (&[u8], &[u8]) = match command {
        Command::OverLimit(key) => (b"over_limit ", key),
        Command::GetStats(key) => (b"get_stats ", key),
        Command::CheckLimit(json) => (b"check_limit ", json),
        Command::GetSize => (b"get_size", b""),
        Command::Ping => (b"ping", b""),
    };
    if argument.contains(&b'\n') {
        return Err(Unwritable::Newline);
    }
    for part in [name, argument] {
        let room = out.get_mut(at..at + part.len()).ok_or(Unwritable::TooLong)?;
        room.copy_from_slice(part);
        at += part.len();
    }
    Ok(at)
}

/// A reply, with the id of the request that it answers.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply<'a> {
    /// The id's digits, byte for byte. Whoever sent an id must compare.
    pub id: Option<&'a [u8]>,
    /// What is answered.
    pub answer: Answer<'a>,
}

/// What a reply answers.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer<'a> {
    /// To `over_limit`.
    Line(LineShown),
    /// To `get_stats`.
    Stats {
        /// The statistics.
        stats: super::Stats,
        /// The key that they are about.
        key: &'a [u8],
    },
    /// To `check_limit`: each key that was checked, in order. Never empty.
    Checked(Vec<Checked>),
    /// To `get_size`.
    Size {
        /// How full the table is, in the server's own words; Tidegate says `USED/TOTAL` in slots.
        size: &'a [u8],
        /// Keys that are remembered.
        keys: u64,
    },
    /// To `ping`.
    Pong,
}

/// An `ok …` line as it was shown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LineShown {
    /// Whether the key is over its limit, so that the use was refused.
    pub over: bool,
    /// The key's rate in uses per period.
    pub rate: f64,
    /// Uses per period that are allowed.
    pub limit: f64,
    /// The period in seconds.
    pub period_s: u64,
}

/// One key of a `check_limit` and what was told about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Checked {
    /// The key.
    pub key: String,
    /// Its line.
    pub line: LineShown,
}

/// Reads a reply. `None` is a datagram that no server of this protocol sends.
#[must_use]
pub fn reply(datagram: &[u8]) -> Option<Reply<'_>> {
    let (id, text) = split_id(datagram)?;
    let answer = if text.starts_with(b"ok ") {
        match text.windows(3).position(|window| window == b", [") {
            Some(end) => Answer::Checked(checked(&text[..end], &text[end + 2..])?),
            None => Answer::Line(line(text)?),
        }
    } else if let Some(rest) = text.strip_prefix(b"n_req=") {
        stats(rest)?
    } else if let Some(rest) = text.strip_prefix(b"size=") {
        let end = rest.iter().position(|&byte| byte == b' ')?;
        Answer::Size { size: &rest[..end], keys: whole(rest[end..].strip_prefix(b" keys=")?)? }
    } else if text == b"pong" {
        Answer::Pong
    } else {
        return None;
    };
    Some(Reply { id, answer })
}

/// Reads `ok Y|N rate limit period`. Here, and only here, a `Y` becomes being over.
fn line(text: &[u8]) -> Option<LineShown> {
    let rest = text.strip_prefix(b"ok ")?;
    let over = match rest.first()? {
        b'Y' => true,
        b'N' => false,
        _ => return None,
    };
    let mut words = rest[1..].strip_prefix(b" ")?.split(|&byte| byte == b' ');
    let rate = decimal(words.next()?)?;
    let limit = decimal(words.next()?)?;
    let period_s = whole(words.next()?)?;
    words.next().is_none().then_some(LineShown { over, rate, limit, period_s })
}

fn stats(rest: &[u8]) -> Option<Answer<'_>> {
    let (requests, rest) = field(rest, b" n_over=")?;
    let (over, rest) = field(rest, b" last_max_rate=")?;
    let (last_max_rate, key) = field(rest, b" key=")?;
    Some(Answer::Stats { stats: super::Stats { requests, over, last_max_rate }, key })
}

/// Reads a whole number and the words that must follow it.
fn field<'a>(text: &'a [u8], then: &[u8]) -> Option<(u64, &'a [u8])> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    Some((whole(&text[..digits])?, text[digits..].strip_prefix(then)?))
}

/// Reads the two arrays behind the last line. All three must tell the same story.
fn checked(last: &[u8], arrays: &[u8]) -> Option<Vec<Checked>> {
    #[derive(Deserialize)]
    struct Entry {
        key: String,
        over_limit: String,
    }
    let mut values = serde_json::Deserializer::from_slice(arrays).into_iter::<Vec<String>>();
    let keys = values.next()?.ok()?;
    let rest = arrays[values.byte_offset()..].strip_prefix(b", ")?;
    let entries: Vec<Entry> = serde_json::from_slice(rest).ok()?;
    let same_keys = keys.iter().eq(entries.iter().map(|entry| &entry.key));
    if !same_keys || entries.last()?.over_limit.as_bytes() != last {
        return None;
    }
    let shown =
        |entry: Entry| Some(Checked { line: line(entry.over_limit.as_bytes())?, key: entry.key });
    entries.into_iter().map(shown).collect()
}

fn whole(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Reads digits with at most one point between them: no sign, exponent, `inf` or `nan`.
fn decimal(text: &[u8]) -> Option<f64> {
    let digit_at_ends = text.first()?.is_ascii_digit() && text.last()?.is_ascii_digit();
    let plain = text.iter().all(|&byte| byte.is_ascii_digit() || byte == b'.');
    if !digit_at_ends || !plain {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok().filter(|number: &f64| number.is_finite())
}
