//! A step over several slots of the table, for requests of more than one key.

use std::mem;

use super::{Body, Memory, OpenSlot, Placement, SlotAddress, States, StatsBucket, TakenFrom, find};

/// A body that was lifted out of its slot for a step over several.
struct Lifted {
    body: Body,
    place: Placement,
    /// Bytes that the body held outside of itself before the step.
    heap: usize,
}

impl Lifted {
    fn new(body: Body, place: Placement) -> Self {
        let heap = body.held.heap_bytes();
        Self { body, place, heap }
    }

    fn without_body(place: Placement) -> Self {
        Self { body: Body::default(), place, heap: 0 }
    }
}

impl Memory {
    /// Several slots: their bodies are lifted out while all their shards are locked, and put back
    /// after the step.
    pub(super) fn update_several<R>(
        &self,
        addresses: &[SlotAddress<'_>],
        bucket: StatsBucket,
        dead: impl Fn(&Body, bool) -> bool,
        step: impl FnOnce(&mut [OpenSlot<'_>]) -> R,
    ) -> R {
        let mut numbers: Vec<usize> =
            addresses.iter().map(|at| self.table.shard_of(at.hash)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        // Every request takes locks in the same order, so that no two wait for each other.
        let mut shards: Vec<_> = numbers.iter().map(|&n| (n, self.table.lock(n))).collect();
        let shard_at = |hash| {
            let number = self.table.shard_of(hash);
            numbers.binary_search(&number).unwrap_or(0)
        };
        for at in addresses {
            let (number, shard) = &mut shards[shard_at(at.hash)];
            self.make_room(shard, at, addresses, &dead);
            if find(shard, at).is_none() {
                self.admit(shard, *number, at, addresses, bucket, &dead);
            }
        }
        // Making room for one may have moved another, so spots are good only from here on.
        let mut lifted = Vec::with_capacity(addresses.len());
        for at in addresses {
            let (number, shard) = &mut shards[shard_at(at.hash)];
            let one = match find(shard, at).filter(|_| at.is_of_slot()) {
                Some(_) if self.cannot_grow(at) => {
                    Lifted::without_body(Placement::without_room(at))
                }
                Some(spot) => {
                    let body = &mut shard.entry(spot).body;
                    // The tally stays as well: it carries the rule that the slot is found by.
                    let held = mem::take(&mut body.held);
                    Lifted::new(Body { held, tally: body.tally }, Placement::Own)
                }
                None if self.would_deny(at) => Lifted::without_body(Placement::Denied),
                None => self.lift_without_slot(*number, at, bucket, &dead),
            };
            lifted.push(one);
        }
        let mut slots: Vec<OpenSlot<'_>> = lifted
            .iter_mut()
            .map(|Lifted { body, place, .. }| OpenSlot { body, place: *place })
            .collect();
        let result = step(&mut slots);
        drop(slots);
        for (at, mut one) in addresses.iter().zip(lifted) {
            let heap_after = one.body.held.heap_bytes();
            let (number, shard) = &mut shards[shard_at(at.hash)];
            match one.place {
                // What was only a look at a key without a slot is not put anywhere.
                Placement::Own => {
                    if let Some(spot) = find(shard, at) {
                        self.account(one.heap, heap_after);
                        shard.entry(spot).body = one.body;
                    }
                }
                Placement::Shared => {
                    one.body.held.share();
                    self.account(one.heap, heap_after);
                    self.overflow[*number].lock().insert(at.rule, one.body);
                }
                Placement::Joined | Placement::Denied | Placement::Uncounted => {}
            }
        }
        result
    }

    /// A body for an address of [`Self::update_several`] that has no slot.
    fn lift_without_slot(
        &self,
        number: usize,
        at: &SlotAddress<'_>,
        bucket: StatsBucket,
        dead: &impl Fn(&Body, bool) -> bool,
    ) -> Lifted {
        match at.gives_back {
            // What it was taken from is gone, and the use with it; or was never here.
            Some(TakenFrom::Slot | TakenFrom::Remote) => {
                return Lifted::without_body(Placement::Uncounted);
            }
            Some(TakenFrom::Shared) if !self.overflow[number].lock().contains_key(&at.rule) => {
                return Lifted::without_body(Placement::Uncounted);
            }
            Some(TakenFrom::Shared) => {}
            None if !at.creates => {
                return Lifted::new(self.fresh(number, at, bucket, dead), Placement::Own);
            }
            None if !self.can_share(at) => {
                return Lifted::without_body(Placement::without_room(at));
            }
            None => {}
        }
        let mut overflow = self.overflow[number].lock();
        let body = overflow.entry(at.rule).or_insert_with(|| self.new_overflow(at, bucket));
        if body.held.states().is_empty() {
            // Lifted out by an earlier key of this request: the count holds the uses of both.
            return Lifted::without_body(Placement::Joined);
        }
        let lifted = Body { held: States::Many(Box::default()), tally: body.tally };
        Lifted::new(mem::replace(body, lifted), Placement::Shared)
    }
}
