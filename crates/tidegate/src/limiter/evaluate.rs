//! What the limits of one rule say of an operation on one key, and what is written of it.
//!
//! Works on bodies that a store has handed out; knows neither locks nor doors.

use tidegate_core::algorithms;
use tidegate_core::rules::LIMITS_MAX;
use tidegate_core::time::SECOND;
use tidegate_core::{Algorithm, JointOutcome, Judgement, Limit, LimitVerdict, Nanos, Now, Op};

use super::request::KeyOp;
use crate::metrics::CountedAs;
use crate::stores::memory::{Body, Placement, StatsBucket};

/// When to try again if there is no room for a key, and its limit has no period.
const ROOM_DELAY: Nanos = SECOND;

/// The limits of one key: those of its rule, or what its request has brought.
#[derive(Clone, Copy)]
pub(super) struct Terms<'a> {
    pub(super) limits: &'a [Limit],
    /// Refusals are only counted.
    pub(super) shadow: bool,
}

/// What the limits of one rule say of one key.
pub(super) struct Evaluation {
    judgements: [Judgement; LIMITS_MAX],
    /// The limit to show: the one that refuses, else the one nearest its amount.
    shown: usize,
    place: Placement,
    /// Whether the rule is against it.
    pub(super) over: bool,
    shadow: bool,
    /// How many uses all limits grant.
    pub(super) granted: u64,
}

impl Evaluation {
    /// Asks every limit. Nothing is written.
    #[inline]
    pub(super) fn of(terms: Terms<'_>, body: &Body, place: Placement, op: Op, now: Now) -> Self {
        let granted = match op {
            Op::Release { .. } | Op::Refund(_) => 0,
            op => op.cost(),
        };
        let mut evaluation = Self {
            judgements: [Judgement::pass(granted, 0.0); LIMITS_MAX],
            shown: 0,
            place,
            over: place == Placement::Denied
                && matches!(op, Op::Take(_) | Op::TakeUpTo(_) | Op::Peek(1..)),
            shadow: terms.shadow,
            granted,
        };
        if !place.counts() {
            return evaluation;
        }
        let mut nearest = -1.0;
        let limits = terms.limits.iter().zip(body.held.states()).take(LIMITS_MAX);
        for (at, (limit, state)) in limits.enumerate() {
            let judgement = algorithms::judge(limit, state, op, now);
            evaluation.judgements[at] = judgement;
            evaluation.granted = evaluation.granted.min(judgement.granted);
            if judgement.allowed {
                let share = judgement.rate / limit.amount as f64;
                if !evaluation.over && share > nearest {
                    nearest = share;
                    evaluation.shown = at;
                }
            } else if !evaluation.over {
                evaluation.over = true;
                evaluation.shown = at;
            }
        }
        evaluation
    }

    /// Writes down uses that have already happened. Returns how long from now until the next use:
    /// the limit that allows it last decides.
    #[inline]
    pub(super) fn record(
        terms: Terms<'_>,
        body: &mut Body,
        place: Placement,
        (cost, at, late): (u64, Nanos, Nanos),
        (now, bucket): (Now, StatsBucket),
    ) -> (Self, Nanos) {
        let mut evaluation = Self {
            judgements: [Judgement::pass(cost, 0.0); LIMITS_MAX],
            shown: 0,
            place,
            over: false,
            shadow: terms.shadow,
            granted: cost,
        };
        if !place.counts() {
            // A use that found no room was not counted, so it delays no caller.
            return (evaluation, 0);
        }
        let now = now.before(late);
        let (mut next, mut nearest) = (0, -1.0);
        let limits = terms.limits.iter().zip(body.held.states_mut()).take(LIMITS_MAX);
        for (index, (limit, state)) in limits.enumerate() {
            let recorded = algorithms::record(limit, state, cost, at, now);
            evaluation.judgements[index].rate = recorded.rate;
            next = next.max(recorded.next);
            let share = recorded.rate / limit.amount as f64;
            if share > nearest {
                (nearest, evaluation.shown) = (share, index);
            }
        }
        body.tally.count(false, evaluation.rate(), bucket);
        let next = next.saturating_sub(late);
        evaluation.over = next > 0;
        (evaluation, if terms.shadow { 0 } else { next })
    }

    /// Whether it stands in the way of the request.
    #[inline]
    pub(super) fn refuses(&self) -> bool {
        self.over && !self.shadow
    }

    /// Whether a request that is granted takes something from this count.
    #[inline]
    pub(super) fn takes(&self) -> bool {
        self.place.counts() && !self.over
    }

    /// The use of the key, by the limit to show.
    #[inline]
    pub(super) fn rate(&self) -> f64 {
        self.judgements[self.shown].rate
    }

    /// The limit to show, of its rule.
    #[inline]
    pub(super) fn shown<'a>(&self, terms: Terms<'a>) -> Option<&'a Limit> {
        terms.limits.get(self.shown)
    }

    /// Writes what became of the whole request, and counts it for the key.
    #[inline]
    pub(super) fn apply(
        &self,
        terms: Terms<'_>,
        body: &mut Body,
        op: Op,
        granted: bool,
        (now, bucket): (Now, StatsBucket),
    ) {
        if !self.place.counts() {
            return;
        }
        // A shadow rule lives as though it were in force: what it would have refused, it has not
        // taken.
        let outcome =
            if granted && !self.over { JointOutcome::Granted } else { JointOutcome::Refused };
        self.write(terms, body, op, outcome, now);
        if !matches!(op, Op::Release { .. }) {
            body.tally.count(self.over, self.rate(), bucket);
        }
    }

    fn write(&self, terms: Terms<'_>, body: &mut Body, op: Op, outcome: JointOutcome, now: Now) {
        let limits = terms.limits.iter().zip(body.held.states_mut());
        for ((limit, state), judgement) in limits.zip(&self.judgements) {
            algorithms::apply(limit, state, op, judgement, outcome, now);
        }
    }

    /// How long the request would be booked to wait, if every limit that is against it books.
    pub(super) fn booking(&self, terms: Terms<'_>) -> Option<Nanos> {
        let judgements = self.judgements.iter().take(terms.limits.len());
        let mut against = judgements.filter(|judgement| !judgement.allowed);
        against.try_fold(0, |longest: Nanos, judgement| {
            (judgement.booked > 0).then(|| longest.max(judgement.booked))
        })
    }

    /// Takes what every limit grants, and books what those want to have booked.
    pub(super) fn book(
        &self,
        terms: Terms<'_>,
        body: &mut Body,
        op: Op,
        (now, bucket): (Now, StatsBucket),
    ) {
        self.write(terms, body, op, JointOutcome::Granted, now);
        body.tally.count(false, self.rate(), bucket);
    }

    /// How long until a use of this cost is worth another try, where some limit is against it
    /// that does not book. Nothing has been applied, so this is what a look at it would say.
    pub(super) fn until_worth_a_try(
        &self,
        terms: Terms<'_>,
        body: &Body,
        cost: u64,
        now: Now,
    ) -> Nanos {
        let op = Op::Peek(cost);
        let limits = terms.limits.iter().zip(body.held.states()).zip(&self.judgements);
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
        terms: Terms<'a>,
        body: &'a Body,
        op: Op,
        now: Now,
    ) -> impl Iterator<Item = (&'a Limit, LimitVerdict)> {
        let states = body.held.states();
        terms.limits.iter().zip(&self.judgements).enumerate().map(
            move |(at, (limit, judgement))| {
                let verdict = match states.get(at) {
                    Some(state) if self.place.counts() => {
                        algorithms::explain(limit, state, op, judgement, now)
                    }
                    _ => {
                        let allowed = !self.over;
                        let delay = match limit.period {
                            _ if allowed => 0,
                            0 => ROOM_DELAY,
                            period => period,
                        };
                        LimitVerdict { allowed, remaining: 0, rate: 0.0, delay, reset: delay }
                    }
                };
                (limit, verdict)
            },
        )
    }

    /// The whole verdict of the limit to show, once the outcome is applied.
    pub(super) fn said<'a>(
        &'a self,
        terms: Terms<'a>,
        body: &'a Body,
        op: Op,
        now: Now,
    ) -> Option<(&'a Limit, LimitVerdict)> {
        self.verdicts(terms, body, op, now).nth(self.shown)
    }

    /// How long the caller must wait, and whether that is firm: as long as the limit says that is
    /// last to let it go.
    #[inline]
    pub(super) fn delay(&self, terms: Terms<'_>, body: &Body, op: Op, now: Now) -> (Nanos, bool) {
        if !self.refuses() {
            return (0, false);
        }
        let delays = self.verdicts(terms, body, op, now);
        let firmly = |(limit, verdict): (&Limit, LimitVerdict)| (verdict.delay, is_firm(limit));
        delays.map(firmly).max().unwrap_or((0, false))
    }

    /// The name of what happened, for the metrics.
    pub(super) fn counted(&self, op: KeyOp, booked: Nanos) -> CountedAs {
        match op {
            KeyOp::Refuse(_) => CountedAs::Refuse,
            KeyOp::TakeOrLeave(attempt) if !self.refuses() || booked > 0 => {
                match (self.over && self.shadow, attempt.waited || booked > 0) {
                    (true, _) => CountedAs::Shadow,
                    (false, true) => CountedAs::Delay,
                    (false, false) => CountedAs::Allow,
                }
            }
            KeyOp::Record { .. } if self.refuses() => CountedAs::Delay,
            _ => counted(self.over, self.shadow, self.judgements[self.shown].booked),
        }
    }

    /// What was done because the table is full.
    #[inline]
    pub(super) fn full(&self) -> Option<&'static str> {
        self.place.when_full()
    }
}

/// Whether a caller that goes before the delay of this limit is over breaks it.
#[inline]
pub(super) fn is_firm(limit: &Limit) -> bool {
    limit.algorithm != Algorithm::Jarl { exact: false }
}

/// Takes back a use that was counted at `taken` and is not made, from every limit that still
/// counts it. A use in flight only where `in_flight` says so: as a rule its end gives it back.
pub(super) fn refund(
    terms: Terms<'_>,
    body: &mut Body,
    cost: u64,
    (taken, in_flight): (Now, bool),
    now: Now,
) {
    let op = Op::Refund(cost);
    for (limit, state) in terms.limits.iter().zip(body.held.states_mut()) {
        // What the present window counts are the uses of others.
        if is_past_window(limit, taken, now) || limit.ends() && !in_flight {
            continue;
        }
        let judgement = algorithms::judge(limit, state, op, now);
        algorithms::apply(limit, state, op, &judgement, JointOutcome::Granted, now);
    }
}

/// Writes down a use that was refused, where windows are fixed: other algorithms would put the next
/// use off for longer than a window. Uses in flight are held, because their end comes all the same.
pub(super) fn record_refused(terms: Terms<'_>, body: &mut Body, cost: u64, now: Now) {
    for (limit, state) in terms.limits.iter().zip(body.held.states_mut()) {
        match limit.algorithm {
            Algorithm::FixedWindow => {
                algorithms::record(limit, state, cost, now.mono, now);
            }
            Algorithm::InFlight { .. } => {
                let held = Judgement::pass(cost, 0.0);
                let op = Op::Take(cost);
                algorithms::apply(limit, state, op, &held, JointOutcome::Granted, now);
            }
            _ => {}
        }
    }
}

/// Whether the limit counts in windows of the wall clock, and that of `taken` has ended.
fn is_past_window(limit: &Limit, taken: Now, now: Now) -> bool {
    limit.counts_in_windows() && now.unix / limit.period > taken.unix / limit.period
}

/// How a decision is counted.
#[inline(always)]
pub(super) fn counted(over: bool, shadow: bool, booked: Nanos) -> CountedAs {
    match (over, shadow) {
        (false, _) => CountedAs::Allow,
        (true, true) => CountedAs::Shadow,
        (true, false) if booked > 0 => CountedAs::Delay,
        (true, false) => CountedAs::Refuse,
    }
}
