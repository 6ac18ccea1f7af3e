//! Coarse time for one loop, and deadlines that cost next to nothing to set.
//!
//! Every wait of a connection or request is bounded, and almost none of the bounds is ever met.
//! So a deadline is a number in a list that one task walks ten times a second: to set it is a
//! store, and no timer is armed per request. Nothing here reads a clock: the loop hands it in.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

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

/// The coarse time of one loop, with everybody who waits for a moment of it.
#[derive(Default)]
pub(super) struct Ticks {
    now: Cell<Tick>,
    slots: RefCell<Slots>,
}

#[derive(Default)]
struct Slots {
    slots: Vec<Slot>,
    free: Vec<usize>,
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

    /// The same as a moment of the clock: when the tick began.
    pub(super) fn now_nanos(&self) -> Nanos {
        self.now() * TICK
    }

    /// A place in the list, not set.
    pub(super) fn deadline(self: &Rc<Self>) -> Deadline {
        let mut slots = self.slots.borrow_mut();
        let slot = match slots.free.pop() {
            Some(slot) => slot,
            None => {
                slots.slots.push(Slot { at: NEVER, waker: None });
                slots.slots.len() - 1
            }
        };
        Deadline { ticks: self.clone(), slot }
    }

    /// Moves on to `now` and wakes everybody whose moment has come.
    pub(super) fn advance(&self, now: Tick) {
        self.now.set(now);
        // Woken outside of the borrow: the last waker of a task drops the task, and its deadlines.
        let due: Vec<Waker> = {
            let mut slots = self.slots.borrow_mut();
            let due = slots.slots.iter_mut().filter(|slot| slot.at <= now);
            due.filter_map(|slot| slot.waker.take()).collect()
        };
        due.into_iter().for_each(Waker::wake);
    }

    /// Wakes everybody, whether or not the moment has come: something else has.
    pub(super) fn wake_all(&self) {
        let all: Vec<Waker> = {
            let mut slots = self.slots.borrow_mut();
            slots.slots.iter_mut().filter_map(|slot| slot.waker.take()).collect()
        };
        all.into_iter().for_each(Waker::wake);
    }

    /// How many deadlines there are.
    #[cfg(test)]
    fn len(&self) -> usize {
        let slots = self.slots.borrow();
        slots.slots.len() - slots.free.len()
    }
}

/// Ticks that last at least as long as `span`.
pub(super) fn ticks_in(span: Duration) -> Tick {
    let nanos = Nanos::try_from(span.as_nanos()).unwrap_or(Nanos::MAX);
    // The tick that is running has begun already.
    nanos.div_ceil(TICK).saturating_add(1)
}

/// A moment that somebody may be waiting for. Dropped: it is off the list.
pub(super) struct Deadline {
    ticks: Rc<Ticks>,
    slot: usize,
}

impl Deadline {
    /// Sets it to `ticks` from now.
    pub(super) fn set(&self, ticks: Tick) {
        let at = self.ticks.now().saturating_add(ticks);
        self.ticks.slots.borrow_mut().slots[self.slot].at = at;
    }

    /// Sets it to `ticks` from now unless it comes sooner.
    pub(super) fn no_later(&self, ticks: Tick) {
        let at = self.ticks.now().saturating_add(ticks);
        let slot = &mut self.ticks.slots.borrow_mut().slots[self.slot];
        slot.at = slot.at.min(at);
    }

    /// Takes it back.
    pub(super) fn clear(&self) {
        self.ticks.slots.borrow_mut().slots[self.slot].at = NEVER;
    }

    /// The time that it is measured by.
    pub(super) fn ticks(&self) -> &Rc<Ticks> {
        &self.ticks
    }

    /// Whether it has come, which is said once: it is taken back by that. Either way the task is
    /// woken at the next moment that it is set to, so there is never a reason to ask in a loop.
    pub(super) fn poll(&self, context: &Context<'_>) -> Poll<()> {
        let (stale, due) = {
            let slot = &mut self.ticks.slots.borrow_mut().slots[self.slot];
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
        let waker = {
            let mut slots = self.ticks.slots.borrow_mut();
            slots.free.push(self.slot);
            let slot = &mut slots.slots[self.slot];
            slot.at = NEVER;
            slot.waker.take()
        };
        // As above: outside of the borrow.
        drop(waker);
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
        assert!(first.poll(&context).is_pending(), "said once");
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
        assert!(third.poll(&context).is_pending(), "a place is handed on empty");
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
    fn a_task_that_was_told_is_woken_only_by_the_next_moment_that_it_sets() {
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
