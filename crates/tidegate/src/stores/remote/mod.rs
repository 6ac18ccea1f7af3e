//! Remote stores: counts that several nodes share.
//!
//! - [`settings`]: the `[store]` table
//! - [`engine`]: what a store must be able to do; `redis` and `etcd` do it
//! - [`names`]: the name of a count in the store; `stored_count`: its bytes
//! - [`update`]: a step over the counts of one request, and how it can fail
//! - `update_queue`: which updates wait for which count; `cell_cache`, `cell`: counts as last seen
//! - `worker`: the one thread that speaks to the store; its parts are `breaker`, `members`, `time`

mod breaker;
mod cell;
#[cfg(test)]
#[path = "../../../tests/engines/mod.rs"]
pub(crate) mod engines;
#[cfg(test)]
pub(crate) mod suite;
mod update_queue;

mod cell_cache;
pub(crate) mod engine;
pub(crate) mod etcd;
mod members;
pub(crate) mod names;
pub(crate) mod redis;
pub mod settings;
mod stored_count;
#[cfg(test)]
mod tests;
mod time;
pub(crate) mod update;
mod worker;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use parking_lot::Mutex;
use tidegate_core::{Nanos, Now};
use tokio::sync::{mpsc, oneshot, watch};

use self::engine::{Engine, EngineFault};
use self::names::RuleNames;
use self::settings::{Settings, StoreKind};
use self::stored_count::StoredCount;
use self::update::{DeferredStep, RemoteSlot, StoreError, Update};
use self::worker::{StoreWorker, WorkerMessage};
use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::stores::memory::{SlotAddress, States};

/// Jobs that may wait to be looked at; more are turned away.
const INBOX_MAX: usize = 65_536;

/// Who is told that something was given back.
type Freed = Box<dyn Fn(&[u8]) + Send + Sync>;

/// What doors and the store's thread share.
struct Shared {
    node: u64,
    timeout: Nanos,
    /// What decisions are made by, where the store has no time of its own.
    clock: Clock,
    /// What connections, probes and deadlines go by: never one that a test holds still.
    pace: Clock,
    metrics: Arc<Metrics>,
    away: AtomicBool,
    /// Whether the start is over: the store has answered once, or `start_timeout` has passed.
    started: watch::Sender<bool>,
    last_fault: Mutex<Option<EngineFault>>,
    /// Told a name that something was given back to; an empty one for any.
    freed: Freed,
}

/// A page of counts with their names.
pub(crate) struct Page {
    pub(crate) counts: Vec<(Vec<u8>, States)>,
    /// Where the next page begins; `None` if this was the last.
    pub(crate) next: Option<Vec<u8>>,
    /// The store's time at which they were looked at.
    pub(crate) at: Now,
}

/// A remote store.
pub(crate) struct Remote {
    shared: Arc<Shared>,
    inbox: mpsc::Sender<WorkerMessage>,
    prefix: String,
    name: &'static str,
}

/// What the settings lack, without speaking to the store.
pub(crate) fn check(settings: &Settings) -> Result<(), String> {
    match settings.kind {
        StoreKind::Memory => Ok(()),
        StoreKind::Redis => redis::check(settings),
        StoreKind::Etcd => etcd::check(settings),
    }
}

impl Remote {
    /// Starts the thread that speaks to the store. It connects by itself: a store that is away is
    /// no reason not to start.
    ///
    /// # Errors
    /// What the settings lack, or why there is no thread.
    pub(crate) fn start(
        settings: &Settings,
        clock: Clock,
        metrics: Arc<Metrics>,
        freed: impl Fn(&[u8]) + Send + Sync + 'static,
    ) -> Result<Self, String> {
        let node = getrandom::u64().map_err(|error| error.to_string())?.max(1);
        let timeout = u64::try_from(settings.timeout().as_nanos()).unwrap_or(u64::MAX);
        let shared = Arc::new(Shared {
            node,
            timeout,
            pace: if clock.is_manual() { Clock::system() } else { clock.clone() },
            clock,
            metrics,
            away: AtomicBool::new(true),
            started: watch::Sender::new(false),
            last_fault: Mutex::default(),
            freed: Box::new(freed),
        });
        let (inbox, messages) = mpsc::channel(INBOX_MAX);
        let (made, is_made) = std::sync::mpsc::channel();
        let (theirs, of_theirs) = (shared.clone(), settings.clone());
        let body = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = match runtime {
                Ok(runtime) => runtime,
                Err(error) => return drop(made.send(Err(error.to_string()))),
            };
            runtime.block_on(async {
                let engine = match of_theirs.kind {
                    StoreKind::Etcd => etcd::Etcd::new(&of_theirs).map(Engine::Etcd),
                    StoreKind::Redis | StoreKind::Memory => {
                        redis::Redis::new(&of_theirs).map(Engine::Redis)
                    }
                };
                match engine {
                    Ok(engine) => {
                        let _ = made.send(Ok(()));
                        let start_timeout = of_theirs.start_timeout();
                        StoreWorker::new(engine, theirs, start_timeout).run(messages).await;
                    }
                    Err(wrong) => drop(made.send(Err(wrong))),
                }
            });
        };
        let spawned = thread::Builder::new().name("store".to_owned()).spawn(body);
        spawned.map_err(|error| error.to_string())?;
        is_made.recv().unwrap_or_else(|_| Err("the store's thread ended".to_owned()))?;
        let prefix = settings.prefix().to_owned();
        let name = match settings.kind {
            StoreKind::Etcd => "etcd",
            StoreKind::Redis | StoreKind::Memory => "redis",
        };
        Ok(Self { shared, inbox, prefix, name })
    }

    /// The name in metrics and messages.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// What every name begins with.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Why the store is not asked at this moment, if it is not.
    pub(crate) fn away(&self) -> Option<String> {
        let away = self.shared.away.load(Relaxed);
        let fault = || self.shared.last_fault.lock().as_ref().map(ToString::to_string);
        away.then(|| fault().unwrap_or_else(|| "the store has not answered yet".to_owned()))
    }

    /// Waits until the store has answered once, or `start_timeout` has passed.
    pub(crate) async fn started(&self) {
        // The sender lives as long as this does.
        let _ = self.shared.started.subscribe().wait_for(|started| *started).await;
    }

    /// Hands a step to the store's thread. The step is told in the end, here and at once if the
    /// store is away and the step is a use.
    pub(super) fn update(&self, slots: &[SlotAddress<'_>], now: Now, step: Box<dyn DeferredStep>) {
        let kind = step.kind();
        if kind == update::UpdateKind::Take && self.shared.away.load(Relaxed) {
            return step.end(Err(StoreError::Away));
        }
        // A time that stands still is never up.
        let is_manual = self.shared.clock.is_manual();
        let timeout = if is_manual { Nanos::MAX } else { self.shared.timeout };
        let slots = slots.iter().filter_map(RemoteSlot::of).collect();
        let update = Update { slots, step, kind, deadline: now.mono.saturating_add(timeout) };
        if let Err(full) = self.inbox.try_send(WorkerMessage::Update(update))
            && let WorkerMessage::Update(update) = full.into_inner()
        {
            update.step.end(Err(StoreError::Crowded));
        }
    }

    /// Forgets the count at an address; `false` if it lies elsewhere or was not there.
    pub(crate) async fn remove(&self, address: &SlotAddress<'_>) -> Result<bool, EngineFault> {
        let Some(slot) = RemoteSlot::of(address) else { return Ok(false) };
        let (reply, told) = oneshot::channel();
        self.ask(WorkerMessage::Remove(slot.name, reply), told).await?
    }

    /// A page of the counts of one rule whose keys begin with `key`, without uses in flight. What
    /// is no count is left out.
    pub(crate) async fn look(
        &self,
        names: &RuleNames,
        key: &[u8],
        mark: Vec<u8>,
    ) -> Result<Page, EngineFault> {
        let (reply, told) = oneshot::channel();
        let prefix = names.name(key).to_vec();
        let (values, next, at) = self.ask(WorkerMessage::Scan(prefix, mark, reply), told).await??;
        let view = |(name, value): (Vec<u8>, Vec<u8>)| {
            let entry = StoredCount::decode(&value).ok()?;
            Some((name, entry.view(&names.limits, self.shared.node, false, &|_: u64| true)))
        };
        Ok(Page { counts: values.into_iter().filter_map(view).collect(), next, at })
    }

    async fn ask<T>(
        &self,
        message: WorkerMessage,
        told: oneshot::Receiver<T>,
    ) -> Result<T, EngineFault> {
        if self.shared.away.load(Relaxed) {
            return Err(EngineFault::Unreachable(self.away().unwrap_or_default()));
        }
        let gone = || EngineFault::Unreachable("the store's thread has ended".to_owned());
        self.inbox.send(message).await.map_err(|_| gone())?;
        told.await.map_err(|_| gone())
    }

    /// Begins or ends to report when something is given back to the count at an address.
    pub(crate) fn watch(&self, address: &SlotAddress<'_>, watching: bool) {
        if let Some(RemoteSlot { name, .. }) = RemoteSlot::of(address) {
            let message =
                if watching { WorkerMessage::Watch(name) } else { WorkerMessage::Unwatch(name) };
            let _ = self.inbox.try_send(message);
        }
    }

    /// Gives back what is to be given back, and says that this node is gone.
    pub(crate) async fn close(&self) {
        let (reply, told) = oneshot::channel();
        if self.inbox.send(WorkerMessage::Close(reply)).await.is_ok() {
            let _ = told.await;
        }
    }
}
