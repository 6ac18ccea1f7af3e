//! What the running process tells about itself: whether it is ready, and why a reload or a
//! snapshot failed.
//!
//! Written by the server and by reloads, read by doors. It decides nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::{ArcSwap, ArcSwapOption};
use tokio::sync::watch;

use crate::doors::http::Authorize;

/// The state of the process as `/readyz` and the admin side see it. Shared by all doors.
#[derive(Debug, Default)]
pub struct Admin {
    ready: AtomicBool,
    /// Set with the first `ready`, and never taken back.
    started: watch::Sender<bool>,
    reload_error: ArcSwapOption<String>,
    snapshot_error: ArcSwapOption<String>,
    snapshot_restored_from: ArcSwapOption<&'static str>,
    host_names: ArcSwap<Vec<String>>,
    authorize: ArcSwap<Vec<Authorize>>,
}

impl Admin {
    /// Not ready, nothing failed, no names.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Whether every door is open and the process is not stopping.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// Says that every door is open, or that the process begins to stop.
    pub fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Ordering::Release);
        if ready {
            self.started.send_replace(true);
        }
    }

    /// Whether the process has been ready once. Before that nothing may be decided.
    #[must_use]
    pub fn has_started(&self) -> bool {
        // The flag first: it is read with every request, and costs no lock.
        self.is_ready() || *self.started.borrow()
    }

    /// Waits until the process has been ready once.
    pub async fn started(&self) {
        // The sender lives as long as this does.
        let _ = self.started.subscribe().wait_for(|started| *started).await;
    }

    /// Why the last reload changed nothing, until one succeeds.
    #[must_use]
    pub fn reload_error(&self) -> Option<Arc<String>> {
        self.reload_error.load_full()
    }

    /// Keeps why a reload failed; `None` after one that succeeded.
    pub fn set_reload_error(&self, error: Option<String>) {
        self.reload_error.store(error.map(Arc::new));
    }

    /// Why the last snapshot was not written, until one is.
    #[must_use]
    pub fn snapshot_error(&self) -> Option<Arc<String>> {
        self.snapshot_error.load_full()
    }

    /// Keeps why a snapshot was not written; `None` after one that was.
    pub fn set_snapshot_error(&self, error: Option<String>) {
        self.snapshot_error.store(error.map(Arc::new));
    }

    /// What counts come from if the newest snapshot could not be used at the start: `previous` or
    /// `nothing`.
    #[must_use]
    pub fn snapshot_restored_from(&self) -> Option<&'static str> {
        self.snapshot_restored_from.load().as_deref().copied()
    }

    /// Keeps what counts come from instead of the newest snapshot.
    pub fn set_snapshot_restored_from(&self, from: &'static str) {
        self.snapshot_restored_from.store(Some(Arc::new(from)));
    }

    /// Names, beside the listener's own and loopback, that a `Host` header may carry.
    #[must_use]
    pub fn host_names(&self) -> Arc<Vec<String>> {
        self.host_names.load_full()
    }

    /// Replaces the names that a `Host` header may carry.
    pub fn set_host_names(&self, names: Vec<String>) {
        self.host_names.store(Arc::new(names));
    }

    /// What other servers may ask about their requests.
    #[must_use]
    pub fn authorize(&self) -> Arc<Vec<Authorize>> {
        self.authorize.load_full()
    }

    /// Replaces what other servers may ask.
    pub fn set_authorize(&self, tables: Vec<Authorize>) {
        self.authorize.store(Arc::new(tables));
    }
}
