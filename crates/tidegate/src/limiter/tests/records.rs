//! Uses that have already happened, in batches, against what each key would say alone; and who is
//! found to be delayed.

use std::collections::BTreeMap;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use tidegate_core::rules::{Consistency, OnStoreError};

use super::stores::{at, node, runtime};
use super::*;
use crate::stores::remote::engines::{redis, until};
use crate::stores::remote::settings::StoreKind;

/// Uses of one key: which, how many, how far from now, and how late they are reported, in
/// sixteenths of the period.
fn uses() -> impl Strategy<Value = Vec<(u8, u64, i8, u8)>> {
    let (when, late) =
        (prop_oneof![4 => Just(0), 1 => -8..24_i8], prop_oneof![4 => Just(0), 1 => 0..9_u8]);
    let cost = prop_oneof![4 => Just(1_u64), 1 => 1..9_u64];
    prop::collection::vec((0..12_u8, cost, when, late), 0..80)
}

fn moment(sixteenths: i8, now: Now) -> Nanos {
    let span = PERIOD / 16 * u64::from(sixteenths.unsigned_abs());
    if sixteenths < 0 { now.mono - span } else { now.mono + span }
}

/// Identifiers of which some are too long for a slot and some are written otherwise in a key.
fn identifier(key: u8) -> Vec<u8> {
    match key % 3 {
        0 => format!("{key} with a name that is far too long").into_bytes(),
        1 => format!("{key}%").into_bytes(),
        _ => vec![b'a' + key],
    }
}

fn key(identifier: &[u8]) -> Vec<u8> {
    let mut key = Vec::new();
    let builder = tidegate_core::key::KeyBuilder::new(&mut key, b"k").word(identifier);
    builder.finish().expect("short").to_vec()
}

/// Everybody who is found to be delayed.
fn delayed(limiter: &Arc<Limiter>, domain: &[u8]) -> BTreeMap<Vec<u8>, Nanos> {
    let mut search = DelayedSearch::new(limiter, domain.to_vec(), 3);
    let mut found = BTreeMap::new();
    // Where no store is remote, nothing is waited for.
    let mut next_page =
        || match pin!(search.next_page(|_| true)).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(page) => page.expect("in memory"),
            Poll::Pending => panic!("in memory"),
        };
    while let Some(page) = next_page() {
        assert_eq!(page.at, limiter.clock().now());
        found.extend(page.keys);
    }
    found
}

/// What is said of one use: how long until the next, or that no rule is for its key.
type Told = Result<Option<Nanos>, InvalidRequest>;

/// Records uses of these keys in one batch.
fn record(handle: &LimiterHandle, uses: &[(Vec<u8>, KeyOp)]) -> Vec<Told> {
    let keys: Vec<Key<'_>> = uses.iter().map(|(key, op)| Key::new(key, *op)).collect();
    let mut decisions = Vec::new();
    handle.decide_batch(&keys, handle.now(), &mut decisions);
    let told = |decision: Result<Decision, InvalidRequest>| {
        let verdict = decision?.ready().expect("in memory");
        Ok((verdict.outcome != super::super::Outcome::NoRule).then_some(verdict.delay))
    };
    decisions.into_iter().map(told).collect()
}

proptest! {
    #![proptest_config(many_cases())]

    #[test]
    fn records_are_what_each_key_would_say_alone(
        limits in prop::collection::vec(any_limit(), 1..4),
        batches in prop::collection::vec((wait(), uses()), 1..8),
    ) {
        let clock = Clock::manual(START);
        let rules = RuleSet::new(vec![rule("k", limits.clone())], None);
        let limiter = Limiter::new(clock.clone(), Arc::new(Metrics::new()), rules, ROOMY);
        let handle = limiter.handle(Door::Smockron);
        let mut model: HashMap<u8, Vec<State>> = HashMap::new();
        for (wait, uses) in batches {
            clock.advance(wait);
            let now = clock.now();
            let (mut recorded, mut expected) = (Vec::new(), Vec::new());
            for &(key, cost, sixteenths, late) in &uses {
                let at = moment(sixteenths, now);
                let late = PERIOD / 16 * u64::from(late);
                recorded.push((self::key(&identifier(key)), KeyOp::Record { cost, at, late }));
                let states = model.entry(key).or_insert_with(|| vec![State::None; limits.len()]);
                let mut next = 0;
                for (limit, state) in limits.iter().zip(states) {
                    let recorded = algorithms::record(limit, state, cost, at, now.before(late));
                    next = next.max(recorded.next.saturating_sub(late));
                }
                expected.push(Ok(Some(next)));
            }
            prop_assert_eq!(record(&handle, &recorded), expected);
            let mut waiting = BTreeMap::new();
            for (number, states) in &model {
                let delay = limits.iter().zip(states).map(|(limit, state)| {
                    let judgement = algorithms::judge(limit, state, Op::Peek(1), now);
                    algorithms::explain(limit, state, Op::Peek(1), &judgement, now).delay
                });
                let delay = delay.max().unwrap_or(0);
                if delay > 0 {
                    waiting.insert(key(&identifier(*number)), delay);
                }
            }
            prop_assert_eq!(delayed(&limiter, b"k "), waiting);
        }
    }

    /// The fast path, which batches take, against the general path, which rows need.
    #[test]
    fn a_batch_of_records_is_what_each_alone_is(
        limits in prop::collection::vec(any_limit(), 1..3),
        shadow in any::<bool>(),
        batches in prop::collection::vec((wait(), uses()), 1..8),
    ) {
        let clock = Clock::manual(START);
        let rule = Rule { shadow, ..rule("k", limits) };
        let [batched, alone] = [(); 2].map(|()| {
            let rules = RuleSet::new(vec![rule.clone()], None);
            let limiter = Limiter::new(clock.clone(), Arc::new(Metrics::new()), rules, ROOMY);
            limiter.handle(Door::Smockron)
        });
        let mut rows = Rows::default();
        for (wait, uses) in batches {
            clock.advance(wait);
            let now = clock.now();
            let uses: Vec<(Vec<u8>, KeyOp)> = { uses.iter() }
                .map(|&(number, cost, sixteenths, late)| {
                    let (at, late) = (moment(sixteenths, now), PERIOD / 16 * u64::from(late));
                    (key(&identifier(number)), KeyOp::Record { cost, at, late })
                })
                .collect();
            let keys: Vec<Key<'_>> = uses.iter().map(|(key, op)| Key::new(key, *op)).collect();
            let mut decisions = Vec::new();
            batched.decide_batch(&keys, now, &mut decisions);
            for (decision, key) in decisions.into_iter().zip(&keys) {
                let request = Request::all_or_nothing(std::slice::from_ref(key));
                let expected = alone.decide(&request, now, Some(&mut rows)).expect("fit").ready();
                prop_assert_eq!(decision.expect("fit").ready(), expected);
            }
            if !statistics_stay(now) {
                continue;
            }
            for key in &keys {
                let stats = |handle: &LimiterHandle| handle.limiter().stats(key.bytes, now);
                prop_assert_eq!(stats(&batched), stats(&alone));
            }
            prop_assert_eq!(batched.limiter().size(), alone.limiter().size());
        }
        let counted = |handle: &LimiterHandle| {
            let page = handle.limiter().metrics().encode(Default::default());
            let is_decision = |line: &&str| line.starts_with("tidegate_decisions_total");
            page.lines().filter(is_decision).map(str::to_owned).collect::<Vec<_>>()
        };
        prop_assert_eq!(counted(&batched), counted(&alone));
    }
}

fn uses_of<const N: usize>(keys: [&str; N]) -> [(Vec<u8>, KeyOp); N] {
    keys.map(|key| (key.into(), KeyOp::Record { cost: 1, at: START.mono, late: 0 }))
}

#[test]
fn what_cannot_be_recorded_is_told_apart() {
    let held = limit(1, 0, Algorithm::InFlight { per_window: false });
    let shadow = Rule { shadow: true, ..rule("ghost", vec![fixed(1)]) };
    let shared = Rule { shared: true, ..rule("pool", vec![fixed(1)]) };
    let rules = vec![
        rule("k", vec![fixed(1)]),
        rule("held", vec![held]),
        rule("free", vec![]),
        shadow,
        shared,
    ];
    let limiter = limiter(rules, ROOMY);
    let handle = limiter.handle(Door::Smockron);
    let day = DAY - START.unix % DAY;
    let uses = uses_of([
        "k me",
        "nobody me",
        "held me",
        "free me",
        "ghost me",
        "ghost me",
        "pool me",
        "k me",
    ]);
    let expected = [
        Ok(Some(day)),
        Ok(None),
        Err(InvalidRequest::NeedsEnd),
        Ok(Some(0)),
        Ok(Some(0)),
        Ok(Some(0)),
        Ok(Some(day)),
        Ok(Some(day)),
    ];
    assert_eq!(record(&handle, &uses), expected);
    assert!(take(&handle, &["held me"]).is_allowed());
    assert!(!take(&handle, &["held me"]).is_allowed(), "it waits for an end, which has no time");
    assert_eq!(delayed(&limiter, b"").into_keys().collect::<Vec<_>>(), [b"k me"]);
    assert!(delayed(&limiter, b"ghost ").is_empty());
    assert!(record(&handle, &[]).is_empty());
}

#[test]
fn delayed_keys_are_found_wherever_they_are_counted() {
    let server = redis::Server::start(&[]);
    let here = Rule { consistency: Consistency::Local, ..rule("here", vec![fixed(1)]) };
    let there = Rule { on_store_error: OnStoreError::Local, ..rule("there", vec![fixed(1)]) };
    let settings = at(StoreKind::Redis, vec![server.url()]);
    let limiter = node(Clock::manual(START), vec![here, there, rule("free", vec![])], &settings);
    let handle = limiter.handle(Door::Smockron);
    let use_of = |key: &str| {
        let keys = [Key::new(key.as_bytes(), KeyOp::Record { cost: 1, at: START.mono, late: 0 })];
        let (request, mut rows) = (Request::all_or_nothing(&keys), Rows::default());
        let verdict = runtime().block_on(handle.decide_async(&request, START, &mut rows));
        assert_eq!(verdict.expect("fit").delay, DAY, "{key}");
    };
    let search = |prefix: &str| {
        let mut search = DelayedSearch::new(&limiter, prefix.into(), 3);
        let mut found = Vec::new();
        while let Some(page) = runtime().block_on(search.next_page(|_| true))? {
            found.extend(
                page.keys.into_iter().map(|(key, _)| String::from_utf8(key).expect("text")),
            );
        }
        Ok::<_, String>(found)
    };
    ["there a", "here b", "there c"].into_iter().for_each(use_of);
    let mut found = search("").expect("it answers");
    assert_eq!(found.pop().as_deref(), Some("here b"), "memory comes last");
    found.sort_unstable();
    assert_eq!(found, ["there a", "there c"]);
    assert_eq!(search("there c").expect("it answers"), ["there c"]);
    drop(server);
    until(|| search("there ").is_err());
    use_of("there d");
    assert_eq!(search("here ").expect("the store is not asked"), ["here b"]);
    assert_eq!(search("free ").expect("nothing to search"), [""; 0]);
    assert!(search("").is_err(), "what this node counts for the store is not told");
}

#[test]
fn a_full_table_shares_or_lets_pass() {
    let full = memory::Settings { max_keys: 1, max_bytes: 1 << 28 };
    for (on_full, expected) in [(OnFull::Share, DAY), (OnFull::Deny, 0), (OnFull::Allow, 0)] {
        let rule = Rule { on_full, ..rule("k", vec![fixed(2)]) };
        let handle = limiter(vec![rule], full).handle(Door::Smockron);
        let told = record(&handle, &uses_of(["k first", "k second", "k third"]));
        assert_eq!(told.last(), Some(&Ok(Some(expected))), "{on_full:?}");
    }
}
