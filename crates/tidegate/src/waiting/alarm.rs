//! Where the driver sleeps: for a span, until it is woken, or until the wall clock is set.
//!
//! It sleeps in the kernel. The runtime's timers tick in milliseconds, which every waiting request
//! would lose at the start of each window, and they do not notice that the clock is set. No clock
//! is read here.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Wake, Waker};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use tidegate_core::Nanos;
use tidegate_core::time::SECOND;

/// The longest sleep while a request waits for a time. If the kernel does not report that the clock
/// was set, or that a suspension ended, the driver notices it then.
const SLEEP_MAX: Nanos = SECOND;
/// A moment of the wall clock that does not come, in seconds since 1970.
const NEVER_S: i64 = 1 << 40;

pub(super) struct Alarm {
    notifier: Arc<Notifier>,
    /// A timer whose only use is that it is cancelled when the wall clock is set.
    wall: OwnedFd,
}

/// Wakes the sleeper.
struct Notifier(OwnedFd);

impl Wake for Notifier {
    fn wake(self: Arc<Self>) {
        // Fails only if it was written 2^64 times without a read.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}

impl Alarm {
    pub(super) fn new() -> io::Result<Self> {
        let notifier = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let wall = timerfd_create(TimerfdClockId::Realtime, flags)?;
        let alarm = Self { notifier: Arc::new(Notifier(notifier)), wall };
        alarm.watch_wall()?;
        Ok(alarm)
    }

    /// What ends a wait, or keeps the next one from beginning.
    pub(super) fn waker(&self) -> Waker {
        self.notifier.clone().into()
    }

    /// Waits until it is woken, for `span` at most. `true` if the wall clock was set.
    pub(super) fn wait(&self, span: Option<Nanos>) -> io::Result<bool> {
        let span = span.map(|span| {
            let span = span.min(SLEEP_MAX);
            Timespec {
                tv_sec: (span / SECOND).cast_signed(),
                tv_nsec: (span % SECOND).cast_signed(),
            }
        });
        let mut rings = [&self.notifier.0, &self.wall].map(|ring| PollFd::new(ring, PollFlags::IN));
        match poll(&mut rings, span.as_ref()) {
            Ok(0) | Err(Errno::INTR) => return Ok(false),
            polled => polled?,
        };
        let _ = rustix::io::read(&self.notifier.0, &mut [0; 8]);
        let was_set = rustix::io::read(&self.wall, &mut [0; 8]) == Err(Errno::CANCELED);
        if was_set {
            self.watch_wall()?;
        }
        Ok(was_set)
    }

    fn watch_wall(&self) -> io::Result<()> {
        let flags = TimerfdTimerFlags::ABSTIME | TimerfdTimerFlags::CANCEL_ON_SET;
        let at = |tv_sec| Timespec { tv_sec, tv_nsec: 0 };
        let never = Itimerspec { it_interval: at(0), it_value: at(NEVER_S) };
        timerfd_settime(&self.wall, flags, &never)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_with_its_span_or_with_a_ring_and_a_ring_is_not_lost() {
        let alarm = Alarm::new().unwrap();
        assert!(!alarm.wait(Some(1)).unwrap());
        alarm.waker().wake();
        alarm.waker().wake();
        // Without an end of its own.
        assert!(!alarm.wait(None).unwrap());
        let waker = alarm.waker();
        std::thread::scope(|scope| {
            scope.spawn(|| waker.wake_by_ref());
            assert!(!alarm.wait(None).unwrap());
        });
    }
}
