//! The queues against a slow, obvious model: one list of all who wait, looked through each time.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::waiting::queues::{QueueTicket, Queues};

const KEYS: [&str; 4] = ["a", "ab", "b", ""];

/// How keys are counted at the moment: each alone, or some together.
#[derive(Clone, Copy, Debug)]
struct Rules {
    rule: u32,
    shared: bool,
}

impl Rules {
    fn count(self, key: &[u8]) -> Count<'_> {
        // Keys of one letter are under another rule, which never shares.
        let short = key.len() == 1;
        let rule = self.rule + u32::from(short);
        let name = if self.shared && !short { b"" } else { key };
        let hash = u64::from(rule) * 31 + name.iter().map(|&byte| u64::from(byte)).sum::<u64>();
        Count { rule, name, hash }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Join { key: usize, patience: Option<Nanos> },
    Leave(prop::sample::Index),
    Retry { who: prop::sample::Index, after: Nanos },
    Book { who: prop::sample::Index, after: Nanos },
    Ring { key: usize },
    RingRule(u32),
    Rebuild { rule: u32, shared: bool },
    Pass(Nanos),
}

fn step() -> impl Strategy<Value = Step> {
    let index = any::<prop::sample::Index>;
    let key = 0..KEYS.len();
    prop_oneof![
        6 => (key.clone(), prop::option::of(0..30u64))
            .prop_map(|(key, patience)| Step::Join { key, patience }),
        3 => index().prop_map(Step::Leave),
        3 => (index(), 1..20u64).prop_map(|(who, after)| Step::Retry { who, after }),
        1 => (index(), 1..20u64).prop_map(|(who, after)| Step::Book { who, after }),
        1 => key.prop_map(|key| Step::Ring { key }),
        1 => (0..4u32).prop_map(Step::RingRule),
        1 => (0..3u32, any::<bool>()).prop_map(|(rule, shared)| Step::Rebuild { rule, shared }),
        3 => (0..10u64).prop_map(Step::Pass),
    ]
}

/// One who waits, as the model knows it.
#[derive(Clone, Debug)]
struct Waiter {
    ticket: QueueTicket,
    key: &'static [u8],
    booked: bool,
    /// Gives up or goes.
    alarm: Option<Nanos>,
    /// Kept with the first of a line.
    retry: Option<Nanos>,
}

struct Model {
    rules: Rules,
    /// In the order of arrival.
    waiters: Vec<Waiter>,
}

impl Model {
    fn same(&self, one: &[u8], other: &[u8]) -> bool {
        let (one, other) = (self.rules.count(one), self.rules.count(other));
        (one.rule, one.name) == (other.rule, other.name)
    }

    fn first(&self, key: &[u8]) -> Option<usize> {
        self.waiters.iter().position(|waiter| !waiter.booked && self.same(waiter.key, key))
    }

    fn is_first(&self, at: usize) -> bool {
        self.first(self.waiters[at].key) == Some(at)
    }

    fn firsts(&self) -> Vec<usize> {
        (0..self.waiters.len()).filter(|&at| self.is_first(at)).collect()
    }

    fn ticket_of_first(&self, key: &[u8]) -> BTreeSet<QueueTicket> {
        self.first(key).map(|at| self.waiters[at].ticket).into_iter().collect()
    }
}

/// Both, and what each says of who must be woken.
struct Pair {
    queues: Queues<QueueTicket>,
    model: Model,
    now: Nanos,
    joined: u64,
    /// Callers are woken under the number of their arrival.
    callers: Vec<(QueueTicket, u64)>,
}

impl Pair {
    fn tickets(&self, woken: &[u64]) -> BTreeSet<QueueTicket> {
        let ticket = |caller: &u64| self.callers.iter().find(|(_, c)| c == caller).expect("one").0;
        woken.iter().map(ticket).collect()
    }

    /// Does a step to both. Returns whom the queues woken and whom the model would tell.
    fn step(&mut self, step: &Step) -> (Vec<u64>, BTreeSet<QueueTicket>) {
        let mut woken = Vec::new();
        let pick = |index: &prop::sample::Index, from: &[usize]| {
            (!from.is_empty()).then(|| *index.get(from))
        };
        let expected = match step {
            Step::Join { key, patience } => {
                let key = KEYS[*key].as_bytes();
                let alarm = patience.map(|span| self.now + span);
                let count = self.model.rules.count(key);
                self.joined += 1;
                let caller = self.joined;
                let gives_up = alarm.unwrap_or(Nanos::MAX);
                let ticket = self.queues.join(&count, key, gives_up, caller, self.now);
                self.callers.push((ticket, caller));
                let waiter = Waiter { ticket, key, booked: false, alarm, retry: None };
                self.model.waiters.push(waiter);
                BTreeSet::new()
            }
            Step::Leave(index) => {
                let all: Vec<_> = (0..self.model.waiters.len()).collect();
                let Some(at) = pick(index, &all) else { return Default::default() };
                self.leave(at, &mut woken)
            }
            Step::Retry { who, after } => {
                let Some(at) = pick(who, &self.model.firsts()) else { return Default::default() };
                let waiter = &mut self.model.waiters[at];
                waiter.retry = Some(self.now + after);
                self.queues.retry(waiter.ticket, self.now + after, self.now);
                BTreeSet::new()
            }
            Step::Book { who, after } => {
                let Some(at) = pick(who, &self.model.firsts()) else { return Default::default() };
                let waiter = &mut self.model.waiters[at];
                (waiter.booked, waiter.retry) = (true, None);
                waiter.alarm = Some(self.now + after);
                let (ticket, key) = (waiter.ticket, waiter.key);
                self.queues.book(ticket, self.now + after, self.now, &mut woken);
                self.model.ticket_of_first(key)
            }
            Step::Ring { key } => {
                let key = KEYS[*key].as_bytes();
                self.queues.wake_first(&self.model.rules.count(key), self.now, &mut woken);
                self.model.ticket_of_first(key)
            }
            Step::RingRule(rule) => {
                self.queues.wake_rule(*rule, self.now, &mut woken);
                let of_rule =
                    |at: &usize| self.model.rules.count(self.model.waiters[*at].key).rule == *rule;
                let firsts = self.model.firsts().into_iter().filter(of_rule);
                firsts.map(|at| self.model.waiters[at].ticket).collect()
            }
            Step::Rebuild { rule, shared } => {
                let rules = Rules { rule: *rule, shared: *shared };
                self.model.rules = rules;
                self.queues.rebuild(|key| rules.count(key), |_, _| (), self.now, &mut woken);
                self.model.waiters.iter_mut().for_each(|waiter| waiter.retry = None);
                let firsts = self.model.firsts().into_iter();
                firsts.map(|at| self.model.waiters[at].ticket).collect()
            }
            Step::Pass(span) => {
                self.now += span;
                while self.queues.due(self.now, 2, &mut woken) {}
                self.due()
            }
        };
        (woken, expected)
    }

    fn leave(&mut self, at: usize, woken: &mut Vec<u64>) -> BTreeSet<QueueTicket> {
        let was_first = self.model.is_first(at);
        let gone = self.model.waiters.remove(at);
        let hash = self.model.rules.count(gone.key).hash;
        let caller = self.callers.iter().find(|(ticket, _)| *ticket == gone.ticket).expect("one").1;
        let left = self.queues.leave(gone.ticket, self.now, woken);
        assert_eq!(left, Some((caller, (!gone.booked).then_some(hash))));
        assert_eq!(self.queues.leave(gone.ticket, self.now, woken), None, "only once");
        if was_first { self.model.ticket_of_first(gone.key) } else { BTreeSet::new() }
    }

    fn due(&mut self) -> BTreeSet<QueueTicket> {
        let now = self.now;
        let mut due = BTreeSet::new();
        for waiter in &mut self.model.waiters {
            for alarm in [&mut waiter.alarm, &mut waiter.retry] {
                if alarm.take_if(|at| *at <= now).is_some() {
                    due.insert(waiter.ticket);
                }
            }
        }
        due
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn the_queues_tell_whom_the_model_tells(steps in prop::collection::vec(step(), 1..120)) {
        let model = Model { rules: Rules { rule: 0, shared: false }, waiters: Vec::new() };
        let callers = Vec::new();
        let mut pair = Pair { queues: Queues::default(), model, now: 100, joined: 0, callers };
        for step in &steps {
            let (woken, expected) = pair.step(step);
            prop_assert_eq!(pair.tickets(&woken), expected, "{:?}", step);
            let Pair { queues, model, .. } = &pair;
            let alarms = model.waiters.iter().flat_map(|w| [w.alarm, w.retry]).flatten();
            prop_assert_eq!(queues.next_alarm(), alarms.min(), "{:?}", step);
            prop_assert_eq!(queues.len(), model.waiters.len());
            for (at, waiter) in model.waiters.iter().enumerate() {
                prop_assert_eq!(queues.is_first(waiter.ticket), model.is_first(at));
                let hash = model.rules.count(waiter.key).hash;
                let in_line = (!waiter.booked).then_some(hash);
                prop_assert_eq!(queues.hash_of(waiter.ticket), in_line);
            }
            for key in KEYS.map(str::as_bytes) {
                let count = model.rules.count(key);
                let same = model.waiters.iter().filter(|w| model.same(w.key, key)).count();
                prop_assert_eq!(queues.len_of(&count), same);
                prop_assert_eq!(queues.is_free(&count), model.first(key).is_none());
            }
            prop_assert!(!model.waiters.is_empty() || queues.holds_nothing());
        }
    }
}
