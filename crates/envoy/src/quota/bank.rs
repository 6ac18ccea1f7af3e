//! The bank: how the division takes uses from a key's own count.
//!
//! It knows nothing of streams. In the server it is the limiter, so that every door sees what the
//! Envoys have been given.

use tidegate_core::{Nanos, Now};

/// A question to a bank whose answer comes later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Uses that a bank lets happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// How many.
    pub uses: u64,
    /// Whether the key's count has them. While a store is away its rule may let uses pass that it
    /// does not count: Envoys get these too, but nothing of them is ever given back.
    pub is_counted: bool,
}

impl Grant {
    /// Uses that were taken from the key's count.
    #[must_use]
    pub fn counted(uses: u64) -> Self {
        Self { uses, is_counted: true }
    }
}

/// The counts of all keys.
pub trait Bank {
    /// Takes as many uses as there are, up to `most`: `Op::TakeUpTo`, over all limits of the key.
    ///
    /// `None` if the answer comes later: then [`Division::granted`](super::Division::granted) is
    /// called with this request, once. Keys that are divided into leases must be answered at once.
    fn take_up_to(&mut self, key: &[u8], most: u64, request: RequestId, now: Now) -> Option<Grant>;

    /// Writes down uses, which is never refused: `Op::Record`. Where `at` lies ahead, the key shall
    /// also be as used as if it were as new at `at` and no earlier, even if there are no uses.
    fn record(&mut self, key: &[u8], uses: u64, at: Nanos, now: Now);

    /// Gives back uses that were taken and did not happen: `Op::Refund`.
    fn refund(&mut self, key: &[u8], uses: u64, now: Now);
}
