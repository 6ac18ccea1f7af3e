//! Leases: a token bucket (R uses per second, B at once) divided into token buckets, one for each
//! stream.
//!
//! Every lease is covered by the key's own count, which other doors take from:
//! - its rate is charged ahead of time, step by step;
//! - its burst is bought when it is granted, and **held**: the key owes at least the bursts of all
//!   leases for as long as they run. Without this the key forgets a burst while an idle Envoy
//!   still has it, and another buys it a second time.
//!
//! So in any span t other uses are at most B - H + (R - r) * t, and those of the Envoys H + r * t,
//! where r and H are the sums over all leases. What a stream loses stays in these sums until its
//! lease would have ended. A lease that may have lapsed at the Envoy when its renewal arrives
//! starts full there, and its burst is bought and held a second time.
//!
//! Rates are charged ahead in whole uses. A burst that is too small for that is not divided between
//! Envoys and other doors: while streams have seats, the whole rate is charged and the whole burst
//! is held, so other doors find nothing. See `whole_key.rs`.
//!
//! `leases/targets.rs` decides how much each stream shall have. Nothing here reads the key's count.

mod targets;

use std::collections::BTreeMap;

use tidegate_core::time::{MILLISECOND, Nanos, SECOND};

use super::demand::Demand;
use super::divider::{Divider, RequestCounts, Turn, UNAWAITED};
use super::reserved::Reserved;
use super::whole_key::WholeKey;
use super::{ARRIVAL, Action, BLANKET_TTL_S, LEASE_LIFE, LEASE_TTL_S, Rate, StreamId, Terms};
use targets::Target;

/// Rates are charged for so long ahead; less for limits whose burst is small beside their rate,
/// because what is charged ahead is not there for bursts.
const STEP_MAX: Nanos = 100 * MILLISECOND;
/// The least step. A burst that is not above the uses of one such step is not divided.
const STEP_MIN: Nanos = 10 * MILLISECOND;
/// Where no stream reports requests, steps are longer, up to this: it is cheaper, and Envoys notice
/// nothing of it.
const IDLE_STEP_MAX: Nanos = SECOND;
/// After this long without requests a bucket is idle: streams report every 5 s.
const IDLE_AFTER: Nanos = 6 * SECOND;
/// A step is charged for so long beyond its end: no timer is exact.
const LATENESS: Nanos = 10 * MILLISECOND;
/// A lease is renewed after this long.
const RENEWAL: Nanos = LEASE_TTL_S * SECOND / 2;
/// Targets are found anew this often, and whenever a stream joins.
const DIVISION: Nanos = SECOND;
/// A lease is changed by at least this many percent, or left.
const CHANGE_PERCENT: u64 = 10;
/// After so many reports of zero the bucket is abandoned.
const ZERO_REPORTS_MAX: u32 = 12;
/// The interval in which rates are counted, and the least tokens that shall flow in it: slow limits
/// have a longer one, so that shares can be whole numbers.
const FILL_S: u64 = 60;
const FILL_TOKENS_MIN: u64 = 600;
const FILL_S_MAX: u64 = 31_536_000;

/// The part of one stream.
#[derive(Debug)]
struct Lease {
    demand: Demand,
    /// Tokens per fill interval; 0 if and only if there is no burst: then all is denied.
    fill: u64,
    burst: u64,
    /// When the stream was last told, if it was.
    sent: Option<Nanos>,
    /// Whether Envoy must start a bucket of its own: it may have one with another fill interval,
    /// and would not notice a change of that alone.
    fresh: bool,
}

impl Lease {
    fn until(&self) -> Nanos {
        self.sent.map_or(0, |sent| sent.saturating_add(LEASE_LIFE))
    }

    /// Whether Envoy's bucket may have lapsed before a message of `now` arrives: the last one may
    /// have arrived at once, this one may take as long as messages do.
    fn may_lapse(&self, now: Nanos) -> bool {
        self.until().saturating_sub(ARRIVAL) < now.saturating_add(ARRIVAL)
    }
}

/// A bucket under one `gcra` limit.
pub(super) struct Leases {
    rate: Rate,
    /// The fill interval, for the life of the bucket.
    fill_s: u64,
    /// Nothing is granted before: leases of an earlier server, or of earlier terms, may still run.
    opens_at: Nanos,
    seats: BTreeMap<StreamId, Lease>,
    /// The sums over all seats.
    fill: u64,
    burst: u64,
    reserved: Reserved,
    /// The count of a small burst, from when streams have the key for themselves.
    whole: Option<WholeKey>,
    /// Until when rates are charged; `None` before the first time.
    charged_until: Option<Nanos>,
    /// What was charged beyond the rates, because the key counts whole uses; in the unit of
    /// [`Self::charged_rate`].
    credit: u128,
    divide_at: Nanos,
    /// When a stream last reported requests, after its first report.
    busy_at: Option<Nanos>,
}

fn fill_interval_s(rate: &Rate) -> u64 {
    rate.time_of(FILL_TOKENS_MIN).div_ceil(SECOND).clamp(FILL_S, FILL_S_MAX)
}

impl Leases {
    pub(super) fn new(rate: Rate, opens_at: Nanos) -> Self {
        Self {
            rate,
            fill_s: fill_interval_s(&rate),
            opens_at,
            seats: BTreeMap::new(),
            fill: 0,
            burst: 0,
            reserved: Reserved::default(),
            whole: None,
            charged_until: None,
            credit: 0,
            divide_at: 0,
            busy_at: None,
        }
    }

    /// The tokens of the whole limit in a fill interval.
    fn fill_whole(&self) -> u64 {
        self.rate.uses_in(self.fill_s.saturating_mul(SECOND)).min(u64::from(u32::MAX))
    }

    /// The tokens per interval that all streams may have, with what is reserved.
    fn fill_taken(&self) -> u64 {
        self.fill.saturating_add(self.reserved.fill())
    }

    fn held(&self) -> u64 {
        self.burst.saturating_add(self.reserved.burst())
    }

    /// Whether there is anything to charge the key for.
    fn is_charged(&self) -> bool {
        self.fill_taken() > 0 || self.held() > 0 || self.whole.is_some()
    }

    fn step(&self) -> Nanos {
        (self.rate.time_of(self.rate.burst) / 4).clamp(STEP_MIN, STEP_MAX)
    }

    /// The step from now. That of an idle bucket takes half of the burst that is not held at most:
    /// the other half stays there for other doors.
    fn next_step(&self, now: Nanos) -> Nanos {
        let step = self.step();
        if self.whole.is_some() {
            // Other doors find nothing in any case.
            return IDLE_STEP_MAX;
        }
        if self.busy_at.is_some_and(|at| now < at.saturating_add(IDLE_AFTER)) {
            return step;
        }
        let free = self.rate.burst.saturating_sub(self.held()).saturating_sub(2) / 2;
        let idle_step = self.rate.time_of(free).saturating_sub(LATENESS).min(IDLE_STEP_MAX);
        idle_step.max(step)
    }

    /// The bursts that can be held beside other doors: what flows in a step is charged ahead of it,
    /// and in whole uses.
    fn burst_beside(&self) -> u64 {
        let ahead = self.rate.uses_in(self.step() + LATENESS).saturating_add(2);
        self.rate.burst.saturating_sub(ahead)
    }

    /// Whether the burst is too small to be divided between streams and other doors.
    fn is_small(&self) -> bool {
        self.burst_beside() == 0
    }

    /// The bursts that streams can hold.
    fn burst_whole(&self) -> u64 {
        let burst = if self.is_small() { self.rate.burst } else { self.burst_beside() };
        burst.min(u64::from(u32::MAX))
    }

    /// The rate that is charged, for these tokens per fill interval: uses, and the span in which.
    fn charged_rate(&self, fill: u64) -> (u64, u128) {
        match self.whole {
            Some(_) => (self.rate.amount, self.rate.period.into()),
            None => (fill, self.fill_nanos()),
        }
    }

    fn fill_nanos(&self) -> u128 {
        u128::from(self.fill_s) * u128::from(SECOND)
    }

    /// Charges all rates until a step from now, and renews the hold on the bursts.
    fn charge(&mut self, turn: &mut Turn<'_>) {
        let now = turn.mono();
        let from = match self.charged_until {
            Some(until) if now.saturating_add(LATENESS) < until => return,
            Some(until) => until,
            None => {
                self.charge_unseen(turn);
                now
            }
        };
        self.pass(now);
        let until = now.saturating_add(self.next_step(now) + LATENESS);
        self.charged_until = Some(until);
        if !self.is_charged() {
            self.credit = 0;
            return;
        }
        let hold = self.hold(until - now, until.saturating_sub(from));
        let uses = self.due(self.fill_taken(), until.saturating_sub(from));
        turn.bank.record(turn.key, uses, now.saturating_add(hold), turn.now);
        self.reserved.expire(now);
    }

    /// How long the key must take to be as new, before the rates of the last `charged` nanoseconds
    /// of a step are added. At the end of the step it must still owe the bursts, and what was
    /// charged beyond the rates: else it forgets a credit that is then not charged.
    fn hold(&self, step: Nanos, charged: Nanos) -> Nanos {
        if self.whole.is_some() {
            return self.rate.time_of(self.rate.burst);
        }
        // Tokens times nanoseconds per fill interval, as the time in which the limit pays them
        // back.
        let unit = self.fill_nanos() * u128::from(self.rate.amount);
        let period = u128::from(self.rate.period);
        let leased = u128::from(charged.min(step)) * u128::from(self.fill_taken()) * period / unit;
        let unleased = step.saturating_sub(Nanos::try_from(leased).unwrap_or(Nanos::MAX));
        let credit = self.credit.saturating_mul(period).div_ceil(unit);
        let credit = Nanos::try_from(credit).unwrap_or(Nanos::MAX);
        self.rate.time_of(self.held()).saturating_add(unleased).saturating_add(credit)
    }

    /// Charges what leases of before `opens_at`, of which nothing is known, may have used since
    /// they were last charged. What has been paid back since is not charged.
    fn charge_unseen(&mut self, turn: &mut Turn<'_>) {
        let now = turn.mono();
        let passed = now.saturating_sub(self.opens_at);
        let uses = match LEASE_LIFE.saturating_sub(passed) {
            0 => return,
            span => self.rate.uses_in(span).saturating_add(1).min(self.rate.burst),
        };
        turn.bank.record(turn.key, uses, now, turn.now);
    }

    /// Whole uses to charge for a rate over a span, rounded up; the rest is credit.
    fn due(&mut self, fill: u64, span: Nanos) -> u64 {
        let (uses, unit) = self.charged_rate(fill);
        let used = u128::from(uses) * u128::from(span);
        let uses = used.saturating_sub(self.credit).div_ceil(unit);
        self.credit = (self.credit + uses * unit).saturating_sub(used);
        u64::try_from(uses).unwrap_or(u64::MAX)
    }

    /// What streams have used of a key that they have for themselves, up to now.
    fn pass(&mut self, now: Nanos) {
        let taken = u128::from(self.fill_taken()) * u128::from(self.rate.period);
        let leased = (taken, self.fill_nanos() * u128::from(self.rate.amount));
        let held = self.held();
        if let Some(whole) = &mut self.whole {
            whole.pass(&self.rate, leased, held, now);
        }
    }

    /// Buys as much of a burst as there is, up to `most`.
    fn buy(&mut self, most: u64, turn: &mut Turn<'_>) -> u64 {
        // Leases are for counts that answer at once; an answer that comes later stays counted.
        let mut ask = |most| {
            let granted = turn.bank.take_up_to(turn.key, most, UNAWAITED, turn.now);
            granted.map_or(0, |granted| granted.uses.min(most))
        };
        if !self.is_small() {
            return ask(most);
        }
        if self.whole.is_none() {
            let taken = ask(self.rate.burst);
            self.whole = Some(WholeKey::new(&self.rate, taken, turn.mono()));
            self.hold_whole(turn);
        }
        self.whole.as_mut().map_or(0, |whole| whole.take_up_to(&self.rate, most))
    }

    /// Makes other doors find nothing, until rates are charged again.
    fn hold_whole(&mut self, turn: &mut Turn<'_>) {
        let now = turn.mono();
        self.credit = 0;
        let until = now.saturating_add(self.next_step(now) + LATENESS);
        self.charged_until = Some(until);
        let uses = self.due(0, until - now);
        turn.bank.record(turn.key, uses, now.saturating_add(self.hold(0, 0)), turn.now);
    }

    /// Gives a stream a rate and as much of a burst as it can buy, and tells it. What it had and
    /// has no longer is reserved.
    fn assign(&mut self, stream: StreamId, target: Target, turn: &mut Turn<'_>) {
        let now = turn.mono();
        self.pass(now);
        let Some(lease) = self.seats.get(&stream) else { return };
        let kept = if lease.may_lapse(now) { 0 } else { lease.burst.min(target.burst) };
        let bought = match target.burst - kept {
            most @ 1.. if target.fill > 0 => self.buy(most, turn),
            _ => 0,
        };
        let Some(lease) = self.seats.get_mut(&stream) else { return };
        let burst = kept + bought;
        let fill = if burst > 0 { target.fill } else { 0 };
        let burst = if fill > 0 { burst } else { 0 };
        let told = lease.sent.is_some_and(|sent| now < sent + RENEWAL);
        if told && kept == lease.burst && (fill, burst) == (lease.fill, lease.burst) {
            // More was wanted and could not be bought.
            return;
        }
        let lost_fill = lease.fill.saturating_sub(fill);
        let lost_burst = if fill > 0 { lease.burst - kept } else { lease.burst };
        self.reserved.add(lease.until(), lost_fill, lost_burst);
        self.fill = self.fill - lease.fill + fill;
        self.burst = self.burst - lease.burst + burst;
        let raised = fill.saturating_sub(lease.fill);
        (lease.fill, lease.burst, lease.sent) = (fill, burst, Some(now));
        if fill > 0 && lease.fresh {
            turn.send(stream, Action::DenyAll { ttl_s: LEASE_TTL_S });
        }
        lease.fresh &= fill == 0;
        turn.send(stream, self.action(fill, burst));
        if self.whole.is_some() {
            // The whole rate is charged already.
            return;
        }
        let rest = self.charged_until.map_or(0, |until| until.saturating_sub(now));
        let uses = self.due(raised, rest);
        turn.bank.record(turn.key, uses, now, turn.now);
    }

    fn action(&self, fill: u64, burst: u64) -> Action {
        match (u32::try_from(burst), u32::try_from(fill)) {
            (Ok(max_tokens @ 1..), Ok(tokens_per_fill @ 1..)) => Action::TokenBucket {
                max_tokens,
                tokens_per_fill,
                fill_interval_s: self.fill_s,
                ttl_s: LEASE_TTL_S,
            },
            _ => Action::DenyAll { ttl_s: LEASE_TTL_S },
        }
    }

    /// Reserves all that a lease was.
    fn lose(&mut self, lease: &Lease) {
        self.reserved.add(lease.until(), lease.fill, lease.burst);
        self.fill -= lease.fill;
        self.burst -= lease.burst;
    }

    /// Starts over with another fill interval.
    fn restart(&mut self, fill_s: u64) {
        let mut seats = std::mem::take(&mut self.seats);
        for lease in seats.values_mut() {
            self.lose(lease);
            (lease.fill, lease.burst, lease.fresh) = (0, 0, true);
        }
        self.seats = seats;
        self.reserved.rescale(self.fill_s, fill_s);
        (self.fill_s, self.credit) = (fill_s, 0);
    }

    fn renew(&mut self, turn: &mut Turn<'_>) {
        let now = turn.mono();
        let due = |lease: &Lease| lease.sent.is_some_and(|sent| now >= sent + RENEWAL);
        let due: Vec<(StreamId, Target)> = (self.seats.iter())
            .filter(|(_, lease)| due(lease))
            .map(|(stream, lease)| (*stream, Target { fill: lease.fill, burst: lease.burst }))
            .collect();
        for (stream, same) in due {
            self.assign(stream, same, turn);
        }
    }

    fn drop_silent(&mut self, turn: &mut Turn<'_>) {
        let now = turn.mono();
        let silent = self.seats.iter().filter(|(_, lease)| lease.demand.is_silent(now));
        let silent: Vec<StreamId> = silent.map(|(stream, _)| *stream).collect();
        for stream in silent {
            self.leave(stream);
            turn.abandon(stream);
        }
    }
}

impl Divider for Leases {
    fn report(&mut self, stream: StreamId, counts: RequestCounts, turn: &mut Turn<'_>) {
        let now = turn.mono();
        let Some(lease) = self.seats.get_mut(&stream) else {
            let demand = Demand::new(now);
            let lease = Lease { demand, fill: 0, burst: 0, sent: None, fresh: true };
            self.seats.insert(stream, lease);
            if now >= self.opens_at {
                self.charge(turn);
                self.welcome(stream, turn);
            } else if counts.is_first {
                turn.send(stream, Action::DenyAll { ttl_s: BLANKET_TTL_S });
            }
            return;
        };
        lease.demand.note(counts.requests(), now);
        if counts.requests() > 0 {
            self.busy_at = Some(now);
        }
        if lease.demand.zero_reports() >= ZERO_REPORTS_MAX {
            self.leave(stream);
            turn.abandon(stream);
        }
    }

    fn leave(&mut self, stream: StreamId) {
        if let Some(lease) = self.seats.remove(&stream) {
            self.lose(&lease);
        }
    }

    fn tick(&mut self, turn: &mut Turn<'_>) -> Nanos {
        let now = turn.mono();
        self.drop_silent(turn);
        if now < self.opens_at {
            // At least this often, for rules that have changed.
            return self.opens_at.min(now + DIVISION);
        }
        self.charge(turn);
        if now >= self.divide_at {
            self.divide(CHANGE_PERCENT, turn);
        }
        self.renew(turn);
        match self.charged_until {
            Some(until) if self.is_charged() => until - LATENESS,
            _ => self.divide_at,
        }
    }

    fn change(&mut self, terms: &Terms, turn: &mut Turn<'_>) -> bool {
        let Terms::Leases(rate) = terms else { return false };
        let was_small = self.is_small();
        let old = std::mem::replace(&mut self.rate, *rate);
        if was_small || self.is_small() {
            // What was taken of one small burst says nothing of another.
            self.rate = old;
            return false;
        }
        if rate.count != old.count {
            // Nothing of the leases is in the other count yet.
            (self.charged_until, self.credit) = (None, 0);
        }
        let whole = rate.uses_in(self.fill_s.saturating_mul(SECOND));
        if !(FILL_TOKENS_MIN / 2..=u64::from(u32::MAX)).contains(&whole) {
            self.restart(fill_interval_s(rate));
        }
        if turn.mono() >= self.opens_at {
            self.charge(turn);
            self.divide(0, turn);
        }
        true
    }

    fn streams(&self) -> Vec<StreamId> {
        self.seats.keys().copied().collect()
    }

    fn seats(&self) -> usize {
        self.seats.len()
    }

    fn is_done(&self) -> bool {
        self.seats.is_empty() && self.reserved.is_empty()
    }
}
