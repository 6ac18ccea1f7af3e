//! The numbers of N bytes, units of time, and what an UPDATE changes.
//!
//! Here a byte of the protocol becomes a word, and back. No arithmetic of time happens here.

/// How many bytes a listener's numbers have: the protocol's N.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ValueSize {
    /// N = 1.
    Bits8,
    /// N = 2.
    Bits16,
    /// N = 4.
    Bits32,
    /// N = 8.
    Bits64,
}

impl ValueSize {
    /// All four, the smallest first.
    pub const ALL: [Self; 4] = [Self::Bits8, Self::Bits16, Self::Bits32, Self::Bits64];

    /// N.
    #[must_use]
    #[inline]
    pub const fn bytes(self) -> usize {
        match self {
            Self::Bits8 => 1,
            Self::Bits16 => 2,
            Self::Bits32 => 4,
            Self::Bits64 => 8,
        }
    }

    /// The largest number of N bytes.
    #[must_use]
    #[inline]
    pub const fn max(self) -> u64 {
        u64::MAX >> (64 - 8 * self.bytes())
    }
}

/// A value size that does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownSize;

impl std::fmt::Display for UnknownSize {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("a value size is 8, 16, 32 or 64 bits")
    }
}

impl std::error::Error for UnknownSize {}

impl TryFrom<u8> for ValueSize {
    type Error = UnknownSize;

    /// The size of so many bits.
    fn try_from(bits: u8) -> Result<Self, UnknownSize> {
        Self::ALL.into_iter().find(|size| size.bytes() * 8 == usize::from(bits)).ok_or(UnknownSize)
    }
}

/// The unit in which a record's time to live is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Unit {
    /// `01`
    Nanoseconds = 1,
    /// `02`
    Microseconds = 2,
    /// `03`
    Milliseconds = 3,
    /// `04`
    Seconds = 4,
    /// `05`
    Minutes = 5,
    /// `06`
    Hours = 6,
}

impl Unit {
    /// All six, the shortest first.
    pub const ALL: [Self; 6] = [
        Self::Nanoseconds,
        Self::Microseconds,
        Self::Milliseconds,
        Self::Seconds,
        Self::Minutes,
        Self::Hours,
    ];

    /// The unit that a ttl_type stands for.
    #[must_use]
    #[inline]
    pub const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Nanoseconds),
            2 => Some(Self::Microseconds),
            3 => Some(Self::Milliseconds),
            4 => Some(Self::Seconds),
            5 => Some(Self::Minutes),
            6 => Some(Self::Hours),
            _ => None,
        }
    }

    /// Its ttl_type.
    #[must_use]
    #[inline]
    pub const fn byte(self) -> u8 {
        self as u8
    }

    /// Its length in nanoseconds.
    #[must_use]
    #[inline]
    pub const fn nanos(self) -> u64 {
        match self {
            Self::Nanoseconds => 1,
            Self::Microseconds => 1_000,
            Self::Milliseconds => 1_000_000,
            Self::Seconds => 1_000_000_000,
            Self::Minutes => 60_000_000_000,
            Self::Hours => 3_600_000_000_000,
        }
    }
}

/// A time to live as a request gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ttl {
    /// `None` where the ttl_type is unknown: such a request is answered `00`.
    pub unit: Option<Unit>,
    /// How many units.
    pub amount: u64,
}

impl Ttl {
    /// So many units.
    #[must_use]
    pub const fn new(amount: u64, unit: Unit) -> Self {
        Self { unit: Some(unit), amount }
    }
}

/// What an UPDATE changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attribute {
    /// `00`: a counter's quota.
    Quota,
    /// `01`: a record's time to live.
    Ttl,
}

impl Attribute {
    #[inline]
    pub(super) const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::Quota),
            1 => Some(Self::Ttl),
            _ => None,
        }
    }
}

/// How an UPDATE changes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateChange {
    /// `00`: sets it.
    Patch,
    /// `01`: adds to it.
    Increase,
    /// `02`: takes from it.
    Decrease,
}

impl UpdateChange {
    #[inline]
    pub(super) const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::Patch),
            1 => Some(Self::Increase),
            2 => Some(Self::Decrease),
            _ => None,
        }
    }
}

/// Calls `$function::<N>` for the N of a size, so that each N has straight code of its own.
macro_rules! for_size {
    ($size:expr, $function:ident($($argument:expr),* $(,)?)) => {
        match $size {
            $crate::throttr::ValueSize::Bits8 => $function::<1>($($argument),*),
            $crate::throttr::ValueSize::Bits16 => $function::<2>($($argument),*),
            $crate::throttr::ValueSize::Bits32 => $function::<4>($($argument),*),
            $crate::throttr::ValueSize::Bits64 => $function::<8>($($argument),*),
        }
    };
}
pub(super) use for_size;

/// The number in the first N bytes, which must be there.
#[inline(always)]
pub(super) fn number<const N: usize>(bytes: &[u8]) -> u64 {
    let mut wide = [0; 8];
    wide[..N].copy_from_slice(&bytes[..N]);
    u64::from_le_bytes(wide)
}

/// A number as N bytes, the largest of them if it does not fit.
#[inline(always)]
pub(super) fn saturated<const N: usize>(number: u64) -> [u8; N] {
    let bytes = number.min(u64::MAX >> (64 - 8 * N)).to_le_bytes();
    let mut narrow = [0; N];
    narrow.copy_from_slice(&bytes[..N]);
    narrow
}

/// Appends a number as `size` bytes, the largest of them if it does not fit.
#[inline]
pub(super) fn put(out: &mut Vec<u8>, size: ValueSize, number: u64) {
    let bytes = number.min(size.max()).to_le_bytes();
    out.extend_from_slice(&bytes[..size.bytes()]);
}

/// The number in all of `bytes`, of which there are at most eight.
pub(super) fn number_of(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}
