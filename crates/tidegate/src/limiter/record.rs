//! Uses that have already happened, many at once: each is written down, and when the next of its
//! key may come is told.
//!
//! Nothing is refused here. A use that is told late is judged as of when it should have been told,
//! so that it delays nobody whom it would not have delayed then.
//!
//! The keys of a batch lie in one buffer that is used again, and their slots are asked for ahead,
//! as those of a batch of lines are.

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
    /// How long until the next use of the key is allowed, from when the batch was handed in;
    /// nothing, if it is then.
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
    when: When,
}

/// When a use happened, and how late it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct When {
    /// By the clock that limits decide by; may lie ahead, for a use that was delayed.
    pub at: Nanos,
    /// How long ago it should have been told.
    pub late: Nanos,
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

    /// Adds a use of the key `<domain> <identifier>`.
    ///
    /// # Errors
    /// If the key is too long: nothing is added.
    #[inline]
    pub fn add(&mut self, domain: &[u8], identifier: &[u8], when: When) -> Result<(), KeyTooLong> {
        KeyBuilder::behind(&mut self.bytes, domain).word(identifier).finish()?;
        self.uses.push(Use { end: self.bytes.len(), when });
        Ok(())
    }

    /// What was told of each use, in order.
    #[must_use]
    pub fn told(&self) -> &[Told] {
        &self.told
    }

    /// The uses: the key of each, and when it happened.
    pub(crate) fn uses(&self) -> impl Iterator<Item = (&[u8], When)> {
        self.uses.iter().enumerate().map(|(number, one)| (self.key(number), one.when))
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
                let (key, when) = (recording.key(number), recording.uses[number].when);
                told.push(self.record_one(&catalog, key, aim.hash(), when, moment, &mut run));
            }
        }
        run.end(self, &catalog);
        self.time(uses, now);
        recording.told = told;
    }

    /// As [`Self::record`], for one use whose count elsewhere cannot be had.
    pub(super) fn record_here(&self, key: &[u8], when: When, now: Now) -> Told {
        let catalog = self.limiter.catalog.load();
        let hash = self.limiter.memory().hash(key);
        let mut run = Run::default();
        let told = self.record_one(&catalog, key, hash, when, (now, Bucket::of(now)), &mut run);
        run.end(self, &catalog);
        told
    }

    #[inline(always)]
    fn record_one(
        &self,
        catalog: &Catalog,
        key: &[u8],
        hash: u64,
        when: When,
        moment: (Now, Bucket),
        run: &mut Run,
    ) -> Told {
        let op = Op::Record { at: when.at };
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
                let known = |body: &mut Body| write(rule, body, when, moment);
                match memory.known_growing(&address, known) {
                    Some(next) => next,
                    None => self.record_stranger(catalog, rule, &address, when, moment),
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
        when: When,
        moment: (Now, Bucket),
    ) -> Nanos {
        let (now, bucket) = moment;
        let dead = |body: &Body, pressed: bool| catalog.dead(body, pressed, bucket, now);
        let step = |body: &mut Body, place: Place| {
            self.count_full(place.when_full());
            // A use that nobody could count delays nobody: the table's fault, not the key's.
            if place.counts() { write(rule, body, when, moment) } else { 0 }
        };
        self.limiter.memory().one(address, bucket, dead, step)
    }
}

/// Writes a use down in every limit of its rule; the last that lets the next go decides. What is
/// told counts from now.
#[inline(always)]
pub(super) fn write(
    rule: &Rule,
    body: &mut Body,
    When { at, late }: When,
    (now, bucket): (Now, Bucket),
) -> Nanos {
    let now = now.before(late);
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
    next.saturating_sub(late)
}
