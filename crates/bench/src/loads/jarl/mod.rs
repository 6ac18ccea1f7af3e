//! `tidegate-bench jarl`: load on the JARL door, alone or in turns with peers.
//!
//! - [`load`]: callers that connect, read the answer and close, again and again

mod load;

use std::net::SocketAddr;

use clap::ValueEnum;

use self::load::JarlLoad;
use crate::failure::Failure;
use crate::frame::Contender;
use crate::frame::flags::{Length, Programs, Report, Running};
use crate::servers::Server;

/// The arguments of `tidegate-bench jarl`.
#[derive(Debug, clap::Args)]
#[command(mut_arg("rounds", |rounds| rounds.default_value("9")))]
pub(crate) struct Args {
    #[command(flatten)]
    programs: Programs,
    #[command(flatten)]
    running: Running,
    /// The limit of the server that is started.
    #[arg(long, default_value = "100 per 1s", conflicts_with = "address")]
    limit: String,
    /// Whether it books starts instead of arrivals.
    #[arg(long, conflicts_with = "address")]
    exact: bool,
    /// Callers at a time, each on a thread of its own.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    clients: u32,
    #[command(flatten)]
    length: Length,
    /// Compare with a peer: the same load on both, in turns. May be given several times.
    #[arg(long, value_enum)]
    peer: Vec<Peer>,
    #[command(flatten)]
    report: Report,
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
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let frame = args.running.frame("jarl", "connection", &args.programs, &args.report)?;
    frame.run(
        |program| {
            let server = program.serve(&args.config())?;
            let load = args.load(server.address());
            Ok(Contender::ours(server, load))
        },
        &args.peer,
        |peer, _| {
            let server = Server::peer(&[peer.name()])?;
            let load = args.load(server.address());
            Ok(Contender { name: peer.name(), server, load })
        },
    )
}

impl Args {
    fn config(&self) -> String {
        let Self { limit, exact, .. } = self;
        format!(
            "[[jarl]]\nservice = \"bench\"\nlisten = \"127.0.0.1:0\"\nlimit = {limit:?}\n\
             exact = {exact}\n"
        )
    }

    fn load(&self, server: SocketAddr) -> JarlLoad {
        JarlLoad { server, clients: self.clients as usize, until: self.length.until() }
    }
}
