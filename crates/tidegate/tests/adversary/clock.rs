//! The only place of all tests that reads the clock and pauses: this suite is about servers that
//! hang, spin or hold on to things, and those can only be seen in time. Quotas of real Envoys,
//! whose assignments last for seconds, are in real time, too.

// Each of those that include this uses its share of it.
#![allow(dead_code)]

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long a canary waits for its answer, and how long a server may take to become quiet.
pub(crate) const WATCHDOG: Duration = Duration::from_secs(30);

/// A point in time that a duration can be measured from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment(Instant);

impl Moment {
    /// Now.
    #[expect(clippy::disallowed_methods, reason = "watchdogs need the real time")]
    pub(crate) fn now() -> Self {
        Self(Instant::now())
    }

    /// How long ago it was.
    pub(crate) fn elapsed(self) -> Duration {
        Self::now().0 - self.0
    }

    /// Whether the watchdog's time has passed since.
    pub(crate) fn is_overdue(self) -> bool {
        self.elapsed() > WATCHDOG
    }
}

/// Milliseconds since 1970.
#[expect(clippy::disallowed_methods, reason = "accounting messages carry the real time")]
pub(crate) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
    u64::try_from(since.as_millis()).expect("a clock before the year 500 million")
}

/// Does nothing for a while.
pub(crate) fn pause(duration: Duration) {
    std::thread::sleep(duration);
}

/// The same in milliseconds.
pub(crate) fn pause_ms(ms: u64) {
    pause(Duration::from_millis(ms));
}
