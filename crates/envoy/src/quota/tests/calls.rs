//! Any sequence of calls, over several buckets and rules, with a bank that answers when it likes:
//! a stream that is told something has asked for it, and nothing is remembered for ever.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use tidegate_core::time::{Nanos, Now, SECOND};
use tidegate_core::{Algorithm, Limit};

use super::leases::cases;
use crate::quota::{Action, Assignment, Bank, Division, Grant, Report, RequestId, StreamId, Terms};

#[derive(Clone, Copy, Debug)]
enum Event {
    Open(u64),
    Close(u64),
    Report {
        stream: u64,
        bucket: u8,
        allowed: u64,
        denied: u64,
        is_first: bool,
    },
    /// The limit of a bucket is another one.
    Rules {
        bucket: u8,
        terms: usize,
    },
    /// A store answers the question that has waited longest.
    Answer(u64),
    Pass(Nanos),
}

fn any_count() -> impl Strategy<Value = u64> {
    prop_oneof![3 => Just(0), 3 => 0_u64..100, 1 => any::<u64>()]
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        1 => (0_u64..4).prop_map(Event::Open),
        1 => (0_u64..4).prop_map(Event::Close),
        6 => (0_u64..5, 0_u8..3, any_count(), any_count(), any::<bool>()).prop_map(
            |(stream, bucket, allowed, denied, is_first)| {
                Event::Report { stream, bucket, allowed, denied, is_first }
            }),
        1 => (0_u8..3, 0_usize..TERMS).prop_map(|(bucket, terms)| Event::Rules { bucket, terms }),
        2 => any_count().prop_map(Event::Answer),
        3 => prop_oneof![0..SECOND, 0..20 * SECOND].prop_map(Event::Pass),
    ]
}

const TERMS: usize = 8;

fn terms(number: usize) -> Terms {
    let of = |algorithm, amount, period_s| Limit { amount, period: period_s * SECOND, algorithm };
    let limits: [&[Limit]; TERMS] = [
        &[],
        &[Limit::DENY],
        &[of(Algorithm::Gcra { burst: 40 }, 60, 1)],
        &[of(Algorithm::Gcra { burst: 9 }, 1, 86_400)],
        &[of(Algorithm::FixedWindow, 100, 5)],
        &[of(Algorithm::SlidingLog, 100, 60), of(Algorithm::FixedWindow, 7, 10)],
        &[of(Algorithm::SlidingLog, u64::MAX, 5)],
        &[of(Algorithm::FixedWindow, 1, 60)],
    ];
    // The last one is in shadow.
    Terms::of(limits[number], number == TERMS - 1, false)
}

/// Leases are for counts that answer at once, and slices may have to wait.
#[derive(Default)]
struct Fickle {
    waiting: Vec<RequestId>,
    turn: u64,
}

impl Bank for Fickle {
    fn take_up_to(&mut self, _: &[u8], most: u64, request: RequestId, _: Now) -> Option<Grant> {
        self.turn += 1;
        match self.turn % 3 {
            _ if request == RequestId(0) => Some(Grant::counted(most / 2)),
            0 => Some(Grant { uses: most, is_counted: self.turn.is_multiple_of(2) }),
            1 => Some(Grant::counted(0)),
            _ => {
                self.waiting.push(request);
                None
            }
        }
    }

    fn record(&mut self, _: &[u8], _: u64, _: Nanos, _: Now) {}

    fn refund(&mut self, _: &[u8], _: u64, _: Now) {}
}

/// Everything around a division.
struct World {
    division: Division,
    bank: Fickle,
    now: Now,
    rules: BTreeMap<u8, usize>,
    open: BTreeSet<u64>,
    out: Vec<Assignment>,
}

fn key(bucket: u8) -> [u8; 3] {
    [b'w', b' ', bucket]
}

impl World {
    fn happen(&mut self, event: Event) {
        let Self { division, bank, now, rules, open, out } = self;
        let terms_of = |bucket: u8| terms(rules.get(&bucket).copied().unwrap_or(2));
        match event {
            Event::Open(stream) => {
                division.open(StreamId(stream)).expect("few streams");
                open.insert(stream);
            }
            Event::Close(stream) => {
                division.close(StreamId(stream));
                open.remove(&stream);
            }
            Event::Report { stream, bucket, allowed, denied, is_first } => {
                let key = key(bucket);
                let report = Report { key: &key, allowed, denied, is_first };
                let stream = StreamId(stream);
                division.report(stream, report, &terms_of(bucket), *now, bank, out);
            }
            Event::Rules { bucket, terms } => {
                rules.insert(bucket, terms);
                division.rules_changed();
            }
            Event::Answer(uses) => {
                if let Some(request) = bank.waiting.pop() {
                    let grant = Grant { uses, is_counted: uses.is_multiple_of(2) };
                    division.granted(request, grant, *now, bank, out);
                }
            }
            Event::Pass(span) => {
                let end = now.mono + span;
                while now.mono < end {
                    let next = division.tick(|key| terms_of(key[2]), *now, bank, out);
                    *now = now.after(next.clamp(now.mono + 1, end) - now.mono);
                }
            }
        }
    }

    fn check(&mut self) {
        for Assignment { stream, action, .. } in self.out.drain(..) {
            assert!(self.open.contains(&stream.0), "{stream:?} is closed");
            match action {
                // Envoy cuts off less than a second, and has to have the next one in time.
                Action::AllowAll { ttl_s } | Action::DenyAll { ttl_s } => assert!(ttl_s >= 2),
                Action::TokenBucket { max_tokens, tokens_per_fill, fill_interval_s, ttl_s } => {
                    assert!(max_tokens > 0 && tokens_per_fill > 0 && fill_interval_s > 0);
                    assert!(ttl_s >= 2);
                }
                Action::Abandon => {}
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn any_calls_keep_the_books(events in prop::collection::vec(any_event(), 1..80)) {
        let mut world = World {
            division: Division::new(Now::default()),
            bank: Fickle::default(),
            now: Now::default(),
            rules: BTreeMap::new(),
            open: BTreeSet::new(),
            out: Vec::new(),
        };
        (0..3).for_each(|stream| world.happen(Event::Open(stream)));
        for event in events {
            world.happen(event);
            world.check();
        }
        (0..5).for_each(|stream| world.happen(Event::Close(stream)));
        // Longer than any lease, and than any log remembers.
        world.happen(Event::Pass(90 * SECOND));
        world.check();
        prop_assert!(world.division.is_idle());
    }
}
