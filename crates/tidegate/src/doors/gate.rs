//! All that a door sees of the server.
//!
//! It names no door. What the listeners of one kind share, that door makes and keeps in
//! [`SharedState`].

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use crate::clock::Clock;
use crate::control::Control;
use crate::limiter::Limiter;
use crate::metrics::{Door, Metrics, Sizes};
use crate::records::Records;
use crate::settings::listen::Allow;
use crate::shutdown::Shutdown;
use crate::uses::UsesInFlight;
use crate::waiting::WaitingRequests;

/// All that a door may touch.
#[derive(Clone)]
pub struct Gate {
    /// Where decisions are made.
    pub limiter: Arc<Limiter>,
    /// Counters and buffers with a time to live.
    pub records: Arc<Records>,
    /// Uses in flight that a client ends later.
    pub uses: Arc<UsesInFlight>,
    /// Where requests are held until they may go.
    pub waiting: Arc<WaitingRequests>,
    /// Where everything is counted.
    pub metrics: Arc<Metrics>,
    /// What may be asked of the process.
    pub control: Arc<dyn Control>,
    /// What doors keep for all of their listeners.
    pub shared: Arc<SharedState>,
    /// What the server changes at this one door while it is open.
    pub door: DoorSwitches,
}

impl Gate {
    /// A gate before `limiter`, for a door that every client may use.
    #[must_use]
    pub fn new(
        limiter: Arc<Limiter>,
        records: Arc<Records>,
        metrics: Arc<Metrics>,
        control: Arc<dyn Control>,
    ) -> Self {
        Self {
            uses: UsesInFlight::before(&limiter),
            waiting: WaitingRequests::new(&limiter),
            shared: Arc::default(),
            door: DoorSwitches::default(),
            limiter,
            records,
            metrics,
            control,
        }
    }

    /// The time.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        self.limiter.clock()
    }

    /// Everything that is counted, in Prometheus' text form.
    #[must_use]
    pub fn metrics_page(&self) -> String {
        let (keys, records) = (self.limiter.size(), self.records.size());
        let store_up = self.limiter.has_store().then(|| self.limiter.store_away().is_none());
        self.metrics.encode(Sizes {
            keys: keys.keys,
            keys_max: self.limiter.keys_max(),
            records: records.records(),
            records_max: self.records.records_max(),
            bytes: keys.bytes.saturating_add(records.bytes),
            bytes_max: self.limiter.budget().max_bytes(),
            is_ready: self.control.state().is_ready(),
            store_up,
        })
    }
}

/// What the server changes at one door while it is open.
#[derive(Clone, Default)]
pub struct DoorSwitches {
    /// Who may come in. A reload swaps it without closing the door: load it per batch or accept.
    pub allow: Arc<ArcSwap<Allow>>,
    /// Raised when this door must stop accepting and drain.
    pub shutdown: Shutdown,
}

/// What a door tells administration about itself.
pub trait DoorReport: Send + Sync {
    /// A JSON array with one element for each of its listeners.
    fn rows(&self) -> String;
}

/// What doors keep for all of their listeners, for as long as the process lives: one value of each
/// type, made by the first that asks. Asked when a door opens, not with requests.
#[derive(Default)]
pub struct SharedState {
    parts: Mutex<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>,
    reports: Mutex<Vec<(Door, Arc<dyn DoorReport>)>>,
}

impl SharedState {
    /// The one `T` of this process; `make` makes it.
    pub fn part<T: Send + Sync + 'static>(&self, make: impl FnOnce() -> Arc<T>) -> Arc<T> {
        let mut parts = self.parts.lock();
        let part = parts.entry(TypeId::of::<T>()).or_insert_with(|| make());
        part.clone().downcast().expect("the value under a type's id is of that type")
    }

    /// Lets `report` speak for all listeners of `door`.
    pub fn add_report(&self, door: Door, report: Arc<dyn DoorReport>) {
        self.reports.lock().push((door, report));
    }

    /// What `door` tells, if it has been open.
    #[must_use]
    pub fn report(&self, door: Door) -> Option<Arc<dyn DoorReport>> {
        let reports = self.reports.lock();
        reports.iter().find(|(of, _)| *of == door).map(|(_, report)| report.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_value_of_each_type() {
        let shared = SharedState::default();
        let first = shared.part(|| Arc::new(1_u8));
        assert!(Arc::ptr_eq(&first, &shared.part(|| Arc::new(2_u8))));
        assert_eq!(*shared.part(|| Arc::new(3_u16)), 3);
    }
}
