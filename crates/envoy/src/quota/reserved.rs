//! What streams have lost and may still use: nothing is acknowledged, so it stays reserved until
//! the lease would have ended.

use std::collections::BTreeMap;

use tidegate_core::time::{MILLISECOND, Nanos};

/// Ends are rounded up to this, which bounds how many are remembered.
const GRAIN: Nanos = 100 * MILLISECOND;

/// The lost parts of leases, by their end.
#[derive(Debug, Default)]
pub(super) struct Reserved {
    parts: BTreeMap<Nanos, (u64, u64)>,
    fill: u64,
    burst: u64,
}

impl Reserved {
    /// Reserves a rate (tokens per fill) and a burst until `until`.
    pub(super) fn add(&mut self, until: Nanos, fill: u64, burst: u64) {
        if fill == 0 && burst == 0 {
            return;
        }
        let part = self.parts.entry(until.div_ceil(GRAIN).saturating_mul(GRAIN)).or_default();
        part.0 += fill;
        part.1 += burst;
        self.fill += fill;
        self.burst += burst;
    }

    /// Frees what has ended.
    pub(super) fn expire(&mut self, now: Nanos) {
        while let Some(entry) = self.parts.first_entry().filter(|entry| *entry.key() <= now) {
            let (fill, burst) = entry.remove();
            self.fill -= fill;
            self.burst -= burst;
        }
    }

    /// Says the rates in another unit, rounded up.
    pub(super) fn rescale(&mut self, from: u64, to: u64) {
        for (fill, _) in self.parts.values_mut() {
            let scaled = (u128::from(*fill) * u128::from(to)).div_ceil(u128::from(from));
            *fill = u64::try_from(scaled).unwrap_or(u64::MAX);
        }
        self.fill = self.parts.values().map(|(fill, _)| fill).sum();
    }

    pub(super) fn fill(&self) -> u64 {
        self.fill
    }

    pub(super) fn burst(&self) -> u64 {
        self.burst
    }

    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }
}
