//! The steps of decisions on counts elsewhere, and what becomes of them.
//!
//! They run on the store's thread, on copies, perhaps several times; only what was done in the end
//! is counted and told. What a failure of the store means is decided here, by each rule's
//! `on_store_error`. Statistics are kept in this process, as ever.

use std::sync::Arc;

use tidegate_core::rules::{OnStoreError, Rule};
use tidegate_core::time::SECOND;
use tidegate_core::{Algorithm, LimitVerdict, Nanos, Now, Op};

use super::super::attempt::{Attempt, Went};
use super::super::catalog::Catalog;
use super::super::decision::{LIMITS_MAX, Opinion, refund};
use super::super::desk::{Note, judge_all};
use super::super::record::{When, write};
use super::super::{
    Answer, Basis, Desk, LimitAnswer, Limiter, Take, TakeAnswer, Taken, TakenFrom, Told, Tried,
};
use crate::metrics::{Counted, Door};
use crate::stores::memory::{Body, Bucket, Place};
use crate::stores::remote::Remote;
use crate::stores::remote::job::{Step, Trouble};

/// When a request that is refused because the store is away is worth another try.
pub(super) const RETRY_WHEN_AWAY: Nanos = SECOND;

/// Who is told, and how.
pub(super) type Tell<T> = Option<Box<dyn FnOnce(T) + Send>>;

/// What every step needs to know of the desk that asked.
#[derive(Clone)]
pub(super) struct Origin {
    pub(super) limiter: Arc<Limiter>,
    pub(super) catalog: Arc<Catalog>,
    pub(super) lane: usize,
    pub(super) door: Door,
    pub(super) arrived: Now,
}

impl Origin {
    pub(super) fn of(desk: &Desk, now: Now) -> Self {
        let limiter = desk.limiter.clone();
        let catalog = limiter.catalog.load_full();
        Self { limiter, catalog, lane: desk.lane, door: desk.door, arrived: now }
    }

    /// A desk for what is decided here after all.
    fn desk(&self) -> Desk {
        self.limiter.desk(self.door)
    }

    pub(super) fn rule(&self, position: usize) -> &Rule {
        self.catalog.rule(position)
    }

    fn store(&self) -> &'static str {
        self.limiter.remote.get().map_or("memory", Remote::name)
    }

    /// Counts a decision for the statistics of its key.
    pub(super) fn note(&self, position: usize, key: &[u8], over: bool, rate: f64) {
        let (memory, catalog) = (self.limiter.memory(), &self.catalog);
        let now = self.limiter.clock.now();
        let bucket = Bucket::of(now);
        let hash = memory.hash(key);
        let Some(address) = catalog.address(memory, position, key, hash, Op::Take(1)) else {
            return;
        };
        let dead = |body: &Body, pressed: bool| catalog.dead(body, pressed, bucket, now);
        memory.one(&address, bucket, dead, |body, place| {
            if place.counts() {
                body.tally.count(over, rate, bucket);
            }
        });
    }

    /// Counts why a decision is made without the store.
    fn count_trouble(&self, trouble: &Trouble) {
        // The store's thread has counted its own faults; these are the decisions.
        if !matches!(trouble, Trouble::Fault(_)) {
            self.limiter.metrics.store_error(self.store(), trouble.kind());
        }
        self.time();
    }

    /// Counts a decision by this rule that was made without the store.
    fn count_degraded(&self, position: usize) {
        self.catalog.counts.add_degraded(self.lane, position);
    }

    /// Notes how long a decision took. All are: a clock costs nothing beside a round trip.
    fn time(&self) {
        let spent = self.limiter.clock.now().mono.saturating_sub(self.arrived.mono);
        self.limiter.metrics.decision_seconds(self.door, spent as f64 / 1e9);
    }
}

/// A decision on all keys of a request.
pub(super) struct Decide {
    pub(super) origin: Origin,
    pub(super) keys: Vec<Vec<u8>>,
    /// Of each count: which key, and which rule. The first are of rules that let nothing pass, and
    /// have no count.
    pub(super) places: Vec<(usize, usize)>,
    /// How many those are.
    pub(super) denied: usize,
    pub(super) unlimited: Vec<Option<usize>>,
    pub(super) op: Op,
    pub(super) decided: Option<(Answer, Vec<Note>)>,
    pub(super) tell: Tell<Answer>,
}

impl Step for Decide {
    fn run(&mut self, bodies: &mut [Body], now: Now) {
        let seats = bodies.iter_mut().map(|body| (body, Place::Own)).collect();
        let catalog = &self.origin.catalog;
        let (mut answer, notes) =
            judge_all(catalog, &self.places, seats, self.op, Bucket::of(now), now);
        answer.held.iter_mut().for_each(|held| held.from = TakenFrom::Elsewhere);
        self.decided = Some((answer, notes));
    }

    fn undo(&self, slot: usize) -> Box<dyn Step> {
        let position = self.places[self.denied + slot].1;
        let at = self.decided.as_ref().map_or(self.origin.arrived, |(answer, _)| answer.at);
        undo(&self.origin, position, self.op, at)
    }

    fn end(mut self: Box<Self>, outcome: Result<Now, Trouble>) {
        let answer = match (outcome, self.decided.take()) {
            (Ok(_), Some((answer, notes))) => {
                self.origin.time();
                self.count(&answer, &notes);
                answer
            }
            (Ok(_), None) => return,
            (Err(trouble), _) => self.without_store(&trouble),
        };
        if let Some(tell) = self.tell.take() {
            tell(answer);
        }
    }
}

impl Decide {
    fn count(&self, answer: &Answer, notes: &[Note]) {
        let Origin { limiter, catalog, lane, .. } = &self.origin;
        Desk::count_all(*lane, limiter, catalog, self.op, notes);
        if matches!(self.op, Op::Peek(_)) {
            return;
        }
        if answer.allowed {
            for rule in &self.unlimited {
                catalog.counts.add(*lane, *rule, Counted::Allow, 1);
            }
        }
        for &(key, position) in &self.places {
            let limits = answer.limits.iter().filter(|limit| limit.key == key);
            let over = limits.clone().any(|limit| !limit.verdict.allowed);
            let rate = limits.fold(0.0, |rate: f64, limit| rate.max(limit.verdict.rate));
            self.origin.note(position, &self.keys[key], over, rate);
        }
    }

    /// Decides for keys that no store counts, where there are no others.
    pub(super) fn without_counts(&mut self, now: Now) -> Answer {
        self.run(&mut [], now);
        let (answer, notes) = self.decided.take().expect("decided just now");
        self.count(&answer, &notes);
        answer
    }

    /// What the rules say for the case that the store cannot be asked: one that denies refuses, one
    /// that counts locally is asked here, and the others let the request go.
    pub(super) fn without_store(&self, trouble: &Trouble) -> Answer {
        self.origin.count_trouble(trouble);
        let policy = |position: usize| self.origin.rule(position).on_store_error;
        let denies = |at: usize| self.denies(at);
        let denied = self.counted().iter().find(|(_, at)| denies(*at));
        let mut answer = Answer {
            allowed: true,
            at: self.origin.arrived,
            delay: 0,
            refused_by: None,
            held: Vec::new(),
            limits: Vec::new(),
        };
        // Where another rule denies, counts of this node are only looked at.
        let op = if denied.is_some() { Op::Peek(self.op.cost()) } else { self.op };
        if let Some(here) = self.decide_here(op) {
            answer = here;
        }
        if let Some((_, position)) = denied {
            answer.allowed = false;
            answer.delay = RETRY_WHEN_AWAY;
            answer.refused_by = Some(self.origin.rule(*position).name.clone());
        }
        self.tell_policies(&mut answer);
        let Origin { catalog, lane, .. } = &self.origin;
        for &(_, position) in self.counted().iter().filter(|_| !matches!(self.op, Op::Peek(_))) {
            self.origin.count_degraded(position);
            let counted = match answer.allowed {
                // Those are counted where they are decided.
                _ if policy(position) == OnStoreError::Local => continue,
                true => Counted::Allow,
                false if denies(position) => Counted::Refuse,
                false => continue,
            };
            catalog.counts.add(*lane, Some(position), counted, 1);
        }
        answer
    }

    /// The places whose counts lie in the store.
    fn counted(&self) -> &[(usize, usize)] {
        &self.places[self.denied..]
    }

    /// Whether a rule refuses where the store cannot be asked.
    fn denies(&self, position: usize) -> bool {
        let rule = self.origin.rule(position);
        rule.on_store_error == OnStoreError::Deny && !rule.shadow
    }

    /// Adds what the rules say of the keys that nothing was counted for, in the order of the keys.
    fn tell_policies(&self, answer: &mut Answer) {
        for &(key, position) in self.counted() {
            if answer.limits.iter().any(|limit| limit.key == key) {
                continue;
            }
            let (rule, denies) = (self.origin.rule(position), self.denies(position));
            let delay = if denies { RETRY_WHEN_AWAY } else { 0 };
            let reset = Nanos::MAX;
            let verdict = LimitVerdict { allowed: !denies, remaining: 0, rate: 0.0, delay, reset };
            answer.limits.extend(rule.limits.iter().map(|limit| LimitAnswer {
                key,
                rule: rule.name.clone(),
                limit: *limit,
                verdict,
                basis: Basis::Policy,
            }));
        }
        answer.limits.sort_by_key(|limit| limit.key);
    }

    /// Decides on the keys that this node counts by itself while the store is away, if there are
    /// some.
    fn decide_here(&self, op: Op) -> Option<Answer> {
        let is_local = |at: usize| self.origin.rule(at).on_store_error == OnStoreError::Local;
        let local = self.counted().iter().filter(|(_, at)| is_local(*at));
        let which: Vec<usize> = local.map(|(key, _)| *key).collect();
        let desk = self.origin.desk();
        let keys: Vec<&[u8]> = which.iter().map(|key| self.keys[*key].as_slice()).collect();
        // Without any it is none.
        let mut answer = desk.decide_all(&keys, op, true, &[], desk.now()).ok()?;
        answer.held.iter_mut().for_each(|held| held.key = which[held.key]);
        for limit in &mut answer.limits {
            limit.key = which[limit.key];
            limit.basis = Basis::LocalCounts;
        }
        Some(answer)
    }
}

/// A use that is wanted by one who waits.
pub(super) struct TryTake {
    pub(super) origin: Origin,
    pub(super) key: Vec<u8>,
    pub(super) position: usize,
    pub(super) cost: u64,
    pub(super) can_end: bool,
    pub(super) booking_max: Nanos,
    pub(super) waited: bool,
    pub(super) attempt: Option<Attempt>,
    /// When the last run was, on this process' monotonic clock.
    pub(super) ran: Nanos,
    pub(super) tell: Tell<TakeAnswer>,
}

impl Step for TryTake {
    fn run(&mut self, bodies: &mut [Body], now: Now) {
        self.ran = self.origin.limiter.clock.now().mono;
        let take = self.take();
        let Some(body) = bodies.first_mut() else { return };
        let rule = self.origin.rule(self.position);
        self.attempt = Some(Attempt::of(rule, body, Place::Own, &take, (now, Bucket::of(now))));
    }

    fn undo(&self, _: usize) -> Box<dyn Step> {
        undo(&self.origin, self.position, Op::Take(self.cost), self.origin.arrived)
    }

    fn end(mut self: Box<Self>, outcome: Result<Now, Trouble>) {
        let tried = match (outcome, self.attempt.take()) {
            (Ok(at), Some(attempt)) => {
                self.origin.time();
                let window_ends = self.window_ends(&attempt, at);
                TakeAnswer { tried: self.tried(&attempt), at, degraded: false, window_ends }
            }
            (Ok(_), None) => return,
            (Err(trouble), _) => self.without_store(&trouble),
        };
        if let Some(tell) = self.tell.take() {
            tell(tried);
        }
    }
}

impl TryTake {
    fn take(&self) -> Take<'_> {
        let Self { key, cost, can_end, booking_max, waited, .. } = self;
        let (cost, can_end) = (*cost, *can_end);
        Take { key, cost, can_end, booking_max: *booking_max, waited: *waited }
    }

    /// When the first of the windows ends that the use was counted in at `at`, the store's time:
    /// on this process' monotonic clock.
    fn window_ends(&self, attempt: &Attempt, at: Now) -> Nanos {
        if attempt.over || !matches!(attempt.went, Went::Taken { booked: 0 }) {
            return Nanos::MAX;
        }
        let windows = self.origin.rule(self.position).limits.iter().filter(|limit| {
            let fixed = limit.algorithm == Algorithm::FixedWindow;
            fixed || limit.algorithm == Algorithm::InFlight { per_window: true }
        });
        let left = windows.map(|limit| limit.period - at.unix % limit.period).min();
        left.map_or(Nanos::MAX, |left| self.ran.saturating_add(left))
    }

    fn tried(&self, attempt: &Attempt) -> Tried {
        let booked = match attempt.went {
            Went::Taken { booked } => booked,
            Went::Later(delay) => return Tried::Later(delay),
            Went::TooLong => return Tried::TooLong,
        };
        let Origin { catalog, lane, .. } = &self.origin;
        let counted = match attempt.over {
            true => Counted::Shadow,
            false if self.waited || booked > 0 => Counted::Delay,
            false => Counted::Allow,
        };
        catalog.counts.add(*lane, Some(self.position), counted, 1);
        self.origin.note(self.position, &self.key, attempt.over, 0.0);
        let holds = catalog.in_flight(self.position) && !attempt.over;
        let held = holds.then_some(TakenFrom::Elsewhere);
        Tried::Taken(Taken { held, booked, window_start: None })
    }

    fn without_store(&self, trouble: &Trouble) -> TakeAnswer {
        self.origin.count_trouble(trouble);
        let (tried, at) = self.decide_here();
        if matches!(tried, Tried::Taken(_)) {
            self.origin.count_degraded(self.position);
        }
        TakeAnswer::made_here(tried, at, true)
    }

    fn decide_here(&self) -> (Tried, Now) {
        let rule = self.origin.rule(self.position);
        let tried = match rule.on_store_error {
            OnStoreError::Deny if !rule.shadow => Tried::Later(RETRY_WHEN_AWAY),
            OnStoreError::Local => {
                let desk = self.origin.desk();
                let now = desk.now();
                let tried = desk.try_take_here(&self.take(), now, |_| true);
                return (tried.unwrap_or(Tried::TooLong), now);
            }
            _ => {
                let Origin { catalog, lane, .. } = &self.origin;
                catalog.counts.add(*lane, Some(self.position), Counted::Allow, 1);
                Tried::Taken(Taken { held: None, booked: 0, window_start: None })
            }
        };
        (tried, self.origin.arrived)
    }
}

/// A use that has already happened.
pub(super) struct Record {
    pub(super) origin: Origin,
    pub(super) key: Vec<u8>,
    pub(super) position: usize,
    /// How long before it was told, negative if it is still to come.
    pub(super) ago: i64,
    /// How long before that it should have been told.
    pub(super) late: Nanos,
    pub(super) next: Option<Nanos>,
    pub(super) tell: Tell<Told>,
}

impl Step for Record {
    fn run(&mut self, bodies: &mut [Body], now: Now) {
        let Some(body) = bodies.first_mut() else { return };
        let since = self.origin.limiter.clock.now().mono.saturating_sub(self.origin.arrived.mono);
        let arrived = now.before(since);
        let at = arrived.mono.saturating_add_signed(-self.ago);
        let when = When { at, late: self.late };
        let rule = self.origin.rule(self.position);
        self.next = Some(write(rule, body, when, (arrived, Bucket::of(now))));
    }

    fn undo(&self, _: usize) -> Box<dyn Step> {
        undo(&self.origin, self.position, Op::Take(1), self.origin.arrived)
    }

    fn end(mut self: Box<Self>, outcome: Result<Now, Trouble>) {
        let told = match (outcome, self.next.take()) {
            (Ok(_), Some(next)) => {
                self.origin.time();
                self.told(next)
            }
            (Ok(_), None) => return,
            (Err(trouble), _) => self.without_store(&trouble),
        };
        if let Some(tell) = self.tell.take() {
            tell(told);
        }
    }
}

impl Record {
    fn told(&self, next: Nanos) -> Told {
        let (next, counted) = match (next, self.origin.rule(self.position).shadow) {
            (0, _) => (0, Counted::Allow),
            (_, true) => (0, Counted::Shadow),
            (_, false) => (next, Counted::Delay),
        };
        let Origin { catalog, lane, .. } = &self.origin;
        catalog.counts.add(*lane, Some(self.position), counted, 1);
        self.origin.note(self.position, &self.key, false, 0.0);
        Told::Next(next)
    }

    /// There is nothing to refuse: the use has happened. A rule that counts locally has it written
    /// down here; where no rule does, nobody is delayed because the store is in trouble.
    fn without_store(&self, trouble: &Trouble) -> Told {
        self.origin.count_trouble(trouble);
        self.origin.count_degraded(self.position);
        if self.origin.rule(self.position).on_store_error != OnStoreError::Local {
            return self.told(0);
        }
        let desk = self.origin.desk();
        let arrived = self.origin.arrived;
        let at = arrived.mono.saturating_add_signed(-self.ago);
        desk.record_here(&self.key, When { at, late: self.late }, arrived)
    }
}

/// Something that is given back.
pub(super) struct GiveBack {
    pub(super) origin: Origin,
    pub(super) position: usize,
    pub(super) op: Op,
    /// Of a refund: when the use was taken, by the store's time, and whether uses in flight are
    /// taken back with it.
    pub(super) taken: (Now, bool),
    /// Whoever waits here for the same key is told.
    pub(super) key: Option<Vec<u8>>,
}

impl Step for GiveBack {
    fn run(&mut self, bodies: &mut [Body], now: Now) {
        let rule = self.origin.rule(self.position);
        for body in bodies {
            let moment = (now, Bucket::of(now));
            match self.op {
                Op::Refund(cost) => refund(rule, body, cost, self.taken, now),
                op => _ = Opinion::<LIMITS_MAX>::settled(rule, body, Place::Own, op, moment),
            }
        }
    }

    fn undo(&self, _: usize) -> Box<dyn Step> {
        undo(&self.origin, self.position, Op::Peek(1), self.origin.arrived)
    }

    fn end(self: Box<Self>, outcome: Result<Now, Trouble>) {
        match outcome {
            Ok(_) => {
                let limiter = &self.origin.limiter;
                if let (Some(key), Some(bell)) = (&self.key, limiter.bell.get()) {
                    bell.freed(&limiter.count_of(key));
                }
            }
            Err(trouble) => self.origin.count_trouble(&trouble),
        }
    }
}

/// Takes back what an operation has taken from one count at `taken`.
fn undo(origin: &Origin, position: usize, op: Op, taken: Now) -> Box<dyn Step> {
    let op = match op {
        Op::Take(cost) | Op::TakeUpTo(cost) => Op::Refund(cost),
        // Nothing was taken.
        _ => Op::Peek(1),
    };
    Box::new(GiveBack { origin: origin.clone(), position, op, taken: (taken, true), key: None })
}
