//! Exports the counts of the limiter to a snapshot, and imports them again.
//!
//! This file knows which rule of the running configuration an old count belongs to. The bytes of
//! the file are the snapshot's.

use tidegate_core::rules::{OnFull, Rule};
use tidegate_core::{Now, State, algorithms};

use super::Limiter;
use crate::stores::memory::{Body, KeyTally, Placement, SlotAddress, States};

/// One remembered count.
pub(crate) struct KeptCount {
    /// The number of its rule when it was written.
    pub(crate) rule: u32,
    /// The key; none for a count that keys without a slot share.
    pub(crate) name: Option<Vec<u8>>,
    /// Its statistics, packed.
    pub(crate) tally: [u64; 3],
    /// One state for each limit of the rule.
    pub(crate) states: Vec<State>,
}

/// What became of a count that was taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Import {
    /// It lives on.
    Kept,
    /// There was no room: its key counts with the others that have no slot.
    Shared,
    /// There was no room, and its rule does not let keys share.
    NoRoom,
    /// It means nothing under the rules in force, or nothing any more.
    Unknown,
}

impl Limiter {
    /// The rules in force with their numbers.
    pub(crate) fn numbered_rules(&self) -> Vec<(u32, Rule)> {
        let catalog = self.catalog.load();
        catalog.numbered().map(|(number, rule)| (number, rule.clone())).collect()
    }

    /// Shows every remembered count, a shard locked at a time.
    pub(crate) fn export(&self, mut see: impl FnMut(u32, Option<&[u8]>, [u64; 3], &[State])) {
        self.memory().scan(|name, body| {
            see(body.tally.rule(), name, body.tally.words(), body.held.states());
        });
    }

    /// Takes a count back under the rule that now has `number`.
    pub(crate) fn import(&self, kept: KeptCount, number: u32, rule: &Rule, now: Now) -> Import {
        if kept.states.len() != rule.limits.len() {
            return Import::Unknown;
        }
        let says_nothing = rule
            .limits
            .iter()
            .zip(&kept.states)
            .all(|(limit, state)| algorithms::forgotten(limit, state, now));
        let held = match <[State; 1]>::try_from(kept.states) {
            Ok([state]) => States::One(state),
            Err(states) => States::Many(states.into_boxed_slice()),
        };
        let body = Body { held, tally: KeyTally::restored(kept.tally, number) };
        let join = |there: &mut States, other: &States| {
            for ((limit, one), other) in
                rule.limits.iter().zip(there.states_mut()).zip(other.states())
            {
                algorithms::join(limit, one, other);
            }
        };
        let Some(name) = kept.name else {
            self.memory().restore_shared(&body, join);
            return Import::Kept;
        };
        let address = SlotAddress {
            rule: number,
            name: &name,
            hash: self.memory().hash_of(number, &name),
            limits: rule.limits.len(),
            long: false,
            creates: true,
            peeks: false,
            ends: false,
            gives_back: None,
            // With nothing left to hold against its key, only its statistics are lost.
            on_full: if says_nothing { OnFull::Allow } else { rule.on_full },
            remote: None,
            given: None,
        };
        match self.memory().restore(&address, body, join) {
            Placement::Own => Import::Kept,
            Placement::Shared | Placement::Joined => Import::Shared,
            Placement::Denied | Placement::Uncounted if says_nothing => Import::Unknown,
            Placement::Denied | Placement::Uncounted => Import::NoRoom,
        }
    }
}
