//! What adapters share: comparing lines, bytes that an editor would not keep, steps of the clock.

use tidegate::clock::Clock;
use tidegate_core::Nanos;
use tidegate_core::time::{DAY, HOUR, MILLISECOND, MINUTE, SECOND};

use super::script::{Line, Mismatch};

/// Compares replies line by line, `{N}` standing for any number.
pub(super) fn compare(replies: &[Line], got: &[String]) -> Vec<Mismatch> {
    let mut wrong = Vec::new();
    for at in 0..replies.len().max(got.len()) {
        let (reply, got) = (replies.get(at), got.get(at));
        if reply.is_none_or(|reply| got.is_none_or(|got| !matches(&reply.text, got))) {
            let last = replies.last().expect("an exchange has replies");
            wrong.push(Mismatch {
                line: reply.unwrap_or(last).number,
                expected: reply.map_or("no more", |reply| reply.text.as_str()).to_owned(),
                got: got.map_or("no more", String::as_str).to_owned(),
            });
        }
    }
    wrong
}

/// Whether `got` is `expected`, where `{N}` stands for any number.
fn matches(expected: &str, got: &str) -> bool {
    let mut parts = expected.split("{N}");
    let Some(mut rest) = parts.next().and_then(|first| got.strip_prefix(first)) else {
        return false;
    };
    for part in parts {
        let after = rest.trim_start_matches(|c: char| c.is_ascii_digit());
        let Some(next) = after.strip_prefix(part).filter(|_| after.len() < rest.len()) else {
            return false;
        };
        rest = next;
    }
    rest.is_empty()
}

/// Bytes of which `\n`, `\r`, `\0`, `\\` and `\xNN` write those that an editor would not keep.
pub(super) fn unescaped(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = text.as_bytes();
    while let [byte, after @ ..] = rest {
        let (byte, after) = match (byte, after) {
            (b'\\', [b'n', after @ ..]) => (b'\n', after),
            (b'\\', [b'r', after @ ..]) => (b'\r', after),
            (b'\\', [b'0', after @ ..]) => (0, after),
            (b'\\', [b'\\', after @ ..]) => (b'\\', after),
            (b'\\', [b'x', high, low, after @ ..]) => {
                let digit = |digit: u8| char::from(digit).to_digit(16).expect("a hex digit") as u8;
                (digit(*high) << 4 | digit(*low), after)
            }
            (b'\\', _) => panic!("no such escape: {text}"),
            _ => (*byte, after),
        };
        out.push(byte);
        rest = after;
    }
    out
}

/// Bytes as [`unescaped`] reads them.
pub(super) fn escaped(bytes: &[u8]) -> String {
    let mut out = String::new();
    for &byte in bytes {
        match byte {
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            0 => out.push_str("\\0"),
            b'\\' => out.push_str("\\\\"),
            0x20..=0x7e => out.push(char::from(byte)),
            _ => out.push_str(&format!("\\x{byte:02x}")),
        }
    }
    out
}

/// Moves the clock as an `@` line says.
pub(super) fn pass(clock: &Clock, step: &str) {
    let wall = step.strip_prefix("wall ");
    let signed = wall.unwrap_or(step);
    let back = signed.starts_with('-');
    let span = span(signed.trim_start_matches(['+', '-']));
    match wall {
        None => {
            assert!(!back, "time does not run backwards: {step}");
            clock.advance(span);
        }
        Some(_) if back => clock.set_unix(clock.now().unix - span),
        Some(_) => clock.set_unix(clock.now().unix + span),
    }
}

fn span(text: &str) -> Nanos {
    let digits = text.find(|c: char| !c.is_ascii_digit()).expect("a unit");
    let unit = match &text[digits..] {
        "ns" => 1,
        "ms" => MILLISECOND,
        "s" => SECOND,
        "m" => MINUTE,
        "h" => HOUR,
        "d" => DAY,
        other => panic!("no such unit: {other}"),
    };
    text[..digits].parse::<Nanos>().expect("a number") * unit
}
