//! One request that waits: it joins, tries at the head of its line, and goes or gives up.
//!
//! The use is taken inside of `poll`, so nothing lies between taking it and the caller going on.
//! Dropped before that, the request is out of its line and has taken nothing.

use std::cell::Cell;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll};

use tidegate_core::time::{MICROSECOND, SECOND};
use tidegate_core::{Nanos, Now};

use super::crowd::{Crowd, Inside};
use super::hall::{Hall, Stepped, Try};
use super::later::{Later, later};
use super::queues::Ticket;
use super::{Ask, NotPassed, Pass, Waiting};
use crate::limiter::{Answer, Desk, Take, TakeAnswer, Taken, Tried, Unfit};

/// The shortest time between two tries of one line, should a limit refuse and say "at once".
const RETRY_MIN: Nanos = 100 * MICROSECOND;
/// The longest time between two tries where counts lie elsewhere: what others give back is told,
/// but a word may be lost.
const RETRY_ELSEWHERE: Nanos = SECOND;

/// How often a use is taken anew because its window had ended when the answer came. Windows shorter
/// than the way to the store and back would have it taken for ever.
const LATE_MAX: u8 = 3;

/// A request that waits. Made by [`Waiting::pass`].
#[must_use = "futures do nothing unless polled"]
pub struct Passing<'a> {
    waiting: &'a Waiting,
    desk: &'a Desk,
    crowd: &'a Crowd,
    ask: Ask<'a>,
    state: State<'a>,
    /// Uses that came too late and were given back.
    late: Cell<u8>,
}

enum State<'a> {
    /// Not polled yet.
    Coming,
    /// Nobody is in line: it is asked elsewhere whether it may go.
    Asking(Now, Later<TakeAnswer>),
    InLine(Stay<'a>),
    /// The use is taken and may start at this time.
    Booked(Stay<'a>, Pass, Nanos),
    /// It does not go, and what is said to it comes from elsewhere.
    Refused(Later<Answer>),
    Gone,
}

/// A place in the hall, given up when it is dropped.
struct Stay<'a> {
    hall: &'a Hall,
    desk: &'a Desk,
    ticket: Ticket,
    arrived: Now,
    gives_up_at: Nanos,
    /// Has tried before.
    waited: bool,
    /// The hall knows it no more.
    out: bool,
    /// It has asked elsewhere, at the head of its line.
    asked: Option<Later<TakeAnswer>>,
    /// Others that give something back are listened to.
    watching: bool,
    key: &'a [u8],
    _inside: Inside<'a>,
}

impl Drop for Stay<'_> {
    fn drop(&mut self) {
        if !self.out {
            self.hall.leave(self.ticket, self.desk.now().mono);
        }
        if self.watching {
            self.desk.watch_elsewhere(self.key, false);
        }
    }
}

/// How a request leaves its line.
enum Leaving {
    With(Pass),
    TooLate,
    Unfit(Unfit),
}

impl<'a> Passing<'a> {
    pub(super) fn new(
        waiting: &'a Waiting,
        desk: &'a Desk,
        crowd: &'a Crowd,
        ask: Ask<'a>,
    ) -> Self {
        Self { waiting, desk, crowd, ask, state: State::Coming, late: Cell::new(0) }
    }

    /// Finds a place in line, or else the answer at once.
    fn join(&self, arrived: Now, cx: &Context<'_>) -> Result<Stay<'a>, Result<Pass, NotPassed>> {
        let Ask { key, cost, max_wait, can_end } = self.ask;
        let unfit = |unfit| Err(NotPassed::Unfit(unfit));
        self.desk.check_fit(key, cost, can_end).map_err(unfit)?;
        let gives_up_at = max_wait.map_or(Nanos::MAX, |span| arrived.mono.saturating_add(span));
        let Some(inside) = self.crowd.enter() else {
            // There is no room to wait, and perhaps no need.
            let passed = self.waiting.try_pass(self.desk, &self.ask, arrived).map_err(unfit)?;
            return Err(passed.map_or_else(|| Err(self.crowded(false)), Ok));
        };
        let ticket = self.waiting.hall.join(
            key,
            |key| self.desk.limiter().count_of(key),
            self.crowd.per_key(),
            gives_up_at,
            cx.waker(),
            arrived.mono,
        );
        let Some(ticket) = ticket else { return Err(Err(self.crowded(true))) };
        let (hall, desk) = (&self.waiting.hall, self.desk);
        let (waited, out) = (false, false);
        Ok(Stay {
            hall,
            desk,
            ticket,
            arrived,
            gives_up_at,
            waited,
            out,
            asked: None,
            watching: false,
            key,
            _inside: inside,
        })
    }

    fn crowded(&self, per_key: bool) -> NotPassed {
        // Counted as a refusal; what the limits say does not matter to those who find no room.
        let _ = self.desk.refuse(self.ask.key, self.ask.cost, self.desk.now());
        NotPassed::Crowded { per_key }
    }

    fn too_late(&mut self, cx: &Context<'_>) -> Poll<Result<Pass, NotPassed>> {
        let Ask { key, cost, .. } = self.ask;
        let now = self.desk.now();
        if self.desk.is_remote() {
            let (reply, answer) = later();
            let refused = self.desk.refuse_elsewhere(key, cost, now, move |answer| {
                reply.give(answer);
            });
            return match refused {
                Ok(()) => self.refused(answer, cx),
                Err(unfit) => Poll::Ready(Err(NotPassed::Unfit(unfit))),
            };
        }
        Poll::Ready(Err(match self.desk.refuse(key, cost, now) {
            Ok(answer) => NotPassed::TooLate(Box::new(answer)),
            Err(unfit) => NotPassed::Unfit(unfit),
        }))
    }

    fn refused(
        &mut self,
        answer: Later<Answer>,
        cx: &Context<'_>,
    ) -> Poll<Result<Pass, NotPassed>> {
        match answer.poll(cx) {
            Poll::Ready(answer) => Poll::Ready(Err(NotPassed::TooLate(Box::new(answer)))),
            Poll::Pending => {
                self.state = State::Refused(answer);
                Poll::Pending
            }
        }
    }

    /// Asks elsewhere, or looks whether an answer has come. What comes for one that has left is
    /// given back.
    fn ask(
        &self,
        asked: &mut Option<Later<TakeAnswer>>,
        take: &Take<'_>,
        now: Now,
        cx: &Context<'_>,
    ) -> Option<Result<TakeAnswer, Unfit>> {
        if asked.is_none() {
            let (reply, answer) = later();
            let (limiter, door) = (self.desk.limiter().clone(), self.desk.door());
            let (key, cost) = (take.key.to_vec(), take.cost);
            let told = self.desk.ask_take(take, now, move |tried| {
                if let Some(answer) = reply.give(tried) {
                    limiter.desk(door).take_back(&key, cost, answer);
                }
            });
            if let Err(unfit) = told {
                return Some(Err(unfit));
            }
            *asked = Some(answer);
        }
        match asked.as_ref()?.poll(cx) {
            Poll::Ready(tried) => {
                *asked = None;
                Some(Ok(tried))
            }
            Poll::Pending => None,
        }
    }

    /// Whether the window has ended in which the use was counted: then it is given back, and must
    /// be taken anew. Started now, it would be one more than its limit in a window that does not
    /// know of it.
    fn came_late(&self, answer: &TakeAnswer) -> bool {
        let late = self.late.get();
        let is_late = self.desk.now().mono >= answer.window_ends && late < LATE_MAX;
        if is_late {
            self.late.set(late + 1);
            self.desk.take_back(self.ask.key, self.ask.cost, *answer);
        }
        is_late
    }

    /// Comes: into line, or, where counts lie elsewhere and nobody is in line, straight to the
    /// question. Many who come at once are answered at once then, in their order.
    fn come(&mut self, arrived: Now, cx: &Context<'_>) -> Poll<Result<Pass, NotPassed>> {
        let Ask { key, cost, can_end, max_wait } = self.ask;
        if self.desk.denies(key) {
            return self.too_late(cx);
        }
        if self.desk.is_remote() && self.waiting.hall.is_free(&self.desk.limiter().count_of(key)) {
            let booking_max = max_wait.unwrap_or(Nanos::MAX);
            let take = Take { key, cost, can_end, booking_max, waited: false };
            let mut asked = None;
            return match self.ask(&mut asked, &take, self.desk.now(), cx) {
                Some(Ok(tried)) => self.told(arrived, tried, cx),
                Some(Err(unfit)) => Poll::Ready(Err(NotPassed::Unfit(unfit))),
                None => {
                    self.state = asked.map_or(State::Gone, |asked| State::Asking(arrived, asked));
                    Poll::Pending
                }
            };
        }
        self.line_up(arrived, cx)
    }

    fn line_up(&mut self, arrived: Now, cx: &Context<'_>) -> Poll<Result<Pass, NotPassed>> {
        match self.join(arrived, cx) {
            Ok(stay) => self.stand(stay, cx),
            Err(at_once) => Poll::Ready(at_once),
        }
    }

    /// What came of the question of one who is in no line.
    fn told(
        &mut self,
        arrived: Now,
        answer: TakeAnswer,
        cx: &Context<'_>,
    ) -> Poll<Result<Pass, NotPassed>> {
        if self.came_late(&answer) {
            return self.come(arrived, cx);
        }
        let TakeAnswer { tried, at, degraded, .. } = answer;
        match tried {
            Tried::Taken(Taken { held, booked: 0, .. }) => {
                // Nothing but the store was waited for: that is overhead, as all that is ours.
                let due = arrived.mono;
                Poll::Ready(Ok(Pass { started: at, held, waited: 0, due, degraded }))
            }
            // A booking is waited for in the hall.
            Tried::Taken(_) => match self.join(arrived, cx) {
                Ok(mut stay) => {
                    let (reply, asked) = later();
                    reply.give(answer);
                    stay.asked = Some(asked);
                    self.stand(stay, cx)
                }
                Err(at_once) => {
                    self.desk.take_back(self.ask.key, self.ask.cost, answer);
                    Poll::Ready(at_once)
                }
            },
            Tried::TooLong => self.too_late(cx),
            Tried::Later(_) | Tried::Behind if self.ask.max_wait == Some(0) => self.too_late(cx),
            Tried::Later(_) | Tried::Behind => self.line_up(arrived, cx),
        }
    }

    fn attempt(
        &self,
        stay: &mut Stay<'_>,
        told_at: Nanos,
        blocked_at: Nanos,
        cx: &Context<'_>,
    ) -> Try<Leaving> {
        let now = self.desk.now();
        let take = Take {
            key: self.ask.key,
            cost: self.ask.cost,
            can_end: self.ask.can_end,
            booking_max: stay.gives_up_at.saturating_sub(now.mono),
            waited: stay.waited,
        };
        let tried = match &mut stay.asked {
            None if !self.desk.is_remote() => {
                let tried = self.desk.try_take_here(&take, now, |_| true);
                tried.map(|tried| TakeAnswer::made_here(tried, now, false))
            }
            asked => loop {
                match self.ask(asked, &take, now, cx) {
                    Some(Ok(answer)) if self.came_late(&answer) => {}
                    Some(tried) => break tried,
                    // Whoever answers wakes it.
                    None => return Try::Later(Nanos::MAX),
                }
            },
        };
        let TakeAnswer { tried, at: started, degraded, .. } = match tried {
            Ok(answer) => answer,
            Err(unfit) => return Try::Out(Leaving::Unfit(unfit)),
        };
        match tried {
            Tried::TooLong => Try::Out(Leaving::TooLate),
            Tried::Later(delay) => {
                let delay = if self.desk.is_remote() {
                    if !mem::replace(&mut stay.watching, true) {
                        self.desk.watch_elsewhere(self.ask.key, true);
                    }
                    delay.min(RETRY_ELSEWHERE)
                } else {
                    delay
                };
                Try::Later(now.mono.saturating_add(delay.max(RETRY_MIN)))
            }
            Tried::Behind => Try::Later(now.mono.saturating_add(RETRY_MIN)),
            Tried::Taken(Taken { held, booked, window_start }) => {
                // In the window that it came in, or that its line has tried in vain, it was not
                // the window that let it go.
                let before = stay.arrived.mono.max(blocked_at);
                let opened = window_start.filter(|start| *start > before);
                let ready = opened.unwrap_or(told_at).saturating_add(booked);
                let pass = Pass {
                    started,
                    held,
                    waited: now.mono.saturating_sub(stay.arrived.mono).saturating_add(booked),
                    due: ready.max(stay.arrived.mono),
                    degraded,
                };
                match booked {
                    0 => Try::Out(Leaving::With(pass)),
                    _ => Try::Booked(Leaving::With(pass), now.mono.saturating_add(booked)),
                }
            }
        }
    }

    fn leave(&mut self, leaving: Leaving, cx: &Context<'_>) -> Poll<Result<Pass, NotPassed>> {
        match leaving {
            Leaving::With(pass) => Poll::Ready(Ok(pass)),
            Leaving::TooLate => self.too_late(cx),
            Leaving::Unfit(unfit) => Poll::Ready(Err(NotPassed::Unfit(unfit))),
        }
    }

    /// A look at the line: out of it, or not yet.
    fn stand(&mut self, mut stay: Stay<'a>, cx: &Context<'_>) -> Poll<Result<Pass, NotPassed>> {
        let now = self.desk.now().mono;
        let (hall, ticket) = (stay.hall, stay.ticket);
        let attempt = |told_at, blocked_at| self.attempt(&mut stay, told_at, blocked_at, cx);
        match hall.step(ticket, cx.waker(), now, attempt) {
            Stepped::Out(leaving) => {
                stay.out = true;
                drop(stay);
                self.leave(leaving, cx)
            }
            Stepped::Booked(Leaving::With(pass), until) => {
                self.state = State::Booked(stay, pass, until);
                Poll::Pending
            }
            // Only what was taken can have been booked.
            Stepped::Booked(leaving, _) => self.leave(leaving, cx),
            // An answer that is on its way is waited for: it may be a use.
            Stepped::Waiting if now >= stay.gives_up_at && stay.asked.is_none() => {
                drop(stay);
                self.too_late(cx)
            }
            Stepped::Waiting => {
                stay.waited = true;
                self.state = State::InLine(stay);
                Poll::Pending
            }
        }
    }
}

impl Future for Passing<'_> {
    type Output = Result<Pass, NotPassed>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        match mem::replace(&mut this.state, State::Gone) {
            State::Coming => this.come(this.desk.now(), cx),
            State::Asking(arrived, asked) => match asked.poll(cx) {
                Poll::Ready(tried) => this.told(arrived, tried, cx),
                Poll::Pending => {
                    this.state = State::Asking(arrived, asked);
                    Poll::Pending
                }
            },
            State::Refused(answer) => this.refused(answer, cx),
            State::InLine(stay) => this.stand(stay, cx),
            State::Booked(stay, pass, until) if this.desk.now().mono < until => {
                stay.hall.listen(stay.ticket, cx.waker());
                this.state = State::Booked(stay, pass, until);
                Poll::Pending
            }
            State::Booked(_, pass, _) => Poll::Ready(Ok(pass)),
            // Asked again after the end, as nobody should: there is no second answer.
            State::Gone => Poll::Pending,
        }
    }
}

impl Drop for Passing<'_> {
    fn drop(&mut self) {
        let Ask { key, cost, .. } = self.ask;
        let asked = match mem::replace(&mut self.state, State::Gone) {
            // A booking stays in the books, as its law says; a use in flight that never began ends.
            State::Booked(_, Pass { started, held: Some(from), .. }, _) => {
                self.desk.release(&[(key, from)], cost, started, self.desk.now());
                return;
            }
            State::Asking(_, asked) => Some(asked),
            State::InLine(mut stay) => stay.asked.take(),
            _ => None,
        };
        if let Some(answer) = asked.and_then(Later::refuse) {
            self.desk.take_back(key, cost, answer);
        }
    }
}
