//! A flag that asks every loop and task to finish its work, and says how long that may take.
//!
//! Threads look at it between batches; tasks wait for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

/// A flag that is raised once and never lowered. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Shutdown {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    set: AtomicBool,
    /// In milliseconds, plus one; 0 if none was set.
    grace_ms: AtomicU64,
    waiting: Notify,
}

impl Shutdown {
    /// A flag that is not raised yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Raises the flag and wakes every task that waits for it.
    pub fn set(&self) {
        self.inner.set.store(true, Ordering::Release);
        self.inner.waiting.notify_waiters();
    }

    /// As [`Self::set`], and says how long there is to finish.
    pub fn set_within(&self, grace: Duration) {
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX).saturating_add(1);
        self.inner.grace_ms.store(grace_ms, Ordering::Release);
        self.set();
    }

    /// How long there is to finish, if that was said.
    #[must_use]
    pub fn grace(&self) -> Option<Duration> {
        let grace_ms = self.inner.grace_ms.load(Ordering::Acquire);
        grace_ms.checked_sub(1).map(Duration::from_millis)
    }

    /// Whether the flag is raised. Cheap: one load.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.inner.set.load(Ordering::Acquire)
    }

    /// Returns once the flag is raised.
    pub async fn wait(&self) {
        let notified = self.inner.waiting.notified();
        // Created before the flag is read, so a flag raised in between still wakes it.
        if !self.is_set() {
            notified.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn wakes_those_who_wait_and_passes_those_who_come_later() {
        let shutdown = Shutdown::new();
        assert!(!shutdown.is_set());
        let waiting = tokio::spawn({
            let shutdown = shutdown.clone();
            async move { shutdown.wait().await }
        });
        tokio::task::yield_now().await;
        shutdown.set();
        waiting.await.unwrap();
        shutdown.wait().await;
        assert!(shutdown.is_set());
    }
}
