//! The words of an inline command, as Redis splits a line.

use super::arguments::ArgumentSpan;
use super::{ARGUMENTS_MAX, ProtocolError};

/// What stands between words.
fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c)
}

/// Appends the words of `line` to `text`, without quotes and escapes, and where each lies to
/// `spans`.
///
/// # Errors
/// If a quote is left open or text stands right behind a closing one, or if there are too many
/// words.
pub(super) fn split(
    line: &[u8],
    text: &mut Vec<u8>,
    spans: &mut Vec<ArgumentSpan>,
) -> Result<(), ProtocolError> {
    let mut at = 0;
    loop {
        while line.get(at).is_some_and(|byte| is_blank(*byte)) {
            at += 1;
        }
        if at == line.len() {
            return Ok(());
        }
        if spans.len() == ARGUMENTS_MAX {
            return Err(ProtocolError::ArgumentCount);
        }
        let start = text.len();
        at = word(line, at, text)?;
        spans.push(ArgumentSpan::new(start, text.len() - start));
    }
}

/// Appends the word that begins at `at`, and returns where it ends.
fn word(line: &[u8], mut at: usize, text: &mut Vec<u8>) -> Result<usize, ProtocolError> {
    while let Some(&byte) = line.get(at) {
        match byte {
            b' ' | b'\t' | b'\n' | b'\r' => break,
            b'"' | b'\'' => return quoted(line, at + 1, byte, text),
            _ => text.push(byte),
        }
        at += 1;
    }
    Ok(at)
}

/// Appends what stands in quotes from `at` on, and returns where the word ends: a word ends with
/// its closing quote.
fn quoted(
    line: &[u8],
    mut at: usize,
    quote: u8,
    text: &mut Vec<u8>,
) -> Result<usize, ProtocolError> {
    loop {
        match line[at..] {
            [] => return Err(ProtocolError::UnbalancedQuotes),
            [byte, ref rest @ ..] if byte == quote => {
                return match rest.first() {
                    Some(next) if !is_blank(*next) => Err(ProtocolError::UnbalancedQuotes),
                    _ => Ok(at + 1),
                };
            }
            [b'\\', b'x', high, low, ..] if quote == b'"' && is_hex(high, low) => {
                text.push(hex(high) << 4 | hex(low));
                at += 4;
            }
            [b'\\', escaped, ..] if quote == b'"' => {
                text.push(unescaped(escaped));
                at += 2;
            }
            [b'\\', b'\'', ..] if quote == b'\'' => {
                text.push(b'\'');
                at += 2;
            }
            [byte, ..] => {
                text.push(byte);
                at += 1;
            }
        }
    }
}

fn unescaped(byte: u8) -> u8 {
    match byte {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 0x08,
        b'a' => 0x07,
        other => other,
    }
}

fn is_hex(high: u8, low: u8) -> bool {
    high.is_ascii_hexdigit() && low.is_ascii_hexdigit()
}

fn hex(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => (digit | 0x20) - b'a' + 10,
    }
}
