//! What is known of one count in a remote store, and how a change of it is written.
//!
//! There is one for every key that was asked for lately: it is kept small, and counts of usual
//! length lie inside of it. Pure.

use std::collections::VecDeque;
use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::{Nanos, State};

use super::engine::{ABSENT, CellChange, Version, Write};

/// Two clocks run apart by less than one part in so many.
const DRIFT: Nanos = 1_000;

/// The bytes of a count in the store; empty for one without uses.
pub(super) type CellValue = SmallVec<[u8; 32]>;

/// The number of an update, never zero.
pub(super) type UpdateId = u64;

/// One count.
pub(super) struct Cell {
    pub(super) name: Arc<[u8]>,
    pub(super) version: Version,
    pub(super) value: CellValue,
    /// Whether the store has another value: one with uses in flight of this node that it does not
    /// know of.
    pub(super) differs: bool,
    /// Until when the store keeps it at least, on our monotonic clock, as far as is known.
    pub(super) kept_until: Nanos,
    pub(super) queue: CellQueue,
    pub(super) under_way: bool,
    /// Whether the outcome of the last change is unknown.
    pub(super) unsure: bool,
    /// Changes in a row that came too late.
    pub(super) late: u32,
    /// No change is sent before.
    pub(super) rests_until: Nanos,
    /// The uses in flight that this node holds, as of the last change that is known to be done.
    pub(super) mine: Box<[(u8, State)]>,
}

impl Cell {
    pub(super) fn new(name: Arc<[u8]>) -> Self {
        Self {
            name,
            version: ABSENT,
            value: CellValue::new(),
            differs: false,
            kept_until: 0,
            queue: CellQueue::default(),
            under_way: false,
            unsure: false,
            late: 0,
            rests_until: 0,
            mine: Box::default(),
        }
    }

    /// Whether no update waits for it or is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty() && !self.under_way
    }

    /// Bytes that it holds outside of itself, but for its name.
    pub(super) fn heap_bytes(&self) -> usize {
        if self.value.spilled() { self.value.capacity() } else { 0 }
    }

    /// The change that makes the count `after`, and until when the store keeps it then. With
    /// `longer` the store keeps it for longer than it must, so that the next writes need not say
    /// how long.
    pub(super) fn change(
        &self,
        after: &CellValue,
        lives: Nanos,
        frees: bool,
        longer: bool,
        local: Nanos,
    ) -> (CellChange, Nanos) {
        let (name, seen) = (self.name.clone(), self.version);
        if *after == self.value && !self.differs {
            return (CellChange { name, seen, write: None }, self.kept_until);
        }
        // An end is known only of what this node wrote last.
        let late_enough = self.kept_until >= local.saturating_add(lives);
        let keeps = longer && seen != ABSENT && late_enough && after.len() == self.value.len();
        let lives = if longer { lives.saturating_mul(2) } else { lives };
        let kept_until = match (after.is_empty(), keeps) {
            (true, _) => 0,
            (false, true) => self.kept_until,
            // The store's clock may be a little faster than ours.
            (false, false) => local.saturating_add(lives - lives / DRIFT),
        };
        let value = after.to_vec();
        (CellChange { name, seen, write: Some(Write { value, lives, keeps, frees }) }, kept_until)
    }
}

/// The updates of one count in order of arrival. Most counts have none, and most others one.
#[derive(Default)]
pub(super) struct CellQueue {
    /// Zero if there is none.
    first: UpdateId,
    #[expect(clippy::box_collection, reason = "nearly all have none, and there are many lines")]
    rest: Option<Box<VecDeque<UpdateId>>>,
}

impl CellQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.first == 0
    }

    pub(super) fn front(&self) -> Option<UpdateId> {
        (self.first != 0).then_some(self.first)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = UpdateId> {
        self.front().into_iter().chain(self.rest.iter().flat_map(|rest| rest.iter().copied()))
    }

    pub(super) fn push_back(&mut self, update: UpdateId) {
        match self.first {
            0 => self.first = update,
            _ => self.rest.get_or_insert_default().push_back(update),
        }
    }

    pub(super) fn push_front(&mut self, update: UpdateId) {
        let second = std::mem::replace(&mut self.first, update);
        if second != 0 {
            self.rest.get_or_insert_default().push_front(second);
        }
    }

    /// Removes an update.
    pub(super) fn leave(&mut self, update: UpdateId) {
        if self.first == update {
            self.first = self.rest.as_mut().and_then(|rest| rest.pop_front()).unwrap_or(0);
        } else if let Some(rest) = &mut self.rest {
            rest.retain(|other| *other != update);
        }
        if self.rest.as_ref().is_some_and(|rest| rest.is_empty()) {
            self.rest = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_line_is_a_line(steps in prop::collection::vec((0..3_u8, 1..9_u64), 0..60)) {
            let (mut queue, mut model) = (CellQueue::default(), Vec::new());
            for (step, update) in steps {
                match step {
                    2 => {
                        queue.leave(update);
                        model.retain(|other| *other != update);
                    }
                    _ if model.contains(&update) => {}
                    1 => {
                        queue.push_front(update);
                        model.insert(0, update);
                    }
                    _ => {
                        queue.push_back(update);
                        model.push(update);
                    }
                }
                prop_assert_eq!(queue.iter().collect::<Vec<_>>(), model.clone());
                prop_assert_eq!(queue.front(), model.first().copied());
                prop_assert_eq!(queue.is_empty(), model.is_empty());
            }
        }
    }
}
