//! An update of a remote store: one step over the counts of a request.

use std::sync::Arc;

use tidegate_core::{Limit, Nanos, Now};

use super::engine::EngineFault;
use crate::stores::memory::{Body, SlotAddress};

/// One count that a step is about.
#[derive(Clone, Debug)]
pub(crate) struct RemoteSlot {
    pub(crate) name: Arc<[u8]>,
    /// The limits of its rule, or the one that the request has brought.
    pub(crate) limits: Arc<[Limit]>,
}

impl RemoteSlot {
    /// The count at an address; `None` if it lies in memory.
    pub(crate) fn of(address: &SlotAddress<'_>) -> Option<Self> {
        let names = address.remote?;
        let limits = address.given.map_or_else(|| names.limits.clone(), |limit| Arc::new([limit]));
        Some(Self { name: names.name(address.name), limits })
    }
}

/// A step that runs later, on the store's thread: on copies, and again if they turn out to be old.
/// In the end it is told what became of its last run.
pub(crate) trait DeferredStep: Send {
    /// How the store treats it.
    fn kind(&self) -> UpdateKind;

    /// Judges and changes the counts, in the order of the update's slots.
    fn run(&mut self, bodies: &mut [Body], now: Now);

    /// A step that takes back from one count what the last run took.
    fn undo(&self, slot: usize) -> Box<dyn DeferredStep>;

    /// Ends the step: its last run is in force since `now`, or it failed.
    fn end(self: Box<Self>, outcome: Result<Now, StoreError>);

    /// Answers the caller of a step that gives back: the store keeps silent or is away. The step
    /// goes on without its caller.
    fn answer_early(&mut self);

    /// Ends the step as failed while a change with its last run is under way. Returns what gives
    /// back what that run took, each with the position of its count, should it turn out to be done.
    fn end_early(self: Box<Self>, error: StoreError) -> LateSteps;
}

/// Steps over one count each, with the position of that count among those of another step.
pub(crate) type LateSteps = Vec<(usize, Box<dyn DeferredStep>)>;

/// Why a step failed. If the store was asked, it may have done it nevertheless.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StoreError {
    /// The store failed or kept silent.
    #[error(transparent)]
    Fault(#[from] EngineFault),
    /// It is known to be away, and was not asked.
    #[error("the store is away")]
    Away,
    /// Others changed the same counts all the time.
    #[error("the count changed faster than it could be written")]
    Contended,
    /// Too much is under way already.
    #[error("too many decisions are waiting for the store")]
    Crowded,
}

impl StoreError {
    /// The kind in metrics.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            StoreError::Fault(fault) => fault.kind(),
            StoreError::Away => "away",
            StoreError::Contended => "contended",
            StoreError::Crowded => "crowded",
        }
    }
}

/// A step with its counts, no two of which are the same.
pub(crate) struct Update {
    pub(crate) slots: Vec<RemoteSlot>,
    pub(crate) step: Box<dyn DeferredStep>,
    pub(crate) kind: UpdateKind,
    /// Until when an answer is waited for, on our monotonic clock.
    pub(crate) deadline: Nanos,
}

/// How the store treats an update. Its caller is answered by its deadline, one way or the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UpdateKind {
    /// It ends by its deadline.
    Take,
    /// It gives back uses in flight that this node holds: it sees only those, wakes the requests
    /// that wait for them, and is tried until it is done.
    GiveBack,
    /// It takes back a use that came to nothing. As [`Self::GiveBack`], except that it is given up
    /// where its outcome is unknown: to do it twice would give back too much.
    Refund,
}
