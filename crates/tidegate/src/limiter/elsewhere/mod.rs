//! Decisions on counts that lie in a remote store: the same steps, told later.
//!
//! Whoever asks goes on at once and is told by a callback, on the store's thread. Which steps these
//! are, and what a failure of the store means, is in `steps`.

mod steps;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use tidegate_core::{Now, Op};
use tokio::sync::oneshot;

use self::steps::{Decide, GiveBack, Origin, RETRY_WHEN_AWAY, Record, Tell, TryTake};
use super::catalog::{Catalog, Elsewhere};
use super::desk::asks_for_something;
use super::{
    Answer, Count, Delay, Desk, KEYS_MAX, LimitAnswer, Limiter, Line, Take, TakeAnswer, TakenFrom,
    Told, Tried, Unfit, When,
};
use crate::metrics::{Counted, Door};
use crate::stores::remote::Remote;
use crate::stores::remote::job::{Job, Kind, Slot, Step, Trouble};
use crate::stores::remote::settings::Settings;

impl Limiter {
    /// Keeps counts elsewhere from now on. Called once, before the first decision.
    ///
    /// # Errors
    /// What the settings lack.
    pub fn keep_elsewhere(self: &Arc<Self>, settings: &Settings) -> Result<(), String> {
        let limiter = Arc::downgrade(self);
        let freed = move |name: &[u8]| {
            if let Some(limiter) = limiter.upgrade() {
                limiter.freed_elsewhere(name);
            }
        };
        let remote = Remote::start(settings, self.clock.clone(), self.metrics.clone(), freed)?;
        let _ = self.remote.set(remote);
        let mut number = self.numbers.lock();
        let before = self.catalog.load_full();
        let rules = (**before.set()).clone();
        let counts = before.counts.clone();
        let catalog = Catalog::new(rules, Some(&before), &mut number, counts, self.prefix());
        self.catalog.store(Arc::new(catalog));
        Ok(())
    }

    pub(super) fn prefix(&self) -> Option<&str> {
        self.remote.get().map(Remote::prefix)
    }

    /// Whether counts lie elsewhere.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        self.remote.get().is_some()
    }

    /// Why the store is not asked, if it is not.
    #[must_use]
    pub fn store_away(&self) -> Option<String> {
        self.remote.get().and_then(Remote::away)
    }

    /// Waits until a remote store has answered once, or its `start_timeout` has passed; not at
    /// all where counts lie in memory.
    pub async fn store_started(&self) {
        if let Some(remote) = self.remote.get() {
            remote.started().await;
        }
    }

    /// Forgets one key wherever it is counted. `false` if it was not remembered.
    ///
    /// # Errors
    /// Why the store did not forget it.
    pub async fn forget(&self, key: &[u8]) -> Result<bool, String> {
        let here = self.reset(key);
        let Some(remote) = self.remote.get() else { return Ok(here) };
        let found = self.catalog.load().find_elsewhere(key, Op::Peek(0));
        let Some((_, slot)) = found else { return Ok(here) };
        let gone = remote.remove(slot.name).await.map_err(|fault| fault.to_string())?;
        if let Some(bell) = self.bell.get() {
            bell.freed(&self.count_of(key));
        }
        Ok(gone || here)
    }

    /// Gives back what is to be given back, and leaves the store.
    pub async fn close(&self) {
        if let Some(remote) = self.remote.get() {
            remote.close().await;
        }
    }

    /// Something was given back to the count of this name by another node.
    fn freed_elsewhere(&self, name: &[u8]) {
        let Some(bell) = self.bell.get() else { return };
        if name.is_empty() {
            return bell.renewed(self);
        }
        let (catalog, memory) = (self.catalog.load(), self.memory());
        let key = |(position, at): (usize, &Elsewhere)| Some((position, at.prefix.key(name)?));
        if let Some((position, key)) = catalog.all_elsewhere().find_map(key)
            && let hash = memory.hash(&key)
            && let Some(address) = catalog.address(memory, position, &key, hash, Op::Peek(0))
        {
            bell.freed(&Count::of(&address));
        }
    }
}

impl Desk {
    /// Whether decisions are made in a store that lies elsewhere, and told later.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        self.limiter.is_remote()
    }

    /// Decides on all keys of a request, here or elsewhere.
    ///
    /// # Errors
    /// When it cannot be decided at all.
    pub async fn decided(
        &self,
        keys: &[&[u8]],
        op: Op,
        can_end: bool,
        now: Now,
    ) -> Result<Answer, Unfit> {
        if !self.is_remote() {
            return self.decide_all(keys, op, can_end, &[], now);
        }
        let (told, answer) = oneshot::channel();
        self.ask(keys, op, can_end, now, move |answer| drop(told.send(answer)))?;
        Ok(answer.await.unwrap_or_else(|_| self.shut()))
    }

    /// What is said when the store's thread has ended with the process.
    fn shut(&self) -> Answer {
        let (held, limits) = (Vec::new(), Vec::new());
        Answer {
            allowed: false,
            at: self.now(),
            delay: RETRY_WHEN_AWAY,
            refused_by: None,
            held,
            limits,
        }
    }

    /// Asks the store elsewhere for a decision on all keys of a request. `tell` is told, perhaps
    /// before this returns.
    ///
    /// # Errors
    /// When it cannot be decided at all: nobody is told.
    pub fn ask(
        &self,
        keys: &[&[u8]],
        op: Op,
        can_end: bool,
        now: Now,
        tell: impl FnOnce(Answer) + Send + 'static,
    ) -> Result<(), Unfit> {
        let (mut step, slots) = self.decision(keys, op, can_end, now)?;
        step.tell = Some(Box::new(tell));
        if slots.is_empty() {
            step.run(&mut [], now);
            Box::new(step).end(Ok(now));
            return Ok(());
        }
        self.submit(slots, Box::new(step), Kind::Take, now);
        Ok(())
    }

    /// As [`Self::ask`], for a door that has no room to keep one more request pending: the store is
    /// not asked, and the rules say what that means.
    ///
    /// # Errors
    /// When it cannot be decided at all.
    pub(crate) fn answer_crowded(
        &self,
        keys: &[&[u8]],
        op: Op,
        can_end: bool,
        now: Now,
    ) -> Result<Answer, Unfit> {
        let (mut step, slots) = self.decision(keys, op, can_end, now)?;
        if slots.is_empty() {
            return Ok(step.without_counts(now));
        }
        Ok(step.without_store(&Trouble::Crowded))
    }

    /// A decision on all keys of a request that nobody is told of yet, and its counts.
    fn decision(
        &self,
        keys: &[&[u8]],
        op: Op,
        can_end: bool,
        now: Now,
    ) -> Result<(Decide, Vec<Slot>), Unfit> {
        if keys.is_empty() || keys.len() > KEYS_MAX {
            return Err(Unfit::TooManyKeys);
        }
        asks_for_something(op)?;
        let origin = Origin::of(self, now);
        let (mut places, mut slots, mut unlimited) = (Vec::new(), Vec::<Slot>::new(), Vec::new());
        let mut denied = 0;
        for (key, bytes) in keys.iter().enumerate() {
            let rule = origin.catalog.find(bytes, op, can_end)?;
            let slot = rule.and_then(|rule| origin.catalog.count_elsewhere(rule, bytes));
            let Some((rule, slot)) = rule.zip(slot) else {
                match rule.filter(|rule| origin.catalog.denies(*rule)) {
                    Some(rule) => {
                        places.insert(0, (key, rule));
                        denied += 1;
                    }
                    None => unlimited.push(rule),
                }
                continue;
            };
            // The same count twice in one request is taken from once.
            if !slots.iter().any(|other| other.name == slot.name) {
                places.push((key, rule));
                slots.push(slot);
            }
        }
        if origin.catalog.refuses_all(&places[..denied], op) {
            places.truncate(denied);
            slots.clear();
        }
        let keys = keys.iter().map(|key| key.to_vec()).collect();
        let (decided, tell) = (None, None);
        Ok((Decide { origin, keys, places, denied, unlimited, op, decided, tell }, slots))
    }

    /// Asks the store elsewhere for a use, for one that waits.
    pub(crate) fn ask_take(
        &self,
        take: &Take<'_>,
        now: Now,
        tell: impl FnOnce(TakeAnswer) + Send + 'static,
    ) -> Result<(), Unfit> {
        let origin = Origin::of(self, now);
        let found = origin.catalog.find(take.key, Op::Take(take.cost), take.can_end)?;
        let slot = found.and_then(|rule| origin.catalog.count_elsewhere(rule, take.key));
        let Some((position, slot)) = found.zip(slot) else {
            let tried = self.try_without_slot(&origin.catalog, found, take, now);
            tell(TakeAnswer::made_here(tried, now, false));
            return Ok(());
        };
        let Take { key, cost, can_end, booking_max, waited } = *take;
        let step = TryTake {
            origin,
            key: key.to_vec(),
            position,
            cost,
            can_end,
            booking_max,
            waited,
            attempt: None,
            ran: now.mono,
            tell: Some(Box::new(tell)),
        };
        self.submit(vec![slot], Box::new(step), Kind::Take, now);
        Ok(())
    }

    /// Has a use written down elsewhere.
    pub(crate) fn ask_record(
        &self,
        key: &[u8],
        when: When,
        now: Now,
        tell: impl FnOnce(Told) + Send + 'static,
    ) {
        let origin = Origin::of(self, now);
        let found = origin.catalog.find(key, Op::Record { at: when.at }, false);
        let position = match found {
            Ok(Some(position)) => position,
            Ok(None) => return tell(Told::Unknown),
            Err(unfit) => return tell(Told::Unfit(unfit)),
        };
        let slot = origin.catalog.count_elsewhere(position, key);
        let ago = now.mono.wrapping_sub(when.at) as i64;
        let late = when.late;
        let tell: Tell<Told> = Some(Box::new(tell));
        let mut step = Record { origin, key: key.to_vec(), position, ago, late, next: None, tell };
        let Some(slot) = slot else {
            step.next = Some(step.origin.catalog.next_without_slot(position));
            return Box::new(step).end(Ok(now));
        };
        self.submit(vec![slot], Box::new(step), Kind::Take, now);
    }

    /// As [`Desk::release`], for what was taken elsewhere: it is tried until it is done.
    pub(super) fn release_elsewhere(
        &self,
        held: &[(&[u8], TakenFrom)],
        cost: u64,
        started: Now,
        now: Now,
    ) {
        let op = Op::Release { cost, started };
        for (key, _) in held.iter().filter(|(_, from)| *from == TakenFrom::Elsewhere) {
            self.give_back(key, op, (started, true), Kind::GiveBack, now);
        }
    }

    fn give_back(&self, key: &[u8], op: Op, taken: (Now, bool), kind: Kind, now: Now) {
        let origin = Origin::of(self, now);
        let Some((position, slot)) = origin.catalog.find_elsewhere(key, op) else { return };
        let step = GiveBack { origin, position, op, taken, key: Some(key.to_vec()) };
        self.submit(vec![slot], Box::new(step), kind, now);
    }

    /// The door that asks here.
    pub(crate) fn door(&self) -> Door {
        self.door
    }

    /// Gives back a use, if one was taken elsewhere, that is not made: its client has left, or its
    /// window has ended. What was booked stays; what the store has not counted it is not told.
    pub(crate) fn take_back(&self, key: &[u8], cost: u64, answer: TakeAnswer) {
        let TakeAnswer { tried: Tried::Taken(taken), at, degraded, .. } = answer else { return };
        if let Some(from) = taken.held {
            self.release(&[(key, from)], cost, at, self.now());
        }
        if taken.booked == 0 && !degraded {
            let in_flight = taken.held.is_none();
            self.give_back(key, Op::Refund(cost), (at, in_flight), Kind::Refund, self.now());
        }
    }

    /// As [`Desk::refuse`], elsewhere: `tell` is told what a look at the key says.
    pub(crate) fn refuse_elsewhere(
        &self,
        key: &[u8],
        cost: u64,
        now: Now,
        tell: impl FnOnce(Answer) + Send + 'static,
    ) -> Result<(), Unfit> {
        let origin = Origin::of(self, now);
        let rule = origin.catalog.find(key, Op::Peek(cost), true)?;
        let refused_by = rule.map(|rule| origin.rule(rule).name.clone());
        origin.catalog.counts.add(self.lane, rule, Counted::Refuse, 1);
        let owned = key.to_vec();
        self.ask(&[key], Op::Peek(cost), true, now, move |mut answer| {
            if let Some(position) = rule {
                if answer.is_degraded() {
                    origin.catalog.counts.add_degraded(origin.lane, position);
                }
                let rates = answer.limits.iter().map(|limit| limit.verdict.rate);
                origin.note(position, &owned, true, rates.fold(0.0, f64::max));
            }
            answer.allowed = false;
            answer.refused_by = answer.refused_by.or(refused_by);
            tell(answer);
        })
    }

    fn submit(&self, slots: Vec<Slot>, step: Box<dyn Step>, kind: Kind, now: Now) {
        let Some(remote) = self.limiter.remote.get() else { return };
        let deadline = now.mono.saturating_add(remote.timeout());
        remote.submit(Job { slots, step, kind, deadline });
    }

    /// Wants those who wait for `key` to be told when another node gives something back.
    pub(crate) fn watch_elsewhere(&self, key: &[u8], watching: bool) {
        let Some(remote) = self.limiter.remote.get() else { return };
        let found = self.limiter.catalog.load().find_elsewhere(key, Op::Peek(0));
        if let Some((_, slot)) = found {
            match watching {
                true => remote.watch(&slot.name),
                false => remote.unwatch(&slot.name),
            }
        }
    }
}

impl Answer {
    /// The same in the few words that a text line has.
    #[must_use]
    pub fn line(&self) -> Line {
        let share = |at: &&LimitAnswer| at.verdict.rate / at.limit.amount as f64;
        let refusing = self.limits.iter().find(|limit| !limit.verdict.allowed);
        // Of several the first.
        let nearest = || self.limits.iter().min_by(|a, b| share(b).total_cmp(&share(a)));
        let over = !self.allowed;
        refusing.or_else(nearest).map_or(Line { over, ..Line::UNLIMITED }, |shown| Line {
            over,
            rate: shown.verdict.rate,
            limit: shown.limit.amount,
            period: match shown.limit.period {
                // `deny` has none.
                0 => Line::UNLIMITED.period,
                period => period,
            },
        })
    }

    /// The same as how long the caller must wait.
    #[must_use]
    pub fn wait(&self) -> Delay {
        let promises = |at: &&LimitAnswer| {
            at.verdict.delay == self.delay
                && at.limit.algorithm != tidegate_core::Algorithm::Jarl { exact: false }
        };
        Delay { span: self.delay, firm: self.limits.iter().any(|limit| promises(&limit)) }
    }
}
