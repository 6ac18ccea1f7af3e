//! Waiting, once, for all doors: holds a request until it may go.
//!
//! - `queues`: who waits for what in which order; pure
//! - `hall`: the queues behind a lock, with their wakers
//! - [`Passing`]: one request that waits
//! - [`Crowd`]: how many may wait at a door
//! - `driver`: the one thread that wakes those whose time has come; `alarm`: where it sleeps
//!
//! A queue belongs to a count, not to a key: keys that share a count wait in one line. Only the
//! first of a line tries; who has taken tells the next, and who has not sets the time of the next
//! try. It is told earlier when a use in flight ends, a key is reset, there are new rules, or the
//! wall clock was set. This room judges nothing: the limiter does, each time it is tried.

mod alarm;
mod crowd;
mod driver;
mod hall;
mod later;
mod passing;
mod queues;
mod sync;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use tidegate_core::{Nanos, Now};

pub use self::crowd::{Bounds, Crowd};
use self::hall::Hall;
pub use self::passing::Passing;
use crate::clock::Clock;
use crate::limiter::{Aim, Answer, Bell, Count, Desk, Limiter, Take, TakenFrom, Tried, Unfit};

/// What a request wants that may wait.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// The key.
    pub key: &'a [u8],
    /// How many uses.
    pub cost: u64,
    /// How long it may wait; `None`: for ever.
    pub max_wait: Option<Nanos>,
    /// Whether the caller will tell when the use ends.
    pub can_end: bool,
}

/// A use that was taken: the request may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    /// When it was taken: the start to give to [`Desk::release`] when the use ends.
    pub started: Now,
    /// Where the end of the use must give it back; `None`: nothing is to be given back.
    pub held: Option<TakenFrom>,
    /// How long it was held up by its limit.
    pub waited: Nanos,
    /// From when on it could have gone, on the monotonic clock: its arrival, the start of its
    /// window where that came later, or else the time at which it was told. What passes from
    /// here until it goes is overhead.
    pub due: Nanos,
    /// It was let go without the remote store that has the counts.
    pub degraded: bool,
}

/// Why a request does not go.
#[derive(Clone, Debug, PartialEq)]
pub enum NotPassed {
    /// Its time was up, or it would have been booked for later than that, or nothing passes under
    /// its rule. With what a check would answer.
    TooLate(Box<Answer>),
    /// Too many wait already: for this key, or at this door.
    Crowded {
        /// For this key.
        per_key: bool,
    },
    /// It can never go.
    Unfit(Unfit),
}

/// The waiting room of the process.
pub struct Waiting {
    hall: Hall,
    clock: Clock,
}

impl Waiting {
    /// An empty room before a limiter, whose bell it listens to. A limiter has one.
    #[must_use]
    pub fn before(limiter: &Limiter) -> Arc<Self> {
        let waiting = Arc::new(Self { hall: Hall::new(), clock: limiter.clock().clone() });
        limiter.watch(waiting.clone());
        waiting
    }

    /// Takes a use at once if nobody waits for its count and the limits agree. `None`: it must
    /// wait, or be refused by [`Desk::refuse`]; nothing was written or counted. Always so where
    /// counts lie elsewhere: whoever is not to wait passes with a wait of nothing then.
    ///
    /// Allocates nothing, and takes no lock of this room while nobody waits for such a count.
    ///
    /// # Errors
    /// When the use can never be had.
    #[inline]
    pub fn try_pass(&self, desk: &Desk, ask: &Ask<'_>, now: Now) -> Result<Option<Pass>, Unfit> {
        self.try_pass_ahead(desk, ask, desk.look_ahead(ask.key), now)
    }

    /// As [`Self::try_pass`], with the key looked ahead for.
    ///
    /// # Errors
    /// When the use can never be had.
    #[inline]
    pub(crate) fn try_pass_ahead(
        &self,
        desk: &Desk,
        ask: &Ask<'_>,
        aim: Aim<'_>,
        now: Now,
    ) -> Result<Option<Pass>, Unfit> {
        if desk.is_remote() {
            // Told later: see [`Self::pass`].
            return Ok(None);
        }
        let Ask { key, cost, can_end, .. } = *ask;
        let take = Take { key, cost, can_end, booking_max: 0, waited: false };
        Ok(match desk.try_take_ahead(&take, aim, now, |count| self.hall.is_free(count))? {
            Tried::Taken(taken) => {
                let (held, due) = (taken.held, now.mono);
                Some(Pass { started: now, held, waited: 0, due, degraded: false })
            }
            Tried::Later(_) | Tried::TooLong | Tried::Behind => None,
        })
    }

    /// Waits until the use is taken, in the order of arrival.
    ///
    /// Cancel-safe: dropped before it is ready, it is out of its line, has taken nothing, and the
    /// next in line is told. Only what an algorithm has booked, for one that then left, stays
    /// booked. Whoever does not go is counted as refused.
    pub fn pass<'a>(&'a self, desk: &'a Desk, crowd: &'a Crowd, ask: Ask<'a>) -> Passing<'a> {
        Passing::new(self, desk, crowd, ask)
    }

    /// How many wait at all doors.
    #[must_use]
    pub fn len(&self) -> usize {
        self.hall.len()
    }

    /// Whether nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Bell for Waiting {
    fn is_free(&self, count: &Count<'_>) -> bool {
        self.hall.is_free(count)
    }

    fn freed(&self, count: &Count<'_>) {
        self.hall.ring(count, || self.clock.now().mono);
    }

    fn freed_anywhere(&self, rule: u32) {
        self.hall.ring_rule(rule, || self.clock.now().mono);
    }

    fn renewed(&self, limiter: &Limiter) {
        self.hall.rebuild(|key| limiter.count_of(key), self.clock.now().mono);
    }
}
