//! Points in time on the wire: ASCII decimal milliseconds since 1970.

/// Nanoseconds in a millisecond.
pub const MILLISECOND_NS: u64 = 1_000_000;

/// The most digits before the point: more than any time that fits, and a bound on the work.
const DIGITS_MAX: usize = 20;
/// Digits of a fraction that are worth anything; the rest is read and has no effect.
const DECIMALS: usize = 6;
const FRACTION_DIGITS_MAX: usize = 40;

/// Whole milliseconds, rounded up: a client that waits until then does not come too early.
#[must_use]
pub fn ms_up(ns: u64) -> u64 {
    ns.div_ceil(MILLISECOND_NS)
}

/// Reads a time into nanoseconds. One that does not fit is the latest that does; a sign, an
/// exponent, a space or no digit at all is none.
pub(super) fn parse(text: &[u8]) -> Option<u64> {
    // Clients send thirteen digits, which reach from 2001 to 2286.
    let (whole, fraction) = match text.iter().position(|byte| !byte.is_ascii_digit()) {
        None => (text, &b""[..]),
        Some(point) if text[point] == b'.' => (&text[..point], &text[point + 1..]),
        Some(_) => return None,
    };
    if whole.is_empty() || whole.len() > DIGITS_MAX || fraction.len() > FRACTION_DIGITS_MAX {
        return None;
    }
    let ms = whole
        .iter()
        .fold(0_u64, |ms, digit| ms.saturating_mul(10).saturating_add(u64::from(digit - b'0')));
    let mut rest = 0;
    let mut worth = MILLISECOND_NS;
    for (at, digit) in fraction.iter().enumerate() {
        if !digit.is_ascii_digit() {
            return None;
        }
        if at < DECIMALS {
            worth /= 10;
            rest += u64::from(digit - b'0') * worth;
        }
    }
    Some(ms.saturating_mul(MILLISECOND_NS).saturating_add(rest))
}
