//! The name of an entry: what the keys of both tables are kept as.

/// The most bytes of a key that stay inside the entry.
const INLINE_BYTES: usize = 22;

/// A key's bytes: short ones inline, so that comparing them follows no pointer.
pub(crate) enum Name {
    /// The first `len` of these.
    Inline { len: u8, bytes: [u8; INLINE_BYTES] },
    /// A longer one.
    Heap(Box<[u8]>),
}

const _: () = assert!(size_of::<Name>() == 24);

impl Name {
    /// The name of these bytes.
    pub(crate) fn new(key: &[u8]) -> Self {
        if key.len() > INLINE_BYTES {
            return Name::Heap(key.into());
        }
        let mut bytes = [0; INLINE_BYTES];
        bytes[..key.len()].copy_from_slice(key);
        Name::Inline { len: key.len() as u8, bytes }
    }

    /// Its bytes.
    #[inline]
    pub(crate) fn as_bytes(&self) -> &[u8] {
        match self {
            Name::Inline { len, bytes } => &bytes[..usize::from(*len).min(INLINE_BYTES)],
            Name::Heap(bytes) => bytes,
        }
    }

    /// Bytes held outside of the entry.
    pub(crate) fn heap_bytes(&self) -> usize {
        match self {
            Name::Inline { .. } => 0,
            Name::Heap(bytes) => bytes.len(),
        }
    }
}
