//! A request whose counts lie in a remote store: handed in here, answered when the store has.
//!
//! The store's thread runs the plan on copies, perhaps several times; only the last run is counted
//! and answered. If the store fails, each rule's `on_store_error` decides here. Statistics stay in
//! this process in any case.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tidegate_core::rules::{OnStoreError, Rule};
use tidegate_core::time::SECOND;
use tidegate_core::{Algorithm, Limit, LimitVerdict, Nanos, Now};

use super::super::catalog::Catalog;
use super::super::plan::{CountTarget, Plan};
use super::super::request::{Key, KeyOp, LimitSource, Request, Together, WaitAttempt};
use super::super::verdict::{Answered, Basis, LimitRow, Outcome, Rows, Verdict};
use super::super::{Limiter, LimiterHandle, TakenFrom};
use crate::completions::{AnswerTicket, Completion, completion};
use crate::metrics::{CountedAs, Door};
use crate::stores::UpdateStep;
use crate::stores::memory::{Body, OpenSlot, Placement, StatsBucket};
use crate::stores::remote::Remote;
use crate::stores::remote::update::{DeferredStep, LateSteps, StoreError, UpdateKind};

/// When a request that is refused because the store is away is worth another try.
const RETRY_WHEN_AWAY: Nanos = SECOND;
/// Decisions that one handle may have pending; beyond it the store is not asked.
pub(in super::super) const PENDING_MAX: usize = 16_384;

/// A key of a request that goes on living after its caller.
struct OwnedKey {
    bytes: Box<[u8]>,
    op: KeyOp,
    limits: OwnedLimits,
}

/// What limits it.
enum OwnedLimits {
    ByRule,
    Given(Limit),
    Named(Box<str>, Option<Limit>),
}

impl OwnedKey {
    /// The key for another operation.
    fn with_op(&self, op: KeyOp) -> Key<'_> {
        let key = Key::new(&self.bytes, op);
        match &self.limits {
            OwnedLimits::ByRule => key,
            OwnedLimits::Given(limit) => key.limited_by(limit),
            OwnedLimits::Named(rule, limit) => key.under(rule, limit.as_ref()),
        }
    }
}

/// What the step keeps of its caller.
#[derive(Clone)]
struct Origin {
    limiter: Arc<Limiter>,
    catalog: Arc<Catalog>,
    counter_stripe: usize,
    door: Door,
    arrived: Now,
    keys: Arc<[OwnedKey]>,
    can_end: bool,
    together: Together,
    pending: Arc<AtomicUsize>,
}

/// A plan that a store runs.
pub(in super::super) struct PlanStep<'a> {
    pub(in super::super) catalog: &'a Arc<Catalog>,
    pub(in super::super) plan: &'a mut Plan,
    pub(in super::super) now: Now,
    /// The caller, which may wait for the answer; `None` if the plan must run at once.
    pub(in super::super) caller: Option<Caller<'a>>,
}

/// Who asks for a plan, and with which request.
pub(in super::super) struct Caller<'a> {
    pub(in super::super) handle: &'a LimiterHandle,
    pub(in super::super) request: &'a Request<'a>,
    /// Counts of the same request that lie in memory, and have been taken.
    pub(in super::super) local: Option<Plan>,
}

/// A plan on its way through the store.
struct DeferredPlan {
    origin: Origin,
    plan: Plan,
    /// Counts of the same request that lie in memory, and have been taken.
    local: Option<Box<Plan>>,
    completion: Option<Completion<Answered>>,
    /// When the last run was, on this process' monotonic clock.
    ran: Nanos,
}

impl UpdateStep for PlanStep<'_> {
    type Ticket = AnswerTicket<Answered>;

    fn run(&mut self, slots: &mut [OpenSlot<'_>], now: Now) {
        self.plan.run(self.catalog, slots, now);
    }

    fn defer(&mut self) -> Option<(Box<dyn DeferredStep>, AnswerTicket<Answered>)> {
        let pending = &self.caller.as_ref()?.handle.pending;
        let gives_back = |target: &CountTarget| target.op.gives_back();
        if pending.load(Relaxed) >= PENDING_MAX && !self.plan.slots().iter().any(gives_back) {
            return None;
        }
        pending.fetch_add(1, Relaxed);
        let mut step = self.detach()?;
        let give_back = step.origin.clone();
        let (completion, ticket) = completion(move |answered| give_back.give_back(&answered));
        step.completion = Some(completion);
        Some((Box::new(step), ticket))
    }
}

impl PlanStep<'_> {
    /// The plan with all that it needs after its caller is gone.
    fn detach(&mut self) -> Option<DeferredPlan> {
        let Caller { handle, request, local } = self.caller.take()?;
        let origin = Origin::of(handle, self.catalog, request, self.now);
        let plan = std::mem::replace(self.plan, Plan::empty(self.now));
        Some(DeferredPlan::new(origin, plan, local))
    }

    /// What the rules say where the store is not asked.
    #[cold]
    pub(in super::super) fn answer_without_store(&mut self, why: &StoreError) -> (Verdict, Rows) {
        let Some(mut step) = self.detach() else { return (self.plan.verdict, Rows::default()) };
        let answered = step.without_store(why);
        let Answered { verdict, rows, .. } = step.with_local(answered);
        (verdict, rows)
    }
}

impl Origin {
    fn of(
        handle: &LimiterHandle,
        catalog: &Arc<Catalog>,
        request: &Request<'_>,
        arrived: Now,
    ) -> Self {
        let owned = |key: &Key<'_>| OwnedKey {
            bytes: key.bytes.into(),
            op: key.op,
            limits: match key.limits {
                LimitSource::ByRule => OwnedLimits::ByRule,
                LimitSource::Given(limit) => OwnedLimits::Given(*limit),
                LimitSource::Named { rule, limit } => {
                    OwnedLimits::Named(rule.into(), limit.copied())
                }
            },
        };
        Self {
            limiter: handle.limiter.clone(),
            catalog: catalog.clone(),
            counter_stripe: handle.counter_stripe,
            door: handle.door,
            arrived,
            keys: request.keys.iter().map(owned).collect(),
            can_end: request.can_end,
            together: request.together,
            pending: handle.pending.clone(),
        }
    }

    /// A handle for what is decided here after all.
    fn handle(&self) -> LimiterHandle {
        self.limiter.handle(self.door)
    }

    fn rule(&self, position: usize) -> &Rule {
        self.catalog.rule(position)
    }

    /// Counts a decision for the statistics of its key.
    fn note(&self, position: usize, key: &[u8], over: bool, rate: f64) {
        let (memory, catalog) = (self.limiter.memory(), &self.catalog);
        let now = self.limiter.clock.now();
        let bucket = StatsBucket::of(now);
        let dead = |body: &Body, pressed: bool| catalog.dead(body, pressed, bucket, now);
        if let Some(address) = catalog.address(memory, position, key, true) {
            memory.count(&address, (over, rate), bucket, dead);
        }
    }

    /// Counts why a decision is made without the store.
    fn count_store_error(&self, error: &StoreError) {
        // The store's thread has counted its own faults; these are the decisions.
        if !matches!(error, StoreError::Fault(_)) {
            let store = self.limiter.remote.get().map_or("memory", Remote::name);
            self.limiter.metrics.store_error(store, error.kind());
        }
        self.time();
    }

    /// Notes how long a decision took. All are: a clock costs nothing beside a round trip.
    fn time(&self) {
        let spent = self.limiter.clock.now().mono.saturating_sub(self.arrived.mono);
        self.limiter.metrics.decision_seconds(self.door, spent as f64 / 1e9);
    }

    /// Gives back what a request has taken whose caller is gone. Bookings stay. Uses that the store
    /// has not counted are not given back to it.
    fn give_back(&self, answered: &Answered) {
        let handle = self.handle();
        let verdict = &answered.verdict;
        for held in &answered.rows.held {
            let key = &self.keys[held.key];
            let cost = key.op.for_limits().cost();
            let (started, from) = (held.started, held.from);
            handle.release(key.with_op(KeyOp::Release { cost, started, from }));
        }
        if verdict.booked > 0 || verdict.degraded {
            return;
        }
        for &number in &answered.taken {
            let (cost, taken) = (verdict.granted, verdict.at);
            let in_flight = !answered.rows.held.iter().any(|held| held.key == number);
            let op = KeyOp::Refund { cost, taken, in_flight };
            let keys = [self.keys[number].with_op(op)];
            let request = Request::all_or_nothing(&keys).with_end();
            let _ = handle.decide(&request, handle.now(), None);
        }
    }
}

impl DeferredPlan {
    fn new(origin: Origin, plan: Plan, local: Option<Plan>) -> Self {
        let ran = origin.arrived.mono;
        Self { origin, plan, local: local.map(Box::new), completion: None, ran }
    }

    /// The answer of the store together with what was taken in memory, which is given back if the
    /// store refuses.
    fn with_local(&mut self, remote: Answered) -> Answered {
        let Some(mut local) = self.local.take() else { return remote };
        let Origin { limiter, catalog, keys, .. } = &self.origin;
        let handle = self.origin.handle();
        let key = |number: usize| &*keys[number].bytes;
        let took =
            |number: usize| local.notes.iter().any(|note| note.key == Some(number) && note.took);
        let refused = local.is_all_or_nothing() && !remote.verdict.is_allowed();
        let excess = local.verdict.granted.saturating_sub(remote.verdict.granted);
        let now = limiter.clock.now();
        let taken = local.verdict.at;
        if local.is_all_or_nothing() && excess > 0 {
            let mut back = local.with_op(|target| match took(target.key) {
                true => KeyOp::Refund { cost: excess, taken, in_flight: true },
                false => KeyOp::Peek(1),
            });
            handle.run_in_memory(catalog, &mut back, key, now);
        }
        if refused {
            // What each limit says, without the uses that were given back.
            let mut look = local.with_op(|target| KeyOp::Peek(target.op.for_limits().cost()));
            handle.run_in_memory(catalog, &mut look, key, now);
            local.rows.limits = look.take_rows().limits;
            local.rows.held.clear();
        } else {
            handle.count_notes(catalog, &local.notes);
        }
        let Answered { verdict, mut rows, taken: mut keys_taken } = remote;
        if !refused {
            let notes = local.notes.iter().filter(|note| note.took);
            keys_taken.extend(notes.filter_map(|note| note.key));
        }
        rows.limits.append(&mut local.rows.limits);
        rows.limits.sort_by_key(|row| row.key);
        rows.held.append(&mut local.rows.held);
        rows.refused_by = local.rows.refused_by.take().or(rows.refused_by);
        Answered { verdict: local.verdict.and(verdict), rows, taken: keys_taken }
    }

    /// Tells the caller. None waits for what is undone.
    fn tell(&mut self, answered: Answered) {
        let answered = self.with_local(answered);
        if let Some(completion) = self.completion.take() {
            self.origin.pending.fetch_sub(1, Relaxed);
            completion.complete(answered);
        }
    }

    /// What gives back what the last run took, for the case that the store does it although
    /// `on_store_error` has decided. A use in flight never stays: the caller is told of none that
    /// it could end. Other uses are made, unless the request is refused.
    fn late_steps(&self, is_refused: bool) -> LateSteps {
        let Verdict { granted: cost, at, booked, .. } = self.plan.verdict;
        let took = |target: &CountTarget| {
            self.plan.notes.iter().any(|note| note.key == Some(target.key) && note.took)
        };
        let mut steps = LateSteps::new();
        for (slot, target) in self.plan.slots().iter().enumerate() {
            if booked > 0 || !took(target) {
                continue;
            }
            let mut add = |op| steps.push((slot, self.step_of(CountTarget { op, ..*target })));
            if target.limits(&self.origin.catalog).iter().any(Limit::ends) {
                add(KeyOp::Release { cost, started: at, from: TakenFrom::Remote });
            }
            if is_refused {
                add(KeyOp::Refund { cost, taken: at, in_flight: false });
            }
        }
        steps
    }

    /// A step over one count that no caller waits for.
    fn step_of(&self, target: CountTarget) -> Box<dyn DeferredStep> {
        let plan = Plan::of_slot(target, self.origin.arrived);
        Box::new(DeferredPlan::new(self.origin.clone(), plan, None))
    }

    /// Counts what the store has decided, and makes the answer of it.
    fn answer(&mut self, at: Now) -> Answered {
        self.origin.time();
        let Origin { limiter, catalog, counter_stripe, keys, .. } = &self.origin;
        let mut taken = Vec::new();
        for note in &self.plan.notes {
            catalog.counts.add(*counter_stripe, note.rule, note.counted, 1);
            if let Some(action) = note.full {
                limiter.metrics.table_full(action);
            }
            if let (Some(key), Some(rule)) = (note.key, note.rule) {
                let over = note.over || note.counted == CountedAs::Refuse;
                self.origin.note(rule, &keys[key].bytes, over, note.rate);
                taken.extend(note.took.then_some(key));
            }
        }
        self.plan.verdict.window_ends = self.window_ends(at);
        let (verdict, mut rows) = (self.plan.verdict, self.plan.take_rows());
        rows.held.iter_mut().for_each(|held| held.from = TakenFrom::Remote);
        let held = verdict.held.map(|_| TakenFrom::Remote);
        Answered { verdict: Verdict { held, ..verdict }, rows, taken }
    }

    /// When the first of the windows ends that a waiting request was counted in at `at`, the
    /// store's time: on this process' monotonic clock.
    fn window_ends(&self, at: Now) -> Nanos {
        let Verdict { outcome: Outcome::Allowed, booked: 0, .. } = self.plan.verdict else {
            return Nanos::MAX;
        };
        let attempts = self.plan.slots().iter().filter(|target| target.op.attempt().is_some());
        let took = |target: &&CountTarget| {
            self.plan.notes.iter().any(|note| note.key == Some(target.key) && note.took)
        };
        let limits = attempts.filter(took).flat_map(|target| target.limits(&self.origin.catalog));
        let windows = limits.filter(|limit| {
            let fixed = limit.algorithm == Algorithm::FixedWindow;
            fixed || limit.algorithm == Algorithm::InFlight { per_window: true }
        });
        let left = windows.map(|limit| limit.period - at.unix % limit.period).min();
        left.map_or(Nanos::MAX, |left| self.ran.saturating_add(left))
    }

    /// What the rules say for the case that the store cannot be asked: one that denies refuses, one
    /// that counts locally is asked here, and the others let the request go.
    fn without_store(&mut self, error: &StoreError) -> Answered {
        self.origin.count_store_error(error);
        if self.plan.slots().iter().all(|target| target.op.gives_back()) {
            return self.not_given_back();
        }
        let denied = self.plan.slots().iter().position(|target| self.denies(target));
        let (mut verdict, mut rows) = self.decide_locally(denied.is_some());
        if let Some(at) = denied {
            let target = &self.plan.slots()[at];
            let waits = target.op.attempt().is_some();
            verdict.outcome = if waits { Outcome::Later } else { Outcome::Refused };
            (verdict.delay, verdict.granted, verdict.firm) = (RETRY_WHEN_AWAY, 0, true);
            rows.refused_by = Some(self.origin.rule(target.rule).name.clone());
        }
        if let Some(target) = self.plan.slots().iter().find(|t| matches!(t.op, KeyOp::Refuse(_))) {
            (verdict.outcome, verdict.granted) = (Outcome::Refused, 0);
            let rule = self.origin.rule(target.rule);
            rows.refused_by.get_or_insert_with(|| rule.name.clone());
        }
        verdict.degraded = true;
        self.add_policies(&mut verdict, &mut rows);
        self.count_policies(&verdict);
        Answered { verdict, rows, taken: Vec::new() }
    }

    /// The answer to a request that gives back, while the store has not done it.
    fn not_given_back(&self) -> Answered {
        let verdict = Verdict { degraded: true, ..self.plan.verdict };
        Answered { verdict, rows: Rows::default(), taken: Vec::new() }
    }

    /// Whether a rule refuses where the store cannot be asked.
    fn denies(&self, target: &CountTarget) -> bool {
        let rule = self.origin.rule(target.rule);
        let deny = rule.on_store_error == OnStoreError::Deny && !rule.shadow;
        deny && target.op.can_be_refused()
    }

    fn is_local(&self, target: &CountTarget) -> bool {
        self.origin.rule(target.rule).on_store_error == OnStoreError::Local
    }

    /// Decides on the keys that this node counts by itself while the store is away, and on those
    /// that have no count. Where another rule denies, counts are only looked at.
    fn decide_locally(&self, denied: bool) -> (Verdict, Rows) {
        let Origin { keys, catalog, can_end, together, .. } = &self.origin;
        let is_meant = |key: &OwnedKey| {
            let look = key.with_op(KeyOp::Peek(1));
            let rule = catalog.find_for(&look, true, self.origin.door).ok().flatten();
            rule.is_none_or(|rule| catalog.decides_without_store(rule))
        };
        let which: Vec<usize> = (0..keys.len()).filter(|at| is_meant(&keys[*at])).collect();
        let op = |op: KeyOp| match op {
            KeyOp::TakeOrLeave(attempt) if !denied => {
                KeyOp::TakeOrLeave(WaitAttempt { first_in_line: true, ..attempt })
            }
            op if !denied => op,
            op => KeyOp::Peek(op.for_limits().cost().max(1)),
        };
        let local: Vec<Key<'_>> =
            which.iter().map(|at| keys[*at].with_op(op(keys[*at].op))).collect();
        let request = Request { keys: &local, together: *together, can_end: *can_end };
        let handle = self.origin.handle();
        let now = handle.now();
        let wanted = Some(Rows::default());
        let Ok(mut plan) = Plan::new(catalog, &request, self.origin.door, now, wanted) else {
            // None of them is counted here.
            let granted = keys.iter().map(|key| key.op.for_limits().cost()).min().unwrap_or(0);
            let verdict = Verdict::unlimited(Outcome::Allowed, granted, self.origin.arrived);
            return (verdict, Rows::default());
        };
        handle.run_in_memory(catalog, &mut plan, |key| local[key].bytes, now);
        handle.count_notes(catalog, &plan.notes);
        let (verdict, mut rows) = (plan.verdict, plan.take_rows());
        rows.held.iter_mut().for_each(|held| held.key = which[held.key]);
        for row in &mut rows.limits {
            row.key = which[row.key];
            row.basis = Basis::LocalCounts;
        }
        (verdict, rows)
    }

    /// Adds what the rules say of the keys that nothing was counted for, in the order of the keys.
    fn add_policies(&self, verdict: &mut Verdict, rows: &mut Rows) {
        for target in self.plan.slots().iter().filter(|target| !self.is_local(target)) {
            let (rule, denies) = (self.origin.rule(target.rule), self.denies(target));
            let delay = if denies { RETRY_WHEN_AWAY } else { 0 };
            let said = LimitVerdict {
                allowed: !denies,
                remaining: 0,
                rate: 0.0,
                delay,
                reset: Nanos::MAX,
            };
            rows.limits.extend(target.limits(&self.origin.catalog).iter().map(|limit| LimitRow {
                key: target.key,
                rule: rule.name.clone(),
                limit: *limit,
                verdict: said,
                basis: Basis::Policy,
                shadow: rule.shadow,
            }));
        }
        rows.limits.sort_by_key(|row| row.key);
        let refusing = rows.limits.iter().find(|row| !row.verdict.allowed);
        let shown = refusing.or_else(|| nearest(&rows.limits));
        if let Some(row) = shown {
            verdict.rate = row.verdict.rate;
            (verdict.amount, verdict.period) = (row.limit.amount, row.limit.period);
            if row.basis == Basis::Policy {
                let (left, reset) = row.left();
                (verdict.capacity, verdict.reset) = (row.limit.capacity(), reset);
                verdict.remaining = left.saturating_sub(verdict.granted);
            }
        }
    }

    /// Counts a decision by each rule whose store was not asked. What was counted locally has been.
    fn count_policies(&self, verdict: &Verdict) {
        let Origin { catalog, counter_stripe, .. } = &self.origin;
        for target in self.plan.slots() {
            let refuses = self.denies(target);
            let is_final = match target.op {
                KeyOp::Peek(_) => false,
                // A request that will try again is counted when it goes or gives up.
                KeyOp::TakeOrLeave(_) => verdict.is_allowed(),
                _ => true,
            };
            if !is_final {
                continue;
            }
            catalog.counts.add_degraded(*counter_stripe, target.rule);
            let counted = match target.op {
                _ if self.is_local(target) => continue,
                KeyOp::Refuse(_) => CountedAs::Refuse,
                _ if verdict.is_allowed() => CountedAs::Allow,
                _ if refuses => CountedAs::Refuse,
                _ => continue,
            };
            catalog.counts.add(*counter_stripe, Some(target.rule), counted, 1);
            if let KeyOp::Record { .. } | KeyOp::Refuse(_) = target.op {
                let over = counted == CountedAs::Refuse;
                self.origin.note(target.rule, &self.origin.keys[target.key].bytes, over, 0.0);
            }
        }
    }
}

impl DeferredStep for DeferredPlan {
    fn kind(&self) -> UpdateKind {
        match self.plan.slots().first().map(|target| target.op) {
            Some(KeyOp::Release { .. }) => UpdateKind::GiveBack,
            Some(KeyOp::Refund { .. }) => UpdateKind::Refund,
            _ => UpdateKind::Take,
        }
    }

    fn run(&mut self, bodies: &mut [Body], now: Now) {
        let Self { origin, plan, ran, .. } = self;
        let local = origin.limiter.clock.now();
        *ran = local.mono;
        let mut slots: smallvec::SmallVec<[OpenSlot<'_>; 1]> =
            bodies.iter_mut().map(|body| OpenSlot { body, place: Placement::Own }).collect();
        // A use that has happened is judged as of its report, by the store's clock.
        let now = if plan.slots().iter().any(|target| matches!(target.op, KeyOp::Record { .. })) {
            let arrived = now.before(local.mono.saturating_sub(origin.arrived.mono));
            plan.clock_shift = arrived.mono.wrapping_sub(origin.arrived.mono) as i64;
            arrived
        } else {
            now
        };
        plan.run(&origin.catalog, &mut slots, now);
    }

    fn undo(&self, slot: usize) -> Box<dyn DeferredStep> {
        let target = self.plan.slots()[slot];
        let op = match target.op {
            op if op.is_use() => KeyOp::Refund {
                cost: self.plan.verdict.granted,
                taken: self.plan.verdict.at,
                in_flight: true,
            },
            // Nothing was taken.
            _ => KeyOp::Peek(1),
        };
        self.step_of(CountTarget { op, ..target })
    }

    fn end(mut self: Box<Self>, outcome: Result<Now, StoreError>) {
        let answered = match &outcome {
            Ok(at) => self.answer(*at),
            Err(error) => self.without_store(error),
        };
        let Origin { limiter, keys, .. } = &self.origin;
        if let (Ok(_), Some(waiters)) = (&outcome, limiter.waiters.get()) {
            for target in self.plan.slots().iter().filter(|target| target.op.gives_back()) {
                waiters.freed(&limiter.count_of(&keys[target.key].bytes));
            }
        }
        self.tell(answered);
    }

    fn answer_early(&mut self) {
        let answered = self.not_given_back();
        self.tell(answered);
    }

    fn end_early(mut self: Box<Self>, error: StoreError) -> LateSteps {
        let answered = self.without_store(&error);
        let is_refused = !answered.verdict.is_allowed();
        let late = self.late_steps(is_refused);
        self.tell(answered);
        late
    }
}

/// The limit that is nearest its amount, of several the first.
fn nearest(rows: &[LimitRow]) -> Option<&LimitRow> {
    let share = |row: &LimitRow| row.verdict.rate / row.limit.amount as f64;
    rows.iter().min_by(|a, b| share(b).total_cmp(&share(a)))
}

/// The step of a request, for tests.
#[cfg(test)]
pub(super) fn of(
    handle: &LimiterHandle,
    request: &Request<'_>,
    now: Now,
) -> Result<Box<dyn DeferredStep>, super::super::InvalidRequest> {
    let origin = Origin::of(handle, &handle.limiter.catalog.load(), request, now);
    let plan = Plan::new(&origin.catalog, request, handle.door, now, None)?;
    Ok(Box::new(DeferredPlan::new(origin, plan, None)))
}
