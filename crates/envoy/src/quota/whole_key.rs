//! A key that streams have for themselves, because its burst is too small to be divided between
//! them and other doors.
//!
//! Other doors find the key used up for as long as streams have seats. What streams have bought of
//! it, and may have used, is counted here.

use tidegate_core::time::Nanos;

use super::Rate;

/// The count of such a key: as if it were a `gcra` of its own.
#[derive(Debug)]
pub(super) struct WholeKey {
    /// The time in which the rate pays back what is owed at `at`.
    debt: Nanos,
    at: Nanos,
}

impl WholeKey {
    /// Of the whole burst, so much could be taken from the key's own count at `now`. The rest was
    /// used by other doors, and is paid back by the rate.
    pub(super) fn new(rate: &Rate, taken: u64, now: Nanos) -> Self {
        Self { debt: rate.time_of(rate.burst.saturating_sub(taken)), at: now }
    }

    /// Time has passed in which streams used the part `leased` of the rate, and held this burst.
    pub(super) fn pass(&mut self, rate: &Rate, leased: (u128, u128), held: u64, now: Nanos) {
        let passed = u128::from(now.saturating_sub(self.at));
        let used = passed.saturating_mul(leased.0).div_ceil(leased.1);
        let paid = u128::from(self.debt).saturating_sub(passed.saturating_sub(used));
        let debt = Nanos::try_from(paid).unwrap_or(Nanos::MAX);
        (self.debt, self.at) = (debt.max(rate.time_of(held)), now.max(self.at));
    }

    /// Takes as many uses as there are, up to `most`.
    pub(super) fn take_up_to(&mut self, rate: &Rate, most: u64) -> u64 {
        let free = rate.time_of(rate.burst).saturating_sub(self.debt);
        let taken = rate.uses_in(free).min(most);
        self.debt = self.debt.saturating_add(rate.time_of(taken));
        taken
    }
}
