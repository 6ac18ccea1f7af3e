//! The text path allocates nothing per request, shown by an allocator that counts.
//!
//! A binary of its own, because an allocator is for the whole process.
#![allow(unsafe_code, reason = "an allocator that counts must be an allocator")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use tidegate::clock::Clock;
use tidegate::config::Source;
use tidegate::doors::text::{Replies, answer_batch};
use tidegate::limiter::Limiter;
use tidegate::metrics::{Door, Metrics};
use tidegate::stores::memory;
use tidegate_core::Now;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

fn count() {
    // A thread that is ending has no counter any more, and nobody who would read it.
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
}

// SAFETY: every call is handed unchanged to the system's allocator, which keeps the contract;
// counting touches a thread-local cell without a destructor and never allocates.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `System` with this layout, as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the pointer came from `System` with this layout, as the caller promises.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.with(Cell::get);
    work();
    ALLOCATIONS.with(Cell::get) - before
}

#[test]
fn the_text_path_allocates_nothing_per_request() {
    let rules = Source::BuiltIn.load().expect("the built-in rules are sound").rules;
    let metrics = Arc::new(Metrics::new());
    let settings = memory::Settings { max_keys: 100_000, max_bytes: 64 << 20 };
    // Decisions are timed when the clock's low bits are zero. This one stands there, so that every
    // batch is timed and the series that the first of them makes is no matter of luck.
    let clock = Clock::manual(Now { mono: 1 << 40, unix: 1 << 60 });
    let limiter = Limiter::new(clock, metrics, rules, settings);
    let desk = limiter.desk(Door::Text);
    let mut replies = Replies::new();
    let requests: Vec<String> = (0..6_400)
        .map(|n| match n % 16 {
            13 => format!("{n} get_stats ws ip=10.0.{}.{}", n / 256, n % 256),
            14 => format!("{n} get_size"),
            15 => format!("{n} ping"),
            12 => format!("{n} no request"),
            11 => format!("{n} over_limit nobody limits this"),
            _ => format!("{n} over_limit ws ip=10.0.{}.{}", n / 256, n % 256),
        })
        .collect();
    let packets: Vec<&[u8]> = requests.iter().map(String::as_bytes).collect();
    let mut answered = 0;
    let mut round = |answered: &mut usize| {
        for batch in packets.chunks(64) {
            answer_batch(&desk, desk.now(), batch, &mut replies);
            *answered += replies.iter().len();
        }
    };
    // The first round makes the slots and the buffers.
    round(&mut answered);
    let made = allocations(|| (0..10).for_each(|_| round(&mut answered)));
    assert_eq!(answered, 11 * 6_000, "all but the malformed are answered");
    assert_eq!(made, 0, "allocations in 64,000 requests");
    assert!(allocations(|| drop(vec![1])) > 0, "the counter counts");
}
