//! What is known of one count in a remote store, and how a change of it is written.
//!
//! There is one for every key that was asked for lately: it is kept small, and counts of usual
//! length lie inside of it. Pure.

use std::collections::VecDeque;
use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::{Nanos, State};

use super::engine::{ABSENT, Change, Version, Write};

/// Clocks run apart by less than one part in so many.
const DRIFT: Nanos = 1_000;

/// A count as an engine keeps it; nothing for one without uses.
pub(super) type Value = SmallVec<[u8; 32]>;

/// The number of a job, never zero.
pub(super) type JobId = u64;

/// One count.
pub(super) struct Cell {
    pub(super) name: Arc<[u8]>,
    pub(super) version: Version,
    pub(super) value: Value,
    /// Until when the store keeps it at least, on our monotonic clock, as far as is known.
    pub(super) kept_until: Nanos,
    pub(super) line: Line,
    pub(super) under_way: bool,
    /// Whether a change came after the last that is known to be done of which nobody knows.
    pub(super) unsure: bool,
    /// Changes in a row that came too late.
    pub(super) late: u32,
    /// Not tried again before.
    pub(super) rests_until: Nanos,
    /// The uses in flight that this node holds, as of the last change that is known to be done.
    pub(super) mine: Box<[(u8, State)]>,
}

impl Cell {
    pub(super) fn new(name: Arc<[u8]>) -> Self {
        Self {
            name,
            version: ABSENT,
            value: Value::new(),
            kept_until: 0,
            line: Line::default(),
            under_way: false,
            unsure: false,
            late: 0,
            rests_until: 0,
            mine: Box::default(),
        }
    }

    /// Whether nobody wants it.
    pub(super) fn is_idle(&self) -> bool {
        self.line.is_empty() && !self.under_way
    }

    /// Bytes that it holds outside of itself, but for its name.
    pub(super) fn heap_bytes(&self) -> usize {
        if self.value.spilled() { self.value.capacity() } else { 0 }
    }

    /// What is to be sent so that the count is as it is after, and until when it is kept then. With
    /// `longer` it is kept for longer than it must be: the next writes need not say how long.
    pub(super) fn change(
        &self,
        after: &Value,
        lives: Nanos,
        frees: bool,
        longer: bool,
        local: Nanos,
    ) -> (Change, Nanos) {
        let (name, seen) = (self.name.clone(), self.version);
        if *after == self.value {
            return (Change { name, seen, write: None }, self.kept_until);
        }
        // What is known to be kept at all is just what was written last.
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
        (Change { name, seen, write: Some(Write { value, lives, keeps, frees }) }, kept_until)
    }
}

/// Jobs in order of arrival. Most counts are asked for by nobody, and most others by one.
#[derive(Default)]
pub(super) struct Line {
    /// Zero if there is none.
    first: JobId,
    #[expect(clippy::box_collection, reason = "nearly all have none, and there are many lines")]
    rest: Option<Box<VecDeque<JobId>>>,
}

impl Line {
    pub(super) fn is_empty(&self) -> bool {
        self.first == 0
    }

    pub(super) fn front(&self) -> Option<JobId> {
        (self.first != 0).then_some(self.first)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = JobId> {
        self.front().into_iter().chain(self.rest.iter().flat_map(|rest| rest.iter().copied()))
    }

    pub(super) fn push_back(&mut self, job: JobId) {
        match self.first {
            0 => self.first = job,
            _ => self.rest.get_or_insert_default().push_back(job),
        }
    }

    pub(super) fn push_front(&mut self, job: JobId) {
        let second = std::mem::replace(&mut self.first, job);
        if second != 0 {
            self.rest.get_or_insert_default().push_front(second);
        }
    }

    /// A job is no longer in line.
    pub(super) fn leave(&mut self, job: JobId) {
        if self.first == job {
            self.first = self.rest.as_mut().and_then(|rest| rest.pop_front()).unwrap_or(0);
        } else if let Some(rest) = &mut self.rest {
            rest.retain(|other| *other != job);
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
            let (mut line, mut model) = (Line::default(), Vec::new());
            for (step, job) in steps {
                match step {
                    2 => {
                        line.leave(job);
                        model.retain(|other| *other != job);
                    }
                    _ if model.contains(&job) => {}
                    1 => {
                        line.push_front(job);
                        model.insert(0, job);
                    }
                    _ => {
                        line.push_back(job);
                        model.push(job);
                    }
                }
                prop_assert_eq!(line.iter().collect::<Vec<_>>(), model.clone());
                prop_assert_eq!(line.front(), model.first().copied());
                prop_assert_eq!(line.is_empty(), model.is_empty());
            }
        }
    }
}
