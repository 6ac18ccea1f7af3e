//! One request that may wait: it tries once, joins its line, tries again at the head of it, and is
//! admitted or gives up.
//!
//! Where a store answers later, the future awaits its ticket in place, so the states are the same
//! for all stores. `poll` takes the use and returns it in one step. A future that is dropped before
//! that leaves its line, and its pending ticket gives back what it grants.

use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll};

use tidegate_core::time::{MICROSECOND, SECOND};
use tidegate_core::{Nanos, Now};

use super::queues::QueueTicket;
use super::wait_queues::{Stepped, Try, WaitQueues};
use super::waiter_limit::{WaiterLimit, WaiterPlace};
use super::{Admitted, NotAdmitted, WaitRefusal, WaitRequest, WaitingRequests};
use crate::limiter::{
    Answered, Decision, InvalidRequest, Key, KeyOp, LimiterHandle, Outcome, PendingVerdict,
    Request, Rows, Verdict, WaitAttempt,
};

/// The shortest time between two tries of one line, should a limit refuse and say "at once".
const RETRY_MIN: Nanos = 100 * MICROSECOND;
/// The longest time between two tries where a remote store has the counts: it tells what other
/// nodes give back, but such a message may be lost.
const RETRY_REMOTE: Nanos = SECOND;
/// How often a use is taken anew because its window had ended when the answer came. Windows shorter
/// than the way to the store and back would have it taken for ever.
const LATE_MAX: u8 = 3;

/// What has become of a request that has tried once.
#[derive(Debug)]
pub enum Began {
    /// It is answered.
    Done(Result<Admitted, NotAdmitted>),
    /// It waits: for its store, or for its turn. See [`WaitingRequests::resume`].
    Waits(Arrival),
}

/// A request that has tried once and is in no line.
#[derive(Debug)]
pub struct Arrival(Arriving);

#[derive(Debug)]
enum Arriving {
    /// The store has its first try.
    Asked(Now, PendingVerdict),
    /// Its first try failed: it is to join its line.
    Blocked(Now),
    /// It gives up, and the store is asked what its limits say.
    Refused(PendingVerdict),
}

/// A request that may wait. Made by [`WaitingRequests::admit`] and [`WaitingRequests::resume`].
#[must_use = "futures do nothing unless polled"]
pub struct WaitFuture<'a> {
    waiting: &'a WaitingRequests,
    handle: &'a LimiterHandle,
    limit: &'a WaiterLimit,
    request: WaitRequest<'a>,
    state: State<'a>,
    /// Uses that came too late and were given back.
    late: u8,
    /// What each limit said to the last try; `None` if that is not wanted.
    rows: Option<Rows>,
    /// The last answer was given without the store: at the end it is not asked again.
    degraded: bool,
}

enum State<'a> {
    /// Not polled yet.
    New,
    Arriving(Arriving),
    InLine(QueueGuard<'a>),
    /// The use is taken and may start at this time.
    Booked(QueueGuard<'a>, Admitted, Nanos),
    Done,
}

/// A place in line, given up when it is dropped.
struct QueueGuard<'a> {
    queues: &'a WaitQueues,
    handle: &'a LimiterHandle,
    key: &'a [u8],
    ticket: QueueTicket,
    arrived: Now,
    gives_up_at: Nanos,
    /// Has tried in line before.
    waited: bool,
    /// Is out of the line already.
    out: bool,
    /// Its try at the head of the line is with the store.
    pending: Option<PendingVerdict>,
    /// An answer that came too late, to be given back.
    late: Option<(PendingVerdict, Answered)>,
    /// The store tells what other nodes give back.
    watching: bool,
    _place: WaiterPlace<'a>,
}

impl Drop for QueueGuard<'_> {
    fn drop(&mut self) {
        if !self.out {
            self.queues.leave(self.ticket, self.handle.now().mono);
        }
        if self.watching {
            self.handle.limiter().watch_key(self.key, false);
        }
    }
}

/// How a request leaves its line.
enum Leaving {
    Admitted(Admitted),
    TooLate,
    Invalid(InvalidRequest),
}

impl WaitingRequests {
    /// Tries once: the request is admitted if no other waits for its count and the limits agree,
    /// and refused if it may not wait. Nothing was written or counted if it waits.
    ///
    /// In memory it allocates nothing, and takes no lock of the queues unless a request waits for
    /// such a count.
    #[inline]
    pub fn begin(&self, handle: &LimiterHandle, request: &WaitRequest<'_>, now: Now) -> Began {
        first_try(handle, request, now, now, None)
    }

    /// Goes on with a request that [`Self::begin`] has not answered. See [`Self::admit`].
    pub fn resume<'a>(
        &'a self,
        handle: &'a LimiterHandle,
        limit: &'a WaiterLimit,
        request: WaitRequest<'a>,
        Arrival(arriving): Arrival,
    ) -> WaitFuture<'a> {
        let mut future = self.admit(handle, limit, request);
        future.state = State::Arriving(arriving);
        future
    }

    /// Waits until the use is taken, in the order of arrival.
    ///
    /// Cancel-safe: dropped before it is ready, the request is out of its line, has taken nothing,
    /// and the next in line is woken. Only what an algorithm has booked for it stays booked. A
    /// request that is not admitted is counted as refused.
    pub fn admit<'a>(
        &'a self,
        handle: &'a LimiterHandle,
        limit: &'a WaiterLimit,
        request: WaitRequest<'a>,
    ) -> WaitFuture<'a> {
        let (state, late, rows, degraded) = (State::New, 0, None, false);
        WaitFuture { waiting: self, handle, limit, request, state, late, rows, degraded }
    }
}

#[inline]
fn first_try(
    handle: &LimiterHandle,
    request: &WaitRequest<'_>,
    arrived: Now,
    now: Now,
    rows: Option<&mut Rows>,
) -> Began {
    // Nothing is booked before there is a place to wait for it.
    let (cost, booking_max) = (request.cost, 0);
    let op =
        KeyOp::TakeOrLeave(WaitAttempt { cost, booking_max, waited: false, first_in_line: false });
    let keys = [Key::new(request.key, op)];
    let asked = Request { can_end: request.can_end, ..Request::all_or_nothing(&keys) };
    match handle.decide(&asked, now, rows) {
        Ok(Decision::Ready(verdict)) => first_verdict(handle, request, arrived, &verdict),
        Ok(Decision::Pending(pending)) => Began::Waits(Arrival(Arriving::Asked(arrived, pending))),
        Err(invalid) => Began::Done(Err(NotAdmitted::Invalid(invalid))),
    }
}

#[inline]
fn first_verdict(
    handle: &LimiterHandle,
    request: &WaitRequest<'_>,
    arrived: Now,
    verdict: &Verdict,
) -> Began {
    let &Verdict { held, degraded, at: started, .. } = verdict;
    match verdict.outcome {
        // If a store was waited for, that is overhead.
        Outcome::Allowed | Outcome::NoRule => {
            let due = arrived.mono;
            Began::Done(Ok(Admitted { started, held, waited: 0, due, degraded }))
        }
        // Nothing passes under its rule.
        Outcome::TooLong if verdict.delay == Nanos::MAX => refuse(handle, request, degraded),
        _ if request.max_wait == Some(0) => refuse(handle, request, degraded),
        _ => Began::Waits(Arrival(Arriving::Blocked(arrived))),
    }
}

/// Counts a request as refused that gives up, and asks what its limits say. A store that has just
/// not answered is not asked: that would take as long again.
fn refuse(handle: &LimiterHandle, request: &WaitRequest<'_>, degraded: bool) -> Began {
    let mut rows = Rows::default();
    let keys = [Key::new(request.key, KeyOp::Refuse(request.cost))];
    let refused = Request::all_or_nothing(&keys).with_end();
    let decided = match degraded {
        true => handle.decide_without_store(&refused, handle.now(), &mut rows),
        false => handle.decide(&refused, handle.now(), Some(&mut rows)),
    };
    match decided {
        Ok(Decision::Ready(verdict)) => {
            Began::Done(Err(NotAdmitted::TooLate(Box::new(WaitRefusal { verdict, rows }))))
        }
        Ok(Decision::Pending(pending)) => Began::Waits(Arrival(Arriving::Refused(pending))),
        Err(invalid) => Began::Done(Err(NotAdmitted::Invalid(invalid))),
    }
}

impl<'a> WaitFuture<'a> {
    /// Also remembers what each limit says once the use is taken.
    pub fn with_rows(mut self) -> Self {
        self.rows = Some(Rows::default());
        self
    }

    /// What each limit said when the use was taken; `None` if it was booked, or nobody asked for
    /// it.
    pub fn take_rows(&mut self) -> Option<Rows> {
        self.rows.take()
    }

    /// Whether it waits for its turn, and not only for a store's answer, which is soon to come.
    #[must_use]
    pub fn is_in_line(&self) -> bool {
        matches!(self.state, State::InLine(_) | State::Booked(..))
    }

    fn proceed(&mut self, began: Began, cx: &Context<'_>) -> Poll<Result<Admitted, NotAdmitted>> {
        match began {
            Began::Done(result) => Poll::Ready(result),
            Began::Waits(Arrival(arriving)) => self.poll_arriving(arriving, cx),
        }
    }

    fn poll_arriving(
        &mut self,
        arriving: Arriving,
        cx: &Context<'_>,
    ) -> Poll<Result<Admitted, NotAdmitted>> {
        let (arrived, mut pending) = match arriving {
            Arriving::Blocked(arrived) => return self.join(arrived, cx),
            Arriving::Asked(arrived, pending) => (Some(arrived), pending),
            Arriving::Refused(pending) => (None, pending),
        };
        let now = self.handle.now();
        let Poll::Ready(answered) = pending.poll_answer(now, cx) else {
            self.state = State::Arriving(match arrived {
                Some(arrived) => Arriving::Asked(arrived, pending),
                None => Arriving::Refused(pending),
            });
            return Poll::Pending;
        };
        let Some(arrived) = arrived else {
            let Answered { verdict, rows, .. } = answered;
            let refusal = Box::new(WaitRefusal { verdict, rows });
            return Poll::Ready(Err(NotAdmitted::TooLate(refusal)));
        };
        self.degraded = answered.verdict.degraded;
        let began = if self.is_late(&answered.verdict, now) {
            pending.give_back(answered);
            first_try(self.handle, &self.request, arrived, now, self.rows.as_mut())
        } else {
            let began = first_verdict(self.handle, &self.request, arrived, &answered.verdict);
            self.note_rows(answered.rows);
            began
        };
        self.proceed(began, cx)
    }

    fn note_rows(&mut self, rows: Rows) {
        if let Some(noted) = &mut self.rows {
            *noted = rows;
        }
    }

    /// Whether the window has ended in which the use was counted: then it must be given back and
    /// taken anew. Started now, it would be one more than its limit in a window that does not know
    /// of it.
    fn is_late(&mut self, verdict: &Verdict, now: Now) -> bool {
        let is_late = now.mono >= verdict.window_ends && self.late < LATE_MAX;
        self.late += u8::from(is_late);
        is_late
    }

    /// Joins the line of its count.
    fn join(&mut self, arrived: Now, cx: &Context<'_>) -> Poll<Result<Admitted, NotAdmitted>> {
        let WaitRequest { key, max_wait, .. } = self.request;
        let gives_up_at = max_wait.map_or(Nanos::MAX, |span| arrived.mono.saturating_add(span));
        if self.degraded && self.handle.now().mono >= gives_up_at {
            return self.leave(Leaving::TooLate, cx);
        }
        let Some(place) = self.limit.enter() else { return self.too_many_waiters(false) };
        let (queues, handle) = (&self.waiting.queues, self.handle);
        let ticket = queues.join(
            key,
            |key| handle.limiter().count_of(key),
            self.limit.per_key(),
            gives_up_at,
            cx.waker(),
            arrived.mono,
        );
        let Some(ticket) = ticket else { return self.too_many_waiters(true) };
        let guard = QueueGuard {
            queues,
            handle,
            key,
            ticket,
            arrived,
            gives_up_at,
            waited: false,
            out: false,
            pending: None,
            late: None,
            watching: false,
            _place: place,
        };
        self.poll_in_line(guard, cx)
    }

    fn too_many_waiters(&self, per_key: bool) -> Poll<Result<Admitted, NotAdmitted>> {
        // Counted as a refusal; what the limits say does not matter to such a request.
        let _ = refuse(self.handle, &self.request, self.degraded);
        Poll::Ready(Err(NotAdmitted::TooManyWaiters { per_key }))
    }

    /// Tries if it is the first of its line: leaves the line, or waits on.
    fn poll_in_line(
        &mut self,
        mut guard: QueueGuard<'a>,
        cx: &Context<'_>,
    ) -> Poll<Result<Admitted, NotAdmitted>> {
        loop {
            let now = self.handle.now().mono;
            // The store is not asked once more if it has just not answered.
            if self.degraded && now >= guard.gives_up_at && guard.pending.is_none() {
                drop(guard);
                return self.leave(Leaving::TooLate, cx);
            }
            let (queues, ticket) = (guard.queues, guard.ticket);
            let attempt =
                |woken_at, blocked_at| self.try_at_head(&mut guard, woken_at, blocked_at, cx);
            match queues.step(ticket, cx.waker(), now, attempt) {
                Stepped::Out(leaving) => {
                    guard.out = true;
                    drop(guard);
                    return self.leave(leaving, cx);
                }
                Stepped::Booked(Leaving::Admitted(admitted), until) => {
                    // When it goes they say something else.
                    self.rows = None;
                    self.state = State::Booked(guard, admitted, until);
                    return Poll::Pending;
                }
                // Only what was taken can have been booked.
                Stepped::Booked(leaving, _) => return self.leave(leaving, cx),
                Stepped::Waiting => {}
            }
            // Given back while the lock of the queues is free: that may wake the first in line.
            if let Some((pending, answered)) = guard.late.take() {
                pending.give_back(answered);
                continue;
            }
            // An answer that is on its way is waited for: it may be a use.
            if now >= guard.gives_up_at && guard.pending.is_none() {
                drop(guard);
                return self.leave(Leaving::TooLate, cx);
            }
            guard.waited = true;
            self.state = State::InLine(guard);
            return Poll::Pending;
        }
    }

    /// Tries at the head of the line, or looks whether the store has answered the last try.
    fn try_at_head(
        &mut self,
        guard: &mut QueueGuard<'_>,
        woken_at: Nanos,
        blocked_at: Nanos,
        cx: &Context<'_>,
    ) -> Try<Leaving> {
        let now = self.handle.now();
        let asked = match guard.pending.take() {
            Some(pending) => Ok(Decision::Pending(pending)),
            None => self.ask_at_head(guard, now),
        };
        let (verdict, came_later) = match asked {
            Ok(Decision::Ready(verdict)) => (verdict, false),
            Ok(Decision::Pending(mut pending)) => match pending.poll_answer(now, cx) {
                Poll::Ready(answered) if self.is_late(&answered.verdict, now) => {
                    guard.late = Some((pending, answered));
                    return Try::Later(Nanos::MAX);
                }
                Poll::Ready(answered) => {
                    self.note_rows(answered.rows);
                    (answered.verdict, true)
                }
                // The ticket wakes it.
                Poll::Pending => {
                    guard.pending = Some(pending);
                    return Try::Later(Nanos::MAX);
                }
            },
            Err(invalid) => return Try::Out(Leaving::Invalid(invalid)),
        };
        self.degraded = verdict.degraded;
        match verdict.outcome {
            Outcome::Allowed | Outcome::NoRule => {
                admitted_at_head(guard, &verdict, woken_at, blocked_at, now)
            }
            Outcome::TooLong => Try::Out(Leaving::TooLate),
            Outcome::Refused | Outcome::Later | Outcome::Behind => {
                let mut delay = verdict.delay.max(RETRY_MIN);
                if came_later || verdict.degraded {
                    delay = delay.min(RETRY_REMOTE);
                    if !mem::replace(&mut guard.watching, true) {
                        self.handle.limiter().watch_key(self.request.key, true);
                    }
                }
                Try::Later(now.mono.saturating_add(delay))
            }
        }
    }

    fn ask_at_head(
        &mut self,
        guard: &QueueGuard<'_>,
        now: Now,
    ) -> Result<Decision, InvalidRequest> {
        let WaitRequest { key, cost, can_end, .. } = self.request;
        let booking_max = guard.gives_up_at.saturating_sub(now.mono);
        let waited = guard.waited;
        let op = KeyOp::TakeOrLeave(WaitAttempt { cost, booking_max, waited, first_in_line: true });
        let keys = [Key::new(key, op)];
        let asked = Request { can_end, ..Request::all_or_nothing(&keys) };
        self.handle.decide(&asked, now, self.rows.as_mut())
    }

    fn leave(&mut self, leaving: Leaving, cx: &Context<'_>) -> Poll<Result<Admitted, NotAdmitted>> {
        match leaving {
            Leaving::Admitted(admitted) => Poll::Ready(Ok(admitted)),
            Leaving::TooLate => {
                let began = refuse(self.handle, &self.request, self.degraded);
                self.proceed(began, cx)
            }
            Leaving::Invalid(invalid) => Poll::Ready(Err(NotAdmitted::Invalid(invalid))),
        }
    }
}

/// What a use that was taken at the head of a line means for its request.
fn admitted_at_head(
    guard: &QueueGuard<'_>,
    verdict: &Verdict,
    woken_at: Nanos,
    blocked_at: Nanos,
    now: Now,
) -> Try<Leaving> {
    let &Verdict { held, booked, window_start, degraded, at: started, .. } = verdict;
    let arrived = guard.arrived.mono;
    // A window that was open when the request came, or when its line last tried, did not let it
    // go: something else did.
    let opened = Some(window_start).filter(|start| *start > arrived.max(blocked_at));
    let ready = opened.unwrap_or(woken_at).saturating_add(booked);
    let admitted = Leaving::Admitted(Admitted {
        started,
        held,
        waited: now.mono.saturating_sub(arrived).saturating_add(booked),
        due: ready.max(arrived),
        degraded,
    });
    match booked {
        0 => Try::Out(admitted),
        _ => Try::Booked(admitted, now.mono.saturating_add(booked)),
    }
}

impl Future for WaitFuture<'_> {
    type Output = Result<Admitted, NotAdmitted>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        match mem::replace(&mut this.state, State::Done) {
            State::New => {
                let now = this.handle.now();
                let began = first_try(this.handle, &this.request, now, now, this.rows.as_mut());
                this.proceed(began, cx)
            }
            State::Arriving(arriving) => this.poll_arriving(arriving, cx),
            State::InLine(guard) => this.poll_in_line(guard, cx),
            State::Booked(guard, admitted, until) if this.handle.now().mono < until => {
                guard.queues.set_waker(guard.ticket, cx.waker());
                this.state = State::Booked(guard, admitted, until);
                Poll::Pending
            }
            State::Booked(_, admitted, _) => Poll::Ready(Ok(admitted)),
            // Polled again after the end, against the contract of futures: there is no second
            // answer.
            State::Done => Poll::Pending,
        }
    }
}

impl Drop for WaitFuture<'_> {
    fn drop(&mut self) {
        // A booking stays in the books, as its algorithm says; a use in flight that never began
        // ends.
        if let State::Booked(_, Admitted { started, held: Some(from), .. }, _) = self.state {
            self.handle.release_uses(self.request.key, self.request.cost, started, from);
        }
    }
}
