//! stub
use super::{Law, memory};
use crate::limit::Limit;
use crate::time::Now;
use crate::verdict::{Judgement, Op, Outcome, Verdict};
/// x
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {}
impl History {
    /// x
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        0
    }
}
pub(crate) struct Smockron;
impl Law for Smockron {
    memory!(Box<History>, Smockron);
    fn judge(_: &Limit, _: Option<&Self::Memory>, op: Op, _: Now) -> Judgement {
        Judgement::pass(op.cost(), 0.0)
    }
    fn apply(
        _: &Limit,
        m: Option<Self::Memory>,
        _: Op,
        _: &Judgement,
        _: Outcome,
        _: Now,
    ) -> Option<Self::Memory> {
        m
    }
    fn explain(limit: &Limit, _: Option<&Self::Memory>, _: Op, j: &Judgement, _: Now) -> Verdict {
        Verdict { allowed: j.allowed, remaining: limit.amount, rate: 0.0, delay: 0, reset: 0 }
    }
    fn forgotten(_: &Limit, _: &Self::Memory, _: Now) -> bool {
        true
    }
}
