//! Leases that many writes share.
//!
//! A lease costs etcd a round of consensus of its own, so none is granted for a single write. Time
//! is cut into slots, wider ones for what lives longer, and all that ends within a slot hangs on
//! the slot's one lease, which ends after it. Ends are counted on this node's clock, from before
//! the lease was asked for: etcd prolongs leases when its leader changes and never shortens them.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tidegate_core::Nanos;
use tidegate_core::time::SECOND;
use tokio::sync::OnceCell;

use super::etcd_error::EtcdError;
use super::link::EtcdConnection;
use crate::clock::Clock;

/// The narrowest slot.
const SLOT_MIN: Nanos = 10 * SECOND;
/// A slot is at most so many times shorter than what hangs on its lease lives.
const SLOTS_PER_LIFE: Nanos = 4;
/// A lease ends so much later than its slot, at least.
const MARGIN_SECONDS: u64 = 2;
/// Clocks run apart by less than one part in so many.
const DRIFT: u64 = 1_000;
/// etcd grants no lease for longer.
const TTL_MAX: u64 = 9_000_000_000;

/// A span of time in which writes end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Slot {
    width: Nanos,
    number: u64,
}

impl Slot {
    /// The slot of what must be there until `end`, which is `lives` from now.
    fn of(end: Nanos, lives: Nanos) -> Self {
        let mut width = SLOT_MIN;
        while width <= lives / SLOTS_PER_LIFE / 2 {
            width *= 2;
        }
        Self { width, number: end / width }
    }

    fn next(self) -> Self {
        Self { number: self.number.saturating_add(1), ..self }
    }

    /// The first moment behind it.
    fn end(self) -> Nanos {
        self.number.saturating_add(1).saturating_mul(self.width)
    }

    /// Whether `moment` lies in the later half of it.
    fn is_late(self, moment: Nanos) -> bool {
        self.end().saturating_sub(moment) < self.width / 2
    }

    /// For how many seconds a lease must be asked for at `now`.
    fn ttl(self, now: Nanos) -> i64 {
        let seconds = self.end().saturating_sub(now).div_ceil(SECOND);
        let ttl = seconds + seconds / DRIFT + MARGIN_SECONDS;
        i64::try_from(ttl.min(TTL_MAX)).unwrap_or(i64::MAX)
    }
}

type Cell = Arc<OnceCell<i64>>;

/// The leases that this node has been granted and may still use.
pub(super) struct Leases {
    slots: Mutex<HashMap<Slot, Cell>>,
    clock: Clock,
}

/// A lease of a slot.
pub(super) struct Lease {
    pub(super) id: i64,
    slot: Slot,
    cell: Cell,
}

impl Leases {
    pub(super) fn new(clock: Clock) -> Self {
        Self { slots: Mutex::default(), clock }
    }

    /// A lease that ends no earlier than `lives` from now. The first write
    /// of a slot waits until its lease is granted; the next slot's lease is asked for ahead.
    pub(super) async fn until(
        self: &Arc<Self>,
        line: &Arc<EtcdConnection>,
        lives: Nanos,
    ) -> Result<Lease, EtcdError> {
        let end = self.clock.now().mono.saturating_add(lives);
        let slot = Slot::of(end, lives);
        let (cell, _) = self.cell(slot);
        let id = self.granted(line, slot, &cell).await?;
        if slot.is_late(end) {
            let next = slot.next();
            let (ahead, is_new) = self.cell(next);
            if is_new {
                let (leases, line) = (self.clone(), line.clone());
                // If it fails, the first write that needs it asks again.
                tokio::spawn(async move { drop(leases.granted(&line, next, &ahead).await) });
            }
        }
        Ok(Lease { id, slot, cell })
    }

    /// Forgets a lease that etcd does not know.
    pub(super) fn is_gone(&self, lease: &Lease) {
        let mut slots = self.slots.lock();
        if slots.get(&lease.slot).is_some_and(|cell| Arc::ptr_eq(cell, &lease.cell)) {
            slots.remove(&lease.slot);
        }
    }

    fn cell(&self, slot: Slot) -> (Cell, bool) {
        let mut slots = self.slots.lock();
        if let Some(cell) = slots.get(&slot) {
            return (cell.clone(), false);
        }
        // Few are open at a time, and one is opened every few seconds: there is time to look at
        // all of them.
        let now = self.clock.now().mono;
        slots.retain(|slot, _| slot.end() > now);
        let cell = Cell::default();
        slots.insert(slot, cell.clone());
        (cell, true)
    }

    /// The lease of a slot. Several callers share one request for it.
    async fn granted(
        &self,
        line: &Arc<EtcdConnection>,
        slot: Slot,
        cell: &Cell,
    ) -> Result<i64, EtcdError> {
        let grant = || async { line.grant(slot.ttl(self.clock.now().mono)).await };
        cell.get_or_try_init(grant).await.copied()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tidegate_core::time::DAY;

    use super::*;

    proptest! {
        #[test]
        fn a_lease_ends_after_what_hangs_on_it(
            now in 0..4_000 * DAY,
            lives in prop_oneof![0..100 * SECOND, 0..400 * DAY],
            asked_before in 0..100 * SECOND,
        ) {
            let end = now + lives;
            let slot = Slot::of(end, lives);
            let asked = now.saturating_sub(asked_before);
            let ttl = u64::try_from(slot.ttl(asked)).unwrap();
            prop_assert!(asked + ttl * SECOND > end + SECOND);
            // Not much later either: what is dead does not lie about.
            let longest = SLOT_MIN.max(lives / 4) + lives / 500 + 4 * SECOND;
            let ttl = u64::try_from(slot.ttl(now)).unwrap();
            prop_assert!(now + ttl * SECOND <= end + longest, "{slot:?} {ttl}");
        }

        #[test]
        fn few_leases_are_open_at_a_time(lives in prop::collection::vec(0..400 * DAY, 1..500)) {
            let now = 500 * DAY;
            let slots: std::collections::HashSet<Slot> =
                lives.iter().map(|&lives| Slot::of(now + lives, lives)).collect();
            prop_assert!(slots.len() < 100, "{}", slots.len());
        }
    }

    #[test]
    fn the_longest_lives_overflow_nothing() {
        let slot = Slot::of(u64::MAX, u64::MAX);
        assert!(slot.ttl(0) <= 9_000_000_000);
        assert!(slot.next().ttl(u64::MAX) > 0);
    }
}
