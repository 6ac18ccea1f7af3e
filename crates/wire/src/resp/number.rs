//! Integers in arguments and headers, in the two forms that are in use.

/// The most digits that never overflow.
const SAFE_DIGITS: usize = 18;

/// An integer as Redis reads it: no plus sign, no leading zero, no minus zero.
#[must_use]
#[inline]
pub fn strict(text: &[u8]) -> Option<i64> {
    match text {
        b"0" => Some(0),
        [b'1'..=b'9', ..] | [b'-', b'1'..=b'9', ..] => lenient(text),
        _ => None,
    }
}

/// An integer as Rust reads it, and so redis-cell: a sign and leading zeros are fine.
#[must_use]
#[inline]
pub fn lenient(text: &[u8]) -> Option<i64> {
    let (is_negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    if digits.is_empty() {
        return None;
    }
    if digits.len() > SAFE_DIGITS {
        return long(is_negative, digits);
    }
    let mut number: i64 = 0;
    for &byte in digits {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        number = number * 10 + i64::from(digit);
    }
    Some(if is_negative { -number } else { number })
}

#[cold]
fn long(is_negative: bool, digits: &[u8]) -> Option<i64> {
    let mut number: i64 = 0;
    for &byte in digits {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        // Negative all the way: the least number has no positive counterpart.
        number = number.checked_mul(10)?.checked_sub(i64::from(digit))?;
    }
    if is_negative { Some(number) } else { number.checked_neg() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_digits_and_a_sign_are_numbers() {
        for (text, of_redis, of_rust) in [
            ("0", Some(0), Some(0)),
            ("7", Some(7), Some(7)),
            ("-1", Some(-1), Some(-1)),
            ("-0", None, Some(0)),
            ("+5", None, Some(5)),
            ("005", None, Some(5)),
            ("", None, None),
            ("-", None, None),
            ("+", None, None),
            (" 5", None, None),
            ("5 ", None, None),
            ("1.5", None, None),
            ("1e3", None, None),
            ("--1", None, None),
            ("9223372036854775807", Some(i64::MAX), Some(i64::MAX)),
            ("9223372036854775808", None, None),
            ("-9223372036854775808", Some(i64::MIN), Some(i64::MIN)),
            ("-9223372036854775809", None, None),
            ("00000000000000000000000000007", None, Some(7)),
            ("99999999999999999999999", None, None),
            ("1234567890123456789x", None, None),
        ] {
            assert_eq!(strict(text.as_bytes()), of_redis, "{text:?}");
            assert_eq!(lenient(text.as_bytes()), of_rust, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn a_number_is_read_as_rust_reads_it(text in "[-+]?[0-9]{0,21}[x ]?") {
            prop_assert_eq!(lenient(text.as_bytes()), text.parse().ok());
        }

        #[test]
        fn what_is_written_is_read(number in any::<i64>()) {
            prop_assert_eq!(strict(number.to_string().as_bytes()), Some(number));
        }
    }
}
