//! Division: one object divides the limits of many buckets among the streams of Envoys that ask
//! one server for quotas (RLQS).
//!
//! Pure: time comes in with each call, uses are taken through a [`Bank`], and assignments go out as
//! a list that the door sends. No sockets and no clocks here, and no messages either: the door
//! translates an [`Assignment`] into the protocol's own.
//!
//! What it promises: uses that all Envoys and all other doors admit together stay within the key's
//! limit, as long as messages arrive within [`ARRIVAL`] and Envoys deny what has no assignment. All
//! arithmetic is in integers and rounds so that no more is granted, and no less is charged.
//!
//! - `division`: the streams and the buckets, their bounds, and when each bucket acts
//! - `bank`: how uses are taken from a key's own count, and given back
//! - `divider`: what the three ways to divide one bucket have in common
//! - `terms`: what a bucket's limits mean for its division
//! - `leases`: a token bucket divided into token buckets, for `gcra`
//! - `whole_key`: the count of a burst that is too small to be divided with other doors
//! - `slices`: uses bought each second, for every other algorithm
//! - `blanket`: buckets that have no limit, or in which nothing passes
//! - `demand`, `fair`, `reserved`: what a stream asks for, max-min fairness, what streams lost and
//!   may still use
//!
//! A stream that has reported a bucket has a seat in it. What it is told to do is its assignment: a
//! lease, a slice or a blanket rule.

mod bank;
mod blanket;
mod demand;
mod divider;
mod division;
mod fair;
mod leases;
mod reserved;
mod slices;
mod terms;
#[cfg(test)]
mod tests;
mod whole_key;

use std::sync::Arc;

use tidegate_core::Nanos;
use tidegate_core::time::SECOND;

pub use bank::{Bank, Grant, RequestId};
pub use division::{Division, Report, TooManyStreams};
pub use terms::{Rate, SLICE_PERIOD_MIN, SlicePlan, Terms};

/// The most streams at a time. A further one is refused, and its Envoys stay without assignment.
pub const STREAMS_MAX: usize = 1_000;
/// The most buckets of one stream that are remembered. Whatever is beyond this bound or one of the
/// three below is answered report by report, and nothing is remembered of it: `ALLOW_ALL` if it has
/// no limit, else `DENY_ALL`, because Envoy's default for silence is to allow.
pub const BUCKETS_PER_STREAM_MAX: usize = 10_000;
/// A stream may have so many buckets whatever the others have: they cannot shut it out.
pub const OWN_SEATS: usize = 100;
/// The most seats that all streams have beyond their own, counted once for each stream. When half
/// of them are taken, a stream has no more of them than an even share.
pub const SHARED_SEATS_MAX: usize = 100_000;
/// The most keys at a time, with those that no stream asks for but whose leases still run.
pub const KEYS_MAX: usize = SHARED_SEATS_MAX + STREAMS_MAX * OWN_SEATS;
/// The most buckets that act in one call. The rest has its turn in the next.
pub const TURNS_MAX: usize = 64;
/// So many streams at most are looked at in one call, and one bucket more.
pub const SEATS_PER_CALL: usize = 1_000;
/// The most questions to a remote store that are not answered yet.
pub const REQUESTS_MAX: usize = 10_000;

/// The longest that a message is expected to take to an Envoy, or a report from it.
pub const ARRIVAL: Nanos = SECOND;
/// For how long a lease is valid once it has arrived. Envoy counts in whole seconds.
const LEASE_TTL_S: u64 = 6;
/// A lease may be in use for this long after it was sent.
const LEASE_LIFE: Nanos = LEASE_TTL_S * SECOND + ARRIVAL;
/// Blanket rules need no haste: they are changed by a message, and lapse with their stream.
const BLANKET_TTL_S: u64 = 12;
/// A stream that has not reported a bucket for this long has lost it. An Envoy that was stopped for
/// longer obeys what waited in its socket, and may use one more lease.
const SILENCE_MAX: Nanos = 15 * SECOND;

/// A stream, by a number that the door does not use twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// What to tell a stream of one of its buckets.
///
/// The assignments that one call gives for one stream belong into one message, in their order: a
/// slice is a `DenyAll` and then a token bucket, which makes Envoy start with a full one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// Whom to tell.
    pub stream: StreamId,
    /// The bucket, by its key.
    pub key: Arc<[u8]>,
    /// What to do with its requests.
    pub action: Action,
}

/// What an Envoy shall do with the requests of a bucket. Times are in whole seconds, because Envoy
/// cuts off what is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Every request passes.
    AllowAll {
        /// For how long.
        ttl_s: u64,
    },
    /// No request passes.
    DenyAll {
        /// For how long.
        ttl_s: u64,
    },
    /// Requests pass while there are tokens.
    TokenBucket {
        /// The size of the bucket.
        max_tokens: u32,
        /// How many tokens flow in, evenly over the interval.
        tokens_per_fill: u32,
        /// The interval.
        fill_interval_s: u64,
        /// For how long.
        ttl_s: u64,
    },
    /// Forget the bucket until a request needs it again.
    Abandon,
}
