//! `tidegate-bench store`: decisions on counts in a remote store, beside what the store itself is
//! able to do.
//!
//! - [`nodes`]: servers of ours that share a store, and the load on them
//! - [`redis`]: what decisions cost redis-server, beside a plain script
//! - [`etcd`]: how many decisions etcd allows three nodes, beside [`bare`] transactions

mod bare;
mod etcd;
mod nodes;
mod redis;

use crate::failure::Failure;

/// The stores.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// The CPU time that decisions cost a redis-server, in turns with a plain fixed-window script
    /// that redis-benchmark calls on another one. Both are started for the run.
    Redis(redis::Args),
    /// Decisions per second of three nodes that share an etcd, in turns with bare transactions on
    /// another one. Both are started for the run.
    Etcd(etcd::Args),
}

impl Command {
    /// Runs the comparison.
    pub(crate) fn run(&self) -> Result<(), Failure> {
        match self {
            Command::Redis(args) => redis::run(args),
            Command::Etcd(args) => etcd::run(args),
        }
    }
}
