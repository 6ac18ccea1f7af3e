//! The etcd engine: values are etcd's own, and a version is the revision that wrote it.
//!
//! - [`access`]: where the members are, TLS and users
//! - [`link`]: the connection to one of them, and its repair
//! - [`leases`]: how values end
//! - [`nodes`]: which nodes live
//! - [`watches`]: names that requests wait for
//! - [`etcd_error`]: what etcd's errors mean

mod access;
mod etcd_error;
mod leases;
mod link;
mod nodes;
#[cfg(test)]
mod tests;
mod watches;

use std::sync::Arc;

use etcd_client::proto::PbTxnOpResponse;
use etcd_client::{Compare, CompareOp, GetOptions, PutOptions, Txn, TxnOp, TxnResponse};
use tidegate_core::Nanos;
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};

use self::access::EtcdAccess;
use self::etcd_error::EtcdError;
use self::leases::{Lease, Leases};
use self::link::{EtcdConnection, EtcdLink};
use self::nodes::EtcdNodes;
use self::watches::Watches;
use super::engine::{ABSENT, CellChange, EngineFault, StoredValue, Swapped, Timed, Version, Write};
use super::settings::Settings;
use crate::clock::Clock;

/// So many transactions are under way at a time; the others wait for their turn.
const IN_FLIGHT_MAX: usize = 256;
/// So many values are asked for at a time in a scan; fewer where they are long.
const PAGE_MAX: i64 = 256;
/// How often a write that lost its lease is tried with a new one.
const LEASES_MAX: usize = 3;

/// An etcd that several nodes share.
#[derive(Clone)]
pub(crate) struct Etcd(Arc<Inner>);

struct Inner {
    link: Arc<EtcdLink>,
    leases: Arc<Leases>,
    nodes: EtcdNodes,
    watches: Arc<Watches>,
    turns: Semaphore,
    /// Added to how long values are kept: an exchange may take so long.
    on_the_way: Nanos,
    tasks: [JoinHandle<()>; 2],
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// What the settings lack.
pub(super) fn check(settings: &Settings) -> Result<(), String> {
    EtcdAccess::new(settings, Vec::new()).map(drop)
}

impl Etcd {
    /// Makes ready what connects by itself. Must be called inside of the runtime that will use it.
    pub(crate) fn new(settings: &Settings) -> Result<Self, String> {
        let prefix = settings.prefix();
        let nodes = EtcdNodes::new(prefix);
        let access = EtcdAccess::new(settings, nodes.folder().to_vec())?;
        let link = Arc::new(EtcdLink::new(access, settings.timeout()));
        let watches = Arc::<Watches>::default();
        let keeper = link.clone();
        let watcher = (watches.clone(), link.clone());
        let tasks = [
            tokio::spawn(async move { keeper.keep().await }),
            tokio::spawn(async move { watcher.0.keep(&watcher.1).await }),
        ];
        Ok(Self(Arc::new(Inner {
            on_the_way: u64::try_from(link.bound().as_nanos()).unwrap_or(u64::MAX),
            link,
            leases: Arc::new(Leases::new(Clock::system())),
            nodes,
            watches,
            turns: Semaphore::new(IN_FLIGHT_MAX),
            tasks,
        })))
    }

    pub(crate) async fn swap(
        &self,
        requests: Vec<Vec<CellChange>>,
    ) -> Vec<Result<Timed<Swapped>, EngineFault>> {
        let line = match self.0.link.line() {
            Ok(line) => line,
            Err(fault) => return requests.iter().map(|_| Err(fault.clone())).collect(),
        };
        let mut results: Vec<_> = requests.iter().map(|_| Err(EngineFault::Slow)).collect();
        let mut exchanges = JoinSet::new();
        for (at, changes) in requests.into_iter().enumerate() {
            let (inner, line) = (self.0.clone(), line.clone());
            exchanges.spawn(async move {
                let exchange = inner.swap_one(&line, &changes);
                (at, inner.link.ask(&line, exchange).await)
            });
        }
        while let Some(done) = exchanges.join_next().await {
            if let Ok((at, result)) = done {
                results[at] = result.map(|what| Timed { what, time: None });
            }
        }
        results
    }

    pub(crate) async fn remove(&self, name: &[u8]) -> Result<bool, EngineFault> {
        let line = self.0.link.line()?;
        let exchange = async {
            let answer = line.told(line.kv().delete(name, None).await)?;
            Ok(answer.deleted() > 0)
        };
        self.0.link.ask(&line, exchange).await
    }

    pub(crate) async fn scan(
        &self,
        prefix: &[u8],
        mark: Vec<u8>,
    ) -> Result<(Vec<(Vec<u8>, Vec<u8>)>, Option<Vec<u8>>), EngineFault> {
        let line = self.0.link.line()?;
        self.0.link.ask(&line, page(&line, prefix, mark)).await
    }

    pub(crate) async fn beat(
        &self,
        node: u64,
        lives: Nanos,
    ) -> Result<Timed<Vec<u64>>, EngineFault> {
        let line = self.0.link.line()?;
        let what = self.0.link.ask(&line, self.0.nodes.beat(&line, node, lives)).await?;
        Ok(Timed { what, time: None })
    }

    pub(crate) async fn leave(&self, node: u64) {
        let Ok(line) = self.0.link.line() else { return };
        // If it fails, the lease ends by itself.
        let _ = self.0.link.ask(&line, self.0.nodes.leave(&line, node)).await;
    }

    pub(crate) fn watch(&self, name: &Arc<[u8]>) {
        self.0.watches.watch(name, self.0.link.revision());
    }

    pub(crate) fn unwatch(&self, name: &Arc<[u8]>) {
        self.0.watches.unwatch(name);
    }

    pub(crate) async fn freed(&self) -> Arc<[u8]> {
        self.0.watches.freed().await
    }
}

impl Inner {
    /// One transaction; again if the lease of what it writes turns out to be gone.
    async fn swap_one(
        &self,
        line: &Arc<EtcdConnection>,
        changes: &[CellChange],
    ) -> Result<Swapped, EtcdError> {
        // The semaphore is never closed.
        let _turn = self.turns.acquire().await;
        let mut tries = 1;
        loop {
            let lives = changes.iter().filter_map(kept).map(|write| write.lives).max();
            let lease = match lives {
                Some(lives) => {
                    let lives = lives.saturating_add(self.on_the_way);
                    Some(self.leases.until(line, lives).await?)
                }
                None => None,
            };
            let txn = transaction(changes, lease.as_ref());
            match line.told(line.kv().txn(txn).await) {
                Err(EtcdError::LeaseGone) if tries < LEASES_MAX => {
                    if let Some(lease) = &lease {
                        self.leases.is_gone(lease);
                    }
                    tries += 1;
                }
                Err(etcd_error) => return Err(etcd_error),
                Ok(answer) => {
                    let revision = line.revision_of(answer.header())?;
                    return swapped(changes, revision, answer);
                }
            }
        }
    }
}

/// What a change writes, if that stays.
fn kept(change: &CellChange) -> Option<&Write> {
    change.write.as_ref().filter(|write| !write.value.is_empty())
}

/// Compares all; then writes all, or else reads all.
fn transaction(changes: &[CellChange], lease: Option<&Lease>) -> Txn {
    let seen = |change: &CellChange| {
        // Revisions count from one, and what is absent has none.
        let revision = i64::try_from(change.seen).unwrap_or(i64::MAX);
        Compare::mod_revision(&*change.name, CompareOp::Equal, revision)
    };
    let options = lease.map(|lease| PutOptions::new().with_lease(lease.id));
    let write = |change: &CellChange| {
        let write = change.write.as_ref()?;
        Some(if write.value.is_empty() {
            TxnOp::delete(&*change.name, None)
        } else {
            TxnOp::put(&*change.name, &*write.value, options.clone())
        })
    };
    let read = |change: &CellChange| TxnOp::get(&*change.name, None);
    Txn::new()
        .when(changes.iter().map(seen).collect::<Vec<_>>())
        .and_then(changes.iter().filter_map(write).collect::<Vec<_>>())
        .or_else(changes.iter().map(read).collect::<Vec<_>>())
}

/// What an answer says. `revision` is that of what was written, if anything was.
fn swapped(
    changes: &[CellChange],
    revision: i64,
    answer: TxnResponse,
) -> Result<Swapped, EtcdError> {
    let garbage = |text: &str| EtcdError::Said(EngineFault::Garbage(text.to_owned()));
    if answer.succeeded() {
        let written = version(revision).filter(|&version| version != ABSENT);
        let written = written.ok_or_else(|| garbage("a write has no revision"))?;
        let version = |change: &CellChange| match &change.write {
            None => change.seen,
            Some(write) if write.value.is_empty() => ABSENT,
            Some(_) => written,
        };
        return Ok(Swapped::Done(changes.iter().map(version).collect()));
    }
    let answers = answer.0.responses;
    if answers.len() != changes.len() {
        return Err(garbage("a transaction has not read what it was asked to"));
    }
    let found = answers.into_iter().zip(changes).map(|(answer, change)| {
        let Some(PbTxnOpResponse::ResponseRange(mut range)) = answer.response else {
            return Err(garbage("a transaction has done what it was not asked to"));
        };
        let Some(value) = range.kvs.pop() else { return Ok(StoredValue::default()) };
        match version(value.mod_revision) {
            Some(version) if version != ABSENT && value.key == *change.name => {
                Ok(StoredValue { version, value: value.value })
            }
            _ => Err(garbage("a value has another name, or no revision")),
        }
    });
    found.collect::<Result<_, _>>().map(Swapped::Stale)
}

fn version(revision: i64) -> Option<Version> {
    Version::try_from(revision).ok()
}

/// A page of a scan, shorter where the values are too long for one answer.
async fn page(
    line: &EtcdConnection,
    prefix: &[u8],
    mark: Vec<u8>,
) -> Result<(Vec<(Vec<u8>, Vec<u8>)>, Option<Vec<u8>>), EtcdError> {
    let from = if mark.is_empty() { prefix.to_vec() } else { mark };
    let end = behind(prefix);
    let mut count = PAGE_MAX;
    loop {
        let options = GetOptions::new().with_range(&*end).with_limit(count);
        let mut answer = match line.told(line.kv().get(&*from, Some(options)).await) {
            Err(EtcdError::TooLong) if count > 1 => {
                count = (count / 8).max(1);
                continue;
            }
            answer => answer?,
        };
        let more = answer.more();
        let values = answer.take_kvs().into_iter().map(|value| value.into_key_value());
        let values: Vec<_> = values.collect();
        let next = values.last().filter(|_| more).map(|(name, _)| [name, &[0][..]].concat());
        return Ok((values, next));
    }
}

/// The first name behind all that begin with `prefix`.
fn behind(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    // etcd's word for the end of everything.
    vec![0]
}
