//! The only file that reads a clock.
//!
//! A [`Clock`] is handed to everything that needs the time, so that tests and simulations can
//! hold it still, move it, and step its wall side.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::task::Waker;

use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};
use tidegate_core::time::{DAY, MILLISECOND, SECOND};
use tidegate_core::{Nanos, Now};

/// What the monotonic clock reads at boot. Older moments, of a snapshot from before a reboot, can
/// then still be told apart: as far back as the longest period goes, and a little further.
const AT_BOOT: Nanos = 400 * DAY;

/// For so long, at most, a step of the wall clock goes unnoticed.
const WALL_EVERY: Nanos = MILLISECOND;

/// Where the time comes from. Cheap to clone; clones of a manual clock share its hands.
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    System(Arc<Wall>),
    Manual(Arc<Hands>),
}

/// How far the wall clock is from the monotonic one. Reading a clock costs as much as a decision
/// in the cache, so the distance is measured at most once in [`WALL_EVERY`].
#[derive(Debug, Default)]
struct Wall {
    measured: AtomicU64,
    /// Modulo 2^64: the wall clock may stand behind.
    ahead: AtomicU64,
}

impl Wall {
    #[inline]
    fn at(&self, mono: Nanos) -> Nanos {
        // Two threads that measure at once both measure right.
        if mono.wrapping_sub(self.measured.load(Acquire)) > WALL_EVERY {
            self.ahead.store(read(ClockId::Realtime).wrapping_sub(mono), Relaxed);
            self.measured.store(mono, Release);
        }
        mono.wrapping_add(self.ahead.load(Relaxed))
    }
}

#[derive(Debug)]
struct Hands {
    now: Mutex<Now>,
    /// The tasks to wake when the clock is moved.
    watchers: Mutex<Vec<Waker>>,
}

impl Hands {
    /// Moves the clock and wakes the watchers.
    fn set(&self, change: impl FnOnce(&mut Now)) {
        change(&mut self.now.lock());
        let watchers = std::mem::take(&mut *self.watchers.lock());
        watchers.into_iter().for_each(Waker::wake);
    }
}

impl Clock {
    /// The machine's clocks: time since boot, suspended time included, and UTC.
    #[must_use]
    pub fn system() -> Self {
        Self(Source::System(Arc::default()))
    }

    /// Whether only tests and simulations move it: no other clock may be mixed with it.
    #[must_use]
    pub fn is_manual(&self) -> bool {
        matches!(self.0, Source::Manual(_))
    }

    /// A clock that stands still at `start` until it is moved.
    #[must_use]
    pub fn manual(start: Now) -> Self {
        let hands = Hands { now: Mutex::new(start), watchers: Mutex::default() };
        Self(Source::Manual(Arc::new(hands)))
    }

    /// The moment on both clocks.
    #[must_use]
    pub fn now(&self) -> Now {
        match &self.0 {
            Source::System(wall) => {
                let mono = AT_BOOT + read(ClockId::Boottime);
                Now { mono, unix: wall.at(mono) }
            }
            Source::Manual(hands) => *hands.now.lock(),
        }
    }

    /// Moves both hands of a manual clock on; the machine's clock does not listen.
    pub fn advance(&self, span: Nanos) {
        if let Source::Manual(hands) = &self.0 {
            hands.set(|now| {
                now.mono += span;
                now.unix += span;
            });
        }
    }

    /// Steps the wall side of a manual clock; the machine's clock does not listen.
    pub fn set_unix(&self, unix: Nanos) {
        if let Source::Manual(hands) = &self.0 {
            hands.set(|now| now.unix = unix);
        }
    }

    /// Wakes `watcher` the next time that a manual clock is moved. The machine's clock moves by
    /// itself, and timers tell.
    pub(crate) fn watch(&self, watcher: &Waker) {
        let Source::Manual(hands) = &self.0 else { return };
        let mut watchers = hands.watchers.lock();
        if !watchers.iter().any(|known| known.will_wake(watcher)) {
            watchers.push(watcher.clone());
        }
    }

    /// The machine's wall clock was set: what is known of it is measured anew.
    pub(crate) fn wall_was_set(&self) {
        if let Source::System(wall) = &self.0 {
            wall.measured.store(0, Release);
        }
    }
}

fn read(id: ClockId) -> Nanos {
    let time = clock_gettime(id);
    // A wall clock set before 1970 reads as the epoch.
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds.saturating_mul(SECOND).saturating_add(u64::try_from(time.tv_nsec).unwrap_or(0))
}
