//! `tidegate bench jarl`: load on the JARL door, alone or in turns with peers.
//!
//! - [`load`]: callers that connect, read the answer and close, again and again
//! - [`plain`]: the peers, which accept, write and close, and decide nothing

mod load;
pub(super) mod plain;

use std::net::SocketAddr;

use clap::ValueEnum;
use tidegate_core::time::SECOND;

use self::load::Load;
use super::super::Failure;
use super::compare::{self, Contender};
use super::subject::Subject;
use super::tally::Until;
use super::{measure, show};

/// The arguments of `tidegate bench jarl`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// A running server's JARL door; without it a server is started for the run.
    #[arg(long, value_name = "ADDR")]
    server: Option<SocketAddr>,
    /// The process id of that server, to tell its CPU time.
    #[arg(long, value_name = "PID", requires = "server")]
    server_pid: Option<u32>,
    /// The limit of the server that is started.
    #[arg(long, default_value = "100 per 1s", conflicts_with = "server")]
    limit: String,
    /// Whether it books starts instead of arrivals.
    #[arg(long, conflicts_with = "server")]
    exact: bool,
    /// Callers at a time, each on a thread of its own.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    clients: u32,
    /// How long to call (each round, in a comparison).
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Stop after this many calls, if that comes first.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Compare with a peer: the same load on both, in turns. May be given several times.
    #[arg(long, value_enum, conflicts_with = "server")]
    peer: Vec<Peer>,
    /// Rounds of a comparison.
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// A server to measure beside ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Peer {
    /// Accepts, writes and closes the same way: the end leaves with the answer, and the socket is
    /// closed when the client has left.
    Plain,
    /// Accepts, writes and closes at once, whatever that does to the answer.
    Abrupt,
}

impl Peer {
    fn name(self) -> &'static str {
        match self {
            Peer::Plain => "plain",
            Peer::Abrupt => "abrupt",
        }
    }
}

/// Runs the load once, or the comparison.
pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let subject = match args.server {
        Some(address) => Subject::running(address, args.server_pid),
        None => Subject::ours(&args.config())?,
    };
    let load = args.load(subject.address());
    if args.peer.is_empty() {
        let run = measure("jarl", &subject, &load)?;
        return show(&run, &load.title(), args.json);
    }
    let ours = Contender { name: "tidegate", subject, load };
    let mut peers = Vec::new();
    for (at, peer) in args.peer.iter().enumerate() {
        if !args.peer[..at].contains(peer) {
            let subject = Subject::echo(&format!("{}-tcp", peer.name()))?;
            let load = args.load(subject.address());
            peers.push(Contender { name: peer.name(), subject, load });
        }
    }
    compare::run(&ours, &peers, "connection", args.rounds, args.json)
}

impl Args {
    fn config(&self) -> String {
        let Self { limit, exact, .. } = self;
        format!(
            "[[jarl]]\nservice = \"bench\"\nlisten = \"127.0.0.1:0\"\nlimit = {limit:?}\n\
             exact = {exact}\n"
        )
    }

    fn load(&self, server: SocketAddr) -> Load {
        Load {
            server,
            clients: self.clients as usize,
            until: Until { span: self.seconds * SECOND, count: self.count.unwrap_or(u64::MAX) },
        }
    }
}
