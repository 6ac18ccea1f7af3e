//! The memory store by itself: what it makes, shares, forgets and accounts for.

use proptest::prelude::*;
use tidegate_core::limit::{Algorithm, Limit};
use tidegate_core::time::{DAY, SECOND};
use tidegate_core::{JointOutcome, Now, Op, algorithms};

use super::*;

const NOW: Now = Now { mono: DAY, unix: 20_000 * DAY };
const LOG: Limit = Limit { amount: 40, period: SECOND, algorithm: Algorithm::SlidingLog };

fn bucket() -> StatsBucket {
    StatsBucket::of(NOW)
}

fn address<'a>(memory: &Memory, name: &'a [u8], limits: usize) -> SlotAddress<'a> {
    SlotAddress {
        rule: 1,
        name,
        hash: memory.hash_of(1, name),
        limits,
        long: true,
        creates: true,
        peeks: false,
        ends: false,
        gives_back: None,
        on_full: OnFull::Share,
        remote: None,
        given: None,
    }
}

/// Adds uses to every log of a body.
fn grow(body: &mut Body, uses: u64, now: Now) {
    for state in body.held.states_mut() {
        let op = Op::Record { cost: 1, at: now.mono };
        for n in 0..uses {
            let now = now.after(n);
            let judgement = algorithms::judge(&LOG, state, op, now);
            algorithms::apply(&LOG, state, op, &judgement, JointOutcome::Granted, now);
        }
    }
}

/// What is held outside of slots, added up the slow way.
fn heap_of(memory: &Memory) -> usize {
    let mut bytes = 0;
    memory.scan(|name, body| {
        let name = name.filter(|name| name.len() > 22).map_or(0, <[u8]>::len);
        bytes += name + body.held.heap_bytes();
    });
    bytes
}

#[derive(Clone, Debug)]
enum Step {
    One(u8, u64),
    Many(Vec<u8>, u64),
    Look(Vec<u8>, u64),
    Remove(u8),
    Sweep(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let keys = || prop::collection::btree_set(0..12u8, 1..4).prop_map(|k| k.into_iter().collect());
    prop_oneof![
        4 => (0..12u8, 0..30u64).prop_map(|(key, uses)| Step::One(key, uses)),
        4 => (keys(), 0..30u64).prop_map(|(keys, uses)| Step::Many(keys, uses)),
        2 => (keys(), 0..30u64).prop_map(|(keys, uses)| Step::Look(keys, uses)),
        1 => (0..12u8).prop_map(Step::Remove),
        1 => (0..255u8).prop_map(Step::Sweep),
    ]
}

proptest! {
    /// Whatever happens, the bytes accounted for are those that are there; and none in the end.
    #[test]
    fn bytes_are_accounted_for_exactly(
        limits in 1..4usize,
        max_keys in 1..12usize,
        max_bytes in 500..20_000usize,
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let memory = Memory::new(Settings { max_keys, max_bytes });
        let name = |key: u8| format!("{key}").repeat(usize::from(key) * 4).into_bytes();
        let alive = |_: &Body, _: bool| false;
        let mut now = NOW;
        for step in steps {
            now = now.after(7);
            match step {
                Step::One(key, uses) => {
                    let name = name(key);
                    let at = address(&memory, &name, limits);
                    memory.update_one(&at, bucket(), alive, |body, _| grow(body, uses, now));
                }
                Step::Many(ref keys, uses) | Step::Look(ref keys, uses) => {
                    let names: Vec<_> = keys.iter().map(|key| name(*key)).collect();
                    let creates = matches!(step, Step::Many(..));
                    let at: Vec<_> = names
                        .iter()
                        .map(|name| SlotAddress { creates, ..address(&memory, name, limits) })
                        .collect();
                    memory.update_several(&at, bucket(), alive, |slots| {
                        slots.iter_mut().for_each(|slot| grow(slot.body, uses, now));
                    });
                }
                Step::Remove(key) => {
                    memory.remove(&address(&memory, &name(key), limits));
                }
                Step::Sweep(below) => {
                    // A log that is long enough dies; so some go and some stay.
                    memory.sweep(256, |body, _| body.held.heap_bytes() < usize::from(below) * 8);
                }
            }
            prop_assert_eq!(memory.heap.load(Relaxed), heap_of(&memory));
        }
        for _ in 0..8 {
            memory.sweep(256, |_, _| true);
        }
        prop_assert_eq!(memory.heap.load(Relaxed), 0);
        prop_assert_eq!(memory.overflows.load(Relaxed), 0);
        prop_assert_eq!(memory.size().bytes, 0);
    }
}

#[test]
fn a_look_makes_no_slot() {
    let memory = Memory::new(Settings { max_keys: 4, max_bytes: 1 << 20 });
    let at = SlotAddress { creates: false, ..address(&memory, b"name", 2) };
    let alive = |_: &Body, _: bool| false;
    memory.update_one(&at, bucket(), alive, |body, place| {
        assert_eq!((body.held.states().len(), place), (2, Placement::Own));
    });
    memory
        .update_several(&[at], bucket(), alive, |slots| assert_eq!(slots[0].place, Placement::Own));
    assert_eq!(memory.size(), TableSize { total: memory.size().total, ..TableSize::default() });
}

#[test]
fn what_a_full_table_means_is_the_rule_s_choice() {
    let memory = Memory::new(Settings { max_keys: 1, max_bytes: 1 << 20 });
    let alive = |_: &Body, _: bool| false;
    let place = |name: &[u8], on_full| {
        let at = SlotAddress { on_full, long: false, ..address(&memory, name, 1) };
        let one = memory.update_one(&at, bucket(), alive, |_, place| place);
        let many = memory.update_several(&[at], bucket(), alive, |slots| slots[0].place);
        assert_eq!(one, many);
        one
    };
    assert_eq!(place(b"first", OnFull::Share), Placement::Own);
    assert_eq!(place(b"second", OnFull::Deny), Placement::Denied);
    assert_eq!(place(b"second", OnFull::Allow), Placement::Uncounted);
    assert_eq!(place(b"second", OnFull::Share), Placement::Shared);
    assert_eq!(place(b"first", OnFull::Deny), Placement::Own);
    assert!(memory.remove(&address(&memory, b"first", 1)));
    assert_eq!(place(b"second", OnFull::Share), Placement::Own, "room again");
}

#[test]
fn a_slot_starts_from_the_count_that_its_key_shared() {
    let memory = Memory::new(Settings { max_keys: 1, max_bytes: 1 << 20 });
    let alive = |_: &Body, _: bool| false;
    let uses = |name: &[u8], more: u64| {
        let at = address(&memory, name, 1);
        memory.update_one(&at, bucket(), alive, |body, _| {
            grow(body, more, NOW);
            let op = Op::Peek(1);
            let state = &body.held.states()[0];
            algorithms::judge(&LOG, state, op, NOW).rate
        })
    };
    assert_eq!(uses(b"first", 1), 1.0);
    assert_eq!(uses(b"second", 2), 2.0);
    assert_eq!(uses(b"third", 3), 5.0, "shared");
    assert!(memory.remove(&address(&memory, b"first", 1)));
    assert_eq!(uses(b"third", 1), 6.0, "in its own slot");
    assert_eq!(uses(b"second", 0), 5.0, "still shared");
    // The shared count is forgotten by a sweep, like any other.
    memory.sweep(256, |body, _| body.held.heap_bytes() > 0);
    assert_eq!(uses(b"second", 0), 0.0);
}

#[test]
fn the_bounds_can_shrink_and_grow_within_the_reservation() {
    let memory = Memory::new(Settings { max_keys: 3, max_bytes: 1 << 20 });
    let alive = |_: &Body, _: bool| false;
    let place = |name: &[u8]| {
        let at = SlotAddress { on_full: OnFull::Deny, ..address(&memory, name, 1) };
        memory.update_one(&at, bucket(), alive, |_, place| place)
    };
    assert!(memory.resize(Settings { max_keys: 1, max_bytes: 1 << 20 }));
    assert_eq!([place(b"a"), place(b"b")], [Placement::Own, Placement::Denied]);
    assert!(memory.resize(Settings { max_keys: 3, max_bytes: 1 << 20 }));
    assert_eq!(
        [place(b"b"), place(b"c"), place(b"d")],
        [Placement::Own, Placement::Own, Placement::Denied]
    );
    assert!(!memory.resize(Settings { max_keys: 4, max_bytes: 0 }), "needs a restart");
    assert_eq!(place(b"a"), Placement::Denied, "a log that cannot grow is not used uncounted");
}

#[test]
fn what_was_taken_in_another_store_is_not_given_back_to_a_slot() {
    let memory = Memory::new(Settings { max_keys: 4, max_bytes: 1 << 20 });
    let alive = |_: &Body, _: bool| false;
    let at = address(&memory, b"name", 1);
    assert_eq!(memory.update(&[at], bucket(), alive, |slots| slots[0].place), Placement::Own);
    for (from, place) in
        [(TakenFrom::Slot, Placement::Own), (TakenFrom::Remote, Placement::Uncounted)]
    {
        let at = SlotAddress { creates: false, gives_back: Some(from), ..at };
        assert_eq!(memory.update(&[at], bucket(), alive, |slots| slots[0].place), place);
    }
}
