//! The only room of this crate that reads a clock.
//!
//! Smockron speaks of milliseconds since 1970, and so does this clock. It is handed to whatever
//! needs the time, so that tests can hold it still and move it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::Duration;

use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_gettime};

/// Where the time comes from. Cheap to clone; clones of a manual clock share its hands.
#[derive(Clone, Debug, Default)]
pub struct Clock(Source);

#[derive(Clone, Debug, Default)]
enum Source {
    #[default]
    System,
    Manual(Arc<AtomicI64>),
}

impl Clock {
    /// The machine's clock.
    #[must_use]
    pub fn system() -> Self {
        Self(Source::System)
    }

    /// A clock that stands still at so many milliseconds since 1970 until it is moved.
    #[must_use]
    pub fn manual(unix_ms: i64) -> Self {
        Self(Source::Manual(Arc::new(unix_ms.into())))
    }

    /// Milliseconds since 1970.
    #[inline]
    #[must_use]
    pub fn unix_ms(&self) -> i64 {
        match &self.0 {
            Source::System => system_ms(),
            Source::Manual(hand) => hand.load(Relaxed),
        }
    }

    /// Moves a manual clock on; the machine's clock does not listen.
    pub fn advance(&self, span: Duration) {
        if let Source::Manual(hand) = &self.0 {
            hand.fetch_add(i64::try_from(span.as_millis()).unwrap_or(i64::MAX), Relaxed);
        }
    }

    /// Sets a manual clock, backwards too; the machine's clock does not listen.
    pub fn set(&self, unix_ms: i64) {
        if let Source::Manual(hand) = &self.0 {
            hand.store(unix_ms, Relaxed);
        }
    }
}

/// One in a thousand of what a request costs in all: the standard library gives the time as a
/// difference alone, which costs three times as much.
#[inline]
fn system_ms() -> i64 {
    // There is such a clock everywhere. Without one all requests pass.
    let now = clock_gettime(ClockId::CLOCK_REALTIME).unwrap_or(TimeSpec::new(i64::MAX / 2_000, 0));
    now.tv_sec() * 1_000 + now.tv_nsec() / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_stands_still_until_it_is_moved() {
        let clock = Clock::manual(1_000);
        let shared = clock.clone();
        assert_eq!(shared.unix_ms(), 1_000);
        clock.advance(Duration::from_millis(250));
        assert_eq!(shared.unix_ms(), 1_250);
    }

    #[test]
    fn the_machines_clock_runs_and_does_not_listen() {
        let clock = Clock::system();
        let before = clock.unix_ms();
        clock.advance(Duration::from_secs(1 << 40));
        let after = clock.unix_ms();
        assert!(before > 1_600_000_000_000 && after < before + 1_000_000_000);
    }
}
