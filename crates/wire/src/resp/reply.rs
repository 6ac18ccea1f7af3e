//! The server's replies, appended to the caller's buffer.
//!
//! Most replies have one form. Where RESP2 and RESP3 differ, a function takes the
//! [`ProtocolVersion`] that the connection speaks.

use crate::text::number::{U64_BYTES_MAX, put_u64};

/// The longest line of a number: its kind, a sign, the digits, CR and LF.
const HEADER_BYTES_MAX: usize = 4 + U64_BYTES_MAX;
/// Lines of numbers that are copied together.
const GROUP: usize = 6;

/// The version of the protocol that a connection speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProtocolVersion {
    /// Before HELLO, and after `HELLO 2`.
    #[default]
    Resp2,
    /// After `HELLO 3`.
    Resp3,
}

impl ProtocolVersion {
    /// Its number.
    #[must_use]
    pub fn number(self) -> i64 {
        match self {
            Self::Resp2 => 2,
            Self::Resp3 => 3,
        }
    }
}

/// A simple string, such as `+OK`. It must hold neither CR nor LF.
#[inline]
pub fn simple(out: &mut Vec<u8>, text: &str) {
    line(out, b'+', text.as_bytes());
}

/// An error: its first word, in capitals, and a text. CR and LF become blanks.
pub fn error(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'-');
    push_clean(out, text);
    out.extend_from_slice(b"\r\n");
}

/// Appends what a client has sent to a line: CR and LF become blanks.
pub fn push_clean(out: &mut Vec<u8>, text: &[u8]) {
    out.extend(text.iter().map(|byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { *byte }));
}

/// An integer.
#[inline]
pub fn integer(out: &mut Vec<u8>, number: i64) {
    header(out, b':', number.is_negative(), number.unsigned_abs());
}

/// A bulk string.
#[inline]
pub fn bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    header(out, b'$', false, bytes.len() as u64);
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// A number as a bulk string.
#[inline]
pub fn bulk_number(out: &mut Vec<u8>, number: u64) {
    let mut digits = [0; U64_BYTES_MAX];
    let end = put_u64(&mut digits, number);
    bulk(out, &digits[..end]);
}

/// The beginning of an array; its elements follow.
#[inline]
pub fn array(out: &mut Vec<u8>, elements: usize) {
    header(out, b'*', false, elements as u64);
}

/// An array of integers.
#[inline]
pub fn integers<const N: usize>(out: &mut Vec<u8>, numbers: [i64; N]) {
    // One copy for each few numbers: this is on the path of every decision.
    let mut bytes = [0; GROUP * HEADER_BYTES_MAX];
    let mut end = put_header(&mut bytes, b'*', false, N as u64);
    for number in numbers {
        if end > bytes.len() - HEADER_BYTES_MAX {
            out.extend_from_slice(&bytes[..end]);
            end = 0;
        }
        let digits = number.unsigned_abs();
        end += put_header(&mut bytes[end..], b':', number.is_negative(), digits);
    }
    out.extend_from_slice(&bytes[..end]);
}

/// The beginning of a map; its pairs follow. RESP2 has no maps, and a flat array instead.
pub fn map(out: &mut Vec<u8>, version: ProtocolVersion, pairs: usize) {
    match version {
        ProtocolVersion::Resp2 => array(out, 2 * pairs),
        ProtocolVersion::Resp3 => header(out, b'%', false, pairs as u64),
    }
}

/// Nothing, in the place of a bulk string.
pub fn null(out: &mut Vec<u8>, version: ProtocolVersion) {
    out.extend_from_slice(match version {
        ProtocolVersion::Resp2 => b"$-1\r\n",
        ProtocolVersion::Resp3 => b"_\r\n",
    });
}

/// Nothing, in the place of an array.
pub fn null_array(out: &mut Vec<u8>, version: ProtocolVersion) {
    out.extend_from_slice(match version {
        ProtocolVersion::Resp2 => b"*-1\r\n",
        ProtocolVersion::Resp3 => b"_\r\n",
    });
}

/// True or false. RESP2 has 1 and 0 instead.
pub fn boolean(out: &mut Vec<u8>, version: ProtocolVersion, value: bool) {
    out.extend_from_slice(match (version, value) {
        (ProtocolVersion::Resp2, true) => b":1\r\n",
        (ProtocolVersion::Resp2, false) => b":0\r\n",
        (ProtocolVersion::Resp3, true) => b"#t\r\n",
        (ProtocolVersion::Resp3, false) => b"#f\r\n",
    });
}

/// Text for people.
pub fn verbatim(out: &mut Vec<u8>, version: ProtocolVersion, text: &str) {
    match version {
        ProtocolVersion::Resp2 => bulk(out, text.as_bytes()),
        ProtocolVersion::Resp3 => {
            header(out, b'=', false, "txt:".len() as u64 + text.len() as u64);
            out.extend_from_slice(b"txt:");
            out.extend_from_slice(text.as_bytes());
            out.extend_from_slice(b"\r\n");
        }
    }
}

#[inline]
fn line(out: &mut Vec<u8>, kind: u8, text: &[u8]) {
    out.push(kind);
    out.extend_from_slice(text);
    out.extend_from_slice(b"\r\n");
}

/// A line of a number: `:-12` CR LF.
#[inline]
fn header(out: &mut Vec<u8>, kind: u8, is_negative: bool, number: u64) {
    let mut bytes = [0; HEADER_BYTES_MAX];
    let end = put_header(&mut bytes, kind, is_negative, number);
    out.extend_from_slice(&bytes[..end]);
}

/// Writes such a line at the start of `bytes`, and returns how long it is.
#[inline]
fn put_header(bytes: &mut [u8], kind: u8, is_negative: bool, number: u64) -> usize {
    bytes[..2].copy_from_slice(&[kind, b'-']);
    let digits_at = 1 + usize::from(is_negative);
    let end = digits_at + put_u64(&mut bytes[digits_at..], number);
    bytes[end..end + 2].copy_from_slice(b"\r\n");
    end + 2
}
