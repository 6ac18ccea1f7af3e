//! The memory store: every remembered key of this process, bounded, in place.
//!
//! The store never forgets a live key to make room. Each insertion and a background task sweep a
//! few dead slots. When the table is full of live keys, a rule's `on_full` decides; under `share`
//! the new keys of a shard count together in an overflow, and every later slot of that rule starts
//! from it. A use in flight is given back to where it was taken, so its key stays with the overflow
//! until all uses there have ended. The limiter says which slots are dead.

mod address;
mod overflow;
mod scan;
mod several;
mod slot;
mod tally;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use foldhash::SharedSeed;
use foldhash::quality::SeedableRandomState;
use parking_lot::Mutex;
use tidegate_core::key::same;
use tidegate_core::rules::OnFull;

pub use self::address::TakenFrom;
pub(crate) use self::address::{Placement, SlotAddress};
pub(crate) use self::scan::Mark;
use self::slot::Slot;
pub(crate) use self::slot::{Body, States};
pub use self::tally::KeyStats;
pub(crate) use self::tally::{KeyTally, RULE_MAX, StatsBucket};
use crate::budget::Budget;
use crate::table::{self, Locked, LockedEntry, Name, Spot, Table};

/// Cells looked at for each new key, so that dead ones are found faster than new ones come.
const SWEEP_PER_INSERT: usize = 4;
/// Cells looked at for a new key that finds the table full.
const SWEEP_WHEN_FULL: usize = 512;
/// Cells looked at under one lock by the background sweep.
const SWEEP_STRIDE: usize = 256;

/// The bounds of the memory store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The most keys remembered at once.
    pub max_keys: usize,
    /// The most bytes that slots, index, long names and long states may take.
    pub max_bytes: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self { max_keys: 10_000_000, max_bytes: 4 << 30 }
    }
}

/// One slot in a step.
pub(crate) struct OpenSlot<'a> {
    pub(crate) body: &'a mut Body,
    pub(crate) place: Placement,
}

/// How full the table is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableSize {
    /// Occupied slots.
    pub used: usize,
    /// Allocated places of the index.
    pub total: usize,
    /// Remembered keys.
    pub keys: usize,
    /// Bytes that all of it takes.
    pub bytes: usize,
}

/// Where the slot of a key is looked for first.
pub(crate) type SlotProbe<'a> = table::TableProbe<'a, Slot>;

/// The store.
pub(crate) struct Memory {
    table: Table<Slot>,
    hasher: SeedableRandomState,
    max_keys: AtomicUsize,
    budget: Arc<Budget>,
    /// The most keys that the table was made for.
    reserved_keys: usize,
    /// Bytes outside of the slots.
    heap: AtomicUsize,
    /// The counts that keys without a slot share, for each shard, by rule.
    overflow: Box<[Mutex<HashMap<u32, Body>>]>,
    /// How many of those there are. Almost always none, and then no decision takes their locks.
    overflows: AtomicUsize,
    swept: AtomicUsize,
}

impl Memory {
    /// An empty store with these bounds.
    pub(crate) fn new(settings: Settings) -> Self {
        let table = Table::new(settings.max_keys);
        let overflow = (0..table.shards()).map(|_| Mutex::default()).collect();
        // Clients choose the keys: without a secret seed they could make all of them collide.
        let seed = getrandom::u64().unwrap_or(0x7469_6465_6761_7465);
        let shared = getrandom::u64().unwrap_or(0x6c69_6d69_7465_7221);
        // The shared part is made once for each store, and a process has one: nothing leaks.
        let shared: &'static SharedSeed = Box::leak(Box::new(SharedSeed::from_u64(shared)));
        Self {
            table,
            hasher: SeedableRandomState::with_seed(seed, shared),
            max_keys: settings.max_keys.into(),
            budget: Arc::new(Budget::new(settings.max_bytes)),
            reserved_keys: settings.max_keys,
            heap: AtomicUsize::new(0),
            overflow,
            overflows: AtomicUsize::new(0),
            swept: AtomicUsize::new(0),
        }
    }

    /// Changes the bounds; `false` if `max_keys` stays, because the table was reserved for fewer.
    pub(crate) fn resize(&self, settings: Settings) -> bool {
        self.budget.set_max_bytes(settings.max_bytes);
        let fits = settings.max_keys <= self.reserved_keys;
        if fits {
            self.max_keys.store(settings.max_keys, Relaxed);
        }
        fits
    }

    /// The bytes that this store shares with the records.
    pub(crate) fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// The hash of a slot: of its name, or of its rule where it has none because keys share it.
    #[inline]
    pub(crate) fn hash_of(&self, rule: u32, name: &[u8]) -> u64 {
        if name.is_empty() { self.hash(&rule.to_le_bytes()) } else { self.hash(name) }
    }

    /// The hash of a name. It does not depend on the rule, so a batch can prefetch by it first.
    #[inline]
    pub(crate) fn hash(&self, name: &[u8]) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(name);
        hasher.finish()
    }

    /// Where to look for the slot of a name. A batch makes the probes of all its keys first.
    #[inline(always)]
    pub(crate) fn probe(&self, name: &[u8]) -> SlotProbe<'_> {
        self.table.probe(self.hash(name))
    }

    fn slot_hash(&self, slot: &Slot) -> u64 {
        self.hash_of(slot.body.tally.rule(), slot.name.as_bytes())
    }

    /// Runs a step on one slot under the lock of its shard, and makes the slot if it must.
    fn update_in_shard<R>(
        &self,
        at: &SlotAddress<'_>,
        bucket: StatsBucket,
        dead: impl Fn(&Body, bool) -> bool,
        step: impl FnOnce(&mut Body, Placement) -> R,
    ) -> R {
        let number = self.table.shard_of(at.hash);
        let mut shard = self.table.lock(number);
        self.make_room(&mut shard, at, &[], &dead);
        let found =
            find(&mut shard, at).or_else(|| self.admit(&mut shard, number, at, &[], bucket, &dead));
        match found {
            Some(spot) if !at.long => step(&mut shard.entry(spot).body, Placement::Own),
            Some(spot) => {
                let body = &mut shard.entry(spot).body;
                let before = body.held.heap_bytes();
                if self.cannot_grow(at) {
                    return step(&mut Body::default(), Placement::without_room(at));
                }
                let result = step(body, Placement::Own);
                self.account(before, body.held.heap_bytes());
                result
            }
            // The slot that it was taken from is gone, and the use with it.
            None if at.gives_back.is_some() => step(&mut Body::default(), Placement::Uncounted),
            None if !at.creates => match self.would_deny(at) {
                true => step(&mut Body::default(), Placement::Denied),
                false => step(&mut self.fresh(number, at, bucket, &dead), Placement::Own),
            },
            None if self.can_share(at) => {
                let mut overflow = self.overflow[number].lock();
                let body = overflow.entry(at.rule).or_insert_with(|| self.new_overflow(at, bucket));
                let before = body.held.heap_bytes();
                let result = step(body, Placement::Shared);
                body.held.share();
                self.account(before, body.held.heap_bytes());
                result
            }
            None => step(&mut Body::default(), Placement::without_room(at)),
        }
    }

    /// One atomic step over the slots of one request, no two of them the same. `dead` tells which
    /// bodies may go, and whether the table is pressed for room when it asks.
    #[inline]
    pub(super) fn update<R>(
        &self,
        slots: &[SlotAddress<'_>],
        bucket: StatsBucket,
        dead: impl Fn(&Body, bool) -> bool,
        step: impl FnOnce(&mut [OpenSlot<'_>]) -> R,
    ) -> R {
        match slots {
            [] => step(&mut []),
            // What was taken elsewhere is not given back to the slot that its key may have now.
            [at] if at.is_of_slot() => self
                .update_one(at, bucket, dead, |body, place| step(&mut [OpenSlot { body, place }])),
            several => self.update_several(several, bucket, dead, step),
        }
    }

    /// Runs a step on one slot in place: under the lock of the line that its hash leads to, where
    /// almost all slots are found, and else under the lock of its shard.
    fn update_one<R>(
        &self,
        at: &SlotAddress<'_>,
        bucket: StatsBucket,
        dead: impl Fn(&Body, bool) -> bool,
        step: impl FnOnce(&mut Body, Placement) -> R,
    ) -> R {
        if !self.cannot_grow(at)
            && let Some(mut slot) = known_at(&self.table.probe(at.hash), at.rule, at.name)
        {
            if !at.long {
                return step(&mut slot.body, Placement::Own);
            }
            let before = slot.body.held.heap_bytes();
            let result = step(&mut slot.body, Placement::Own);
            self.account(before, slot.body.held.heap_bytes());
            return result;
        }
        self.update_in_shard(at, bucket, dead, step)
    }

    /// Makes a slot if there is room, sweeping a little first, but none of the slots of `kept`: the
    /// other keys of the request have been found already.
    fn admit(
        &self,
        shard: &mut Locked<'_, Slot>,
        number: usize,
        at: &SlotAddress<'_>,
        kept: &[SlotAddress<'_>],
        bucket: StatsBucket,
        dead: &impl Fn(&Body, bool) -> bool,
    ) -> Option<Spot> {
        if !at.creates || self.stays_shared(number, at, dead) {
            return None;
        }
        self.sweep_shard(shard, SWEEP_PER_INSERT, self.pressed(), kept, dead);
        if !self.has_room() {
            self.sweep_shard(shard, SWEEP_WHEN_FULL, true, kept, dead);
            if !self.has_room() {
                return None;
            }
        }
        let slot = Slot { name: Name::new(at.name), body: self.fresh(number, at, bucket, dead) };
        let heap = slot.name.heap_bytes() + slot.body.held.heap_bytes();
        let spot = shard.insert(at.hash, slot, |slot| self.slot_hash(slot)).ok()?;
        self.account(0, heap);
        Some(spot)
    }

    /// What a key without a slot starts from: nothing, or what its rule's overflow has counted.
    fn fresh(
        &self,
        number: usize,
        at: &SlotAddress<'_>,
        bucket: StatsBucket,
        dead: &impl Fn(&Body, bool) -> bool,
    ) -> Body {
        let mut body = new_body(at, bucket);
        if self.overflows.load(Relaxed) > 0 {
            self.sweep_overflow(number, dead);
            if let Some(shared) = self.overflow[number].lock().get(&at.rule) {
                body.held = shared.held.copied();
            }
        }
        body
    }

    fn sweep_shard(
        &self,
        shard: &mut Locked<'_, Slot>,
        budget: usize,
        pressed: bool,
        kept: &[SlotAddress<'_>],
        dead: &impl Fn(&Body, bool) -> bool,
    ) -> usize {
        shard.sweep(
            budget,
            |slot| self.slot_hash(slot),
            |slot| dead(&slot.body, pressed) && !kept.iter().any(|at| is(slot, at.rule, at.name)),
            |slot| self.account(slot.name.heap_bytes() + slot.body.held.heap_bytes(), 0),
        )
    }

    /// Looks at `budget` more slots, a stride under each lock. Returns how many were forgotten.
    pub(crate) fn sweep(&self, budget: usize, dead: impl Fn(&Body, bool) -> bool) -> usize {
        let mut removed = 0;
        for _ in 0..budget.div_ceil(SWEEP_STRIDE) {
            let number = self.swept.fetch_add(1, Relaxed) % self.table.shards();
            let mut shard = self.table.lock(number);
            removed += self.sweep_shard(&mut shard, SWEEP_STRIDE, self.pressed(), &[], &dead);
            self.sweep_overflow(number, &dead);
        }
        removed
    }

    /// Puts back a slot of an earlier process, or lets its key share where there is no room and
    /// its rule says so. A key that is there already is left alone.
    pub(crate) fn restore(
        &self,
        at: &SlotAddress<'_>,
        body: Body,
        join: impl Fn(&mut States, &States),
    ) -> Placement {
        let number = self.table.shard_of(at.hash);
        let mut shard = self.table.lock(number);
        if find(&mut shard, at).is_some() {
            return Placement::Own;
        }
        let mut slot = Slot { name: Name::new(at.name), body };
        if self.has_room() {
            let heap = slot.name.heap_bytes() + slot.body.held.heap_bytes();
            match shard.insert(at.hash, slot, |slot| self.slot_hash(slot)) {
                Ok(_) => {
                    self.account(0, heap);
                    return Placement::Own;
                }
                Err(back) => slot = back,
            }
        }
        if at.on_full != OnFull::Share {
            return Placement::without_room(at);
        }
        self.join_shared(number, &slot.body, &join);
        Placement::Shared
    }

    /// Forgets one key. `false` if it was not known.
    pub(crate) fn remove(&self, at: &SlotAddress<'_>) -> bool {
        let mut shard = self.table.lock(self.table.shard_of(at.hash));
        let Some(spot) = find(&mut shard, at) else { return false };
        let slot = shard.remove(spot, |slot| self.slot_hash(slot));
        self.account(slot.name.heap_bytes() + slot.body.held.heap_bytes(), 0);
        true
    }

    /// The statistics of one key; zeros if it is not known.
    pub(crate) fn stats(&self, at: &SlotAddress<'_>, bucket: StatsBucket) -> KeyStats {
        let mut shard = self.table.lock(self.table.shard_of(at.hash));
        let found = find(&mut shard, at);
        found.map_or_else(KeyStats::default, |spot| shard.entry(spot).body.tally.stats(bucket))
    }

    /// Counts a decision that was made elsewhere for the statistics of its key.
    pub(crate) fn count(
        &self,
        at: &SlotAddress<'_>,
        (over, rate): (bool, f64),
        bucket: StatsBucket,
        dead: impl Fn(&Body, bool) -> bool,
    ) {
        self.update_one(at, bucket, dead, |body, place| {
            if place.counts() {
                body.tally.count(over, rate, bucket);
            }
        });
    }

    /// How full it is.
    pub(crate) fn size(&self) -> TableSize {
        let keys = self.table.len();
        TableSize { used: keys, total: self.table.cells(), keys, bytes: self.bytes() }
    }

    /// The most keys.
    pub(crate) fn keys_max(&self) -> usize {
        self.max_keys.load(Relaxed)
    }

    /// What its keys take.
    pub(crate) fn bytes(&self) -> usize {
        self.table.len() * SLOT_BYTES + self.heap.load(Relaxed)
    }

    /// What its keys and the records take together.
    fn bytes_together(&self) -> usize {
        self.bytes() + self.budget.records()
    }

    fn has_room(&self) -> bool {
        self.table.len() < self.max_keys.load(Relaxed)
            && self.bytes_together() + SLOT_BYTES <= self.budget.max_bytes()
    }

    /// Whether a use of this address would make a log longer although there are no bytes left.
    fn cannot_grow(&self, at: &SlotAddress<'_>) -> bool {
        at.long && (at.creates || at.peeks) && !self.has_bytes()
    }

    /// Whether logs may grow.
    #[inline]
    pub(crate) fn has_bytes(&self) -> bool {
        self.bytes_together() < self.budget.max_bytes()
    }

    /// Whether a new key that is only looked at would be refused for want of room.
    fn would_deny(&self, at: &SlotAddress<'_>) -> bool {
        at.peeks && at.on_full == OnFull::Deny && !self.has_room()
    }

    /// Sweeps dead slots first, where a log could not grow for want of bytes, or a peek would be
    /// told that the table is full.
    #[inline]
    fn make_room(
        &self,
        shard: &mut Locked<'_, Slot>,
        at: &SlotAddress<'_>,
        kept: &[SlotAddress<'_>],
        dead: &impl Fn(&Body, bool) -> bool,
    ) {
        if self.cannot_grow(at) || self.would_deny(at) {
            self.sweep_shard(shard, SWEEP_WHEN_FULL, true, kept, dead);
        }
    }

    /// From seven eighths on, statistics alone no longer keep a key.
    fn pressed(&self) -> bool {
        let near = |used: usize, most: usize| used >= most - most / 8;
        near(self.table.len(), self.max_keys.load(Relaxed))
            || near(self.bytes_together(), self.budget.max_bytes())
    }

    /// Counts what a slot holds outside of itself before and after a step.
    #[inline]
    pub(crate) fn account(&self, before: usize, after: usize) {
        if after > before {
            self.heap.fetch_add(after - before, Relaxed);
        } else if before > after {
            self.heap.fetch_sub(before - after, Relaxed);
        }
    }
}

/// A slot and its share of an index that is a little over half full.
const SLOT_BYTES: usize = size_of::<Slot>() + 8;

/// The slot of a name with its line locked, if the probe finds it, as it nearly always does. A
/// caller whose step makes states grow must call [`Memory::account`].
#[inline(always)]
pub(crate) fn known_at<'a>(
    probe: &SlotProbe<'a>,
    rule: u32,
    name: &[u8],
) -> Option<LockedEntry<'a, Slot>> {
    probe.find(|slot| is(slot, rule, name))
}

#[inline(always)]
fn is(slot: &Slot, rule: u32, name: &[u8]) -> bool {
    slot.body.tally.rule() == rule && same(slot.name.as_bytes(), name)
}

fn find(shard: &mut Locked<'_, Slot>, at: &SlotAddress<'_>) -> Option<Spot> {
    shard.find(at.hash, |slot| is(slot, at.rule, at.name))
}

fn new_body(at: &SlotAddress<'_>, bucket: StatsBucket) -> Body {
    Body { held: States::new(at.limits), tally: KeyTally::new(at.rule, bucket) }
}
