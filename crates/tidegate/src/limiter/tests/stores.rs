//! One contract for all stores: whatever is asked, counts that lie in Redis, in a Redis Cluster or
//! in etcd say what counts in memory say; several nodes never grant more than one would; and a
//! store that is away is dealt with as the rules say. Real servers, started by the tests.

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::Poll;

use proptest::test_runner::{Config, TestRunner};
use tidegate_core::rules::OnStoreError;

use super::*;
use crate::settings::units::Span;
use crate::stores::remote::engines::{etcd, redis, until};
use crate::stores::remote::settings::{Settings, StoreKind, Urls};
use crate::waiting::{NotAdmitted, WaitRequest, WaiterBounds, WaiterLimit, WaitingRequests};

/// Histories for each store. Every one of them starts a node.
const HISTORIES: u32 = 12;
/// Long enough for a busy machine: only silence is meant to be late.
const PATIENT: Span = Span(std::time::Duration::from_secs(20));

/// As many in any day: on the machine's clock a window would end at midnight.
fn daily(amount: u64) -> Limit {
    limit(amount, DAY, Algorithm::SlidingLog)
}

pub(super) fn at(kind: StoreKind, urls: Vec<String>) -> Settings {
    Settings { kind, url: Some(Urls::Several(urls)), timeout: Some(PATIENT), ..Settings::default() }
}

/// The same store, for counts that no other test has.
fn apart(settings: &Settings) -> Settings {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    Settings { prefix: Some(format!("t{}", NEXT.fetch_add(1, Relaxed))), ..settings.clone() }
}

/// A node whose counts lie there, once it has heard of the store.
pub(super) fn node(clock: Clock, rules: Vec<Rule>, settings: &Settings) -> Arc<Limiter> {
    let rules = RuleSet::new(rules, None);
    let limiter = Limiter::new(clock, Arc::new(Metrics::new()), rules, ROOMY);
    limiter.use_store(settings).expect("a store to try");
    until(|| limiter.store_away().is_none());
    limiter
}

pub(super) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

#[derive(Clone, Debug)]
enum Ask {
    Take(Vec<u8>, u64),
    Peek(Vec<u8>),
    /// The oldest use in flight ends.
    End,
}

fn asks() -> impl Strategy<Value = Vec<(Nanos, Ask)>> {
    let keys =
        || prop_oneof![(0_u8..3).prop_map(|key| vec![key]), Just(vec![0, 1]), Just(vec![2, 1])];
    let ask = prop_oneof![
        6 => (keys(), 1_u64..3).prop_map(|(keys, cost)| Ask::Take(keys, cost)),
        1 => keys().prop_map(Ask::Peek),
        2 => Just(Ask::End),
    ];
    prop::collection::vec((wait(), ask), 1..40)
}

fn limits() -> impl Strategy<Value = Vec<Limit>> {
    let in_flight = (1_u64..4, any::<bool>()).prop_map(|(amount, per_window)| {
        let period = if per_window { PERIOD } else { 0 };
        limit(amount, period, Algorithm::InFlight { per_window })
    });
    let any = prop_oneof![4 => any_limit(), 1 => in_flight];
    prop::collection::vec(any, 1..3)
}

/// What is compared of an answer: all but the moment, which each store has its own of, and where
/// uses in flight were taken from.
pub(super) fn words(said: &Result<Said, InvalidRequest>) -> String {
    match said {
        Ok(Said { verdict, rows: Rows { refused_by, held, limits } }) => {
            let held: Vec<usize> = held.iter().map(|held| held.key).collect();
            let (allowed, delay) = (verdict.is_allowed(), verdict.delay);
            format!("{allowed} {delay} {refused_by:?} {held:?} {limits:?}")
        }
        Err(invalid) => invalid.to_string(),
    }
}

/// As [`decide_keys`], wherever the counts lie.
pub(super) async fn decide_anywhere(
    handle: &LimiterHandle,
    keys: &[&[u8]],
    op: Op,
    can_end: bool,
) -> Result<Said, InvalidRequest> {
    let (keys, mut rows) = (keys_of(keys, op), Rows::default());
    let request = Request { can_end, ..Request::all_or_nothing(&keys) };
    let verdict = handle.decide_async(&request, handle.now(), &mut rows).await?;
    Ok(Said { verdict, rows })
}

/// A use of one key.
async fn take_one(handle: &LimiterHandle, key: &[u8]) -> Said {
    decide_anywhere(handle, &[key], Op::Take(1), false).await.expect("a valid request")
}

/// Plays a history on both, and compares every word.
fn same(
    settings: &Settings,
    limits: &[Limit],
    history: Vec<(Nanos, Ask)>,
) -> Result<(), TestCaseError> {
    let rules = || vec![rule("k", limits.to_vec())];
    let here = handle(rules());
    let clock = Clock::manual(START);
    let there = node(clock.clone(), rules(), &apart(settings)).handle(Door::Http);
    let runtime = runtime();
    let mut held: Vec<(Vec<Vec<u8>>, u64, [Said; 2])> = Vec::new();
    for (pause, ask) in history {
        here.limiter().clock().advance(pause);
        clock.advance(pause);
        let (keys, op) = match ask {
            Ask::Take(keys, cost) => (names(&keys), Op::Take(cost)),
            Ask::Peek(keys) => (names(&keys), Op::Peek(1)),
            Ask::End if held.is_empty() => continue,
            Ask::End => {
                let (keys, cost, said) = held.remove(0);
                for (handle, said) in [&here, &there].into_iter().zip(said) {
                    for HeldKey { key, from, started } in said.rows.held {
                        handle.release_uses(&keys[key], cost, started, from);
                    }
                }
                continue;
            }
        };
        let bytes: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let one = decide_held(&here, &bytes, op, here.now());
        let two = runtime.block_on(decide_anywhere(&there, &bytes, op, true));
        prop_assert_eq!(words(&one), words(&two));
        if let (Ok(one), Ok(two), Op::Take(cost)) = (one, two, op)
            && !one.rows.held.is_empty()
        {
            held.push((keys, cost, [one, two]));
        }
    }
    runtime.block_on(there.limiter().close());
    Ok(())
}

fn all_say_the_same(settings: &Settings) {
    let mut runner = TestRunner::new(Config {
        cases: HISTORIES,
        failure_persistence: None,
        ..Config::default()
    });
    let histories = (limits(), asks());
    runner
        .run(&histories, |(limits, history)| same(settings, &limits, history))
        .unwrap_or_else(|failure| panic!("{failure}"));
}

/// Three nodes, and everybody wants the same: exactly what there is is granted.
fn nodes_share_one_limit(settings: &Settings) {
    let settings = apart(settings);
    let rules = || vec![rule("k", vec![daily(50)]), rule("c", vec![daily(70)])];
    let nodes: Vec<_> = (0..3).map(|_| node(Clock::system(), rules(), &settings)).collect();
    let granted = runtime().block_on(async {
        let mut asking = tokio::task::JoinSet::new();
        for number in 0..180 {
            let handle = nodes[number % 3].handle(Door::Http);
            asking.spawn(async move {
                // Every second one wants two keys at once, which may lie apart.
                let both: [&[u8]; 2] = [b"k one", b"c two"];
                let keys = if number % 2 == 0 { &both[..1] } else { &both[..] };
                let said = decide_anywhere(&handle, keys, Op::Take(1), false).await;
                said.expect("a valid request").is_allowed()
            });
        }
        let mut granted = 0;
        while let Some(answer) = asking.join_next().await {
            granted += usize::from(answer.expect("an answer"));
        }
        granted
    });
    // A use of two keys that lie apart may be charged and taken back while others are refused.
    let least = if settings.is_cluster() && settings.kind == StoreKind::Redis { 1 } else { 50 };
    assert!((least..=50).contains(&granted), "{granted} of 50");
}

#[test]
fn redis_keeps_the_contract() {
    let server = redis::Server::start(&[]);
    let settings = at(StoreKind::Redis, vec![server.url()]);
    all_say_the_same(&settings);
    nodes_share_one_limit(&settings);
}

#[test]
fn a_redis_cluster_keeps_the_contract() {
    let cluster = redis::Cluster::start();
    let settings = at(StoreKind::Redis, cluster.urls());
    all_say_the_same(&settings);
    nodes_share_one_limit(&settings);
}

#[test]
fn etcd_keeps_the_contract() {
    let member = etcd::Member::start(&[]);
    let settings = at(StoreKind::Etcd, vec![member.url()]);
    all_say_the_same(&settings);
    nodes_share_one_limit(&settings);
}

/// Asks until the store is known to be away; what was said at last.
fn asked_until_away(limiter: &Arc<Limiter>, key: &[u8]) -> Said {
    let handle = limiter.handle(Door::Http);
    let runtime = runtime();
    let ask = || runtime.block_on(take_one(&handle, key));
    until(|| {
        let _ = ask();
        limiter.store_away().is_some()
    });
    ask()
}

#[test]
fn without_its_store_a_rule_allows_denies_or_counts_by_itself() {
    let server = redis::Server::start(&[]);
    let policy = |name: &str, on_store_error| Rule { on_store_error, ..rule(name, vec![daily(2)]) };
    let rules = vec![
        policy("allow", OnStoreError::Allow),
        policy("deny", OnStoreError::Deny),
        policy("local", OnStoreError::Local),
    ];
    let settings = Settings { timeout: None, ..at(StoreKind::Redis, vec![server.url()]) };
    let limiter = node(Clock::system(), rules, &settings);
    let handle = limiter.handle(Door::Http);
    let runtime = runtime();
    let ask = |key: &[u8]| runtime.block_on(take_one(&handle, key));
    let goes = |key: &[u8]| ask(key).is_allowed();
    assert!(goes(b"allow k") && goes(b"deny k") && goes(b"local k"));
    server.halt();
    assert!(asked_until_away(&limiter, b"allow k").is_allowed());
    for _ in 0..5 {
        assert!(goes(b"allow k"));
        let denied = ask(b"deny k");
        assert!(!denied.is_allowed() && denied.verdict.delay > 0);
        assert_eq!(denied.refused_by(), Some("deny"));
    }
    let local = [(); 3].map(|()| goes(b"local k"));
    assert_eq!(local, [true, true, false], "two of its own, whatever was counted elsewhere");
    server.go_on();
    until(|| limiter.store_away().is_none());
    until(|| !goes(b"allow k"));
    let page = limiter.metrics().encode(Default::default());
    let errors = "tidegate_store_errors_total{store=\"redis\"";
    assert!(page.contains(&format!("{errors},kind=\"timeout\"}}")), "{page}");
    assert!(page.contains(&format!("{errors},kind=\"away\"}}")), "{page}");
}

#[test]
fn a_store_that_comes_late_is_found() {
    let mut server = redis::Server::start(&[]);
    server.kill();
    let rules = vec![Rule { on_store_error: OnStoreError::Deny, ..rule("k", vec![daily(1)]) }];
    let limiter =
        Limiter::new(Clock::system(), Arc::new(Metrics::new()), RuleSet::new(rules, None), ROOMY);
    limiter.use_store(&at(StoreKind::Redis, vec![server.url()])).expect("a store to try");
    let handle = limiter.handle(Door::Http);
    let runtime = runtime();
    let goes = || runtime.block_on(take_one(&handle, b"k 1")).is_allowed();
    assert!(!goes());
    server.start_again();
    until(|| limiter.store_away().is_none());
    assert!(goes());
    assert!(!goes());
    runtime.block_on(async {
        assert_eq!(limiter.forget(b"k 1").await, Ok(true));
    });
    assert!(goes(), "forgotten wherever it was counted");
}

#[test]
fn one_who_leaves_while_the_store_is_asked_takes_nothing() {
    let server = redis::Server::start(&[]);
    let limiter = node(
        Clock::system(),
        vec![rule("k", vec![daily(1)])],
        &at(StoreKind::Redis, vec![server.url()]),
    );
    let waiting = WaitingRequests::new(&limiter);
    let waiters = WaiterLimit::new(limiter.metrics(), Door::Http, WaiterBounds::default());
    let handle = limiter.handle(Door::Http);
    let runtime = runtime();
    let ask = WaitRequest { key: b"k 1", cost: 1, max_wait: None, can_end: false };
    server.halt();
    runtime.block_on(async {
        let mut passing = pin!(waiting.admit(&handle, &waiters, ask));
        let first = std::future::poll_fn(|cx| Poll::Ready(passing.as_mut().poll(cx).is_ready()));
        assert!(!first.await, "nobody can have answered");
    });
    server.go_on();
    until(|| {
        let peek = runtime.block_on(decide_anywhere(&handle, &[b"k 1"], Op::Peek(1), false));
        let left = peek.expect("a valid request").rows.limits[0].verdict.remaining;
        // It was counted, so it was taken; and it is there again.
        limiter.stats(b"k 1", handle.now()).requests == 1 && left == 1
    });
    // Who comes in its place goes, and the next one waits until it is told that it waits too long.
    runtime.block_on(async {
        assert!(waiting.admit(&handle, &waiters, ask).await.is_ok());
        let brief = WaitRequest { max_wait: Some(0), ..ask };
        let late = waiting.admit(&handle, &waiters, brief).await;
        assert!(
            matches!(late, Err(NotAdmitted::TooLate(refusal)) if refusal.rows.limits.len() == 1)
        );
    });
    assert!(waiters.is_empty() && waiting.is_empty());
}
