//! `tidegate bench jarl`: load on the JARL door, alone or in turns with peers.
//!
//! - [`load`]: callers that connect, read the answer and close, again and again
//! - [`plain`]: the peers, which accept, write and close, and decide nothing

mod load;
pub(super) mod plain;

use std::net::SocketAddr;

use clap::ValueEnum;

use self::load::Load;
use super::super::Failure;
use super::compare::{self, Contender};
use super::flags::{Length, Running, Telling};
use super::subject::Subject;
use super::{measure, show};

/// The arguments of `tidegate bench jarl`.
#[derive(Debug, clap::Args)]
#[command(mut_arg("rounds", |rounds| rounds.default_value("9")))]
pub(super) struct Args {
    #[command(flatten)]
    running: Running,
    /// The limit of the server that is started.
    #[arg(long, default_value = "100 per 1s", conflicts_with = "server")]
    limit: String,
    /// Whether it books starts instead of arrivals.
    #[arg(long, conflicts_with = "server")]
    exact: bool,
    /// Callers at a time, each on a thread of its own.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    clients: u32,
    #[command(flatten)]
    length: Length,
    /// Compare with a peer: the same load on both, in turns. May be given several times.
    #[arg(long, value_enum, conflicts_with = "server")]
    peer: Vec<Peer>,
    #[command(flatten)]
    telling: Telling,
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
    let subject = args.running.or_ours(&args.config())?;
    let load = args.load(subject.address());
    if args.peer.is_empty() {
        let run = measure("jarl", &subject, &load)?;
        return show(&run, &load.title(), args.telling.json);
    }
    let ours = Contender { name: "tidegate", subject, load };
    let peers = compare::each_once(&args.peer, |peer| {
        let subject = Subject::echo(&format!("{}-tcp", peer.name()))?;
        let load = args.load(subject.address());
        Ok(Contender { name: peer.name(), subject, load })
    })?;
    compare::run(&ours, &peers, "connection", args.telling.rounds, args.telling.json)
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
        Load { server, clients: self.clients as usize, until: self.length.until() }
    }
}
