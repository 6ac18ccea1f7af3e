//! Keys.

/// The most bytes of a key.
pub const KEY_BYTES_MAX: usize = 1024;
