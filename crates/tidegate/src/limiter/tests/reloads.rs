//! New rules in force at once: which counts live on, and that nothing is lost on the way.

use std::thread;

use super::*;

fn install(handle: &LimiterHandle, rules: Vec<Rule>) {
    handle.limiter().install(RuleSet::new(rules, None));
}

/// Uses of `k a` that are left after a reload to `rules`, of which two were taken before.
fn left_after(rules: Vec<Rule>) -> u64 {
    let handle = handle(vec![rule("k", vec![fixed(5)]), rule("other", vec![fixed(5)])]);
    assert!(take(&handle, &["k a"]).is_allowed() && take(&handle, &["k a"]).is_allowed());
    install(&handle, rules);
    remaining(&handle, "k a")
}

#[test]
fn counts_live_on_where_name_algorithms_and_periods_are_the_same() {
    assert_eq!(left_after(vec![rule("k", vec![fixed(5)])]), 3);
    assert_eq!(left_after(vec![rule("k", vec![fixed(50)])]), 48, "another amount");
    assert_eq!(left_after(vec![rule("k", vec![fixed(1)])]), 0, "a smaller amount");
    assert_eq!(left_after(vec![rule("b", vec![]), rule("k", vec![fixed(5)])]), 3, "moved");
    let pattern = Pattern::new("k a*");
    assert_eq!(left_after(vec![Rule { pattern, ..rule("k", vec![fixed(5)]) }]), 3, "the match");
    let shadow = Rule { shadow: true, ..rule("k", vec![fixed(5)]) };
    assert_eq!(left_after(vec![shadow]), 3, "what it means");
}

#[test]
fn counts_start_anew_where_they_would_mean_something_else() {
    let day = |algorithm| limit(5, DAY, algorithm);
    assert_eq!(left_after(vec![rule("k", vec![day(Algorithm::SlidingWindow)])]), 5);
    assert_eq!(left_after(vec![rule("k", vec![Limit { period: 2 * DAY, ..fixed(5) }])]), 5);
    assert_eq!(left_after(vec![rule("k", vec![fixed(5), fixed(6)])]), 5, "another limit");
    let renamed = Rule { name: "b".into(), ..rule("k", vec![fixed(5)]) };
    assert_eq!(left_after(vec![renamed]), 5);
    let shared = Rule { shared: true, ..rule("k", vec![fixed(5)]) };
    assert_eq!(left_after(vec![shared]), 5);
}

#[test]
fn a_rule_that_was_away_starts_anew_and_its_old_slots_go() {
    let handle = handle(vec![rule("k", vec![fixed(5)])]);
    assert!(take(&handle, &["k a"]).is_allowed());
    install(&handle, Vec::new());
    let free = decide_one(&handle, b"k a", Op::Take(1), handle.now());
    assert!(is_unlimited(&free.expect("a valid request")));
    install(&handle, vec![rule("k", vec![fixed(5)])]);
    assert_eq!(remaining(&handle, "k a"), 5);
    handle.limiter().sweep(1 << 16);
    assert_eq!(handle.limiter().size().keys, 0, "nobody can find them any more");
}

#[test]
fn shared_counts_of_a_rule_that_went_are_forgotten() {
    let rules = || vec![rule("k", vec![fixed(5), limit(5, DAY, Algorithm::SlidingLog)])];
    let handle = limiter(rules(), memory::Settings { max_keys: 1, max_bytes: 1 << 20 });
    let handle = handle.handle(Door::Http);
    assert!(take(&handle, &["k a"]).is_allowed() && take(&handle, &["k b"]).is_allowed());
    install(&handle, Vec::new());
    handle.limiter().sweep(1 << 16);
    assert_eq!(handle.limiter().size().bytes, 0);
}

#[test]
fn keys_of_a_newer_configuration_are_alive_for_an_older_one() {
    let before = handle(vec![rule("k", vec![fixed(5)])]);
    let limiter = before.limiter();
    let older = limiter.catalog.load_full();
    install(&before, vec![rule("k", vec![fixed(5)]), rule("new", vec![fixed(5)])]);
    assert!(take(&before, &["new a"]).is_allowed());
    let bucket = StatsBucket::of(before.now());
    // As a thread does that was in the middle of a decision when the rules were swapped.
    let swept =
        limiter.memory().sweep(1 << 16, |body, _| older.dead(body, true, bucket, before.now()));
    assert_eq!(swept, 0);
    assert_eq!(remaining(&before, "new a"), 4);
}

#[test]
fn totals_survive_reloads() {
    let handle = handle(vec![rule("k", vec![fixed(2)])]);
    let limiter = handle.limiter();
    let page = || limiter.metrics().encode(Default::default());
    let counted = |verdict: &str, count: u64| {
        let line = format!("{{door=\"http\",rule=\"k\",verdict=\"{verdict}\"}} {count}\n");
        let page = page();
        assert!(page.contains(&line), "{line} in {page}");
    };
    for n in 0..6 {
        drop(take(&handle, &["k a"]));
        if n % 2 == 0 {
            install(&handle, vec![rule("k", vec![fixed(2)])]);
        }
        if n == 3 {
            counted("allow", 2);
        }
    }
    counted("allow", 2);
    counted("refuse", 4);
    install(&handle, vec![rule("other", vec![fixed(1)]), rule("k", vec![fixed(2)])]);
    counted("refuse", 4);
    counted("refuse", 4);
    let after = limiter.handle(Door::Text);
    drop(take(&after, &["other a"]));
    assert!(page().contains("door=\"text\",rule=\"other\",verdict=\"allow\"} 1\n"));
}

#[test]
fn a_door_has_its_series_before_anything_is_sampled() {
    let handle = handle(Vec::new());
    let page = handle.limiter().metrics().encode(Default::default());
    assert!(page.contains("tidegate_decision_seconds_count{door=\"http\"} 0"), "{page}");
}

#[test]
fn decisions_during_reloads_lose_nothing() {
    const USES: u64 = 3_000;
    let rules = |amount| vec![rule("k", vec![fixed(amount)]), rule("pad", vec![fixed(1)])];
    let limiter = limiter(rules(USES), ROOMY);
    let admitted = thread::scope(|scope| {
        let askers: Vec<_> = (0..2)
            .map(|_| {
                let handle = limiter.handle(Door::Http);
                scope.spawn(move || {
                    let now = handle.now();
                    let mut admitted = 0;
                    for n in 0..USES {
                        let verdict = decide_one(&handle, b"k same", Op::Take(1), now);
                        admitted += u64::from(verdict.expect("a valid request").is_allowed());
                        // New keys sweep as they come, on whichever rules they were decided by.
                        let other = format!("pad {n}");
                        let _ =
                            decide_all(&handle, &[other.as_bytes(), b"k two"], Op::Take(1), now);
                    }
                    admitted
                })
            })
            .collect();
        for n in 0..300 {
            let mut set = rules(USES);
            set.push(rule(&format!("new {n}"), vec![fixed(1)]));
            set.rotate_left(n % 3);
            limiter.install(RuleSet::new(set, None));
        }
        askers.into_iter().map(|asker| asker.join().expect("no panic")).sum::<u64>()
    });
    assert_eq!(admitted, USES, "as many as one thread would have had");
    let stats = limiter.stats(b"k same", START);
    assert_eq!((stats.requests, stats.over), (2 * USES, USES));
}

/// The rules that have a series of decisions, with their counts.
fn series(handle: &LimiterHandle) -> Vec<String> {
    let limiter = handle.limiter();
    let page = limiter.metrics().encode(Default::default());
    let start = "tidegate_decisions_total{door=\"http\",rule=\"";
    let row = |line: &str| Some(line.strip_prefix(start)?.replace("\",verdict=\"allow\"}", ""));
    page.lines().filter_map(row).collect()
}

#[test]
fn series_of_a_rule_go_with_it_and_begin_anew_if_it_comes_back() {
    let rules = || vec![rule("k", vec![fixed(99)]), rule("other", vec![fixed(99)])];
    let handle = handle(rules());
    for key in ["k a", "other a", "other a", "nobody's"] {
        assert!(take(&handle, &[key]).is_allowed());
    }
    assert_eq!(series(&handle), ["k 1", "none 1", "other 2"]);
    // Somebody still works by the first rules.
    let first = handle.limiter().catalog.load_full();
    install(&handle, vec![rule("k", vec![fixed(99)])]);
    assert_eq!(series(&handle), ["k 1", "none 1"]);
    install(&handle, rules());
    assert!(take(&handle, &["other a"]).is_allowed());
    first.counts.add(handle.counter_stripe, Some(1), crate::metrics::CountedAs::Allow, 1);
    assert_eq!(series(&handle), ["k 1", "none 1", "other 1"]);
    drop(first);
    assert_eq!(series(&handle), ["k 1", "none 1", "other 1"]);
    for number in 0..100 {
        install(&handle, vec![rule(&format!("rule {number}"), vec![fixed(99)])]);
        assert!(take(&handle, &[&format!("rule {number} a")]).is_allowed());
    }
    assert_eq!(series(&handle), ["none 1", "rule 99 1"]);
}
