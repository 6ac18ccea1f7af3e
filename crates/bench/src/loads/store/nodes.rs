//! Servers of ours whose counts lie in one store, asked through their text doors.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use anyhow::Result;
use tidegate_core::Nanos;
use tidegate_core::time::SECOND;

use crate::frame::Load;
use crate::frame::keys::Choice;
use crate::frame::tally::{Tally, Until, on_threads};
use crate::loads::text::load::{Pace, TextLoad};
use crate::servers::{Program, Server, metrics};

/// A store may take a second for a decision; a reply that has not come after this long will not
/// come.
const LOST_AFTER: Nanos = 3 * SECOND;

/// What is asked of each node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asking {
    /// Decisions that are outstanding at a time.
    pub(super) window: u64,
    /// Different keys in play.
    pub(super) keys: u64,
    pub(super) choice: Choice,
    pub(super) until: Until,
}

/// The nodes, each asked by a thread of its own.
pub(super) struct Nodes {
    nodes: Vec<Server>,
    pub(super) asking: Asking,
}

impl Nodes {
    /// So many nodes with one rule: `amount` uses of each key in an hour.
    pub(super) fn start(
        program: &Program,
        count: usize,
        store: &str,
        amount: u64,
        asking: Asking,
    ) -> Result<Self> {
        let config = format!(
            "[[rule]]\nmatch = \"ws ip=*\"\nlimit = \"{amount} per hour\"\n\
             [text]\nlisten = \"127.0.0.1:0\"\n[http]\nlisten = \"127.0.0.1:0\"\n{store}"
        );
        let nodes = (0..count).map(|_| program.serve(&config)).collect::<Result<_>>()?;
        Ok(Self { nodes, asking })
    }

    /// Asks for as many decisions as `asking` says, unmeasured.
    pub(super) fn warm_up(&mut self, asking: Asking) -> io::Result<()> {
        let measured = std::mem::replace(&mut self.asking, asking);
        let result = self.run(&|_, _| ()).map(drop);
        self.asking = measured;
        result
    }

    /// Decisions that the nodes have made without their store so far.
    fn degraded(&self) -> io::Result<u64> {
        let of = |node: &Server| {
            let [http] = node.door("http").map_err(io::Error::other)?;
            metrics::sum(http, "tidegate_degraded_total", "text")
        };
        self.nodes.iter().map(of).sum()
    }

    fn cpu(&self) -> Option<u64> {
        self.nodes.iter().map(Server::cpu).sum()
    }

    fn ask(&self, number: usize, total: &AtomicU64) -> io::Result<Tally> {
        let Asking { window, keys, choice, until } = self.asking;
        let [server] = self.nodes[number].door("text").map_err(io::Error::other)?;
        let load = TextLoad {
            server,
            clients: 1,
            threads: 1,
            burst: 1,
            join: false,
            pace: Pace::Closed { window: window as usize },
            keys,
            choice,
            until,
            lost_after: LOST_AFTER,
        };
        let told = AtomicU64::new(0);
        load.run(&|answered, _| {
            total.fetch_add(answered - told.swap(answered, Relaxed), Relaxed);
        })
    }
}

impl Load for Nodes {
    fn title(&self) -> String {
        let Asking { window, keys, .. } = self.asking;
        format!("{} nodes, window {window}, {keys} keys", self.nodes.len())
    }

    /// Decisions that were made without the store are told as lost.
    fn run(&self, progress: &dyn Fn(u64, Nanos)) -> io::Result<Tally> {
        let before = (self.cpu(), self.degraded()?);
        let mut tally =
            on_threads(self.nodes.len(), progress, |number, total| self.ask(number, total))?;
        tally.node_cpu = before.0.zip(self.cpu()).map(|(before, after)| after - before);
        let degraded = (self.degraded()? - before.1).min(tally.answered);
        tally.answered -= degraded;
        tally.lost += degraded;
        Ok(tally)
    }
}
