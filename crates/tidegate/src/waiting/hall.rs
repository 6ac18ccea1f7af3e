//! The queues behind a lock, with the wakers of those who stand in them.
//!
//! Whoever waits is in line before it tries, and tries under the lock. Whoever gives something
//! back does so first and looks for waiters afterwards. So either the try sees what was given
//! back, or the one who gave it sees the waiter: no wake-up is lost. Wakers are called with the
//! lock free. What is tried, and on what, is the caller's business.

use std::mem;
use std::task::Waker;

use tidegate_core::Nanos;

use super::Count;
use super::queues::{Queues, Ticket};
use super::sync::{AtomicU32, AtomicUsize, Mutex, Ordering::Relaxed};

/// Buckets of the sieve that lets those pass whose count nobody waits for. A power of two.
const BUCKETS: usize = 1024;
/// How many are told under one lock when their time has come.
const DUE_BATCH: usize = 256;

/// Where everybody waits.
pub(crate) struct Hall {
    room: Mutex<Room>,
    /// How many are in line. Read without the lock by all who come and go.
    ///
    /// Relaxed is enough: a waiter adds itself before it tries, and the lock of the count that it
    /// tries orders that before whatever is given back to the count after the try.
    queued: AtomicUsize,
    /// The same for each bucket of hashes.
    buckets: Box<[AtomicU32]>,
}

#[derive(Default)]
struct Room {
    queues: Queues<Waker>,
    /// Who must know when a time is set that is earlier than the one it sleeps until.
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

impl Hall {
    pub(crate) fn new() -> Self {
        Self {
            room: Mutex::new(Room::default()),
            queued: AtomicUsize::new(0),
            buckets: (0..BUCKETS).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    /// Whether nobody is in line for this count. One load when nobody waits at all.
    #[inline]
    pub(crate) fn is_free(&self, count: &Count<'_>) -> bool {
        self.seems_free(count) || self.room.lock().queues.is_free(count)
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
    ) -> Option<Ticket> {
        let mut room = self.room.lock();
        // Asked for under the lock, so that new rules either are known or find this waiter.
        let count = count_of(key);
        if room.queues.len_of(&count) >= most {
            return None;
        }
        self.queued.fetch_add(1, Relaxed);
        self.bucket(count.hash).fetch_add(1, Relaxed);
        let ticket = room.queues.join(&count, key, gives_up_at, waker.clone(), now);
        let driver = room.driver_to_wake();
        drop(room);
        wake(driver);
        Some(ticket)
    }

    /// A waiter looks whether it is its turn, and tries if it is. `attempt` is told since when it
    /// could have gone, and when somebody in its line last tried in vain.
    pub(crate) fn step<T>(
        &self,
        ticket: Ticket,
        waker: &Waker,
        now: Nanos,
        attempt: impl FnOnce(Nanos, Nanos) -> Try<T>,
    ) -> Stepped<T> {
        let (mut told, mut gone) = (Vec::new(), None);
        let mut room = self.room.lock();
        if let Some(caller) = room.queues.caller_mut(ticket).filter(|c| !c.will_wake(waker)) {
            gone = Some(mem::replace(caller, waker.clone()));
        }
        if !room.queues.is_first(ticket) {
            return Stepped::Waiting;
        }
        let (told_at, blocked_at) = room.queues.told_at(ticket);
        let stepped = match attempt(told_at, blocked_at) {
            Try::Out(with) => {
                gone = self.remove(&mut room, ticket, now, &mut told).or(gone);
                Stepped::Out(with)
            }
            Try::Booked(with, until) => {
                let hash = room.queues.hash_of(ticket);
                room.queues.book(ticket, until, now, &mut told);
                self.left_line(hash);
                Stepped::Booked(with, until)
            }
            Try::Later(at) => {
                room.queues.retry(ticket, at, now);
                Stepped::Waiting
            }
        };
        told.extend(room.driver_to_wake());
        drop(room);
        // A waker that goes may take more with it than is good under the lock.
        drop(gone);
        wake(told);
        stepped
    }

    /// One with a booking waits on: this is who to tell when its time has come.
    pub(crate) fn listen(&self, ticket: Ticket, waker: &Waker) {
        let mut gone = None;
        let mut room = self.room.lock();
        if let Some(caller) = room.queues.caller_mut(ticket).filter(|c| !c.will_wake(waker)) {
            gone = Some(mem::replace(caller, waker.clone()));
        }
        drop(room);
        drop(gone);
    }

    /// A waiter goes; the next one is told.
    pub(crate) fn leave(&self, ticket: Ticket, now: Nanos) {
        let mut told = Vec::new();
        let gone = self.remove(&mut self.room.lock(), ticket, now, &mut told);
        drop(gone);
        wake(told);
    }

    /// Something was given back to this count.
    #[inline]
    pub(crate) fn ring(&self, count: &Count<'_>, now: impl FnOnce() -> Nanos) {
        if !self.seems_free(count) {
            self.tell(|queues, told| queues.ring(count, now(), told));
        }
    }

    /// Something was given back that any count of this rule may take.
    pub(crate) fn ring_rule(&self, rule: u32, now: impl FnOnce() -> Nanos) {
        if self.queued.load(Relaxed) > 0 {
            self.tell(|queues, told| queues.ring_rule(rule, now(), told));
        }
    }

    /// Anything may have changed: the first of every line tries again.
    pub(crate) fn ring_all(&self, now: Nanos) {
        self.tell(|queues, told| queues.ring_all(now, told));
    }

    /// There are new rules: everybody lines up again in the order of arrival.
    pub(crate) fn rebuild(&self, count_of: impl for<'k> Fn(&'k [u8]) -> Count<'k>, now: Nanos) {
        self.tell(|queues, told| {
            let moved = |old, new| {
                // The new place first: nobody may think in between that nobody waits.
                self.bucket(new).fetch_add(1, Relaxed);
                self.bucket(old).fetch_sub(1, Relaxed);
            };
            queues.rebuild(count_of, moved, now, told);
        });
    }

    /// Wakes all whose time has come. Returns when the next one's comes; `driver` is woken if
    /// that changes to an earlier time.
    pub(crate) fn wake_due(&self, now: Nanos, driver: &Waker) -> Option<Nanos> {
        loop {
            let mut told = Vec::new();
            let mut room = self.room.lock();
            let more = room.queues.due(now, DUE_BATCH, &mut told);
            let next = room.queues.next_alarm();
            room.driver = Some((driver.clone(), next.unwrap_or(Nanos::MAX)));
            drop(room);
            wake(told);
            if !more {
                return next;
            }
        }
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.room.lock().queues.len()
    }

    /// Whether everything has been given back.
    #[cfg(test)]
    pub(crate) fn holds_nothing(&self) -> bool {
        let zero = |bucket: &AtomicU32| bucket.load(Relaxed) == 0;
        self.queued.load(Relaxed) == 0
            && self.buckets.iter().all(zero)
            && self.room.lock().queues.holds_nothing()
    }

    fn tell(&self, ring: impl FnOnce(&mut Queues<Waker>, &mut Vec<Waker>)) {
        let mut told = Vec::new();
        ring(&mut self.room.lock().queues, &mut told);
        wake(told);
    }

    fn remove(
        &self,
        room: &mut Room,
        ticket: Ticket,
        now: Nanos,
        told: &mut Vec<Waker>,
    ) -> Option<Waker> {
        let (caller, hash) = room.queues.leave(ticket, now, told)?;
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

impl Room {
    /// The driver, if it sleeps for longer than it may.
    fn driver_to_wake(&mut self) -> Option<Waker> {
        let next = self.queues.next_alarm()?;
        let (driver, _) = self.driver.take_if(|(_, until)| next < *until)?;
        Some(driver)
    }
}

fn wake(told: impl IntoIterator<Item = Waker>) {
    told.into_iter().for_each(Waker::wake);
}
