//! The form of keys: a domain, then entries, parted by spaces: `ws ip=74.11.99.155`.
//!
//! Doors with structure compose their keys here, so that two different requests never share a
//! key by accident. What the bytes of a key mean is for rules to say.

/// The longest key, in bytes.
pub const KEY_BYTES_MAX: usize = 1024;

/// Whether two byte strings are the same, by words and without a call: keys are short, and a
/// library's comparison was measured to cost as much as the rest of a decision.
#[inline]
#[must_use]
pub fn same(one: &[u8], other: &[u8]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    let (Some(last), Some(other_last)) = (one.last_chunk::<8>(), other.last_chunk::<8>()) else {
        return one.iter().zip(other).all(|(a, b)| a == b);
    };
    // The last word overlaps the one before it.
    let words = one.as_chunks::<8>().0.iter().zip(other.as_chunks::<8>().0);
    u64::from_le_bytes(*last) == u64::from_le_bytes(*other_last) && { words }
        .all(|(a, b)| u64::from_le_bytes(*a) == u64::from_le_bytes(*b))
}

/// A composed key would be longer than [`KEY_BYTES_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the key is longer than {KEY_BYTES_MAX} bytes")]
pub struct KeyTooLong;

/// Writes one key into a buffer that the caller keeps and uses again.
///
/// Spaces, `%` and control bytes are percent-encoded, and so is `=` in the name of an entry. For
/// the same sequence of calls, different texts therefore give different keys. No more than
/// [`KEY_BYTES_MAX`] bytes are ever written, however long the texts are.
#[derive(Debug)]
pub struct KeyBuilder<'a> {
    out: &'a mut Vec<u8>,
    /// Where in the buffer the key begins.
    start: usize,
    fits: bool,
}

impl<'a> KeyBuilder<'a> {
    /// Begins a key with its domain; what was in the buffer is gone.
    pub fn new(out: &'a mut Vec<u8>, domain: &[u8]) -> Self {
        out.clear();
        Self::behind(out, domain)
    }

    /// Begins a key behind whatever the buffer holds: several of them share one.
    pub fn behind(out: &'a mut Vec<u8>, domain: &[u8]) -> Self {
        let start = out.len();
        let mut builder = Self { out, start, fits: true };
        builder.encode(domain, false);
        builder
    }

    /// Adds ` name=value`.
    #[must_use]
    pub fn entry(mut self, name: &[u8], value: &[u8]) -> Self {
        self.literal(b' ');
        self.encode(name, true);
        self.literal(b'=');
        self.encode(value, false);
        self
    }

    /// Adds ` word`: an entry that has no name, such as an identifier. Its `=` stays as it is,
    /// so that an identifier such as `ip=1.2.3.4` meets the rules that are written for it.
    #[must_use]
    pub fn word(mut self, word: &[u8]) -> Self {
        self.literal(b' ');
        self.encode(word, false);
        self
    }

    /// The key.
    ///
    /// # Errors
    /// If it would be too long; the buffer then holds what it held before.
    pub fn finish(self) -> Result<&'a [u8], KeyTooLong> {
        if !self.fits {
            self.out.truncate(self.start);
            return Err(KeyTooLong);
        }
        Ok(&self.out[self.start..])
    }

    fn literal(&mut self, byte: u8) {
        self.write(&[byte]);
    }

    fn encode(&mut self, text: &[u8], name: bool) {
        const HEX: &[u8; 16] = b"0123456789ABCDEF";
        let odd = |&byte: &u8| byte <= b' ' || byte == 0x7f || byte == b'%' || name && byte == b'=';
        // Nearly all texts are written as they are, in one piece.
        let mut rest = text;
        while let Some(at) = rest.iter().position(odd) {
            let byte = rest[at];
            self.write(&rest[..at]);
            self.write(&[b'%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
            if !self.fits {
                return;
            }
            rest = &rest[at + 1..];
        }
        self.write(rest);
    }

    fn write(&mut self, bytes: &[u8]) {
        self.fits &= self.out.len() - self.start + bytes.len() <= KEY_BYTES_MAX;
        if self.fits {
            self.out.extend_from_slice(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn compose(domain: &[u8], entries: &[(Vec<u8>, Vec<u8>)]) -> Result<Vec<u8>, KeyTooLong> {
        let mut out = Vec::new();
        let builder = KeyBuilder::new(&mut out, domain);
        let builder = entries.iter().fold(builder, |b, (name, value)| b.entry(name, value));
        builder.finish().map(<[u8]>::to_vec)
    }

    fn decode(text: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut bytes = text.iter();
        while let Some(&byte) = bytes.next() {
            if byte == b'%' {
                let hex: String = bytes.by_ref().take(2).map(|&digit| char::from(digit)).collect();
                out.push(u8::from_str_radix(&hex, 16).unwrap());
            } else {
                out.push(byte);
            }
        }
        out
    }

    #[test]
    fn keys_have_the_seeds_form() {
        let mut out = b"left over".to_vec();
        let key = KeyBuilder::new(&mut out, b"ws").entry(b"ip", b"74.11.99.155").finish();
        assert_eq!(key, Ok(&b"ws ip=74.11.99.155"[..]));
        let key = KeyBuilder::new(&mut out, b"api").entry(b"path", b"/a b%20=\x7f\n").finish();
        assert_eq!(key, Ok(&b"api path=/a%20b%2520=%7F%0A"[..]));
        let key = KeyBuilder::new(&mut out, b"d").entry(b"a=b", b"").word(b"ip=1 2").finish();
        assert_eq!(key, Ok(&b"d a%3Db= ip=1%202"[..]));
    }

    #[test]
    fn too_long_is_an_error_and_costs_nothing() {
        let mut out = Vec::with_capacity(KEY_BYTES_MAX);
        let before = out.capacity();
        let longest = vec![b'x'; KEY_BYTES_MAX - 4];
        assert_eq!(
            KeyBuilder::new(&mut out, b"d").entry(b"n", &longest).finish().map(<[u8]>::len),
            Ok(KEY_BYTES_MAX)
        );
        let huge = vec![b' '; 1 << 20];
        assert_eq!(KeyBuilder::new(&mut out, &huge).word(b"").finish(), Err(KeyTooLong));
        let spaces = vec![b' '; KEY_BYTES_MAX / 3];
        assert_eq!(KeyBuilder::new(&mut out, b"d").word(&spaces).finish(), Err(KeyTooLong));
        assert_eq!(out.capacity(), before);
    }

    #[test]
    fn several_keys_lie_in_one_buffer() {
        let mut out = Vec::new();
        let first = KeyBuilder::behind(&mut out, b"web").word(b"a b").finish();
        assert_eq!(first, Ok(&b"web a%20b"[..]));
        let huge = vec![b'x'; KEY_BYTES_MAX];
        assert_eq!(KeyBuilder::behind(&mut out, b"web").word(&huge).finish(), Err(KeyTooLong));
        let longest = &huge[..KEY_BYTES_MAX - 4];
        let second = KeyBuilder::behind(&mut out, b"web").word(longest).finish();
        assert_eq!(second.map(<[u8]>::len), Ok(KEY_BYTES_MAX));
        assert_eq!(out.len(), 9 + KEY_BYTES_MAX);
    }

    /// Few different bytes, so that texts often nearly agree.
    fn text() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(
            prop_oneof![Just(b' '), Just(b'='), Just(b'%'), Just(b'2'), Just(b'0'), any::<u8>()],
            0..6,
        )
    }

    proptest! {
        /// Reading a key back gives what it was made of: so no two inputs share one.
        #[test]
        fn keys_can_be_read_back(
            domain in text(),
            entries in prop::collection::vec((text(), text()), 0..4),
        ) {
            let key = compose(&domain, &entries).unwrap();
            let mut parts = key.split(|&byte| byte == b' ');
            prop_assert_eq!(decode(parts.next().unwrap()), domain);
            let read: Vec<_> = parts
                .map(|entry| {
                    let equals = entry.iter().position(|&byte| byte == b'=').unwrap();
                    (decode(&entry[..equals]), decode(&entry[equals + 1..]))
                })
                .collect();
            prop_assert_eq!(read, entries);
            prop_assert!(key.iter().all(|&byte| byte >= b' ' && byte != 0x7f));
        }
    }
}
