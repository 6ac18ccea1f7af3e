//! The coarse clock of one loop, and deadlines that cost next to nothing to set.
//!
//! Every wait of a connection or request has a timeout, and almost none of them ever passes. So a
//! deadline is a number in a list that one task walks ten times a second: to set it is a store, and
//! no request needs a timer. Nothing here reads a clock: the loop passes the time in.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use slab::Slab;
use tidegate_core::Nanos;
use tidegate_core::time::MILLISECOND;

/// How long a tick is, in nanoseconds.
const TICK: Nanos = 100 * MILLISECOND;
/// A tick as timers take it.
pub(super) const TICK_SPAN: Duration = Duration::from_nanos(TICK);
/// The tick of a deadline that is not set.
const NEVER: u64 = u64::MAX;

/// The number of a tick.
pub(super) type Tick = u64;

/// The coarse clock of one loop, with all deadlines.
#[derive(Default)]
pub(super) struct Ticks {
    now: Cell<Tick>,
    slots: RefCell<Slab<Slot>>,
}

struct Slot {
    at: Tick,
    waker: Option<Waker>,
}

impl Ticks {
    /// The tick that `mono` lies in.
    pub(super) fn of(mono: Nanos) -> Tick {
        mono / TICK
    }

    /// The tick as of the last walk.
    pub(super) fn now(&self) -> Tick {
        self.now.get()
    }

    /// When that tick began, on the clock.
    pub(super) fn now_nanos(&self) -> Nanos {
        self.now() * TICK
    }

    /// A new deadline, not set.
    pub(super) fn deadline(self: &Rc<Self>) -> Deadline {
        let slot = self.slots.borrow_mut().insert(Slot { at: NEVER, waker: None });
        Deadline { ticks: self.clone(), slot }
    }

    /// Moves on to `now` and wakes the tasks whose deadlines have come.
    pub(super) fn advance(&self, now: Tick) {
        self.now.set(now);
        // Woken outside of the borrow: the last waker of a task drops the task, and its deadlines.
        let due: Vec<Waker> = {
            let mut slots = self.slots.borrow_mut();
            let due = slots.iter_mut().filter(|(_, slot)| slot.at <= now);
            due.filter_map(|(_, slot)| slot.waker.take()).collect()
        };
        due.into_iter().for_each(Waker::wake);
    }

    /// Wakes all tasks that have polled a deadline, so that they notice another change.
    pub(super) fn wake_all(&self) {
        let all: Vec<Waker> = {
            let mut slots = self.slots.borrow_mut();
            slots.iter_mut().filter_map(|(_, slot)| slot.waker.take()).collect()
        };
        all.into_iter().for_each(Waker::wake);
    }

    /// How many deadlines there are.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.slots.borrow().len()
    }
}

/// Ticks that last at least as long as `span`.
pub(super) fn ticks_in(span: Duration) -> Tick {
    let nanos = Nanos::try_from(span.as_nanos()).unwrap_or(Nanos::MAX);
    // The tick that is running has begun already.
    nanos.div_ceil(TICK).saturating_add(1)
}

/// A deadline. It leaves the list when it is dropped.
pub(super) struct Deadline {
    ticks: Rc<Ticks>,
    slot: usize,
}

impl Deadline {
    /// Sets it to `ticks` from now.
    pub(super) fn set(&self, ticks: Tick) {
        let at = self.ticks.now().saturating_add(ticks);
        self.ticks.slots.borrow_mut()[self.slot].at = at;
    }

    /// Sets it to `ticks` from now, unless it is set to an earlier tick.
    pub(super) fn no_later(&self, ticks: Tick) {
        let at = self.ticks.now().saturating_add(ticks);
        let slot = &mut self.ticks.slots.borrow_mut()[self.slot];
        slot.at = slot.at.min(at);
    }

    /// Unsets it.
    pub(super) fn clear(&self) {
        self.ticks.slots.borrow_mut()[self.slot].at = NEVER;
    }

    /// The clock that it belongs to.
    pub(super) fn ticks(&self) -> &Rc<Ticks> {
        &self.ticks
    }

    /// Whether it has come. It is then unset, so this is ready only once. Either way the task is
    /// woken at the tick that it is set to next.
    pub(super) fn poll(&self, context: &Context<'_>) -> Poll<()> {
        let (stale, due) = {
            let slot = &mut self.ticks.slots.borrow_mut()[self.slot];
            let due = slot.at <= self.ticks.now();
            if due {
                slot.at = NEVER;
            }
            let stale = match &slot.waker {
                Some(waker) if waker.will_wake(context.waker()) => None,
                _ => slot.waker.replace(context.waker().clone()),
            };
            (stale, due)
        };
        // As in `advance`: outside of the borrow.
        drop(stale);
        if due { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        let slot = self.ticks.slots.borrow_mut().remove(self.slot);
        // As above: outside of the borrow.
        drop(slot);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[test]
    fn a_deadline_comes_when_its_tick_does_and_leaves_nothing_behind() {
        let ticks = Rc::new(Ticks::default());
        let context = Context::from_waker(Waker::noop());
        ticks.advance(1000);
        let (first, second) = (ticks.deadline(), ticks.deadline());
        first.set(ticks_in(Duration::from_millis(250)));
        assert!(first.poll(&context).is_pending() && second.poll(&context).is_pending());
        ticks.advance(1003);
        assert!(first.poll(&context).is_pending(), "never early");
        ticks.advance(1004);
        assert!(first.poll(&context).is_ready() && second.poll(&context).is_pending());
        assert!(first.poll(&context).is_pending(), "ready once");
        first.set(3);
        first.clear();
        ticks.advance(1008);
        assert!(first.poll(&context).is_pending());
        second.set(5);
        second.no_later(9);
        ticks.advance(1013);
        assert!(second.poll(&context).is_ready());
        drop(first);
        let third = ticks.deadline();
        assert!(third.poll(&context).is_pending(), "a new deadline is not set");
        drop((second, third));
        assert_eq!(ticks.len(), 0);
    }

    /// Counts how often it is woken.
    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_task_is_woken_only_by_the_next_tick_that_it_sets() {
        let ticks = Rc::new(Ticks::default());
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        let context = Context::from_waker(&waker);
        let count = || woken.0.load(Ordering::SeqCst);
        let deadline = ticks.deadline();
        deadline.set(2);
        ticks.advance(2);
        assert!(deadline.poll(&context).is_ready() && deadline.poll(&context).is_pending());
        (3..50).for_each(|tick| ticks.advance(tick));
        assert_eq!(count(), 0);
        // Set without being asked again, even to what is now.
        deadline.set(0);
        (50..60).for_each(|tick| ticks.advance(tick));
        assert_eq!(count(), 1);
    }
}
