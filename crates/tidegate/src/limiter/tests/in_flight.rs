//! Uses in flight: taken, given back where they were taken, and never somebody else's.

use super::*;

fn flight(amount: u64) -> Limit {
    limit(amount, 0, Algorithm::InFlight { per_window: false })
}

fn release(handle: &LimiterHandle, key: &str, started: Now) {
    handle.release_uses(key.as_bytes(), 1, started, TakenFrom::Slot);
}

fn release_shared(handle: &LimiterHandle, key: &str, started: Now) {
    handle.release_uses(key.as_bytes(), 1, started, TakenFrom::Shared);
}

/// Which keys of a request hold a use of their own, and which a shared one.
fn held(answer: &Said) -> [Vec<usize>; 2] {
    [TakenFrom::Slot, TakenFrom::Shared]
        .map(|from| answer.rows.held.iter().filter(|h| h.from == from).map(|h| h.key).collect())
}

#[test]
fn a_use_is_held_until_it_is_given_back() {
    let handle = handle(vec![rule("k", vec![flight(2)])]);
    assert_eq!(held(&take(&handle, &["k a"])), [vec![0], vec![]]);
    assert_eq!(held(&take(&handle, &["k a"])), [vec![0], vec![]]);
    let refused = take(&handle, &["k a"]);
    assert!(!refused.is_allowed() && refused.rows.held.is_empty());
    assert_eq!(refused.verdict.delay, Nanos::MAX, "time alone gives nothing back");
    handle.limiter().clock().advance(100 * DAY);
    handle.limiter().sweep(1 << 16);
    assert!(!take(&handle, &["k a"]).is_allowed(), "however long it takes");
    release(&handle, "k a", START);
    assert!(take(&handle, &["k a"]).is_allowed());
}

#[test]
fn a_use_per_window_lapses_with_its_window() {
    let per_window = limit(1, DAY, Algorithm::InFlight { per_window: true });
    let handle = handle(vec![rule("k", vec![per_window])]);
    assert!(take(&handle, &["k a"]).is_allowed());
    assert!(!take(&handle, &["k a"]).is_allowed());
    handle.limiter().clock().advance(DAY);
    assert!(take(&handle, &["k a"]).is_allowed());
    release(&handle, "k a", START);
    assert!(!take(&handle, &["k a"]).is_allowed(), "the end of a lapsed use gives nothing back");
}

#[test]
fn only_keys_that_took_something_are_held() {
    let shadow = Rule { shadow: true, ..rule("shadow", vec![flight(1)]) };
    let handle = handle(vec![shadow, rule("real", vec![flight(5)]), rule("rate", vec![fixed(9)])]);
    let first = take(&handle, &["rate x", "shadow x", "real x"]);
    assert_eq!(held(&first), [vec![1, 2], vec![]]);
    let second = take(&handle, &["rate x", "shadow x", "real x"]);
    assert!(second.is_allowed());
    assert_eq!(held(&second), [vec![2], vec![]], "the shadow rule was over and took nothing");
    release(&handle, "real x", handle.now());
    assert_eq!(remaining(&handle, "shadow x"), 0, "the first use still holds it");
    assert_eq!(remaining(&handle, "real x"), 4);
}

#[test]
fn what_was_let_pass_uncounted_is_not_held() {
    let rules = vec![Rule { on_full: OnFull::Allow, ..rule("k", vec![flight(1)]) }];
    let handle = limiter(rules, memory::Settings { max_keys: 1, max_bytes: 1 << 20 });
    let handle = handle.handle(Door::Http);
    assert_eq!(held(&take(&handle, &["k a"])), [vec![0], vec![]]);
    let passed = take(&handle, &["k b"]);
    assert!(passed.is_allowed() && passed.rows.held.is_empty());
}

#[test]
fn ends_of_uses_from_before_a_reset_give_nothing_back() {
    let handle = handle(vec![rule("k", vec![flight(2)])]);
    assert!(take(&handle, &["k a"]).is_allowed() && take(&handle, &["k a"]).is_allowed());
    assert!(handle.limiter().reset(b"k a"));
    handle.limiter().clock().advance(1);
    let started = handle.now();
    assert!(take(&handle, &["k a"]).is_allowed() && take(&handle, &["k a"]).is_allowed());
    release(&handle, "k a", START);
    release(&handle, "k a", START);
    assert!(!take(&handle, &["k a"]).is_allowed(), "two newer uses are still held");
    release(&handle, "k a", started);
    assert!(take(&handle, &["k a"]).is_allowed());
}

#[test]
fn a_use_decided_on_an_older_reading_of_the_clock_is_given_back() {
    let handle = handle(vec![rule("k", vec![flight(2)])]);
    let (early, late) = (START, START.after(1_000));
    for now in [late, early] {
        let taken = decide_held(&handle, &[b"k a"], Op::Take(1), now).expect("a valid request");
        assert!(taken.is_allowed());
    }
    for started in [early, late] {
        handle.release_uses(b"k a", 1, started, TakenFrom::Slot);
    }
    assert_eq!(remaining(&handle, "k a"), 2);
}

#[test]
fn a_full_table_gives_back_what_was_shared() {
    let rules = vec![rule("k", vec![flight(2)]), rule("rate", vec![fixed(1)])];
    let handle = limiter(rules, memory::Settings { max_keys: 1, max_bytes: 1 << 20 });
    let handle = handle.handle(Door::Http);
    assert!(take(&handle, &["rate x"]).is_allowed(), "the only slot");
    assert_eq!(held(&take(&handle, &["k a"])), [vec![], vec![0]]);
    assert_eq!(held(&take(&handle, &["k b"])), [vec![], vec![0]]);
    assert!(!take(&handle, &["k c"]).is_allowed(), "they share");
    handle.limiter().clock().advance(3 * DAY);
    handle.limiter().sweep(1 << 16);
    assert_eq!(handle.limiter().size().keys, 0, "there is room now");
    assert!(!take(&handle, &["k a"]).is_allowed(), "but what is held is held in the shared count");
    release_shared(&handle, "k a", START);
    assert_eq!(held(&take(&handle, &["k c"])), [vec![], vec![0]]);
    release_shared(&handle, "k b", START);
    release_shared(&handle, "k c", START);
    assert!(take(&handle, &["k a"]).is_allowed());
    assert_eq!(handle.limiter().size().keys, 1, "all has ended: keys have slots again");
    assert_eq!(remaining(&handle, "k b"), 2);
}

#[test]
fn ends_of_uses_from_before_a_reset_leave_the_shared_count_alone() {
    let rules = vec![rule("k", vec![flight(2)]), rule("rate", vec![fixed(1)])];
    let handle = limiter(rules, memory::Settings { max_keys: 1, max_bytes: 1 << 20 });
    let handle = handle.handle(Door::Http);
    assert_eq!(held(&take(&handle, &["k a"])), [vec![0], vec![]], "in the only slot");
    assert_eq!(held(&take(&handle, &["k b"])), [vec![], vec![0]]);
    handle.limiter().clock().advance(1);
    assert_eq!(held(&take(&handle, &["k a"])), [vec![0], vec![]]);
    let started = handle.now();
    assert!(handle.limiter().reset(b"k a"));
    assert!(take(&handle, &["rate x"]).is_allowed(), "has the slot now");
    assert_eq!(held(&take(&handle, &["k a"])), [vec![], vec![0]]);
    release(&handle, "k a", started);
    assert!(!take(&handle, &["k c"]).is_allowed(), "two uses are held, and they share");
    release_shared(&handle, "k a", started);
    assert!(take(&handle, &["k c"]).is_allowed());
}

#[test]
fn ends_of_shared_uses_leave_a_slot_alone() {
    let handle = handle(vec![rule("k", vec![flight(1)])]);
    assert!(take(&handle, &["k a"]).is_allowed());
    release_shared(&handle, "k a", START);
    assert!(!take(&handle, &["k a"]).is_allowed());
}

#[derive(Clone, Debug)]
enum Step {
    Take(Vec<u8>),
    End(usize),
    Wait(Nanos),
}

/// One request in flight: who holds it, and who is to give it back.
struct Use {
    keys: Vec<u8>,
    released: Vec<(u8, TakenFrom)>,
    started: Now,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => prop::collection::vec(0..8u8, 1..3).prop_map(Step::Take),
        2 => any::<usize>().prop_map(Step::End),
        1 => wait().prop_map(Step::Wait),
    ]
}

proptest! {
    #![proptest_config(many_cases())]

    /// No key ever holds more than its amount, whatever the table's size; with room for all, not
    /// less either; and once all uses have ended nothing is held.
    #[test]
    fn a_key_never_holds_more_than_its_amount(
        amount in 1..4u64, max_keys in 1..12usize,
        with_rate in any::<bool>(),
        steps in prop::collection::vec(step(), 1..150),
    ) {
        let mut limits = vec![flight(amount)];
        limits.extend(with_rate.then_some(limit(50, PERIOD, Algorithm::SlidingLog)));
        let settings = memory::Settings { max_keys, max_bytes: 1 << 20 };
        let handle = limiter(vec![rule("k", limits)], settings).handle(Door::Http);
        let mut held: HashMap<u8, u64> = HashMap::new();
        let mut uses: Vec<Use> = Vec::new();
        let end = |held: &mut HashMap<u8, u64>, ended: Use| {
            ended.keys.iter().for_each(|key| *held.get_mut(key).expect("held") -= 1);
            for (key, from) in ended.released {
                handle.release_uses(&name(key), 1, ended.started, from);
            }
        };
        for step in steps {
            match step {
                Step::Wait(span) => handle.limiter().clock().advance(span),
                Step::End(_) if uses.is_empty() => {}
                Step::End(at) => end(&mut held, uses.swap_remove(at % uses.len())),
                Step::Take(mut keys) => {
                    keys.dedup();
                    let names = names(&keys);
                    let answer = decide_held(&handle, &borrowed(&names), Op::Take(1), handle.now());
                    let answer = answer.expect("a valid request");
                    let fits = keys.iter().all(|key| held.get(key).unwrap_or(&0) < &amount);
                    prop_assert!(fits || !answer.is_allowed(), "{keys:?} with {held:?}");
                    prop_assert!(max_keys < 8 || with_rate || answer.is_allowed() == fits);
                    if answer.is_allowed() {
                        // Keys that share one count are held by the first of them.
                        let held_keys = answer.rows.held.iter();
                        let released = held_keys.map(|h| (keys[h.key], h.from)).collect();
                        keys.iter().for_each(|key| *held.entry(*key).or_default() += 1);
                        uses.push(Use { keys, released, started: handle.now() });
                    }
                }
            }
        }
        uses.drain(..).for_each(|held_use| end(&mut held, held_use));
        handle.limiter().clock().advance(DAY);
        for _ in 0..8 {
            handle.limiter().sweep(256);
        }
        prop_assert_eq!(handle.limiter().size().bytes, 0);
        for key in 0..8 {
            let peek = decide_held(&handle, &[&name(key)], Op::Peek(1), handle.now());
            let rows = peek.expect("a valid request").rows;
            prop_assert_eq!(rows.limits[0].verdict.remaining, amount);
        }
    }
}

/// As envoyproxy/ratelimit counts: the end of a refused use comes, too.
#[test]
fn a_recorded_use_is_held_whether_it_is_refused_or_not() {
    let shadow = Rule { shadow: true, ..rule("shadow", vec![flight(1)]) };
    let both = rule("both", vec![flight(9), fixed(1)]);
    let handle = handle(vec![rule("k", vec![flight(2)]), shadow, both]);
    let take_or_record = |key: &str, cost: u64| {
        let (keys, mut rows) =
            ([Key::new(key.as_bytes(), KeyOp::TakeOrRecord(cost))], Rows::default());
        let request = Request::all_or_nothing(&keys).with_end();
        let verdict = handle.decide(&request, handle.now(), Some(&mut rows)).expect("valid");
        assert_eq!(rows.held.len(), 1, "{key}");
        verdict.ready().expect("in memory").is_allowed()
    };
    assert!(take_or_record("k a", 2));
    assert!(!take_or_record("k a", 1));
    assert!(!take_or_record("k a", 5));
    release(&handle, "k a", START);
    assert!(!take_or_record("k a", 1));
    handle.release_uses(b"k a", 6, START, TakenFrom::Slot);
    assert_eq!(remaining(&handle, "k a"), 0);
    release(&handle, "k a", START);
    assert_eq!(remaining(&handle, "k a"), 1);
    for _ in 0..2 {
        assert!(take_or_record("shadow a", 1));
    }
    release(&handle, "shadow a", START);
    assert_eq!(remaining(&handle, "shadow a"), 0);
    // Another limit refuses.
    assert!(take_or_record("both a", 1) && !take_or_record("both a", 1));
    let keys = [Key::peek(b"both a", 1)];
    let mut rows = Rows::default();
    handle.decide(&Request::all_or_nothing(&keys), handle.now(), Some(&mut rows)).expect("valid");
    assert_eq!(rows.limits[0].verdict.rate, 2.0);
}
