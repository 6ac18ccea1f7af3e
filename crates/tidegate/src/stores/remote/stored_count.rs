//! One count as it lies in a remote store: the states of a rule's limits, in bytes.
//!
//! Uses in flight are kept apart for each node that holds them, because they end with it; every
//! other state is common to all. A step sees one state for each limit, whichever nodes hold uses.
//! Pure: the caller says which nodes are alive, and keeps names, versions and time.

use smallvec::SmallVec;
use tidegate_core::rules::LIMITS_MAX;
use tidegate_core::state::DecodeError;
use tidegate_core::{Limit, Nanos, Now, State, algorithms};

use super::cell::CellValue;
use crate::stores::memory::States;

/// The version of the form that is written; others are not read.
const FORMAT: u8 = 1;
/// The rest of the byte before a part: which limit it is of, and whether it is of one node.
const LIMIT: u8 = 0x07;
const OF_NODE: u8 = 0x08;
const _: () = assert!(LIMITS_MAX <= LIMIT as usize + 1);
/// Stands for a length that does not fit into a byte and follows in four.
const LONG: u8 = 0xff;
/// The node of what belongs to all.
const COMMON: u64 = 0;
/// What is added to the time that a value is kept, for clocks that do not agree to the microsecond.
const MARGIN: Nanos = tidegate_core::time::SECOND;
/// The longest that uses in flight without a window are kept: the node that holds them may have
/// crashed, and no request may ever ask for their key again.
const IN_FLIGHT_MAX: Nanos = tidegate_core::time::DAY;
/// The longest that anything else is kept: twice the longest period, and twice that again.
const KEPT_MAX: Nanos = 4 * 366 * tidegate_core::time::DAY;

/// The states of one count.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct StoredCount {
    parts: SmallVec<[Part; 1]>,
}

#[derive(Clone, Debug, PartialEq)]
struct Part {
    limit: u8,
    node: u64,
    state: State,
}

/// Why bytes are no count.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum UnreadableCount {
    #[error("a count of form {0}, and this program reads form {FORMAT}")]
    Format(u8),
    #[error("a count that is cut off or damaged")]
    Damaged,
    #[error("a count with a state that cannot be read: {0}")]
    State(#[from] DecodeError),
}

impl StoredCount {
    /// Reads what [`Self::encode`] wrote. Nothing is a count without uses.
    pub(super) fn decode(mut bytes: &[u8]) -> Result<Self, UnreadableCount> {
        let mut parts = SmallVec::new();
        while let Some((&head, rest)) = bytes.split_first() {
            if head >> 4 != FORMAT {
                return Err(UnreadableCount::Format(head >> 4));
            }
            let (node, rest) = match head & OF_NODE {
                0 => (COMMON, rest),
                _ => number(rest).map(|(node, rest)| (u64::from_le_bytes(node), rest))?,
            };
            let (length, rest) = match number(rest)? {
                ([LONG], rest) => number(rest).map(|(n, rest)| (u32::from_le_bytes(n), rest))?,
                ([short], rest) => (u32::from(short), rest),
            };
            let cut = rest.split_at_checked(length as usize);
            let (state, rest) = cut.ok_or(UnreadableCount::Damaged)?;
            parts.push(Part { limit: head & LIMIT, node, state: State::decode(state)? });
            bytes = rest;
        }
        Ok(Self { parts })
    }

    /// The form that is kept; empty for a count that says nothing. For each part a byte that tells
    /// the form, which limit it is of, and whether the node follows that it is of; and its length,
    /// nearly always in one byte.
    pub(super) fn encode(&self) -> CellValue {
        let mut bytes = Vec::with_capacity(64);
        for part in self.parts.iter().filter(|part| part.state != State::None) {
            let of_node = if part.node == COMMON { 0 } else { OF_NODE };
            bytes.push(FORMAT << 4 | of_node | part.limit);
            if part.node != COMMON {
                bytes.extend(part.node.to_le_bytes());
            }
            bytes.push(LONG);
            let start = bytes.len();
            part.state.encode(&mut bytes);
            let length = bytes.len() - start;
            match u8::try_from(length) {
                Ok(short) if short != LONG => bytes[start - 1] = short,
                _ => drop(bytes.splice(start..start, (length as u32).to_le_bytes())),
            }
        }
        if bytes.len() <= CellValue::new().inline_size() {
            return CellValue::from_slice(&bytes);
        }
        bytes.shrink_to_fit();
        CellValue::from_vec(bytes)
    }

    /// What a step sees: a state for each limit. With `own`, of uses in flight only those of this
    /// node: what it gives back is never another's.
    pub(super) fn view(
        &self,
        limits: &[Limit],
        node: u64,
        own: bool,
        nodes: &impl LiveNodes,
    ) -> States {
        let mut held = States::new(limits.len());
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
        nodes: &impl LiveNodes,
        now: Now,
    ) -> Self {
        let mut parts: SmallVec<[Part; 1]> =
            SmallVec::with_capacity(self.parts.len().max(limits.len()));
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
    pub(super) fn own(&self, node: u64) -> Box<[(u8, State)]> {
        let own = self.parts.iter().filter(|part| part.node == node);
        own.map(|part| (part.limit, part.state.clone())).collect()
    }

    /// Says what one node holds. What has been forgotten of it meanwhile stays forgotten. Returns
    /// whether the count said something else.
    pub(super) fn put_own(&mut self, node: u64, own: &[(u8, State)]) -> bool {
        let mut differs = false;
        for part in self.parts.iter_mut().filter(|part| part.node == node) {
            let known = own.iter().find(|(limit, _)| *limit == part.limit);
            let state = known.map_or(State::None, |(_, state)| state.clone());
            differs |= part.state != state;
            part.state = state;
        }
        self.parts.retain(|part| part.state != State::None);
        differs
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
    fn others(&self, limit: usize, node: u64, nodes: &impl LiveNodes) -> State {
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
pub(super) trait LiveNodes {
    /// Whether the uses of this node count.
    fn lives(&self, node: u64) -> bool;
}

impl<F: Fn(u64) -> bool> LiveNodes for F {
    fn lives(&self, node: u64) -> bool {
        self(node)
    }
}

/// The bytes of a number, and what follows them.
fn number<const N: usize>(bytes: &[u8]) -> Result<([u8; N], &[u8]), UnreadableCount> {
    let (number, rest) = bytes.split_first_chunk().ok_or(UnreadableCount::Damaged)?;
    Ok((*number, rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tidegate_core::limit::{AlgorithmName, Spec};
    use tidegate_core::{JointOutcome, Op};

    use super::*;

    const NOW: Now = Now { mono: 1 << 60, unix: 1 << 60 };

    fn limit(text: &str, algorithm: Option<AlgorithmName>) -> Limit {
        Spec::parse(text).unwrap().with(algorithm, None, None).unwrap().unwrap()
    }

    /// The state of a limit after so many uses.
    fn used(limit: &Limit, times: u64) -> State {
        let (mut state, op) = (State::None, Op::Take(1));
        for _ in 0..times {
            let judgement = algorithms::judge(limit, &state, op, NOW);
            algorithms::apply(limit, &mut state, op, &judgement, JointOutcome::Granted, NOW);
        }
        state
    }

    #[test]
    fn a_count_of_one_limit_is_short() {
        use AlgorithmName::{FixedWindow, Gcra, SlidingWindow};
        for algorithm in [Gcra, FixedWindow, SlidingWindow] {
            let state = used(&limit("9 per hour", Some(algorithm)), 3);
            let entry = StoredCount { parts: [Part { limit: 0, node: COMMON, state }].into() };
            assert!(entry.encode().len() <= 36, "{algorithm:?}: {}", entry.encode().len());
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_and_what_is_cut_off_is_noticed(
            parts in prop::collection::vec((0..8_u8, 0..3_u64, 1..20_u64), 0..6),
        ) {
            let limits = [
                limit("9 per hour", None),
                limit("30 per 2h", Some(AlgorithmName::SlidingLog)),
                limit("20 in flight", None),
            ];
            let part = |&(limit, node, uses): &(u8, u64, u64)| {
                Part { limit, node, state: used(&limits[uses as usize % 3], uses) }
            };
            let entry = StoredCount { parts: parts.iter().map(part).collect() };
            let bytes = entry.encode();
            prop_assert_eq!(StoredCount::decode(&bytes).unwrap(), entry.clone());
            for end in 1..bytes.len() {
                // Unless it is cut off between two parts.
                if let Ok(cut) = StoredCount::decode(&bytes[..end]) {
                    prop_assert!(entry.parts.starts_with(&cut.parts));
                }
            }
        }
    }
}
