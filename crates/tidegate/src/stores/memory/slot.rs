//! One slot of the memory store: a key's name, its states and its statistics in 80 bytes.
//!
//! The sizes are what bytes per key come from, so they are asserted here.

use tidegate_core::State;

use super::tally::KeyTally;
use crate::table::Name;

/// One remembered key under one rule.
pub(crate) struct Slot {
    pub(super) name: Name,
    pub(crate) body: Body,
}

const _: () = assert!(size_of::<Slot>() == 80);

/// What a decision reads and writes of a slot.
#[derive(Default)]
pub(crate) struct Body {
    /// What the rule's limits remember.
    pub(crate) held: States,
    /// Which rule it is for, and what is counted for people to see.
    pub(crate) tally: KeyTally,
}

/// The states of a rule's limits, in their order.
pub(crate) enum States {
    /// A rule of one limit keeps its state in the slot.
    One(State),
    /// A rule of several keeps them outside of it.
    Many(Box<[State]>),
}

const _: () = assert!(size_of::<States>() == size_of::<State>());

impl Default for States {
    fn default() -> Self {
        States::One(State::None)
    }
}

impl States {
    /// Nothing remembered, for a rule of `limits` limits.
    pub(crate) fn new(limits: usize) -> Self {
        match limits {
            0 | 1 => States::default(),
            _ => States::Many((0..limits).map(|_| State::None).collect()),
        }
    }

    /// The states, in the order of the rule's limits.
    #[inline]
    pub(crate) fn states(&self) -> &[State] {
        match self {
            States::One(state) => std::slice::from_ref(state),
            States::Many(states) => states,
        }
    }

    /// The states, to be written.
    #[inline]
    pub(crate) fn states_mut(&mut self) -> &mut [State] {
        match self {
            States::One(state) => std::slice::from_mut(state),
            States::Many(states) => states,
        }
    }

    /// The state of the first limit, to be written: the only one, where a rule has one.
    #[inline(always)]
    pub(crate) fn first_mut(&mut self) -> &mut State {
        match self {
            States::One(state) => state,
            States::Many(states) => &mut states[0],
        }
    }

    /// Says that several keys count here.
    pub(super) fn share(&mut self) {
        self.states_mut().iter_mut().for_each(State::share);
    }

    /// A copy for a slot that starts from this count.
    pub(crate) fn copied(&self) -> Self {
        match self {
            States::One(state) => States::One(state.clone()),
            States::Many(states) => States::Many(states.clone()),
        }
    }

    /// Bytes held outside of the slot.
    pub(crate) fn heap_bytes(&self) -> usize {
        let states: usize = self.states().iter().map(State::heap_bytes).sum();
        match self {
            States::One(_) => states,
            States::Many(many) => states + size_of_val(&**many),
        }
    }
}
