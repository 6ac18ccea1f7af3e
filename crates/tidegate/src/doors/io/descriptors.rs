//! File descriptors that connections must leave alone, so that the store, snapshots, reloads and
//! health checks still find one when clients have taken all the others.
//!
//! The system hands out the lowest number that is free. So a descriptor that was just opened has at
//! least as many in use below it as its number says. The reverse does not hold: a connection that
//! closes leaves a hole, and the next one takes it while those above stay. So how many connections
//! have a high number is counted, too.

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, getrlimit};

/// Descriptors that no connection keeps.
const KEPT_BACK: u64 = 32;
/// Descriptors just below those that are kept back. A connection that gets one of them must wait
/// until another one closes.
const MARGIN: u64 = 16;
/// Of those that are kept back, descriptors that not even administration takes.
const LAST: u64 = 8;

/// How many descriptors there are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Descriptors {
    /// From this number on, another connection must close before one is kept.
    short_from: u64,
    /// From this number on, a connection does not even wait for that.
    spent_from: u64,
}

impl Descriptors {
    /// As many as the process may open now.
    pub(crate) fn of_process() -> Self {
        Self::new(limit(), KEPT_BACK, MARGIN)
    }

    /// The same for administration, which may take most of those that are kept back.
    pub(crate) fn for_administration() -> Self {
        Self::new(limit(), LAST, LAST)
    }

    fn new(limit: u64, kept_back: u64, margin: u64) -> Self {
        // A process that may open very few keeps back a share of them.
        let share = |count: u64, part: u64| count.min(limit.saturating_mul(count) / part);
        let spent_from = limit - share(kept_back, 8 * KEPT_BACK);
        Self { spent_from, short_from: spent_from - share(margin, 16 * MARGIN) }
    }

    /// Whether a connection has one of the last numbers.
    #[inline]
    pub(crate) fn is_high(&self, opened: &impl AsFd) -> bool {
        number(opened) >= self.short_from
    }

    /// Whether a connection that was opened may stay only if another one closes; `high` others
    /// have a high number.
    #[inline]
    pub(crate) fn are_short(&self, opened: &impl AsFd, high: usize) -> bool {
        (high > 0 || self.is_high(opened)) && lowest_free(opened) >= self.short_from
    }

    /// Whether a connection that was opened took one of those that are kept back.
    #[inline]
    pub(crate) fn are_spent(&self, opened: &impl AsFd) -> bool {
        number(opened) >= self.spent_from && lowest_free(opened) >= self.spent_from
    }
}

fn limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

fn number(opened: &impl AsFd) -> u64 {
    u64::try_from(opened.as_fd().as_raw_fd()).unwrap_or(0)
}

/// The number that the next descriptor would have: lower ones may be free since `opened` was.
#[cold]
fn lowest_free(opened: &impl AsFd) -> u64 {
    fcntl_dupfd_cloexec(opened, 0).map_or(u64::MAX, |next| number(&next))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_descriptors_are_kept_back() {
        for (limit, short_from, spent_from) in [
            (1 << 20, (1 << 20) - 48, (1 << 20) - 32),
            (1024, 976, 992),
            (256, 208, 224),
            (80, 65, 70),
            (8, 7, 7),
            (0, 0, 0),
        ] {
            let Descriptors { short_from: short, spent_from: spent } =
                Descriptors::new(limit, KEPT_BACK, MARGIN);
            assert_eq!((short, spent), (short_from, spent_from), "{limit}");
            let last = Descriptors::new(limit, LAST, LAST);
            assert!(last.short_from >= spent && last.spent_from <= limit, "{limit}: {last:?}");
        }
    }
}
