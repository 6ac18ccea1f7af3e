//! Buckets with one rule for all: no limit, or nothing passes.

use std::collections::BTreeMap;

use tidegate_core::time::{Nanos, SECOND};

use super::demand::Demand;
use super::divider::{Divider, RequestCounts, Turn};
use super::{Action, BLANKET_TTL_S, StreamId, Terms};

/// After so many reports of zero the bucket is abandoned.
const ZERO_REPORTS_MAX: u32 = 12;

/// A bucket under a blanket rule, with when each stream was last told of it.
pub(super) struct Blanket {
    terms: Terms,
    seats: BTreeMap<StreamId, (Demand, Nanos)>,
}

/// The rule for a bucket that is not, or cannot be, divided.
pub(super) fn rule(terms: &Terms) -> Action {
    match terms {
        Terms::Unlimited | Terms::Shadow => Action::AllowAll { ttl_s: BLANKET_TTL_S },
        Terms::Denied | Terms::Leases(_) | Terms::Slices(_) => {
            Action::DenyAll { ttl_s: BLANKET_TTL_S }
        }
    }
}

impl Blanket {
    pub(super) fn new(terms: Terms) -> Self {
        Self { terms, seats: BTreeMap::new() }
    }
}

impl Divider for Blanket {
    fn report(&mut self, stream: StreamId, counts: RequestCounts, turn: &mut Turn<'_>) {
        let now = turn.mono();
        if self.terms == Terms::Shadow {
            turn.count(counts.allowed);
        }
        let Some((demand, _)) = self.seats.get_mut(&stream) else {
            self.seats.insert(stream, (Demand::new(now), now));
            turn.send(stream, rule(&self.terms));
            return;
        };
        demand.note(counts.requests(), now);
        if demand.zero_reports() >= ZERO_REPORTS_MAX {
            self.seats.remove(&stream);
            turn.abandon(stream);
        }
    }

    fn leave(&mut self, stream: StreamId) {
        self.seats.remove(&stream);
    }

    fn tick(&mut self, turn: &mut Turn<'_>) -> Nanos {
        let now = turn.mono();
        let action = rule(&self.terms);
        self.seats.retain(|stream, (demand, sent)| {
            if demand.is_silent(now) {
                turn.abandon(*stream);
                return false;
            }
            if now >= *sent + BLANKET_TTL_S * SECOND / 2 {
                *sent = now;
                turn.send(*stream, action);
            }
            true
        });
        now + SECOND
    }

    fn change(&mut self, terms: &Terms, turn: &mut Turn<'_>) -> bool {
        if matches!(terms, Terms::Leases(_) | Terms::Slices(_)) {
            return false;
        }
        self.terms = terms.clone();
        for (stream, (_, sent)) in &mut self.seats {
            *sent = turn.mono();
            turn.send(*stream, rule(terms));
        }
        true
    }

    fn streams(&self) -> Vec<StreamId> {
        self.seats.keys().copied().collect()
    }

    fn seats(&self) -> usize {
        self.seats.len()
    }

    fn is_done(&self) -> bool {
        self.seats.is_empty()
    }
}
