//! One decision: every limit judges, the outcome is common, then it is applied to each.
//!
//! Works on bodies that the store has handed out; knows neither locks nor doors.

use tidegate_core::algorithms;
pub use tidegate_core::rules::LIMITS_MAX;
use tidegate_core::rules::Rule;
use tidegate_core::{Algorithm, Judgement, Limit, LimitVerdict, Nanos, Now, Op, Outcome};

use super::catalog::Plain;
use super::{Delay, Line};
use crate::metrics::Counted;
use crate::stores::memory::{Body, Bucket, Place};

/// What became of a line, in two words that are handed on in registers: carried through memory as
/// a [`Line`], it cost an eighth of a decision.
#[derive(Clone, Copy)]
pub(super) struct Settled {
    rate: f64,
    /// Bits 0 to 7: the limit to show. Bit 8: over. From bit 16: how it is counted.
    rest: u64,
}

impl Settled {
    pub(super) fn of<const N: usize>(opinion: &Opinion<N>) -> Self {
        let rate = opinion.judgements[opinion.shown].rate;
        Self::new(rate, opinion.shown, opinion.refuses(), opinion.counted())
    }

    #[inline(always)]
    fn new(rate: f64, shown: usize, over: bool, counted: Counted) -> Self {
        Self { rate, rest: shown as u64 & 0xff | u64::from(over) << 8 | (counted as u64) << 16 }
    }

    #[inline(always)]
    pub(super) fn counted(self) -> Counted {
        Counted::nth((self.rest >> 16) as usize)
    }

    #[inline(always)]
    pub(super) fn line(self, rule: &Rule) -> Line {
        let limit = &rule.limits[self.rest as usize & 0xff];
        let over = self.rest & 1 << 8 != 0;
        Line { over, rate: self.rate, limit: limit.amount, period: limit.period }
    }
}

/// What the limits of one rule, `N` at most, think of an operation on one key.
pub(super) struct Opinion<const N: usize> {
    judgements: [Judgement; N],
    /// The limit to show: the one that refuses, else the one nearest its amount.
    shown: usize,
    place: Place,
    /// Whether the rule is against it.
    pub(super) over: bool,
    shadow: bool,
}

impl<const N: usize> Opinion<N> {
    #[inline(always)]
    pub(super) fn form(rule: &Rule, body: &Body, place: Place, op: Op, now: Now) -> Self {
        let mut opinion = Self {
            judgements: [Judgement::pass(op.cost(), 0.0); N],
            shown: 0,
            place,
            over: place == Place::Denied
                && matches!(op, Op::Take(_) | Op::TakeUpTo(_) | Op::Peek(_)),
            shadow: rule.shadow,
        };
        if !place.counts() {
            return opinion;
        }
        let mut nearest = -1.0;
        for (at, (limit, state)) in rule.limits.iter().zip(body.held.states()).take(N).enumerate() {
            let judgement = algorithms::judge(limit, state, op, now);
            opinion.judgements[at] = judgement;
            if judgement.allowed {
                // With one limit there is nothing to choose from.
                let share = if N > 1 { judgement.rate / limit.amount as f64 } else { 0.0 };
                if !opinion.over && share > nearest {
                    nearest = share;
                    opinion.shown = at;
                }
            } else if !opinion.over {
                opinion.over = true;
                opinion.shown = at;
            }
        }
        opinion
    }

    /// Forms an opinion where there is no other, and applies it.
    #[inline(always)]
    pub(super) fn settled(
        rule: &Rule,
        body: &mut Body,
        place: Place,
        op: Op,
        (now, bucket): (Now, Bucket),
    ) -> Self {
        let opinion = Self::form(rule, body, place, op, now);
        opinion.apply(rule, body, op, !opinion.refuses(), bucket, now);
        opinion
    }

    /// Whether it stands in the way of the request.
    #[inline(always)]
    pub(super) fn refuses(&self) -> bool {
        self.over && !self.shadow
    }

    /// Whether a request that is granted takes something from this count.
    pub(super) fn takes(&self) -> bool {
        self.place.counts() && !self.over
    }

    /// Writes what became of the whole request, and counts it for the key.
    #[inline(always)]
    pub(super) fn apply(
        &self,
        rule: &Rule,
        body: &mut Body,
        op: Op,
        granted: bool,
        bucket: Bucket,
        now: Now,
    ) {
        if matches!(op, Op::Peek(_)) || !self.place.counts() {
            return;
        }
        // A shadow rule lives as though it were in force: what it would have refused, it has not
        // taken.
        let outcome = if granted && !self.over { Outcome::Granted } else { Outcome::Refused };
        let limits = rule.limits.iter().zip(body.held.states_mut());
        for ((limit, state), judgement) in limits.zip(&self.judgements) {
            algorithms::apply(limit, state, op, judgement, outcome, now);
        }
        if !matches!(op, Op::Release { .. } | Op::Refund(_)) {
            body.tally.count(self.over, self.judgements[self.shown].rate, bucket);
        }
    }

    /// How long the request would be booked to wait, if every limit that is against it books.
    pub(super) fn booking(&self, rule: &Rule) -> Option<Nanos> {
        let judgements = self.judgements.iter().take(rule.limits.len());
        let mut against = judgements.filter(|judgement| !judgement.allowed);
        against.try_fold(0, |longest: Nanos, judgement| {
            (judgement.booked > 0).then(|| longest.max(judgement.booked))
        })
    }

    /// Takes what every limit grants, and books what those want to have booked.
    pub(super) fn book(&self, rule: &Rule, body: &mut Body, op: Op, bucket: Bucket, now: Now) {
        let limits = rule.limits.iter().zip(body.held.states_mut());
        for ((limit, state), judgement) in limits.zip(&self.judgements) {
            algorithms::apply(limit, state, op, judgement, Outcome::Granted, now);
        }
        body.tally.count(false, self.judgements[self.shown].rate, bucket);
    }

    /// How long until a use of this cost is worth another try, where some limit is against it
    /// that does not book. Nothing has been applied, so this is what a look at it would say.
    pub(super) fn until_worth_a_try(&self, rule: &Rule, body: &Body, cost: u64, now: Now) -> Nanos {
        let op = Op::Peek(cost);
        let limits = rule.limits.iter().zip(body.held.states()).zip(&self.judgements);
        limits
            .filter(|(_, judgement)| !judgement.allowed && judgement.booked == 0)
            .map(|((limit, state), _)| {
                let judgement = algorithms::judge(limit, state, op, now);
                algorithms::explain(limit, state, op, &judgement, now).delay
            })
            .max()
            .unwrap_or(0)
    }

    /// The whole verdict of each limit, once the outcome is applied.
    pub(super) fn verdicts<'a>(
        &'a self,
        rule: &'a Rule,
        body: &'a Body,
        op: Op,
        now: Now,
    ) -> impl Iterator<Item = (&'a Limit, LimitVerdict)> {
        let states = body.held.states();
        rule.limits.iter().zip(&self.judgements).enumerate().map(move |(at, (limit, judgement))| {
            let verdict = match states.get(at) {
                Some(state) if self.place.counts() => {
                    algorithms::explain(limit, state, op, judgement, now)
                }
                _ => {
                    let delay = if self.over { limit.period } else { 0 };
                    LimitVerdict {
                        allowed: !self.over,
                        remaining: 0,
                        rate: 0.0,
                        delay,
                        reset: delay,
                    }
                }
            };
            (limit, verdict)
        })
    }

    /// How long the caller must wait: as long as the limit says that is last to let it go.
    pub(super) fn delay(&self, rule: &Rule, body: &Body, op: Op, now: Now) -> Delay {
        if self.shadow {
            return Delay::NONE;
        }
        let promises = |limit: &Limit| limit.algorithm != Algorithm::Jarl { exact: false };
        self.verdicts(rule, body, op, now)
            .map(|(limit, verdict)| Delay { span: verdict.delay, firm: promises(limit) })
            .max_by_key(|delay| (delay.span, delay.firm))
            .unwrap_or(Delay::NONE)
    }

    /// The name of what happened, for the metrics.
    pub(super) fn counted(&self) -> Counted {
        counted(self.over, self.shadow, self.judgements[self.shown].booked)
    }

    #[inline]
    pub(super) fn full(&self) -> Option<&'static str> {
        self.place.when_full()
    }
}

/// Takes back a use that was counted at `taken` and is not made, from every limit that still
/// counts it. A use in flight only where `in_flight` says so: as a rule its end gives it back.
pub(super) fn refund(
    rule: &Rule,
    body: &mut Body,
    cost: u64,
    (taken, in_flight): (Now, bool),
    now: Now,
) {
    let op = Op::Refund(cost);
    for (limit, state) in rule.limits.iter().zip(body.held.states_mut()) {
        // What the present window counts are the uses of others.
        if is_past_window(limit, taken, now) || limit.ends() && !in_flight {
            continue;
        }
        let judgement = algorithms::judge(limit, state, op, now);
        algorithms::apply(limit, state, op, &judgement, Outcome::Granted, now);
    }
}

/// Whether the limit counts in windows of the wall clock, and that of `taken` has ended.
fn is_past_window(limit: &Limit, taken: Now, now: Now) -> bool {
    let windows = match limit.algorithm {
        Algorithm::FixedWindow | Algorithm::SlidingWindow => true,
        Algorithm::InFlight { per_window } => per_window,
        _ => false,
    };
    windows && now.unix / limit.period > taken.unix / limit.period
}

impl Plain {
    /// Takes a use of a key and applies what comes of it: whether it is over, the rate that it is
    /// told, and how it is counted.
    #[inline(always)]
    pub(super) fn take(
        &self,
        body: &mut Body,
        cost: u64,
        (now, bucket): (Now, Bucket),
    ) -> (bool, f64, Counted) {
        let judgement = algorithms::take(&self.limit, body.held.first_mut(), cost, now);
        let over = !judgement.allowed;
        body.tally.count(over, judgement.rate, bucket);
        (over && !self.shadow, judgement.rate, counted(over, self.shadow, judgement.booked))
    }

    /// As [`Self::take`] where the use is allowed; otherwise nothing is written.
    #[inline(always)]
    pub(super) fn try_take(
        &self,
        body: &mut Body,
        cost: u64,
        (now, bucket): (Now, Bucket),
    ) -> bool {
        let judgement = algorithms::take_if_allowed(&self.limit, body.held.first_mut(), cost, now);
        if judgement.allowed {
            body.tally.count(false, judgement.rate, bucket);
        }
        judgement.allowed
    }
}

#[inline(always)]
fn counted(over: bool, shadow: bool, booked: Nanos) -> Counted {
    match (over, shadow) {
        (false, _) => Counted::Allow,
        (true, true) => Counted::Shadow,
        (true, false) if booked > 0 => Counted::Delay,
        (true, false) => Counted::Refuse,
    }
}
