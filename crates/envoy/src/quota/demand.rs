//! What a stream asks for, from its reports and by our own clock.

use tidegate_core::time::{Nanos, SECOND};

/// The demand of one stream for one bucket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demand {
    reported_at: Nanos,
    /// Uses per million seconds in the last report and in the one before, once there are any. The
    /// first report says nothing: it comes with the first request.
    rates: [Option<u64>; 2],
    zero_reports: u32,
}

/// The unit of rates, in seconds.
const UNIT_S: u64 = 1_000_000;

impl Demand {
    /// After a first report at `now`.
    pub(super) fn new(now: Nanos) -> Self {
        Self { reported_at: now, rates: [None; 2], zero_reports: 0 }
    }

    /// After another report, of so many requests that were allowed or denied.
    pub(super) fn note(&mut self, requests: u64, now: Nanos) {
        // Two reports that arrive together must not make a few requests a high rate.
        let elapsed = now.saturating_sub(self.reported_at).max(SECOND);
        let rate = u128::from(requests) * u128::from(UNIT_S * SECOND) / u128::from(elapsed);
        self.rates = [Some(u64::try_from(rate).unwrap_or(u64::MAX)), self.rates[0]];
        self.reported_at = now;
        self.zero_reports = if requests == 0 { self.zero_reports.saturating_add(1) } else { 0 };
    }

    /// How many reports in a row were zero.
    pub(super) fn zero_reports(&self) -> u32 {
        self.zero_reports
    }

    /// Whether nothing has been reported for long.
    pub(super) fn is_silent(&self, now: Nanos) -> bool {
        now.saturating_sub(self.reported_at) >= super::SILENCE_MAX
    }

    /// Uses wanted in so many seconds, with a quarter more as room to grow, rounded up. `None`
    /// before the second report.
    pub(super) fn wanted_in(&self, span_s: u64) -> Option<u64> {
        let rate = self.rates.into_iter().flatten().max()?;
        let uses = u128::from(rate) * u128::from(span_s) * 5;
        Some(u64::try_from(uses.div_ceil(u128::from(UNIT_S) * 4)).unwrap_or(u64::MAX))
    }
}
