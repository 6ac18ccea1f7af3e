//! Which request waits for which count, in which order, and when it is worth another try.
//!
//! A pure state machine: no clock, no lock, no task. Callers pass the time in and get the requests
//! that they must wake, each as the `W` that stands for its caller. Only the first request of a
//! queue tries; the queues do not know what it takes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use tidegate_core::Nanos;

use super::Count;

/// The number of a waiter, in the order of arrival.
pub(crate) type QueueTicket = u64;
type QueueId = u64;

/// All queues. Leaving is logarithmic in the number of waiters, and so is everything else that
/// concerns one of them. Without waiters it holds no memory.
pub(crate) struct Queues<W> {
    waiters: BTreeMap<QueueTicket, Waiter<W>>,
    queues: HashMap<QueueId, Queue>,
    /// By rule and name, see [`name_of`].
    index: HashMap<Arc<[u8]>, QueueId>,
    alarms: BTreeSet<(Nanos, Alarm)>,
    /// The last number given to a waiter or a queue.
    last: u64,
}

struct Waiter<W> {
    /// Which key it asked for: new rules may give it another count.
    key: Box<[u8]>,
    queue: QueueId,
    /// It has what it wants and only waits for its time: it is no longer in the line.
    booked: bool,
    /// When it gives up or, once booked, goes. [`Nanos::MAX`]: never.
    alarm: Nanos,
    /// Since when it could have gone, as far as is known.
    woken_at: Nanos,
    caller: W,
}

struct Queue {
    name: Arc<[u8]>,
    hash: u64,
    line: BTreeSet<QueueTicket>,
    booked: usize,
    /// When its first is worth another try. [`Nanos::MAX`]: time alone does not help.
    retry_at: Nanos,
    /// When a try last failed.
    blocked_at: Nanos,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Alarm {
    Queue(QueueId),
    Waiter(QueueTicket),
}

impl<W> Default for Queues<W> {
    fn default() -> Self {
        Self {
            waiters: BTreeMap::new(),
            queues: HashMap::new(),
            index: HashMap::new(),
            alarms: BTreeSet::new(),
            last: 0,
        }
    }
}

impl<W: Clone> Queues<W> {
    /// Whether no request is in line for this count.
    pub(crate) fn is_free(&self, count: &Count<'_>) -> bool {
        self.find(count).is_none_or(|queue| queue.line.is_empty())
    }

    /// How many wait for this count, those with a booking included.
    pub(crate) fn len_of(&self, count: &Count<'_>) -> usize {
        self.find(count).map_or(0, |queue| queue.line.len() + queue.booked)
    }

    /// How many wait at all.
    pub(crate) fn len(&self) -> usize {
        self.waiters.len()
    }

    /// Puts a new waiter at the end of the line for `count`.
    pub(crate) fn join(
        &mut self,
        count: &Count<'_>,
        key: &[u8],
        gives_up_at: Nanos,
        caller: W,
        now: Nanos,
    ) -> QueueTicket {
        let queue = self.queue_for(count);
        self.last += 1;
        let ticket = self.last;
        if let Some(queue) = self.queues.get_mut(&queue) {
            queue.line.insert(ticket);
        }
        let key = key.into();
        let alarm = gives_up_at;
        let waiter = Waiter { key, queue, booked: false, alarm, woken_at: now, caller };
        self.waiters.insert(ticket, waiter);
        self.set_alarm(gives_up_at, Alarm::Waiter(ticket));
        ticket
    }

    /// Whether it is this waiter's turn to try.
    pub(crate) fn is_first(&self, ticket: QueueTicket) -> bool {
        let queue = self.waiters.get(&ticket).and_then(|waiter| self.queues.get(&waiter.queue));
        queue.is_some_and(|queue| queue.line.first() == Some(&ticket))
    }

    /// Since when the waiter could have gone, as far as is known: it came, or was woken. And when a
    /// try in its line last failed.
    pub(crate) fn woken_at(&self, ticket: QueueTicket) -> (Nanos, Nanos) {
        let Some(waiter) = self.waiters.get(&ticket) else { return (0, 0) };
        let blocked_at = self.queues.get(&waiter.queue).map_or(0, |queue| queue.blocked_at);
        (waiter.woken_at, blocked_at)
    }

    /// The hash of the count that a waiter is in line for.
    pub(crate) fn hash_of(&self, ticket: QueueTicket) -> Option<u64> {
        let waiter = self.waiters.get(&ticket).filter(|waiter| !waiter.booked)?;
        self.queues.get(&waiter.queue).map(|queue| queue.hash)
    }

    /// The caller to wake from now on.
    pub(crate) fn caller_mut(&mut self, ticket: QueueTicket) -> Option<&mut W> {
        self.waiters.get_mut(&ticket).map(|waiter| &mut waiter.caller)
    }

    /// The first of a line has tried and failed; another try is worth it at `at`.
    pub(crate) fn retry(&mut self, ticket: QueueTicket, at: Nanos, now: Nanos) {
        if let Some(id) = self.waiters.get(&ticket).map(|waiter| waiter.queue) {
            self.set_retry(id, at);
            if let Some(queue) = self.queues.get_mut(&id) {
                queue.blocked_at = now;
            }
        }
    }

    /// The first of a line has what it wants, and goes at `until`: the next may try.
    pub(crate) fn book(
        &mut self,
        ticket: QueueTicket,
        until: Nanos,
        now: Nanos,
        woken: &mut Vec<W>,
    ) {
        let Some(waiter) = self.waiters.get_mut(&ticket) else { return };
        let (id, before) = (waiter.queue, waiter.alarm);
        waiter.booked = true;
        waiter.alarm = until;
        self.alarms.remove(&(before, Alarm::Waiter(ticket)));
        self.set_alarm(until, Alarm::Waiter(ticket));
        let Some(queue) = self.queues.get_mut(&id) else { return };
        queue.line.remove(&ticket);
        queue.booked += 1;
        self.set_retry(id, Nanos::MAX);
        self.wake_first_of(id, now, woken);
    }

    /// A waiter goes, with what it wanted or without. If it was the first of its line, the next
    /// one is woken. Returns its caller, and the hash of its count if it was still in line.
    pub(crate) fn leave(
        &mut self,
        ticket: QueueTicket,
        now: Nanos,
        woken: &mut Vec<W>,
    ) -> Option<(W, Option<u64>)> {
        let waiter = self.waiters.remove(&ticket)?;
        self.alarms.remove(&(waiter.alarm, Alarm::Waiter(ticket)));
        let queue = self.queues.get_mut(&waiter.queue)?;
        let hash = (!waiter.booked).then_some(queue.hash);
        if waiter.booked {
            queue.booked -= 1;
        } else {
            let was_first = queue.line.first() == Some(&ticket);
            queue.line.remove(&ticket);
            if was_first {
                self.set_retry(waiter.queue, Nanos::MAX);
                self.wake_first_of(waiter.queue, now, woken);
            }
        }
        self.drop_if_empty(waiter.queue);
        if self.waiters.is_empty() {
            *self = Self { last: self.last, ..Self::default() };
        }
        Some((waiter.caller, hash))
    }

    /// Something was given back to this count.
    pub(crate) fn wake_first(&mut self, count: &Count<'_>, now: Nanos, woken: &mut Vec<W>) {
        if let Some(&id) = self.index.get(&name_of(count)[..]) {
            self.wake_first_of(id, now, woken);
        }
    }

    /// Something was given back that any count of this rule may take.
    pub(crate) fn wake_rule(&mut self, rule: u32, now: Nanos, woken: &mut Vec<W>) {
        let of_rule = |queue: &Queue| queue.name.starts_with(&rule.to_le_bytes());
        let queues = self.queues.iter().filter(|(_, queue)| of_rule(queue));
        let ids: Vec<_> = queues.map(|(&id, _)| id).collect();
        ids.into_iter().for_each(|id| self.wake_first_of(id, now, woken));
    }

    /// Anything may have changed: the first of every line tries again.
    pub(crate) fn wake_firsts(&mut self, now: Nanos, woken: &mut Vec<W>) {
        let ids: Vec<_> = self.queues.keys().copied().collect();
        ids.into_iter().for_each(|id| self.wake_first_of(id, now, woken));
    }

    /// Collects the callers whose time has come, `most` at a time; `true` if there may be more.
    pub(crate) fn due(&mut self, now: Nanos, most: usize, woken: &mut Vec<W>) -> bool {
        for _ in 0..most {
            let Some(&(at, alarm)) = self.alarms.first().filter(|(at, _)| *at <= now) else {
                return false;
            };
            self.alarms.pop_first();
            match alarm {
                Alarm::Queue(id) => {
                    if let Some(queue) = self.queues.get_mut(&id) {
                        queue.retry_at = Nanos::MAX;
                    }
                    self.wake_first_of(id, at, woken);
                }
                Alarm::Waiter(ticket) => {
                    if let Some(waiter) = self.waiters.get_mut(&ticket) {
                        waiter.alarm = Nanos::MAX;
                        woken.push(waiter.caller.clone());
                    }
                }
            }
        }
        true
    }

    /// When the next one must be woken.
    pub(crate) fn next_alarm(&self) -> Option<Nanos> {
        self.alarms.first().map(|&(at, _)| at)
    }

    /// There are new rules: all waiters line up again, in the order of arrival, and the first of
    /// each line tries. `moved` gets the old and the new hash of each waiter in line.
    pub(crate) fn rebuild(
        &mut self,
        count_of: impl for<'k> Fn(&'k [u8]) -> Count<'k>,
        mut moved: impl FnMut(u64, u64),
        now: Nanos,
        woken: &mut Vec<W>,
    ) {
        let waiters = std::mem::take(&mut self.waiters);
        let old = std::mem::take(&mut self.queues);
        self.index.clear();
        self.alarms.retain(|(_, alarm)| matches!(alarm, Alarm::Waiter(_)));
        for (ticket, mut waiter) in waiters {
            let count = count_of(&waiter.key);
            let hash = count.hash;
            let id = self.queue_for(&count);
            let before = old.get(&waiter.queue);
            if let Some(queue) = self.queues.get_mut(&id) {
                queue.blocked_at = queue.blocked_at.max(before.map_or(0, |q| q.blocked_at));
                if waiter.booked {
                    queue.booked += 1;
                } else {
                    queue.line.insert(ticket);
                    moved(before.map_or(hash, |queue| queue.hash), hash);
                }
            }
            waiter.queue = id;
            self.waiters.insert(ticket, waiter);
        }
        self.wake_firsts(now, woken);
    }

    /// Whether all memory has been given back.
    #[cfg(test)]
    pub(crate) fn holds_nothing(&self) -> bool {
        let (queues, index) = (self.queues.capacity(), self.index.capacity());
        self.waiters.is_empty() && self.alarms.is_empty() && queues + index == 0
    }

    fn find(&self, count: &Count<'_>) -> Option<&Queue> {
        if self.queues.is_empty() {
            return None;
        }
        self.index.get(&name_of(count)[..]).and_then(|id| self.queues.get(id))
    }

    fn queue_for(&mut self, count: &Count<'_>) -> QueueId {
        let name: Arc<[u8]> = name_of(count).into();
        if let Some(&id) = self.index.get(&name) {
            return id;
        }
        self.last += 1;
        let queue = Queue {
            name: name.clone(),
            hash: count.hash,
            line: BTreeSet::new(),
            booked: 0,
            retry_at: Nanos::MAX,
            blocked_at: 0,
        };
        self.queues.insert(self.last, queue);
        self.index.insert(name, self.last);
        self.last
    }

    fn drop_if_empty(&mut self, id: QueueId) {
        if self.queues.get(&id).is_some_and(|queue| queue.line.is_empty() && queue.booked == 0) {
            self.set_retry(id, Nanos::MAX);
            if let Some(queue) = self.queues.remove(&id) {
                self.index.remove(&queue.name);
            }
        }
    }

    fn wake_first_of(&mut self, id: QueueId, at: Nanos, woken: &mut Vec<W>) {
        let first = self.queues.get(&id).and_then(|queue| queue.line.first());
        if let Some(waiter) = first.and_then(|ticket| self.waiters.get_mut(ticket)) {
            waiter.woken_at = at;
            woken.push(waiter.caller.clone());
        }
    }

    fn set_retry(&mut self, id: QueueId, at: Nanos) {
        let Some(queue) = self.queues.get_mut(&id) else { return };
        let before = std::mem::replace(&mut queue.retry_at, at);
        if before != at {
            self.alarms.remove(&(before, Alarm::Queue(id)));
            self.set_alarm(at, Alarm::Queue(id));
        }
    }

    fn set_alarm(&mut self, at: Nanos, alarm: Alarm) {
        if at != Nanos::MAX {
            self.alarms.insert((at, alarm));
        }
    }
}

/// A count as one string of bytes.
fn name_of(count: &Count<'_>) -> Vec<u8> {
    [&count.rule.to_le_bytes(), count.name].concat()
}
