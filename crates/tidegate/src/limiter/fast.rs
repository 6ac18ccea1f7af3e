//! The fast path: a use of one known key, under one limit, in memory.
//!
//! Nearly all traffic is that, so it is decided where its slot lies, with one look and under the
//! lock of one line. The general path in `decide` and `plan` decides the same; a property test
//! compares the two.

use tidegate_core::rules::Rule;
use tidegate_core::{Limit, Now, Op, algorithms};

use super::catalog::Catalog;
use super::evaluate::{counted, is_firm};
use super::request::{Attempt, Key, KeyOp};
use super::verdict::{Outcome, Verdict};
use super::{Count, Desk, TakenFrom};
use crate::metrics::Counted;
use crate::stores::memory::{Aim, Bucket, known_at};

/// A rule of one limit whose keys have a slot each, which never grows: all that a use of one of
/// them needs to know.
pub(super) struct SingleLimit {
    number: u32,
    limit: Limit,
    shadow: bool,
}

impl SingleLimit {
    /// The rule in this form, if it has it.
    pub(super) fn of(rule: &Rule, number: u32) -> Option<Self> {
        match rule.limits.as_slice() {
            [limit] if !limit.remembers_uses() && !limit.denies() && !rule.shared => {
                Some(Self { number, limit: *limit, shadow: rule.shadow })
            }
            _ => None,
        }
    }
}

impl Desk {
    /// Decides on a use of a known key under the rule at `position`: the verdict, and how it is
    /// counted. `None`, and nothing was written: the general path decides.
    #[inline(always)]
    pub(super) fn take_known(
        &self,
        catalog: &Catalog,
        position: usize,
        key: &Key<'_>,
        probe: &Aim<'_>,
        (now, bucket): (Now, Bucket),
    ) -> Option<(Verdict, Counted)> {
        let single = catalog.single_limit(position)?;
        match key.op {
            KeyOp::Take(cost) => {
                let mut slot = known_at(probe, single.number, key.bytes)?;
                let state = slot.body.held.first_mut();
                let judgement = algorithms::take(&single.limit, state, cost, now);
                let over = !judgement.allowed;
                let mut verdict = single.verdict(cost, judgement.rate, now);
                if over && !single.shadow {
                    let op = Op::Take(cost);
                    let said = algorithms::explain(&single.limit, state, op, &judgement, now);
                    verdict.outcome = Outcome::Refused;
                    (verdict.granted, verdict.held) = (0, None);
                    (verdict.delay, verdict.firm) = (said.delay, is_firm(&single.limit));
                } else if over {
                    verdict.held = None;
                }
                slot.body.tally.count(over, judgement.rate, bucket);
                Some((verdict, counted(over, single.shadow, judgement.booked)))
            }
            KeyOp::TakeOrLeave(attempt) => {
                self.try_known(single, key, attempt, probe, (now, bucket))
            }
            _ => None,
        }
    }

    /// As [`Self::take_known`], for a request that may wait: only where it need not.
    #[inline(always)]
    fn try_known(
        &self,
        single: &SingleLimit,
        key: &Key<'_>,
        attempt: Attempt,
        probe: &Aim<'_>,
        (now, bucket): (Now, Bucket),
    ) -> Option<(Verdict, Counted)> {
        let count = Count { rule: single.number, name: key.bytes, hash: probe.hash() };
        if attempt.waited || !attempt.first_in_line && !self.limiter.is_line_free(&count) {
            return None;
        }
        let mut slot = known_at(probe, single.number, key.bytes)?;
        let state = slot.body.held.first_mut();
        let judgement = algorithms::take_if_allowed(&single.limit, state, attempt.cost, now);
        if !judgement.allowed {
            return None;
        }
        slot.body.tally.count(false, judgement.rate, bucket);
        Some((single.verdict(attempt.cost, judgement.rate, now), Counted::Allow))
    }
}

impl SingleLimit {
    /// The verdict on a use that was taken.
    #[inline(always)]
    fn verdict(&self, granted: u64, rate: f64, now: Now) -> Verdict {
        Verdict {
            rate,
            amount: self.limit.amount,
            period: self.limit.period,
            held: self.limit.ends().then_some(TakenFrom::Slot),
            ..Verdict::unlimited(Outcome::Allowed, granted, now)
        }
    }
}
