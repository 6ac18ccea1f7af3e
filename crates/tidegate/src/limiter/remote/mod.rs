//! Counts that lie in a remote store, as the limiter sees them.
//!
//! - `step`: one request on its way through the store, and what a failure of the store means

mod step;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use tidegate_core::rules::{Consistency, Rule};

#[cfg(test)]
pub(super) use self::step::PENDING_MAX;
pub(super) use self::step::{Caller, PlanStep};
use super::catalog::Catalog;
use super::{Count, Limiter};
use crate::stores::remote::Remote;
use crate::stores::remote::settings::Settings;

impl Limiter {
    /// Keeps counts in a remote store from now on. Called once, before the first decision.
    ///
    /// # Errors
    /// What the settings lack.
    pub fn use_store(self: &Arc<Self>, settings: &Settings) -> Result<(), String> {
        let limiter = Arc::downgrade(self);
        let freed = move |name: &[u8]| {
            if let Some(limiter) = limiter.upgrade() {
                limiter.freed_remotely(name);
            }
        };
        let remote = Remote::start(settings, self.clock.clone(), self.metrics.clone(), freed)?;
        let _ = self.remote.set(remote);
        let mut number = self.numbers.lock();
        let before = self.catalog.load_full();
        let rules = (**before.set()).clone();
        let counts = before.counts.clone();
        let catalog = Catalog::new(rules, Some(&before), &mut number, counts, self.prefix());
        self.catalog.store(Arc::new(catalog));
        Ok(())
    }

    pub(super) fn prefix(&self) -> Option<&str> {
        self.remote.get().map(Remote::prefix)
    }

    /// Whether there is a remote store. It is sent the whole log of a key with each use, so logs
    /// must be short.
    pub(crate) fn has_store(&self) -> bool {
        self.remote.get().is_some()
    }

    /// Whether the counts of a rule lie in a remote store.
    #[must_use]
    pub fn counts_remotely(&self, rule: &Rule) -> bool {
        self.remote.get().is_some() && rule.consistency == Consistency::Exact
    }

    /// Why the store is not asked, if it is not.
    #[must_use]
    pub fn store_away(&self) -> Option<String> {
        self.remote.get().and_then(Remote::away)
    }

    /// Waits until a remote store has answered once, or its `start_timeout` has passed; not at
    /// all where counts lie in memory.
    pub async fn store_started(&self) {
        if let Some(remote) = self.remote.get() {
            remote.started().await;
        }
    }

    /// Forgets one key wherever it is counted. `false` if it was not remembered.
    ///
    /// # Errors
    /// Why the store did not forget it.
    pub async fn forget(&self, key: &[u8]) -> Result<bool, String> {
        let here = self.reset(key);
        let Some(remote) = self.remote.get() else { return Ok(here) };
        let catalog = self.catalog.load_full();
        let Some(slot) = catalog.slot_of(self.memory(), key) else { return Ok(here) };
        let gone = remote.remove(&slot).await.map_err(|fault| fault.to_string())?;
        if let Some(waiters) = self.waiters.get() {
            waiters.freed(&self.count_of(key));
        }
        Ok(gone || here)
    }

    /// Gives back what is to be given back, and leaves the store.
    pub async fn close(&self) {
        if let Some(remote) = self.remote.get() {
            remote.close().await;
        }
    }

    /// Something was given back to the count of this name by another node.
    fn freed_remotely(&self, name: &[u8]) {
        let Some(waiters) = self.waiters.get() else { return };
        if name.is_empty() {
            return waiters.renewed(self);
        }
        let (catalog, memory) = (self.catalog.load(), self.memory());
        if let Some((position, key)) = catalog.find_name(name)
            && let Some(address) = catalog.address(memory, position, &key, false)
        {
            waiters.freed(&Count::of(&address));
        }
    }

    /// Has the requests woken that wait for `key` when another node gives something back, or no
    /// longer: nothing to do where the counts lie in memory.
    pub(crate) fn watch_key(&self, key: &[u8], watching: bool) {
        let Some(remote) = self.remote.get() else { return };
        let catalog = self.catalog.load();
        if let Some(slot) = catalog.slot_of(self.memory(), key) {
            remote.watch(&slot, watching);
        }
    }
}
