//! The words that doors used before there was one request and one verdict. Goes when they are gone.

#![allow(missing_docs)]

use std::sync::Arc;

use tidegate_core::{Nanos, Now, Op};

use super::verdict::Answered;
use super::{
    Decision, Desk, HeldKey, InvalidRequest as Unfit, Key, KeyOp, Request, Row as LimitAnswer,
    Rows, TakenFrom, Together, Verdict,
};

/// A verdict on all keys of a request.
#[derive(Clone, Debug)]
pub struct Answer {
    pub allowed: bool,
    pub at: Now,
    pub delay: Nanos,
    pub firm: bool,
    pub refused_by: Option<Arc<str>>,
    pub held: Vec<HeldKey>,
    pub limits: Vec<LimitAnswer>,
}

impl PartialEq for Answer {
    fn eq(&self, other: &Self) -> bool {
        (self.allowed, self.delay, &self.refused_by)
            == (other.allowed, other.delay, &other.refused_by)
            && (&self.held, &self.limits) == (&other.held, &other.limits)
    }
}

impl Answer {
    pub(crate) fn of(verdict: &Verdict, rows: Rows) -> Self {
        Self {
            allowed: verdict.is_allowed(),
            at: verdict.at,
            delay: verdict.delay,
            firm: verdict.firm,
            refused_by: rows.refused_by,
            held: rows.held.into_vec(),
            limits: rows.limits,
        }
    }

    #[cfg(test)]
    pub(crate) fn is_denied(&self) -> bool {
        let refusing = |rule| self.refused_by.as_ref() == Some(rule);
        self.limits.iter().any(|limit| limit.limit.denies() && refusing(&limit.rule))
    }
}

fn key_op(op: Op) -> KeyOp {
    match op {
        Op::Peek(cost) => KeyOp::Peek(cost),
        Op::Take(cost) => KeyOp::Take(cost),
        Op::TakeUpTo(cost) => KeyOp::TakeUpTo(cost),
        Op::Record { at } => KeyOp::Record { at, late: 0 },
        Op::Release { cost, started } => KeyOp::Release { cost, started, from: TakenFrom::Slot },
        Op::Refund(cost) => KeyOp::Refund { cost, taken: Now::default(), in_flight: true },
    }
}

impl Desk {
    pub(super) fn request_of(
        &self,
        keys: &[&[u8]],
        op: KeyOp,
        can_end: bool,
        now: Now,
    ) -> Result<(Decision, Rows), Unfit> {
        let keys: Vec<Key<'_>> = keys.iter().map(|key| Key::new(key, op)).collect();
        let request = Request { keys: &keys, together: Together::AllOrNothing, can_end };
        let mut rows = Rows::default();
        let decision = self.decide(&request, now, Some(&mut rows))?;
        Ok((decision, rows))
    }

    /// # Errors
    /// When it cannot be decided at all.
    pub fn answer(&self, keys: &[&[u8]], op: Op, now: Now) -> Result<Answer, Unfit> {
        let (decision, rows) = self.request_of(keys, key_op(op), false, now)?;
        Ok(Answer::of(&decision.ready().expect("in memory"), rows))
    }

    /// # Errors
    /// When it cannot be decided at all.
    pub fn decide_held(&self, keys: &[&[u8]], op: Op, now: Now) -> Result<Answer, Unfit> {
        let (decision, rows) = self.request_of(keys, key_op(op), true, now)?;
        Ok(Answer::of(&decision.ready().expect("in memory"), rows))
    }

    /// # Errors
    /// When it cannot be decided at all.
    pub async fn decided(
        &self,
        keys: &[&[u8]],
        op: Op,
        can_end: bool,
        now: Now,
    ) -> Result<Answer, Unfit> {
        let op = key_op(op);
        let keys: Vec<Key<'_>> = keys.iter().map(|key| Key::new(key, op)).collect();
        let request = Request { keys: &keys, together: Together::AllOrNothing, can_end };
        let mut rows = Rows::default();
        let verdict = self.decide_async(&request, now, &mut rows).await?;
        Ok(Answer::of(&verdict, rows))
    }

    /// # Errors
    /// When it cannot be decided at all: nobody is told.
    pub fn ask(
        &self,
        keys: &[&[u8]],
        op: Op,
        can_end: bool,
        now: Now,
        tell: impl FnOnce(Answer) + Send + 'static,
    ) -> Result<(), Unfit> {
        self.ask_op(keys, key_op(op), can_end, now, tell)
    }

    fn ask_op(
        &self,
        keys: &[&[u8]],
        op: KeyOp,
        can_end: bool,
        now: Now,
        tell: impl FnOnce(Answer) + Send + 'static,
    ) -> Result<(), Unfit> {
        match self.request_of(keys, op, can_end, now)? {
            (Decision::Ready(verdict), rows) => tell(Answer::of(&verdict, rows)),
            (Decision::Pending(pending), _) => {
                pending.0.forward(|Answered { verdict, rows, .. }| tell(Answer::of(&verdict, rows)))
            }
        }
        Ok(())
    }

    pub fn release(&self, held: &[(&[u8], TakenFrom)], cost: u64, started: Now, _: Now) {
        for (key, from) in held {
            self.release_uses(key, cost, started, *from);
        }
    }

    #[must_use]
    pub fn is_remote(&self) -> bool {
        self.limiter.is_remote()
    }
}
