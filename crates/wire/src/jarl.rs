//! The JARL protocol: a connection is the question, and a number of seconds the whole answer.
//!
//! Nothing is asked in bytes. The answer is the delay with three decimal places, without a
//! newline; the end of the stream ends it. Below 1000 s it is at most seven bytes long, which is
//! what the protocol's first client reads.

use std::fmt;
use std::time::Duration;

/// The longest answer that is ever written: the longest delay has eleven digits before its point.
pub const ANSWER_BYTES_MAX: usize = 15;

/// The longest answer that is read. Other servers may write fewer or more decimal places.
pub const READ_BYTES_MAX: usize = 32;

/// The most digits before and after the point that are read.
const SECONDS_DIGITS_MAX: usize = 11;
const DECIMALS_MAX: usize = 9;

const MILLISECOND: u64 = 1_000_000;

/// What becomes of a delay that is no whole number of milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// The nearest, as the document's own server prints it.
    Nearest,
    /// The next, so that no client that obeys comes too early.
    Up,
}

/// Writes a delay in nanoseconds into `out` and returns the answer.
#[must_use]
pub fn encode(out: &mut [u8; ANSWER_BYTES_MAX], delay_ns: u64, rounding: Rounding) -> &[u8] {
    let whole = delay_ns / MILLISECOND;
    let rest = delay_ns % MILLISECOND;
    let more = match rounding {
        Rounding::Nearest => rest >= MILLISECOND / 2,
        Rounding::Up => rest > 0,
    };
    let mut left = whole + u64::from(more);
    let mut at = ANSWER_BYTES_MAX;
    let mut digits = 0;
    // From the last digit on: three decimals, the point, and at least one digit before it.
    while digits < 4 || left > 0 {
        if digits == 3 {
            at -= 1;
            out[at] = b'.';
        }
        at -= 1;
        out[at] = b'0' + (left % 10) as u8;
        left /= 10;
        digits += 1;
    }
    &out[at..]
}

/// An answer that is no number of seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnreadableDelay;

impl fmt::Display for UnreadableDelay {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the answer is not a number of seconds")
    }
}

impl std::error::Error for UnreadableDelay {}

/// Reads a whole answer: digits, and after a point up to nine more.
///
/// # Errors
/// Whatever else it is.
pub fn parse(answer: &[u8]) -> Result<Duration, UnreadableDelay> {
    let point = answer.iter().position(|&byte| byte == b'.');
    let (seconds, decimals) = match point {
        Some(point) => (&answer[..point], &answer[point + 1..]),
        None => (answer, &b"0"[..]),
    };
    let seconds = number(seconds, SECONDS_DIGITS_MAX)?;
    let fraction = number(decimals, DECIMALS_MAX)?;
    let nanos = fraction * 10_u64.pow((DECIMALS_MAX - decimals.len()) as u32);
    // Nine digits at most, so it is less than a second.
    Ok(Duration::new(seconds, u32::try_from(nanos).map_err(|_| UnreadableDelay)?))
}

fn number(digits: &[u8], most: usize) -> Result<u64, UnreadableDelay> {
    if digits.is_empty() || digits.len() > most || !digits.iter().all(u8::is_ascii_digit) {
        return Err(UnreadableDelay);
    }
    Ok(digits.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(delay_ns: u64, rounding: Rounding) -> String {
        let mut out = [0; ANSWER_BYTES_MAX];
        String::from_utf8(encode(&mut out, delay_ns, rounding).to_vec()).unwrap()
    }

    fn check(delay_ns: u64, nearest: &str, up: &str) {
        assert_eq!(written(delay_ns, Rounding::Nearest), nearest, "{delay_ns}");
        assert_eq!(written(delay_ns, Rounding::Up), up, "{delay_ns}");
    }

    #[test]
    fn delays_have_three_decimals() {
        check(0, "0.000", "0.000");
        check(1, "0.000", "0.001");
        check(499_999, "0.000", "0.001");
        check(500_000, "0.001", "0.001");
        check(2_666_666_667, "2.667", "2.667");
        check(2_833_333_334, "2.833", "2.834");
        check(10_000_000_000, "10.000", "10.000");
        check(999_999_000_000, "999.999", "999.999");
        check(999_999_500_000, "1000.000", "1000.000");
        check(u64::MAX, "18446744073.710", "18446744073.710");
    }

    #[test]
    fn answers_are_read_and_anything_else_is_not() {
        let read = |text: &str| parse(text.as_bytes());
        assert_eq!(read("0.000"), Ok(Duration::ZERO));
        assert_eq!(read("0.0"), Ok(Duration::ZERO));
        assert_eq!(read("2.667"), Ok(Duration::from_millis(2_667)));
        assert_eq!(read("7"), Ok(Duration::from_secs(7)));
        assert_eq!(read("0.000000001"), Ok(Duration::from_nanos(1)));
        assert_eq!(read("99999999999.999999999"), Ok(Duration::new(99_999_999_999, 999_999_999)));
        for wrong in [
            "",
            ".",
            "1.",
            ".5",
            "-1.0",
            "+1.0",
            "1e3",
            "nan",
            "inf",
            "1.0\n",
            " 1.0",
            "1.0.0",
            "1,0",
            "100000000000.0",
            "0.0000000001",
            "HTTP/1.1 400",
        ] {
            assert_eq!(read(wrong), Err(UnreadableDelay), "{wrong:?}");
        }
    }

    proptest! {
        /// Against the library's own formatting, exact because the milliseconds are whole.
        #[test]
        fn any_delay_is_written_rounded_and_read_back(delay_ns: u64, up: bool) {
            let rounding = if up { Rounding::Up } else { Rounding::Nearest };
            let wide = u128::from(delay_ns);
            let ms = if up { wide.div_ceil(1_000_000) } else { (wide + 500_000) / 1_000_000 };
            let text = written(delay_ns, rounding);
            prop_assert_eq!(&text, &format!("{}.{:03}", ms / 1000, ms % 1000));
            let expected = Duration::from_millis(u64::try_from(ms).unwrap());
            prop_assert_eq!(parse(text.as_bytes()), Ok(expected));
            prop_assert!(ms >= 1_000_000 || text.len() <= 7);
        }

        #[test]
        fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = parse(&bytes);
        }
    }
}
