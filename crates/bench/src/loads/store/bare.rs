//! Bare transactions on etcd: the shape of a decision without the decision. Each compares the
//! revision of one name with the one last seen, writes as many bytes as a count has, and reads the
//! name if another client was first; then it is tried again, as a decision would be.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use anyhow::{Context as _, Result};
use etcd_client::{Client, Compare, CompareOp, GetOptions, Txn, TxnOp, TxnOpResponse};
use parking_lot::Mutex;
use tidegate_core::Nanos;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

use super::nodes::Asking;
use crate::clock;
use crate::frame::Load;
use crate::frame::keys::{Choice, Keys};
use crate::frame::tally::{Tally, on_threads};

/// How long a name is, and its value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    name: usize,
    value: usize,
}

impl Shape {
    /// That of a count which lies in this etcd.
    pub(super) fn of_a_count(etcd: SocketAddr) -> Result<Self> {
        runtime()?.block_on(async {
            let client = connect(etcd).await?;
            let options = GetOptions::new().with_prefix().with_limit(1);
            let answer = client.kv_client().get("tidegate:1:", Some(options)).await?;
            let count = answer.kvs().first().context("no count lies in etcd")?;
            Ok(Self { name: count.key().len(), value: count.value().len() })
        })
    }
}

/// Transactions of several clients, each with a thread and a connection of its own, as nodes have.
pub(super) struct Bare {
    etcd: SocketAddr,
    asking: Asking,
    clients: Vec<Arc<Shared>>,
}

/// What the tasks of one client share.
struct Shared {
    shape: Shape,
    /// The revision of each key that was seen last.
    seen: Mutex<Vec<i64>>,
    /// Transactions, and those of them that wrote, of all rounds.
    tried: AtomicU64,
    written: AtomicU64,
}

impl Bare {
    pub(super) fn new(etcd: SocketAddr, shape: Shape, clients: usize, asking: Asking) -> Self {
        let keys = usize::try_from(asking.keys).unwrap_or(0);
        let client = |_| {
            let (tried, written) = (AtomicU64::new(0), AtomicU64::new(0));
            Arc::new(Shared { shape, seen: Mutex::new(vec![0; keys]), tried, written })
        };
        Self { etcd, asking, clients: (0..clients).map(client).collect() }
    }

    /// What one client does: as many at a time as a node has decisions outstanding.
    async fn work(&self, number: usize, total: &AtomicU64) -> Result<Tally> {
        let shared = &self.clients[number];
        let client = connect(self.etcd).await?;
        // It connects with the first question.
        client.kv_client().get("nothing", None).await?;
        let before = (shared.tried.load(Relaxed), shared.written.load(Relaxed));
        let start = clock::now();
        let end = start.saturating_add(self.asking.until.span);
        let mut tasks = JoinSet::new();
        for task in 0..self.asking.window {
            let seed = number as u64 * self.asking.window + task;
            let keys = Keys::new(self.asking.keys, Choice::Skewed(0.0), seed);
            tasks.spawn(shared.clone().write(client.clone(), keys, end));
        }
        while let Some(done) = tasks.join_next().await {
            done.context("a panic")??;
        }
        let mut tally = Tally::new();
        tally.sent = shared.tried.load(Relaxed) - before.0;
        tally.answered = shared.written.load(Relaxed) - before.1;
        tally.elapsed = (clock::now() - start).max(1);
        total.fetch_add(tally.answered, Relaxed);
        Ok(tally)
    }
}

impl Shared {
    /// One transaction after the other until `end`, on keys by chance.
    async fn write(self: Arc<Self>, client: Client, mut keys: Keys, end: Nanos) -> Result<()> {
        let (mut kv, value) = (client.kv_client(), vec![b'v'; self.shape.value]);
        while clock::now() < end {
            let key = keys.draw() as usize;
            let name = format!("bare{key:0>width$}", width = self.shape.name - "bare".len());
            // A node would not give up either.
            while clock::now() < end {
                let seen = self.seen.lock()[key];
                let transaction = Txn::new()
                    .when([Compare::mod_revision(&*name, CompareOp::Equal, seen)])
                    .and_then([TxnOp::put(&*name, &*value, None)])
                    .or_else([TxnOp::get(&*name, None)]);
                let answer = kv.txn(transaction).await?;
                self.tried.fetch_add(1, Relaxed);
                if answer.succeeded() {
                    let revision = answer.header().context("no revision")?.revision();
                    self.seen.lock()[key] = revision;
                    self.written.fetch_add(1, Relaxed);
                    break;
                }
                if let Some(TxnOpResponse::Get(found)) = answer.op_responses().first() {
                    let revision = found.kvs().first().map_or(0, |found| found.mod_revision());
                    self.seen.lock()[key] = revision;
                }
            }
        }
        Ok(())
    }
}

impl Load for Bare {
    fn title(&self) -> String {
        let Asking { window, keys, .. } = self.asking;
        format!("{} clients, window {window}, {keys} keys", self.clients.len())
    }

    fn run(&self, progress: &dyn Fn(u64, Nanos)) -> io::Result<Tally> {
        on_threads(self.clients.len(), progress, |number, total| {
            let runtime = runtime().map_err(io::Error::other)?;
            runtime.block_on(self.work(number, total)).map_err(io::Error::other)
        })
    }
}

async fn connect(etcd: SocketAddr) -> Result<Client> {
    Client::connect([format!("http://{etcd}")], None).await.context("etcd does not answer")
}

/// One thread, as a node has for its store.
fn runtime() -> Result<Runtime> {
    Builder::new_current_thread().enable_all().build().context("no runtime")
}
