//! The limiter as the bank of the division: what the division gives Envoys is taken from the key's
//! own count, so that every door sees it.

use std::sync::Arc;

use parking_lot::Mutex;
use tidegate_core::{Nanos, Now};
use tidegate_envoy::quota::{Bank, RequestId};
use tokio::sync::Notify;

use crate::limiter::{Decision, Key, KeyOp, LimiterHandle, Request};

/// Grants that a remote store has made since they were last taken.
#[derive(Default)]
pub(super) struct LateGrants {
    shared: Arc<Mutex<Vec<(RequestId, u64)>>>,
    arrived: Arc<Notify>,
}

impl LateGrants {
    pub(super) fn take(&self) -> Vec<(RequestId, u64)> {
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

impl Bank for LimiterBank<'_> {
    fn take_up_to(&mut self, key: &[u8], most: u64, request: RequestId, now: Now) -> Option<u64> {
        if most == 0 {
            return Some(0);
        }
        let keys = [Key::new(key, KeyOp::TakeUpTo(most))];
        match self.limiter.decide(&Request::all_or_nothing(&keys), now, None) {
            Ok(Decision::Ready(verdict)) if verdict.is_allowed() => Some(verdict.granted),
            Ok(Decision::Ready(_)) | Err(_) => Some(0),
            Ok(Decision::Pending(pending)) => {
                let (shared, arrived) = (self.grants.shared.clone(), self.grants.arrived.clone());
                pending.when_answered(move |verdict| {
                    // What a rule lets pass while its store is away was not counted.
                    let is_granted = verdict.is_allowed() && !verdict.degraded;
                    let uses = if is_granted { verdict.granted } else { 0 };
                    shared.lock().push((request, uses));
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
