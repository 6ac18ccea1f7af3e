//! The bank: how the division takes uses from a key's own count.
//!
//! It knows nothing of streams. In the server it is the limiter, so that every door sees what the
//! Envoys have been given.

use tidegate_core::{Nanos, Now};

/// A question to a bank whose answer comes later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// The counts of all keys.
pub trait Bank {
    /// Takes as many uses as there are, up to `most`: `Op::TakeUpTo`, over all limits of the key.
    ///
    /// `None` if the answer comes later: then [`Division::granted`](super::Division::granted) is
    /// called with this request, once, and with 0 if the store has failed. Keys that are divided
    /// into leases must be answered at once.
    fn take_up_to(&mut self, key: &[u8], most: u64, request: RequestId, now: Now) -> Option<u64>;

    /// Writes down uses, which is never refused: `Op::Record`. Where `at` lies ahead, the key shall
    /// also be as used as if it were as new at `at` and no earlier, even if there are no uses.
    fn record(&mut self, key: &[u8], uses: u64, at: Nanos, now: Now);

    /// Gives back uses that were taken and did not happen: `Op::Refund`.
    fn refund(&mut self, key: &[u8], uses: u64, now: Now);
}
