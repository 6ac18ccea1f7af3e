//! The counts that keys without a slot share while the table is full, one for each rule in each
//! shard. A decision touches one only under the lock of its shard.

use std::sync::atomic::Ordering::Relaxed;

use tidegate_core::rules::OnFull;

use super::{Body, Memory, SlotAddress, States, StatsBucket, new_body};

impl Memory {
    /// Whether a key of this address may count with the others that have no slot. The bytes of
    /// logs that are shared go a little beyond the bound, and no further.
    pub(super) fn can_share(&self, at: &SlotAddress<'_>) -> bool {
        let most = self.budget.max_bytes();
        at.on_full == OnFull::Share
            && (!at.long || self.bytes_together() < most.saturating_add(most / 8))
    }

    /// The count that the first key without a slot begins.
    pub(super) fn new_overflow(&self, at: &SlotAddress<'_>, bucket: StatsBucket) -> Body {
        let body = new_body(at, bucket);
        self.overflows.fetch_add(1, Relaxed);
        self.account(0, body.held.heap_bytes());
        body
    }

    /// Forgets the shared counts of a shard that no longer say anything.
    pub(super) fn sweep_overflow(&self, number: usize, dead: &impl Fn(&Body, bool) -> bool) {
        if self.overflows.load(Relaxed) == 0 {
            return;
        }
        self.overflow[number].lock().retain(|_, shared| {
            // One that is lifted out for a step has no states; it comes back.
            let gone = !shared.held.states().is_empty() && dead(shared, true);
            if gone {
                self.overflows.fetch_sub(1, Relaxed);
                self.account(shared.held.heap_bytes(), 0);
            }
            !gone
        });
    }

    /// Whether keys of this rule hold uses in the shared count: a slot would start with uses that
    /// are given back elsewhere.
    pub(super) fn stays_shared(
        &self,
        number: usize,
        at: &SlotAddress<'_>,
        dead: &impl Fn(&Body, bool) -> bool,
    ) -> bool {
        at.ends && self.overflows.load(Relaxed) > 0 && {
            let overflow = self.overflow[number].lock();
            overflow.get(&at.rule).is_some_and(|shared| !dead(shared, true))
        }
    }

    /// Puts back a shared count of an earlier process. Which keys it was for depended on that
    /// process' hash, so every shard gets it.
    pub(crate) fn restore_shared(&self, body: &Body, join: impl Fn(&mut States, &States)) {
        (0..self.overflow.len()).for_each(|number| self.join_shared(number, body, &join));
    }

    /// Lets a key without a slot count with the others of its shard: `join` makes the shared
    /// count hold for it too.
    pub(super) fn join_shared(
        &self,
        number: usize,
        body: &Body,
        join: &impl Fn(&mut States, &States),
    ) {
        let mut overflow = self.overflow[number].lock();
        match overflow.get_mut(&body.tally.rule()) {
            Some(there) => {
                let before = there.held.heap_bytes();
                join(&mut there.held, &body.held);
                self.account(before, there.held.heap_bytes());
            }
            None => {
                let mut copy = Body { held: body.held.copied(), tally: body.tally };
                copy.held.share();
                self.account(0, copy.held.heap_bytes());
                overflow.insert(body.tally.rule(), copy);
                self.overflows.fetch_add(1, Relaxed);
            }
        }
    }
}
