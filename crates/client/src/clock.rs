//! The only file of this crate that reads a clock.
//!
//! Smockron speaks of milliseconds since 1970, and so does this clock. It is handed to whatever
//! needs the time, so that tests can hold it still and move it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The kernel's time at its last tick, which is read without the processor's counter: reading that
/// waits for the instructions before it, and a lookup of 150 ns takes 220 with it.
const TICKING: ClockId =
    if cfg!(target_os = "linux") { ClockId::RealtimeCoarse } else { ClockId::Realtime };

/// The time in milliseconds since 1970. Cheap to clone; clones of a manual clock share its time.
#[derive(Clone, Debug, Default)]
pub struct UnixClock(Source);

#[derive(Clone, Debug, Default)]
enum Source {
    #[default]
    System,
    Manual {
        hand: Arc<AtomicI64>,
        /// How far its last tick lies behind.
        behind_ms: i64,
    },
}

impl UnixClock {
    /// The machine's clock.
    #[must_use]
    pub fn system() -> Self {
        Self(Source::System)
    }

    /// A clock that stands still at so many milliseconds since 1970 until it is moved.
    #[must_use]
    pub fn manual(unix_ms: i64) -> Self {
        Self(Source::Manual { hand: Arc::new(unix_ms.into()), behind_ms: 0 })
    }

    /// The same with ticks that lie so far behind.
    #[cfg(test)]
    pub(crate) fn manual_behind(unix_ms: i64, behind_ms: i64) -> Self {
        Self(Source::Manual { hand: Arc::new(unix_ms.into()), behind_ms })
    }

    /// Milliseconds since 1970.
    #[inline]
    #[must_use]
    pub fn unix_ms(&self) -> i64 {
        match &self.0 {
            Source::System => read_ms(ClockId::Realtime),
            Source::Manual { hand, .. } => hand.load(Relaxed),
        }
    }

    /// Milliseconds since 1970 at the last tick of the machine's clock: never after
    /// [`UnixClock::unix_ms`] and a few milliseconds before it at most, at a third of the cost.
    #[inline]
    pub(crate) fn tick_ms(&self) -> i64 {
        match &self.0 {
            Source::System => read_ms(TICKING),
            Source::Manual { hand, behind_ms } => hand.load(Relaxed) - behind_ms,
        }
    }

    /// Moves a manual clock on; the machine's clock does not listen.
    pub fn advance(&self, span: Duration) {
        if let Source::Manual { hand, .. } = &self.0 {
            hand.fetch_add(i64::try_from(span.as_millis()).unwrap_or(i64::MAX), Relaxed);
        }
    }

    /// Sets a manual clock, backwards too; the machine's clock does not listen.
    pub fn set(&self, unix_ms: i64) {
        if let Source::Manual { hand, .. } = &self.0 {
            hand.store(unix_ms, Relaxed);
        }
    }
}

/// One in a thousand of what a request costs in all: the standard library gives the time as a
/// difference alone, which costs three times as much.
#[inline]
fn read_ms(clock: ClockId) -> i64 {
    let now = clock_gettime(clock);
    now.tv_sec * 1_000 + now.tv_nsec / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_stands_still_until_it_is_moved() {
        let clock = UnixClock::manual(1_000);
        let shared = clock.clone();
        assert_eq!(shared.unix_ms(), 1_000);
        clock.advance(Duration::from_millis(250));
        assert_eq!(shared.unix_ms(), 1_250);
    }

    #[test]
    fn ticks_lie_behind_and_never_ahead() {
        let clock = UnixClock::system();
        for _ in 0..1_000 {
            let tick_ms = clock.tick_ms();
            let ms = clock.unix_ms();
            assert!(tick_ms <= ms && tick_ms > ms - 3_600_000, "{tick_ms} {ms}");
        }
        let clock = UnixClock::manual_behind(1_000, 10);
        clock.advance(Duration::from_millis(250));
        assert_eq!((clock.tick_ms(), clock.unix_ms()), (1_240, 1_250));
        assert_eq!(UnixClock::manual(1_000).tick_ms(), 1_000);
    }

    #[test]
    fn the_machines_clock_runs_and_does_not_listen() {
        let clock = UnixClock::system();
        let before = clock.unix_ms();
        clock.advance(Duration::from_secs(1 << 40));
        let after = clock.unix_ms();
        assert!(before > 1_600_000_000_000 && after < before + 1_000_000_000);
    }
}
