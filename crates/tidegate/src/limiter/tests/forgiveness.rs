//! A live key is never forgiven: whatever the table's size, the uses admitted for each key alone
//! satisfy its limits, and however the wall clock is stepped.

use super::*;

#[derive(Clone, Debug)]
struct Step {
    keys: Vec<u8>,
    cost: u64,
    wait: Nanos,
    /// How far the wall clock is set, in milliseconds.
    wall_ms: i64,
    kind: StoreKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StoreKind {
    One,
    Each,
    All,
    Peek,
    Sweep,
}

fn step() -> impl Strategy<Value = Step> {
    let kind = prop_oneof![
        4 => Just(StoreKind::One),
        2 => Just(StoreKind::Each),
        4 => Just(StoreKind::All),
        1 => Just(StoreKind::Peek),
        1 => Just(StoreKind::Sweep),
    ];
    // Some keys come often, so that they reach their limits; others press for room.
    let key = prop_oneof![2 => 0..6u8, 1 => any::<u8>()];
    let cost = prop_oneof![4 => Just(1u64), 1 => 1..4u64];
    let wall_ms = prop_oneof![
        8 => Just(0),
        2 => -12_000..12_000i64,
        1 => (-4..4i64).prop_map(|periods| periods * PERIOD as i64 / 1_000_000),
    ];
    (prop::collection::vec(key, 1..4), cost, wait(), wall_ms, kind)
        .prop_map(|(keys, cost, wait, wall_ms, kind)| Step { keys, cost, wait, wall_ms, kind })
}

fn bounds() -> impl Strategy<Value = memory::Settings> {
    let max_bytes = prop_oneof![1 => Just(1usize << 24), 1 => 0..6_000usize];
    (1..64usize, max_bytes)
        .prop_map(|(max_keys, max_bytes)| memory::Settings { max_keys, max_bytes })
}

/// The keys that the limiter judges for a step, and whether it admits them; those of one request
/// together. What asks for more than can ever be had is not judged at all.
fn judged(handle: &LimiterHandle, step: &Step, now: Now) -> Vec<(u8, bool)> {
    let names = names(&step.keys);
    let keys = borrowed(&names);
    let op = Op::Take(step.cost);
    match step.kind {
        StoreKind::One => {
            let verdict = decide_one(handle, keys[0], op, now);
            verdict.iter().map(|verdict| (step.keys[0], verdict.is_allowed())).collect()
        }
        StoreKind::Each => {
            let each = step.keys.iter().zip(decide_each(handle, &keys, op, now));
            each.filter_map(|(key, verdict)| Some((*key, verdict.ok()?.is_allowed()))).collect()
        }
        StoreKind::All => {
            let Ok(answer) = decide_all(handle, &keys, op, now) else { return Vec::new() };
            let mut once = step.keys.clone();
            once.sort_unstable();
            once.dedup();
            once.into_iter().map(|key| (key, answer.is_allowed())).collect()
        }
        StoreKind::Peek => {
            let _ = decide_all(handle, &keys, Op::Peek(step.cost), now);
            Vec::new()
        }
        StoreKind::Sweep => {
            handle.limiter().sweep(64);
            Vec::new()
        }
    }
}

fn check(
    limits: &[Limit],
    on_full: OnFull,
    settings: memory::Settings,
    steps: &[Step],
) -> Result<(), TestCaseError> {
    let limiter = limiter(vec![Rule { on_full, ..rule("k", limits.to_vec()) }], settings);
    let handle = limiter.handle(Door::Text);
    let mut model = Model::new(limits);
    for step in steps {
        limiter.clock().advance(step.wait);
        let unix = limiter.clock().now().unix;
        limiter.clock().set_unix(unix.saturating_add_signed(step.wall_ms * 1_000_000));
        let now = limiter.clock().now();
        let op = Op::Take(step.cost);
        for (key, admitted) in judged(&handle, step, now) {
            if !admitted {
                model.refuse(key, op, now);
                continue;
            }
            let judged = model.judge(key, op, now);
            prop_assert!(judged.iter().all(|judged| judged.allowed), "{key} at {now:?}: {step:?}");
            model.apply(key, op, &judged, JointOutcome::Granted, now);
        }
        let size = limiter.size();
        prop_assert!(size.keys <= settings.max_keys);
        // The last key or use may go beyond the bound, and shared logs by an eighth.
        let most = settings.max_bytes + settings.max_bytes / 8 + 4096;
        prop_assert!(size.bytes <= most, "{size:?} of {settings:?}");
    }
    // Once everything is forgotten, nothing is left behind.
    limiter.clock().advance(DAY);
    for _ in 0..40 {
        limiter.sweep(256);
    }
    prop_assert_eq!(limiter.size().bytes, 0);
    prop_assert_eq!(limiter.size().keys, 0);
    Ok(())
}

proptest! {
    #![proptest_config(many_cases())]

    #[test]
    fn a_live_key_is_never_forgiven(
        limits in prop::collection::vec(any_limit(), 1..4),
        share in any::<bool>(),
        settings in bounds(),
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let on_full = if share { OnFull::Share } else { OnFull::Deny };
        check(&limits, on_full, settings, &steps)?;
    }
}

#[test]
fn keys_that_share_one_count_in_one_request_are_counted_together() {
    let rules = vec![rule("k", vec![fixed(3)])];
    let limiter = limiter(rules, memory::Settings { max_keys: 1, max_bytes: 1 << 20 });
    let handle = limiter.handle(Door::Http);
    assert!(take(&handle, &["k full"]).is_allowed());
    for _ in 0..3 {
        assert!(take(&handle, &["k a", "k b"]).is_allowed(), "they share, and the count has room");
    }
    let answer = take(&handle, &["k b", "k a"]);
    assert_eq!((answer.is_allowed(), answer.refused_by()), (false, Some("k")));
    assert!(!take(&handle, &["k another"]).is_allowed());
    assert!(take(&handle, &["k full"]).is_allowed(), "a key with a slot counts for itself");
}

#[test]
fn keys_of_several_limits_go_on_when_bytes_run_out() {
    let rules = vec![rule("k", vec![fixed(3), limit(9, DAY, Algorithm::Gcra { burst: 9 })])];
    let limiter = limiter(rules, memory::Settings { max_keys: 64, max_bytes: 1_000 });
    let handle = limiter.handle(Door::Http);
    assert!(take(&handle, &["k known"]).is_allowed());
    (0..60).for_each(|n| drop(take(&handle, &[&format!("k other {n}")])));
    assert!(limiter.size().bytes + 88 > 1_000, "full");
    assert!(take(&handle, &["k known"]).is_allowed(), "its states do not grow");
}

#[test]
fn a_log_may_grow_again_once_others_are_forgotten() {
    let log = limit(100, PERIOD, Algorithm::SlidingLog);
    let rules = vec![rule("k", vec![Limit { period: DAY, ..log }]), rule("short", vec![log])];
    let limiter = limiter(rules, memory::Settings { max_keys: 64, max_bytes: 2_000 });
    let handle = limiter.handle(Door::Http);
    assert!(take(&handle, &["k known"]).is_allowed());
    for n in 0..60 {
        limiter.clock().advance(1);
        drop(take(&handle, &[&format!("short {}", n % 9)]));
    }
    assert!(!take(&handle, &["k known"]).is_allowed(), "no bytes are left");
    limiter.clock().advance(PERIOD);
    assert!(take(&handle, &["k known"]).is_allowed(), "the dead made room");
}
