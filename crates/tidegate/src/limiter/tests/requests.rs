//! Requests: all or nothing over limits and keys, who refused, what is charged, what is unfit,
//! and that a look changes nothing.

use tidegate_core::key::KEY_BYTES_MAX;

use super::*;

#[test]
fn a_refused_request_takes_nothing_anywhere() {
    let gcra = |amount| limit(amount, DAY, Algorithm::Gcra { burst: amount });
    let handle = handle(vec![
        rule("few", vec![fixed(1)]),
        rule("many", vec![fixed(9), limit(8, DAY, Algorithm::SlidingLog), gcra(7)]),
    ]);
    assert!(take(&handle, &["few a", "many a"]).is_allowed());
    for keys in [["few a", "many a"], ["many a", "few a"]] {
        let answer = take(&handle, &keys);
        assert!(!answer.is_allowed());
        assert_eq!(answer.refused_by(), Some("few"));
        assert!(answer.verdict.delay > 0);
    }
    let verdicts = take(&handle, &["many a"]).rows.limits;
    let left: Vec<_> = verdicts.iter().map(|limit| limit.verdict.remaining).collect();
    assert_eq!(left, [7, 6, 5], "two uses taken, none by what was refused");
}

#[test]
fn strict_averages_and_bookings_remember_what_was_refused() {
    let handle = handle(vec![
        rule("never", vec![fixed(1)]),
        rule("strict", vec![limit(100, DAY, Algorithm::Average { strict: true })]),
        rule("leaky", vec![limit(100, DAY, Algorithm::Average { strict: false })]),
        rule("jarl", vec![limit(100, DAY, Algorithm::Jarl { exact: false })]),
    ]);
    assert!(take(&handle, &["never x"]).is_allowed());
    for _ in 0..10 {
        assert!(!take(&handle, &["never x", "strict x", "leaky x", "jarl x"]).is_allowed());
    }
    // The first of ten uses at one instant reads 0, the tenth 9, and the next would read 10.
    assert_eq!(remaining(&handle, "strict x"), 90);
    assert_eq!(remaining(&handle, "leaky x"), 100);
    assert_eq!(remaining(&handle, "jarl x"), 90);
}

#[test]
fn the_same_count_twice_is_charged_once() {
    let shared = Rule { shared: true, ..rule("shared", vec![fixed(5)]) };
    let handle = handle(vec![rule("own", vec![fixed(5)]), shared]);
    let answer = take(&handle, &["own a", "own a", "own b", "shared a", "shared b"]);
    let charged: Vec<_> = answer.rows.limits.iter().map(|limit| limit.key).collect();
    assert_eq!(charged, [0, 2, 3]);
    for key in ["own a", "own b", "shared a", "shared z"] {
        assert_eq!(remaining(&handle, key), 4, "{key}");
    }
}

#[test]
fn beside_a_cost_that_can_never_be_had_others_are_judged_by_their_own() {
    let handle = handle(vec![rule("few", vec![fixed(2), fixed(9)]), rule("many", vec![fixed(8)])]);
    for _ in 0..5 {
        assert!(take(&handle, &["many a"]).is_allowed());
    }
    let mut rows = Rows::default();
    let keys = [("few a", 4), ("many a", 4), ("many b", 4), ("few b", 1)];
    let keys = keys.map(|(key, cost)| Key::take(key.as_bytes(), cost));
    let request = Request::all_or_nothing(&keys);
    let (decision, is_impossible) =
        handle.decide_or_refuse(&request, handle.now(), Some(&mut rows)).expect("it is decided");
    assert!(is_impossible && !decision.ready().expect("in memory").is_allowed());
    let said = rows.limits.iter().map(|row| (row.key, row.verdict.allowed, row.verdict.delay));
    let said: Vec<_> = said.map(|(key, allowed, delay)| (key, allowed, delay <= DAY)).collect();
    let (never, later, now) = ((false, false), (false, true), (true, true));
    let expected = [(0, never), (0, now), (1, later), (2, now), (3, now), (3, now)];
    assert_eq!(said, expected.map(|(key, (allowed, is_soon))| (key, allowed, is_soon)));
    assert_eq!(remaining(&handle, "many b"), 8, "nothing is taken");
}

#[test]
fn keys_of_a_shared_rule_share() {
    let handle = handle(vec![Rule { shared: true, ..rule("all", vec![fixed(3)]) }]);
    let over: Vec<bool> = (0..5)
        .map(|n| decide_one(&handle, format!("all {n}").as_bytes(), Op::Take(1), handle.now()))
        .map(|verdict| !verdict.expect("a valid request").is_allowed())
        .collect();
    assert_eq!(over, [false, false, false, true, true]);
    let stats = handle.limiter().stats(b"all anybody", handle.now());
    assert_eq!((stats.requests, stats.over), (5, 2));
    assert_eq!(handle.limiter().size().keys, 1);
}

#[test]
fn a_shadow_rule_counts_and_reports_but_never_refuses() {
    let shadow = Rule { shadow: true, ..rule("shadow", vec![fixed(2)]) };
    let handle = handle(vec![shadow, rule("real", vec![fixed(9)])]);
    for n in 0..5 {
        let answer = take(&handle, &["shadow x", "real x"]);
        assert!(answer.is_allowed() && answer.refused_by().is_none() && answer.verdict.delay == 0);
        assert_eq!(answer.rows.limits[0].verdict.allowed, n < 2);
        let verdict = decide_one(&handle, b"shadow y", Op::Take(1), handle.now());
        assert!(verdict.expect("a valid request").is_allowed());
    }
    let stats = handle.limiter().stats(b"shadow x", handle.now());
    assert_eq!((stats.requests, stats.over), (5, 3));
    assert_eq!(remaining(&handle, "real x"), 4);
    let page = handle.limiter().metrics().encode(Default::default());
    let counted = "tidegate_decisions_total{door=\"http\",rule=\"shadow\",verdict=\"shadow\"} 6";
    assert!(page.contains(counted), "{page}");
}

#[test]
fn a_shadow_rule_takes_nothing_when_another_rule_refuses() {
    let shadow = Rule { shadow: true, ..rule("shadow", vec![fixed(5)]) };
    let handle = handle(vec![shadow, rule("real", vec![fixed(1)])]);
    assert!(take(&handle, &["shadow x", "real x"]).is_allowed());
    assert!(!take(&handle, &["shadow x", "real x"]).is_allowed());
    assert_eq!(remaining(&handle, "shadow x"), 4);
}

#[test]
fn what_cannot_be_decided_is_invalid_and_takes_nothing() {
    let flight = limit(2, 0, Algorithm::InFlight { per_window: false });
    let handle = handle(vec![rule("k", vec![fixed(5), fixed(3)]), rule("flight", vec![flight])]);
    let now = handle.now();
    let decide =
        |keys: &[&[u8]], op| decide_all(&handle, keys, op, now).map(|answer| answer.is_allowed());
    let one = |key, op| decide_one(&handle, key, op, now).map(|verdict| verdict.is_allowed());
    let long = [b"k ".as_slice(), &[b'x'; KEY_BYTES_MAX]].concat();
    let crowd = vec![b"k a".as_slice(); KEYS_MAX + 1];
    for op in [Op::Take(0), Op::Peek(0), Op::TakeUpTo(0)] {
        assert_eq!(decide(&[b"k a"], op), Err(InvalidRequest::CostZero));
    }
    assert_eq!(decide(&[], Op::Take(1)), Err(InvalidRequest::TooManyKeys));
    assert_eq!(decide(&crowd, Op::Take(1)), Err(InvalidRequest::TooManyKeys));
    assert_eq!(decide(&[b"k a", &long], Op::Take(1)), Err(InvalidRequest::KeyTooLong));
    assert_eq!(decide(&[b"k a"], Op::Take(4)), Err(InvalidRequest::CostAboveLimit { limit: 3 }));
    assert_eq!(decide(&[b"k a", b"flight"], Op::Take(1)), Ok(true), "not of that rule");
    assert_eq!(decide(&[b"k a", b"flight x"], Op::Take(1)), Err(InvalidRequest::NeedsEnd));
    assert_eq!(decide(&[b"flight x"], Op::Peek(1)), Ok(true));
    assert_eq!(one(&long, Op::Take(1)), Err(InvalidRequest::KeyTooLong));
    assert_eq!(one(b"k a", Op::Take(4)), Err(InvalidRequest::CostAboveLimit { limit: 3 }));
    assert_eq!(one(b"flight x", Op::Take(1)), Err(InvalidRequest::NeedsEnd));
    assert_eq!(remaining(&handle, "k a"), 2, "one use was fit");
    assert_eq!(handle.limiter().size().keys, 1);
}

#[test]
fn keys_without_a_limit_are_not_remembered_and_count_only_when_they_go() {
    let handle = handle(vec![rule("free", Vec::new()), rule("k", vec![fixed(1)])]);
    let one = |key, op| decide_one(&handle, key, op, handle.now()).expect("a valid request");
    assert!(is_unlimited(&one(b"nobody knows it", Op::Take(1))));
    assert!(is_unlimited(&one(b"free x", Op::Take(u64::MAX))));
    assert_eq!(handle.limiter().size().keys, 0);
    assert!(take(&handle, &["free x", "k x"]).is_allowed());
    assert!(!take(&handle, &["free x", "k x"]).is_allowed());
    let invalid = decide_all(&handle, &[b"free x", b"k x"], Op::Take(2), handle.now());
    assert!(invalid.is_err());
    let page = handle.limiter().metrics().encode(Default::default());
    assert!(page.contains("rule=\"free\",verdict=\"allow\"} 2"), "{page}");
    assert!(page.contains("rule=\"none\",verdict=\"allow\"} 1"), "{page}");
}

proptest! {
    /// A look leaves every later answer and the statistics as they were.
    #[test]
    fn a_peek_changes_no_answer(
        limits in prop::collection::vec(any_limit(), 1..3),
        steps in prop::collection::vec((0..6u8, wait(), 0..4u8), 1..80),
    ) {
        let [plain, peeked] = [0, 1].map(|_| handle(vec![rule("k", limits.clone())]));
        for (key, wait, peeks) in steps {
            plain.limiter().clock().advance(wait);
            peeked.limiter().clock().advance(wait);
            let now = plain.now();
            (0..peeks).for_each(|peek| look(&peeked, peek, now));
            let ask = |handle: &LimiterHandle| decide_all(handle, &[&name(key)], Op::Take(1), now);
            prop_assert_eq!(ask(&peeked), ask(&plain));
            let stats = |handle: &LimiterHandle| handle.limiter().stats(&name(key), now);
            prop_assert!(!statistics_stay(now) || stats(&peeked) == stats(&plain));
        }
    }

    /// Nor does it make or move a slot where there are too few.
    #[test]
    fn a_peek_makes_no_slot(
        limits in prop::collection::vec(any_limit(), 1..3),
        max_keys in 1..4usize,
        steps in prop::collection::vec((0..6u8, wait()), 1..80),
    ) {
        let settings = memory::Settings { max_keys, max_bytes: 1 << 20 };
        let handle = limiter(vec![rule("k", limits)], settings).handle(Door::Http);
        for (key, wait) in steps {
            handle.limiter().clock().advance(wait);
            let now = handle.now();
            let seen = || -> Vec<_> {
                (0..6).map(|key| handle.limiter().stats(&name(key), now)).collect()
            };
            let before = (seen(), handle.limiter().size().keys);
            (0..6).for_each(|peek| look(&handle, peek, now));
            prop_assert_eq!((seen(), handle.limiter().size().keys), before);
            let _ = decide_all(&handle, &[&name(key)], Op::Take(1), now);
        }
    }
}

/// Looks at a key in every way there is.
fn look(handle: &LimiterHandle, key: u8, now: Now) {
    let _ = decide_all(handle, &[&name(key)], Op::Peek(1), now);
    let _ = decide_held(handle, &[&name(key), &name(key + 1)], Op::Peek(1), now);
    let _ = decide_one(handle, &name(key), Op::Peek(1), now);
    let _ = handle.limiter().stats(&name(key), now);
}

#[test]
fn a_request_for_nothing_is_invalid() {
    let handle = handle(vec![rule("k", vec![fixed(1)])]);
    for op in [Op::Take(0), Op::Peek(0), Op::TakeUpTo(0)] {
        assert_eq!(decide_one(&handle, b"k a", op, handle.now()), Err(InvalidRequest::CostZero));
        let each = decide_each(&handle, &[b"k a", b"other"], op, handle.now());
        assert_eq!(each, [Err(InvalidRequest::CostZero); 2]);
    }
    assert_eq!(handle.limiter().size().keys, 0);
}

#[test]
fn a_peek_tells_what_a_full_table_means() {
    let log = limit(9, DAY, Algorithm::SlidingLog);
    for (on_full, allowed) in [(OnFull::Deny, false), (OnFull::Allow, true), (OnFull::Share, true)]
    {
        let full = Rule { on_full, ..rule("k", vec![fixed(3)]) };
        let rules =
            vec![full, Rule { on_full, ..rule("log", vec![log]) }, rule("x", vec![fixed(1)])];
        let settings = memory::Settings { max_keys: 2, max_bytes: 1 << 20 };
        let handle = limiter(rules, settings).handle(Door::Http);
        let peek = |key: &str| {
            let keys: [&[u8]; 1] = [key.as_bytes()];
            let whole =
                decide_all(&handle, &keys, Op::Peek(1), handle.now()).expect("a valid request");
            let one = decide_one(&handle, keys[0], Op::Peek(1), handle.now());
            assert_eq!(Ok(whole.verdict), one, "{key}");
            whole.is_allowed()
        };
        assert!(peek("k new"), "there is room");
        assert!(take(&handle, &["log known"]).is_allowed() && take(&handle, &["x"]).is_allowed());
        assert!(take(&handle, &["x other"]).is_allowed());
        assert_eq!(peek("k new"), allowed, "{on_full:?}");
        assert_eq!(peek("k new"), take(&handle, &["k new"]).is_allowed());
        assert!(peek("log known"));
        assert_eq!(handle.limiter().stats(b"log known", handle.now()).requests, 1);
        // A log that cannot grow takes nothing more, whether its key is asked or looked at.
        handle.limiter().resize(memory::Settings { max_bytes: 0, ..settings });
        assert_eq!(peek("log known"), on_full == OnFull::Allow);
        assert_eq!(take(&handle, &["log known"]).is_allowed(), on_full == OnFull::Allow);
        let requests = handle.limiter().stats(b"log known", handle.now()).requests;
        assert_eq!(requests, 1, "what is denied or let through is not counted for it");
        // The dead make room for a look as they do for a use.
        handle.limiter().resize(settings);
        handle.limiter().clock().advance(3 * DAY);
        assert!(peek("k newer"));
    }
}

#[test]
fn a_full_table_says_when_to_try_again() {
    let of = |name: &str, limit| Rule { on_full: OnFull::Deny, ..rule(name, vec![limit]) };
    let held = limit(2, 0, Algorithm::InFlight { per_window: false });
    let rules = vec![of("window", fixed(3)), of("held", held), rule("x", vec![fixed(1)])];
    let settings = memory::Settings { max_keys: 1, max_bytes: 1 << 20 };
    let handle = limiter(rules, settings).handle(Door::Http);
    assert!(take(&handle, &["x a"]).is_allowed());
    for (key, expected) in [("window a", DAY), ("held a", SECOND)] {
        let refused = take(&handle, &[key]);
        assert!(!refused.is_allowed());
        assert_eq!(refused.verdict.delay, expected, "{key}");
    }
}
