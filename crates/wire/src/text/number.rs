//! The decimal forms of the text protocol: whole numbers, and rates with one decimal place.
//!
//! This is on the path of every answer, so nothing here goes through `std::fmt`. The digits are
//! those of C's `%.1f` and `%d`: the nearest decimal to the exact binary value, ties to even.

/// The most digits of a `u64`.
pub const U64_BYTES_MAX: usize = 20;

/// The highest rate that is shown, in tenths: real clients read at most 30 bytes.
pub const RATE_TENTHS_MAX: u64 = 99_999_999;

const PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[0; 2]; 100];
    let mut n = 0;
    while n < 100 {
        pairs[n] = [b'0' + (n / 10) as u8, b'0' + (n % 10) as u8];
        n += 1;
    }
    pairs
};

/// The rate in tenths, as `%.1f` would round it; at most [`RATE_TENTHS_MAX`].
///
/// A negative rate and one that is not a number are shown as zero: clients know neither sign nor
/// `nan`.
///
/// The scaled fraction is exact where it can matter. Below 2^24 a float of at least 2^-8 is a
/// multiple of 2^-60, so cutting to 60 binary places loses nothing, and ten times that still fits
/// 64 bits. A fraction below 2^-8 loses bits, but is far below the first half of a tenth.
#[must_use]
pub fn tenths(rate: f64) -> u64 {
    const PLACES: u32 = 60;
    const ONE: u64 = 1 << PLACES;
    const HALF: u64 = ONE / 2;
    if rate >= 1e7 {
        return RATE_TENTHS_MAX;
    }
    // `max` answers the zero for NaN.
    let rate = rate.max(0.0);
    let whole = rate as u64;
    let fraction = ((rate - whole as f64) * ONE as f64) as u64 * 10;
    let tenth = whole * 10 + (fraction >> PLACES);
    let rest = fraction & (ONE - 1);
    let up = rest > HALF || (rest == HALF && tenth % 2 == 1);
    (tenth + u64::from(up)).min(RATE_TENTHS_MAX)
}

/// Writes `n` at the start of `out` and returns how many bytes it took.
///
/// # Panics
/// If `out` is shorter than the number; [`U64_BYTES_MAX`] bytes are always enough.
pub fn put_u64(out: &mut [u8], n: u64) -> usize {
    if n < 10 {
        out[0] = b'0' + n as u8;
        return 1;
    }
    let digits = n.ilog10() as usize + 1;
    let out = &mut out[..digits];
    let mut rest = n;
    let mut end = digits;
    while end >= 2 {
        out[end - 2..end].copy_from_slice(&PAIRS[(rest % 100) as usize]);
        rest /= 100;
        end -= 2;
    }
    if end == 1 {
        out[0] = b'0' + rest as u8;
    }
    digits
}

/// Writes a number of tenths with one decimal place and returns how many bytes it took.
///
/// # Panics
/// If `out` is shorter than the number.
pub fn put_tenths(out: &mut [u8], tenths: u64) -> usize {
    let digits = put_u64(out, tenths / 10);
    out[digits] = b'.';
    out[digits + 1] = b'0' + (tenths % 10) as u8;
    digits + 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shown(rate: f64) -> String {
        let mut out = [0; 32];
        let len = put_tenths(&mut out, tenths(rate));
        String::from_utf8(out[..len].to_vec()).unwrap()
    }

    /// Rust's own formatting is exact and rounds ties to even, as C's does.
    fn model(rate: f64) -> String {
        if rate >= 9_999_999.9 {
            "9999999.9".into()
        } else if rate > 0.0 {
            format!("{rate:.1}")
        } else {
            "0.0".into()
        }
    }

    #[test]
    fn rates_known_by_heart() {
        let check = |rate: f64, expected: &str| {
            assert_eq!(shown(rate), expected, "{rate:e}");
            assert_eq!(model(rate), expected, "the model, {rate:e}");
        };
        check(0.0, "0.0");
        check(-0.0, "0.0");
        check(-1.0, "0.0");
        check(f64::NAN, "0.0");
        check(f64::NEG_INFINITY, "0.0");
        check(f64::INFINITY, "9999999.9");
        check(f64::MAX, "9999999.9");
        check(f64::MIN_POSITIVE, "0.0");
        check(f64::from_bits(1), "0.0");
        check(0.05, "0.1"); // the binary value is a little above
        check(0.05f64.next_down(), "0.0");
        check(0.15, "0.1"); // the binary value is a little below
        check(0.25, "0.2");
        check(0.75, "0.8");
        check(0.35, "0.3");
        check(0.95, "0.9");
        check(0.95f64.next_up(), "1.0");
        check(1.25, "1.2");
        check(2034.3, "2034.3");
        check(28.1, "28.1");
        check(9_999_999.75, "9999999.8");
        check(9_999_999.849_999, "9999999.8");
        check(9_999_999.9, "9999999.9");
        check(9_999_999.96, "9999999.9");
        check(1e7, "9999999.9");
    }

    #[test]
    fn every_quarter_and_twentieth_with_its_neighbours() {
        for n in 0..400_000u32 {
            for rate in [f64::from(n) / 20.0, f64::from(n) / 4.0, f64::from(n) * 24.99] {
                for rate in [rate.next_down(), rate, rate.next_up()] {
                    assert_eq!(shown(rate), model(rate), "{rate:e}");
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100_000))]

        #[test]
        fn rates_are_those_of_exact_formatting(rate in 0.0f64..1e7) {
            prop_assert_eq!(shown(rate), model(rate));
        }

        #[test]
        fn any_bits_are_a_rate(bits: u64) {
            let rate = f64::from_bits(bits);
            prop_assert_eq!(shown(rate), model(rate));
        }

        #[test]
        fn small_exponents(mantissa in 0u64..1 << 52, exponent in 1000u64..1050) {
            let rate = f64::from_bits(exponent << 52 | mantissa);
            prop_assert_eq!(shown(rate), model(rate));
        }

        #[test]
        fn whole_numbers(n: u64, shift in 0u32..64) {
            let n = n >> shift;
            let mut out = [0; U64_BYTES_MAX];
            let len = put_u64(&mut out, n);
            prop_assert_eq!(out[..len].to_vec(), n.to_string().into_bytes());
        }
    }

    #[test]
    fn whole_numbers_where_the_length_changes() {
        let mut powers = vec![0, u64::MAX];
        powers.extend((0..20).map(|p| 10u64.pow(p)));
        for n in powers.iter().flat_map(|&n| [n.saturating_sub(1), n, n.saturating_add(1)]) {
            let mut out = [0; U64_BYTES_MAX];
            let len = put_u64(&mut out, n);
            assert_eq!(out[..len], *n.to_string().as_bytes());
        }
    }
}
