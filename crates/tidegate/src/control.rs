//! What doors may ask of the process, and its state: whether it is ready, and why a reload or a
//! snapshot failed.
//!
//! The server implements [`Control`] and writes [`ProcessState`]; doors read. Nothing is decided
//! here.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwapOption;
use tidegate_core::Nanos;
use tokio::sync::watch;

use crate::settings::change::{FieldError, JsonFields};
use crate::settings::in_force::{RuleEntry, RulesInForce};

/// The most rules that can be added to those of the file.
pub const ADDED_MAX: usize = 1_000;

/// What a door may ask of the process. The server implements it.
pub trait Control: Send + Sync {
    /// The state of the process. A door that needs it with every request keeps it.
    fn state(&self) -> &Arc<ProcessState>;

    /// The rules in force.
    fn rules(&self) -> Arc<RulesInForce>;

    /// Lays `fields` over a rule, or makes a new one of them that is tried before all others.
    /// `expected` is the version that the caller has seen.
    ///
    /// # Errors
    /// Why nothing has changed.
    fn set_rule(
        &self,
        name: &str,
        fields: JsonFields,
        expected: Option<u64>,
    ) -> Result<Changed, ChangeError>;

    /// Takes a rule back to what the file says; one that the file does not have is removed.
    ///
    /// # Errors
    /// Why nothing has changed.
    fn restore_rule(&self, name: &str, expected: Option<u64>) -> Result<(), ChangeError>;
}

/// What a change of a rule came to.
#[derive(Clone, Debug)]
pub struct Changed {
    pub(crate) entry: Arc<RuleEntry>,
    /// Whether there was no such rule before.
    pub(crate) created: bool,
    /// The version of the rules with it.
    pub(crate) version: u64,
}

/// Why a rule was not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// There is no such rule.
    #[error("there is no rule with this name")]
    Unknown,
    /// The rules are not those that the caller knows.
    #[error("the rules have changed since; read them again")]
    Outdated,
    /// There are as many rules as may be added.
    #[error("{ADDED_MAX} rules have been added, and no more are allowed; put them into the file")]
    TooMany,
    /// The fields do not fit.
    #[error("the rule is not valid")]
    Wrong(Vec<FieldError>),
}

/// The state of the process as `/readyz` and the admin side see it. Shared by all doors.
#[derive(Debug, Default)]
pub struct ProcessState {
    /// When the process started, in Unix time.
    begun_at: Nanos,
    ready: AtomicBool,
    /// Set with the first `ready`, and never taken back.
    started: watch::Sender<bool>,
    reload_error: ArcSwapOption<String>,
    snapshot_error: ArcSwapOption<String>,
    snapshot_restored_from: OnceLock<&'static str>,
}

impl ProcessState {
    /// Not ready, and nothing has failed.
    #[must_use]
    pub fn new(begun_at: Nanos) -> Arc<Self> {
        Arc::new(Self { begun_at, ..Self::default() })
    }

    /// When the process started, in Unix time.
    #[must_use]
    pub fn begun_at(&self) -> Nanos {
        self.begun_at
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
        self.snapshot_restored_from.get().copied()
    }

    /// Keeps what counts come from instead of the newest snapshot.
    pub fn set_snapshot_restored_from(&self, from: &'static str) {
        // A process restores once, at its start.
        let _ = self.snapshot_restored_from.set(from);
    }
}
