//! Where a request asks whether it may go: the waiting room, as one loop of a proxy uses it.

use std::rc::Rc;
use std::sync::Arc;

use tidegate_core::{Nanos, Now, Op};

use super::problem::Problem;
use crate::doors::ratelimit::Standing;
use crate::limiter::{Aim, Desk, TakenFrom, Unfit};
use crate::waiting::{Ask, Crowd, NotPassed, Pass, Passing, Waiting};

/// One loop's desk and the room before it.
pub(super) struct Admission {
    desk: Desk,
    waiting: Arc<Waiting>,
    crowd: Arc<Crowd>,
    max_wait: Option<Nanos>,
}

impl Admission {
    pub(super) fn new(
        desk: Desk,
        waiting: Arc<Waiting>,
        crowd: Arc<Crowd>,
        max_wait: Option<Nanos>,
    ) -> Self {
        Self { desk, waiting, crowd, max_wait }
    }

    fn ask<'a>(&self, key: &'a [u8]) -> Ask<'a> {
        Ask { key, cost: 1, max_wait: self.max_wait, can_end: true }
    }

    /// Sends for what is counted for a key.
    pub(super) fn look_ahead(&self, key: &[u8]) -> Aim<'_> {
        self.desk.look_ahead(key)
    }

    /// Goes at once, if that may be. The key was looked ahead for, and its slot a while ago.
    pub(super) fn try_pass(
        &self,
        key: &[u8],
        aim: Aim<'_>,
        now: Now,
    ) -> Result<Option<Pass>, Problem> {
        self.waiting.try_pass_ahead(&self.desk, &self.ask(key), aim, now).map_err(unfit)
    }

    /// Waits for its turn.
    pub(super) fn pass<'a>(&'a self, key: &'a [u8]) -> Passing<'a> {
        self.waiting.pass(&self.desk, &self.crowd, self.ask(key))
    }

    /// Whether the answer comes from elsewhere, so that nobody can go at once.
    pub(super) fn is_remote(&self) -> bool {
        self.desk.is_remote()
    }

    /// Goes as soon as it is told that it may, or is told that it may not; it does not wait.
    pub(super) fn pass_or_not<'a>(&'a self, key: &'a [u8]) -> Passing<'a> {
        let ask = Ask { max_wait: Some(0), ..self.ask(key) };
        self.waiting.pass(&self.desk, &self.crowd, ask)
    }

    /// As [`Self::standing`], wherever counts lie.
    pub(super) async fn stands(&self, key: &[u8]) -> Option<Box<Standing>> {
        let answer = self.desk.decided(&[key], Op::Peek(1), true, self.desk.now()).await.ok()?;
        Some(Box::new(Standing::of(&answer)))
    }

    /// Turns a request away that is not to wait.
    pub(super) fn refuse(&self, key: &[u8], now: Now) -> Problem {
        match self.desk.refuse(key, 1, now) {
            Ok(answer) => Problem::OverLimit(Box::new(answer)),
            Err(why) => unfit(why),
        }
    }

    /// How a key that has just been let through stands with its limits.
    pub(super) fn standing(&self, key: &[u8], now: Now) -> Option<Box<Standing>> {
        let answer = self.desk.decide_held(&[key], Op::Peek(1), now).ok()?;
        Some(Box::new(Standing::of(&answer)))
    }

    /// What has to be given back once the request is over, if anything.
    pub(super) fn held(self: &Rc<Self>, key: &[u8], pass: &Pass) -> Option<Held> {
        let from = pass.held?;
        Some(Held { admission: self.clone(), key: key.into(), from, started: pass.started })
    }
}

/// Why a request does not go.
pub(super) fn not_passed(why: NotPassed) -> Problem {
    match why {
        NotPassed::TooLate(answer) => Problem::OverLimit(answer),
        NotPassed::Crowded { .. } => Problem::Crowded,
        NotPassed::Unfit(why) => unfit(why),
    }
}

fn unfit(unfit: Unfit) -> Problem {
    match unfit {
        Unfit::KeyTooLong => Problem::KeyTooLong,
        _ => Problem::Never,
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
        let desk = &self.admission.desk;
        desk.release(&[(&self.key, self.from)], 1, self.started, desk.now());
    }
}
