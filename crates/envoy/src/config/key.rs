//! The key under which a descriptor is counted: `<domain> k=v k2=v2`.
//!
//! Clients choose values, and an error of ours would let their requests pass, so no key is too
//! long: a long one is cut, and a hash of the whole tells it from others that begin alike. Values
//! need not be UTF-8: their bytes are in the key as they are.

use sha2::{Digest, Sha256};
use tidegate_core::key::KeyBuilder;

/// How much of a key that is too long is kept.
const KEPT_BYTES: usize = 990;
/// How many bytes of the hash follow, as two digits each.
const HASH_BYTES: usize = 16;
/// How much text is encoded at once: each byte takes up to three, and a key holds 1024.
const PIECE_BYTES: usize = 256;

/// Writes the key of a descriptor behind what `out` holds.
pub fn write_key<'e>(
    out: &mut Vec<u8>,
    domain: &str,
    entries: impl Iterator<Item = (&'e [u8], &'e [u8])> + Clone,
) {
    write(out, domain, entries, None);
}

/// Writes a key that ends with a word. No entry can be taken for it: entries have a `=`.
pub(super) fn write<'e>(
    out: &mut Vec<u8>,
    domain: &str,
    entries: impl Iterator<Item = (&'e [u8], &'e [u8])> + Clone,
    word: Option<&str>,
) {
    let mut builder = KeyBuilder::behind(out, domain.as_bytes());
    for (name, value) in entries.clone() {
        builder = builder.entry(name, value);
    }
    if let Some(word) = word {
        builder = builder.word(word.as_bytes());
    }
    if builder.finish().is_err() {
        write_cut(out, domain, entries, word);
    }
}

#[cold]
fn write_cut<'e>(
    out: &mut Vec<u8>,
    domain: &str,
    entries: impl Iterator<Item = (&'e [u8], &'e [u8])>,
    word: Option<&str>,
) {
    let mut cut =
        CutKey { hash: Sha256::new(), piece: Vec::new(), kept_max: out.len() + KEPT_BYTES, out };
    cut.encode(domain.as_bytes(), false);
    for (name, value) in entries {
        cut.write(b" ");
        cut.encode(name, true);
        cut.write(b"=");
        cut.encode(value, false);
    }
    if let Some(word) = word {
        cut.write(b" ");
        cut.encode(word.as_bytes(), false);
    }
    cut.finish();
}

/// A key of which only the beginning is kept.
struct CutKey<'a> {
    out: &'a mut Vec<u8>,
    /// How long `out` may become.
    kept_max: usize,
    hash: Sha256,
    piece: Vec<u8>,
}

impl CutKey<'_> {
    fn encode(&mut self, text: &[u8], is_name: bool) {
        for piece in text.chunks(PIECE_BYTES) {
            let mut encoded = std::mem::take(&mut self.piece);
            // A piece always fits into a key.
            let _ = KeyBuilder::new(&mut encoded, piece).finish();
            // The builder leaves the `=` of all but names of entries.
            for (at, run) in encoded.split(|byte| is_name && *byte == b'=').enumerate() {
                if at > 0 {
                    self.write(b"%3D");
                }
                self.write(run);
            }
            self.piece = encoded;
        }
    }

    fn write(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
        let room = self.kept_max - self.out.len();
        self.out.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    fn finish(self) {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        self.out.push(b'~');
        for byte in &self.hash.finalize()[..HASH_BYTES] {
            self.out.push(HEX[usize::from(byte >> 4)]);
            self.out.push(HEX[usize::from(byte & 15)]);
        }
    }
}
