//! Where counts are remembered: in this process' memory, or in a store that several nodes share.
//!
//! A store keeps one slot for each (rule, key) with one state for each limit of the rule, and
//! changes all slots of one request in one atomic step. It decides nothing: the limiter hands it
//! the step, by one verb, [`Store::update`]. Which store has the counts of a rule is the rule's
//! `consistency`. Memory is always there: it keeps the statistics, and decides where a remote store
//! cannot. To add a remote store: a folder in [`remote`], a variant of its `Engine`, and the arms.

pub mod memory;
pub mod remote;

use tidegate_core::Now;

use self::memory::{Body, Memory, OpenSlot, SlotAddress, StatsBucket};
use self::remote::Remote;
use self::remote::update::DeferredStep;

/// The store that has the counts of a request.
#[derive(Clone, Copy)]
pub(crate) enum Store<'a> {
    /// This process' memory: it answers at once.
    Memory(&'a Memory),
    /// Redis or etcd: it answers later.
    Remote(&'a Remote),
}

/// What is done to the slots of one request.
pub(crate) trait UpdateStep {
    /// What the caller waits for where the store answers later.
    type Ticket;

    /// Judges and changes the counts, in the order of the slots.
    fn run(&mut self, slots: &mut [OpenSlot<'_>], now: Now);

    /// The same step for a store that runs it later, with a ticket for its answer. `None`: the
    /// caller may not wait for more answers.
    fn defer(&mut self) -> Option<(Box<dyn DeferredStep>, Self::Ticket)>;
}

/// How far a store has come with a step when [`Store::update`] returns.
pub(crate) enum Updated<T> {
    /// The step has run.
    Done,
    /// The step runs later, and its answer comes by the ticket.
    Pending(T),
    /// The store was not asked, because the caller may not wait for more answers.
    Declined,
}

impl Store<'_> {
    /// One atomic step over the slots of one request, no two of them the same. Memory runs it in
    /// place. A remote store runs it on copies, perhaps several times, and writes the result by
    /// compare-and-set. `dead` tells which bodies in memory may go, and whether the table is
    /// pressed for room when it asks.
    #[inline]
    pub(crate) fn update<S: UpdateStep>(
        &self,
        slots: &[SlotAddress<'_>],
        now: Now,
        dead: impl Fn(&Body, bool) -> bool,
        step: &mut S,
    ) -> Updated<S::Ticket> {
        match self {
            Store::Memory(memory) => {
                memory.update(slots, StatsBucket::of(now), dead, |open| step.run(open, now));
                Updated::Done
            }
            Store::Remote(remote) => {
                let Some((deferred, ticket)) = step.defer() else { return Updated::Declined };
                remote.update(slots, now, deferred);
                Updated::Pending(ticket)
            }
        }
    }
}
