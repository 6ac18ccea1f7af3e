//! What is known of counts that lie elsewhere, and who wants to change them.
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

use tidegate_core::time::{MICROSECOND, MILLISECOND};
use tidegate_core::{Nanos, Now};

use super::cell::Cell;
use super::engine::{ABSENT, Change, Fault, Found, Swapped, Version};
use super::entry::{Entry, Unreadable};
use super::job::{Job, Kind, Slot, Step, Trouble};
use super::members::Members;
use crate::stores::memory::{Body, Held, Tally};

/// Counts that are remembered as last seen; beyond it the oldest that nobody asks for goes.
const CELLS_MAX: usize = 100_000;
/// Bytes that long states among them may take.
const CELLS_BYTES_MAX: usize = 256 << 20;
/// Steps that are committed together.
const GROUP_MAX: usize = 256;
/// Uses that wait to be given back; beyond it they are lost until their node ends.
pub(super) const GIVEN_BACK_MAX: usize = 100_000;
/// The longest pause after a change that came too late, and what it grows from.
const PAUSE_MAX: Nanos = 5 * MILLISECOND;
const PAUSE: Nanos = 100 * MICROSECOND;

/// A job in line. Its step is gone once it was told that its time is up.
struct Waiting {
    slots: Vec<Slot>,
    step: Option<Box<dyn Step>>,
    kind: Kind,
    /// Since when a change with it is under way, on our monotonic clock.
    sent: Option<Nanos>,
}

/// A change that is under way: what was sent, for whom, and what is true if it is done.
pub(super) struct Attempt {
    names: Vec<Arc<[u8]>>,
    jobs: Vec<u64>,
    /// The counts, and until when the store keeps them.
    after: Vec<(Entry, Nanos)>,
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
    cells: HashMap<Arc<[u8]>, Cell>,
    /// Bytes that states hold outside of the counts.
    bytes: usize,
    /// In the order in which they were first asked for.
    order: VecDeque<Arc<[u8]>>,
    jobs: HashMap<u64, Waiting>,
    next_job: u64,
    deadlines: BinaryHeap<Reverse<(Nanos, u64)>>,
    /// Counts whose line may move.
    ready: VecDeque<Arc<[u8]>>,
    resting: BinaryHeap<Reverse<(Nanos, Arc<[u8]>)>>,
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
            cells: HashMap::new(),
            bytes: 0,
            order: VecDeque::new(),
            jobs: HashMap::new(),
            next_job: 0,
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

    /// Puts a job in its lines. One that gives back is lost when too many are.
    pub(super) fn add(&mut self, job: Job) {
        self.line_up(job, false);
    }

    fn line_up(&mut self, job: Job, first: bool) {
        let Job { slots, step, kind, deadline } = job;
        if kind != Kind::Take && self.given_back >= GIVEN_BACK_MAX {
            return step.end(Err(Trouble::Crowded));
        }
        let id = self.next_job;
        self.next_job += 1;
        for slot in &slots {
            let cell = self.cells.entry(slot.name.clone()).or_insert_with(|| {
                self.order.push_back(slot.name.clone());
                Cell::default()
            });
            match first {
                true => cell.line.push_front(id),
                false => cell.line.push_back(id),
            }
            if first || cell.line.len() == 1 {
                self.ready.push_back(slot.name.clone());
            }
        }
        match kind {
            Kind::Take => self.deadlines.push(Reverse((deadline, id))),
            Kind::GiveBack | Kind::Refund => self.given_back += 1,
        }
        self.jobs.insert(id, Waiting { slots, step: Some(step), kind, sent: None });
        self.evict();
    }

    /// Makes the next change that can be made, if there is one: what to send, and what it means.
    pub(super) fn next(
        &mut self,
        local: Nanos,
        now: Now,
        together: impl Fn(&[Arc<[u8]>]) -> bool,
    ) -> Option<(Vec<Change>, Attempt)> {
        while self.resting.peek().is_some_and(|Reverse((at, _))| *at <= local) {
            self.ready.extend(self.resting.pop().map(|Reverse((_, name))| name));
        }
        while let Some(name) = self.ready.pop_front() {
            self.drop_dead(&name);
            let Some(cell) = self.cells.get(&name) else { continue };
            let Some(first) = cell.line.front().filter(|_| !cell.under_way) else { continue };
            if cell.rests_until > local {
                self.resting.push(Reverse((cell.rests_until, name)));
                continue;
            }
            let moment = (now, local);
            let several = self.jobs.get(first).is_some_and(|job| job.slots.len() > 1);
            let made =
                if several { self.several(*first, moment) } else { self.group(&name, moment) };
            if let Some((changes, names, jobs, after)) = made {
                self.set_under_way(&names, &jobs, Some(local));
                let apart = names.len() > 1 && !together(&names);
                return Some((
                    changes,
                    Attempt { names, jobs, after, at: now, sent: local, apart },
                ));
            }
        }
        None
    }

    fn set_under_way(&mut self, names: &[Arc<[u8]>], jobs: &[u64], sent: Option<Nanos>) {
        for name in names {
            if let Some(cell) = self.cells.get_mut(name) {
                cell.under_way = sent.is_some();
            }
        }
        for id in jobs {
            if let Some(job) = self.jobs.get_mut(id) {
                job.sent = sent;
            }
        }
    }

    /// Runs the steps that are first in line for one count.
    fn group(&mut self, name: &Arc<[u8]>, (now, local): (Now, Nanos)) -> Option<Made> {
        let cell = self.cells.get(name)?;
        let (mut entry, mut jobs, mut frees) = (cell.entry.clone(), Vec::new(), false);
        let mut limits = None;
        for id in cell.line.iter().take(GROUP_MAX) {
            let Some(job) = self.jobs.get_mut(id) else { continue };
            let [slot] = job.slots.as_slice() else { break };
            if let Some(step) = &mut job.step {
                let own = job.kind != Kind::Take;
                frees |= own;
                entry =
                    run(step.as_mut(), &[slot], &[&entry], (self.node, own), &self.members, now)
                        .pop()
                        .unwrap_or_default();
                limits = Some(slot.limits.clone());
            }
            jobs.push(*id);
        }
        let lives = entry.lives(&limits?, now);
        let (change, kept) = cell.change(name, &entry, lives, frees, self.keeps_ends, local);
        Some((vec![change], vec![name.clone()], jobs, vec![(entry, kept)]))
    }

    /// Runs a step over several counts, if it is first in line for all of them.
    fn several(&mut self, id: u64, (now, local): (Now, Nanos)) -> Option<Made> {
        let job = self.jobs.get_mut(&id)?;
        let cells: Vec<&Cell> =
            job.slots.iter().filter_map(|slot| self.cells.get(&slot.name)).collect();
        let first = |cell: &&Cell| cell.line.front() == Some(&id) && !cell.under_way;
        if cells.len() != job.slots.len() || !cells.iter().all(first) {
            return None;
        }
        let own = job.kind != Kind::Take;
        let slots: Vec<&Slot> = job.slots.iter().collect();
        let before: Vec<&Entry> = cells.iter().map(|cell| &cell.entry).collect();
        let step = job.step.as_mut()?;
        let after = run(step.as_mut(), &slots, &before, (self.node, own), &self.members, now);
        let made = job.slots.iter().zip(&cells).zip(after);
        let (changes, after) = made
            .map(|((slot, cell), entry)| {
                let lives = entry.lives(&slot.limits, now);
                let (change, kept) =
                    cell.change(&slot.name, &entry, lives, own, self.keeps_ends, local);
                (change, (entry, kept))
            })
            .unzip();
        let names = job.slots.iter().map(|slot| slot.name.clone()).collect();
        Some((changes, names, vec![id], after))
    }

    /// What became of a change. Whoever is done is told; what must be put right is wanted anew.
    pub(super) fn finish(&mut self, attempt: Attempt, outcome: Outcome, local: Nanos) {
        self.set_under_way(&attempt.names, &attempt.jobs, None);
        match outcome {
            Outcome::Swapped(Swapped::Done(versions)) => {
                let done = attempt.names.iter().zip(versions).zip(attempt.after);
                for ((name, version), (entry, kept)) in done {
                    self.know(name, version, entry);
                    self.confirm(name, kept);
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
                for name in &attempt.names {
                    self.know(name, ABSENT, Entry::default());
                    if let Some(cell) = self.cells.get_mut(name) {
                        cell.unsure = true;
                    }
                }
                if attempt.apart {
                    // Some may have been changed: a use whose outcome is unknown stays charged.
                    tracing::debug!(%fault, "a change of several counts was broken off");
                }
                self.end(&attempt.jobs, |kind| match kind {
                    Kind::Take | Kind::Refund => Err(Some(Trouble::Fault(fault.clone()))),
                    Kind::GiveBack => Err(None),
                });
                self.rest(&attempt.names, local);
            }
        }
        self.ready.extend(attempt.names);
    }

    /// Counts were not as seen: they are known now, and the same jobs try again.
    fn stale(&mut self, attempt: &Attempt, found: Vec<(usize, Found)>, local: Nanos) {
        let mut garbage = None;
        for (at, found) in found {
            match Entry::decode(&found.value) {
                Ok(entry) => {
                    self.members.see(entry.holders());
                    self.learn(&attempt.names[at], found.version, entry);
                }
                Err(unreadable) => garbage = Some(unreadable),
            }
        }
        if let Some(unreadable) = garbage {
            return self.unreadable(attempt, &unreadable);
        }
        self.rest(&attempt.names, local);
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
            self.know(&attempt.names[at], ABSENT, Entry::default());
            self.line_up(job, true);
        }
    }

    /// What the store says of a count. After a change of which nobody knows whether it was done,
    /// what this node holds is what it knows to hold: nobody else writes that.
    fn learn(&mut self, name: &Arc<[u8]>, version: Version, mut entry: Entry) {
        if let Some(cell) = self.cells.get(name)
            && cell.unsure
        {
            entry.put_own(self.node, &cell.mine);
        }
        self.know(name, version, entry);
    }

    /// A count is known to be as it is: so is what this node holds of it.
    fn confirm(&mut self, name: &Arc<[u8]>, kept_until: Nanos) {
        let node = self.node;
        if let Some(cell) = self.cells.get_mut(name) {
            cell.kept_until = kept_until;
            cell.mine = cell.entry.own(node);
            cell.unsure = false;
        }
    }

    fn know(&mut self, name: &Arc<[u8]>, version: Version, entry: Entry) {
        if let Some(cell) = self.cells.get_mut(name) {
            self.bytes += entry.heap_bytes();
            self.bytes = self.bytes.saturating_sub(cell.entry.heap_bytes());
            (cell.version, cell.entry, cell.kept_until) = (version, entry, 0);
        }
    }

    /// After a change that came too late the next waits a little, more each time, and by chance:
    /// nodes that compete must not meet again.
    fn rest(&mut self, names: &[Arc<[u8]>], local: Nanos) {
        for name in names {
            let Some(cell) = self.cells.get_mut(name) else { continue };
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
    fn end(&mut self, ids: &[u64], outcome: impl Fn(Kind) -> Result<Now, Option<Trouble>>) {
        for id in ids {
            let Some(job) = self.jobs.get(id) else { continue };
            let outcome = match outcome(job.kind) {
                Ok(now) => Ok(now),
                Err(Some(trouble)) => Err(trouble),
                Err(None) if job.step.is_some() => continue,
                Err(None) => Err(Trouble::Away),
            };
            if outcome.is_ok() {
                for slot in &job.slots {
                    if let Some(cell) = self.cells.get_mut(&slot.name) {
                        (cell.late, cell.rests_until) = (0, 0);
                    }
                }
            }
            self.remove(*id, outcome);
        }
    }

    fn remove(&mut self, id: u64, outcome: Result<Now, Trouble>) {
        let Some(job) = self.jobs.remove(&id) else { return };
        for slot in &job.slots {
            if let Some(cell) = self.cells.get_mut(&slot.name) {
                cell.leave(id);
                self.ready.push_back(slot.name.clone());
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
        let wanted = self.cells.iter().filter(|(_, cell)| !cell.line.is_empty());
        self.ready.extend(wanted.map(|(name, _)| name.clone()));
    }

    /// When somebody must be looked at, whatever happens.
    pub(super) fn due(&self) -> Option<Nanos> {
        let deadline = self.deadlines.peek().map(|Reverse((at, _))| *at);
        let resting = self.resting.peek().map(|Reverse((at, _))| *at);
        [deadline, resting].into_iter().flatten().min()
    }

    /// Forgets what is known of a count, because it was removed.
    pub(super) fn forget(&mut self, name: &Arc<[u8]>) {
        self.know(name, ABSENT, Entry::default());
    }

    /// Forgets what is known of all counts: the store was away, and may have come back with what it
    /// had long ago. What this node holds it still holds.
    pub(super) fn forget_all(&mut self) {
        for cell in self.cells.values_mut().filter(|cell| !cell.under_way) {
            (cell.version, cell.entry, cell.kept_until) = (ABSENT, Entry::default(), 0);
            cell.unsure = true;
        }
        let counted = |cell: &Cell| cell.entry.heap_bytes();
        self.bytes = self.cells.values().map(counted).sum();
    }

    /// Takes jobs from the front of a line that nobody waits for any more.
    fn drop_dead(&mut self, name: &Arc<[u8]>) {
        while let Some(cell) = self.cells.get(name)
            && !cell.under_way
            && let Some(&first) = cell.line.front()
            && self.jobs.get(&first).is_none_or(|job| job.step.is_none())
        {
            if self.jobs.contains_key(&first) {
                let Some(job) = self.jobs.get(&first) else { break };
                // One over several counts may be under way only with all of them.
                if job.slots.iter().any(|s| self.cells.get(&s.name).is_some_and(|c| c.under_way)) {
                    break;
                }
                self.remove(first, Err(Trouble::Away));
            } else if let Some(cell) = self.cells.get_mut(name) {
                cell.line.pop_front();
            }
        }
    }

    fn evict(&mut self) {
        let mut looked_at = 0;
        let full = |cells: &Self| cells.cells.len() > CELLS_MAX || cells.bytes > CELLS_BYTES_MAX;
        while full(self) && looked_at < 16 {
            let Some(name) = self.order.pop_front() else { return };
            looked_at += 1;
            let idle = |cell: &Cell| cell.line.is_empty() && !cell.under_way;
            if self.cells.get(&name).is_none_or(idle) {
                let gone = self.cells.remove(&name).map_or(0, |cell| cell.entry.heap_bytes());
                self.bytes = self.bytes.saturating_sub(gone);
            } else {
                self.order.push_back(name);
            }
        }
    }
}

/// What a change is made of: to send, its names, its jobs, and the counts after it.
type Made = (Vec<Change>, Vec<Arc<[u8]>>, Vec<u64>, Vec<(Entry, Nanos)>);

/// Runs a step on copies; the counts after it.
fn run(
    step: &mut dyn Step,
    slots: &[&Slot],
    entries: &[&Entry],
    (node, own): (u64, bool),
    members: &Members,
    now: Now,
) -> Vec<Entry> {
    let view = |(slot, entry): (&&Slot, &&Entry)| Body {
        held: entry.view(&slot.limits, node, own, members),
        tally: Tally::default(),
    };
    let mut bodies: Vec<Body> = slots.iter().zip(entries).map(view).collect();
    step.run(&mut bodies, now);
    let after = |((slot, entry), body): ((&&Slot, &&Entry), &Body)| {
        let held: &Held = &body.held;
        entry.after(&slot.limits, held.states(), node, own, members, now)
    };
    slots.iter().zip(entries).zip(&bodies).map(after).collect()
}
