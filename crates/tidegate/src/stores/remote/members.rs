//! Which of the nodes that share the store are alive. The uses in flight of a dead node have ended.
//!
//! A node counts as alive when it is first seen: it may have started a moment ago. It is dead once
//! a list that was asked for after that does not name it. Pure.

use std::collections::HashMap;

use super::stored_count::LiveNodes;

/// Nodes that are remembered at most; beyond it the dead are forgotten, to be found dead again.
const MEMBERS_MAX: usize = 10_000;

/// What is known of the others.
#[derive(Debug, Default)]
pub(super) struct Members {
    known: HashMap<u64, Member>,
    /// How many lists have been asked for.
    asked: u64,
}

#[derive(Clone, Copy, Debug)]
struct Member {
    lives: bool,
    /// How many lists had been asked for when it was first seen.
    seen_at: u64,
}

impl Members {
    /// A list is asked for now.
    pub(super) fn ask(&mut self) {
        self.asked += 1;
    }

    /// The nodes of a count that was read.
    pub(super) fn see(&mut self, nodes: impl Iterator<Item = u64>) {
        for node in nodes {
            self.known.entry(node).or_insert(Member { lives: true, seen_at: self.asked });
        }
    }

    /// The list that was asked for last.
    pub(super) fn learn(&mut self, living: &[u64]) {
        let asked = self.asked;
        for (node, member) in &mut self.known {
            member.lives = living.contains(node) || member.seen_at >= asked;
        }
        for &node in living {
            self.known.entry(node).or_insert(Member { lives: true, seen_at: asked }).lives = true;
        }
        if self.known.len() > MEMBERS_MAX {
            self.known.retain(|_, member| member.lives);
        }
    }
}

impl LiveNodes for Members {
    fn lives(&self, node: u64) -> bool {
        self.known.get(&node).is_none_or(|member| member.lives)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_dead_when_a_later_list_does_not_name_it() {
        let mut members = Members::default();
        members.ask();
        members.see([7].into_iter());
        assert!(members.lives(7) && members.lives(8), "nobody has been asked yet");
        members.learn(&[1]);
        assert!(members.lives(7), "it was seen after the list was asked for");
        members.ask();
        members.learn(&[1]);
        assert!(!members.lives(7));
        members.ask();
        members.learn(&[1, 7]);
        assert!(members.lives(7), "it has come back");
    }
}
