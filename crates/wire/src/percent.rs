//! Percent-encoding, as URLs and keys have it: `%2F` is a slash.

/// The bytes of a text, each `%41` and the like decoded once. A `%` without two hexadecimal digits
/// behind it is an `Err` of itself.
pub struct Decoded<'a>(pub &'a [u8]);

impl Iterator for Decoded<'_> {
    type Item = Result<u8, u8>;

    fn next(&mut self) -> Option<Self::Item> {
        let digit = |byte: u8| char::from(byte).to_digit(16);
        if let [b'%', high, low, rest @ ..] = self.0
            && let (Some(high), Some(low)) = (digit(*high), digit(*low))
        {
            self.0 = rest;
            return Some(Ok((high * 16 + low) as u8));
        }
        let (&byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(if byte == b'%' { Err(byte) } else { Ok(byte) })
    }
}

/// Appends the bytes that `text` stands for to `out`; `None` if a `%` lacks its digits.
#[must_use]
pub fn decode(text: &[u8], out: &mut Vec<u8>) -> Option<()> {
    for byte in Decoded(text) {
        out.push(byte.ok()?);
    }
    Some(())
}

/// `text` with every byte encoded that is neither a letter or digit nor one of `plain`.
#[must_use]
pub fn encoded(text: &[u8], plain: &[u8]) -> String {
    let mut out = String::with_capacity(text.len());
    for &byte in text {
        if byte.is_ascii_alphanumeric() || plain.contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(text: &str) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        decode(text.as_bytes(), &mut out).map(|()| out)
    }

    #[test]
    fn two_hexadecimal_digits_are_a_byte() {
        assert_eq!(decoded("a+b%2f%2F%00%ff"), Some(b"a+b//\0\xff".to_vec()));
        assert_eq!(decoded("%2541"), Some(b"%41".to_vec()));
        for broken in ["%", "%2", "%zz", "%+1", "a%", "%%41"] {
            assert_eq!(decoded(broken), None, "{broken}");
        }
    }

    #[test]
    fn every_byte_survives() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(decoded(&encoded(&all, b"-._~=:/")), Some(all));
        assert_eq!(encoded(b"a.b %", b"."), "a.b%20%25");
    }

    #[test]
    fn what_is_no_encoding_can_be_kept() {
        let kept = Decoded(b"%%41%4").map(|byte| byte.unwrap_or_else(|percent| percent));
        assert_eq!(kept.collect::<Vec<_>>(), b"%A%4");
    }
}
