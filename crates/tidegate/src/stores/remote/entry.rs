//! One count as it lies in a remote store: the states of a rule's limits, in bytes.
//!
//! Uses in flight are kept apart for each node that holds them, because they end with it; every
//! other state is common to all. A step sees one state for each limit, whoever holds what. Pure:
//! which nodes live is told, and names, versions and time are the business of others.

use tidegate_core::state::DecodeError;
use tidegate_core::{Limit, Nanos, Now, State, algorithms};

use crate::stores::memory::Held;

/// The version of the form that is written; others are not read.
const FORMAT: u8 = 1;
/// The node of what belongs to all.
const COMMON: u64 = 0;
/// What is added to the time that a value is kept, for clocks that do not agree to the microsecond.
const MARGIN: Nanos = tidegate_core::time::SECOND;
/// The longest that uses in flight without a window are kept: the node that holds them may have
/// ended without a word, and nobody may ever ask for their key again.
const IN_FLIGHT_MAX: Nanos = tidegate_core::time::DAY;
/// The longest that anything else is kept: twice the longest period, and twice that again.
const KEPT_MAX: Nanos = 4 * 366 * tidegate_core::time::DAY;

/// The states of one count.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Entry {
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq)]
struct Part {
    limit: u8,
    node: u64,
    state: State,
}

/// Why bytes are no count.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unreadable {
    #[error("a count of form {0}, and this program reads form {FORMAT}")]
    Format(u8),
    #[error("a count that is cut off or damaged")]
    Damaged,
    #[error("a count with a state that cannot be read: {0}")]
    State(#[from] DecodeError),
}

impl Entry {
    /// Reads what [`Self::encode`] wrote. Nothing is a count without uses.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Unreadable> {
        let (format, mut rest) = match bytes {
            [] => return Ok(Self::default()),
            [format, rest @ ..] => (*format, rest),
        };
        if format != FORMAT {
            return Err(Unreadable::Format(format));
        }
        let mut parts = Vec::new();
        while !rest.is_empty() {
            let (head, tail) = rest.split_first_chunk::<13>().ok_or(Unreadable::Damaged)?;
            let [limit, node @ .., a, b, c, d] = *head;
            let length = u32::from_le_bytes([a, b, c, d]) as usize;
            let (state, tail) = tail.split_at_checked(length).ok_or(Unreadable::Damaged)?;
            let state = State::decode(state)?;
            parts.push(Part { limit, node: u64::from_le_bytes(node), state });
            rest = tail;
        }
        Ok(Self { parts })
    }

    /// The form that is kept; empty for a count that says nothing.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for part in self.parts.iter().filter(|part| part.state != State::None) {
            if bytes.is_empty() {
                bytes.push(FORMAT);
            }
            bytes.push(part.limit);
            bytes.extend(part.node.to_le_bytes());
            let start = bytes.len();
            bytes.extend([0; 4]);
            part.state.encode(&mut bytes);
            let length = (bytes.len() - start - 4) as u32;
            bytes[start..start + 4].copy_from_slice(&length.to_le_bytes());
        }
        bytes
    }

    /// What a step sees: a state for each limit. With `own`, of uses in flight only those of this
    /// node: what it gives back is never another's.
    pub(super) fn view(&self, limits: &[Limit], node: u64, own: bool, nodes: &impl Nodes) -> Held {
        let mut held = Held::new(limits.len());
        for (at, (limit, state)) in limits.iter().zip(held.states_mut()).enumerate() {
            *state = if limit.ends() {
                let mut all = self.part(at, node).cloned().unwrap_or_default();
                if !own {
                    all.add_held(&self.others(at, node, nodes));
                }
                all
            } else {
                self.part(at, COMMON).cloned().unwrap_or_default()
            };
        }
        held
    }

    /// The count after a step that saw [`Self::view`] and left `states`.
    pub(super) fn after(
        &self,
        limits: &[Limit],
        states: &[State],
        node: u64,
        own: bool,
        nodes: &impl Nodes,
        now: Now,
    ) -> Self {
        let mut parts = Vec::with_capacity(self.parts.len() + 1);
        for (at, (limit, state)) in limits.iter().zip(states).enumerate() {
            let index = at as u8;
            if !limit.ends() {
                parts.push(Part { limit: index, node: COMMON, state: state.clone() });
                continue;
            }
            let alive =
                |part: &&Part| part.limit == index && part.node != node && nodes.lives(part.node);
            parts.extend(self.parts.iter().filter(alive).cloned());
            let before = self.part(at, node).cloned().unwrap_or_default();
            let others = if own { State::None } else { self.others(at, node, nodes) };
            let state = state.held_beside(&others, &before, now.mono);
            parts.push(Part { limit: index, node, state });
        }
        parts.retain(|part| part.state != State::None);
        Self { parts }
    }

    /// How long the count must be kept.
    pub(super) fn lives(&self, limits: &[Limit], now: Now) -> Nanos {
        let horizon = |part: &Part| {
            let limit = limits.get(usize::from(part.limit))?;
            let most = if limit.ends() { IN_FLIGHT_MAX } else { KEPT_MAX };
            Some(algorithms::horizon(limit, &part.state, most, now))
        };
        self.parts.iter().filter_map(horizon).max().unwrap_or(0).saturating_add(MARGIN)
    }

    /// The uses in flight of one node, by limit.
    pub(super) fn own(&self, node: u64) -> Vec<(u8, State)> {
        let own = self.parts.iter().filter(|part| part.node == node);
        own.map(|part| (part.limit, part.state.clone())).collect()
    }

    /// Says what one node holds. What has been forgotten of it meanwhile stays forgotten.
    pub(super) fn put_own(&mut self, node: u64, own: &[(u8, State)]) {
        for part in self.parts.iter_mut().filter(|part| part.node == node) {
            let known = own.iter().find(|(limit, _)| *limit == part.limit);
            part.state = known.map_or(State::None, |(_, state)| state.clone());
        }
        self.parts.retain(|part| part.state != State::None);
    }

    /// Bytes that its states hold outside of themselves.
    pub(super) fn heap_bytes(&self) -> usize {
        self.parts.iter().map(|part| part.state.heap_bytes()).sum()
    }

    /// The nodes that hold uses here.
    pub(super) fn holders(&self) -> impl Iterator<Item = u64> {
        self.parts.iter().map(|part| part.node).filter(|node| *node != COMMON)
    }

    fn part(&self, limit: usize, node: u64) -> Option<&State> {
        let found = self.parts.iter().find(|p| usize::from(p.limit) == limit && p.node == node);
        found.map(|part| &part.state)
    }

    /// The uses in flight of all other nodes that live.
    fn others(&self, limit: usize, node: u64, nodes: &impl Nodes) -> State {
        let mut all = State::None;
        for part in &self.parts {
            let counts = usize::from(part.limit) == limit && part.node != node;
            if counts && nodes.lives(part.node) {
                all.add_held(&part.state);
            }
        }
        all
    }
}

/// Which nodes live.
pub(super) trait Nodes {
    /// Whether the uses of this node count.
    fn lives(&self, node: u64) -> bool;
}

impl<F: Fn(u64) -> bool> Nodes for F {
    fn lives(&self, node: u64) -> bool {
        self(node)
    }
}
