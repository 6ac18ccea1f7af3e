//! Every decision: find the rule, take the fast path or make a plan, run the plan where the counts
//! are, and count the outcome.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::Now;

use super::catalog::Catalog;
use super::plan::{CountedDecision, Plan};
use super::remote::{Caller, PlanStep};
use super::request::{Key, KeyOp, Request, Together};
use super::verdict::{Answered, Decision, PendingVerdict, Rows, Verdict};
use super::{Count, InvalidRequest, Limiter, LimiterHandle, TakenFrom};
use crate::completions::AnswerTicket;
use crate::metrics::CountedAs;
use crate::stores::memory::{Body, SlotAddress, SlotProbe, StatsBucket};
use crate::stores::remote::update::StoreError;
use crate::stores::{Store, Updated};

/// How many keys of a batch are looked up together: what they touch fits the nearest cache.
const GROUP: usize = 64;
/// One decision or batch in this many is timed. A power of two.
const TIME_ONE_IN: u64 = 1024;

/// Decisions of one rule that came out the same, one after another: counted in one go.
#[derive(Default)]
pub(super) struct CountBatch {
    rule: Option<usize>,
    counted: Option<CountedAs>,
    decisions: u64,
}

impl CountBatch {
    #[inline]
    fn add(&mut self, handle: &LimiterHandle, catalog: &Catalog, rule: usize, counted: CountedAs) {
        if self.rule != Some(rule) || self.counted != Some(counted) {
            self.end(handle, catalog);
            *self = CountBatch { rule: Some(rule), counted: Some(counted), decisions: 0 };
        }
        self.decisions += 1;
    }

    fn end(&mut self, handle: &LimiterHandle, catalog: &Catalog) {
        if let Some(counted) = self.counted.take() {
            catalog.counts.add(handle.counter_stripe, self.rule, counted, self.decisions);
        }
    }
}

impl LimiterHandle {
    /// Decides on one request. Rows are filled if they are lent, unless the verdict comes later:
    /// then they come with it.
    ///
    /// # Errors
    /// When it cannot be decided at all.
    #[inline]
    pub fn decide(
        &self,
        request: &Request<'_>,
        now: Now,
        rows: Option<&mut Rows>,
    ) -> Result<Decision, InvalidRequest> {
        let ([key], None) = (request.keys, &rows) else {
            return self.decide_generally(&self.limiter.catalog.load(), request, now, rows, true);
        };
        key.check_cost()?;
        // The processor fetches the slot while the catalog finds the rule.
        let mut probe = self.limiter.memory().probe(key.bytes);
        probe.prefetch();
        probe.prefetch_slot();
        let catalog = self.limiter.catalog.load();
        let rule = catalog.find_for(key, request.can_end, self.door)?;
        if let Some(rule) = rule
            && let Some((verdict, counted)) =
                self.take_known(&catalog, rule, key, &probe, (now, StatsBucket::of(now)))
        {
            catalog.counts.add(self.counter_stripe, Some(rule), counted, 1);
            self.time(1, now);
            return Ok(Decision::Ready(verdict));
        }
        self.decide_generally(&catalog, request, now, rows, true)
    }

    /// As [`Self::decide`], for a request whose store has just not answered: it is not asked, and
    /// `on_store_error` decides at once.
    ///
    /// # Errors
    /// When it cannot be decided at all.
    pub(crate) fn decide_without_store(
        &self,
        request: &Request<'_>,
        now: Now,
        rows: &mut Rows,
    ) -> Result<Decision, InvalidRequest> {
        self.decide_generally(&self.limiter.catalog.load(), request, now, Some(rows), false)
    }

    /// As [`Self::decide`], for doors that refuse a cost that can never be had, where `decide` says
    /// that the request is invalid. `true`: it is such a cost. Then the keys were only looked at,
    /// each at its own cost, and the refusal is counted.
    ///
    /// # Errors
    /// When it cannot be decided at all.
    pub fn decide_or_refuse(
        &self,
        request: &Request<'_>,
        now: Now,
        mut rows: Option<&mut Rows>,
    ) -> Result<(Decision, bool), InvalidRequest> {
        match self.decide(request, now, rows.as_deref_mut()) {
            Err(InvalidRequest::CostAboveLimit { .. }) => {}
            decided => return Ok((decided?, false)),
        }
        let catalog = self.limiter.catalog.load();
        let look = |key: &Key<'_>| match catalog.find_for(key, request.can_end, self.door) {
            Err(InvalidRequest::CostAboveLimit { .. }) if key.op.is_use() => {
                KeyOp::Refuse(key.op.cost())
            }
            Err(_) => KeyOp::Peek(1),
            Ok(_) => KeyOp::Peek(key.op.for_limits().least().max(1)),
        };
        let keys: SmallVec<[Key<'_>; 4]> =
            request.keys.iter().map(|key| Key { op: look(key), ..*key }).collect();
        let look = Request { keys: &keys, ..*request };
        Ok((self.decide(&look, now, rows)?, true))
    }

    /// Whether the key asks for more than can ever be had, so that [`Self::decide`] calls it
    /// invalid.
    #[must_use]
    pub fn is_too_much(&self, key: &Key<'_>) -> bool {
        let found = self.limiter.catalog.load().find_for(key, false, self.door);
        matches!(found, Err(InvalidRequest::CostAboveLimit { .. }))
    }

    /// Decides on each key by itself, in turn, as [`Self::decide`] would, looking up many at once.
    pub fn decide_batch(
        &self,
        keys: &[Key<'_>],
        now: Now,
        out: &mut Vec<Result<Decision, InvalidRequest>>,
    ) {
        out.clear();
        let catalog = self.limiter.catalog.load();
        let mut batch = CountBatch::default();
        let moment = (now, StatsBucket::of(now));
        for keys in keys.chunks(GROUP) {
            let probes = self.prefetch_all(keys);
            for (key, probe) in keys.iter().zip(&probes) {
                let found = key.check_cost().and_then(|()| catalog.find_for(key, false, self.door));
                let known = match found {
                    Ok(Some(rule)) => {
                        let known = self.take_known(&catalog, rule, key, probe, moment);
                        known.map(|known| (rule, known))
                    }
                    _ => None,
                };
                out.push(match known {
                    Some((rule, (verdict, counted))) => {
                        batch.add(self, &catalog, rule, counted);
                        Ok(Decision::Ready(verdict))
                    }
                    None => {
                        let keys = std::slice::from_ref(key);
                        let request = Request::all_or_nothing(keys);
                        self.decide_generally(&catalog, &request, now, None, true)
                    }
                });
            }
        }
        batch.end(self, &catalog);
        self.time(keys.len(), now);
    }

    /// Prefetches what a group of keys needs: first all lines of the index, then all slots, so that
    /// memory and its page tables serve many of them at once. To prefetch between decisions took
    /// longer, however far ahead: an access that waits for a page table holds up all that come
    /// after it.
    #[inline(always)]
    fn prefetch_all(&self, keys: &[Key<'_>]) -> SmallVec<[SlotProbe<'_>; GROUP]> {
        let memory = self.limiter.memory();
        let mut probes: SmallVec<[SlotProbe<'_>; GROUP]> = SmallVec::new();
        probes.extend(keys.iter().map(|key| {
            let probe = memory.probe(key.bytes);
            probe.prefetch();
            probe
        }));
        probes.iter_mut().for_each(SlotProbe::prefetch_slot);
        probes
    }

    /// As [`Self::decide`], for tasks: waits until the verdict has come.
    ///
    /// # Errors
    /// When it cannot be decided at all.
    pub async fn decide_async(
        &self,
        request: &Request<'_>,
        now: Now,
        rows: &mut Rows,
    ) -> Result<Verdict, InvalidRequest> {
        let ticket = match self.decide(request, now, Some(rows))? {
            Decision::Ready(verdict) => return Ok(verdict),
            Decision::Pending(pending) => pending.0,
        };
        match ticket.await {
            Ok(Answered { verdict, rows: filled, .. }) => {
                *rows = filled;
                Ok(verdict)
            }
            // The store's thread has ended with the process.
            Err(_) => {
                rows.clear();
                Ok(Verdict::when_closed(self.now()))
            }
        }
    }

    /// General path: several keys or limits, unknown keys, other operations, remote stores, rows.
    /// A remote store is asked only if `asks_store`.
    #[inline(never)]
    fn decide_generally(
        &self,
        catalog: &Arc<Catalog>,
        request: &Request<'_>,
        now: Now,
        rows: Option<&mut Rows>,
        asks_store: bool,
    ) -> Result<Decision, InvalidRequest> {
        let mut rows = rows;
        let lent = rows.as_deref_mut().map(std::mem::take);
        let mut plan = Plan::new(catalog, request, self.door, now, lent)?;
        if self.is_behind(catalog, &plan, request) {
            return Ok(Decision::Ready(Verdict::behind(now)));
        }
        let key = |key: usize| request.keys[key].bytes;
        let mut local = plan.split_local(catalog);
        if let Some(local) = &mut local {
            // Counts in memory are taken first, and given back if the remote store refuses: never
            // too many are granted, and too few for a moment only.
            if !local.can_refund(catalog) {
                return Err(InvalidRequest::NoRefund);
            }
            self.run_in_memory(catalog, local, key, now);
            if local.is_all_or_nothing() && !local.verdict.is_allowed() {
                self.count_notes(catalog, &local.notes);
                if let Some(rows) = rows {
                    *rows = local.take_rows();
                }
                return Ok(Decision::Ready(local.verdict));
            }
            plan.cap(local.verdict.granted);
        }
        let is_remote = |target| catalog.remote_names(target).is_some();
        let is_skipped = !asks_store && plan.slots().iter().any(is_remote);
        let caller = Caller { handle: self, request, local };
        let mut step = PlanStep { catalog, plan: &mut plan, now, caller: Some(caller) };
        let updated = if is_skipped { Updated::Declined } else { self.limiter.run(&mut step, key) };
        let (verdict, filled) = match updated {
            Updated::Pending(ticket) => return Ok(Decision::Pending(PendingVerdict(ticket))),
            Updated::Declined if is_skipped => step.answer_without_store(&StoreError::Away),
            Updated::Declined => step.answer_without_store(&StoreError::Crowded),
            Updated::Done => {
                self.count_notes(catalog, &plan.notes);
                self.time(1, now);
                (plan.verdict, plan.take_rows())
            }
        };
        if let Some(rows) = rows {
            *rows = filled;
        }
        Ok(Decision::Ready(verdict))
    }

    /// Whether the request is an attempt to wait that is not first in line, while others are in
    /// line for its count.
    fn is_behind(&self, catalog: &Catalog, plan: &Plan, request: &Request<'_>) -> bool {
        let attempts = plan
            .slots()
            .iter()
            .filter(|target| target.op.attempt().is_some_and(|attempt| !attempt.first_in_line));
        attempts.into_iter().any(|target| {
            let key = request.keys[target.key].bytes;
            let slot = catalog.slot(self.limiter.memory(), target, key);
            !self.limiter.is_line_free(&Count::of(&slot))
        })
    }

    /// Runs a plan on counts in memory, wherever the counts of its rules lie.
    pub(super) fn run_in_memory<'k>(
        &self,
        catalog: &Arc<Catalog>,
        plan: &mut Plan,
        key: impl Fn(usize) -> &'k [u8],
        now: Now,
    ) {
        self.limiter.run(&mut PlanStep { catalog, plan, now, caller: None }, key);
    }

    /// Counts what was decided.
    pub(super) fn count_notes(&self, catalog: &Catalog, notes: &[CountedDecision]) {
        for note in notes {
            catalog.counts.add(self.counter_stripe, note.rule, note.counted, 1);
            if let Some(action) = note.full {
                self.limiter.metrics.table_full(action);
            }
        }
    }

    /// Records, for one batch in [`TIME_ONE_IN`], how long its decisions took since `start`.
    #[inline]
    fn time(&self, decisions: usize, start: Now) {
        // The low bits of a nanosecond clock are random enough to choose by, and cost nothing.
        if start.mono & (TIME_ONE_IN - 1) == 0 && decisions > 0 {
            let spent = self.now().mono.saturating_sub(start.mono);
            let seconds = spent as f64 / decisions as f64 / 1e9;
            self.limiter.metrics.decision_seconds(self.door, seconds);
        }
    }

    /// Ends uses in flight of one key: `started` is the time of the verdict that granted them, and
    /// `from` where it says that they were taken from.
    pub fn release_uses(&self, key: &[u8], cost: u64, started: Now, from: TakenFrom) {
        self.release(Key::new(key, KeyOp::Release { cost, started, from }));
    }

    /// The same of a key that says itself what limits it.
    pub(crate) fn release(&self, key: Key<'_>) {
        let keys = [key];
        let request = Request { keys: &keys, together: Together::Each, can_end: true };
        // A request that was valid when it took the uses is valid now; a key that a reload has made
        // unlimited has nothing to give back.
        let _ = self.decide(&request, self.now(), None);
    }

    /// The position of the rule that decides a key, if all of the rule's keys have one count.
    pub(crate) fn shared_rule(&self, key: &[u8]) -> Option<usize> {
        let catalog = self.limiter.catalog.load();
        catalog.set().find(key).filter(|position| catalog.rule(*position).shared)
    }

    /// Whether a limit of this key is on uses in flight, so that uses must be given back.
    pub(crate) fn is_in_flight(&self, key: &Key<'_>) -> bool {
        let catalog = self.limiter.catalog.load();
        let look = Key { op: KeyOp::Peek(1), ..*key };
        let rule = catalog.find_for(&look, true, self.door).ok().flatten();
        rule.is_some_and(|rule| catalog.in_flight(rule))
    }
}

impl Limiter {
    /// Runs a plan in the store that has its counts. A plan without a caller runs in memory,
    /// because nothing could wait for a remote answer.
    fn run<'k>(
        &self,
        step: &mut PlanStep<'_>,
        key: impl Fn(usize) -> &'k [u8],
    ) -> Updated<AnswerTicket<Answered>> {
        let (catalog, now, memory) = (step.catalog, step.now, self.memory());
        let slots: SmallVec<[SlotAddress<'_>; 1]> = { step.plan.slots().iter() }
            .map(|target| catalog.slot(memory, target, key(target.key)))
            .collect();
        let store = match self.remote.get() {
            Some(remote) if step.caller.is_some() && slots.iter().any(|at| at.remote.is_some()) => {
                Store::Remote(remote)
            }
            _ => Store::Memory(memory),
        };
        let bucket = StatsBucket::of(now);
        let dead = |body: &Body, pressed: bool| catalog.dead(body, pressed, bucket, now);
        let updated = store.update(&slots, now, dead, step);
        if let Updated::Done = updated {
            for (target, slot) in step.plan.slots().iter().zip(&slots) {
                if target.op.gives_back() {
                    // The locks are free again: a waiter that is woken finds what was given back.
                    self.wake_waiter(slot);
                }
            }
        }
        updated
    }

    /// Whether no request waits for this count.
    #[inline]
    pub(super) fn is_line_free(&self, count: &Count<'_>) -> bool {
        self.waiters.get().is_none_or(|waiters| waiters.is_free(count))
    }
}
