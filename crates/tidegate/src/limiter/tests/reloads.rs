//! New rules in force at once: which counts live on, and that nothing is lost on the way.

use std::thread;

use super::*;

fn install(desk: &Desk, rules: Vec<Rule>) {
    desk.limiter().install(RuleSet::new(rules, None));
}

/// Uses of `k a` that are left after a reload to `rules`, of which two were taken before.
fn left_after(rules: Vec<Rule>) -> u64 {
    let desk = desk(vec![rule("k", vec![fixed(5)]), rule("other", vec![fixed(5)])]);
    assert!(take(&desk, &["k a"]).is_allowed() && take(&desk, &["k a"]).is_allowed());
    install(&desk, rules);
    remaining(&desk, "k a")
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
    let desk = desk(vec![rule("k", vec![fixed(5)])]);
    assert!(take(&desk, &["k a"]).is_allowed());
    install(&desk, Vec::new());
    let free = decide_one(&desk, b"k a", Op::Take(1), desk.now());
    assert!(is_unlimited(&free.expect("a valid request")));
    install(&desk, vec![rule("k", vec![fixed(5)])]);
    assert_eq!(remaining(&desk, "k a"), 5);
    desk.limiter().sweep(1 << 16);
    assert_eq!(desk.limiter().size().keys, 0, "nobody can find them any more");
}

#[test]
fn shared_counts_of_a_rule_that_went_are_forgotten() {
    let rules = || vec![rule("k", vec![fixed(5), limit(5, DAY, Algorithm::SlidingLog)])];
    let desk = limiter(rules(), memory::Settings { max_keys: 1, max_bytes: 1 << 20 });
    let desk = desk.desk(Door::Http);
    assert!(take(&desk, &["k a"]).is_allowed() && take(&desk, &["k b"]).is_allowed());
    install(&desk, Vec::new());
    desk.limiter().sweep(1 << 16);
    assert_eq!(desk.limiter().size().bytes, 0);
}

#[test]
fn keys_of_a_newer_configuration_are_alive_for_an_older_one() {
    let before = desk(vec![rule("k", vec![fixed(5)])]);
    let limiter = before.limiter();
    let older = limiter.catalog.load_full();
    install(&before, vec![rule("k", vec![fixed(5)]), rule("new", vec![fixed(5)])]);
    assert!(take(&before, &["new a"]).is_allowed());
    let bucket = Bucket::of(before.now());
    // As a thread does that was in the middle of a decision when the rules were swapped.
    let swept =
        limiter.memory().sweep(1 << 16, |body, _| older.dead(body, true, bucket, before.now()));
    assert_eq!(swept, 0);
    assert_eq!(remaining(&before, "new a"), 4);
}

#[test]
fn totals_survive_reloads() {
    let desk = desk(vec![rule("k", vec![fixed(2)])]);
    let limiter = desk.limiter();
    let page = || limiter.metrics().encode(Default::default());
    let counted = |verdict: &str, count: u64| {
        let line = format!("{{door=\"http\",rule=\"k\",verdict=\"{verdict}\"}} {count}\n");
        let page = page();
        assert!(page.contains(&line), "{line} in {page}");
    };
    for n in 0..6 {
        drop(take(&desk, &["k a"]));
        if n % 2 == 0 {
            install(&desk, vec![rule("k", vec![fixed(2)])]);
        }
        if n == 3 {
            counted("allow", 2);
        }
    }
    counted("allow", 2);
    counted("refuse", 4);
    install(&desk, vec![rule("other", vec![fixed(1)]), rule("k", vec![fixed(2)])]);
    counted("refuse", 4);
    counted("refuse", 4);
    let after = limiter.desk(Door::Text);
    drop(take(&after, &["other a"]));
    assert!(page().contains("door=\"text\",rule=\"other\",verdict=\"allow\"} 1\n"));
}

#[test]
fn a_door_has_its_series_before_anything_is_sampled() {
    let desk = desk(Vec::new());
    let page = desk.limiter().metrics().encode(Default::default());
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
                let desk = limiter.desk(Door::Http);
                scope.spawn(move || {
                    let now = desk.now();
                    let mut admitted = 0;
                    for n in 0..USES {
                        let verdict = decide_one(&desk, b"k same", Op::Take(1), now);
                        admitted += u64::from(verdict.expect("a valid request").is_allowed());
                        // New keys sweep as they come, on whichever rules they were decided by.
                        let other = format!("pad {n}");
                        let _ = decide_all(&desk, &[other.as_bytes(), b"k two"], Op::Take(1), now);
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
fn series(desk: &Desk) -> Vec<String> {
    let limiter = desk.limiter();
    let page = limiter.metrics().encode(Default::default());
    let start = "tidegate_decisions_total{door=\"http\",rule=\"";
    let row = |line: &str| Some(line.strip_prefix(start)?.replace("\",verdict=\"allow\"}", ""));
    page.lines().filter_map(row).collect()
}

#[test]
fn series_of_a_rule_go_with_it_and_begin_anew_if_it_comes_back() {
    let rules = || vec![rule("k", vec![fixed(99)]), rule("other", vec![fixed(99)])];
    let desk = desk(rules());
    for key in ["k a", "other a", "other a", "nobody's"] {
        assert!(take(&desk, &[key]).is_allowed());
    }
    assert_eq!(series(&desk), ["k 1", "none 1", "other 2"]);
    // Somebody still works by the first rules.
    let first = desk.limiter().catalog.load_full();
    install(&desk, vec![rule("k", vec![fixed(99)])]);
    assert_eq!(series(&desk), ["k 1", "none 1"]);
    install(&desk, rules());
    assert!(take(&desk, &["other a"]).is_allowed());
    first.counts.add(desk.lane, Some(1), crate::metrics::Counted::Allow, 1);
    assert_eq!(series(&desk), ["k 1", "none 1", "other 1"]);
    drop(first);
    assert_eq!(series(&desk), ["k 1", "none 1", "other 1"]);
    for number in 0..100 {
        install(&desk, vec![rule(&format!("rule {number}"), vec![fixed(99)])]);
        assert!(take(&desk, &[&format!("rule {number} a")]).is_allowed());
    }
    assert_eq!(series(&desk), ["none 1", "rule 99 1"]);
}
