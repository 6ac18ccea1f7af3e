//! Buckets whose limits come with requests, seen by callers that bring none: to look at one, or to
//! empty it. A key that a rule matches has no such bucket.

use std::sync::Arc;

use tidegate_core::limit::{AMOUNT_MAX, PERIOD_MAX};
use tidegate_core::{Algorithm, Limit, Nanos, Now};

use super::LimiterHandle;
use super::request::{Key, KeyOp, Request};
use super::verdict::{Decision, Outcome, PendingVerdict, Verdict};

/// What a bucket owes does not depend on the limit that it is looked at by.
const ANY_LIMIT: Limit =
    Limit { amount: 1, period: PERIOD_MAX, algorithm: Algorithm::Throttle { burst: AMOUNT_MAX } };

/// The time until a bucket is empty, if there is one.
pub type BucketLeft = Result<Option<Nanos>, StoreAway>;

/// The remote store that has the bucket cannot be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store is away")]
pub struct StoreAway;

/// What is known of a bucket.
#[derive(Debug)]
pub enum Bucket {
    /// It lies in memory, or its store cannot be asked.
    Seen(BucketLeft),
    /// Its store was asked; see [`left_of`].
    Asked(PendingVerdict),
}

impl LimiterHandle {
    /// Looks at the bucket of a key at this handle's door.
    #[must_use]
    pub fn look_at_bucket(&self, key: &[u8], now: Now) -> Bucket {
        match self.ask_bucket(key, KeyOp::Peek(0), now) {
            Some(Decision::Ready(verdict)) => Bucket::Seen(left_of(&verdict)),
            Some(Decision::Pending(pending)) => Bucket::Asked(pending),
            None => Bucket::Seen(Ok(None)),
        }
    }

    /// Empties the bucket of a key: gives back more than any bucket owes. The ticket is of a store
    /// that was asked.
    pub fn empty_bucket(&self, key: &[u8], now: Now) -> Option<PendingVerdict> {
        let refund = KeyOp::Refund { cost: AMOUNT_MAX, taken: now, in_flight: true };
        match self.ask_bucket(key, refund, now) {
            Some(Decision::Pending(pending)) => Some(pending),
            Some(Decision::Ready(_)) | None => None,
        }
    }

    /// As [`Self::look_at_bucket`], for tasks: waits until it is known.
    ///
    /// # Errors
    /// If the store cannot be asked.
    pub async fn look_at_bucket_async(&self, key: &[u8], now: Now) -> BucketLeft {
        match self.look_at_bucket(key, now) {
            Bucket::Seen(left) => left,
            Bucket::Asked(pending) => {
                pending.0.await.map_or(Err(StoreAway), |a| left_of(&a.verdict))
            }
        }
    }

    /// As [`Self::empty_bucket`], for tasks: waits until it is done.
    ///
    /// # Errors
    /// If the store cannot be asked.
    pub async fn empty_bucket_async(&self, key: &[u8], now: Now) -> Result<(), StoreAway> {
        if self.limiter().store_away().is_some() {
            return Err(StoreAway);
        }
        match self.empty_bucket(key, now) {
            Some(pending) => match pending.0.await {
                Ok(answered) if !answered.verdict.degraded => Ok(()),
                _ => Err(StoreAway),
            },
            None => Ok(()),
        }
    }

    /// The name of the rule that such buckets of this handle's door count under.
    #[must_use]
    pub fn given_rule(&self) -> Option<Arc<str>> {
        let catalog = self.limiter.catalog.load();
        catalog.given_to(self.door).map(|position| catalog.rule(position).name.clone())
    }

    fn ask_bucket(&self, key: &[u8], op: KeyOp, now: Now) -> Option<Decision> {
        if self.limiter().rules().find_matching(key).is_some() {
            return None;
        }
        let keys = [Key::new(key, op).limited_by(&ANY_LIMIT)];
        self.decide(&Request::all_or_nothing(&keys), now, None).ok()
    }
}

/// What a verdict on a bucket says.
///
/// # Errors
/// If it was made without the store.
pub fn left_of(verdict: &Verdict) -> BucketLeft {
    if verdict.degraded {
        return Err(StoreAway);
    }
    let is_known = verdict.outcome != Outcome::NoRule && verdict.capacity > 0;
    Ok((is_known && !verdict.no_room && verdict.reset > 0).then_some(verdict.reset))
}
