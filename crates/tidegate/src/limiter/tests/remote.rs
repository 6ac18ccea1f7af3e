//! Decisions that are told later are counted as those that are told at once, and where a store
//! cannot be asked each rule has its own way.

use std::sync::atomic::Ordering::Relaxed;

use tidegate_core::rules::OnStoreError;

use super::stores::{at, decide_anywhere, node, runtime, words};
use super::*;
use crate::limiter::Outcome as Decided;
use crate::stores::remote::engines::redis;
use crate::stores::remote::settings::{Settings, StoreKind, Urls};

const JOBS: Limit =
    Limit { amount: 1, period: 0, algorithm: Algorithm::InFlight { per_window: false } };

fn decide(handle: &LimiterHandle, keys: &[&str], op: Op) -> Result<Said, InvalidRequest> {
    let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_bytes()).collect();
    runtime().block_on(decide_anywhere(handle, &keys, op, true))
}

/// How long until the next use, or `None` if no rule is for the key.
fn record(handle: &LimiterHandle, key: &str, at: Nanos) -> Result<Option<Nanos>, InvalidRequest> {
    let keys = [Key::new(key.as_bytes(), KeyOp::Record { cost: 1, at, late: 0 })];
    let (request, mut rows) = (Request::all_or_nothing(&keys), Rows::default());
    let verdict = runtime().block_on(handle.decide_async(&request, handle.now(), &mut rows))?;
    Ok((verdict.outcome != Decided::NoRule).then_some(verdict.delay))
}

fn ask(handle: &LimiterHandle, key: &str, op: KeyOp) -> Result<(Verdict, Rows), InvalidRequest> {
    let keys = [Key::new(key.as_bytes(), op)];
    let request = Request::all_or_nothing(&keys).with_end();
    let mut rows = Rows::default();
    let verdict = runtime().block_on(handle.decide_async(&request, handle.now(), &mut rows))?;
    Ok((verdict, rows))
}

/// The answer to a first try, with the ticket that it came by.
pub(super) fn attempt(handle: &LimiterHandle, key: &[u8]) -> (PendingVerdict, Answered) {
    let keys = [Key::new(key, try_of(false, 0))];
    let request = Request::all_or_nothing(&keys).with_end();
    let Ok(Decision::Pending(mut pending)) = handle.decide(&request, handle.now(), None) else {
        panic!("a store is asked")
    };
    let answer = std::future::poll_fn(|cx| pending.poll_answer(START, cx));
    let answered = runtime().block_on(answer);
    (pending, answered)
}

fn refuse(handle: &LimiterHandle, key: &str) -> Result<Said, InvalidRequest> {
    ask(handle, key, KeyOp::Refuse(1)).map(|(verdict, rows)| Said { verdict, rows })
}

fn try_of(waited: bool, booking_max: Nanos) -> KeyOp {
    KeyOp::TakeOrLeave(WaitAttempt { cost: 1, booking_max, waited, first_in_line: true })
}

fn rules() -> Vec<Rule> {
    vec![
        rule("k", vec![fixed(2)]),
        Rule { shadow: true, ..rule("shadow", vec![fixed(1)]) },
        rule("free", Vec::new()),
        rule("jobs", vec![JOBS]),
        Rule { shadow: true, ..rule("lent", vec![JOBS]) },
        rule("jarl", vec![limit(1, PERIOD, Algorithm::Jarl { exact: true })]),
        Rule { shared: true, ..rule("pool", vec![fixed(2)]) },
        rule("seen", vec![limit(1, PERIOD, Algorithm::Smockron { burst: 1 })]),
        rule("never", vec![Limit::DENY]),
        Rule { shadow: true, ..rule("ghost", vec![Limit::DENY]) },
    ]
}

/// Everything that can be asked, and what was said to it.
fn history(handle: &LimiterHandle) -> Vec<String> {
    let mut all = Vec::new();
    let take = Op::Take(1);
    let requests: [&[&str]; 25] = [
        &["k a"],
        &["k a"],
        &["k a"],
        &["k b", "free a"],
        &["k a", "free a"],
        &["k c", "k c"],
        &["k c"],
        &["nobody's"],
        &["free a"],
        &["shadow a"],
        &["shadow a"],
        &["pool a"],
        &["pool b"],
        &["pool c"],
        &["jobs a", "k d"],
        &["jobs a", "k d"],
        &["jarl a"],
        &["jarl a"],
        &["never a"],
        &["never a", "k h"],
        &["k h", "never a", "free a", "ghost a"],
        &["ghost a"],
        &["ghost a", "k h", "free a"],
        &["k e"; KEYS_MAX],
        &["k e"; KEYS_MAX + 1],
    ];
    all.extend(requests.map(|keys| words(&decide(handle, keys, take))));
    all.push(words(&decide(handle, &[], take)));
    all.push(words(&decide(handle, &["k a"], Op::Take(0))));
    all.push(words(&decide(handle, &["k a"], Op::Take(3))));
    all.push(words(&decide(handle, &["k a", "free a"], Op::Peek(1))));
    all.push(words(&decide(handle, &["never a"], Op::Take(u64::MAX))));
    all.push(words(&decide(handle, &["never a", "k a"], Op::Peek(1))));
    let now = handle.now().mono;
    for key in ["k f", "shadow f", "free f", "nobody's", "jobs f", "seen f", "never f", "ghost f"] {
        let moments = [now - 2 * PERIOD, now - PERIOD / 4, now, now + PERIOD / 4];
        all.extend(moments.map(|at| format!("{:?}", record(handle, key, at))));
    }
    let keys = ["k g", "shadow g", "free g", "nobody's", "jobs g", "lent g", "jarl g"];
    for key in keys.into_iter().chain(["never g", "ghost g"]) {
        for (waited, booking_max) in [(false, 0), (true, 0), (false, Nanos::MAX)] {
            let (verdict, _) = ask(handle, key, try_of(waited, booking_max)).expect("fit");
            let Verdict { outcome, granted, delay, booked, .. } = verdict;
            let held = verdict.held.is_some();
            all.push(format!("{key} {outcome:?} {granted} {held} {delay} {booked}"));
        }
    }
    let refused = ["k a", "k g", "k new", "free a", "nobody's", "shadow a", "never a", "ghost a"];
    all.extend(refused.map(|key| words(&refuse(handle, key))));
    all
}

#[test]
fn what_is_told_later_is_counted_as_what_is_told_at_once() {
    let server = redis::Server::start(&[]);
    let here = handle(rules());
    let settings = at(StoreKind::Redis, vec![server.url()]);
    let there = node(Clock::manual(START), rules(), &settings).handle(Door::Http);
    assert_eq!(history(&here), history(&there));
    assert_eq!(counted(&here), counted(&there));
    for key in ["k a", "k b", "k c", "k f", "k g", "shadow a", "shadow f", "shadow g", "jobs a"] {
        let seen = |handle: &LimiterHandle| {
            let stats = handle.limiter().stats(key.as_bytes(), handle.now());
            (stats.requests, stats.over)
        };
        assert_eq!(seen(&here), seen(&there), "{key}");
    }
}

#[test]
fn a_key_is_forgotten_wherever_it_was_counted() {
    let server = redis::Server::start(&[]);
    let settings = at(StoreKind::Redis, vec![server.url()]);
    let [one, other] = [(); 2].map(|()| node(Clock::manual(START), rules(), &settings));
    let handle = one.handle(Door::Http);
    for _ in 0..2 {
        assert!(decide(&handle, &["k a"], Op::Take(2)).expect("fit").is_allowed());
        let forget = |limiter: &Arc<Limiter>| runtime().block_on(limiter.forget(b"k a"));
        assert_eq!(forget(&other), Ok(true), "it was counted in the store");
        assert_eq!(forget(&other), Ok(false));
        assert_eq!(forget(&one), Ok(true), "what people see of it was counted here");
        assert_eq!(forget(&one), Ok(false));
    }
}

#[test]
fn a_use_in_flight_ends_where_it_began_and_nowhere_else() {
    let server = redis::Server::start(&[]);
    let settings = at(StoreKind::Redis, vec![server.url()]);
    let handle = node(Clock::manual(START), rules(), &settings).handle(Door::Http);
    let there = || decide(&handle, &["jobs a"], Op::Take(1)).expect("fit");
    // As while the store is away.
    let here = || {
        let (catalog, now) = (handle.limiter().catalog.load(), handle.now());
        let keys = [Key::take(b"jobs a", 1)];
        let request = Request::all_or_nothing(&keys).with_end();
        let mut plan = plan::Plan::new(&catalog, &request, Door::Http, now, None).expect("fit");
        handle.run_in_memory(&catalog, &mut plan, |key| keys[key].bytes, now);
        Said { verdict: plan.verdict, rows: plan.take_rows() }
    };
    let end = |taken: &Said| {
        let HeldKey { from, started, .. } = taken.rows.held[0];
        handle.release_uses(b"jobs a", 1, started, from);
    };
    let (one, other) = (there(), here());
    assert!(one.is_allowed() && one.rows.held[0].from == TakenFrom::Remote);
    assert!(other.is_allowed() && other.rows.held[0].from == TakenFrom::Slot);
    end(&other);
    assert!(!there().is_allowed(), "that one has not ended");
    assert!(here().is_allowed());
    end(&one);
    assert!(!here().is_allowed(), "that one has not ended");
    crate::stores::remote::engines::until(|| there().is_allowed());
}

/// A handle whose store has never answered.
fn alone(rules: Vec<Rule>) -> LimiterHandle {
    let handle = limiter(rules, ROOMY).handle(Door::Http);
    let url = Some(Urls::One("redis://127.0.0.1:1".to_owned()));
    let settings = Settings { kind: StoreKind::Redis, url, ..Settings::default() };
    handle.limiter().use_store(&settings).expect("sound settings");
    handle
}

fn by(on_store_error: OnStoreError, name: &str, limit: Limit) -> Rule {
    Rule { on_store_error, ..rule(name, vec![limit]) }
}

fn policies() -> Vec<Rule> {
    use OnStoreError::{Allow, Deny, Local};
    vec![
        by(Allow, "allow", fixed(1)),
        by(Deny, "deny", fixed(1)),
        by(Local, "local", fixed(1)),
        Rule { shadow: true, ..by(Deny, "shadow", fixed(1)) },
        by(Local, "jobs", JOBS),
        by(Local, "seen", limit(1, PERIOD, Algorithm::Smockron { burst: 1 })),
    ]
}

#[test]
fn one_rule_that_denies_decides_for_all_keys_and_nothing_is_taken_then() {
    let handle = alone(policies());
    let ask = |keys: &[&str], op| decide(&handle, keys, op).expect("fit");
    let denied = ask(&["allow a", "local a", "deny a"], Op::Take(1));
    assert!(!denied.is_allowed() && denied.verdict.delay == SECOND);
    assert_eq!(denied.refused_by(), Some("deny"));
    let rows = |answer: &Said| -> Vec<(usize, String, Basis, bool)> {
        let row = |at: &LimitRow| (at.key, at.rule.to_string(), at.basis, at.verdict.allowed);
        answer.rows.limits.iter().map(row).collect()
    };
    let row = |key, rule: &str, basis, allowed| (key, rule.to_owned(), basis, allowed);
    let expected = [
        row(0, "allow", Basis::Policy, true),
        row(1, "local", Basis::LocalCounts, true),
        row(2, "deny", Basis::Policy, false),
    ];
    assert_eq!(rows(&denied), expected);
    assert!(ask(&["shadow a"], Op::Take(1)).is_allowed(), "a rule in shadow denies nobody");
    assert!(ask(&["allow a"], Op::Peek(1)).is_allowed(), "a look is not counted");
    let both = ask(&["allow a", "local a"], Op::Take(1));
    assert!(both.is_allowed(), "nothing was taken before");
    assert_eq!(rows(&both), expected[..2], "of the keys that were asked about");
    let over = ask(&["allow a", "local a"], Op::Take(1));
    assert_eq!((over.is_allowed(), over.refused_by()), (false, Some("local")));
    let count = |rule: &str, verdict: &str, count: u64| {
        let labels = format!("door=\"http\",rule=\"{rule}\",verdict=\"{verdict}\"");
        format!("tidegate_decisions_total{{{labels}}} {count}")
    };
    let expected = [
        count("allow", "allow", 1),
        count("deny", "refuse", 1),
        count("local", "allow", 1),
        count("local", "refuse", 1),
        count("shadow", "allow", 1),
    ];
    assert_eq!(counted(&handle), expected);
    let expected = [("allow", 3), ("deny", 1), ("local", 3), ("shadow", 1)];
    assert_eq!(degraded(&handle), expected.map(|(rule, count)| (rule.to_owned(), count)));
}

/// How many decisions of each rule were made without the store.
fn degraded(handle: &LimiterHandle) -> Vec<(String, u64)> {
    let limiter = handle.limiter();
    let page = limiter.metrics().encode(Default::default());
    let row = |line: &str| {
        let rest = line.strip_prefix("tidegate_degraded_total{door=\"http\",rule=\"")?;
        let (rule, rest) = rest.split_once("\",policy=\"")?;
        let (policy, count) = rest.split_once("\"} ")?;
        let expected = if rule == "shadow" { "deny" } else { rule };
        assert_eq!(policy, expected);
        Some((rule.to_owned(), count.parse().expect("a number")))
    };
    page.lines().filter_map(row).collect()
}

#[test]
fn a_use_that_the_store_has_not_counted_is_not_given_back_to_it() {
    let server = redis::Server::start(&[]);
    let settings = at(StoreKind::Redis, vec![server.url()]);
    let handle = node(Clock::manual(START), rules(), &settings).handle(Door::Http);
    let take = || attempt(&handle, b"k a");
    let (first, (other, answered)) = (take(), take());
    assert!(first.1.verdict.is_allowed() && answered.verdict.is_allowed());
    let uncounted = Verdict { degraded: true, ..answered.verdict };
    other.give_back(Answered { verdict: uncounted, ..answered });
    assert_eq!(take().1.verdict.outcome, Decided::Later, "both uses are still counted");
    first.0.give_back(first.1);
    assert_eq!(take().1.verdict.outcome, Decided::Allowed);
}

#[test]
fn a_ticket_that_took_nothing_gives_nothing_back() {
    let server = redis::Server::start(&[]);
    let settings = at(StoreKind::Redis, vec![server.url()]);
    let handle = node(Clock::manual(START), rules(), &settings).handle(Door::Http);
    let drop_answer = |key: &str, op| {
        let keys = [Key::new(key.as_bytes(), op)];
        let decision = handle.decide(&Request::all_or_nothing(&keys), handle.now(), None);
        drop(decision.expect("fit"));
    };
    let left =
        |key| decide(&handle, &[key], Op::Peek(1)).expect("fit").rows.limits[0].verdict.remaining;
    assert!(decide(&handle, &["k a"], Op::Take(1)).expect("fit").is_allowed());
    drop_answer("k a", KeyOp::Refuse(1));
    drop_answer("k a", KeyOp::Peek(1));
    drop_answer("k b", KeyOp::Record { cost: 1, at: handle.now().mono, late: 0 });
    for key in ["k a", "k b"] {
        // The first question is answered after those; what they give back is asked before the
        // second.
        left(key);
        assert_eq!(left(key), 1, "{key}: one use was taken, or has happened");
    }
}

#[test]
fn uses_in_flight_that_are_counted_here_are_given_back_here() {
    let handle = alone(policies());
    for _ in 0..3 {
        let first = decide(&handle, &["allow a", "jobs a"], Op::Take(1)).expect("fit");
        assert!(first.is_allowed(), "the one before has ended");
        let held: Vec<_> = first.rows.held.iter().map(|held| (held.key, held.from)).collect();
        assert_eq!(held, [(1, TakenFrom::Slot)]);
        assert!(!decide(&handle, &["jobs a"], Op::Take(1)).expect("fit").is_allowed());
        handle.release_uses(b"jobs a", 1, first.rows.held[0].started, TakenFrom::Slot);
        let (pending, answered) = attempt(&handle, b"jobs a");
        assert!(answered.verdict.is_allowed(), "the one before has ended");
        assert_eq!(answered.rows.held[0].from, TakenFrom::Slot);
        pending.give_back(answered);
    }
}

#[test]
fn one_who_waits_goes_waits_on_or_is_counted_here() {
    let handle = alone(policies());
    let ask = |key| {
        let (verdict, _) = ask(&handle, key, try_of(false, 0)).expect("fit");
        assert!(verdict.degraded);
        assert_eq!((verdict.held, verdict.booked), (None, 0));
        (verdict.outcome, verdict.delay)
    };
    let taken = (Decided::Allowed, 0);
    assert_eq!([ask("allow a"), ask("allow a")], [taken, taken]);
    assert_eq!(ask("deny a"), (Decided::Later, SECOND));
    assert_eq!([ask("shadow a"), ask("shadow a")], [taken, taken]);
    assert_eq!(ask("local a"), taken);
    assert_eq!(ask("local a").0, Decided::Later);
    let expected = [("allow", 2), ("local", 1), ("shadow", 2)];
    assert_eq!(degraded(&handle), expected.map(|(rule, count)| (rule.to_owned(), count)));
}

#[test]
fn a_use_that_has_happened_is_written_down_here_or_let_go() {
    let handle = alone(policies());
    let half = handle.now().mono - PERIOD / 2;
    for key in ["allow a", "deny a", "shadow a"] {
        for _ in 0..3 {
            assert_eq!(record(&handle, key, half), Ok(Some(0)), "{key}");
        }
    }
    assert_eq!(record(&handle, "seen a", half - PERIOD), Ok(Some(0)), "it was long ago");
    assert_eq!(record(&handle, "seen a", half), Ok(Some(PERIOD)));
    let requests = |key: &[u8]| handle.limiter().stats(key, handle.now()).requests;
    assert_eq!((requests(b"seen a"), requests(b"allow a")), (2, 3), "each is counted once");
}

/// Decides on a use while as many decisions of the handle are pending as may be.
fn decide_crowded(handle: &LimiterHandle, key: &str) -> (Verdict, Rows) {
    let before = handle.pending.swap(usize::MAX / 2, Relaxed);
    let (keys, mut rows) = ([Key::take(key.as_bytes(), 1)], Rows::default());
    let decision = handle.decide(&Request::all_or_nothing(&keys), handle.now(), Some(&mut rows));
    handle.pending.store(before, Relaxed);
    (decision.expect("fit").ready().expect("decided without the store"), rows)
}

#[test]
fn beyond_the_bound_on_pending_decisions_the_rules_decide_at_once() {
    let handle = alone(policies());
    for (key, allowed) in [
        ("allow a", true),
        ("allow a", true),
        ("deny a", false),
        ("local a", true),
        ("local a", false),
    ] {
        let (verdict, rows) = decide_crowded(&handle, key);
        assert_eq!((verdict.is_allowed(), verdict.degraded), (allowed, true), "{key}");
        assert!(rows.limits.iter().all(LimitRow::is_degraded), "{key}");
    }
    let page = handle.limiter().metrics().encode(Default::default());
    let counted = "tidegate_store_errors_total{store=\"redis\",kind=\"crowded\"} 5";
    assert!(page.contains(counted), "{page}");
}

#[test]
fn what_lets_nothing_pass_needs_no_store_and_no_room() {
    use OnStoreError::{Allow, Deny, Local};
    let never = |policy, name: &str| by(policy, name, Limit::DENY);
    let ghost = Rule { shadow: true, ..never(Deny, "ghost") };
    let rules = || {
        let never = [never(Allow, "never"), never(Deny, "no"), never(Local, "not")];
        never.map(|rule| Rule { on_full: OnFull::Allow, ..rule }).into_iter().chain([ghost.clone()])
    };
    let full = memory::Settings { max_keys: 1, max_bytes: 1 << 20 };
    let here = limiter(rules().collect(), full).handle(Door::Http);
    let away = alone(rules().chain(policies()).collect());
    for handle in [&here, &away] {
        for key in ["never a", "no a", "not a"] {
            let rule = key.split(' ').next();
            let answer = decide(handle, &[key], Op::Take(7)).expect("whatever the cost");
            let Verdict { delay, firm, rate, amount, period, .. } = answer.verdict;
            assert!(!answer.is_allowed() && answer.rows.is_denied(), "{key}");
            assert_eq!((answer.refused_by(), delay, firm), (rule, Nanos::MAX, true), "{key}");
            assert_eq!((rate, amount, period), (0.0, 0, SECOND), "{key}");
            let (tried, _) = ask(handle, key, try_of(true, Nanos::MAX)).expect("fit");
            assert_eq!((tried.outcome, tried.delay), (Decided::TooLong, Nanos::MAX));
            assert!(refuse(handle, key).expect("fit").rows.is_denied());
            assert!(decide_crowded(handle, key).1.is_denied(), "{key}");
            assert_eq!(record(handle, key, handle.now().mono), Ok(Some(Nanos::MAX)));
        }
        assert!(decide(handle, &["ghost a"], Op::Take(1)).expect("fit").is_allowed());
        assert_eq!(record(handle, "ghost a", handle.now().mono), Ok(Some(0)));
        assert_eq!(handle.limiter().size().keys, 0, "nothing is remembered");
    }
    let one = |key: &str| {
        decide_one(&here, key.as_bytes(), Op::Take(1), here.now()).expect("a valid request")
    };
    let never = one("never a");
    assert_eq!((never.is_allowed(), never.delay, never.firm), (false, Nanos::MAX, true));
    assert_eq!((never.rate, never.amount, never.period), (0.0, 0, SECOND));
    let ghost = one("ghost a");
    assert_eq!((ghost.is_allowed(), ghost.amount, ghost.period), (true, 0, SECOND));
    let mixed = decide(&away, &["local a", "never a"], Op::Take(1)).expect("fit");
    assert_eq!((mixed.refused_by(), mixed.rows.limits.len()), (Some("never"), 1));
    assert!(
        decide(&away, &["local a"], Op::Take(1)).expect("fit").is_allowed(),
        "nothing was taken"
    );
}
