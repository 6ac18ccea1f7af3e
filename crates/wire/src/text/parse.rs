//! Requests of the text protocol, as the server reads them.
//!
//! A request is `[ID ]COMMAND`. What is not exactly that is [`Ignored`]: the door counts it by
//! reason and never answers, because the source of a datagram may be spoofed.

use super::DATAGRAM_BYTES_MAX;

/// A well-formed request. It borrows from its datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// The digits that the reply must begin with, byte for byte as they came.
    pub id: Option<&'a [u8]>,
    /// What is asked.
    pub command: Command<'a>,
}

/// What a request asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// Make one use of this key. The key may be empty.
    OverLimit(&'a [u8]),
    /// Tell the statistics of this key.
    GetStats(&'a [u8]),
    /// Make one use of each of the keys that this JSON names; see [`super::Check`].
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
    /// `check_limit` whose fields make a key longer than [`super::KEY_BYTES_MAX`].
    KeyTooLong,
}

impl Ignored {
    /// The reason as a metric's label.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Ignored::TooLong => "too_long",
            Ignored::Unrecognised => "unrecognised",
            Ignored::BadJson => "bad_json",
            Ignored::KeyTooLong => "key_too_long",
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

fn command(text: &[u8]) -> Option<Command<'_>> {
    if let Some(rest) = text.strip_prefix(b"over_limit ") {
        argument(rest).map(Command::OverLimit)
    } else if let Some(rest) = text.strip_prefix(b"get_stats ") {
        argument(rest).map(Command::GetStats)
    } else if let Some(rest) = text.strip_prefix(b"check_limit ") {
        argument(rest).map(Command::CheckLimit)
    } else {
        match text {
            b"get_size" => Some(Command::GetSize),
            b"ping" => Some(Command::Ping),
            _ => None,
        }
    }
}

/// The argument without the one newline that may end it. There may be no other.
fn argument(rest: &[u8]) -> Option<&[u8]> {
    let argument = rest.strip_suffix(b"\n").unwrap_or(rest);
    (!argument.contains(&b'\n')).then_some(argument)
}
