//! The text path, the JARL path, the Smockron path, the RESP path, a request that need not wait and
//! the use of records allocate nothing, shown by an allocator that counts.
//!
//! A binary of its own, because an allocator is for the whole process.
#![allow(unsafe_code, reason = "an allocator that counts must be an allocator")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use tidegate::clock::Clock;
use tidegate::config::{Config, ConfigSource};
use tidegate::doors::jarl::JarlHandler;
use tidegate::doors::resp::{self, RespConversation};
use tidegate::doors::smockron;
use tidegate::doors::text::TextHandler;
use tidegate::doors::throttr::{Conversation, ThrottrState};
use tidegate::limiter::Limiter;
use tidegate::metrics::{Door, Metrics};
use tidegate::records::{self, Life, RecordProbe, Records, Unit, UpdateChange};
use tidegate::stores::memory;
use tidegate::waiting::{Began, WaitRequest, WaitingRequests};
use tidegate_core::rules::{Rule, RuleSet};
use tidegate_core::{Algorithm, Limit, Now};
use tidegate_wire::resp::request::request;
use tidegate_wire::throttr::{self as wire, Request, ValueSize};

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
    let rules = ConfigSource::BuiltIn.load().expect("the built-in rules are sound").rules;
    let metrics = Arc::new(Metrics::new());
    let settings = memory::Settings { max_keys: 100_000, max_bytes: 64 << 20 };
    // Decisions are timed when the clock's low bits are zero. This one stands there, so that every
    // batch is timed and the series that the first of them makes is no matter of luck.
    let clock = Clock::manual(Now { mono: 1 << 40, unix: 1 << 60 });
    let limiter = Limiter::new(clock, metrics, rules, settings);
    let mut handler = TextHandler::new(limiter.handle(Door::Text)).expect("a notifier");
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
            let replies = handler.on_datagrams(batch, |_| (), |()| false);
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

#[test]
fn the_jarl_path_allocates_nothing_per_caller() {
    for exact in [false, true] {
        let table = format!(
            "[[jarl]]\nservice = 'a'\nlisten = '127.0.0.1:0'\nlimit = '1000 per 1s'\n\
             exact = {exact}"
        );
        let rules = Config::parse("t", &table).expect("a sound table").rules;
        let clock = Clock::manual(Now { mono: 1 << 40, unix: 1 << 60 });
        let settings = memory::Settings { max_keys: 100, max_bytes: 64 << 20 };
        let limiter = Limiter::new(clock.clone(), Arc::new(Metrics::new()), rules, settings);
        let mut handler = JarlHandler::new(limiter.handle(Door::Jarl), "a").expect("an eventfd");
        let mut told = 0;
        let mut call = || {
            handler.answer(1, clock.now(), |answer| told += answer.len()).expect("fit");
            // Every call at a moment of its own: as many bookings as there can be.
            clock.advance(500_000);
        };
        // The first calls make the slot, and the room for all bookings that are kept.
        (0..3_000).for_each(|_| call());
        let made = allocations(|| (0..10_000).for_each(|_| call()));
        assert!(told >= 5 * 13_000, "every caller is answered");
        assert_eq!(made, 0, "allocations in 10,000 calls, exact {exact}");
    }
}

/// Accounting messages that lie in memory, and what is published of them.
struct Batch(Vec<[Vec<u8>; 6]>);

impl smockron::Messages for Batch {
    fn count(&self) -> usize {
        self.0.len()
    }

    fn frames<'a, 'r>(&'a self, index: usize, room: &'r mut [&'a [u8]]) -> &'r [&'a [u8]] {
        for (slot, frame) in room.iter_mut().zip(&self.0[index]) {
            *slot = frame;
        }
        room
    }
}

struct Published(usize);

impl smockron::Publish for Published {
    fn publish(&mut self, message: &tidegate_wire::smockron::Frames) -> bool {
        self.0 += message.iter().len();
        true
    }
}

#[test]
fn the_smockron_path_allocates_nothing_per_message() {
    let table = "[smockron]\naccounting = 'tcp://127.0.0.1:0'\n[smockron.domains]\n\
                 web = '1 per min burst 4'\nbucket = '1 per min burst 4'\nquiet = '1000/s'";
    let rules = Config::parse("t", table).expect("a sound table").rules;
    let clock = Clock::manual(Now { mono: 1 << 60, unix: 1 << 60 });
    let settings = memory::Settings { max_keys: 10_000, max_bytes: 64 << 20 };
    let limiter = Limiter::new(clock.clone(), Arc::new(Metrics::new()), rules, settings);
    let handle = limiter.handle(Door::Smockron);
    let mut handler = smockron::Handler::new(handle, smockron::Settings::default());
    let ms = (clock.now().unix / 1_000_000).to_string();
    let message = |n: usize| {
        let (domain, status) = match n % 8 {
            0..4 => ("web\0", "ACCEPTED"),
            4 => ("bucket\0", "DELAYED"),
            5 => ("quiet\0", "ACCEPTED"),
            6 => ("quiet\0", "REJECTED"),
            _ => ("quiet\0", "NONSENSE"),
        };
        let identifier = format!("a client with a long name {}", n / 8);
        [domain, status, &identifier, &ms, &ms, "curl"].map(|frame| frame.as_bytes().to_vec())
    };
    let batches: Vec<Batch> =
        (0..16).map(|b| Batch((0..400).map(|n| message(400 * b + n)).collect())).collect();
    let mut published = Published(0);
    let mut round = |published: &mut Published| {
        for batch in &batches {
            handler.take(batch, clock.now(), published);
        }
    };
    // The first rounds make the slots, the histories and the buffers.
    (0..5).for_each(|_| round(&mut published));
    published.0 = 0;
    let made = allocations(|| (0..10).for_each(|_| round(&mut published)));
    assert_eq!(published.0, 4 * 10 * 16 * 250, "four frames for each delay");
    assert_eq!(made, 0, "allocations in 64,000 messages");
}

#[test]
fn a_request_that_need_not_wait_allocates_nothing() {
    let flight = Algorithm::InFlight { per_window: false };
    let limit = |algorithm, period| Limit { amount: 1 << 40, period, algorithm };
    let rules = vec![
        Rule::new("window", "api path=*", vec![limit(Algorithm::FixedWindow, 1 << 36)]),
        Rule::new("flight", "fly path=*", vec![limit(flight, 0)]),
    ];
    let clock = Clock::manual(Now { mono: 1 << 40, unix: 1 << 60 });
    let settings = memory::Settings { max_keys: 10_000, max_bytes: 64 << 20 };
    let metrics = Arc::new(Metrics::new());
    let limiter = Limiter::new(clock.clone(), metrics, RuleSet::new(rules, None), settings);
    let waiting = WaitingRequests::new(&limiter);
    let handle = limiter.handle(Door::Proxy);
    let keys: Vec<String> = (0..1_000)
        .map(|n| format!("{} path=/{n}", if n % 2 == 0 { "api" } else { "fly" }))
        .collect();
    let round = || {
        for key in keys.iter().map(String::as_bytes) {
            let request = WaitRequest { key, cost: 1, max_wait: None, can_end: true };
            let Began::Done(Ok(admitted)) = waiting.begin(&handle, &request, clock.now()) else {
                panic!("it is free")
            };
            if let Some(from) = admitted.held {
                handle.release_uses(key, 1, admitted.started, from);
            }
        }
    };
    // The first round makes the slots.
    round();
    assert_eq!(allocations(|| (0..10).for_each(|_| round())), 0, "allocations in 10,000 uses");
}

#[test]
fn known_records_are_used_without_allocating() {
    let records = Records::new(records::Settings { max_records: 10_000, max_bytes: 64 << 20 });
    let now = Now { mono: 1 << 40, unix: 1 << 60 };
    let life = Life { unit: Unit::Seconds, amount: 60 };
    let keys: Vec<String> = (0..1_000).map(|n| format!("{n} {}", "k".repeat(n % 200))).collect();
    let keys: Vec<(&[u8], RecordProbe<'_>)> =
        keys.iter().map(|key| (key.as_bytes(), records.probe(key.as_bytes()))).collect();
    for (key, probe) in &keys {
        assert!(records.insert(key, *probe, 1_000, life, now));
    }
    let mut answered = 0;
    let made = allocations(|| {
        for (key, mut probe) in keys.iter().copied() {
            probe.prefetch();
            probe.prefetch_slot();
            answered += usize::from(records.query(key, probe, now).is_some());
            let less = records.update_quota(key, probe, UpdateChange::Decrease, 1, u64::MAX, now);
            answered += usize::from(less);
            answered += usize::from(records.update_ttl(key, probe, UpdateChange::Increase, 1, now));
            answered += usize::from(records.consume(key, probe, 1, 9, life, now).taken);
            answered += usize::from(records.stat(key, probe, now).is_some());
            answered += usize::from(!records.insert(key, probe, 1, life, now));
        }
    });
    assert_eq!(answered, 6 * keys.len());
    assert_eq!(made, 0, "allocations in {answered} uses");
    // The place of an expired record and its long key are used again.
    let expired = now.after(1 << 40);
    let again = allocations(|| {
        for (key, probe) in keys.iter().copied() {
            assert!(records.insert(key, probe, 1, life, expired));
        }
    });
    assert_eq!(again, 0, "an expired record is made anew in its place");
}

#[test]
fn the_throttr_path_allocates_nothing_per_request() {
    let clock = Clock::manual(Now { mono: 1 << 60, unix: 1 << 60 });
    let records = Records::new(records::Settings { max_records: 100_000, max_bytes: 64 << 20 });
    let (state, metrics) = (ThrottrState::new(clock.clone()), Arc::new(Metrics::new()));
    let size = ValueSize::Bits16;
    let open = Conversation::open(records, state, metrics, size, 1000, clock.now());
    let mut client = open.expect("a client");
    let keys: Vec<String> = (0..6_400).map(|n| format!("a key that is longer {n}")).collect();
    let batches: Vec<Vec<u8>> = keys
        .chunks(100)
        .map(|keys| {
            let mut bytes = Vec::new();
            for (at, key) in keys.iter().enumerate() {
                let (key, ttl) = (key.as_bytes(), wire::Ttl::new(9, wire::Unit::Hours));
                let request = match at % 8 {
                    0 => Request::Insert { quota: 9, ttl, key },
                    1 => Request::Query { key: b"missing" },
                    2 => Request::Consume { cost: 0, quota: 9, ttl, key },
                    3 => Request::Whoami,
                    4 => Request::Stat { key },
                    5 => Request::Get { key },
                    6 => Request::Query { key },
                    _ => Request::Update {
                        attribute: Some(wire::Attribute::Quota),
                        change: Some(wire::UpdateChange::Patch),
                        value: 5,
                        key,
                    },
                };
                request.encode(size, &mut bytes).expect("a request");
            }
            bytes
        })
        .collect();
    let mut replies = Vec::new();
    let mut answered = 0;
    let mut round = |answered: &mut usize| {
        for batch in &batches {
            replies.clear();
            assert!(client.say(batch, clock.now(), &mut replies));
            *answered += replies.len();
        }
    };
    // The first round makes the records and the buffers.
    round(&mut answered);
    let first = std::mem::take(&mut answered);
    let made = allocations(|| (0..10).for_each(|_| round(&mut answered)));
    assert_eq!(answered, 10 * first, "every request is answered");
    assert_eq!(made, 0, "allocations in 64,000 requests");
}

#[test]
fn the_resp_path_allocates_nothing_per_request() {
    let clock = Clock::manual(Now { mono: 1 << 40, unix: 1 << 60 });
    let limit = Limit { amount: 3, period: 1 << 40, algorithm: Algorithm::FixedWindow };
    let rules = vec![Rule::new("r", "rule *", vec![limit]), Rule::of_given_limits("resp:throttle")];
    let settings = memory::Settings { max_keys: 100_000, max_bytes: 64 << 20 };
    let rules = RuleSet::new(rules, None);
    let limiter = Limiter::new(clock.clone(), Arc::new(Metrics::new()), rules, settings);
    let records = Records::beside(&limiter, 1_000);
    let table = resp::Config::default();
    let open = RespConversation::open(&limiter, records, &table, clock.now());
    let mut client = open.expect("a client");
    let batches: Vec<Vec<u8>> = (0..64)
        .map(|batch| {
            let mut bytes = Vec::new();
            for at in 0..100 {
                let key = format!("a key that is longer {batch} {at}");
                let rule = format!("rule {batch} {at}");
                let words: &[&[u8]] = match at % 8 {
                    0 => &[b"PING"],
                    1 => &[b"THROTTLE", key.as_bytes(), b"5", b"1", b"3600"],
                    2 => &[b"ECHO", key.as_bytes()],
                    3 => &[b"cl.throttle", rule.as_bytes(), b"5", b"1", b"3600"],
                    _ => &[b"CL.THROTTLE", key.as_bytes(), b"5", b"1", b"3600", b"2"],
                };
                request(&mut bytes, words);
            }
            bytes
        })
        .collect();
    let mut replies = Vec::new();
    let mut round = || {
        for batch in &batches {
            replies.clear();
            assert!(client.say(batch, clock.now(), &mut replies));
            assert!(replies.len() > 100 * 7, "every request is answered");
        }
    };
    // The first round makes the counts and the buffers.
    round();
    let made = allocations(|| (0..10).for_each(|_| round()));
    assert_eq!(made, 0, "allocations in 64,000 requests");
}
