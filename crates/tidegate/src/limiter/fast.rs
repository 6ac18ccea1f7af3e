//! The fast path: a use of one known key, under one limit, in memory, taken or recorded.
//!
//! Nearly all traffic is that. The fast path reads and writes the slot in place, under the lock of
//! one index line. The general path in `decide` and `plan` gives the same verdicts; a property test
//! compares the two.

use tidegate_core::rules::Rule;
use tidegate_core::{Limit, Nanos, Now, Op, algorithms};

use super::catalog::Catalog;
use super::evaluate::{counted, is_firm};
use super::request::{Key, KeyOp, LimitSource, WaitAttempt};
use super::verdict::{Outcome, Verdict};
use super::{Count, LimiterHandle, TakenFrom};
use crate::metrics::CountedAs;
use crate::stores::memory::{SlotProbe, StatsBucket, known_at};

/// A rule of one limit whose keys have a slot each: all that a use of one of them needs to know.
pub(super) struct SingleLimit {
    number: u32,
    limit: Limit,
    shadow: bool,
    /// A use can make the state grow. The fast path records such uses, and leaves taking them to
    /// the general path.
    grows: bool,
    /// Its limit comes with each request.
    given: bool,
}

impl SingleLimit {
    /// The rule in this form; `None` if it has several limits, denies, or shares one count.
    pub(super) fn of(rule: &Rule, number: u32) -> Option<Self> {
        match rule.limits.as_slice() {
            [limit] if !limit.denies() && !rule.shared => {
                let (grows, given) = (limit.remembers_uses(), rule.pattern.is_nothing());
                Some(Self { number, limit: *limit, shadow: rule.shadow, grows, given })
            }
            _ => None,
        }
    }
}

impl LimiterHandle {
    /// Decides on a use of a known key under the rule at `position`: the verdict, and how it is
    /// counted. `None`, and nothing was written: the general path decides.
    #[inline(always)]
    pub(super) fn take_known(
        &self,
        catalog: &Catalog,
        position: usize,
        key: &Key<'_>,
        probe: &SlotProbe<'_>,
        (now, bucket): (Now, StatsBucket),
    ) -> Option<(Verdict, CountedAs)> {
        let single = catalog.single_limit(position)?;
        let limit = match key.limits {
            LimitSource::Given(limit) if single.given => limit,
            LimitSource::Named { limit: Some(limit), .. } => limit,
            _ => &single.limit,
        };
        match key.op {
            KeyOp::Take(cost) if !single.grows => {
                let mut slot = known_at(probe, single.number, key.bytes)?;
                let state = slot.body.held.first_mut();
                let judgement = algorithms::take(limit, state, cost, now);
                let over = !judgement.allowed;
                let mut verdict = taken(limit, cost, judgement.rate, now);
                let refused = over && !single.shadow;
                let wants_details = matches!(key.limits, LimitSource::Given(_));
                if refused || wants_details {
                    let op = Op::Take(cost);
                    let said = algorithms::explain(limit, state, op, &judgement, now);
                    if refused {
                        verdict.outcome = Outcome::Refused;
                        verdict.granted = 0;
                        (verdict.delay, verdict.firm) = (said.delay, is_firm(limit));
                    }
                    if wants_details {
                        verdict.capacity = limit.capacity();
                        (verdict.remaining, verdict.reset) = (said.remaining, said.reset);
                    }
                }
                if over {
                    verdict.held = None;
                }
                slot.body.tally.count(over, judgement.rate, bucket);
                Some((verdict, counted(over, single.shadow, judgement.booked)))
            }
            KeyOp::TakeOrLeave(attempt) if !single.grows => {
                self.try_known(single, limit, key, attempt, probe, (now, bucket))
            }
            KeyOp::Record { cost, at, late } => {
                self.record_known(single, limit, key, (cost, at, late), probe, (now, bucket))
            }
            _ => None,
        }
    }

    /// As [`Self::take_known`], for uses that have already happened.
    #[inline]
    fn record_known(
        &self,
        single: &SingleLimit,
        limit: &Limit,
        key: &Key<'_>,
        (cost, at, late): (u64, Nanos, Nanos),
        probe: &SlotProbe<'_>,
        (now, bucket): (Now, StatsBucket),
    ) -> Option<(Verdict, CountedAs)> {
        let memory = self.limiter.memory();
        if single.grows && !memory.has_bytes() {
            return None;
        }
        let mut slot = known_at(probe, single.number, key.bytes)?;
        let before = slot.body.held.heap_bytes();
        let state = slot.body.held.first_mut();
        let recorded = algorithms::record(limit, state, cost, at, now.before(late));
        slot.body.tally.count(false, recorded.rate, bucket);
        memory.account(before, slot.body.held.heap_bytes());
        // A use that has happened holds nothing that an end would give back.
        let mut verdict = Verdict { held: None, ..taken(limit, cost, recorded.rate, now) };
        let next = recorded.next.saturating_sub(late);
        let counted = match (next > 0, single.shadow) {
            (false, _) => CountedAs::Allow,
            (true, true) => CountedAs::Shadow,
            (true, false) => {
                verdict.delay = next;
                CountedAs::Delay
            }
        };
        Some((verdict, counted))
    }

    /// As [`Self::take_known`], for a request that may wait: only where it need not.
    #[inline(always)]
    fn try_known(
        &self,
        single: &SingleLimit,
        limit: &Limit,
        key: &Key<'_>,
        attempt: WaitAttempt,
        probe: &SlotProbe<'_>,
        (now, bucket): (Now, StatsBucket),
    ) -> Option<(Verdict, CountedAs)> {
        let count = Count { rule: single.number, name: key.bytes, hash: probe.hash() };
        if attempt.waited || !attempt.first_in_line && !self.limiter.is_line_free(&count) {
            return None;
        }
        let mut slot = known_at(probe, single.number, key.bytes)?;
        let state = slot.body.held.first_mut();
        let judgement = algorithms::take_if_allowed(limit, state, attempt.cost, now);
        if !judgement.allowed {
            return None;
        }
        slot.body.tally.count(false, judgement.rate, bucket);
        Some((taken(limit, attempt.cost, judgement.rate, now), CountedAs::Allow))
    }
}

/// The verdict on a use that was taken.
#[inline(always)]
fn taken(limit: &Limit, granted: u64, rate: f64, now: Now) -> Verdict {
    Verdict {
        rate,
        amount: limit.amount,
        period: limit.period,
        held: limit.ends().then_some(TakenFrom::Slot),
        ..Verdict::unlimited(Outcome::Allowed, granted, now)
    }
}
