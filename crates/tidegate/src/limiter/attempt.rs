//! Take if it may, and otherwise leave no trace: what those ask who will ask again.
//!
//! A request that waits is tried many times and counted once. So nothing is written or counted
//! here unless the use is taken; whoever gives up is counted by [`Desk::refuse`].

use tidegate_core::limit::Algorithm;
use tidegate_core::rules::Rule;
use tidegate_core::time::SECOND;
use tidegate_core::{Nanos, Now, Op};

use super::catalog::Catalog;
use super::decision::{LIMITS_MAX, Opinion};
use super::{Answer, Desk, Limiter, TakenFrom, Unfit};
use crate::metrics::Counted;
use crate::stores::memory::{Address, Aim, Body, Bucket, Place, known_at};

/// When a key that finds the table full, and may not share, is worth another try.
const RETRY_WHEN_FULL: Nanos = SECOND;
/// The number of no rule: for keys that nothing limits.
const NO_RULE: u32 = u32::MAX;

/// A use that is wanted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Take<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) cost: u64,
    /// Whether the caller will tell when the use ends.
    pub(crate) can_end: bool,
    /// The longest wait that may be booked, where the algorithm books.
    pub(crate) booking_max: Nanos,
    /// Whether the caller has waited already: it is counted as delayed then.
    pub(crate) waited: bool,
}

/// What came of a try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tried {
    /// It was taken, and counted.
    Taken(Taken),
    /// Not now. Worth another try after this long; [`Nanos::MAX`] if time alone will not help.
    Later(Nanos),
    /// It would have been booked for later than the caller can wait, or nothing passes at all.
    TooLong,
    /// Others wait for the same count.
    Behind,
}

/// A use that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    /// Where its end must give it back, if it must.
    pub(crate) held: Option<TakenFrom>,
    /// It may start only after this long.
    pub(crate) booked: Nanos,
    /// When its window began on the monotonic clock; told only to those who have waited.
    pub(crate) window_start: Option<Nanos>,
}

/// What came of a try at a count that lies elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TakeAnswer {
    pub(crate) tried: Tried,
    /// The time by which it was decided.
    pub(crate) at: Now,
    /// It was decided without the store: nothing was counted there.
    pub(crate) degraded: bool,
    /// When the first of the windows ends that the use was counted in, on this process' monotonic
    /// clock: later it would start in a window that does not know of it. [`Nanos::MAX`] if it was
    /// counted in none.
    pub(crate) window_ends: Nanos,
}

impl TakeAnswer {
    /// An answer that the store had no part in.
    pub(crate) fn made_here(tried: Tried, at: Now, degraded: bool) -> Self {
        Self { tried, at, degraded, window_ends: Nanos::MAX }
    }
}

/// What uses are taken from: a key's own count, or the one that all keys of a rule share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Count<'a> {
    pub(crate) rule: u32,
    /// Empty for a count that keys share.
    pub(crate) name: &'a [u8],
    /// The same for equal counts.
    pub(crate) hash: u64,
}

/// What became of a try at one body.
pub(super) struct Attempt {
    pub(super) went: Went,
    place: Place,
    /// The rule is against it: if it was taken all the same, the rule is in shadow.
    pub(super) over: bool,
}

pub(super) enum Went {
    Taken { booked: Nanos },
    Later(Nanos),
    TooLong,
}

impl Attempt {
    /// A key with a slot of its own was allowed what it wanted.
    const ALLOWED: Self = Self { went: Went::Taken { booked: 0 }, place: Place::Own, over: false };

    #[inline(never)]
    pub(super) fn of(
        rule: &Rule,
        body: &mut Body,
        place: Place,
        take: &Take<'_>,
        (now, bucket): (Now, Bucket),
    ) -> Self {
        let op = Op::Take(take.cost);
        let opinion = Opinion::<LIMITS_MAX>::form(rule, body, place, op, now);
        let attempt = |went| Self { went, place, over: opinion.over };
        if !opinion.refuses() {
            opinion.apply(rule, body, op, true, bucket, now);
            return attempt(Went::Taken { booked: 0 });
        }
        if place == Place::Denied {
            return attempt(Went::Later(RETRY_WHEN_FULL));
        }
        match opinion.booking(rule) {
            Some(booked) if booked <= take.booking_max => {
                opinion.book(rule, body, op, bucket, now);
                Self { went: Went::Taken { booked }, place, over: false }
            }
            Some(_) => attempt(Went::TooLong),
            None => attempt(Went::Later(opinion.until_worth_a_try(rule, body, take.cost, now))),
        }
    }
}

impl Desk {
    /// Takes a use if `free` says that nobody waits for its count and every limit agrees.
    /// Otherwise nothing is written and nothing counted.
    pub(crate) fn try_take_here(
        &self,
        take: &Take<'_>,
        now: Now,
        free: impl FnOnce(&Count<'_>) -> bool,
    ) -> Result<Tried, Unfit> {
        self.try_take_ahead(take, self.look_ahead(take.key), now, free)
    }

    /// As [`Self::try_take_here`], with its key looked ahead for.
    pub(crate) fn try_take_ahead(
        &self,
        take: &Take<'_>,
        mut aim: Aim<'_>,
        now: Now,
        free: impl FnOnce(&Count<'_>) -> bool,
    ) -> Result<Tried, Unfit> {
        let op = Op::Take(take.cost);
        if take.cost == 0 {
            return Err(Unfit::CostZero);
        }
        aim.prefetch_slot();
        let catalog = self.limiter.catalog.load();
        let found = catalog.find(take.key, op, take.can_end)?;
        let moment = (now, Bucket::of(now));
        // The empty key lies where its rule's number says.
        if let Some(position) = found.filter(|_| !take.key.is_empty())
            && let Some(plain) = catalog.plain(position)
        {
            if !free(&Count { rule: plain.number, name: take.key, hash: aim.hash() }) {
                return Ok(Tried::Behind);
            }
            let known = known_at(&aim, plain.number, take.key);
            if known.is_some_and(|mut slot| plain.try_take(&mut slot.body, take.cost, moment)) {
                self.time(1, now);
                return Ok(self.tried(&catalog, position, &Attempt::ALLOWED, take, now));
            }
            // Nobody was in line, and this one is still the first.
            return Ok(self.try_any(&catalog, found, aim.hash(), take, moment, |_| true));
        }
        Ok(self.try_any(&catalog, found, aim.hash(), take, moment, free))
    }

    /// As [`Self::try_take_ahead`], for all that is not a use of a known key under one limit that
    /// is allowed.
    #[inline(never)]
    fn try_any(
        &self,
        catalog: &Catalog,
        found: Option<usize>,
        hash: u64,
        take: &Take<'_>,
        moment: (Now, Bucket),
        free: impl FnOnce(&Count<'_>) -> bool,
    ) -> Tried {
        let (memory, op) = (self.limiter.memory(), Op::Take(take.cost));
        let address = found.and_then(|at| catalog.address(memory, at, take.key, hash, op));
        let Some((position, address)) = found.zip(address) else {
            return self.try_without_slot(catalog, found, take, moment.0);
        };
        if !free(&Count::of(&address)) {
            return Tried::Behind;
        }
        let rule = catalog.rule(position);
        let known = |body: &mut Body| Attempt::of(rule, body, Place::Own, take, moment);
        let attempt = match memory.known(&address, known) {
            Some(attempt) => attempt,
            None => self.attempt_stranger(catalog, rule, &address, take, moment),
        };
        self.time(1, moment.0);
        self.tried(catalog, position, &attempt, take, moment.0)
    }

    /// Counts an attempt if it took something, and says what came of it.
    #[inline(always)]
    fn tried(
        &self,
        catalog: &Catalog,
        position: usize,
        attempt: &Attempt,
        take: &Take<'_>,
        now: Now,
    ) -> Tried {
        match attempt.went {
            Went::Taken { booked } => {
                let delayed = take.waited || booked > 0;
                let counted = match attempt.over {
                    true => Counted::Shadow,
                    false if delayed => Counted::Delay,
                    false => Counted::Allow,
                };
                catalog.counts.add(self.lane, Some(position), counted, 1);
                let held = held(catalog, position, attempt);
                let rule = catalog.rule(position);
                let window_start = take.waited.then(|| window_start(rule, now)).flatten();
                Tried::Taken(Taken { held, booked, window_start })
            }
            Went::Later(delay) => Tried::Later(delay),
            Went::TooLong => Tried::TooLong,
        }
    }

    /// An attempt at a key that may have to be given a slot first.
    #[cold]
    #[inline(never)]
    fn attempt_stranger(
        &self,
        catalog: &Catalog,
        rule: &Rule,
        address: &Address<'_>,
        take: &Take<'_>,
        (now, bucket): (Now, Bucket),
    ) -> Attempt {
        let attempt = self.limiter.memory().one(
            address,
            bucket,
            |body, pressed| catalog.dead(body, pressed, bucket, now),
            |body, place| Attempt::of(rule, body, place, take, (now, bucket)),
        );
        if matches!(attempt.went, Went::Taken { .. }) {
            self.count_full(attempt.place.when_full());
        }
        attempt
    }

    /// Whether a use of this cost could ever be had here.
    pub(crate) fn check_fit(&self, key: &[u8], cost: u64, can_end: bool) -> Result<(), Unfit> {
        if cost == 0 {
            return Err(Unfit::CostZero);
        }
        self.limiter.catalog.load().find(key, Op::Take(cost), can_end).map(|_| ())
    }

    /// Turns a request away that was tried and will not be tried again. It is counted as refused,
    /// once, and the answer says why and when it would be worth to come back.
    pub fn refuse(&self, key: &[u8], cost: u64, now: Now) -> Result<Answer, Unfit> {
        let op = Op::Peek(cost);
        let mut answer = self.decide_held(&[key], op, now)?;
        let (catalog, memory) = (self.limiter.catalog.load(), self.limiter.memory());
        let rule = catalog.find(key, op, true)?;
        catalog.counts.add(self.lane, rule, Counted::Refuse, 1);
        if let Some(address) = catalog.slot_of(memory, key) {
            let bucket = Bucket::of(now);
            let rate = answer.limits.iter().fold(0.0, |rate: f64, l| rate.max(l.verdict.rate));
            memory.one(
                &address,
                bucket,
                |body, pressed| catalog.dead(body, pressed, bucket, now),
                |body, _| body.tally.count(true, rate, bucket),
            );
        }
        answer.allowed = false;
        if answer.refused_by.is_none() {
            answer.refused_by = rule.map(|rule| catalog.rule(rule).name.clone());
        }
        Ok(answer)
    }
}

impl<'a> Count<'a> {
    #[inline]
    pub(super) fn of(address: &Address<'a>) -> Self {
        Self { rule: address.rule, name: address.name, hash: address.hash }
    }
}

impl Limiter {
    /// What uses of `key` are taken from under the rules in force.
    pub(crate) fn count_of<'k>(&self, key: &'k [u8]) -> Count<'k> {
        let address = self.catalog.load().slot_of(self.memory(), key);
        let unlimited = || Count { rule: NO_RULE, name: key, hash: self.memory().hash(key) };
        address.map_or_else(unlimited, |address| Count::of(&address))
    }
}

fn held(catalog: &Catalog, position: usize, attempt: &Attempt) -> Option<TakenFrom> {
    if !catalog.in_flight(position) || attempt.over || !attempt.place.counts() {
        return None;
    }
    Some(if attempt.place == Place::Shared { TakenFrom::Shared } else { TakenFrom::Slot })
}

/// When the newest of the rule's windows began that only time opens. Uses in flight per window end
/// in the middle of one, too.
fn window_start(rule: &Rule, now: Now) -> Option<Nanos> {
    let windows = rule.limits.iter().filter(|limit| limit.algorithm == Algorithm::FixedWindow);
    windows.map(|limit| now.mono.saturating_sub(now.unix % limit.period)).max()
}
