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
//! Other algorithms (`gcra` in a remote store, `average`, `jarl`) forget as time goes by: they may
//! admit what they forget within [`SLICE_LIFE`] too much.

use std::collections::{BTreeMap, VecDeque};

use tidegate_core::time::{Nanos, SECOND};

use super::demand::Demand;
use super::divider::{Divider, RequestCounts, Turn};
use super::{ARRIVAL, Action, RequestId, SlicePlan, StreamId, Terms};

/// For how long a slice may be used once it has arrived: until the next has, in any case.
pub(super) const SLICE_TTL_S: u64 = 2;
/// A slice may be in use for this long after it was sent.
const SLICE_LIFE: Nanos = SLICE_TTL_S * SECOND + ARRIVAL;
/// How often slices are bought.
const INTERVAL: Nanos = SECOND;
/// A refill so slow that there is none.
const FILL_INTERVAL_S: u64 = 31_536_000;
/// After so many reports of zero the bucket is abandoned: to keep slices that nobody uses is dear,
/// and to come back costs an Envoy one request.
const ZERO_REPORTS_MAX: u32 = 2;
/// Of a whole limit, a stream is first given this part, before its demand is known.
const FIRST_PART: u64 = 100;

/// The slices of one stream.
#[derive(Debug)]
struct Seat {
    demand: Demand,
    first: u64,
    next_at: Nanos,
    /// The question to the bank that is not answered yet, and when its window ends (on `mono`).
    asked: Option<(RequestId, Nanos)>,
    denied_at: Option<Nanos>,
    /// The end of a window on the wall clock. Below is what was granted in it and not given back.
    window_end: Nanos,
    recent: VecDeque<(Nanos, u64)>,
    settled: u64,
    reported: u64,
}

/// A bucket under limits that cannot be leased.
pub(super) struct Slices {
    plan: SlicePlan,
    opens_at: Nanos,
    seats: BTreeMap<StreamId, Seat>,
    /// Uses to write down again, and when.
    echoes: Vec<(Nanos, u64)>,
}

impl Seat {
    fn new(requests: u64, now: Nanos) -> Self {
        Self {
            demand: Demand::new(now),
            first: requests,
            next_at: now,
            asked: None,
            denied_at: None,
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

    /// Forgets what was granted in an earlier window: it cannot be given back to this one.
    fn enter(&mut self, window_end: Nanos) {
        if window_end != self.window_end {
            self.recent.clear();
            (self.window_end, self.settled, self.reported) = (window_end, 0, 0);
        }
    }

    /// Uses that were granted in this window, and surely not used. The newest slices do not count:
    /// they may be in use, or have been since the report was sent.
    fn unused(&mut self, now: Nanos) -> u64 {
        while let Some((_, uses)) = self.recent.pop_front_if(|(at, _)| *at + SLICE_LIFE < now) {
            self.settled += uses;
        }
        let unused = self.settled.saturating_sub(self.reported);
        self.settled -= unused;
        unused
    }
}

impl Slices {
    pub(super) fn new(plan: SlicePlan, opens_at: Nanos) -> Self {
        Self { plan, opens_at, seats: BTreeMap::new(), echoes: Vec::new() }
    }

    /// Buys the next slice of a stream.
    fn buy(&mut self, stream: StreamId, turn: &mut Turn<'_>) {
        let now = turn.mono();
        let Some(seat) = self.seats.get_mut(&stream).filter(|seat| seat.asked.is_none()) else {
            return;
        };
        // The phase is kept, but not what was missed.
        let next_at = seat.next_at.saturating_add(INTERVAL);
        seat.next_at = if next_at > now { next_at } else { now.saturating_add(INTERVAL) };
        let window_left = self.plan.window_left(turn.now);
        let window_end = now.saturating_add(window_left);
        seat.enter(turn.now.unix.saturating_add(window_left));
        let wanted = seat.wanted(&self.plan);
        let useful = wanted > 0 && self.plan.ttl_s(window_left) > 0;
        let Some(request) = turn.requests.number().filter(|_| useful) else {
            return self.give(stream, 0, window_end, turn);
        };
        match turn.bank.take_up_to(turn.key, wanted, request, turn.now) {
            Some(uses) => self.give(stream, uses.min(wanted), window_end, turn),
            None => {
                seat.asked = Some((request, window_end));
                turn.requests.keep(request, turn.key, stream);
            }
        }
    }

    /// Gives a stream a slice that was taken from the window that ends at `window_end`.
    fn give(&mut self, stream: StreamId, uses: u64, window_end: Nanos, turn: &mut Turn<'_>) {
        let now = turn.mono();
        let Some(seat) = self.seats.get_mut(&stream) else { return };
        let ttl_s = self.plan.ttl_s(window_end.saturating_sub(now));
        let tokens = u32::try_from(uses).unwrap_or(u32::MAX);
        if tokens == 0 || ttl_s == 0 {
            let told = |at: Nanos| now < at + SLICE_TTL_S * SECOND;
            if !seat.denied_at.is_some_and(told) {
                seat.denied_at = Some(now);
                turn.send(stream, Action::DenyAll { ttl_s: 2 * SLICE_TTL_S });
            }
            return;
        }
        seat.denied_at = None;
        if self.plan.refundable() {
            seat.recent.push_back((now, uses));
        }
        if self.plan.remembers_uses() {
            self.echoes.push((now + ttl_s * SECOND + ARRIVAL, uses));
        }
        turn.send(stream, Action::DenyAll { ttl_s });
        let slice = Action::TokenBucket {
            max_tokens: tokens,
            tokens_per_fill: 1,
            fill_interval_s: FILL_INTERVAL_S,
            ttl_s,
        };
        turn.send(stream, slice);
    }

    /// Writes down again what was given in slices that have ended by now.
    fn echo(&mut self, turn: &mut Turn<'_>) {
        let now = turn.mono();
        self.echoes.retain(|(due, uses)| {
            if *due <= now {
                turn.bank.record(turn.key, *uses, now, turn.now);
            }
            *due > now
        });
    }
}

impl Divider for Slices {
    fn report(&mut self, stream: StreamId, counts: RequestCounts, turn: &mut Turn<'_>) {
        let now = turn.mono();
        let Some(seat) = self.seats.get_mut(&stream) else {
            let mut seat = Seat::new(counts.requests(), now);
            seat.next_at = now.max(self.opens_at);
            self.seats.insert(stream, seat);
            if now >= self.opens_at {
                self.buy(stream, turn);
            }
            return;
        };
        seat.demand.note(counts.requests(), now);
        seat.enter(turn.now.unix.saturating_add(self.plan.window_left(turn.now)));
        seat.reported = seat.reported.saturating_add(counts.allowed);
        match seat.unused(now) {
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
        self.echo(turn);
        self.seats.retain(|stream, seat| {
            let silent = seat.demand.is_silent(now);
            if silent {
                turn.left.push(*stream);
            }
            !silent
        });
        let due = self.seats.iter().filter(|(_, seat)| seat.next_at <= now && seat.asked.is_none());
        let due: Vec<StreamId> = due.map(|(stream, _)| *stream).collect();
        for stream in due {
            self.buy(stream, turn);
        }
        let next = self.seats.values().filter(|seat| seat.asked.is_none()).map(|seat| seat.next_at);
        let echo = self.echoes.iter().map(|(due, _)| *due);
        next.chain(echo).min().unwrap_or(now + INTERVAL)
    }

    fn granted(&mut self, stream: StreamId, request: RequestId, uses: u64, turn: &mut Turn<'_>) {
        let asked = self
            .seats
            .get_mut(&stream)
            .and_then(|seat| seat.asked.take_if(|(asked, _)| *asked == request));
        if let Some((_, window_end)) = asked {
            self.give(stream, uses, window_end, turn);
        }
    }

    fn change(&mut self, terms: &Terms, _: &mut Turn<'_>) -> bool {
        let Terms::Slices(plan) = terms else { return false };
        self.plan = plan.clone();
        true
    }

    fn streams(&self) -> Vec<StreamId> {
        self.seats.keys().copied().collect()
    }

    fn is_done(&self) -> bool {
        self.seats.is_empty() && self.echoes.is_empty()
    }
}
