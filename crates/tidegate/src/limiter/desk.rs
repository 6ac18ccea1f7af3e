//! A door loop's place at the limiter.
//!
//! Each loop has its own, so that what it counts is not shared between cores. All three ways to
//! ask are here: a line, a batch of lines, and several keys at once.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::rules::Rule;
use tidegate_core::{Limit, Now, Op};

use super::catalog::{Catalog, creates};
use super::decision::{LIMITS_MAX, Opinion, Settled};
use super::{
    Answer, Basis, Delay, HeldKey, KEYS_MAX, LimitAnswer, Limiter, Line, TakenFrom, Unfit,
};
use crate::metrics::{Counted, Door};
use crate::stores::memory::{Address, Aim, Body, Bucket, Place, known_at};

/// How many decisions of a batch are prepared together: what they touch fits the nearest cache.
pub(super) const GROUP: usize = 64;
/// One decision or batch in this many is timed. A power of two.
const TIME_ONE_IN: u64 = 1024;

/// Where a door asks the limiter.
pub struct Desk {
    pub(super) limiter: Arc<Limiter>,
    pub(super) door: Door,
    pub(super) lane: usize,
}

/// Decisions of one rule that came out the same, one after another: counted in one go.
#[derive(Default)]
pub(super) struct Run {
    rule: Option<usize>,
    counted: Option<Counted>,
    decisions: u64,
}

impl Run {
    #[inline]
    pub(super) fn count(
        &mut self,
        desk: &Desk,
        catalog: &Catalog,
        rule: Option<usize>,
        counted: Counted,
    ) {
        if self.rule != rule || self.counted != Some(counted) {
            self.end(desk, catalog);
            *self = Run { rule, counted: Some(counted), decisions: 0 };
        }
        self.decisions += 1;
    }

    pub(super) fn end(&mut self, desk: &Desk, catalog: &Catalog) {
        if let Some(counted) = self.counted.take() {
            catalog.counts.add(desk.lane, self.rule, counted, self.decisions);
        }
    }
}

/// The same question about one key, several times.
struct Asked<'a> {
    catalog: &'a Catalog,
    position: usize,
    address: Address<'a>,
    op: Op,
    count: usize,
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.limiter.metrics.leave(self.lane);
    }
}

impl Desk {
    pub(super) fn new(limiter: Arc<Limiter>, door: Door) -> Self {
        let lane = limiter.metrics.lane(door);
        Self { limiter, door, lane }
    }

    /// The time, to be read once for each batch.
    #[must_use]
    pub fn now(&self) -> Now {
        self.limiter.clock.now()
    }

    /// The limiter behind the desk.
    #[must_use]
    pub fn limiter(&self) -> &Arc<Limiter> {
        &self.limiter
    }

    /// Decides on one key, in the few words that a text line has.
    pub fn line(&self, key: &[u8], op: Op, now: Now) -> Result<Line, Unfit> {
        asks_for_something(op)?;
        let aim = self.look_ahead(key);
        match op {
            // Almost all that is ever asked: the compiler makes a decision of its own of it.
            Op::Take(cost) => self.line_ahead(key, aim, Op::Take(cost), now),
            _ => self.line_ahead(key, aim, op, now),
        }
    }

    /// As [`Self::line`], at the moment of the call: the clock is read while memory is on its way.
    pub fn line_now(&self, key: &[u8], op: Op) -> Result<Line, Unfit> {
        asks_for_something(op)?;
        let aim = self.look_ahead(key);
        let now = self.now();
        match op {
            Op::Take(cost) => self.line_ahead(key, aim, Op::Take(cost), now),
            _ => self.line_ahead(key, aim, op, now),
        }
    }

    /// Sends for what is counted for a key, for a decision that is soon to come.
    #[inline]
    pub(crate) fn look_ahead(&self, key: &[u8]) -> Aim<'_> {
        let aim = self.limiter.memory().aim(key);
        aim.prefetch();
        aim
    }

    /// Looks ahead for a group of keys: first all lines of the index are sent for, then all slots,
    /// so that memory and its page tables answer for many of them at once. Decisions that were
    /// interleaved with this took longer, however far ahead they looked: whoever waits for a page
    /// table holds up all that comes after it.
    #[inline(always)]
    pub(super) fn look_ahead_all<'k>(
        &self,
        keys: impl Iterator<Item = &'k [u8]>,
    ) -> SmallVec<[Aim<'_>; GROUP]> {
        let mut aims: SmallVec<_> = keys.map(|key| self.look_ahead(key)).collect();
        aims.iter_mut().for_each(Aim::prefetch_slot);
        aims
    }

    #[inline(always)]
    fn line_ahead(&self, key: &[u8], mut aim: Aim<'_>, op: Op, now: Now) -> Result<Line, Unfit> {
        // The slot is on its way while the rule is looked up.
        aim.prefetch_slot();
        let catalog = self.limiter.catalog.load();
        let mut run = Run::default();
        let rule = catalog.find(key, op, false);
        let line = self.settle(&catalog, rule, key, &aim, op, (now, Bucket::of(now)), &mut run);
        run.end(self, &catalog);
        self.time(1, now);
        line
    }

    /// Decides on each key in turn, as [`Self::line`] would, looking up many at once.
    pub fn lines(&self, keys: &[&[u8]], op: Op, now: Now, out: &mut Vec<Result<Line, Unfit>>) {
        out.clear();
        if let Err(unfit) = asks_for_something(op) {
            out.extend(keys.iter().map(|_| Err(unfit)));
            return;
        }
        match op {
            Op::Take(cost) => self.lines_ahead(keys, Op::Take(cost), now, out),
            _ => self.lines_ahead(keys, op, now, out),
        }
    }

    #[inline(always)]
    fn lines_ahead(&self, keys: &[&[u8]], op: Op, now: Now, out: &mut Vec<Result<Line, Unfit>>) {
        let catalog = self.limiter.catalog.load();
        let mut run = Run::default();
        let moment = (now, Bucket::of(now));
        for keys in keys.chunks(GROUP) {
            let aims = self.look_ahead_all(keys.iter().copied());
            for (key, aim) in keys.iter().zip(&aims) {
                let rule = catalog.find(key, op, false);
                out.push(self.settle(&catalog, rule, key, aim, op, moment, &mut run));
            }
        }
        run.end(self, &catalog);
        self.time(keys.len(), now);
    }

    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "the parts of one decision, kept in registers")]
    fn settle(
        &self,
        catalog: &Catalog,
        rule: Result<Option<usize>, Unfit>,
        key: &[u8],
        aim: &Aim<'_>,
        op: Op,
        moment: (Now, Bucket),
        run: &mut Run,
    ) -> Result<Line, Unfit> {
        let rule = rule?;
        if let (Op::Take(cost), Some(position)) = (op, rule)
            && let Some(plain) = catalog.plain(position)
            && let Some(mut slot) = known_at(aim, plain.number, key)
        {
            let (over, rate, counted) = plain.take(&mut slot.body, cost, moment);
            drop(slot);
            run.count(self, catalog, rule, counted);
            let Limit { amount: limit, period, .. } = plain.limit;
            return Ok(Line { over, rate, limit, period });
        }
        self.settle_any(catalog, rule, key, aim.hash(), op, moment, run)
    }

    /// As [`Self::settle`], for all that is not one use of a known key under one limit.
    #[inline(never)]
    #[expect(clippy::too_many_arguments, reason = "as above")]
    fn settle_any(
        &self,
        catalog: &Catalog,
        rule: Option<usize>,
        key: &[u8],
        hash: u64,
        op: Op,
        moment: (Now, Bucket),
        run: &mut Run,
    ) -> Result<Line, Unfit> {
        let address =
            rule.and_then(|rule| catalog.address(self.limiter.memory(), rule, key, hash, op));
        let Some((position, address)) = rule.zip(address) else {
            return Ok(self.line_without_slot(catalog, rule, op, moment.0, run));
        };
        // Few rules have several limits: there is no reason to carry room for eight.
        let settled = match address.limits {
            1 => self.settle_limits::<1>(catalog, position, &address, op, moment),
            2 => self.settle_limits::<2>(catalog, position, &address, op, moment),
            _ => self.settle_limits::<LIMITS_MAX>(catalog, position, &address, op, moment),
        };
        if !matches!(op, Op::Peek(_)) {
            run.count(self, catalog, rule, settled.counted());
        }
        Ok(settled.line(catalog.rule(position)))
    }

    #[inline(always)]
    fn settle_limits<const N: usize>(
        &self,
        catalog: &Catalog,
        position: usize,
        address: &Address<'_>,
        op: Op,
        moment: (Now, Bucket),
    ) -> Settled {
        let rule = catalog.rule(position);
        let known = |body: &mut Body| {
            Settled::of(&Opinion::<N>::settled(rule, body, Place::Own, op, moment))
        };
        match self.limiter.memory().known(address, known) {
            Some(settled) => settled,
            None => self.settle_stranger::<N>(catalog, rule, address, op, moment),
        }
    }

    /// As [`Self::settle_limits`], for a key that may have to be given a slot first.
    #[cold]
    #[inline(never)]
    fn settle_stranger<const N: usize>(
        &self,
        catalog: &Catalog,
        rule: &Rule,
        address: &Address<'_>,
        op: Op,
        moment: (Now, Bucket),
    ) -> Settled {
        let (now, bucket) = moment;
        let opinion = self.limiter.memory().one(
            address,
            bucket,
            |body, pressed| catalog.dead(body, pressed, bucket, now),
            |body, place| Opinion::<N>::settled(rule, body, place, op, moment),
        );
        self.count_full(opinion.full());
        Settled::of(&opinion)
    }

    /// Decides `count` times on one key and says how long each of its callers must wait, in order:
    /// as many decisions, with one look for the key. Allocates nothing for a key that is known,
    /// unless what it remembers grows.
    pub fn delays(
        &self,
        key: &[u8],
        op: Op,
        count: usize,
        now: Now,
        out: &mut Vec<Delay>,
    ) -> Result<(), Unfit> {
        out.clear();
        asks_for_something(op)?;
        let memory = self.limiter.memory();
        let catalog = self.limiter.catalog.load();
        let found = catalog.find(key, op, false)?;
        let address =
            found.and_then(|rule| catalog.address(memory, rule, key, memory.hash(key), op));
        let mut run = Run::default();
        match found.zip(address) {
            None => {
                let delay = |_| self.delay_without_slot(&catalog, found, op, now, &mut run);
                out.extend((0..count).map(delay));
            }
            Some((position, address)) => {
                let asked = Asked { catalog: &catalog, position, address, op, count };
                match address.limits {
                    1 => self.delay_limits::<1>(&asked, now, &mut run, out),
                    _ => self.delay_limits::<LIMITS_MAX>(&asked, now, &mut run, out),
                }
            }
        }
        run.end(self, &catalog);
        self.time(count, now);
        Ok(())
    }

    fn delay_limits<const N: usize>(
        &self,
        asked: &Asked<'_>,
        now: Now,
        run: &mut Run,
        out: &mut Vec<Delay>,
    ) {
        let Asked { catalog, position, ref address, op, count } = *asked;
        let (rule, bucket) = (catalog.rule(position), Bucket::of(now));
        self.limiter.memory().one(
            address,
            bucket,
            |body, pressed| catalog.dead(body, pressed, bucket, now),
            |body, place| {
                for _ in 0..count {
                    let opinion = Opinion::<N>::settled(rule, body, place, op, (now, bucket));
                    out.push(opinion.delay(rule, body, op, now));
                    if creates(op) {
                        run.count(self, catalog, Some(position), opinion.counted());
                    }
                    self.count_full(opinion.full());
                }
            },
        );
    }

    /// Decides on all keys of a request, all or nothing, and says all there is to say.
    pub fn decide(&self, keys: &[&[u8]], op: Op, now: Now) -> Result<Answer, Unfit> {
        self.decide_all(keys, op, false, &[], now)
    }

    /// As [`Self::decide`], for a door that will tell when the use ends.
    pub fn decide_held(&self, keys: &[&[u8]], op: Op, now: Now) -> Result<Answer, Unfit> {
        self.decide_all(keys, op, true, &[], now)
    }

    /// Gives back uses in flight that were taken at `started`, by the keys that the answer said
    /// hold some, to where it said that they were taken from.
    pub fn release(&self, held: &[(&[u8], TakenFrom)], cost: u64, started: Now, now: Now) {
        if !self.is_remote() {
            return self.release_here(held, cost, started, now);
        }
        self.release_elsewhere(held, cost, started, now);
        let elsewhere = |(_, from): &(_, TakenFrom)| *from == TakenFrom::Elsewhere;
        // What was taken here while the store was away.
        let here: Vec<_> = held.iter().copied().filter(|held| !elsewhere(held)).collect();
        if !here.is_empty() {
            self.release_here(&here, cost, started, now);
        }
    }

    fn release_here(&self, held: &[(&[u8], TakenFrom)], cost: u64, started: Now, now: Now) {
        if let [(key, TakenFrom::Slot)] = *held
            && self.release_one(key, Op::Release { cost, started }, now)
        {
            return;
        }
        let (keys, from): (Vec<&[u8]>, Vec<TakenFrom>) = held.iter().copied().unzip();
        let op = Op::Release { cost, started };
        // What was fit to be taken is fit to be given back; a key that a reload has made
        // unlimited has nothing to give.
        let _ = self.decide_all(&keys, op, true, &from, now);
    }

    /// As [`Self::release`], for what almost every end of a use is: one key with a slot of its
    /// own. Allocates nothing. `false`, and nothing done, where it is not so simple.
    fn release_one(&self, key: &[u8], op: Op, now: Now) -> bool {
        let memory = self.limiter.memory();
        let catalog = self.limiter.catalog.load();
        let Ok(Some(position)) = catalog.find(key, op, true) else { return false };
        let Some(address) = catalog.address(memory, position, key, memory.hash(key), op) else {
            return false;
        };
        let (rule, moment) = (catalog.rule(position), (now, Bucket::of(now)));
        let step = |body: &mut Body| {
            Opinion::<LIMITS_MAX>::settled(rule, body, Place::Own, op, moment);
        };
        let released = memory.found(&address, step).is_some();
        if released {
            self.limiter.ring(&address);
        }
        released
    }

    pub(super) fn decide_all(
        &self,
        keys: &[&[u8]],
        op: Op,
        can_end: bool,
        from: &[TakenFrom],
        now: Now,
    ) -> Result<Answer, Unfit> {
        if keys.is_empty() || keys.len() > KEYS_MAX {
            return Err(Unfit::TooManyKeys);
        }
        asks_for_something(op)?;
        let catalog = self.limiter.catalog.load();
        let mut places: Vec<(usize, usize)> = Vec::with_capacity(keys.len());
        let mut addresses: Vec<Address<'_>> = Vec::with_capacity(keys.len());
        let mut unlimited: Vec<Option<usize>> = Vec::new();
        let mut denied = 0;
        for (key, bytes) in keys.iter().enumerate() {
            let memory = self.limiter.memory();
            let rule = catalog.find(bytes, op, can_end)?;
            let address =
                rule.and_then(|rule| catalog.address(memory, rule, bytes, memory.hash(bytes), op));
            let Some((rule, mut address)) = rule.zip(address) else {
                match rule.filter(|rule| catalog.denies(*rule)) {
                    Some(rule) => {
                        places.insert(0, (key, rule));
                        denied += 1;
                    }
                    None => unlimited.push(rule),
                }
                continue;
            };
            address.gives_back = from.get(key).copied();
            // The same count twice in one request is taken from once.
            if !addresses.iter().any(|a| (a.rule, a.name) == (address.rule, address.name)) {
                places.push((key, rule));
                addresses.push(address);
            }
        }
        if catalog.refuses_all(&places[..denied], op) {
            places.truncate(denied);
            addresses.clear();
        }
        let bucket = Bucket::of(now);
        let dead = |body: &Body, pressed: bool| catalog.dead(body, pressed, bucket, now);
        let (answer, notes) = self.limiter.memory().many(&addresses, bucket, dead, |seats| {
            let seats = seats.iter_mut().map(|seat| (&mut seat.body, seat.place)).collect();
            judge_all(&catalog, &places, seats, op, bucket, now)
        });
        Self::count_all(self.lane, &self.limiter, &catalog, op, &notes);
        for position in unlimited.into_iter().filter(|_| answer.allowed) {
            self.count(&catalog, op, position, Counted::Allow);
        }
        if matches!(op, Op::Release { .. } | Op::Refund(_)) {
            // The locks are free again: whoever is woken finds what was given back.
            addresses.iter().for_each(|address| self.limiter.ring(address));
        }
        self.time(1, now);
        Ok(answer)
    }

    /// Counts what was decided on the keys of a request.
    pub(super) fn count_all(
        lane: usize,
        limiter: &Limiter,
        catalog: &Catalog,
        op: Op,
        notes: &[Note],
    ) {
        for note in notes.iter().filter(|_| creates(op)) {
            catalog.counts.add(lane, Some(note.position), note.counted, 1);
            if let Some(action) = note.full {
                limiter.metrics.table_full(action);
            }
        }
    }

    fn count(&self, catalog: &Catalog, op: Op, rule: Option<usize>, counted: Counted) {
        if creates(op) {
            catalog.counts.add(self.lane, rule, counted, 1);
        }
    }

    pub(super) fn count_full(&self, action: Option<&'static str>) {
        if let Some(action) = action {
            self.limiter.metrics.table_full(action);
        }
    }

    /// Now and then, notes how long `decisions` that began at `start` took.
    #[inline]
    pub(super) fn time(&self, decisions: usize, start: Now) {
        // The low bits of a nanosecond clock are as good as dice, and cost nothing.
        if start.mono & (TIME_ONE_IN - 1) == 0 && decisions > 0 {
            let spent = self.now().mono.saturating_sub(start.mono);
            let seconds = spent as f64 / decisions as f64 / 1e9;
            self.limiter.metrics.decision_seconds(self.door, seconds);
        }
    }
}

/// Decides on all counts of a request, all or nothing: what is said, and what is to be counted.
/// `places` tells of each count which of the request's keys and which rule it is of; those that
/// come before the counts in `seats` are of rules that let nothing pass.
pub(super) fn judge_all(
    catalog: &Catalog,
    places: &[(usize, usize)],
    seats: Vec<(&mut Body, Place)>,
    op: Op,
    bucket: Bucket,
    now: Now,
) -> (Answer, Vec<Note>) {
    let rule = |at: usize| -> &Rule { catalog.rule(places[at].1) };
    let mut denied: Vec<Body> = Vec::new();
    denied.resize_with(places.len() - seats.len(), Body::default);
    let mut seats = seats;
    if !denied.is_empty() {
        seats.splice(0..0, denied.iter_mut().map(|body| (body, Place::Own)));
    }
    let opinions: Vec<Opinion<LIMITS_MAX>> = seats
        .iter()
        .enumerate()
        .map(|(at, (body, place))| Opinion::form(rule(at), body, *place, op, now))
        .collect();
    let refusing = opinions.iter().position(|opinion| opinion.refuses());
    let mut answer = Answer {
        allowed: refusing.is_none(),
        at: now,
        delay: 0,
        refused_by: refusing.map(|at| rule(at).name.clone()),
        held: Vec::new(),
        limits: Vec::new(),
    };
    let mut notes = Vec::with_capacity(opinions.len());
    for (at, (opinion, (body, place))) in opinions.iter().zip(seats).enumerate() {
        let (key, position) = places[at];
        opinion.apply(rule(at), body, op, answer.allowed, bucket, now);
        for (limit, verdict) in opinion.verdicts(rule(at), body, op, now) {
            if !rule(at).shadow {
                answer.delay = answer.delay.max(verdict.delay);
            }
            let (rule, limit) = (rule(at).name.clone(), *limit);
            answer.limits.push(LimitAnswer { key, rule, limit, verdict, basis: Basis::Counts });
        }
        let ends = rule(at).limits.iter().any(|limit| limit.ends());
        if answer.allowed && ends && opinion.takes() && creates(op) {
            let shared = place == Place::Shared;
            let from = if shared { TakenFrom::Shared } else { TakenFrom::Slot };
            answer.held.push(HeldKey { key, from });
        }
        if answer.allowed || opinion.over {
            notes.push(Note { position, counted: opinion.counted(), full: opinion.full() });
        }
    }
    (answer, notes)
}

/// A decision on one count of a request, to be counted.
pub(super) struct Note {
    pub(super) position: usize,
    pub(super) counted: Counted,
    /// What was done because the table is full.
    pub(super) full: Option<&'static str>,
}

pub(super) fn asks_for_something(op: Op) -> Result<(), Unfit> {
    match op {
        Op::Peek(0) | Op::Take(0) | Op::TakeUpTo(0) => Err(Unfit::CostZero),
        _ => Ok(()),
    }
}
