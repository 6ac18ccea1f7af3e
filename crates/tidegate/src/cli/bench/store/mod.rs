//! `tidegate bench store`: decisions on counts that lie elsewhere, beside what the store itself is
//! able to do.
//!
//! - [`node`]: a node of ours in this process, and how it is asked
//! - [`redis`]: what decisions cost redis-server, beside a plain script
//! - [`etcd`]: how many decisions etcd allows three nodes, beside [`bare`] transactions

mod bare;
mod etcd;
mod node;
mod redis;

use clap::Subcommand;

use super::super::Failure;

/// The arguments of `tidegate bench store`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    kind: Kind,
}

#[derive(Debug, Subcommand)]
enum Kind {
    /// The CPU time that decisions cost a redis-server, in turns with a plain fixed-window script
    /// that redis-benchmark calls on another one. Both are started for the run.
    Redis(redis::Args),
    /// Decisions per second of three nodes that share an etcd, on one key and on 1,000, in turns
    /// with bare transactions. The etcd is started for the run.
    Etcd(etcd::Args),
}

/// Runs a comparison.
pub(super) fn run(args: &Args) -> Result<(), Failure> {
    match &args.kind {
        Kind::Redis(args) => redis::run(args),
        Kind::Etcd(args) => etcd::run(args),
    }
}
