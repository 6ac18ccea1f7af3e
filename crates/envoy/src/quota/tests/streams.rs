//! Many streams and one bucket, without Envoys: what all of them together may be using at any
//! moment, however they come, go, fall silent and return.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tidegate_core::time::{Nanos, Now, SECOND};
use tidegate_core::{Algorithm, Limit, State};

use super::leases::cases;
use super::simulation::Count;
use crate::quota::{
    Action, Assignment, BUCKETS_PER_STREAM_MAX, Division, LEASE_LIFE, OWN_SEATS, Report,
    SHARED_SEATS_MAX, SILENCE_MAX, STREAMS_MAX, StreamId, Terms,
};

const KEY: &[u8] = b"web user=a";
const START: Now = Now { mono: 50 * SECOND, unix: 1_700_000_000 * SECOND };
const REPORT_INTERVAL: Nanos = 5 * SECOND;

/// The streams and what they were told: rates in uses per second, and until when each may be
/// obeyed.
struct Field {
    now: Now,
    limit: Limit,
    bank: Count,
    division: Division,
    due: Nanos,
    told: BTreeMap<StreamId, Vec<(f64, Nanos)>>,
    last: u64,
    abandoned: Vec<StreamId>,
    /// The most that all might use at once, as a part of the limit's rate.
    most: f64,
}

impl Field {
    fn new(amount: u64, period_s: u64, burst: u64) -> Self {
        let algorithm = Algorithm::Gcra { burst };
        let limit = Limit { amount, period: period_s * SECOND, algorithm };
        Self {
            now: START,
            limit,
            bank: Count { limit, state: State::None },
            division: Division::new(START),
            due: START.mono,
            told: BTreeMap::new(),
            last: 0,
            abandoned: Vec::new(),
            most: 0.0,
        }
    }

    /// As [`Self::new`], when a server may grant something at last.
    fn opened(amount: u64, period_s: u64, burst: u64) -> Self {
        let mut field = Self::new(amount, period_s, burst);
        field.pass(LEASE_LIFE + SECOND);
        field
    }

    fn open(&mut self) -> StreamId {
        self.last += 1;
        let stream = StreamId(self.last);
        self.division.open(stream).expect("few streams");
        self.report(stream, 0);
        stream
    }

    fn report(&mut self, stream: StreamId, allowed: u64) {
        let mut out = Vec::new();
        let report = Report { key: KEY, allowed, denied: 0, is_first: false };
        let terms = Terms::of(&[self.limit], false, false);
        self.division.report(stream, report, &terms, self.now, &mut self.bank, &mut out);
        self.heed(&out);
        self.due = self.now.mono;
    }

    fn heed(&mut self, out: &[Assignment]) {
        let until = self.now.mono + LEASE_LIFE;
        for assignment in out {
            if assignment.action == Action::Abandon {
                self.abandoned.push(assignment.stream);
            }
            let rate = match assignment.action {
                Action::TokenBucket { tokens_per_fill, fill_interval_s, .. } => {
                    f64::from(tokens_per_fill) / fill_interval_s as f64
                }
                Action::DenyAll { .. } | Action::Abandon => 0.0,
                Action::AllowAll { .. } => panic!("there is a limit"),
            };
            self.told.entry(assignment.stream).or_default().push((rate, until));
        }
        let now = self.now.mono;
        for told in self.told.values_mut() {
            told.retain(|(_, until)| *until > now);
        }
        self.most = self.most.max(self.part());
    }

    /// What a stream may be using: a message may have been lost, or may still be on its way.
    fn rate(&self, stream: StreamId) -> f64 {
        let told = self.told.get(&stream).into_iter().flatten();
        told.map(|(rate, _)| *rate).fold(0.0, f64::max)
    }

    /// What all may be using, as a part of the limit's rate.
    fn part(&self) -> f64 {
        let sum: f64 = self.told.keys().map(|stream| self.rate(*stream)).sum();
        sum * self.limit.period as f64 / (self.limit.amount as f64 * SECOND as f64)
    }

    fn pass(&mut self, span: Nanos) {
        let end = self.now.mono + span;
        while self.now.mono < end {
            let next = self.due.clamp(self.now.mono, end);
            self.now = self.now.after(next - self.now.mono);
            if self.now.mono >= self.due {
                let mut out = Vec::new();
                let terms = Terms::of(&[self.limit], false, false);
                self.due =
                    self.division.tick(|_| terms.clone(), self.now, &mut self.bank, &mut out);
                self.heed(&out);
            }
        }
    }

    /// Lets time pass, while each stream reports so many requests at the usual times.
    fn pass_with(&mut self, streams: &[(StreamId, u64)], intervals: usize) {
        for _ in 0..intervals {
            self.pass(REPORT_INTERVAL);
            for (stream, requests) in streams {
                self.report(*stream, *requests);
            }
        }
    }
}

#[track_caller]
fn check(field: &Field) {
    assert!(field.most <= 1.0 + 1e-9, "{} of the rate", field.most);
}

#[test]
fn nothing_is_granted_until_leases_of_an_earlier_server_have_ended() {
    let mut field = Field::new(60, 1, 60);
    let stream = field.open();
    field.pass(LEASE_LIFE - 1);
    assert_eq!(field.most, 0.0);
    field.pass(2 * SECOND);
    assert!(field.rate(stream) > 0.0);
}

#[test]
fn a_steady_crowd_has_ninety_five_percent_and_no_more() {
    for count in [1, 3, 40] {
        let mut field = Field::new(600, 1, 600);
        let streams: Vec<_> = (0..count).map(|_| (field.open(), 5_000)).collect();
        field.pass_with(&streams, 20);
        assert!(field.most <= 0.95 + 1e-9, "{} with {count}", field.most);
        assert!(field.part() > 0.9, "{} with {count}", field.part());
    }
}

#[test]
fn a_thousand_streams_share_what_there_is() {
    let mut field = Field::opened(5_000, 1, 5_000);
    let streams: Vec<_> = (0..STREAMS_MAX as u64).map(|_| (field.open(), 100)).collect();
    field.pass_with(&streams, 8);
    check(&field);
    assert!(field.part() > 0.8, "{}", field.part());
    let rates: Vec<f64> = streams.iter().map(|(stream, _)| field.rate(*stream)).collect();
    assert!(rates.iter().all(|rate| *rate > 3.0 && *rate < 7.0), "alike: {rates:?}");
}

#[test]
fn where_there_is_too_little_for_all_some_have_all_of_it() {
    for (amount, burst) in [(10, 10), (10, 1_000), (1_000, 40)] {
        let mut field = Field::opened(amount, 1, burst);
        let streams: Vec<_> = (0..STREAMS_MAX as u64).map(|_| (field.open(), 100_000)).collect();
        // Bursts of streams that came first are paid back first.
        field.pass_with(&streams, 24);
        check(&field);
        assert!(field.part() > 0.8, "{} of {amount} burst {burst}", field.part());
    }
}

#[test]
fn what_a_silent_stream_has_moves_to_others_when_it_has_ended() {
    let mut field = Field::new(60, 1, 60);
    let (silent, other) = (field.open(), field.open());
    field.pass_with(&[(silent, 5_000), (other, 5_000)], 8);
    let share = field.rate(other);
    assert!(share < 40.0, "{share}");
    // It reports no more, and is not closed: it may still obey what it was told.
    field.pass_with(&[(other, 5_000)], (SILENCE_MAX / REPORT_INTERVAL) as usize);
    field.pass(LEASE_LIFE + 2 * SECOND);
    assert!(field.rate(silent) == 0.0 && field.rate(other) > 50.0, "{}", field.rate(other));
    // It is heard again, and starts anew.
    field.pass_with(&[(silent, 5_000), (other, 5_000)], 6);
    let (one, two) = (field.rate(silent), field.rate(other));
    assert!(one > 20.0 && two > 20.0, "{one} and {two}");
    check(&field);
}

#[test]
fn a_stream_that_comes_and_goes_gains_nothing_by_it() {
    let mut field = Field::opened(60, 1, 60);
    let steady = field.open();
    field.pass_with(&[(steady, 5_000)], 4);
    for _ in 0..200 {
        let flapping = field.open();
        field.pass(SECOND / 4);
        field.division.close(flapping);
        if field.last.is_multiple_of(20) {
            field.report(steady, 5_000);
        }
    }
    check(&field);
    field.pass_with(&[(steady, 5_000)], 4);
    assert!(field.rate(steady) > 50.0, "{} of 60 when it is alone again", field.rate(steady));
    field.division.close(steady);
    field.pass(LEASE_LIFE + 2 * SECOND);
    assert!(field.division.is_idle(), "nothing is remembered for ever");
}

#[test]
fn a_stream_that_asks_for_nothing_is_let_go() {
    let mut field = Field::opened(60, 1, 60);
    let (idle, busy) = (field.open(), field.open());
    field.pass_with(&[(idle, 0), (busy, 5_000)], 11);
    assert_eq!((field.rate(idle), field.abandoned.len()), (0.0, 0));
    assert!(field.rate(busy) > 50.0);
    // It is denied, and has something again when it asks.
    field.pass_with(&[(idle, 50), (busy, 5_000)], 3);
    assert!(field.rate(idle) > 5.0, "{}", field.rate(idle));
    field.pass_with(&[(idle, 0), (busy, 5_000)], 12);
    assert_eq!(field.abandoned, [idle]);
    check(&field);
}

/// What a stream of some number does, or that one comes; and how long it is until the next event.
#[derive(Clone, Copy, Debug)]
enum Event {
    Open,
    Close(usize),
    Report(usize, u64),
    /// The clock of the wall is set.
    Clock(u64),
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => Just(Event::Open),
        2 => (0_usize..16).prop_map(Event::Close),
        9 => (0_usize..16, prop_oneof![Just(0_u64), 0_u64..10_000])
            .prop_map(|(stream, requests)| Event::Report(stream, requests)),
        1 => (0_u64..4_000_000_000).prop_map(Event::Clock),
    ]
}

#[test]
fn streams_that_take_all_room_leave_others_their_own() {
    let mut field = Field::opened(60, 1, 60);
    let terms = Terms::of(&[field.limit], false, false);
    let report = |field: &mut Field, stream: StreamId, number: usize| {
        let key = format!("web user={number} of={}", stream.0);
        let report = Report { key: key.as_bytes(), allowed: 1, denied: 0, is_first: false };
        let (bank, mut out) = (&mut field.bank, Vec::new());
        field.division.report(stream, report, &terms, field.now, bank, &mut out)
    };
    let mut seats = 0;
    for number in 0..20 {
        let stream = StreamId(1_000 + number);
        field.division.open(stream).expect("few streams");
        let had = (0..=BUCKETS_PER_STREAM_MAX)
            .take_while(|bucket| report(&mut field, stream, *bucket))
            .count();
        assert!((OWN_SEATS..=BUCKETS_PER_STREAM_MAX).contains(&had), "{had}");
        seats += had - OWN_SEATS;
    }
    assert_eq!(seats, SHARED_SEATS_MAX);
    let late = StreamId(1);
    field.division.open(late).expect("few streams");
    assert!((0..OWN_SEATS).all(|bucket| report(&mut field, late, bucket)));
    assert!(!report(&mut field, late, OWN_SEATS));
    // A stream that leaves makes room at once.
    field.division.close(StreamId(1_000));
    assert!(report(&mut field, late, OWN_SEATS));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn leases_and_what_is_reserved_are_never_more_than_the_limit(
        (amount, period_s, burst) in (1_u64..2_000, 1_u64..60, 1_u64..2_000),
        events in prop::collection::vec((any_event(), 0_u64..4_000), 1..120),
    ) {
        let mut field = Field::new(amount, period_s, burst);
        let mut streams = Vec::new();
        for (event, wait_ms) in events {
            match event {
                Event::Open => streams.push(field.open()),
                Event::Clock(unix_s) => field.now.unix = unix_s * SECOND,
                _ if streams.is_empty() => {}
                Event::Close(place) => {
                    let stream = streams.swap_remove(place % streams.len());
                    field.division.close(stream);
                }
                Event::Report(place, requests) => {
                    field.report(streams[place % streams.len()], requests);
                }
            }
            field.pass(wait_ms * SECOND / 1_000);
        }
        prop_assert!(field.most <= 1.0 + 1e-9, "{} of the rate", field.most);
    }
}
