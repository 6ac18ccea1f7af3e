//! The rules of the running configuration with what the limiter needs to know of each.
//!
//! A rule has a number that slots are found by. A reload keeps the number while the rule's name,
//! algorithms and periods are the same, so its counts live on; otherwise the number is new and
//! what was counted under the old one is dead.

use std::collections::HashMap;
use std::sync::Arc;

use tidegate_core::algorithms;
use tidegate_core::key::KEY_BYTES_MAX;
use tidegate_core::limit::Algorithm;
use tidegate_core::rules::{Consistency, OnStoreError, Rule, RuleSet};
use tidegate_core::{Limit, Now, Op};

use super::fast::SingleLimit;
use super::plan::CountTarget;
use super::request::{Key, KeyOp, LimitSource};
use super::{InvalidRequest, TakenFrom};
use crate::metrics::{DecisionCounts, Door};
use crate::stores::memory::{Body, Memory, RULE_MAX, SlotAddress, StatsBucket};
use crate::stores::remote::names::RuleNames;

pub(super) struct Catalog {
    set: Arc<RuleSet>,
    entries: Vec<Entry>,
    positions: HashMap<u32, usize, foldhash::fast::RandomState>,
    /// The highest number that had been given to a rule when this was made.
    newest: u32,
    /// Doors whose requests bring limits, by name, and the rules that those count under: a rule
    /// that no key matches is for the door that its name begins with.
    given: Vec<(Box<str>, usize)>,
    /// Where each rule is.
    names: HashMap<Arc<str>, usize, foldhash::fast::RandomState>,
    pub(super) counts: Arc<DecisionCounts>,
}

/// What the limiter precomputes for a rule, so that most decisions need not look at its limits.
struct Entry {
    number: u32,
    /// Set if the fast path can decide it: never for counts in a remote store.
    single: Option<SingleLimit>,
    /// Nothing passes, and nothing is remembered.
    denies: bool,
    /// States lie outside of the slot and may grow.
    long: bool,
    in_flight: bool,
    /// Callers are booked.
    books: bool,
    /// The largest cost that the rule can ever allow.
    capacity: u64,
    /// The names of its counts, if they lie in a remote store.
    remote: Option<RuleNames>,
}

impl Catalog {
    pub(super) fn new(
        set: RuleSet,
        before: Option<&Catalog>,
        next_number: &mut u32,
        counts: Arc<DecisionCounts>,
        prefix: Option<&str>,
    ) -> Self {
        let mut old = HashMap::new();
        for (position, rule) in before.iter().flat_map(|b| b.set.rules().iter().enumerate()) {
            old.insert(rule.name.clone(), position);
        }
        let entries: Vec<_> = set
            .rules()
            .iter()
            .map(|rule| {
                let kept = before.zip(old.get(&rule.name)).and_then(|(before, &position)| {
                    let same = keeps_counts(rule, &before.set.rules()[position]);
                    same.then(|| before.entries[position].number)
                });
                let number = kept.unwrap_or_else(|| {
                    *next_number = next_number.wrapping_add(1) & RULE_MAX;
                    *next_number
                });
                Entry::new(rule, number, prefix)
            })
            .collect();
        let given = { set.rules().iter().enumerate() }
            .filter(|(_, rule)| rule.pattern.is_nothing())
            .map(|(at, rule)| (rule.name.split(':').next().unwrap_or_default().into(), at))
            .collect();
        let positions = entries.iter().enumerate().map(|(at, e)| (e.number, at)).collect();
        let names = { set.rules().iter().enumerate() }
            .map(|(position, rule)| (rule.name.clone(), position))
            .collect();
        Self { set: Arc::new(set), entries, positions, newest: *next_number, given, names, counts }
    }

    pub(super) fn set(&self) -> &Arc<RuleSet> {
        &self.set
    }

    pub(super) fn rule(&self, position: usize) -> &Rule {
        &self.set.rules()[position]
    }

    /// The rule that a slot's number stands for, if the configuration still has it.
    pub(super) fn rule_of(&self, number: u32) -> Option<&Rule> {
        self.positions.get(&number).map(|&position| self.rule(position))
    }

    /// Every rule with its number.
    pub(super) fn numbered(&self) -> impl Iterator<Item = (u32, &Rule)> {
        self.entries.iter().map(|entry| entry.number).zip(self.set.rules())
    }

    /// Which rule decides a key, and whether the operation is fit for it.
    #[inline(always)]
    pub(super) fn find(
        &self,
        key: &[u8],
        op: Op,
        can_end: bool,
    ) -> Result<Option<usize>, InvalidRequest> {
        if key.len() > KEY_BYTES_MAX {
            return Err(InvalidRequest::KeyTooLong);
        }
        let Some(position) = self.set.find(key) else { return Ok(None) };
        self.check(position, op, can_end, None)?;
        Ok(Some(position))
    }

    /// Whether an operation is fit for the rule at this position. `capacity` is that of a limit
    /// which holds in place of the rule's own.
    #[inline(always)]
    fn check(
        &self,
        position: usize,
        op: Op,
        can_end: bool,
        capacity: Option<u64>,
    ) -> Result<(), InvalidRequest> {
        let entry = &self.entries[position];
        if entry.in_flight && !can_end && !matches!(op, Op::Peek(_)) {
            return Err(InvalidRequest::NeedsEnd);
        }
        let limit = capacity.unwrap_or(entry.capacity);
        if op.cost() > limit && !matches!(op, Op::TakeUpTo(_) | Op::Record { .. }) {
            return Err(InvalidRequest::CostAboveLimit { limit });
        }
        Ok(())
    }

    /// The rule that limits count under which requests bring to a door.
    #[inline]
    pub(super) fn given_to(&self, door: Door) -> Option<usize> {
        let given = self.given.iter().find(|(of, _)| **of == *door.name());
        given.map(|(_, position)| *position)
    }

    /// Whether the rule at this position lets nothing pass.
    #[inline]
    pub(super) fn denies(&self, position: usize) -> bool {
        self.entries[position].denies
    }

    /// The slot of a key under the rule at this position, to be looked at or counted in; `None` if
    /// nothing is remembered under it.
    pub(super) fn address<'k>(
        &'k self,
        memory: &Memory,
        position: usize,
        key: &'k [u8],
        creates: bool,
    ) -> Option<SlotAddress<'k>> {
        let has_slots = !self.rule(position).limits.is_empty() && !self.denies(position);
        let (op, given) = (KeyOp::Peek(0), None);
        let target = CountTarget { key: 0, rule: position, op, given, wants_details: false };
        let slot = || SlotAddress { creates, peeks: false, ..self.slot(memory, &target, key) };
        has_slots.then(slot)
    }

    /// The slot of a request's key, under the rule of its target.
    pub(super) fn slot<'k>(
        &'k self,
        memory: &Memory,
        target: &CountTarget,
        key: &'k [u8],
    ) -> SlotAddress<'k> {
        let CountTarget { rule: position, op, given, .. } = *target;
        let (rule, entry) = (self.rule(position), &self.entries[position]);
        // All keys of a shared rule have one slot, without a name.
        let name = if rule.shared { b"" } else { key };
        SlotAddress {
            rule: entry.number,
            name,
            hash: memory.hash_of(entry.number, name),
            limits: rule.limits.len(),
            long: entry.long,
            creates: op.is_use(),
            peeks: matches!(op, KeyOp::Peek(_) | KeyOp::Refuse(_)),
            ends: entry.in_flight,
            gives_back: match op {
                KeyOp::Release { from, .. } => Some(from),
                // What was taken from a slot that is gone is gone with it.
                KeyOp::Refund { .. } => Some(TakenFrom::Slot),
                _ => None,
            },
            on_full: rule.on_full,
            remote: self.remote_names(target),
            given,
        }
    }

    /// The names of the counts of a target's rule, if its count lies in a remote store. What was
    /// taken in memory while the store was away is given back there.
    pub(super) fn remote_names(&self, target: &CountTarget) -> Option<&RuleNames> {
        match target.op {
            KeyOp::Release { from: TakenFrom::Slot | TakenFrom::Shared, .. } => None,
            _ => self.names(target.rule),
        }
    }

    /// The names of the counts of the rule at this position, if they lie in a remote store.
    pub(super) fn names(&self, position: usize) -> Option<&RuleNames> {
        self.entries[position].remote.as_ref()
    }

    /// Whether this node decides a key of the rule at this position while the remote store is away:
    /// the rule then counts locally, or it has no count. Counts in memory are decided before that.
    pub(super) fn decides_without_store(&self, position: usize) -> bool {
        let rule = self.rule(position);
        match self.names(position) {
            Some(_) => rule.on_store_error == OnStoreError::Local,
            None => self.denies(position) || rule.limits.is_empty(),
        }
    }

    /// Which rule decides a key of a request at this door, and whether its operation is fit for it.
    #[inline(always)]
    pub(super) fn find_for(
        &self,
        key: &Key<'_>,
        can_end: bool,
        door: Door,
    ) -> Result<Option<usize>, InvalidRequest> {
        let op = match key.op {
            // What happens in any case is not too much, and neither is what is refused in any case.
            KeyOp::TakeOrRecord(cost) => Op::Record { cost, at: 0 },
            KeyOp::Refuse(_) => Op::Peek(1),
            op => op.for_limits(),
        };
        match key.limits {
            LimitSource::ByRule => self.find(key.bytes, op, can_end),
            LimitSource::Given(_) if self.set.find_matching(key.bytes).is_some() => {
                let found = self.find(key.bytes, op, can_end);
                match found.ok().flatten().map(|position| &self.entries[position]) {
                    Some(entry) if entry.in_flight => Err(InvalidRequest::NeedsEnd),
                    Some(entry) if entry.books => Err(InvalidRequest::Books),
                    _ => found,
                }
            }
            LimitSource::Given(_) if key.bytes.len() > KEY_BYTES_MAX => {
                Err(InvalidRequest::KeyTooLong)
            }
            LimitSource::Given(_) => Ok(self.given_to(door)),
            LimitSource::Named { rule, limit } => {
                let position = self.names.get(rule).copied();
                let capacity = limit.map(Limit::capacity);
                position.map(|at| self.check(at, op, can_end, capacity).map(|()| at)).transpose()
            }
        }
    }

    /// Whether limits of the rule at this position come with requests.
    #[inline]
    pub(super) fn is_given(&self, position: usize) -> bool {
        self.set.rules()[position].pattern.is_nothing()
    }

    /// The rule at this position, if the fast path can decide it.
    #[inline(always)]
    pub(super) fn single_limit(&self, position: usize) -> Option<&SingleLimit> {
        self.entries[position].single.as_ref()
    }

    /// The rule of a name in a remote store, and the key that it stands for.
    pub(super) fn find_name(&self, name: &[u8]) -> Option<(usize, Vec<u8>)> {
        let all = self.entries.iter().map(|entry| entry.remote.as_ref()).enumerate();
        all.into_iter().find_map(|(position, names)| Some((position, names?.key(name)?)))
    }

    /// Whether uses of the rule at this position are given back when they end.
    #[inline]
    pub(super) fn in_flight(&self, position: usize) -> bool {
        self.entries[position].in_flight
    }

    /// The slot of a key, for looking at it.
    pub(super) fn slot_of<'k>(&'k self, memory: &Memory, key: &'k [u8]) -> Option<SlotAddress<'k>> {
        let position = self.find(key, Op::Peek(0), true).ok()??;
        self.address(memory, position, key, false)
    }

    /// Whether a slot may be dropped: its limits remember nothing, and either its statistics are
    /// out of date or there is no room for them.
    pub(super) fn dead(&self, body: &Body, pressed: bool, bucket: StatsBucket, now: Now) -> bool {
        let Some(rule) = self.rule_of(body.tally.rule()) else {
            // A rule that this configuration no longer has. A number that it does not know yet is
            // of a newer one that another thread already decides by: that key is alive.
            return body.tally.rule() <= self.newest;
        };
        (pressed || body.tally.stale(bucket))
            && rule
                .limits
                .iter()
                .zip(body.held.states())
                .all(|(limit, state)| algorithms::forgotten(limit, state, now))
    }
}

impl Entry {
    fn new(rule: &Rule, number: u32, prefix: Option<&str>) -> Self {
        let prefix = prefix.filter(|_| rule.consistency == Consistency::Exact);
        let long = rule.limits.iter().any(Limit::remembers_uses);
        let denies = rule.limits.iter().any(Limit::denies);
        Self {
            number,
            single: SingleLimit::of(rule, number).filter(|_| prefix.is_none()),
            denies,
            long,
            in_flight: rule
                .limits
                .iter()
                .any(|l| matches!(l.algorithm, Algorithm::InFlight { .. })),
            books: rule.limits.iter().any(|l| matches!(l.algorithm, Algorithm::Jarl { .. })),
            // A shadow rule refuses nothing, so no cost is too much for it.
            capacity: match rule.shadow {
                true => u64::MAX,
                false => rule.limits.iter().map(most).min().unwrap_or(u64::MAX),
            },
            remote: prefix.map(|all| RuleNames::new(all, rule)),
        }
    }
}

/// The largest cost that is not invalid under a limit. A limit that allows nothing refuses a cost
/// and does not call it invalid, because the rules may change while a request waits.
fn most(limit: &Limit) -> u64 {
    if limit.denies() { u64::MAX } else { limit.capacity().max(1) }
}

/// Whether what was counted under `old` is still counted under `new`.
pub(crate) fn keeps_counts(new: &Rule, old: &Rule) -> bool {
    new.shared == old.shared
        && new.consistency == old.consistency
        && new.limits.len() == old.limits.len()
        && new.limits.iter().zip(&old.limits).all(|(new, old)| new.keeps_counts_of(old))
}
