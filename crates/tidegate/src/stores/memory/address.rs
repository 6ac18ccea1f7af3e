//! Which slot a step is meant for, and where the body that it is handed comes from.
//!
//! Types only: `memory/mod.rs` finds and makes the slots.

use tidegate_core::Limit;
use tidegate_core::rules::OnFull;

use crate::stores::remote::names::RuleNames;

/// Which slot is meant, and what making it would mean.
#[derive(Clone, Copy)]
pub(crate) struct SlotAddress<'a> {
    pub(crate) rule: u32,
    pub(crate) name: &'a [u8],
    pub(crate) hash: u64,
    /// How many limits the rule has.
    pub(crate) limits: usize,
    /// Whether states of the rule lie outside of the slot and may grow.
    pub(crate) long: bool,
    /// Whether a missing slot is made; otherwise a look at it is answered from a copy.
    pub(crate) creates: bool,
    /// Whether it is asked what a use would meet: a full table is part of that answer.
    pub(crate) peeks: bool,
    /// Whether uses of the rule are given back when they end.
    pub(crate) ends: bool,
    /// Where uses that end were taken from, if that is what is asked for.
    pub(crate) gives_back: Option<TakenFrom>,
    pub(crate) on_full: OnFull,
    /// The names of the rule's counts, if they lie in a remote store.
    pub(crate) remote: Option<&'a RuleNames>,
    /// The limit that the request has brought.
    pub(crate) given: Option<Limit>,
}

impl SlotAddress<'_> {
    /// Whether it is about the key's own slot, and not about what was taken elsewhere.
    pub(super) fn is_of_slot(&self) -> bool {
        matches!(self.gives_back, None | Some(TakenFrom::Slot))
    }
}

/// Where a use in flight was taken from: its end gives it back there and nowhere else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakenFrom {
    /// The key's own count.
    Slot,
    /// The count of the keys that had no slot.
    Shared,
    /// The key's count in a remote store.
    Remote,
}

/// Where the body that a step is handed comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// The key's own slot.
    Own,
    /// The count that new keys share while the table is full.
    Shared,
    /// The same, for a second key of one request: the first counts for both.
    Joined,
    /// There is none, and the rule refuses such keys.
    Denied,
    /// There is none, and the rule lets such keys pass.
    Uncounted,
}

impl Placement {
    /// Where a key is for which there is no room and no shared count.
    pub(super) fn without_room(at: &SlotAddress<'_>) -> Self {
        if at.on_full == OnFull::Allow { Placement::Uncounted } else { Placement::Denied }
    }

    /// Whether a step reads and writes a count there.
    pub(crate) fn counts(self) -> bool {
        matches!(self, Placement::Own | Placement::Shared)
    }

    /// What was done with a key that found the table full, as metrics name it.
    #[inline]
    pub(crate) fn when_full(self) -> Option<&'static str> {
        match self {
            Placement::Own => None,
            Placement::Shared | Placement::Joined => Some("share"),
            Placement::Denied => Some("deny"),
            Placement::Uncounted => Some("allow"),
        }
    }
}
