//! What is known of one count that lies elsewhere, and how a change of it is written.
//!
//! There is one for every key that was asked for lately: it is kept small. Pure.

use std::collections::VecDeque;
use std::sync::Arc;

use tidegate_core::{Nanos, State};

use super::engine::{ABSENT, Change, Version, Write};
use super::entry::Entry;

/// Clocks run apart by less than one part in so many.
const DRIFT: Nanos = 1_000;

/// One count.
#[derive(Default)]
pub(super) struct Cell {
    pub(super) version: Version,
    pub(super) entry: Entry,
    /// Until when the store keeps it at least, on our monotonic clock, as far as is known.
    pub(super) kept_until: Nanos,
    /// Jobs in order of arrival.
    pub(super) line: VecDeque<u64>,
    pub(super) under_way: bool,
    /// The uses in flight that this node holds, as of the last change that is known to be done.
    pub(super) mine: Vec<(u8, State)>,
    /// Whether a change came after that of which nobody knows.
    pub(super) unsure: bool,
    /// Changes in a row that came too late.
    pub(super) late: u32,
    /// Not tried again before.
    pub(super) rests_until: Nanos,
}

impl Cell {
    /// What is to be sent so that the count is as it is after, and until when it is kept then. With
    /// `longer` it is kept for longer than it must be: the next writes need not say how long.
    pub(super) fn change(
        &self,
        name: &Arc<[u8]>,
        after: &Entry,
        lives: Nanos,
        frees: bool,
        longer: bool,
        local: Nanos,
    ) -> (Change, Nanos) {
        let (name, seen) = (name.clone(), self.version);
        let (before, value) = (self.entry.encode(), after.encode());
        if value == before {
            return (Change { name, seen, write: None }, self.kept_until);
        }
        // What is known to be kept at all is just what was written last.
        let late_enough = self.kept_until >= local.saturating_add(lives);
        let keeps = longer && seen != ABSENT && late_enough && value.len() == before.len();
        let lives = if longer { lives.saturating_mul(2) } else { lives };
        let kept_until = match (value.is_empty(), keeps) {
            (true, _) => 0,
            (false, true) => self.kept_until,
            // The store's clock may be a little faster than ours.
            (false, false) => local.saturating_add(lives - lives / DRIFT),
        };
        (Change { name, seen, write: Some(Write { value, lives, keeps, frees }) }, kept_until)
    }

    /// A job is no longer in line.
    pub(super) fn leave(&mut self, job: u64) {
        // Nearly always the first.
        self.line.retain(|other| *other != job);
        if self.line.is_empty() {
            // Most counts are asked for by nobody at most times.
            self.line = VecDeque::new();
        }
    }
}
