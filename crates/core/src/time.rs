//! Time as the law sees it: nanoseconds on two clocks, handed in with each decision.
//!
//! Nothing here reads a clock.

/// A point in time or a span, in nanoseconds. As a point on either clock it lasts for 584 years.
pub type Nanos = u64;

/// One microsecond.
pub const MICROSECOND: Nanos = 1_000;
/// One millisecond.
pub const MILLISECOND: Nanos = 1_000_000;
/// One second.
pub const SECOND: Nanos = 1_000_000_000;
/// One minute.
pub const MINUTE: Nanos = 60 * SECOND;
/// One hour.
pub const HOUR: Nanos = 60 * MINUTE;
/// One day of 24 hours.
pub const DAY: Nanos = 24 * HOUR;

/// The moment of a decision on both clocks.
///
/// Limits decide on `mono`, which never steps. `unix` aligns fixed windows and is what people
/// are shown; it may step both ways at any moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Nanoseconds since the machine booted (suspended time included).
    pub mono: Nanos,
    /// Nanoseconds since the Unix epoch, UTC.
    pub unix: Nanos,
}

impl Now {
    /// The moment `span` later on both clocks.
    #[must_use]
    pub fn after(self, span: Nanos) -> Self {
        Self { mono: self.mono.saturating_add(span), unix: self.unix.saturating_add(span) }
    }

    /// The moment `span` earlier on both clocks.
    #[must_use]
    pub fn before(self, span: Nanos) -> Self {
        Self { mono: self.mono.saturating_sub(span), unix: self.unix.saturating_sub(span) }
    }
}
