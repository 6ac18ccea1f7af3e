//! Updates that wait for a remote store, queued by the counts that they change.
//!
//! Updates of one count are written in groups: the queue runs their steps one after the other on
//! the last state seen, and the result is one compare-and-set. An update of several counts goes
//! when it is first in the queues of all of them. At most one change of a count is under way at a
//! time, so that a node never competes with itself. Pure: the worker sends the changes that `next`
//! returns, and brings their outcomes to `finish`. `late` is about updates that end before their
//! outcome is known.

mod late;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;

use foldhash::fast::RandomState;
use smallvec::{SmallVec, smallvec};
use tidegate_core::time::{MICROSECOND, MILLISECOND};
use tidegate_core::{Nanos, Now};

use super::cell::{Cell, CellValue, UpdateId};
use super::cell_cache::{CellCache, CellId};
use super::engine::{ABSENT, CellChange, EngineFault, StoredValue, Swapped, Version};
use super::members::Members;
use super::stored_count::StoredCount;
use super::update::{DeferredStep, LateSteps, RemoteSlot, StoreError, Update, UpdateKind};
use crate::stores::memory::{Body, KeyTally};

/// Steps that are written together.
const GROUP_MAX: usize = 256;
/// Uses that wait to be given back; beyond it they are lost until their node ends.
pub(super) const GIVEN_BACK_MAX: usize = 100_000;
/// The longest pause after a change that came too late, and what it grows from.
const PAUSE_MAX: Nanos = 5 * MILLISECOND;
const PAUSE: Nanos = 100 * MICROSECOND;

/// An update in its queues. Its step is gone once it has ended because its time was up.
struct QueuedUpdate {
    slots: Vec<RemoteSlot>,
    /// The cells of these.
    ids: Ids,
    step: Option<Box<dyn DeferredStep>>,
    kind: UpdateKind,
    /// Since when a change with it is under way, on our monotonic clock.
    sent: Option<Nanos>,
    /// What gives back what the change under way takes, of a step that has ended before its answer.
    late: LateSteps,
}

/// Cells, nearly always one.
type Ids = SmallVec<[CellId; 2]>;
/// Updates, most often one.
type UpdateIds = SmallVec<[UpdateId; 2]>;
/// Counts after a change, and until when the store keeps them.
type After = SmallVec<[(CellValue, Nanos); 1]>;

/// A change that is under way: for which updates, and what the counts are if it is done.
pub(super) struct ChangeInFlight {
    ids: Ids,
    updates: UpdateIds,
    after: After,
    at: Now,
    /// Since when, on our monotonic clock.
    sent: Nanos,
}

impl ChangeInFlight {
    /// Since when it is under way, on our monotonic clock.
    pub(super) fn sent(&self) -> Nanos {
        self.sent
    }
}

/// All waiting updates, and the counts as last seen.
pub(super) struct UpdateQueue {
    node: u64,
    /// How long a decision may take.
    timeout: Nanos,
    cache: CellCache,
    updates: HashMap<UpdateId, QueuedUpdate, RandomState>,
    last_update: UpdateId,
    deadlines: BinaryHeap<Reverse<(Nanos, UpdateId)>>,
    /// Cells whose queue may move. They may be evicted by now.
    ready: VecDeque<CellId>,
    resting: BinaryHeap<Reverse<(Nanos, CellId)>>,
    given_back: usize,
    pub(super) members: Members,
    /// Whether writes are cheaper that leave the end of a value as it is: then values are kept for
    /// longer than they must be, for the sake of the next writes.
    pub(super) keeps_ends: bool,
    /// The state of the random numbers for pauses.
    random: u64,
}

impl UpdateQueue {
    pub(super) fn new(node: u64, timeout: Nanos) -> Self {
        Self {
            node,
            timeout,
            cache: CellCache::default(),
            updates: HashMap::default(),
            last_update: 0,
            deadlines: BinaryHeap::new(),
            ready: VecDeque::new(),
            resting: BinaryHeap::new(),
            given_back: 0,
            members: Members::default(),
            keeps_ends: false,
            random: node | 1,
        }
    }

    /// Whether no update waits.
    pub(super) fn is_idle(&self) -> bool {
        self.updates.is_empty()
    }

    /// About how many counts may be changed next.
    pub(super) fn ready(&self) -> usize {
        self.ready.len()
    }

    /// Puts an update into the queues of its counts. One that gives back is lost if too many wait.
    pub(super) fn add(&mut self, update: Update) {
        self.enqueue(update, false);
    }

    fn enqueue(&mut self, update: Update, first: bool) {
        let Update { slots, step, kind, deadline } = update;
        if kind != UpdateKind::Take && self.given_back >= GIVEN_BACK_MAX {
            return step.end(Err(StoreError::Crowded));
        }
        self.last_update += 1;
        let update = self.last_update;
        let ids: Ids = slots.iter().map(|slot| self.cache.find_or_add(&slot.name)).collect();
        for &id in &ids {
            let queue = &mut self.cache[id].queue;
            let moves = first || queue.is_empty();
            match first {
                true => queue.push_front(update),
                false => queue.push_back(update),
            }
            if moves {
                self.ready.push_back(id);
            }
        }
        self.deadlines.push(Reverse((deadline, update)));
        if kind != UpdateKind::Take {
            self.given_back += 1;
        }
        let step = Some(step);
        let queued = QueuedUpdate { slots, ids, step, kind, sent: None, late: Vec::new() };
        self.updates.insert(update, queued);
        self.cache.evict();
    }

    /// The next change that can be sent, if there is one, with the updates that it is for.
    pub(super) fn next(
        &mut self,
        local: Nanos,
        now: Now,
    ) -> Option<(Vec<CellChange>, ChangeInFlight)> {
        self.end_rests(local);
        while let Some(id) = self.ready.pop_front() {
            self.drop_dead(id);
            let Some(cell) = self.cache.get(id).filter(|cell| !cell.under_way) else { continue };
            let Some(first) = cell.queue.front() else { continue };
            if cell.rests_until > local {
                self.resting.push(Reverse((cell.rests_until, id)));
                continue;
            }
            let moment = (now, local);
            let several = self.updates.get(&first).is_some_and(|update| update.slots.len() > 1);
            let made = if several { self.several(first, moment) } else { self.group(id, moment) };
            if let Some((changes, ids, updates, after)) = made {
                self.set_under_way(&ids, &updates, Some(local));
                return Some((
                    changes,
                    ChangeInFlight { ids, updates, after, at: now, sent: local },
                ));
            }
        }
        None
    }

    /// Moves counts whose pause is over from those that are due to those that are ready.
    pub(super) fn end_rests(&mut self, local: Nanos) {
        while self.resting.peek().is_some_and(|Reverse((at, _))| *at <= local) {
            self.ready.extend(self.resting.pop().map(|Reverse((_, id))| id));
        }
    }

    fn set_under_way(&mut self, ids: &[CellId], updates: &[UpdateId], sent: Option<Nanos>) {
        for &id in ids {
            self.cache[id].under_way = sent.is_some();
        }
        for update in updates {
            if let Some(update) = self.updates.get_mut(update) {
                update.sent = sent;
            }
        }
    }

    /// Runs the steps at the front of one count's queue.
    fn group(&mut self, id: CellId, (now, local): (Now, Nanos)) -> Option<Made> {
        let cell = &self.cache[id];
        let (mut entry, mut updates, mut frees) = (known(cell), UpdateIds::new(), false);
        let mut limits = None;
        for number in cell.queue.iter().take(GROUP_MAX) {
            let Some(update) = self.updates.get_mut(&number) else { continue };
            let [slot] = update.slots.as_slice() else { break };
            if let Some(step) = &mut update.step {
                let own = update.kind != UpdateKind::Take;
                frees |= own;
                let mut body = [view(slot, &entry, (self.node, own), &self.members)];
                step.run(&mut body, now);
                entry = after(slot, &entry, &body[0], (self.node, own), &self.members, now);
                limits = Some(slot.limits.clone());
            }
            updates.push(number);
        }
        let (lives, value) = (entry.lives(&limits?, now), entry.encode());
        let (change, kept) = cell.change(&value, lives, frees, self.keeps_ends, local);
        Some((vec![change], smallvec![id], updates, smallvec![(value, kept)]))
    }

    /// Runs a step over several counts, if it is first in the queues of all of them.
    fn several(&mut self, number: UpdateId, (now, local): (Now, Nanos)) -> Option<Made> {
        let update = self.updates.get_mut(&number)?;
        let cells = || update.ids.iter().map(|id| &self.cache[*id]);
        if !cells().all(|cell| cell.queue.front() == Some(number) && !cell.under_way) {
            return None;
        }
        let own = update.kind != UpdateKind::Take;
        let before: Vec<StoredCount> = cells().map(known).collect();
        let seen = |(slot, entry)| view(slot, entry, (self.node, own), &self.members);
        let mut bodies: Vec<Body> = update.slots.iter().zip(&before).map(seen).collect();
        update.step.as_mut()?.run(&mut bodies, now);
        let (mut changes, mut made) = (Vec::new(), After::new());
        for (at, (slot, &id)) in update.slots.iter().zip(&update.ids).enumerate() {
            let entry = after(slot, &before[at], &bodies[at], (self.node, own), &self.members, now);
            let (lives, value) = (entry.lives(&slot.limits, now), entry.encode());
            let (change, kept) = self.cache[id].change(&value, lives, own, self.keeps_ends, local);
            changes.push(change);
            made.push((value, kept));
        }
        Some((changes, update.ids.clone(), smallvec![number], made))
    }

    /// Takes the outcome of a change: ends updates that are done, and queues what must be undone.
    pub(super) fn finish(
        &mut self,
        attempt: ChangeInFlight,
        outcome: Result<Swapped, EngineFault>,
        local: Nanos,
    ) {
        self.set_under_way(&attempt.ids, &attempt.updates, None);
        let late = self.take_late(&attempt.updates, local);
        match outcome {
            Ok(Swapped::Done(versions)) => {
                let done = attempt.ids.iter().zip(versions).zip(attempt.after);
                for ((&id, version), (value, kept)) in done {
                    self.cache.know(id, version, value);
                    self.confirm(id, kept);
                }
                self.end(&attempt.updates, |_| Ok(attempt.at));
                late.into_iter().for_each(|(_, update)| self.enqueue(update, true));
            }
            Ok(Swapped::Stale(found)) => {
                self.stale(&attempt, found.into_iter().enumerate(), local);
            }
            Ok(Swapped::Broken { written, at, found }) => {
                self.undo_partial(&attempt, &written, local);
                self.undo_late(&attempt, &written, late, local);
                self.stale(&attempt, [(at, found)].into_iter(), local);
            }
            Err(fault) => {
                // Whether it was done is unknown: the next change learns how the counts are. A use
                // whose outcome is unknown stays charged, unless it is one in flight.
                for &id in &attempt.ids {
                    self.cache.know(id, ABSENT, CellValue::new());
                    self.cache[id].unsure = true;
                }
                let slots = match fault {
                    EngineFault::Slow | EngineFault::Unreachable(_) => self.in_flight(&attempt),
                    EngineFault::Garbage(_) | EngineFault::Refused(_) => Vec::new(),
                };
                self.end(&attempt.updates, |kind| match kind {
                    UpdateKind::Take | UpdateKind::Refund => {
                        Err(Some(StoreError::Fault(fault.clone())))
                    }
                    UpdateKind::GiveBack => Err(None),
                });
                slots.into_iter().for_each(|slot| self.settle(slot, local));
                self.rest(&attempt.ids, local);
            }
        }
        let wanted = attempt.ids.iter().filter(|id| !self.cache[**id].queue.is_empty());
        self.ready.extend(wanted);
    }

    /// Some counts were not as seen: the same updates run again on what was found. A value that is
    /// no count of ours fails them, and nothing is written over it.
    fn stale(
        &mut self,
        attempt: &ChangeInFlight,
        found: impl Iterator<Item = (usize, StoredValue)>,
        local: Nanos,
    ) {
        let mut garbage = None;
        for (at, found) in found {
            match StoredCount::decode(&found.value) {
                Ok(entry) => {
                    self.members.see(entry.holders());
                    self.learn(attempt.ids[at], found.version, entry);
                }
                Err(unreadable) => garbage = Some(EngineFault::Garbage(unreadable.to_string())),
            }
        }
        match garbage {
            Some(fault) => self.end(&attempt.updates, |_| Err(Some(fault.clone().into()))),
            None => self.rest(&attempt.ids, local),
        }
    }

    /// Takes back what an update has taken from some of its counts and not from all.
    fn undo_partial(&mut self, attempt: &ChangeInFlight, charged: &[usize], local: Nanos) {
        let Some(update) = attempt.updates.first().and_then(|id| self.updates.get(id)) else {
            return;
        };
        let Some(step) = &update.step else { return };
        let undone: Vec<Update> = charged
            .iter()
            .map(|&at| Update {
                slots: vec![update.slots[at].clone()],
                step: step.undo(at),
                kind: UpdateKind::Refund,
                deadline: local,
            })
            .collect();
        for (update, &at) in undone.into_iter().zip(charged) {
            // Only the store knows how it is now. The undoing goes first: the same update would
            // find its own use there.
            self.cache.know(attempt.ids[at], ABSENT, CellValue::new());
            self.enqueue(update, true);
        }
    }

    /// Remembers what the store says of a count. After a change whose outcome is unknown, the uses
    /// in flight of this node are those that it knows of: no other node writes them.
    fn learn(&mut self, id: CellId, version: Version, mut entry: StoredCount) {
        let cell = &self.cache[id];
        let differs = cell.unsure && entry.put_own(self.node, &cell.mine);
        self.cache.know(id, version, entry.encode());
        self.cache[id].differs = differs;
    }

    /// Remembers that a change of a count is done, and the uses in flight that this node has there.
    fn confirm(&mut self, id: CellId, kept_until: Nanos) {
        let cell = &mut self.cache[id];
        cell.kept_until = kept_until;
        cell.mine = known(cell).own(self.node);
        cell.unsure = false;
    }

    /// Delays the next change after one that came too late: longer each time, and by a random part,
    /// so that competing nodes do not meet again.
    fn rest(&mut self, ids: &[CellId], local: Nanos) {
        for &id in ids {
            let cell = &mut self.cache[id];
            cell.late += 1;
            if cell.late > 1 {
                self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let most = (PAUSE << cell.late.min(10)).min(PAUSE_MAX);
                cell.rests_until = local + (self.random >> 33) % most;
            }
        }
    }

    /// Ends updates that were under way. `outcome` says for a kind: done, failed, or (`Err(None)`)
    /// to be tried again.
    fn end(
        &mut self,
        updates: &[UpdateId],
        outcome: impl Fn(UpdateKind) -> Result<Now, Option<StoreError>>,
    ) {
        for number in updates {
            let Some(update) = self.updates.get(number) else { continue };
            let outcome = match outcome(update.kind) {
                Ok(now) => Ok(now),
                Err(Some(error)) => Err(error),
                Err(None) if update.step.is_some() => continue,
                Err(None) => Err(StoreError::Away),
            };
            if outcome.is_ok() {
                for &id in &update.ids {
                    let cell = &mut self.cache[id];
                    (cell.late, cell.rests_until) = (0, 0);
                }
            }
            self.remove(*number, outcome);
        }
    }

    fn remove(&mut self, number: UpdateId, outcome: Result<Now, StoreError>) {
        let Some(update) = self.updates.remove(&number) else { return };
        for id in update.ids {
            let queue = &mut self.cache[id].queue;
            queue.leave(number);
            if !queue.is_empty() {
                self.ready.push_back(id);
            }
        }
        if update.kind != UpdateKind::Take {
            self.given_back -= 1;
        }
        if let Some(step) = update.step {
            step.end(outcome);
        }
    }

    /// Ends the updates whose time is up; of one that gives back, only the caller is answered.
    /// Returns whether the store was silent for one of them.
    pub(super) fn expire(&mut self, local: Nanos) -> bool {
        let mut silent = false;
        while let Some(&Reverse((deadline, id))) = self.deadlines.peek() {
            if deadline > local {
                break;
            }
            self.deadlines.pop();
            let Some(update) = self.updates.get_mut(&id) else { continue };
            let Some(sent) = update.sent else {
                match update.kind {
                    UpdateKind::Take => self.remove(id, Err(StoreError::Contended)),
                    UpdateKind::GiveBack | UpdateKind::Refund => update.fail(StoreError::Contended),
                }
                continue;
            };
            // It has waited for one answer for most of its time: the store is silent.
            let slow = sent <= deadline.saturating_sub(self.timeout / 2);
            silent |= slow;
            let error = if slow { EngineFault::Slow.into() } else { StoreError::Contended };
            update.fail(error);
        }
        silent
    }

    /// The store is away: ends all updates but those that give back. No caller waits any longer.
    pub(super) fn give_up(&mut self) {
        self.updates.values_mut().for_each(|update| update.fail(StoreError::Away));
        self.ready.extend(self.cache.wanted());
    }

    /// When the next update times out, or the next pause ends.
    pub(super) fn due(&self) -> Option<Nanos> {
        let deadline = self.deadlines.peek().map(|Reverse((at, _))| *at);
        let resting = self.resting.peek().map(|Reverse((at, _))| *at);
        [deadline, resting].into_iter().flatten().min()
    }

    /// Forgets what is known of a count, because it was removed.
    pub(super) fn forget(&mut self, name: &Arc<[u8]>) {
        if let Some(id) = self.cache.find(name) {
            self.cache.know(id, ABSENT, CellValue::new());
        }
    }

    /// Forgets what is known of all counts: the store was away, and may have come back with old
    /// values. The uses in flight of this node are still known.
    pub(super) fn forget_all(&mut self) {
        self.cache.forget_all();
    }

    /// Takes updates whose caller has gone from the front of a queue.
    fn drop_dead(&mut self, id: CellId) {
        while let Some(cell) = self.cache.get(id)
            && !cell.under_way
            && let Some(first) = cell.queue.front()
        {
            let Some(update) = self.updates.get(&first) else {
                self.cache[id].queue.leave(first);
                continue;
            };
            // An update of several counts is under way in all of them or in none.
            if update.step.is_some() || update.ids.iter().any(|id| self.cache[*id].under_way) {
                return;
            }
            self.remove(first, Err(StoreError::Away));
        }
    }
}

/// A change: what to send, its cells, its updates, and the counts after it.
type Made = (Vec<CellChange>, Ids, UpdateIds, After);

/// A count as last seen. Values that cannot be read are not remembered.
fn known(cell: &Cell) -> StoredCount {
    StoredCount::decode(&cell.value).unwrap_or_default()
}

/// The part of a count that a step sees.
fn view(
    slot: &RemoteSlot,
    entry: &StoredCount,
    (node, own): (u64, bool),
    members: &Members,
) -> Body {
    Body { held: entry.view(&slot.limits, node, own, members), tally: KeyTally::default() }
}

/// The count after a step that left `body`.
fn after(
    slot: &RemoteSlot,
    entry: &StoredCount,
    body: &Body,
    (node, own): (u64, bool),
    members: &Members,
    now: Now,
) -> StoredCount {
    entry.after(&slot.limits, body.held.states(), node, own, members, now)
}
