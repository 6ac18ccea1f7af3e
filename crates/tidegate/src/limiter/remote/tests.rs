//! Steps without a store: what is taken back, and who is told of what was given back.

use parking_lot::Mutex;
use tidegate_core::limit::{Algorithm, Limit};
use tidegate_core::rules::{OnStoreError, Rule, RuleSet};
use tidegate_core::time::DAY;
use tidegate_core::{Now, Op, algorithms};

use super::super::{Count, Key, KeyOp, LimiterHandle, Request, Waiters};
use super::*;
use crate::clock::Clock;
use crate::metrics::{Door, Metrics};
use crate::stores::memory::{self, Body, States};
use crate::stores::remote::settings::{self, Urls};
use crate::stores::remote::update::{RemoteSlot, StoreError};

const START: Now = Now { mono: 500 * DAY, unix: 20_000 * DAY };
const ONE: Limit = Limit { amount: 1, period: DAY, algorithm: Algorithm::FixedWindow };

/// A handle whose store has never answered.
fn alone(rules: Vec<Rule>) -> LimiterHandle {
    let room = memory::Settings { max_keys: 100, max_bytes: 1 << 20 };
    let (clock, metrics) = (Clock::manual(START), Arc::new(Metrics::new()));
    let limiter = Limiter::new(clock, metrics, RuleSet::new(rules, None), room);
    let url = Some(Urls::One("redis://127.0.0.1:1".to_owned()));
    let store = Settings { kind: settings::StoreKind::Redis, url, ..Settings::default() };
    limiter.use_store(&store).expect("sound settings");
    limiter.handle(Door::Http)
}

#[test]
fn what_a_step_took_is_taken_back_whole() {
    let handle = alone(vec![Rule::new("k", "k *", vec![ONE])]);
    let now = handle.now();
    let look = |body: &Body| algorithms::judge(&ONE, &body.held.states()[0], Op::Take(1), now);
    for (op, takes) in [
        (KeyOp::Take(1), true),
        (KeyOp::TakeUpTo(3), true),
        (KeyOp::Record { cost: 1, at: now.mono, late: 0 }, true),
        (KeyOp::Peek(1), false),
    ] {
        let keys = [Key::new(b"k a", op)];
        let mut step = step::of(&handle, &Request::all_or_nothing(&keys), now).expect("fit");
        let mut bodies = [Body::default()];
        step.run(&mut bodies, now);
        assert_eq!(look(&bodies[0]).allowed, !takes, "{op:?}");
        step.undo(0).run(&mut bodies, now);
        assert!(look(&bodies[0]).allowed, "there is one again: {op:?}");
    }
}

/// The store does what was asked of it after `on_store_error` has decided.
#[test]
fn what_comes_too_late_is_given_back_unless_the_use_is_made() {
    let log = Limit { amount: 9, period: DAY, algorithm: Algorithm::SlidingLog };
    let jobs = Limit { amount: 9, period: 0, algorithm: Algorithm::InFlight { per_window: false } };
    // How many are left of each limit, of nine.
    let check = |policy: OnStoreError, limits: &[Limit], expected: &[u64]| {
        let rule = Rule { on_store_error: policy, ..Rule::new("k", "k *", limits.to_vec()) };
        let handle = alone(vec![rule]);
        let (now, keys) = (handle.now(), [Key::take(b"k a", 2)]);
        let request = Request::all_or_nothing(&keys).with_end();
        let mut step = step::of(&handle, &request, now).expect("fit");
        let held = States::new(limits.len());
        let mut bodies = [Body { held, ..Body::default() }];
        step.run(&mut bodies, now);
        for (slot, mut late) in step.end_early(StoreError::Away) {
            assert_eq!(slot, 0);
            late.run(&mut bodies, now);
        }
        let left = limits.iter().zip(bodies[0].held.states()).map(|(limit, state)| {
            let judged = algorithms::judge(limit, state, Op::Peek(1), now);
            algorithms::explain(limit, state, Op::Peek(1), &judged, now).remaining
        });
        assert_eq!(left.collect::<Vec<_>>(), expected, "{policy:?} {limits:?}");
    };
    use OnStoreError::{Allow, Deny, Local};
    for policy in [Allow, Local] {
        check(policy, &[log], &[7]);
        check(policy, &[jobs], &[9]);
        check(policy, &[jobs, log], &[9, 7]);
    }
    check(Deny, &[log], &[9]);
    check(Deny, &[jobs, log], &[9, 9]);
}

/// What somebody who waits here hears.
#[derive(Default)]
struct Heard {
    freed: Mutex<Vec<(u32, Vec<u8>)>>,
    renewed: Mutex<u32>,
}

impl Waiters for Heard {
    fn is_free(&self, _: &Count<'_>) -> bool {
        true
    }

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
    let handle = alone(vec![Rule::new("k", "k *", vec![ONE]), shared]);
    let (limiter, heard) = (handle.limiter(), Arc::new(Heard::default()));
    limiter.set_waiters(heard.clone());
    for key in [b"k a".as_slice(), b"pool a"] {
        let catalog = limiter.catalog.load();
        let slot = catalog.slot_of(limiter.memory(), key).expect("a rule");
        let RemoteSlot { name, .. } = RemoteSlot::of(&slot).expect("it lies in the store");
        limiter.freed_remotely(&name);
        let count = limiter.count_of(key);
        assert_eq!(heard.freed.lock().pop(), Some((count.rule, count.name.to_vec())));
    }
    assert_eq!(*heard.renewed.lock(), 0);
    limiter.freed_remotely(b"");
    assert_eq!(*heard.renewed.lock(), 1, "nobody knows what was missed");
    limiter.freed_remotely(b"somebody else's");
    assert!(heard.freed.lock().is_empty());
}
