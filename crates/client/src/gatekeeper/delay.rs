//! A request that is delayed, and its place among those that are held.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::core::Core;

/// A place among the requests that are held, until this is dropped.
///
/// The master knows already that the request goes at [`Delay::until_ms`]. Hold it for
/// [`Delay::remaining`], or [`Delay::wait`], and let it go; do not ask again.
#[must_use = "a request that is delayed is let go after its wait"]
pub struct Delay {
    core: Arc<Core>,
    until_ms: i64,
    wait: Duration,
}

impl Delay {
    /// None if all places are taken.
    pub(super) fn new(core: &Arc<Core>, until_ms: i64, wait: Duration) -> Option<Self> {
        core.take_place().then(|| Self { core: core.clone(), until_ms, wait })
    }

    /// When the request goes, in milliseconds since 1970.
    #[must_use]
    pub fn until_ms(&self) -> i64 {
        self.until_ms
    }

    /// How long that was ahead when it was decided: at most the gatekeeper's `max_delay`.
    #[must_use]
    pub fn span(&self) -> Duration {
        self.wait
    }

    /// How long it is to wait from now on, at most the span that was decided. A wall clock that is
    /// set back makes no request wait longer.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        let ahead_ms = self.until_ms.saturating_sub(self.core.now_ms());
        Duration::from_millis(u64::try_from(ahead_ms).unwrap_or(0)).min(self.wait)
    }

    /// Returns when the request may go.
    pub async fn wait(self) {
        tokio::time::sleep(self.remaining()).await;
    }
}

impl Drop for Delay {
    fn drop(&mut self) {
        self.core.held.fetch_sub(1, Relaxed);
    }
}

impl std::fmt::Debug for Delay {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Delay").field("until_ms", &self.until_ms).finish_non_exhaustive()
    }
}
