//! Rules that count in this node beside rules that count in a remote store, in one request. The
//! store is real.

use tidegate_core::rules::{Consistency, OnStoreError};

use super::super::Outcome;
use super::stores::{at, node, runtime};
use super::*;
use crate::stores::remote::engines::{redis, until};
use crate::stores::remote::settings::StoreKind;

/// A rule that counts in this node, whatever the store.
fn local(name: &str, limits: Vec<Limit>) -> Rule {
    Rule { consistency: Consistency::Local, ..rule(name, limits) }
}

fn flight(amount: u64) -> Limit {
    limit(amount, 0, Algorithm::InFlight { per_window: false })
}

/// What was said to uses of these keys.
fn ask(handle: &LimiterHandle, keys: &[(&str, KeyOp)]) -> Result<(Verdict, Rows), InvalidRequest> {
    let keys: Vec<Key<'_>> = keys.iter().map(|(key, op)| Key::new(key.as_bytes(), *op)).collect();
    let request = Request::all_or_nothing(&keys).with_end();
    let mut rows = Rows::default();
    let verdict = runtime().block_on(handle.decide_async(&request, handle.now(), &mut rows))?;
    Ok((verdict, rows))
}

fn take_all(handle: &LimiterHandle, keys: &[&str]) -> (Verdict, Rows) {
    let keys: Vec<_> = keys.iter().map(|key| (*key, KeyOp::Take(1))).collect();
    ask(handle, &keys).expect("a valid request")
}

fn left(handle: &LimiterHandle, key: &str) -> u64 {
    let (_, rows) = ask(handle, &[(key, KeyOp::Peek(1))]).expect("a valid request");
    rows.limits[0].verdict.remaining
}

#[test]
fn each_rule_counts_where_it_says_and_a_request_takes_from_all_or_none() {
    let server = redis::Server::start(&[]);
    let rules = || vec![local("here", vec![fixed(5)]), rule("there", vec![fixed(3)])];
    let settings = at(StoreKind::Redis, vec![server.url()]);
    let [one, other] =
        [0, 1].map(|_| node(Clock::manual(START), rules(), &settings).handle(Door::Http));
    let both = ["there a", "here a"];
    for taken in 1..=3 {
        let (verdict, rows) = take_all(&one, &both);
        assert_eq!(
            (verdict.outcome, verdict.granted, verdict.degraded),
            (Outcome::Allowed, 1, false)
        );
        let keys: Vec<_> = rows.limits.iter().map(|row| (row.key, &*row.rule)).collect();
        assert_eq!(keys, [(0, "there"), (1, "here")]);
        assert_eq!((left(&one, "here a"), left(&one, "there a")), (5 - taken, 3 - taken));
    }
    let (verdict, rows) = take_all(&one, &both);
    assert_eq!((verdict.outcome, verdict.granted), (Outcome::Refused, 0));
    assert_eq!((rows.refused_by.as_deref(), verdict.amount), (Some("there"), 3));
    assert_eq!(rows.limits[1].verdict.remaining, 2, "what was taken here was given back");
    assert_eq!(left(&one, "here a"), 2);
    // Every node has the whole local limit for itself, and one of the other.
    assert_eq!((left(&other, "here a"), left(&other, "there a")), (5, 0));
    for _ in 0..2 {
        assert!(take_all(&one, &["here a"]).0.is_allowed());
    }
    let (verdict, rows) = take_all(&one, &["there b", "here a"]);
    assert_eq!((verdict.is_allowed(), rows.refused_by.as_deref()), (false, Some("here")));
    assert_eq!(left(&other, "there b"), 3, "the store was not asked");
    let stats = one.limiter().stats(b"here a", one.now());
    assert_eq!((stats.requests, stats.over), (7, 1));
}

#[test]
fn uses_in_flight_end_where_they_were_taken() {
    let server = redis::Server::start(&[]);
    let rules = vec![local("here", vec![flight(1)]), rule("there", vec![flight(1)])];
    let limiter = node(Clock::manual(START), rules, &at(StoreKind::Redis, vec![server.url()]));
    let handle = limiter.handle(Door::Http);
    let both = ["here a", "there a"];
    for _ in 0..3 {
        let (verdict, rows) = take_all(&handle, &both);
        assert!(verdict.is_allowed());
        assert_eq!(rows.held.len(), 2);
        assert!(!take_all(&handle, &["here a"]).0.is_allowed());
        limiter.clock().advance(SECOND);
        for HeldKey { key, from, started } in rows.held {
            handle.release_uses(both[key].as_bytes(), 1, started, from);
        }
        until(|| left(&handle, "there a") == 1);
    }
    assert!(take_all(&handle, &["there a"]).0.is_allowed());
    assert!(!take_all(&handle, &both).0.is_allowed());
    assert_eq!(left(&handle, "here a"), 1, "given back with the refusal");
}

#[test]
fn a_store_that_is_away_does_not_matter_to_local_rules() {
    let server = redis::Server::start(&[]);
    let deny = Rule { on_store_error: OnStoreError::Deny, ..rule("there", vec![fixed(2)]) };
    let rules = vec![local("here", vec![fixed(2)]), deny, rule("lenient", vec![fixed(2)])];
    let limiter = node(Clock::manual(START), rules, &at(StoreKind::Redis, vec![server.url()]));
    let handle = limiter.handle(Door::Http);
    drop(server);
    until(|| {
        limiter.store_away().is_some() || ask(&handle, &[("there z", KeyOp::Peek(1))]).is_err()
    });
    let (verdict, _) = take_all(&handle, &["here a"]);
    assert_eq!((verdict.outcome, verdict.degraded), (Outcome::Allowed, false));
    let (verdict, rows) = take_all(&handle, &["here a", "there a"]);
    assert_eq!((verdict.outcome, verdict.degraded), (Outcome::Refused, true));
    assert_eq!(rows.refused_by.as_deref(), Some("there"));
    assert_eq!(left(&handle, "here a"), 1, "given back");
    let (verdict, _) = take_all(&handle, &["here a", "lenient a"]);
    assert_eq!((verdict.outcome, verdict.degraded), (Outcome::Allowed, true));
    assert_eq!(left(&handle, "here a"), 0, "counted, though the store was not");
}

#[test]
fn what_cannot_be_given_back_is_not_taken_beside_another_store() {
    let server = redis::Server::start(&[]);
    let strict = limit(5, DAY, Algorithm::Average { strict: true });
    let jarl = limit(5, DAY, Algorithm::Jarl { exact: true });
    let rules = vec![
        local("strict", vec![strict]),
        local("jarl", vec![jarl]),
        rule("there", vec![fixed(5)]),
    ];
    let limiter = node(Clock::manual(START), rules, &at(StoreKind::Redis, vec![server.url()]));
    let handle = limiter.handle(Door::Http);
    for key in ["strict a", "jarl a"] {
        let take = |key| (key, KeyOp::Take(1));
        let invalid = ask(&handle, &[take(key), take("there a")]).err();
        assert_eq!(invalid, Some(InvalidRequest::NoRefund));
        let peek = |key| (key, KeyOp::Peek(1));
        assert!(ask(&handle, &[peek(key), peek("there a")]).is_ok(), "a look takes nothing");
        assert!(ask(&handle, &[take(key)]).is_ok_and(|(verdict, _)| verdict.is_allowed()));
    }
    assert_eq!(left(&handle, "there a"), 5);
}

#[test]
fn what_may_be_taken_in_part_is_the_least_of_both() {
    let server = redis::Server::start(&[]);
    for (here, there) in [(2, 5), (5, 2)] {
        let (a, b) = (format!("here{here}"), format!("there{there}"));
        let rules = vec![local(&a, vec![fixed(here)]), rule(&b, vec![fixed(there)])];
        let limiter = node(Clock::manual(START), rules, &at(StoreKind::Redis, vec![server.url()]));
        let handle = limiter.handle(Door::Http);
        let (a, b) = (format!("{a} k"), format!("{b} k"));
        let keys = [(a.as_str(), KeyOp::TakeUpTo(4)), (b.as_str(), KeyOp::TakeUpTo(4))];
        let (verdict, _) = ask(&handle, &keys).expect("a valid request");
        assert_eq!((verdict.outcome, verdict.granted), (Outcome::Allowed, 2));
        assert_eq!((left(&handle, &a), left(&handle, &b)), (here - 2, there - 2));
    }
}

#[test]
fn a_use_whose_caller_leaves_is_given_back_to_both() {
    let server = redis::Server::start(&[]);
    let rules = vec![local("here", vec![fixed(2)]), rule("there", vec![fixed(2)])];
    let limiter = node(Clock::manual(START), rules, &at(StoreKind::Redis, vec![server.url()]));
    let handle = limiter.handle(Door::Http);
    let keys = [Key::take(b"here a", 1), Key::take(b"there a", 1)];
    let decision = handle.decide(&Request::all_or_nothing(&keys), handle.now(), None);
    assert!(matches!(decision, Ok(Decision::Pending(_))));
    drop(decision);
    until(|| (left(&handle, "here a"), left(&handle, "there a")) == (2, 2));
}
