//! What a remote store must be able to do, and the engines that do it.
//!
//! An engine keeps values under names, each with a version that changes with every write, and
//! changes several of them at once if their versions are still those that were seen. It knows
//! nothing of limits, states or uses in flight: values are bytes. Connections, their repair and
//! the protocols stay behind this file.

use std::sync::Arc;

use tidegate_core::Nanos;

use super::etcd::Etcd;
use super::redis::Redis;

/// The version of a value. No two values of one name have the same.
pub(crate) type Version = u64;

/// The version of a value that does not exist.
pub(crate) const ABSENT: Version = 0;

/// A value in the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StoredValue {
    /// [`ABSENT`] if there is none.
    pub(crate) version: Version,
    /// Empty if there is none.
    pub(crate) value: Vec<u8>,
}

/// A change of one value: it is written if its version is still the one that was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CellChange {
    pub(crate) name: Arc<[u8]>,
    /// The version that was seen.
    pub(crate) seen: Version,
    /// What to write; `None`: the version is only compared.
    pub(crate) write: Option<Write>,
}

/// A new value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Write {
    /// Empty: the value is removed.
    pub(crate) value: Vec<u8>,
    /// How long it is kept, at least. The engine may round up, never down.
    pub(crate) lives: Nanos,
    /// Whether the value in the store is as long as the new one, and is kept for long enough: then
    /// an engine may overwrite it in place.
    pub(crate) keeps: bool,
    /// Whether it gives something back that others may wait for: nodes that watch the name hear
    /// of it.
    pub(crate) frees: bool,
}

/// The outcome of the changes of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Swapped {
    /// All were as seen, and all are written: their versions from now on, in order.
    Done(Vec<Version>),
    /// Some were not as seen, and nothing is written: how all of them are, in order.
    Stale(Vec<StoredValue>),
    /// The engine changes names that lie apart one after the other. It has written those of
    /// `written`, and then found the one at `at` not as seen.
    Broken { written: Vec<usize>, at: usize, found: StoredValue },
}

/// An answer with the engine's own time, if it tells one: nanoseconds since the Unix epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Timed<T> {
    pub(crate) what: T,
    pub(crate) time: Option<Nanos>,
}

/// Why an engine failed. It may have done what was asked nevertheless, unless it says otherwise.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EngineFault {
    /// There is no connection, or it broke.
    #[error("the store cannot be reached: {0}")]
    Unreachable(String),
    /// It has not answered in time.
    #[error("the store has not answered in time")]
    Slow,
    /// It answered with what makes no sense.
    #[error("the store answered with garbage: {0}")]
    Garbage(String),
    /// It answered that it will not: wrong password, no permission, no memory, read only.
    #[error("the store refuses: {0}")]
    Refused(String),
}

impl EngineFault {
    /// The kind in metrics.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            EngineFault::Unreachable(_) => "unreachable",
            EngineFault::Slow => "timeout",
            EngineFault::Garbage(_) => "garbage",
            EngineFault::Refused(_) => "refused",
        }
    }
}

/// What a fault means for the store as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blame {
    /// Only a part of it has failed: the rest is asked as before.
    Partial,
    /// Several in a row mean that it is away.
    Counts,
    /// It is away.
    Gone,
}

/// The engines. Cheap to clone: clones share their connections.
#[derive(Clone)]
pub(crate) enum Engine {
    Redis(Redis),
    Etcd(Etcd),
}

impl Engine {
    /// The name in metrics and messages.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Engine::Redis(_) => "redis",
            Engine::Etcd(_) => "etcd",
        }
    }

    /// What a fault means for the store as a whole. A Cluster goes on without one of its nodes, and
    /// requests for that node's counts fail at once.
    pub(crate) fn blame(&self, fault: &EngineFault) -> Blame {
        match (self, fault) {
            (Engine::Redis(redis), _) if redis.is_partly_up() => match fault {
                EngineFault::Unreachable(_) | EngineFault::Slow => Blame::Partial,
                EngineFault::Garbage(_) | EngineFault::Refused(_) => Blame::Counts,
            },
            (_, EngineFault::Unreachable(_)) => Blame::Gone,
            _ => Blame::Counts,
        }
    }

    /// How many calls of [`Self::swap`] may be under way: few, where a call with many requests
    /// costs little more than one with a single request.
    pub(crate) fn calls_max(&self) -> usize {
        match self {
            // With two, the server sleeps between calls, and waking it costs more than is saved.
            Engine::Redis(_) => 8,
            Engine::Etcd(_) => 64,
        }
    }

    /// Whether many changes in one call cost less than in many calls.
    pub(crate) fn gathers(&self) -> bool {
        match self {
            Engine::Redis(_) => true,
            Engine::Etcd(_) => false,
        }
    }

    /// Whether a write costs less if the value is kept as long as the one before it.
    pub(crate) fn keeps_ends(&self) -> bool {
        match self {
            Engine::Redis(_) => true,
            Engine::Etcd(_) => false,
        }
    }

    /// Several requests in one go, each all or nothing and independent of the others: no name is
    /// in two of them. There is one result for each, in order. Returns when all are answered, and
    /// after the engine's own timeout at the latest.
    pub(crate) async fn swap(
        &self,
        requests: Vec<Vec<CellChange>>,
    ) -> Vec<Result<Timed<Swapped>, EngineFault>> {
        match self {
            Engine::Redis(redis) => redis.swap(requests).await,
            Engine::Etcd(etcd) => etcd.swap(requests).await,
        }
    }

    /// Removes a name, whatever its version. Returns whether there was a value.
    pub(crate) async fn remove(&self, name: &[u8]) -> Result<bool, EngineFault> {
        match self {
            Engine::Redis(redis) => redis.remove(name).await,
            Engine::Etcd(etcd) => etcd.remove(name).await,
        }
    }

    /// A page of the names that begin with `prefix`, with their values, and where the next page
    /// begins: `None` when this was the last. Starts at an empty mark. A name may come twice; one
    /// that is there all the while comes once at least.
    pub(crate) async fn scan(
        &self,
        prefix: &[u8],
        mark: Vec<u8>,
    ) -> Result<(Vec<(Vec<u8>, Vec<u8>)>, Option<Vec<u8>>), EngineFault> {
        match self {
            Engine::Redis(redis) => redis.scan(prefix, mark).await,
            Engine::Etcd(etcd) => etcd.scan(prefix, mark).await,
        }
    }

    /// Reports that `node` is alive, which counts for `lives`. Returns all nodes that are alive,
    /// this one included.
    pub(crate) async fn beat(
        &self,
        node: u64,
        lives: Nanos,
    ) -> Result<Timed<Vec<u64>>, EngineFault> {
        match self {
            Engine::Redis(redis) => redis.beat(node, lives).await,
            Engine::Etcd(etcd) => etcd.beat(node, lives).await,
        }
    }

    /// Reports that `node` ends.
    pub(crate) async fn leave(&self, node: u64) {
        match self {
            Engine::Redis(redis) => redis.leave(node).await,
            Engine::Etcd(etcd) => etcd.leave(node).await,
        }
    }

    /// Begins to watch a name, for [`Self::freed`]. Watching it twice has no further effect.
    pub(crate) fn watch(&self, name: &Arc<[u8]>) {
        match self {
            Engine::Redis(redis) => redis.watch(name),
            Engine::Etcd(etcd) => etcd.watch(name),
        }
    }

    /// No longer watches a name.
    pub(crate) fn unwatch(&self, name: &Arc<[u8]>) {
        match self {
            Engine::Redis(redis) => redis.unwatch(name),
            Engine::Etcd(etcd) => etcd.unwatch(name),
        }
    }

    /// Waits until something may have been given back to a watched name. Empty: to any of them,
    /// because the engine cannot say, for example after a connection was repaired. Cancel-safe.
    pub(crate) async fn freed(&self) -> Arc<[u8]> {
        match self {
            Engine::Redis(redis) => redis.freed().await,
            Engine::Etcd(etcd) => etcd.freed().await,
        }
    }
}
