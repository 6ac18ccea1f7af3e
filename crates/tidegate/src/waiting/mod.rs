//! Holds requests until their limits let them go, for all doors.
//!
//! - `queues`: which request waits for which count, in which order; pure
//! - `wait_queues`: the queues behind a lock, with the wakers of the requests
//! - [`WaitFuture`]: one request that waits
//! - [`WaiterLimit`]: how many may wait at a door
//! - `driver`: the thread that wakes requests whose time has come; `alarm`: where it sleeps
//!
//! A queue belongs to a count, not to a key: requests for keys that share a count wait in one line.
//! Only the first of a line tries. If it is admitted, the next one is woken; if not, the limiter
//! says when to try again. The first is woken earlier when a use in flight ends, a key is reset,
//! rules change, or the wall clock is set. Nothing is judged here: each try asks the limiter.

mod alarm;
mod driver;
mod queues;
mod sync;
#[cfg(test)]
mod tests;
mod wait_future;
mod wait_queues;
mod waiter_limit;

use std::sync::Arc;

use tidegate_core::{Nanos, Now};

pub use self::wait_future::{Arrival, Began, WaitFuture};
use self::wait_queues::WaitQueues;
pub use self::waiter_limit::{WaiterBounds, WaiterLimit};
use crate::clock::Clock;
use crate::limiter::{
    Basis, Count, InvalidRequest, Key, Limiter, LimiterHandle, Outcome, Request, Rows, TakenFrom,
    Verdict, Waiters,
};

/// What a request wants that may wait.
#[derive(Clone, Copy, Debug)]
pub struct WaitRequest<'a> {
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
pub struct Admitted {
    /// When it was taken: the start to give to `LimiterHandle::release_uses` when the use ends.
    pub started: Now,
    /// Where the end of the use must give it back; `None`: nothing is to be given back.
    pub held: Option<TakenFrom>,
    /// How long it was held up by its limit.
    pub waited: Nanos,
    /// From when on it could have gone, on the monotonic clock: its arrival, the start of its
    /// window where that came later, or else the time at which it was woken. What passes from
    /// here until it goes is overhead.
    pub due: Nanos,
    /// It was let go without the remote store that has the counts.
    pub degraded: bool,
}

impl Admitted {
    /// What a check that was allowed would have answered: `rows` as they were when the use was
    /// taken, or what the limits say now.
    pub async fn look(
        &self,
        handle: &LimiterHandle,
        key: &[u8],
        cost: u64,
        rows: Option<Rows>,
    ) -> (Verdict, Rows) {
        let verdict = Verdict::unlimited(Outcome::Allowed, cost, self.started);
        if let Some(rows) = rows {
            return (Verdict { degraded: self.degraded, ..verdict }, rows);
        }
        let keys = [Key::peek(key, cost)];
        let request = Request::all_or_nothing(&keys).with_end();
        let mut rows = Rows::default();
        // New rules may have made a second such use invalid, which leaves no rows; this one was
        // not.
        let peek = handle.decide_async(&request, handle.now(), &mut rows).await;
        rows.refused_by = None;
        for row in &mut rows.limits {
            row.verdict.allowed = true;
            row.verdict.delay = 0;
            if self.degraded && !row.is_degraded() {
                // The store is back by now; it has not counted this use.
                row.basis = Basis::Policy;
            }
        }
        let degraded = self.degraded || peek.is_ok_and(|peek| peek.degraded);
        (Verdict { degraded, ..verdict }, rows)
    }
}

/// Why a request does not go.
#[derive(Clone, Debug, PartialEq)]
pub enum NotAdmitted {
    /// Its time was up, or it would have been booked for later than that, or nothing passes under
    /// its rule.
    TooLate(Box<WaitRefusal>),
    /// Too many requests wait already: for this key, or at this door.
    TooManyWaiters {
        /// For this key.
        per_key: bool,
    },
    /// It can never go.
    Invalid(InvalidRequest),
}

/// What the limits say to a request that gives up.
#[derive(Clone, Debug, PartialEq)]
pub struct WaitRefusal {
    /// The verdict on it.
    pub verdict: Verdict,
    /// What each limit says.
    pub rows: Rows,
}

/// All requests of the process that wait.
pub struct WaitingRequests {
    queues: WaitQueues,
    clock: Clock,
}

impl WaitingRequests {
    /// Empty queues for the counts of a limiter, which reports what is given back. A limiter has
    /// one of these.
    #[must_use]
    pub fn new(limiter: &Limiter) -> Arc<Self> {
        let waiting = Arc::new(Self { queues: WaitQueues::new(), clock: limiter.clock().clone() });
        limiter.set_waiters(waiting.clone());
        waiting
    }

    /// How many requests wait at all doors.
    #[must_use]
    pub fn len(&self) -> usize {
        self.queues.len()
    }

    /// Whether no request waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Waiters for WaitingRequests {
    fn is_free(&self, count: &Count<'_>) -> bool {
        self.queues.is_free(count)
    }

    fn freed(&self, count: &Count<'_>) {
        self.queues.wake_first(count, || self.clock.now().mono);
    }

    fn freed_anywhere(&self, rule: u32) {
        self.queues.wake_rule(rule, || self.clock.now().mono);
    }

    fn renewed(&self, limiter: &Limiter) {
        self.queues.rebuild(|key| limiter.count_of(key), self.clock.now().mono);
    }
}
