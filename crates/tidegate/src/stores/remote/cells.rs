//! What is known of counts in a remote store, and who wants to change them.
//!
//! Steps on one count stand in line and are committed in groups: all that wait run one after the
//! other on the last state seen, and the result is one compare-and-set. A step on several counts
//! goes when it is first in all of its lines. Only one change of a count is under way at a time, so
//! that a node never competes with itself. Pure: what is to be sent is handed out, and answers are
//! handed in.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::mem;
use std::sync::Arc;

use foldhash::fast::RandomState;
use smallvec::{SmallVec, smallvec};
use tidegate_core::time::{MICROSECOND, MILLISECOND};
use tidegate_core::{Nanos, Now};

use super::cell::{Cell, JobId, Value};
use super::engine::{ABSENT, Change, Fault, Found, Swapped, Version};
use super::entry::{Entry, Unreadable};
use super::job::{DeferredStep, Job, Kind, RemoteSlot, Trouble};
use super::members::Members;
use super::shelf::{Id, Shelf};
use crate::stores::memory::{Body, Tally};

/// Steps that are committed together.
const GROUP_MAX: usize = 256;
/// Uses that wait to be given back; beyond it they are lost until their node ends.
pub(super) const GIVEN_BACK_MAX: usize = 100_000;
/// The longest pause after a change that came too late, and what it grows from.
const PAUSE_MAX: Nanos = 5 * MILLISECOND;
const PAUSE: Nanos = 100 * MICROSECOND;

/// A job in line. Its step is gone once it was told that its time is up.
struct Waiting {
    slots: Vec<RemoteSlot>,
    /// The counts of these.
    ids: Ids,
    step: Option<Box<dyn DeferredStep>>,
    kind: Kind,
    /// Since when a change with it is under way, on our monotonic clock.
    sent: Option<Nanos>,
}

/// Counts, nearly always one.
type Ids = SmallVec<[Id; 2]>;
/// Jobs, most often one.
type JobIds = SmallVec<[JobId; 2]>;
/// Counts after a change, and until when the store keeps them.
type After = SmallVec<[(Value, Nanos); 1]>;

/// A change that is under way: what was sent, for whom, and what is true if it is done.
pub(super) struct Attempt {
    ids: Ids,
    jobs: JobIds,
    after: After,
    at: Now,
    /// Since when, on our monotonic clock.
    sent: Nanos,
    /// The counts cannot be changed at once: the engine changes one after the other.
    pub(super) apart: bool,
}

impl Attempt {
    /// Since when it is under way, on our monotonic clock.
    pub(super) fn sent(&self) -> Nanos {
        self.sent
    }
}

/// What became of a change.
#[derive(Debug)]
pub(super) enum Outcome {
    Swapped(Swapped),
    /// Of counts that were changed one after the other, those were changed, and then one was not
    /// as seen: how it is. What was changed and could not be put back is named by `charged`.
    Broken {
        found: Vec<(usize, Found)>,
        charged: Vec<usize>,
    },
    Fault(Fault),
}

/// Everything that is known and wanted.
pub(super) struct Cells {
    node: u64,
    /// How long a decision may take.
    timeout: Nanos,
    shelf: Shelf,
    jobs: HashMap<JobId, Waiting, RandomState>,
    last_job: JobId,
    deadlines: BinaryHeap<Reverse<(Nanos, JobId)>>,
    /// Counts whose line may move. They may be gone by now.
    ready: VecDeque<Id>,
    resting: BinaryHeap<Reverse<(Nanos, Id)>>,
    given_back: usize,
    pub(super) members: Members,
    /// Whether writes are cheaper that leave the end of a value as it is: then values are kept for
    /// longer than they must be, for the sake of the next writes.
    pub(super) keeps_ends: bool,
    /// Dice for pauses.
    dice: u64,
}

impl Cells {
    pub(super) fn new(node: u64, timeout: Nanos) -> Self {
        Self {
            node,
            timeout,
            shelf: Shelf::default(),
            jobs: HashMap::default(),
            last_job: 0,
            deadlines: BinaryHeap::new(),
            ready: VecDeque::new(),
            resting: BinaryHeap::new(),
            given_back: 0,
            members: Members::default(),
            keeps_ends: false,
            dice: node | 1,
        }
    }

    /// Whether nothing is wanted.
    pub(super) fn is_idle(&self) -> bool {
        self.jobs.is_empty()
    }

    /// How many counts may be changed next, about.
    pub(super) fn ready(&self) -> usize {
        self.ready.len()
    }

    /// Puts a job in its lines. One that gives back is lost when too many are.
    pub(super) fn add(&mut self, job: Job) {
        self.line_up(job, false);
    }

    fn line_up(&mut self, job: Job, first: bool) {
        let Job { slots, step, kind, deadline } = job;
        if kind != Kind::Take && self.given_back >= GIVEN_BACK_MAX {
            return step.end(Err(Trouble::Crowded));
        }
        self.last_job += 1;
        let job = self.last_job;
        let ids: Ids = slots.iter().map(|slot| self.shelf.find_or_add(&slot.name)).collect();
        for &id in &ids {
            let line = &mut self.shelf[id].line;
            let moves = first || line.is_empty();
            match first {
                true => line.push_front(job),
                false => line.push_back(job),
            }
            if moves {
                self.ready.push_back(id);
            }
        }
        match kind {
            Kind::Take => self.deadlines.push(Reverse((deadline, job))),
            Kind::GiveBack | Kind::Refund => self.given_back += 1,
        }
        self.jobs.insert(job, Waiting { slots, ids, step: Some(step), kind, sent: None });
        self.shelf.evict();
    }

    /// Makes the next change that can be made, if there is one: what to send, and what it means.
    pub(super) fn next(
        &mut self,
        local: Nanos,
        now: Now,
        together: impl Fn(&[Change]) -> bool,
    ) -> Option<(Vec<Change>, Attempt)> {
        self.end_rests(local);
        while let Some(id) = self.ready.pop_front() {
            self.drop_dead(id);
            let Some(cell) = self.shelf.get(id).filter(|cell| !cell.under_way) else { continue };
            let Some(first) = cell.line.front() else { continue };
            if cell.rests_until > local {
                self.resting.push(Reverse((cell.rests_until, id)));
                continue;
            }
            let moment = (now, local);
            let several = self.jobs.get(&first).is_some_and(|job| job.slots.len() > 1);
            let made = if several { self.several(first, moment) } else { self.group(id, moment) };
            if let Some((changes, ids, jobs, after)) = made {
                self.set_under_way(&ids, &jobs, Some(local));
                let apart = changes.len() > 1 && !together(&changes);
                return Some((changes, Attempt { ids, jobs, after, at: now, sent: local, apart }));
            }
        }
        None
    }

    /// Counts whose pause is over may be changed again: from now on they are not due, but ready.
    pub(super) fn end_rests(&mut self, local: Nanos) {
        while self.resting.peek().is_some_and(|Reverse((at, _))| *at <= local) {
            self.ready.extend(self.resting.pop().map(|Reverse((_, id))| id));
        }
    }

    fn set_under_way(&mut self, ids: &[Id], jobs: &[JobId], sent: Option<Nanos>) {
        for &id in ids {
            self.shelf[id].under_way = sent.is_some();
        }
        for job in jobs {
            if let Some(job) = self.jobs.get_mut(job) {
                job.sent = sent;
            }
        }
    }

    /// Runs the steps that are first in line for one count.
    fn group(&mut self, id: Id, (now, local): (Now, Nanos)) -> Option<Made> {
        let cell = &self.shelf[id];
        let (mut entry, mut jobs, mut frees) = (known(cell), JobIds::new(), false);
        let mut limits = None;
        for number in cell.line.iter().take(GROUP_MAX) {
            let Some(job) = self.jobs.get_mut(&number) else { continue };
            let [slot] = job.slots.as_slice() else { break };
            if let Some(step) = &mut job.step {
                let own = job.kind != Kind::Take;
                frees |= own;
                let mut body = [view(slot, &entry, (self.node, own), &self.members)];
                step.run(&mut body, now);
                entry = after(slot, &entry, &body[0], (self.node, own), &self.members, now);
                limits = Some(slot.limits.clone());
            }
            jobs.push(number);
        }
        let (lives, value) = (entry.lives(&limits?, now), entry.encode());
        let (change, kept) = cell.change(&value, lives, frees, self.keeps_ends, local);
        Some((vec![change], smallvec![id], jobs, smallvec![(value, kept)]))
    }

    /// Runs a step over several counts, if it is first in line for all of them.
    fn several(&mut self, number: JobId, (now, local): (Now, Nanos)) -> Option<Made> {
        let job = self.jobs.get_mut(&number)?;
        let cells = || job.ids.iter().map(|id| &self.shelf[*id]);
        if !cells().all(|cell| cell.line.front() == Some(number) && !cell.under_way) {
            return None;
        }
        let own = job.kind != Kind::Take;
        let before: Vec<Entry> = cells().map(known).collect();
        let seen = |(slot, entry)| view(slot, entry, (self.node, own), &self.members);
        let mut bodies: Vec<Body> = job.slots.iter().zip(&before).map(seen).collect();
        job.step.as_mut()?.run(&mut bodies, now);
        let (mut changes, mut made) = (Vec::new(), After::new());
        for (at, (slot, &id)) in job.slots.iter().zip(&job.ids).enumerate() {
            let entry = after(slot, &before[at], &bodies[at], (self.node, own), &self.members, now);
            let (lives, value) = (entry.lives(&slot.limits, now), entry.encode());
            let (change, kept) = self.shelf[id].change(&value, lives, own, self.keeps_ends, local);
            changes.push(change);
            made.push((value, kept));
        }
        Some((changes, job.ids.clone(), smallvec![number], made))
    }

    /// What became of a change. Whoever is done is told; what must be put right is wanted anew.
    pub(super) fn finish(&mut self, attempt: Attempt, outcome: Outcome, local: Nanos) {
        self.set_under_way(&attempt.ids, &attempt.jobs, None);
        match outcome {
            Outcome::Swapped(Swapped::Done(versions)) => {
                let done = attempt.ids.iter().zip(versions).zip(attempt.after);
                for ((&id, version), (value, kept)) in done {
                    self.shelf.know(id, version, value);
                    self.confirm(id, kept);
                }
                self.end(&attempt.jobs, |_| Ok(attempt.at));
            }
            Outcome::Swapped(Swapped::Stale(found)) => {
                let found = found.into_iter().enumerate().collect();
                self.stale(&attempt, found, local);
            }
            Outcome::Broken { found, charged } => {
                self.put_right(&attempt, &charged, local);
                self.stale(&attempt, found, local);
            }
            Outcome::Fault(fault) => {
                // Whether it was done nobody knows: the next change will be told how things are.
                for &id in &attempt.ids {
                    self.shelf.know(id, ABSENT, Value::new());
                    self.shelf[id].unsure = true;
                }
                if attempt.apart {
                    // Some may have been changed: a use whose outcome is unknown stays charged.
                    tracing::debug!(%fault, "a change of several counts was broken off");
                }
                self.end(&attempt.jobs, |kind| match kind {
                    Kind::Take | Kind::Refund => Err(Some(Trouble::Fault(fault.clone()))),
                    Kind::GiveBack => Err(None),
                });
                self.rest(&attempt.ids, local);
            }
        }
        let wanted = attempt.ids.iter().filter(|id| !self.shelf[**id].line.is_empty());
        self.ready.extend(wanted);
    }

    /// Counts were not as seen: they are known now, and the same jobs try again.
    fn stale(&mut self, attempt: &Attempt, found: Vec<(usize, Found)>, local: Nanos) {
        let mut garbage = None;
        for (at, found) in found {
            match Entry::decode(&found.value) {
                Ok(entry) => {
                    self.members.see(entry.holders());
                    self.learn(attempt.ids[at], found.version, entry);
                }
                Err(unreadable) => garbage = Some(unreadable),
            }
        }
        if let Some(unreadable) = garbage {
            return self.unreadable(attempt, &unreadable);
        }
        self.rest(&attempt.ids, local);
    }

    /// What lies there is no count of ours: nothing is decided by it, and nothing written over it.
    fn unreadable(&mut self, attempt: &Attempt, unreadable: &Unreadable) {
        let fault = Fault::Garbage(unreadable.to_string());
        self.end(&attempt.jobs, |_| Err(Some(Trouble::Fault(fault.clone()))));
    }

    /// Takes back what a job has taken from some of its counts and not from all.
    fn put_right(&mut self, attempt: &Attempt, charged: &[usize], local: Nanos) {
        let Some(job) = attempt.jobs.first().and_then(|id| self.jobs.get(id)) else { return };
        let Some(step) = &job.step else { return };
        let undone: Vec<Job> = charged
            .iter()
            .map(|&at| Job {
                slots: vec![job.slots[at].clone()],
                step: step.undo(at),
                kind: Kind::Refund,
                deadline: local,
            })
            .collect();
        for (job, &at) in undone.into_iter().zip(charged) {
            // How it is now only the store knows. Before the same job tries again: it would find
            // its own use there.
            self.shelf.know(attempt.ids[at], ABSENT, Value::new());
            self.line_up(job, true);
        }
    }

    /// What the store says of a count. After a change of which nobody knows whether it was done,
    /// what this node holds is what it knows to hold: nobody else writes that.
    fn learn(&mut self, id: Id, version: Version, mut entry: Entry) {
        let cell = &self.shelf[id];
        if cell.unsure {
            entry.put_own(self.node, &cell.mine);
        }
        self.shelf.know(id, version, entry.encode());
    }

    /// A count is known to be as it is: so is what this node holds of it.
    fn confirm(&mut self, id: Id, kept_until: Nanos) {
        let cell = &mut self.shelf[id];
        cell.kept_until = kept_until;
        cell.mine = known(cell).own(self.node);
        cell.unsure = false;
    }

    /// After a change that came too late the next waits a little, more each time, and by chance:
    /// nodes that compete must not meet again.
    fn rest(&mut self, ids: &[Id], local: Nanos) {
        for &id in ids {
            let cell = &mut self.shelf[id];
            cell.late += 1;
            if cell.late > 1 {
                self.dice = self.dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let most = (PAUSE << cell.late.min(10)).min(PAUSE_MAX);
                cell.rests_until = local + (self.dice >> 33) % most;
            }
        }
    }

    /// Ends jobs that were under way. `outcome` of a kind: done, failed, or (`Err(None)`) to be
    /// tried again.
    fn end(&mut self, jobs: &[JobId], outcome: impl Fn(Kind) -> Result<Now, Option<Trouble>>) {
        for number in jobs {
            let Some(job) = self.jobs.get(number) else { continue };
            let outcome = match outcome(job.kind) {
                Ok(now) => Ok(now),
                Err(Some(trouble)) => Err(trouble),
                Err(None) if job.step.is_some() => continue,
                Err(None) => Err(Trouble::Away),
            };
            if outcome.is_ok() {
                for &id in &job.ids {
                    let cell = &mut self.shelf[id];
                    (cell.late, cell.rests_until) = (0, 0);
                }
            }
            self.remove(*number, outcome);
        }
    }

    fn remove(&mut self, number: JobId, outcome: Result<Now, Trouble>) {
        let Some(job) = self.jobs.remove(&number) else { return };
        for id in job.ids {
            let line = &mut self.shelf[id].line;
            line.leave(number);
            if !line.is_empty() {
                self.ready.push_back(id);
            }
        }
        if job.kind != Kind::Take {
            self.given_back -= 1;
        }
        if let Some(step) = job.step {
            step.end(outcome);
        }
    }

    /// Tells those whose time is up; returns whether the store is to blame, of any of them.
    pub(super) fn expire(&mut self, local: Nanos) -> bool {
        let mut silent = false;
        while let Some(&Reverse((deadline, id))) = self.deadlines.peek() {
            if deadline > local {
                break;
            }
            self.deadlines.pop();
            let Some(job) = self.jobs.get_mut(&id) else { continue };
            let Some(sent) = job.sent else {
                self.remove(id, Err(Trouble::Contended));
                continue;
            };
            // It has waited for this one answer for most of its time: that is the store's silence.
            let slow = sent <= deadline.saturating_sub(self.timeout / 2);
            silent |= slow;
            let trouble = if slow { Fault::Slow.into() } else { Trouble::Contended };
            if let Some(step) = mem::take(&mut job.step) {
                step.end(Err(trouble));
            }
        }
        silent
    }

    /// The store is away: nobody waits for it any longer, but for those who give back.
    pub(super) fn give_up(&mut self) {
        for job in self.jobs.values_mut().filter(|job| job.kind == Kind::Take) {
            if let Some(step) = job.step.take() {
                step.end(Err(Trouble::Away));
            }
        }
        self.ready.extend(self.shelf.wanted());
    }

    /// When somebody must be looked at, whatever happens.
    pub(super) fn due(&self) -> Option<Nanos> {
        let deadline = self.deadlines.peek().map(|Reverse((at, _))| *at);
        let resting = self.resting.peek().map(|Reverse((at, _))| *at);
        [deadline, resting].into_iter().flatten().min()
    }

    /// Forgets what is known of a count, because it was removed.
    pub(super) fn forget(&mut self, name: &Arc<[u8]>) {
        if let Some(id) = self.shelf.find(name) {
            self.shelf.know(id, ABSENT, Value::new());
        }
    }

    /// Forgets what is known of all counts: the store was away, and may have come back with what it
    /// had long ago. What this node holds it still holds.
    pub(super) fn forget_all(&mut self) {
        self.shelf.forget_all();
    }

    /// Takes jobs from the front of a line that nobody waits for any more.
    fn drop_dead(&mut self, id: Id) {
        while let Some(cell) = self.shelf.get(id)
            && !cell.under_way
            && let Some(first) = cell.line.front()
        {
            let Some(job) = self.jobs.get(&first) else {
                self.shelf[id].line.leave(first);
                continue;
            };
            // One over several counts may be under way only with all of them.
            if job.step.is_some() || job.ids.iter().any(|id| self.shelf[*id].under_way) {
                return;
            }
            self.remove(first, Err(Trouble::Away));
        }
    }
}

/// What a change is made of: to send, its counts, its jobs, and the counts after it.
type Made = (Vec<Change>, Ids, JobIds, After);

/// What is known of a count. Nothing is kept that could not be read.
fn known(cell: &Cell) -> Entry {
    Entry::decode(&cell.value).unwrap_or_default()
}

/// What a step sees of a count.
fn view(slot: &RemoteSlot, entry: &Entry, (node, own): (u64, bool), members: &Members) -> Body {
    Body { held: entry.view(&slot.limits, node, own, members), tally: Tally::default() }
}

/// The count after a step that left this.
fn after(
    slot: &RemoteSlot,
    entry: &Entry,
    body: &Body,
    (node, own): (u64, bool),
    members: &Members,
    now: Now,
) -> Entry {
    entry.after(&slot.limits, body.held.states(), node, own, members, now)
}
