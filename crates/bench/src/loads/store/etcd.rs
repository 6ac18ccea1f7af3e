//! How many decisions three nodes make that share an etcd, beside bare transactions with as many
//! outstanding, in turns.

use std::io;

use anyhow::Context as _;
use tidegate_core::Nanos;
use tidegate_core::time::{MILLISECOND, SECOND};

use super::bare::{Bare, Shape};
use super::nodes::{Asking, Nodes};
use crate::failure::Failure;
use crate::frame::flags::{Programs, Report};
use crate::frame::keys::Choice;
use crate::frame::tally::{Tally, Until};
use crate::frame::{Contender, Figure, Frame, Load};
use crate::servers::Server;

const NODES: usize = 3;
/// Uses of each key in an hour: more than there are, because what is refused is not written.
const AMOUNT: u64 = 10_000_000_000;
/// What is not measured: connections, leases and the first count.
const FIRST: Nanos = 300 * MILLISECOND;

/// The arguments of `tidegate-bench store etcd`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    programs: Programs,
    /// Different keys in play.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    keys: u64,
    /// Decisions, or transactions, that each of the three has outstanding at a time.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=4_096))]
    window: u64,
    /// How long each of them is asked, in each round.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    #[command(flatten)]
    report: Report,
}

/// Runs the comparison.
pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let frame = args.programs.frame("etcd", "decision", &args.report)?;
    let frame = Frame { figures: &[Figure::PerSecond], ..frame };
    let until = Until { span: args.seconds * SECOND, count: u64::MAX };
    let choice = Choice::Skewed(0.0);
    let asking = Asking { window: args.window, keys: args.keys, choice, until };
    frame.run(
        |program| {
            let server = Server::etcd()?;
            let store =
                format!("[store]\nkind = \"etcd\"\nurl = \"http://{}\"\n", server.address());
            let mut nodes = Nodes::start(program, NODES, &store, AMOUNT, asking)?;
            let first = Asking { until: Until { span: FIRST, ..until }, ..asking };
            nodes.warm_up(first).context("cannot ask")?;
            Ok(Contender::ours(server, EtcdLoad::Nodes(nodes)))
        },
        &["bare"],
        |name, ours| {
            let shape = Shape::of_a_count(ours.server.address())?;
            let server = Server::etcd()?;
            let load = EtcdLoad::Bare(Bare::new(server.address(), shape, NODES, asking));
            Ok(Contender { name, server, load })
        },
    )
}

/// What is put on an etcd.
enum EtcdLoad {
    Nodes(Nodes),
    Bare(Bare),
}

impl Load for EtcdLoad {
    fn title(&self) -> String {
        match self {
            EtcdLoad::Nodes(nodes) => nodes.title(),
            EtcdLoad::Bare(bare) => bare.title(),
        }
    }

    fn run(&self, progress: &dyn Fn(u64, Nanos)) -> io::Result<Tally> {
        match self {
            EtcdLoad::Nodes(nodes) => nodes.run(progress),
            EtcdLoad::Bare(bare) => bare.run(progress),
        }
    }
}
