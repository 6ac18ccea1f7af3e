//! One request that waits: it joins, tries at the head of its line, and goes or gives up.
//!
//! The use is taken inside of `poll`, so nothing lies between taking it and the caller going on.
//! Dropped before that, the request is out of its line and has taken nothing.

use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll};

use tidegate_core::time::MICROSECOND;
use tidegate_core::{Nanos, Now};

use super::crowd::{Crowd, Inside};
use super::hall::{Hall, Stepped, Try};
use super::queues::Ticket;
use super::{Ask, NotPassed, Pass, Waiting};
use crate::limiter::{Desk, Take, Taken, Tried, Unfit};

/// The shortest time between two tries of one line, should a limit refuse and say "at once".
const RETRY_MIN: Nanos = 100 * MICROSECOND;

/// A request that waits. Made by [`Waiting::pass`].
#[must_use = "futures do nothing unless polled"]
pub struct Passing<'a> {
    waiting: &'a Waiting,
    desk: &'a Desk,
    crowd: &'a Crowd,
    ask: Ask<'a>,
    state: State<'a>,
}

enum State<'a> {
    /// Not polled yet.
    Coming,
    InLine(Stay<'a>),
    /// The use is taken and may start at this time.
    Booked(Stay<'a>, Pass, Nanos),
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
    _inside: Inside<'a>,
}

impl Drop for Stay<'_> {
    fn drop(&mut self) {
        if !self.out {
            self.hall.leave(self.ticket, self.desk.now().mono);
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
        Self { waiting, desk, crowd, ask, state: State::Coming }
    }

    /// Finds a place in line, or else the answer at once.
    fn join(&self, cx: &Context<'_>) -> Result<Stay<'a>, Result<Pass, NotPassed>> {
        let Ask { key, cost, max_wait, can_end } = self.ask;
        let unfit = |unfit| Err(NotPassed::Unfit(unfit));
        self.desk.check_fit(key, cost, can_end).map_err(unfit)?;
        let arrived = self.desk.now();
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
        Ok(Stay { hall, desk, ticket, arrived, gives_up_at, waited, out, _inside: inside })
    }

    fn crowded(&self, per_key: bool) -> NotPassed {
        // Counted as a refusal; what the limits say does not matter to those who find no room.
        let _ = self.desk.refuse(self.ask.key, self.ask.cost, self.desk.now());
        NotPassed::Crowded { per_key }
    }

    fn too_late(&self) -> NotPassed {
        match self.desk.refuse(self.ask.key, self.ask.cost, self.desk.now()) {
            Ok(answer) => NotPassed::TooLate(Box::new(answer)),
            Err(unfit) => NotPassed::Unfit(unfit),
        }
    }

    fn attempt(&self, stay: &Stay<'_>, told_at: Nanos, blocked_at: Nanos) -> Try<Leaving> {
        let now = self.desk.now();
        let take = Take {
            key: self.ask.key,
            cost: self.ask.cost,
            can_end: self.ask.can_end,
            booking_max: stay.gives_up_at.saturating_sub(now.mono),
            waited: stay.waited,
        };
        match self.desk.try_take(&take, now, |_| true) {
            Err(unfit) => Try::Out(Leaving::Unfit(unfit)),
            Ok(Tried::TooLong) => Try::Out(Leaving::TooLate),
            Ok(Tried::Later(delay)) => Try::Later(now.mono.saturating_add(delay.max(RETRY_MIN))),
            Ok(Tried::Behind) => Try::Later(now.mono.saturating_add(RETRY_MIN)),
            Ok(Tried::Taken(Taken { held, booked, window_start })) => {
                // In the window that it came in, or that its line has tried in vain, it was not
                // the window that let it go.
                let before = stay.arrived.mono.max(blocked_at);
                let opened = window_start.filter(|start| *start > before);
                let ready = opened.unwrap_or(told_at).saturating_add(booked);
                let pass = Pass {
                    started: now,
                    held,
                    waited: now.mono.saturating_sub(stay.arrived.mono).saturating_add(booked),
                    due: ready.max(stay.arrived.mono),
                };
                match booked {
                    0 => Try::Out(Leaving::With(pass)),
                    _ => Try::Booked(Leaving::With(pass), now.mono.saturating_add(booked)),
                }
            }
        }
    }

    fn leave(&self, leaving: Leaving) -> Result<Pass, NotPassed> {
        match leaving {
            Leaving::With(pass) => Ok(pass),
            Leaving::TooLate => Err(self.too_late()),
            Leaving::Unfit(unfit) => Err(NotPassed::Unfit(unfit)),
        }
    }

    /// A look at the line: out of it, or not yet.
    fn stand(&mut self, mut stay: Stay<'a>, cx: &Context<'_>) -> Poll<Result<Pass, NotPassed>> {
        let now = self.desk.now().mono;
        let attempt = |told_at, blocked_at| self.attempt(&stay, told_at, blocked_at);
        match stay.hall.step(stay.ticket, cx.waker(), now, attempt) {
            Stepped::Out(leaving) => {
                stay.out = true;
                Poll::Ready(self.leave(leaving))
            }
            Stepped::Booked(Leaving::With(pass), until) => {
                self.state = State::Booked(stay, pass, until);
                Poll::Pending
            }
            // Only what was taken can have been booked.
            Stepped::Booked(leaving, _) => Poll::Ready(self.leave(leaving)),
            Stepped::Waiting if now >= stay.gives_up_at => {
                drop(stay);
                Poll::Ready(Err(self.too_late()))
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
            State::Coming => match this.join(cx) {
                Ok(stay) => this.stand(stay, cx),
                Err(at_once) => Poll::Ready(at_once),
            },
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
        // A booking stays in the books, as its law says; a use in flight that never began ends.
        if let State::Booked(_, Pass { started, held: Some(from), .. }, _) = self.state {
            let held = [(self.ask.key, from)];
            self.desk.release(&held, self.ask.cost, started, self.desk.now());
        }
    }
}
