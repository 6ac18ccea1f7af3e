//! The one thread that wakes requests whose time has come: one timer for all of them.

use std::pin::pin;
use std::task::Context;

use tidegate_core::time::MILLISECOND;
use tidegate_core::{Nanos, Now};

use super::WaitingRequests;
use super::alarm::Alarm;
use crate::shutdown::Shutdown;

/// A wall clock that went so much faster or slower than the monotonic one was set. Being slewed
/// it does not get there within a sleep.
const STEP_MIN: u64 = 5 * MILLISECOND;

/// How far the wall clock was ahead of the monotonic one at the last look.
#[derive(Clone, Copy, Debug)]
pub(super) struct WallClock(u64);

impl WallClock {
    pub(super) fn at(now: Now) -> Self {
        Self(now.unix.wrapping_sub(now.mono))
    }

    /// Whether it was set since the last look.
    pub(super) fn was_set(&mut self, now: Now) -> bool {
        let ahead = Self::at(now).0;
        // Modulo 2^64, so a difference either way is small on one of the two sides.
        let gone = ahead.wrapping_sub(self.0);
        self.0 = ahead;
        gone.min(gone.wrapping_neg()) >= STEP_MIN
    }
}

impl WaitingRequests {
    /// Wakes all whose time has come, and after a step of the wall clock the first of every
    /// line, since fixed windows follow it. Returns when the next one's time comes.
    pub(super) fn turn(&self, wall: &mut WallClock, cx: &Context<'_>) -> Option<Nanos> {
        let now = self.clock.now();
        if wall.was_set(now) {
            self.queues.wake_firsts(now.mono);
        }
        let next = self.queues.wake_due(now.mono, cx.waker());
        next.map(|at| at.saturating_sub(now.mono))
    }

    /// Wakes waiters as their time comes, until `shutdown`: one thread for all of them, the one
    /// that calls it.
    ///
    /// # Panics
    /// If the system refuses a timer at start-up.
    pub fn keep_waking(&self, shutdown: &Shutdown) {
        let alarm = Alarm::new().expect("the system has file descriptors left at start-up");
        let waker = alarm.waker();
        let mut cx = Context::from_waker(&waker);
        let mut wall = WallClock::at(self.clock.now());
        let mut stopped = pin!(shutdown.wait());
        while stopped.as_mut().poll(&mut cx).is_pending() {
            // Before the time is read, so that nothing is missed in between.
            self.clock.watch(&waker);
            let left = self.turn(&mut wall, &cx);
            let was_set = alarm.wait(left).expect("a timer that was made can be waited for");
            if was_set {
                self.clock.wall_was_set();
            }
        }
    }
}
