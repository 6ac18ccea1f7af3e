//! Updates that end before their outcome is known: their time is up, or the answer is lost.
//!
//! What such an update has taken is given back once it is known to be done, and uses in flight also
//! where that is never known: no caller can end them. The step says what is to be given back.

use std::mem;

use tidegate_core::{Limit, Nanos, Now};

use super::{ChangeInFlight, QueuedUpdate, UpdateQueue};
use crate::stores::memory::Body;
use crate::stores::remote::cell::{CellValue, UpdateId};
use crate::stores::remote::cell_cache::CellId;
use crate::stores::remote::engine::ABSENT;
use crate::stores::remote::update::{
    DeferredStep, LateSteps, RemoteSlot, StoreError, Update, UpdateKind,
};

/// A step that changes nothing. It has a count written as this node knows it, where the outcome of
/// an earlier change is unknown.
struct Settle;

impl DeferredStep for Settle {
    fn kind(&self) -> UpdateKind {
        UpdateKind::GiveBack
    }

    fn run(&mut self, _: &mut [Body], _: Now) {}

    fn undo(&self, _: usize) -> Box<dyn DeferredStep> {
        Box::new(Settle)
    }

    fn end(self: Box<Self>, _: Result<Now, StoreError>) {}

    fn answer_early(&mut self) {}

    fn end_early(self: Box<Self>, _: StoreError) -> LateSteps {
        Vec::new()
    }
}

impl QueuedUpdate {
    /// Its time is up, or the store is away: ends its step. One that gives back goes on, and its
    /// caller is answered.
    pub(super) fn fail(&mut self, error: StoreError) {
        if self.kind != UpdateKind::Take {
            return self.step.iter_mut().for_each(|step| step.answer_early());
        }
        let Some(step) = self.step.take() else { return };
        match self.sent {
            Some(_) => self.late = step.end_early(error),
            None => step.end(Err(error)),
        }
    }
}

impl UpdateQueue {
    /// What gives back what updates have taken that have ended before their answer.
    pub(super) fn take_late(&mut self, updates: &[UpdateId], local: Nanos) -> Vec<(usize, Update)> {
        let mut taken = Vec::new();
        for number in updates {
            let Some(update) = self.updates.get_mut(number) else { continue };
            for (at, step) in mem::take(&mut update.late) {
                let (slots, kind) = (vec![update.slots[at].clone()], step.kind());
                taken.push((at, Update { slots, step, kind, deadline: local }));
            }
        }
        taken
    }

    /// Takes back what an update that has ended before its answer has taken from some of its counts
    /// and not from all.
    pub(super) fn undo_late(
        &mut self,
        attempt: &ChangeInFlight,
        charged: &[usize],
        late: Vec<(usize, Update)>,
        local: Nanos,
    ) {
        let update = attempt.updates.first().and_then(|id| self.updates.get(id));
        let Some(slots) = update.filter(|update| update.step.is_none()).map(|u| u.slots.clone())
        else {
            return;
        };
        for &at in charged {
            let id = attempt.ids[at];
            self.cache.know(id, ABSENT, CellValue::new());
            // What this node holds is what it held before: so the uses in flight are given back.
            self.cache[id].unsure = true;
            if slots[at].limits.iter().any(Limit::ends) {
                self.settle(slots[at].clone(), local);
            }
        }
        let refunds = late
            .into_iter()
            .filter(|(at, update)| update.kind == UpdateKind::Refund && charged.contains(at));
        refunds.for_each(|(_, update)| self.enqueue(update, true));
    }

    /// The counts of a change that limit uses in flight.
    pub(super) fn in_flight(&self, attempt: &ChangeInFlight) -> Vec<RemoteSlot> {
        let slot_of = |id: &CellId| {
            let updates = attempt.updates.iter().filter_map(|number| self.updates.get(number));
            let slot = updates.flat_map(|update| update.ids.iter().zip(&update.slots));
            let slot = slot.filter(|(other, _)| *other == id).map(|(_, slot)| slot).next()?;
            slot.limits.iter().any(Limit::ends).then(|| slot.clone())
        };
        attempt.ids.iter().filter_map(slot_of).collect()
    }

    /// Has the count of this slot written with the uses in flight that this node knows of, unless
    /// something that is given back will do it.
    pub(super) fn settle(&mut self, slot: RemoteSlot, local: Nanos) {
        let gives_back = |number: UpdateId| {
            self.updates.get(&number).is_some_and(|update| update.kind == UpdateKind::GiveBack)
        };
        let cell = self.cache.find(&slot.name).map(|id| &self.cache[id]);
        if cell.is_none_or(|cell| !cell.queue.iter().any(gives_back)) {
            let (slots, kind) = (vec![slot], UpdateKind::GiveBack);
            self.enqueue(Update { slots, step: Box::new(Settle), kind, deadline: local }, true);
        }
    }
}
