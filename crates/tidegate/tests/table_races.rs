//! The table's locks under every order of events: its own files, with atomics and memory of a
//! model checker that knows what another core may still see.
//!
//! Entries lie in memory whose every use is watched: two that no lock orders are reported, whether
//! or not they did harm. A lock that is never freed is a deadlock, and reported, too.
#![allow(unsafe_code, reason = "the memory that the table's own proof is about, watched")]

#[path = "../src/table/line.rs"]
mod line;
#[path = "../src/table/lock.rs"]
mod lock;
#[path = "../src/table/locked.rs"]
#[allow(dead_code, unreachable_pub, reason = "the program uses the rest")]
mod locked;
#[path = "../src/table/probe.rs"]
#[allow(dead_code, unreachable_pub, reason = "the program uses the rest")]
mod probe;

/// The same names as in the program, on the checker's types.
mod sync {
    use std::cell::Cell;

    pub(super) use loom::hint::spin_loop;
    use loom::sync::atomic::Ordering::{self, Relaxed};
    pub(super) use loom::sync::atomic::{AtomicU16, AtomicU32};
    pub(super) use loom::thread::yield_now;

    pub(super) fn nap(_: std::time::Duration) {
        yield_now();
    }

    /// A mistake that the checker must find.
    #[derive(Clone, Copy, Debug)]
    pub(super) enum Planted {
        Nothing,
        NotTaken,
        NotAcquired,
        NotReleased,
        NotFreed,
    }

    thread_local! {
        /// All threads of a scene run on the thread of its test.
        pub(super) static PLANTED: Cell<Planted> = const { Cell::new(Planted::Nothing) };
    }

    /// The checker takes a swap that changes nothing for a new value that can be seen for ever.
    /// Without the write, and with less order where it fails, the swap is the same.
    #[derive(Default)]
    pub(super) struct AtomicBool(loom::sync::atomic::AtomicBool);

    impl AtomicBool {
        pub(super) fn new(value: bool) -> Self {
            Self(loom::sync::atomic::AtomicBool::new(value))
        }

        pub(super) fn swap(&self, value: bool, order: Ordering) -> bool {
            match PLANTED.get() {
                Planted::NotTaken => false,
                Planted::NotAcquired => self.exchange(value, Relaxed),
                _ => self.exchange(value, order),
            }
        }

        fn exchange(&self, value: bool, order: Ordering) -> bool {
            self.0.compare_exchange(!value, value, order, Relaxed).is_err() == value
        }

        pub(super) fn load(&self, order: Ordering) -> bool {
            self.0.load(order)
        }

        pub(super) fn store(&self, value: bool, order: Ordering) {
            match PLANTED.get() {
                Planted::NotFreed => {}
                Planted::NotReleased => self.0.store(value, Relaxed),
                _ => self.0.store(value, order),
            }
        }
    }

    pub(super) struct UnsafeCell<T>(loom::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub(super) fn new(value: T) -> Self {
            Self(loom::cell::UnsafeCell::new(value))
        }

        /// Asking for the address counts as writing there.
        pub(super) fn get(&self) -> *mut T {
            self.0.with_mut(|address| address)
        }
    }
}

mod arena {
    use std::mem::MaybeUninit;
    use std::ptr::NonNull;

    use super::sync::UnsafeCell;

    /// Places for entries, each of them watched.
    pub(super) struct Arena<E>(Vec<UnsafeCell<MaybeUninit<E>>>);

    // SAFETY: as in the program: only addresses are handed out.
    unsafe impl<E: Send> Sync for Arena<E> {}

    impl<E> Arena<E> {
        pub(super) fn new(capacity: usize) -> Self {
            Self((0..capacity).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect())
        }

        pub(super) fn take(&self, free: &mut Vec<u32>) -> Option<u32> {
            free.pop()
        }

        pub(super) fn give_back(&self, place: u32, free: &mut Vec<u32>) {
            free.push(place);
        }

        pub(super) fn at(&self, place: u32) -> NonNull<E> {
            NonNull::new(self.0[place as usize].get().cast()).expect("an address")
        }

        pub(super) fn prefetch(&self, _: u32) {}
    }

    pub(super) fn prefetch_to_write(_: usize) {}
}

use loom::model::Builder;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Acquire};
use loom::thread;

use self::arena::Arena;
use self::line::IndexLine;
use self::lock::Lock;
use self::locked::Locked;
use self::probe::TableProbe;
use self::sync::{PLANTED, Planted};

/// The lines of the one shard, for each size of its index.
struct IndexLevels(Vec<Vec<IndexLine>>);

impl IndexLevels {
    fn of(&self, _shard: usize, size: usize) -> &[IndexLine] {
        &self.0[size.ilog2() as usize]
    }

    fn left(&self, _: usize) {}
}

/// An index grows early: there are few events to put in order.
const CROWD: usize = 2;
const LINES_MAX: usize = 2;
const ENTRIES_MAX: usize = 3;

/// The table as in the program, but for where its memory comes from.
struct Table<E> {
    slots: Lock<Slots>,
    masks: [AtomicU32; 1],
    cells: IndexLevels,
    lines_max: usize,
    len: AtomicUsize,
    arena: Arena<E>,
}

struct Slots {
    free: Vec<u32>,
    cursor: usize,
    len: usize,
}

impl<E> Table<E> {
    fn new() -> Self {
        let free = (0..ENTRIES_MAX as u32).collect();
        let lines = |size| (0..size).map(|_| IndexLine::default()).collect();
        Self {
            slots: Lock::new(Slots { free, cursor: 0, len: 0 }),
            masks: [AtomicU32::new(0)],
            cells: IndexLevels((0..=LINES_MAX.ilog2()).map(|level| lines(1 << level)).collect()),
            lines_max: LINES_MAX,
            len: AtomicUsize::new(0),
            arena: Arena::new(ENTRIES_MAX),
        }
    }

    fn lines_of(&self, shard: usize) -> &[IndexLine] {
        self.cells.of(shard, self.masks[shard].load(Acquire) as usize + 1)
    }

    fn probe(&self, hash: u64) -> TableProbe<'_, E> {
        let lines = self.lines_of(0);
        TableProbe::new(self, hash, &lines[hash as usize & (lines.len() - 1)])
    }

    fn lock(&self) -> Locked<'_, E> {
        Locked::new(self, 0, self.slots.lock())
    }

    fn cell(&self, hash: u64, place: u32) -> u32 {
        self.tag(hash) | (place + 1)
    }

    fn tag(&self, hash: u64) -> u32 {
        (hash as u32) << 16
    }

    fn fits(&self, cell: u32, tag: u32) -> bool {
        cell & !0xffff == tag && cell != 0
    }

    fn place(&self, cell: u32) -> u32 {
        (cell & 0xffff).wrapping_sub(1)
    }
}

/// More events than any order of a scene has: beyond that somebody waits for ever.
const BRANCHES_MAX: usize = 10_000;

/// Tries every order of events of a scene.
fn check(scene: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.max_branches = BRANCHES_MAX;
    builder.check(scene);
}

/// A key and how often it was used.
struct Used(u64, u64);

fn hash_of(used: &Used) -> u64 {
    used.0
}

/// Uses a key as a decision does: where its entry lies, or under the shard's lock.
fn use_once(table: &Table<Used>, key: u64) {
    if let Some(mut found) = table.probe(key).find(|entry| entry.0 == key) {
        found.1 += 1;
        return;
    }
    let mut shard = table.lock();
    match shard.find(key, |entry| entry.0 == key) {
        Some(spot) => shard.entry(spot).1 += 1,
        None => assert!(shard.insert(key, Used(key, 1), hash_of).is_ok()),
    }
}

/// Removes a key and returns how often it was used.
fn bury(table: &Table<Used>, key: u64) -> u64 {
    let mut uses = 0;
    table.lock().sweep(usize::MAX, hash_of, |entry| entry.0 == key, |entry| uses += entry.1);
    uses
}

fn uses(table: &Table<Used>) -> u64 {
    let mut uses = 0;
    table.lock().each(|entry| uses += entry.1);
    uses
}

#[test]
fn one_at_a_time_has_what_a_lock_guards() {
    check(|| {
        let lock = Arc::new(Lock::new(0));
        let other = lock.clone();
        let other = thread::spawn(move || *other.lock() += 1);
        *lock.lock() += 1;
        other.join().expect("no panic");
        assert_eq!(*lock.lock(), 2);
    });
}

fn two_use_one_key() {
    let table = Arc::new(Table::new());
    let other = table.clone();
    let other = thread::spawn(move || use_once(&other, 1));
    use_once(&table, 1);
    other.join().expect("no panic");
    assert_eq!(uses(&table), 2);
}

#[test]
fn two_who_use_one_key_lose_no_use() {
    check(two_use_one_key);
}

fn check_with(planted: Planted) {
    PLANTED.set(planted);
    check(two_use_one_key);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_lock_that_is_not_taken_is_found() {
    check_with(Planted::NotTaken);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_lock_that_acquires_nothing_is_found() {
    check_with(Planted::NotAcquired);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_lock_that_releases_nothing_is_found() {
    check_with(Planted::NotReleased);
}

#[test]
#[should_panic(expected = "exceeded maximum number of branches")]
fn a_lock_that_is_never_freed_is_found() {
    check_with(Planted::NotFreed);
}

#[test]
fn a_use_of_a_key_that_is_swept_is_in_it_or_in_the_next() {
    check(|| {
        let table = Arc::new(Table::new());
        use_once(&table, 1);
        let other = table.clone();
        let other = thread::spawn(move || bury(&other, 1));
        use_once(&table, 1);
        let buried = other.join().expect("no panic");
        assert_eq!(buried + uses(&table), 2);
    });
}

#[test]
fn no_use_is_lost_while_the_index_grows() {
    check(|| {
        let table = Arc::new(Table::new());
        // The third is one too many for one line.
        [1, 2].into_iter().for_each(|key| use_once(&table, key));
        let other = table.clone();
        let other = thread::spawn(move || use_once(&other, 3));
        use_once(&table, 1);
        other.join().expect("no panic");
        assert_eq!(uses(&table), 4);
        let first = table.probe(1).find(|entry| entry.0 == 1).map(|entry| entry.1);
        assert_eq!(first, Some(2), "it lies where it is looked for first");
    });
}
