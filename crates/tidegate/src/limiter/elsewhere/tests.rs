//! Steps without a store: what is taken back, who is told of what was given back, and an answer in
//! few words.

use parking_lot::Mutex;
use tidegate_core::limit::{Algorithm, Limit};
use tidegate_core::rules::{Rule, RuleSet};
use tidegate_core::time::{DAY, HOUR, SECOND};
use tidegate_core::{LimitVerdict, Nanos, algorithms};

use super::super::{Bell, Count};
use super::*;
use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::stores::memory::{self, Body};
use crate::stores::remote::settings::{self, Urls};

const START: Now = Now { mono: 500 * DAY, unix: 20_000 * DAY };
const ONE: Limit = Limit { amount: 1, period: DAY, algorithm: Algorithm::FixedWindow };

/// A desk whose store nobody has ever heard of.
fn alone(rules: Vec<Rule>) -> Desk {
    let room = memory::Settings { max_keys: 100, max_bytes: 1 << 20 };
    let (clock, metrics) = (Clock::manual(START), Arc::new(Metrics::new()));
    let limiter = Limiter::new(clock, metrics, RuleSet::new(rules, None), room);
    let url = Some(Urls::One("redis://127.0.0.1:1".to_owned()));
    let store = Settings { kind: settings::Kind::Redis, url, ..Settings::default() };
    limiter.keep_elsewhere(&store).expect("sound settings");
    limiter.desk(Door::Http)
}

#[test]
fn what_a_step_took_is_taken_back_whole() {
    let desk = alone(vec![Rule::new("k", "k *", vec![ONE])]);
    let now = desk.now();
    let look = |body: &Body| algorithms::judge(&ONE, &body.held.states()[0], Op::Take(1), now);
    let (decide, slots) = desk.decision(&[b"k a"], Op::Take(1), false, now).expect("fit");
    assert_eq!(slots.len(), 1);
    let (peek, _) = desk.decision(&[b"k a"], Op::Peek(1), false, now).expect("fit");
    let (origin, key) = (decide.origin.clone(), b"k a".to_vec());
    let (next, tell) = (None, None);
    let record = Record { origin, key, position: 0, ago: 0, late: 0, next, tell };
    let steps: [(Box<dyn Step>, bool); 3] =
        [(Box::new(decide), true), (Box::new(record), true), (Box::new(peek), false)];
    for (mut step, takes) in steps {
        let mut bodies = [Body::default()];
        step.run(&mut bodies, now);
        assert_eq!(look(&bodies[0]).allowed, !takes);
        step.undo(0).run(&mut bodies, now);
        assert!(look(&bodies[0]).allowed, "there is one again");
    }
}

/// What somebody who waits here hears.
#[derive(Default)]
struct Heard {
    freed: Mutex<Vec<(u32, Vec<u8>)>>,
    renewed: Mutex<u32>,
}

impl Bell for Heard {
    fn freed(&self, count: &Count<'_>) {
        self.freed.lock().push((count.rule, count.name.to_vec()));
    }

    fn freed_anywhere(&self, _: u32) {}

    fn renewed(&self, _: &Limiter) {
        *self.renewed.lock() += 1;
    }
}

#[test]
fn what_others_give_back_is_told_to_those_who_wait_for_the_same_count() {
    let shared = Rule { shared: true, ..Rule::new("of all", "pool *", vec![ONE]) };
    let desk = alone(vec![Rule::new("k", "k *", vec![ONE]), shared]);
    let (limiter, heard) = (desk.limiter(), Arc::new(Heard::default()));
    limiter.watch(heard.clone());
    for key in [b"k a".as_slice(), b"pool a"] {
        let (_, slot) = limiter.catalog.load().find_elsewhere(key, Op::Peek(0)).expect("a rule");
        limiter.freed_elsewhere(&slot.name);
        let count = limiter.count_of(key);
        assert_eq!(heard.freed.lock().pop(), Some((count.rule, count.name.to_vec())));
    }
    assert_eq!(*heard.renewed.lock(), 0);
    limiter.freed_elsewhere(b"");
    assert_eq!(*heard.renewed.lock(), 1, "nobody knows what was missed");
    limiter.freed_elsewhere(b"somebody else's");
    assert!(heard.freed.lock().is_empty());
}

fn answer(limits: &[(Limit, LimitVerdict)]) -> Answer {
    let told = |&(limit, verdict)| {
        let (key, rule, basis) = (0, "k".into(), super::super::Basis::Counts);
        LimitAnswer { key, rule, limit, verdict, basis }
    };
    Answer {
        allowed: limits.iter().all(|(_, verdict)| verdict.allowed),
        at: START,
        delay: limits.iter().map(|(_, verdict)| verdict.delay).max().unwrap_or(0),
        refused_by: None,
        held: Vec::new(),
        limits: limits.iter().map(told).collect(),
    }
}

fn verdict(allowed: bool, rate: f64, delay: Nanos) -> LimitVerdict {
    LimitVerdict { allowed, remaining: 0, rate, delay, reset: delay }
}

#[test]
fn a_line_shows_the_limit_that_refused_or_else_the_nearest() {
    let limit = |amount, period| Limit { amount, period, ..ONE };
    let (hour, day) = (limit(10, HOUR), limit(100, DAY));
    let shown = |limits: &[(Limit, LimitVerdict)]| {
        let line = answer(limits).line();
        (line.over, line.rate, line.limit)
    };
    let [far, near] = [verdict(true, 20.0, 0), verdict(true, 9.0, 0)];
    assert_eq!(shown(&[(day, far), (hour, near)]), (false, 9.0, 10));
    assert_eq!(shown(&[(hour, near), (day, far)]), (false, 9.0, 10));
    let nothing = verdict(true, 0.0, 0);
    assert_eq!(shown(&[(hour, nothing), (day, nothing)]), (false, 0.0, 10), "the first");
    assert_eq!(shown(&[(hour, near), (day, verdict(false, 20.0, 1))]), (true, 20.0, 100));
    assert_eq!(answer(&[]).line(), Line::UNLIMITED);
}

#[test]
fn a_wait_is_firm_where_a_limit_promises_it() {
    let jarl = Limit { algorithm: Algorithm::Jarl { exact: false }, ..ONE };
    let [second, two] = [SECOND, 2 * SECOND].map(|delay| verdict(false, 1.0, delay));
    let wait = |limits: &[(Limit, LimitVerdict)]| answer(limits).wait();
    assert_eq!(wait(&[(jarl, two), (ONE, second)]), Delay { span: 2 * SECOND, firm: false });
    assert_eq!(wait(&[(jarl, second), (ONE, two)]), Delay { span: 2 * SECOND, firm: true });
    assert_eq!(wait(&[]), Delay::NONE);
}
