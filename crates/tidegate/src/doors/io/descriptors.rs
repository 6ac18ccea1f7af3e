//! File descriptors that connections must leave alone, so that the store, snapshots, reloads and
//! health checks still find one when clients have taken all the others.
//!
//! The system hands out the lowest number that is free. So the number of a descriptor that was just
//! opened tells how many are in use: at least as many as lie below it.

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, getrlimit};

/// Descriptors that no connection keeps.
const KEPT_BACK: u64 = 32;
/// Descriptors just below those that are kept back. A connection that gets one of them must wait
/// until another one closes.
const MARGIN: u64 = 16;

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
        Self::new(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX))
    }

    fn new(limit: u64) -> Self {
        // A process that may open very few keeps back an eighth of them.
        let spent_from = limit - KEPT_BACK.min(limit / 8);
        Self { spent_from, short_from: spent_from - MARGIN.min(limit / 16) }
    }

    /// Whether a connection that was opened may stay only if another one closes.
    #[inline]
    pub(crate) fn are_short(&self, opened: &impl AsFd) -> bool {
        number(opened) >= self.short_from && lowest_free(opened) >= self.short_from
    }

    /// Whether a connection that was opened took one of those that are kept back.
    #[inline]
    pub(crate) fn are_spent(&self, opened: &impl AsFd) -> bool {
        number(opened) >= self.spent_from && lowest_free(opened) >= self.spent_from
    }
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
            let Descriptors { short_from: short, spent_from: spent } = Descriptors::new(limit);
            assert_eq!((short, spent), (short_from, spent_from), "{limit}");
        }
    }
}
