//! How the requests of one worker are admitted: its handle on the limiter, and the wait queues.

use std::rc::Rc;
use std::sync::Arc;

use tidegate_core::{Nanos, Now};

use super::problem::Problem;
use crate::doors::ratelimit::Standing;
use crate::limiter::{Decision, InvalidRequest, Key, LimiterHandle, Request, Rows, TakenFrom};
use crate::waiting::{
    Admitted, Arrival, Began, NotAdmitted, WaitFuture, WaitRequest, WaiterLimit, Waiting,
};

/// What admits the requests of one worker.
pub(super) struct Admission {
    handle: LimiterHandle,
    waiting: Arc<Waiting>,
    waiter_limit: Arc<WaiterLimit>,
    max_wait: Option<Nanos>,
}

impl Admission {
    /// `max_wait` is nothing for a proxy whose requests are not to wait.
    pub(super) fn new(
        handle: LimiterHandle,
        waiting: Arc<Waiting>,
        waiter_limit: Arc<WaiterLimit>,
        max_wait: Option<Nanos>,
    ) -> Self {
        Self { handle, waiting, waiter_limit, max_wait }
    }

    fn request<'a>(&self, key: &'a [u8]) -> WaitRequest<'a> {
        WaitRequest { key, cost: 1, max_wait: self.max_wait, can_end: true }
    }

    /// Sends for what is counted for a key that is soon to be asked for.
    pub(super) fn prefetch(&self, key: &[u8]) {
        self.handle.prefetch(key);
    }

    /// Admits or refuses a request at once, or says that it has to wait.
    pub(super) fn begin(&self, key: &[u8], now: Now) -> Began {
        self.waiting.begin(&self.handle, &self.request(key), now)
    }

    /// Waits until the request is admitted or refused.
    pub(super) fn resume<'a>(&'a self, key: &'a [u8], arrival: Arrival) -> WaitFuture<'a> {
        self.waiting.resume(&self.handle, &self.waiter_limit, self.request(key), arrival)
    }

    /// How a key stands with its limits that has just been admitted, if that is known at once.
    pub(super) fn standing(&self, key: &[u8], now: Now) -> Option<Box<Standing>> {
        let mut rows = Rows::default();
        let keys = [Key::peek(key, 1)];
        let request = Request::all_or_nothing(&keys).with_end();
        match self.handle.decide(&request, now, Some(&mut rows)) {
            Ok(Decision::Ready(_)) => Some(Box::new(Standing::of(&rows))),
            _ => None,
        }
    }

    /// As [`Self::standing`], wherever the counts lie.
    pub(super) async fn standing_async(&self, key: &[u8]) -> Option<Box<Standing>> {
        let mut rows = Rows::default();
        let keys = [Key::peek(key, 1)];
        let request = Request::all_or_nothing(&keys).with_end();
        self.handle.decide_async(&request, self.handle.now(), &mut rows).await.ok()?;
        Some(Box::new(Standing::of(&rows)))
    }

    /// What has to be given back once the request is over, if anything.
    pub(super) fn held(self: &Rc<Self>, key: &[u8], admitted: &Admitted) -> Option<Held> {
        let from = admitted.held?;
        Some(Held { admission: self.clone(), key: key.into(), from, started: admitted.started })
    }
}

impl From<NotAdmitted> for Problem {
    fn from(why: NotAdmitted) -> Self {
        match why {
            NotAdmitted::TooLate(refusal) => Problem::OverLimit(refusal),
            NotAdmitted::TooManyWaiters { .. } => Problem::Crowded,
            NotAdmitted::Invalid(InvalidRequest::KeyTooLong) => Problem::KeyTooLong,
            NotAdmitted::Invalid(_) => Problem::Never,
        }
    }
}

/// A use in flight, given back when it is dropped.
pub(super) struct Held {
    admission: Rc<Admission>,
    key: Box<[u8]>,
    from: TakenFrom,
    started: Now,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.admission.handle.release_uses(&self.key, 1, self.started, self.from);
    }
}
