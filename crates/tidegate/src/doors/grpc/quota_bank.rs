//! The limiter as the bank of the division: what the division gives Envoys is taken from the key's
//! own count, so that every door sees it.

use std::sync::Arc;

use parking_lot::Mutex;
use tidegate_core::{Nanos, Now};
use tidegate_envoy::quota::{Bank, Grant, RequestId};
use tokio::sync::Notify;

use crate::limiter::{Decision, Key, KeyOp, LimiterHandle, Request, Verdict};

/// Grants that a remote store has made since they were last taken.
#[derive(Default)]
pub(super) struct LateGrants {
    shared: Arc<Mutex<Vec<(RequestId, Grant)>>>,
    arrived: Arc<Notify>,
}

impl LateGrants {
    pub(super) fn take(&self) -> Vec<(RequestId, Grant)> {
        std::mem::take(&mut *self.shared.lock())
    }

    /// Notified when a grant has come.
    pub(super) fn arrived(&self) -> Arc<Notify> {
        self.arrived.clone()
    }
}

/// The limiter, for one call of the division.
pub(super) struct LimiterBank<'a> {
    limiter: &'a LimiterHandle,
    grants: &'a LateGrants,
}

impl<'a> LimiterBank<'a> {
    pub(super) fn new(limiter: &'a LimiterHandle, grants: &'a LateGrants) -> Self {
        Self { limiter, grants }
    }

    /// Asks the limiter, and does not wait for its answer.
    fn ask_and_forget(&self, key: &[u8], op: KeyOp, now: Now) {
        let keys = [Key::new(key, op)];
        if let Ok(Decision::Pending(pending)) =
            self.limiter.decide(&Request::all_or_nothing(&keys), now, None)
        {
            pending.forget();
        }
    }
}

/// What a verdict lets Envoys use. While the store is away it is what `on_store_error` says: the
/// store has not counted it, even if this node has.
fn grant_of(verdict: &Verdict) -> Grant {
    let uses = if verdict.is_allowed() { verdict.granted } else { 0 };
    Grant { uses, is_counted: !verdict.degraded }
}

impl Bank for LimiterBank<'_> {
    fn take_up_to(&mut self, key: &[u8], most: u64, request: RequestId, now: Now) -> Option<Grant> {
        if most == 0 {
            return Some(Grant::counted(0));
        }
        let keys = [Key::new(key, KeyOp::TakeUpTo(most))];
        match self.limiter.decide(&Request::all_or_nothing(&keys), now, None) {
            Ok(Decision::Ready(verdict)) => Some(grant_of(&verdict)),
            Err(_) => Some(Grant::counted(0)),
            Ok(Decision::Pending(pending)) => {
                let (shared, arrived) = (self.grants.shared.clone(), self.grants.arrived.clone());
                pending.when_answered(move |verdict| {
                    shared.lock().push((request, grant_of(verdict)));
                    arrived.notify_one();
                });
                None
            }
        }
    }

    fn record(&mut self, key: &[u8], uses: u64, at: Nanos, now: Now) {
        if uses > 0 || at > now.mono {
            self.ask_and_forget(key, KeyOp::Record { cost: uses, at, late: 0 }, now);
        }
    }

    fn refund(&mut self, key: &[u8], uses: u64, now: Now) {
        if uses > 0 {
            self.ask_and_forget(
                key,
                KeyOp::Refund { cost: uses, taken: now, in_flight: false },
                now,
            );
        }
    }
}
