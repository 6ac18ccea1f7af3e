//! What the limiter remembers, on its way to a snapshot and back.
//!
//! Knows which rule of the running configuration an old count belongs to; the bytes of the file
//! are the snapshot's.

use tidegate_core::rules::Rule;
use tidegate_core::{Now, Op, State, algorithms};

use super::Limiter;
use crate::stores::memory::{Address, Body, Held, Tally};

/// One remembered count.
pub(crate) struct Kept {
    /// The number of its rule when it was written.
    pub(crate) rule: u32,
    /// The key; none for a count that keys without a slot share.
    pub(crate) name: Option<Vec<u8>>,
    /// Its statistics, packed.
    pub(crate) tally: [u64; 3],
    /// One state for each limit of the rule.
    pub(crate) states: Vec<State>,
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

    /// Takes a count back under the rule that now has `number`. `false` if it does not fit.
    pub(crate) fn import(&self, kept: Kept, number: u32, rule: &Rule, now: Now) -> bool {
        if kept.states.len() != rule.limits.len() {
            return false;
        }
        let held = match <[State; 1]>::try_from(kept.states) {
            Ok([state]) => Held::One(state),
            Err(states) => Held::Many(states.into_boxed_slice()),
        };
        let body = Body { held, tally: Tally::restored(kept.tally, number) };
        let Some(name) = kept.name else {
            self.memory().restore_shared(&body, |there, other| stricter(rule, there, other, now));
            return true;
        };
        let address = Address {
            rule: number,
            name: &name,
            hash: self.memory().hash_of(number, &name),
            limits: rule.limits.len(),
            long: false,
            creates: true,
            ends: false,
            gives_back: false,
            on_full: rule.on_full,
        };
        self.memory().restore(&address, body)
    }
}

/// Keeps, for each limit, the state that leaves less.
fn stricter(rule: &Rule, there: &mut Held, other: &Held, now: Now) {
    let room = |limit, state: &State| {
        let op = Op::Peek(1);
        let judgement = algorithms::judge(limit, state, op, now);
        algorithms::explain(limit, state, op, &judgement, now).remaining
    };
    for ((limit, there), other) in rule.limits.iter().zip(there.states_mut()).zip(other.states()) {
        if room(limit, other) < room(limit, there) {
            *there = other.clone();
        }
    }
}
