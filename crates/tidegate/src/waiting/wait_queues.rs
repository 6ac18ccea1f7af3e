//! The queues behind a lock, with the wakers of the requests in them.
//!
//! A request that waits is in line before it tries, and tries under the lock. A caller that gives
//! something back does so first and looks for waiters afterwards. So either the try sees what was
//! given back, or the caller sees the waiter: no wake-up is lost. Wakers are called with the lock
//! free. What is tried, and on what, the caller decides.

use std::mem;
use std::task::Waker;

use tidegate_core::Nanos;

use super::Count;
use super::queues::{QueueTicket, Queues};
use super::sync::{AtomicU32, AtomicUsize, Mutex, Ordering::Relaxed};

/// Buckets of hashes of counts: a count whose bucket is empty has no line. A power of two.
const BUCKETS: usize = 1024;
/// How many requests are woken under one lock when their time has come.
const DUE_BATCH: usize = 256;

/// The lines of all counts.
pub(crate) struct WaitQueues {
    inner: Mutex<Inner>,
    /// How many requests are in line. Read without the lock by every request that comes or ends.
    ///
    /// Relaxed is enough: a waiter adds itself before it tries, and the lock of the count that it
    /// tries orders that before whatever is given back to the count after the try.
    queued: AtomicUsize,
    /// The same for each bucket of hashes.
    buckets: Box<[AtomicU32]>,
}

#[derive(Default)]
struct Inner {
    queues: Queues<Waker>,
    /// The driver to wake when a time is set that is earlier than the one it sleeps until.
    driver: Option<(Waker, Nanos)>,
}

/// What came of a try at the head of a line.
pub(crate) enum Try<T> {
    /// It leaves with this.
    Out(T),
    /// It has this, and leaves at that time.
    Booked(T, Nanos),
    /// In vain; worth another try at that time.
    Later(Nanos),
}

/// What came of a waiter's step.
pub(crate) enum Stepped<T> {
    /// It is out, with this.
    Out(T),
    /// It is out of the line, and still here until that time.
    Booked(T, Nanos),
    /// It waits on.
    Waiting,
}

impl WaitQueues {
    pub(crate) fn new() -> Self {
        Self {
            inner: Mutex::new(Inner::default()),
            queued: AtomicUsize::new(0),
            buckets: (0..BUCKETS).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    /// Whether no request is in line for this count. One load when none waits at all.
    #[inline]
    pub(crate) fn is_free(&self, count: &Count<'_>) -> bool {
        self.seems_free(count) || self.inner.lock().queues.is_free(count)
    }

    #[inline]
    fn seems_free(&self, count: &Count<'_>) -> bool {
        self.queued.load(Relaxed) == 0 || self.bucket(count.hash).load(Relaxed) == 0
    }

    fn bucket(&self, hash: u64) -> &AtomicU32 {
        &self.buckets[hash as usize & (BUCKETS - 1)]
    }

    /// Joins the end of the line of the count that `count_of` says the key has now; `None` if
    /// `most` wait there already.
    pub(crate) fn join(
        &self,
        key: &[u8],
        count_of: impl for<'k> FnOnce(&'k [u8]) -> Count<'k>,
        most: usize,
        gives_up_at: Nanos,
        waker: &Waker,
        now: Nanos,
    ) -> Option<QueueTicket> {
        let mut inner = self.inner.lock();
        // Asked for under the lock, so that new rules either are known or find this waiter.
        let count = count_of(key);
        if inner.queues.len_of(&count) >= most {
            return None;
        }
        self.queued.fetch_add(1, Relaxed);
        self.bucket(count.hash).fetch_add(1, Relaxed);
        let ticket = inner.queues.join(&count, key, gives_up_at, waker.clone(), now);
        let driver = inner.driver_to_wake();
        drop(inner);
        wake_all(driver);
        Some(ticket)
    }

    /// Tries if the waiter is the first of its line. `attempt` gets the time since when it could
    /// have gone, and the time of the last try in its line that failed.
    pub(crate) fn step<T>(
        &self,
        ticket: QueueTicket,
        waker: &Waker,
        now: Nanos,
        attempt: impl FnOnce(Nanos, Nanos) -> Try<T>,
    ) -> Stepped<T> {
        let (mut woken, mut gone) = (Vec::new(), None);
        let mut inner = self.inner.lock();
        if let Some(caller) = inner.queues.caller_mut(ticket).filter(|c| !c.will_wake(waker)) {
            gone = Some(mem::replace(caller, waker.clone()));
        }
        if !inner.queues.is_first(ticket) {
            return Stepped::Waiting;
        }
        let (woken_at, blocked_at) = inner.queues.woken_at(ticket);
        let stepped = match attempt(woken_at, blocked_at) {
            Try::Out(with) => {
                gone = self.remove(&mut inner, ticket, now, &mut woken).or(gone);
                Stepped::Out(with)
            }
            Try::Booked(with, until) => {
                let hash = inner.queues.hash_of(ticket);
                inner.queues.book(ticket, until, now, &mut woken);
                self.left_line(hash);
                Stepped::Booked(with, until)
            }
            Try::Later(at) => {
                inner.queues.retry(ticket, at, now);
                Stepped::Waiting
            }
        };
        woken.extend(inner.driver_to_wake());
        drop(inner);
        // Dropping a waker may drop its task, which must not happen under the lock.
        drop(gone);
        wake_all(woken);
        stepped
    }

    /// Sets the waker of a request with a booking, which waits on.
    pub(crate) fn set_waker(&self, ticket: QueueTicket, waker: &Waker) {
        let mut gone = None;
        let mut inner = self.inner.lock();
        if let Some(caller) = inner.queues.caller_mut(ticket).filter(|c| !c.will_wake(waker)) {
            gone = Some(mem::replace(caller, waker.clone()));
        }
        drop(inner);
        drop(gone);
    }

    /// A waiter goes; the next one is woken.
    pub(crate) fn leave(&self, ticket: QueueTicket, now: Nanos) {
        let mut woken = Vec::new();
        let gone = self.remove(&mut self.inner.lock(), ticket, now, &mut woken);
        drop(gone);
        wake_all(woken);
    }

    /// Something was given back to this count.
    #[inline]
    pub(crate) fn wake_first(&self, count: &Count<'_>, now: impl FnOnce() -> Nanos) {
        if !self.seems_free(count) {
            self.wake(|queues, woken| queues.wake_first(count, now(), woken));
        }
    }

    /// Something was given back that any count of this rule may take.
    pub(crate) fn wake_rule(&self, rule: u32, now: impl FnOnce() -> Nanos) {
        if self.queued.load(Relaxed) > 0 {
            self.wake(|queues, woken| queues.wake_rule(rule, now(), woken));
        }
    }

    /// Anything may have changed: the first of every line tries again.
    pub(crate) fn wake_firsts(&self, now: Nanos) {
        self.wake(|queues, woken| queues.wake_firsts(now, woken));
    }

    /// There are new rules: all waiters line up again in the order of arrival.
    pub(crate) fn rebuild(&self, count_of: impl for<'k> Fn(&'k [u8]) -> Count<'k>, now: Nanos) {
        self.wake(|queues, woken| {
            let moved = |old, new| {
                // The new bucket first: in between, no reader may find that no request waits.
                self.bucket(new).fetch_add(1, Relaxed);
                self.bucket(old).fetch_sub(1, Relaxed);
            };
            queues.rebuild(count_of, moved, now, woken);
        });
    }

    /// Wakes all requests whose time has come. Returns when the next one's comes; `driver` is woken
    /// if that changes to an earlier time.
    pub(crate) fn wake_due(&self, now: Nanos, driver: &Waker) -> Option<Nanos> {
        loop {
            let mut woken = Vec::new();
            let mut inner = self.inner.lock();
            let more = inner.queues.due(now, DUE_BATCH, &mut woken);
            let next = inner.queues.next_alarm();
            inner.driver = Some((driver.clone(), next.unwrap_or(Nanos::MAX)));
            drop(inner);
            wake_all(woken);
            if !more {
                return next;
            }
        }
    }

    /// How many requests wait.
    pub(crate) fn len(&self) -> usize {
        self.inner.lock().queues.len()
    }

    /// Whether everything has been given back.
    #[cfg(test)]
    pub(crate) fn holds_nothing(&self) -> bool {
        let zero = |bucket: &AtomicU32| bucket.load(Relaxed) == 0;
        self.queued.load(Relaxed) == 0
            && self.buckets.iter().all(zero)
            && self.inner.lock().queues.holds_nothing()
    }

    fn wake(&self, choose: impl FnOnce(&mut Queues<Waker>, &mut Vec<Waker>)) {
        let mut woken = Vec::new();
        choose(&mut self.inner.lock().queues, &mut woken);
        wake_all(woken);
    }

    fn remove(
        &self,
        inner: &mut Inner,
        ticket: QueueTicket,
        now: Nanos,
        woken: &mut Vec<Waker>,
    ) -> Option<Waker> {
        let (caller, hash) = inner.queues.leave(ticket, now, woken)?;
        self.left_line(hash);
        Some(caller)
    }

    fn left_line(&self, hash: Option<u64>) {
        if let Some(hash) = hash {
            self.queued.fetch_sub(1, Relaxed);
            self.bucket(hash).fetch_sub(1, Relaxed);
        }
    }
}

impl Inner {
    /// The driver, if it sleeps for longer than it may.
    fn driver_to_wake(&mut self) -> Option<Waker> {
        let next = self.queues.next_alarm()?;
        let (driver, _) = self.driver.take_if(|(_, until)| next < *until)?;
        Some(driver)
    }
}

fn wake_all(wakers: impl IntoIterator<Item = Waker>) {
    wakers.into_iter().for_each(Waker::wake);
}
