//! Slices: each second a stream gets uses that were taken from the key's count before.
//!
//! A slice is a bucket that starts full and is not refilled. It replaces the one before, of which
//! the rest is lost to the stream. Its uses must fall where they were counted:
//! - windows: the slice ends before its window does. What a stream left unused is given back in the
//!   same window, but never what it may have used since its report was sent;
//! - logs: a use counts from when it was taken, and may happen a slice's life later. So it is
//!   written down a second time when the slice ends. That halves what can be had, and is what never
//!   admitting too much costs: a log cannot redate a use, and taking back its newest would take
//!   back another's.
//!
//! All streams of a bucket buy together. Each has its max-min fair part of the whole limit at most,
//! and where there is less than one use for each, those buy first that have waited longest.
//!
//! Other algorithms (`gcra` in a remote store, `average`, `jarl`) forget as time goes by: they may
//! admit what they forget within [`SLICE_LIFE`] too much.
//!
//! A stream that reports no requests is quiet. It buys nothing each second, but it may hold a
//! single use and has it prolonged, so that the next request passes without a question: in a
//! window until that ends; elsewhere for a period, and it is written down a second time at the end.

use std::collections::{BTreeMap, VecDeque};

use tidegate_core::time::{Nanos, SECOND};

use super::demand::Demand;
use super::divider::{Divider, RequestCounts, Turn};
use super::fair;
use super::{ARRIVAL, Action, BLANKET_TTL_S, Grant, RequestId, SlicePlan, StreamId, Terms};

/// For how long a slice may be used once it has arrived: until the next has, in any case.
const SLICE_TTL_S: u64 = 2;
/// A slice may be in use for this long after it was sent.
const SLICE_LIFE: Nanos = SLICE_TTL_S * SECOND + ARRIVAL;
/// The same of what a quiet stream holds. It is longer, because Envoy would start with a full
/// bucket if it had lapsed before it is prolonged.
const HELD_TTL_S: u64 = 4;
pub(super) const HELD_LIFE: Nanos = HELD_TTL_S * SECOND + ARRIVAL;
/// How often slices are bought.
const INTERVAL: Nanos = SECOND;
/// A refill so slow that there is none.
const FILL_INTERVAL_S: u64 = 31_536_000;
/// After so many reports of zero the bucket is abandoned.
const ZERO_REPORTS_MAX: u32 = 12;
/// After so many a quiet stream holds nothing any more: what it held is given back before the
/// bucket is abandoned.
const HOLDING_REPORTS_MAX: u32 = 10;
/// A quiet stream that finds nothing to hold looks again after this long.
const LOOK_AGAIN: Nanos = 5 * SECOND;
/// Of a whole limit, a stream is first given this part, before its demand is known.
const FIRST_PART: u64 = 100;

/// The slices of one stream.
#[derive(Debug)]
struct Seat {
    demand: Demand,
    first: u64,
    /// When it was last given something.
    given_at: Nanos,
    /// The question to the bank that is not answered yet.
    asked: Option<Asked>,
    denied_at: Option<Nanos>,
    /// What it holds while it is quiet.
    held: Option<Held>,
    /// When to look for something to hold.
    look_at: Nanos,
    /// The end of a window on the wall clock. Below is what was granted in it and not given back.
    window_end: Nanos,
    recent: VecDeque<(Nanos, u64)>,
    settled: u64,
    reported: u64,
}

/// A question to the bank.
#[derive(Clone, Copy, Debug)]
struct Asked {
    request: RequestId,
    /// When the window of what is taken ends, on `mono`.
    window_end: Nanos,
    /// Whether it is to be held.
    holds: bool,
}

/// A use that a quiet stream holds.
#[derive(Clone, Copy, Debug)]
struct Held {
    taken: Nanos,
    /// When it was last prolonged.
    sent: Nanos,
    is_counted: bool,
}

impl Held {
    /// Whether it may have lapsed at Envoy before a message of `now` arrives.
    fn may_lapse(self, now: Nanos) -> bool {
        self.sent + HELD_TTL_S * SECOND < now + ARRIVAL
    }
}

/// A bucket under limits that cannot be leased.
pub(super) struct Slices {
    plan: SlicePlan,
    opens_at: Nanos,
    /// When all streams buy next.
    buy_at: Nanos,
    seats: BTreeMap<StreamId, Seat>,
    /// Uses to write down again, and when.
    late_records: Vec<(Nanos, u64)>,
}

/// A bucket with so many uses that is not refilled. The same again prolongs it.
fn slice(uses: u32, ttl_s: u64) -> Action {
    Action::TokenBucket {
        max_tokens: uses,
        tokens_per_fill: 1,
        fill_interval_s: FILL_INTERVAL_S,
        ttl_s,
    }
}

/// For how long what is sent may be in use.
fn life(holds: bool) -> Nanos {
    if holds { HELD_LIFE } else { SLICE_LIFE }
}

impl Seat {
    fn new(requests: u64, now: Nanos) -> Self {
        Self {
            demand: Demand::new(now),
            first: requests,
            given_at: 0,
            asked: None,
            denied_at: None,
            held: None,
            look_at: now,
            window_end: 0,
            recent: VecDeque::new(),
            settled: 0,
            reported: 0,
        }
    }

    fn wanted(&self, plan: &SlicePlan) -> u64 {
        let first = || self.first.max(plan.capacity() / FIRST_PART).max(1);
        self.demand.wanted_in(1).unwrap_or_else(first).min(u64::from(u32::MAX))
    }

    /// How many uses it holds, or will hold.
    fn holds(&self) -> u64 {
        u64::from(self.held.is_some() || self.asked.is_some_and(|asked| asked.holds))
    }

    /// Whether it may hold a use, or go on to hold the one that it has.
    fn may_hold(&self, plan: &SlicePlan, now: Nanos) -> bool {
        let until = |held: Held| held.taken.saturating_add(plan.hold_max());
        self.demand.zero_reports() < HOLDING_REPORTS_MAX
            && self.held.is_none_or(|held| now <= until(held) && !held.may_lapse(now))
    }

    /// Prolongs no more what it holds: that ends as every slice does.
    fn let_go(&mut self, plan: &SlicePlan) {
        if let Some(held) = self.held.take().filter(|held| held.is_counted && plan.refundable()) {
            self.recent.push_back((held.sent + HELD_LIFE - SLICE_LIFE, 1));
        }
    }

    /// Forgets what was granted in an earlier window: it cannot be given back to this one.
    fn enter(&mut self, window_end: Nanos) {
        if window_end != self.window_end {
            (self.held, self.look_at) = (None, 0);
            self.recent.clear();
            (self.window_end, self.settled, self.reported) = (window_end, 0, 0);
        }
    }

    /// Forgets what was granted, and is asked for, under another rule: it may have another count,
    /// and nothing of it can be given back to this one.
    fn start_over(&mut self) {
        (self.asked, self.held, self.look_at) = (None, None, 0);
        self.recent.clear();
        (self.settled, self.reported) = (0, 0);
    }

    /// Uses that were granted in this window, and surely not used. The newest slices do not count:
    /// they may be in use, or have been since the report was sent.
    fn unused(&mut self, now: Nanos) -> u64 {
        let ended = |(at, _): &mut (Nanos, u64)| *at + SLICE_LIFE + ARRIVAL < now;
        while let Some((_, uses)) = self.recent.pop_front_if(ended) {
            self.settled += uses;
        }
        let unused = self.settled.saturating_sub(self.reported);
        self.settled -= unused;
        unused
    }
}

impl Slices {
    pub(super) fn new(plan: SlicePlan, opens_at: Nanos) -> Self {
        Self { plan, opens_at, buy_at: opens_at, seats: BTreeMap::new(), late_records: Vec::new() }
    }

    /// Buys the next slices of all streams.
    fn buy_all(&mut self, turn: &mut Turn<'_>) {
        let seats = self.seats.iter().filter(|(_, seat)| seat.asked.is_none());
        let mut wants: Vec<(Nanos, StreamId, u64)> =
            seats.map(|(stream, seat)| (seat.given_at, *stream, seat.wanted(&self.plan))).collect();
        wants.sort_unstable();
        let wanted: Vec<u64> = wants.iter().map(|(.., wanted)| *wanted).collect();
        let shares = fair::shares(&wanted, self.plan.capacity());
        let mut held = self.seats.values().map(Seat::holds).sum();
        for ((_, stream, wanted), share) in wants.into_iter().zip(shares) {
            self.buy(stream, wanted.min(share.max(1)), &mut held, turn);
        }
    }

    /// Buys the next slice of a stream. One that wants nothing may hold a use, beside so many that
    /// are held already.
    fn buy(&mut self, stream: StreamId, mut wanted: u64, held: &mut u64, turn: &mut Turn<'_>) {
        let now = turn.mono();
        let Some(seat) = self.seats.get_mut(&stream).filter(|seat| seat.asked.is_none()) else {
            return;
        };
        let window_left = self.plan.window_left(turn.now);
        let window_end = now.saturating_add(window_left);
        seat.enter(turn.now.unix.saturating_add(window_left));
        let holds = wanted == 0;
        let has_time = window_left >= life(holds);
        if holds && has_time && seat.may_hold(&self.plan, now) {
            if let Some(held) = &mut seat.held {
                held.sent = now;
                return turn.send(stream, slice(1, HELD_TTL_S));
            }
            wanted = u64::from(now >= seat.look_at && *held < self.plan.held_max());
            *held += wanted;
            seat.look_at = now.saturating_add(LOOK_AGAIN);
        }
        seat.let_go(&self.plan);
        let Some(request) = turn.requests.number().filter(|_| has_time && wanted > 0) else {
            return self.give(stream, Grant::counted(0), window_end, holds, turn);
        };
        match turn.bank.take_up_to(turn.key, wanted, request, turn.now) {
            Some(grant) => {
                let grant = Grant { uses: grant.uses.min(wanted), ..grant };
                self.give(stream, grant, window_end, holds, turn);
            }
            None => {
                seat.asked = Some(Asked { request, window_end, holds });
                turn.requests.keep(request, turn.key, stream);
            }
        }
    }

    /// Gives a stream a slice that was taken from the window that ends at `window_end`. Uses that
    /// were not counted are neither given back nor written down a second time.
    fn give(
        &mut self,
        stream: StreamId,
        Grant { uses, is_counted }: Grant,
        window_end: Nanos,
        holds: bool,
        turn: &mut Turn<'_>,
    ) {
        let now = turn.mono();
        let Some(seat) = self.seats.get_mut(&stream) else { return };
        let tokens = u32::try_from(uses).unwrap_or(u32::MAX);
        if tokens == 0 || window_end.saturating_sub(now) < life(holds) {
            let told = |at: Nanos| now < at + SLICE_TTL_S * SECOND;
            if !seat.denied_at.is_some_and(told) {
                seat.denied_at = Some(now);
                turn.send(stream, Action::DenyAll { ttl_s: 2 * SLICE_TTL_S });
            }
            return;
        }
        (seat.denied_at, seat.given_at) = (None, now);
        let refundable = self.plan.refundable();
        if holds {
            seat.held = Some(Held { taken: now, sent: now, is_counted });
        } else if refundable && is_counted {
            seat.recent.push_back((now, uses));
        }
        if is_counted && (self.plan.remembers_uses() || holds && !refundable) {
            let hold = if holds { self.plan.hold_max() } else { 0 };
            self.late_records.push((now.saturating_add(hold).saturating_add(life(holds)), uses));
        }
        let ttl_s = if holds { HELD_TTL_S } else { SLICE_TTL_S };
        turn.send(stream, Action::DenyAll { ttl_s });
        turn.send(stream, slice(tokens, ttl_s));
    }

    /// Writes down again what was given in slices that end until then.
    fn record_late(&mut self, until: Nanos, turn: &mut Turn<'_>) {
        let now = turn.mono();
        self.late_records.retain(|(due, uses)| {
            if *due <= until {
                turn.bank.record(turn.key, *uses, now, turn.now);
            }
            *due > until
        });
    }
}

impl Divider for Slices {
    fn report(&mut self, stream: StreamId, counts: RequestCounts, turn: &mut Turn<'_>) {
        let now = turn.mono();
        let Some(seat) = self.seats.get_mut(&stream) else {
            let seat = Seat::new(counts.requests(), now);
            if self.seats.is_empty() {
                self.buy_at = self.opens_at.max(now.saturating_add(INTERVAL));
            }
            let even = self.plan.capacity() / (self.seats.len() as u64 + 1);
            let wanted = seat.wanted(&self.plan).min(even.max(1));
            self.seats.insert(stream, seat);
            if now >= self.opens_at {
                self.buy(stream, wanted, &mut 0, turn);
            } else if counts.is_first {
                turn.send(stream, Action::DenyAll { ttl_s: BLANKET_TTL_S });
            }
            return;
        };
        seat.demand.note(counts.requests(), now);
        seat.enter(turn.now.unix.saturating_add(self.plan.window_left(turn.now)));
        seat.reported = seat.reported.saturating_add(counts.allowed);
        // A report that waited may have been sent before what seems to have ended.
        match if turn.after_stall { 0 } else { seat.unused(now) } {
            0 => {}
            uses => turn.bank.refund(turn.key, uses, turn.now),
        }
        if seat.demand.zero_reports() >= ZERO_REPORTS_MAX {
            self.seats.remove(&stream);
            turn.abandon(stream);
        }
    }

    fn leave(&mut self, stream: StreamId) {
        self.seats.remove(&stream);
    }

    fn tick(&mut self, turn: &mut Turn<'_>) -> Nanos {
        let now = turn.mono();
        self.record_late(now, turn);
        self.seats.retain(|stream, seat| {
            let silent = seat.demand.is_silent(now);
            if silent {
                turn.abandon(*stream);
            }
            !silent
        });
        if now >= self.buy_at {
            // The phase is kept, but not what was missed.
            let next = self.buy_at.saturating_add(INTERVAL);
            self.buy_at = if next > now { next } else { now.saturating_add(INTERVAL) };
            self.buy_all(turn);
        }
        let late = self.late_records.iter().map(|(due, _)| *due);
        // At least this often, for rules that have changed.
        late.chain([self.buy_at, now + INTERVAL]).min().unwrap_or(now)
    }

    fn granted(&mut self, stream: StreamId, request: RequestId, grant: Grant, turn: &mut Turn<'_>) {
        let asked = self
            .seats
            .get_mut(&stream)
            .and_then(|seat| seat.asked.take_if(|asked| asked.request == request));
        if let Some(Asked { window_end, holds, .. }) = asked {
            self.give(stream, grant, window_end, holds, turn);
        }
    }

    fn settle(&mut self, turn: &mut Turn<'_>) {
        self.record_late(Nanos::MAX, turn);
    }

    fn change(&mut self, terms: &Terms, _: &mut Turn<'_>) -> bool {
        let Terms::Slices(plan) = terms else { return false };
        self.plan = plan.clone();
        self.seats.values_mut().for_each(Seat::start_over);
        true
    }

    fn streams(&self) -> Vec<StreamId> {
        self.seats.keys().copied().collect()
    }

    fn seats(&self) -> usize {
        self.seats.len()
    }

    fn is_done(&self) -> bool {
        self.seats.is_empty() && self.late_records.is_empty()
    }
}
