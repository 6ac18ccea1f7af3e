//! A step of the wall clock changes no decision except which fixed window it is.

use super::*;

fn follows_no_wall(limit: &Limit) -> bool {
    !matches!(limit.algorithm, Algorithm::FixedWindow | Algorithm::SlidingWindow)
}

fn step_to() -> impl Strategy<Value = Option<Nanos>> {
    prop_oneof![
        3 => Just(None),
        1 => (0..2 * START.unix).prop_map(Some),
        1 => (0..4_000u64).prop_map(|s| Some(START.unix + s * SECOND)),
    ]
}

proptest! {
    #[test]
    fn a_step_changes_no_decision(
        limits in prop::collection::vec(any_limit().prop_filter("windows", follows_no_wall), 1..3),
        steps in prop::collection::vec((0..8u8, wait(), step_to()), 1..120),
    ) {
        let [steady, stepped] = [0, 1].map(|_| handle(vec![rule("k", limits.clone())]));
        for (key, wait, step) in steps {
            steady.limiter().clock().advance(wait);
            stepped.limiter().clock().advance(wait);
            if let Some(unix) = step {
                stepped.limiter().clock().set_unix(unix);
            }
            let ask = |handle: &LimiterHandle| {
                let said = decide_all(handle, &[&name(key)], Op::Take(1), handle.now());
                said.map(|Said { verdict, rows }| (Verdict { at: START, ..verdict }, rows))
            };
            prop_assert_eq!(ask(&stepped), ask(&steady));
        }
    }
}

#[test]
fn a_fixed_window_follows_the_wall_clock_forward_only() {
    let handle = handle(vec![rule("k", vec![fixed(1)])]);
    let clock = handle.limiter().clock();
    assert!(take(&handle, &["k a"]).is_allowed());
    clock.set_unix(START.unix + DAY);
    assert!(take(&handle, &["k a"]).is_allowed(), "another window");
    clock.set_unix(START.unix);
    assert!(!take(&handle, &["k a"]).is_allowed(), "still the newer window");
    clock.advance(DAY - 1);
    assert!(!take(&handle, &["k a"]).is_allowed(), "until it has passed");
    clock.advance(1);
    assert!(take(&handle, &["k a"]).is_allowed(), "and no longer");
}

#[test]
fn a_step_inside_of_a_fixed_window_changes_nothing() {
    let handle = handle(vec![rule("k", vec![fixed(1)])]);
    let clock = handle.limiter().clock();
    assert!(take(&handle, &["k a"]).is_allowed());
    clock.advance(DAY - 10 * SECOND);
    clock.set_unix(START.unix + 30 * SECOND);
    assert!(!take(&handle, &["k a"]).is_allowed());
    clock.advance(DAY - 31 * SECOND);
    assert!(!take(&handle, &["k a"]).is_allowed(), "the wall clock is still in it");
    clock.advance(SECOND);
    assert!(take(&handle, &["k a"]).is_allowed());
}

#[test]
fn a_shared_window_stepped_back_admits_nothing() {
    let settings = memory::Settings { max_keys: 1, max_bytes: 1 << 20 };
    let handle = limiter(vec![rule("k", vec![fixed(2)])], settings).handle(Door::Http);
    let clock = handle.limiter().clock();
    for key in ["k full", "k a", "k a"] {
        assert!(take(&handle, &[key]).is_allowed());
    }
    clock.set_unix(START.unix + DAY);
    assert!(take(&handle, &["k b"]).is_allowed(), "shared, in another window");
    clock.set_unix(START.unix);
    assert!(!take(&handle, &["k a"]).is_allowed(), "it has had its two of this day");
    assert!(take(&handle, &["k full"]).is_allowed(), "a key with a slot counts for itself");
    clock.advance(DAY);
    assert!(take(&handle, &["k b"]).is_allowed());
    assert!(!take(&handle, &["k b"]).is_allowed());
}

#[test]
fn statistics_live_through_steps() {
    let handle = handle(vec![rule("k", vec![fixed(5)])]);
    let limiter = handle.limiter();
    (0..3).for_each(|_| drop(take(&handle, &["k a"])));
    limiter.clock().set_unix(START.unix - 100 * DAY);
    for _ in 0..100 {
        limiter.sweep(4096);
    }
    assert_eq!(limiter.stats(b"k a", handle.now()).requests, 3, "a step back forgets nothing");
    (0..3).for_each(|_| drop(take(&handle, &["k a"])));
    assert_eq!(limiter.stats(b"k a", handle.now()).requests, 6);
    limiter.clock().advance(300 * SECOND);
    let stats = limiter.stats(b"k a", handle.now());
    assert_eq!(stats.last_max_rate, 5, "its buckets go on from where the clock is now");
}
