//! Uses that have already happened, many at once: each is written down, and when the next of its
//! key may come is told.
//!
//! Nothing is refused here. The keys of a batch lie in one buffer that is used again, and their
//! slots are asked for ahead, as those of a batch of lines are.

use tidegate_core::key::{KeyBuilder, KeyTooLong};
use tidegate_core::rules::Rule;
use tidegate_core::{Limit, Nanos, Now, Op, algorithms};

use super::catalog::Catalog;
use super::desk::{GROUP, Run};
use super::{Desk, Unfit};
use crate::metrics::Counted;
use crate::stores::memory::{Address, Body, Bucket, Place, prefetch_state};

/// What is told of one use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// No rule is for its key: nothing was written down.
    Unknown,
    /// How long until the next use of the key is allowed; nothing, if it is now.
    Next(Nanos),
    /// It cannot be written down.
    Unfit(Unfit),
}

/// A batch of uses: filled by a door, told by [`Desk::record`]. The memory is used again.
#[derive(Debug, Default)]
pub struct Recording {
    /// The keys, back to back.
    bytes: Vec<u8>,
    uses: Vec<Use>,
    told: Vec<Told>,
}

#[derive(Clone, Copy, Debug)]
struct Use {
    /// Where its key ends; it begins where the one before ends.
    end: usize,
    at: Nanos,
}

impl Recording {
    /// A batch without uses.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Forgets the last batch.
    pub fn begin(&mut self) {
        self.bytes.clear();
        self.uses.clear();
        self.told.clear();
    }

    /// Adds a use of the key `<domain> <identifier>` that happened, or will, at `at`.
    ///
    /// # Errors
    /// If the key is too long: nothing is added.
    #[inline]
    pub fn add(&mut self, domain: &[u8], identifier: &[u8], at: Nanos) -> Result<(), KeyTooLong> {
        KeyBuilder::behind(&mut self.bytes, domain).word(identifier).finish()?;
        self.uses.push(Use { end: self.bytes.len(), at });
        Ok(())
    }

    /// What was told of each use, in order.
    #[must_use]
    pub fn told(&self) -> &[Told] {
        &self.told
    }

    /// The uses: the key of each, and when it happened.
    pub(crate) fn uses(&self) -> impl Iterator<Item = (&[u8], Nanos)> {
        self.uses.iter().enumerate().map(|(number, one)| (self.key(number), one.at))
    }

    #[inline]
    fn key(&self, number: usize) -> &[u8] {
        let start = number.checked_sub(1).map_or(0, |before| self.uses[before].end);
        &self.bytes[start..self.uses[number].end]
    }
}

impl Desk {
    /// Writes down the uses of a batch in turn and tells of each when the next may come.
    pub fn record(&self, recording: &mut Recording, now: Now) {
        let catalog = self.limiter.catalog.load();
        let mut told = std::mem::take(&mut recording.told);
        told.clear();
        let mut run = Run::default();
        let moment = (now, Bucket::of(now));
        let uses = recording.uses.len();
        for start in (0..uses).step_by(GROUP) {
            let numbers = start..uses.min(start + GROUP);
            let aims = self.look_ahead_all(numbers.clone().map(|number| recording.key(number)));
            if catalog.any_long() {
                aims.iter().for_each(prefetch_state);
            }
            for (number, aim) in numbers.zip(&aims) {
                let (key, at) = (recording.key(number), recording.uses[number].at);
                told.push(self.record_one(&catalog, key, aim.hash(), at, moment, &mut run));
            }
        }
        run.end(self, &catalog);
        self.time(uses, now);
        recording.told = told;
    }

    /// As [`Self::record`], for one use whose count elsewhere cannot be had.
    pub(super) fn record_here(&self, key: &[u8], at: Nanos, now: Now) -> Told {
        let catalog = self.limiter.catalog.load();
        let hash = self.limiter.memory().hash(key);
        let mut run = Run::default();
        let told = self.record_one(&catalog, key, hash, at, (now, Bucket::of(now)), &mut run);
        run.end(self, &catalog);
        told
    }

    #[inline(always)]
    fn record_one(
        &self,
        catalog: &Catalog,
        key: &[u8],
        hash: u64,
        at: Nanos,
        moment: (Now, Bucket),
        run: &mut Run,
    ) -> Told {
        let op = Op::Record { at };
        let position = match catalog.find(key, op, false) {
            Ok(Some(position)) => position,
            Ok(None) => return Told::Unknown,
            Err(unfit) => return Told::Unfit(unfit),
        };
        let rule = catalog.rule(position);
        let memory = self.limiter.memory();
        let next = match catalog.address(memory, position, key, hash, op) {
            None => catalog.next_without_slot(position),
            Some(address) => {
                let known = |body: &mut Body| write(rule, body, at, moment);
                match memory.known_growing(&address, known) {
                    Some(next) => next,
                    None => self.record_stranger(catalog, rule, &address, at, moment),
                }
            }
        };
        let (counted, next) = match (next, rule.shadow) {
            (0, _) => (Counted::Allow, 0),
            (_, true) => (Counted::Shadow, 0),
            (_, false) => (Counted::Delay, next),
        };
        run.count(self, catalog, Some(position), counted);
        Told::Next(next)
    }

    /// As [`Self::record_one`], for a key that may have to be given a slot first.
    #[cold]
    #[inline(never)]
    fn record_stranger(
        &self,
        catalog: &Catalog,
        rule: &Rule,
        address: &Address<'_>,
        at: Nanos,
        moment: (Now, Bucket),
    ) -> Nanos {
        let (now, bucket) = moment;
        let dead = |body: &Body, pressed: bool| catalog.dead(body, pressed, bucket, now);
        let step = |body: &mut Body, place: Place| {
            self.count_full(place.when_full());
            // A use that nobody could count delays nobody: the table's fault, not the key's.
            if place.counts() { write(rule, body, at, moment) } else { 0 }
        };
        self.limiter.memory().one(address, bucket, dead, step)
    }
}

/// Writes a use down in every limit of its rule; the last that lets the next go decides.
#[inline(always)]
pub(super) fn write(
    rule: &Rule,
    body: &mut Body,
    at: Nanos,
    (now, bucket): (Now, Bucket),
) -> Nanos {
    let (mut next, mut shown) = (0, 0.0);
    if let ([limit], [state]) = (rule.limits.as_slice(), body.held.states_mut()) {
        let recorded = algorithms::record(limit, state, at, now);
        (next, shown) = (recorded.next, recorded.rate);
    } else {
        let share = |limit: &Limit, rate: f64| rate / limit.amount as f64;
        let mut nearest = -1.0;
        for (limit, state) in rule.limits.iter().zip(body.held.states_mut()) {
            let recorded = algorithms::record(limit, state, at, now);
            next = next.max(recorded.next);
            if share(limit, recorded.rate) > nearest {
                (nearest, shown) = (share(limit, recorded.rate), recorded.rate);
            }
        }
    }
    body.tally.count(false, shown, bucket);
    next
}
