//! One request as a store sees it: which counts it touches, and what each of them answers.
//!
//! A plan runs once on counts in memory, or several times on copies from a remote store. It writes
//! to the bodies that the store hands it and to itself. The caller counts metrics.

use std::mem;

use smallvec::SmallVec;
use tidegate_core::limit::Algorithm;
use tidegate_core::rules::Rule;
use tidegate_core::time::SECOND;
use tidegate_core::{Limit, Nanos, Now, Op};

use super::catalog::Catalog;
use super::evaluate::{Evaluation, Terms, record_refused, refund};
use super::request::{KeyOp, LimitSource, Request, Together, WaitAttempt};
use super::verdict::{Basis, HeldKey, LimitRow, Outcome, Rows, Verdict};
use super::{InvalidRequest, KEYS_MAX, TakenFrom};
use crate::metrics::{CountedAs, Door};
use crate::stores::memory::{Body, OpenSlot, Placement, StatsBucket};

/// When a key that finds the table full, and may not share, is worth another try.
const RETRY_WHEN_FULL: Nanos = SECOND;

/// A request whose rules are found.
pub(super) struct Plan {
    /// First those of rules that let nothing pass, which have no slot; then one for each slot.
    targets: SmallVec<[CountTarget; 1]>,
    /// How many have no slot.
    denied: usize,
    /// Keys that nothing limits: their rules, if they have one.
    unlimited: SmallVec<[(Option<usize>, KeyOp); 1]>,
    together: Together,
    /// What came of the last run.
    pub(super) verdict: Verdict,
    /// Decisions of the last run, to be counted.
    pub(super) notes: SmallVec<[CountedDecision; 1]>,
    /// Rows are filled if they are wanted; what is held in any case.
    pub(super) rows: Rows,
    wants_rows: bool,
    /// How far the clock of the counts is ahead of the clock of reported uses.
    pub(super) clock_shift: i64,
}

/// One count that a request touches.
#[derive(Clone, Copy)]
pub(super) struct CountTarget {
    /// Which of the request's keys.
    pub(super) key: usize,
    /// The position of the key's rule.
    pub(super) rule: usize,
    pub(super) op: KeyOp,
    /// The limit that the request has brought, where no rule matches.
    pub(super) given: Option<Limit>,
    /// The verdict tells more of the limit to show: the key has brought a limit, whether that
    /// counts or not.
    pub(super) wants_details: bool,
}

impl CountTarget {
    /// The limits of its key.
    pub(super) fn limits<'a>(&'a self, catalog: &'a Catalog) -> &'a [Limit] {
        match &self.given {
            Some(limit) => std::slice::from_ref(limit),
            None => &catalog.rule(self.rule).limits,
        }
    }

    fn at_shifted(self, shift: i64) -> Self {
        match self.op {
            KeyOp::Record { cost, at, late } => {
                let at = at.saturating_add_signed(shift);
                Self { op: KeyOp::Record { cost, at, late }, ..self }
            }
            _ => self,
        }
    }
}

/// A decision on one count, to be counted.
#[derive(Clone, Copy)]
pub(super) struct CountedDecision {
    /// Which of the request's keys; `None` for one that has no count.
    pub(super) key: Option<usize>,
    pub(super) rule: Option<usize>,
    pub(super) counted: CountedAs,
    /// What was done because the table is full.
    pub(super) full: Option<&'static str>,
    pub(super) over: bool,
    pub(super) rate: f64,
    /// Something was taken from the count that can be given back.
    pub(super) took: bool,
}

/// One count in a run.
struct Part<'a> {
    target: CountTarget,
    rule: &'a Rule,
    terms: Terms<'a>,
    body: &'a mut Body,
    place: Placement,
    evaluation: Evaluation,
    /// After a record: how long until the next use.
    next: Nanos,
}

impl Plan {
    /// Finds the rules of a request. `rows` is handed back in the plan.
    pub(super) fn new(
        catalog: &Catalog,
        request: &Request<'_>,
        door: Door,
        now: Now,
        rows: Option<Rows>,
    ) -> Result<Self, InvalidRequest> {
        if request.keys.is_empty() || request.keys.len() > KEYS_MAX {
            return Err(InvalidRequest::TooManyKeys);
        }
        let mut plan = Self {
            targets: SmallVec::new(),
            denied: 0,
            unlimited: SmallVec::new(),
            together: request.together,
            verdict: Verdict::unlimited(Outcome::Allowed, 0, now),
            notes: SmallVec::new(),
            wants_rows: rows.is_some(),
            rows: rows.unwrap_or_default(),
            clock_shift: 0,
        };
        for (key, asked) in request.keys.iter().enumerate() {
            asked.check_cost()?;
            let op = asked.op;
            let Some(rule) = catalog.find_for(asked, request.can_end, door)? else {
                plan.unlimited.push((None, op));
                continue;
            };
            let given = match asked.limits {
                LimitSource::Given(limit) if catalog.is_given(rule) => Some(*limit),
                LimitSource::Named { limit, .. } => limit.copied(),
                _ => None,
            };
            let wants_details = matches!(asked.limits, LimitSource::Given(_));
            let target = CountTarget { key, rule, op, given, wants_details };
            if catalog.denies(rule) {
                plan.targets.insert(plan.denied, target);
                plan.denied += 1;
            } else if catalog.rule(rule).limits.is_empty() {
                plan.unlimited.push((Some(rule), op));
            } else if !plan.has_count_of(catalog, request, key, rule) {
                plan.targets.push(target);
            }
        }
        let refuses =
            |target: &CountTarget| target.op.can_be_refused() && !catalog.rule(target.rule).shadow;
        // A rule that lets nothing pass refuses the whole request: no other count is asked.
        if plan.together == Together::AllOrNothing
            && plan.targets[..plan.denied].iter().any(refuses)
        {
            plan.targets.truncate(plan.denied);
        }
        Ok(plan)
    }

    /// A plan for one slot alone.
    pub(super) fn of_slot(target: CountTarget, now: Now) -> Self {
        Self { targets: SmallVec::from_iter([target]), ..Self::empty(now) }
    }

    /// A plan without counts.
    pub(super) fn empty(now: Now) -> Self {
        Self {
            targets: SmallVec::new(),
            denied: 0,
            unlimited: SmallVec::new(),
            together: Together::Each,
            verdict: Verdict::unlimited(Outcome::Allowed, 0, now),
            notes: SmallVec::new(),
            rows: Rows::default(),
            wants_rows: false,
            clock_shift: 0,
        }
    }

    /// Whether the request touches the count of this key already: it is taken from once.
    fn has_count_of(
        &self,
        catalog: &Catalog,
        request: &Request<'_>,
        key: usize,
        rule: usize,
    ) -> bool {
        self.together == Together::AllOrNothing
            && self.slots().iter().any(|other| {
                let same = request.keys[other.key].bytes == request.keys[key].bytes;
                other.rule == rule && (catalog.rule(rule).shared || same)
            })
    }

    /// Takes those counts out that lie in memory, if the others lie in a remote store.
    pub(super) fn split_local(&mut self, catalog: &Catalog) -> Option<Plan> {
        let is_local = |target: &CountTarget| catalog.remote_names(target).is_none();
        let (local, remote): (SmallVec<[CountTarget; 1]>, SmallVec<[CountTarget; 1]>) =
            self.slots().iter().copied().partition(is_local);
        if local.is_empty() || remote.is_empty() {
            return None;
        }
        self.targets.truncate(self.denied);
        self.targets.extend(remote);
        let (together, wants_rows) = (self.together, self.wants_rows);
        let first = Self::of_slot(local[0], self.verdict.at);
        Some(Plan { targets: local, together, wants_rows, ..first })
    }

    /// Whether what it takes can be given back, where it must be if another store refuses.
    pub(super) fn can_refund(&self, catalog: &Catalog) -> bool {
        let mut targets = self.slots().iter().filter(|target| target.op.takes());
        self.together == Together::Each
            || !targets.any(|target| !target.limits(catalog).iter().all(Limit::can_refund))
    }

    /// The same counts for another operation.
    pub(super) fn with_op(&self, op: impl Fn(&CountTarget) -> KeyOp) -> Plan {
        let first = Self::of_slot(self.targets[0], self.verdict.at);
        let targets = self.slots().iter().map(|target| CountTarget { op: op(target), ..*target });
        Plan {
            targets: targets.collect(),
            together: Together::Each,
            wants_rows: self.wants_rows,
            ..first
        }
    }

    /// Whether one refusal refuses all keys.
    pub(super) fn is_all_or_nothing(&self) -> bool {
        self.together == Together::AllOrNothing
    }

    /// Asks for no more than this, of what may be taken in part.
    pub(super) fn cap(&mut self, granted: u64) {
        for target in &mut self.targets {
            if let KeyOp::TakeUpTo(most) = &mut target.op {
                *most = granted.min(*most);
            }
        }
    }

    /// The counts that have a slot.
    pub(super) fn slots(&self) -> &[CountTarget] {
        &self.targets[self.denied..]
    }

    /// Runs the operations on the slots, which come in the order of [`Self::slots`].
    pub(super) fn run(&mut self, catalog: &Catalog, slots: &mut [OpenSlot<'_>], now: Now) {
        self.notes.clear();
        self.rows.clear();
        self.verdict = Verdict::unlimited(self.outcome_without_counts(), u64::MAX, now);
        let moment = (now, StatsBucket::of(now));
        let targets = mem::take(&mut self.targets);
        let mut nothing: SmallVec<[Body; 1]> = SmallVec::new();
        nothing.resize_with(self.denied, Body::default);
        let denied = nothing.iter_mut().map(|body| (body, Placement::Own));
        let bodies = denied.chain(slots.iter_mut().map(|slot| (&mut *slot.body, slot.place)));
        let mut parts: SmallVec<[Part<'_>; 1]> = { targets.iter() }
            .zip(bodies)
            .map(|(target, (body, place))| {
                Part::new(target, self.clock_shift, catalog, (body, place), moment)
            })
            .collect();
        self.decide(&mut parts, moment);
        self.summarise(&parts, now);
        self.note_unlimited();
        if self.wants_rows {
            self.fill_rows(&parts, now);
        }
        drop(parts);
        self.targets = targets;
    }

    fn outcome_without_counts(&self) -> Outcome {
        match (self.targets.as_slice(), self.unlimited.as_slice()) {
            ([], [(None, _)]) => Outcome::NoRule,
            _ => Outcome::Allowed,
        }
    }

    /// Decides on each part, and writes what became of it.
    fn decide(&mut self, parts: &mut [Part<'_>], moment: (Now, StatsBucket)) {
        let refusing = parts.iter().position(Part::refuses);
        if let Some(at) = refusing {
            self.verdict.outcome = Outcome::Refused;
            self.rows.refused_by = Some(parts[at].rule.name.clone());
        }
        if let Some(attempt) = parts.first().and_then(|part| part.target.op.attempt()) {
            return self.attempt(parts, attempt, moment);
        }
        let all = refusing.is_none();
        if parts.iter().any(|part| matches!(part.target.op, KeyOp::TakeUpTo(_))) {
            self.grant_alike(parts, moment.0);
        }
        for part in parts {
            let granted = match self.together {
                Together::AllOrNothing => all,
                Together::Each => !part.refuses(),
            };
            part.write(granted, moment);
            self.note(part, granted, 0);
        }
    }

    /// Takes, books, or leaves no trace: for a request that waits.
    fn attempt(
        &mut self,
        parts: &mut [Part<'_>],
        attempt: WaitAttempt,
        moment: (Now, StatsBucket),
    ) {
        if self.verdict.outcome == Outcome::Allowed {
            for part in parts.iter_mut() {
                part.write(true, moment);
                self.note(part, true, 0);
            }
            if attempt.waited {
                let starts =
                    parts.iter().filter_map(|part| window_start(part.terms.limits, moment.0));
                self.verdict.window_start = starts.max().unwrap_or(0);
            }
            return;
        }
        let refusing = || parts.iter().filter(|part| part.refuses());
        if refusing().any(|part| part.terms.limits.iter().any(Limit::denies)) {
            (self.verdict.outcome, self.verdict.delay) = (Outcome::TooLong, Nanos::MAX);
            return;
        }
        if refusing().any(|part| part.place == Placement::Denied) {
            (self.verdict.outcome, self.verdict.delay) = (Outcome::Later, RETRY_WHEN_FULL);
            return;
        }
        let delays = refusing().map(|part| {
            part.evaluation.until_worth_a_try(part.terms, part.body, attempt.cost, moment.0)
        });
        let delay = delays.max().unwrap_or(0);
        let booking = match parts {
            [part] => part.evaluation.booking(part.terms),
            _ => None,
        };
        match (parts, booking) {
            (_, Some(booked)) if booked > attempt.booking_max => {
                (self.verdict.outcome, self.verdict.delay) = (Outcome::TooLong, booked);
            }
            ([part], Some(booked)) => {
                part.evaluation.book(part.terms, part.body, part.op(), moment);
                (self.verdict.outcome, self.verdict.booked) = (Outcome::Allowed, booked);
                self.rows.refused_by = None;
                self.note(part, true, booked);
            }
            _ => (self.verdict.outcome, self.verdict.delay) = (Outcome::Later, delay),
        }
    }

    /// Of what may be taken in part, every limit grants the least that any of them grants: all
    /// keys together, or the limits of each key.
    fn grant_alike(&self, parts: &mut [Part<'_>], now: Now) {
        let in_force = parts.iter().filter(|part| !part.rule.shadow);
        let least = in_force.map(|part| part.evaluation.granted).min().unwrap_or(u64::MAX);
        for part in parts {
            let KeyOp::TakeUpTo(most) = part.target.op else { continue };
            let granted = match self.together {
                Together::AllOrNothing => least.min(most),
                Together::Each => part.evaluation.granted,
            };
            if granted > 0 {
                part.target.op = KeyOp::TakeUpTo(granted);
                part.evaluation = Evaluation::of(part.terms, part.body, part.place, part.op(), now);
            }
        }
    }

    /// What the parts say together.
    fn summarise(&mut self, parts: &[Part<'_>], now: Now) {
        let verdict = &mut self.verdict;
        let shown = parts.iter().find(|part| part.refuses()).or_else(|| nearest(parts));
        if let Some(part) = shown {
            verdict.rate = part.evaluation.rate();
            verdict.no_room = part.target.given.is_some() && part.place == Placement::Denied;
            if part.target.wants_details {
                part.tell_details(verdict, now);
            }
            if let Some(limit) = part.evaluation.shown(part.terms) {
                verdict.amount = limit.amount;
                // `deny` has none.
                verdict.period =
                    if limit.period == 0 && limit.denies() { SECOND } else { limit.period };
            }
        }
        for part in parts {
            if part.target.op.attempt().is_none() {
                let (delay, firm) = part.delay(now);
                (verdict.delay, verdict.firm) = (verdict.delay, verdict.firm).max((delay, firm));
            }
            verdict.granted = verdict.granted.min(part.granted());
        }
        let asked = self.unlimited.iter().map(|(_, op)| op.for_limits().cost());
        verdict.granted = asked.fold(verdict.granted, u64::min);
        if let Some(part) = parts.iter().find(|part| matches!(part.target.op, KeyOp::Refuse(_))) {
            verdict.outcome = Outcome::Refused;
            self.rows.refused_by.get_or_insert_with(|| part.rule.name.clone());
        }
        if !verdict.is_allowed() {
            verdict.granted = 0;
        }
        if let [only] = self.rows.held.as_slice()
            && parts.len() == 1
        {
            verdict.held = Some(only.from);
        }
    }

    /// Notes how a part is counted, and what it holds.
    fn note(&mut self, part: &Part<'_>, granted: bool, booked: Nanos) {
        let Part { target, terms, ref evaluation, place, .. } = *part;
        if !target.op.is_use() && !matches!(target.op, KeyOp::Refuse(_)) {
            return;
        }
        let took = granted && target.op.takes() && (booked > 0 || evaluation.takes());
        let is_recorded = matches!(target.op, KeyOp::TakeOrRecord(_)) && place.counts();
        if (took || is_recorded) && terms.limits.iter().any(Limit::ends) {
            let shared = place == Placement::Shared;
            let from = if shared { TakenFrom::Shared } else { TakenFrom::Slot };
            let started = self.verdict.at;
            self.rows.held.push(HeldKey { key: target.key, from, started });
        }
        // Keys that agreed to a request that another refused are not counted.
        if granted || evaluation.over || matches!(target.op, KeyOp::Refuse(_)) {
            self.notes.push(CountedDecision {
                key: Some(target.key),
                rule: Some(target.rule),
                counted: evaluation.counted(target.op, booked),
                full: evaluation.full(),
                over: evaluation.over && target.op.can_be_refused(),
                rate: evaluation.rate(),
                took,
            });
        }
    }

    /// Keys that nothing limits are counted as allowed, if the request is.
    fn note_unlimited(&mut self) {
        let each = self.together == Together::Each;
        for (rule, op) in &self.unlimited {
            let counted = match op {
                KeyOp::Refuse(_) => {
                    self.verdict.outcome = Outcome::Refused;
                    CountedAs::Refuse
                }
                // Nothing was written down of a use that no rule is for.
                KeyOp::Record { .. } if rule.is_none() => continue,
                _ if !op.is_use() || !(each || self.verdict.is_allowed()) => continue,
                KeyOp::TakeOrLeave(WaitAttempt { waited: true, .. }) => CountedAs::Delay,
                _ => CountedAs::Allow,
            };
            let (rule, key) = (*rule, None);
            let (full, over, rate, took) = (None, false, 0.0, false);
            self.notes.push(CountedDecision { key, rule, counted, full, over, rate, took });
        }
    }

    fn fill_rows(&mut self, parts: &[Part<'_>], now: Now) {
        for part in parts {
            let Part { target, rule, terms, ref body, ref evaluation, .. } = *part;
            for (limit, verdict) in evaluation.verdicts(terms, body, part.op(), now) {
                self.rows.limits.push(LimitRow {
                    key: target.key,
                    rule: rule.name.clone(),
                    limit: *limit,
                    verdict,
                    basis: Basis::Counts,
                    shadow: rule.shadow,
                });
            }
        }
    }

    /// The rows, for the caller that lent them.
    pub(super) fn take_rows(&mut self) -> Rows {
        mem::take(&mut self.rows)
    }
}

impl<'a> Part<'a> {
    fn new(
        target: &'a CountTarget,
        clock_shift: i64,
        catalog: &'a Catalog,
        (body, place): (&'a mut Body, Placement),
        moment: (Now, StatsBucket),
    ) -> Self {
        let (rule, limits) = (catalog.rule(target.rule), target.limits(catalog));
        let terms = Terms { limits, shadow: rule.shadow };
        let target = target.at_shifted(clock_shift);
        let (evaluation, next) = match target.op {
            KeyOp::Record { cost, at, late } => {
                Evaluation::record(terms, body, place, (cost, at, late), moment)
            }
            op => (Evaluation::of(terms, body, place, op.for_limits(), moment.0), 0),
        };
        Self { target, rule, terms, body, place, evaluation, next }
    }

    fn op(&self) -> Op {
        self.target.op.for_limits()
    }

    fn refuses(&self) -> bool {
        self.target.op.can_be_refused() && self.evaluation.refuses()
    }

    /// Tells more of the limit to show.
    fn tell_details(&self, verdict: &mut Verdict, now: Now) {
        if let Some((limit, said)) = self.evaluation.said(self.terms, self.body, self.op(), now) {
            verdict.capacity = limit.capacity();
            (verdict.remaining, verdict.reset) = (said.remaining, said.reset);
        }
    }

    fn granted(&self) -> u64 {
        match self.target.op {
            KeyOp::Release { .. } | KeyOp::Refund { .. } => 0,
            _ if self.rule.shadow => self.op().cost(),
            _ => self.evaluation.granted,
        }
    }

    fn write(&mut self, granted: bool, moment: (Now, StatsBucket)) {
        let Self { terms, body, evaluation, place, .. } = self;
        match self.target.op {
            KeyOp::Take(_) | KeyOp::TakeUpTo(_) | KeyOp::TakeOrLeave(_) | KeyOp::Release { .. } => {
                let op = self.target.op.for_limits();
                evaluation.apply(*terms, body, op, granted, moment);
            }
            KeyOp::TakeOrRecord(cost) => {
                let op = self.target.op.for_limits();
                evaluation.apply(*terms, body, op, granted, moment);
                if evaluation.over && place.counts() {
                    record_refused(*terms, body, cost, moment.0);
                }
            }
            KeyOp::Refund { cost, taken, in_flight } if place.counts() => {
                refund(*terms, body, cost, (taken, in_flight), moment.0);
            }
            // What was written down was written when it was evaluated.
            KeyOp::Record { .. } | KeyOp::Peek(_) | KeyOp::Refund { .. } => {}
            KeyOp::Refuse(_) => body.tally.count(true, evaluation.rate(), moment.1),
        }
    }

    fn delay(&self, now: Now) -> (Nanos, bool) {
        match self.target.op {
            KeyOp::Record { .. } => (self.next, false),
            // Never refused, but a bucket takes nothing back while it would owe too much even so.
            KeyOp::Refund { .. } if self.target.given.is_some() => {
                let said = self.evaluation.said(self.terms, self.body, self.op(), now);
                (said.map_or(0, |(_, said)| said.delay), false)
            }
            _ if self.refuses() => self.evaluation.delay(self.terms, self.body, self.op(), now),
            _ => (0, false),
        }
    }
}

/// The part that is nearest its limit, of several the first.
fn nearest<'p, 'a>(parts: &'p [Part<'a>]) -> Option<&'p Part<'a>> {
    let share = |part: &Part<'_>| {
        let limit = part.evaluation.shown(part.terms);
        limit.map_or(0.0, |limit| part.evaluation.rate() / limit.amount as f64)
    };
    parts.iter().min_by(|a, b| share(b).total_cmp(&share(a)))
}

/// When the newest of the windows began that only time opens. Uses in flight per window end
/// in the middle of one, too.
fn window_start(limits: &[Limit], now: Now) -> Option<Nanos> {
    let windows = limits.iter().filter(|limit| limit.algorithm == Algorithm::FixedWindow);
    windows.map(|limit| now.mono.saturating_sub(now.unix % limit.period)).max()
}
