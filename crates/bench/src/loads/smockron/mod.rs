//! `tidegate-bench smockron`: accounting messages for the master, alone or in turns with a libzmq
//! program that only receives; or how long a DELAY_UNTIL takes, beside a bare relay.
//!
//! - [`peers`]: the libzmq programs, compiled from `peer.c` for the run
//! - [`load`]: publishers, and how many of their messages have come
//! - [`latency`]: one message at a time, and its answer

mod latency;
mod load;
mod peers;

use std::net::SocketAddr;

use anyhow::Context as _;
use clap::ValueEnum;

use self::latency::Pings;
use self::load::{Count, SmockronLoad};
use self::peers::Peers;
use crate::failure::Failure;
use crate::frame::flags::{Programs, Report};
use crate::frame::{Contender, Figure, Frame, Load as _};
use crate::servers::Server;

/// The arguments of `tidegate-bench smockron`.
#[derive(Debug, clap::Args)]
#[command(mut_arg("rounds", |rounds| rounds.default_value("9")))]
pub(crate) struct Args {
    #[command(flatten)]
    programs: Programs,
    /// Programs that send at the same time.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=64))]
    publishers: u64,
    /// Messages that they send together (each round, in a comparison).
    #[arg(
        long,
        default_value_t = 1_000_000,
        value_parser = clap::value_parser!(u64).range(1_000..=1_000_000_000)
    )]
    messages: u64,
    /// Different identifiers in play, each used as often as any other.
    #[arg(
        long,
        default_value_t = 1_000_000,
        value_parser = clap::value_parser!(u64).range(1..=1 << 24)
    )]
    ids: u64,
    /// The limit of each identifier.
    #[arg(long, default_value = "10/s burst 10")]
    limit: String,
    /// The algorithm of that limit.
    #[arg(long, default_value = "smockron")]
    algorithm: String,
    /// Compare with a peer: the same load on both, in turns.
    #[arg(long, value_enum)]
    peer: Option<Peer>,
    /// Instead of a load: the time from a message that exhausts a burst to its DELAY_UNTIL, beside
    /// a bare relay, in turns. So many messages in each round.
    #[arg(
        long,
        value_name = "MESSAGES",
        conflicts_with = "peer",
        value_parser = clap::value_parser!(u64).range(10..=1_000_000)
    )]
    latency: Option<u64>,
    #[command(flatten)]
    report: Report,
}

/// A program to measure beside ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Peer {
    /// A libzmq SUB loop in C that receives and does nothing with it.
    Sub,
}

/// Runs the load once, or a comparison.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let frame = args.programs.frame("smockron", "message", &args.report)?;
    let peers = Peers::compile()?;
    if let Some(messages) = args.latency {
        return latency(Frame { figures: &[Figure::P50, Figure::P99], ..frame }, &peers, messages);
    }
    frame.run(
        |program| {
            let server = program.serve(&config(&args.limit, &args.algorithm))?;
            let [accounting, _control] = server.door("smockron")?;
            let [http] = server.door("http")?;
            let load = args.load(&peers, accounting, Count::Metrics(http));
            // Every identifier once, so that none is new when the server is measured.
            let once = SmockronLoad { messages: args.ids, ..load.clone() };
            once.run(&|_, _| ()).context("cannot send")?;
            Ok(Contender::ours(server, load))
        },
        args.peer.as_slice(),
        |Peer::Sub, _| {
            let count = peers.file("count");
            let server = Server::start(peers.command(["sub".as_ref(), count.as_os_str()]))?;
            let load = args.load(&peers, server.address(), Count::File(count));
            Ok(Contender { name: "sub", server, load })
        },
    )
}

/// The time from a message that exhausts a burst to its DELAY_UNTIL, beside a bare relay.
fn latency(frame: Frame<'_>, peers: &Peers, messages: u64) -> Result<(), Failure> {
    frame.run(
        |program| {
            // One message is the whole burst.
            let server = program.serve(&config("1/s burst 1", "smockron"))?;
            let load = Pings::new(peers, server.door("smockron")?, messages);
            Ok(Contender::ours(server, load))
        },
        &["relay"],
        |name, _| {
            let server = Server::start(peers.command([name]))?;
            let load = Pings::new(peers, server.door(name)?, messages);
            Ok(Contender { name, server, load })
        },
    )
}

/// Our master with this limit for each identifier, and the door that tells how many have come.
fn config(limit: &str, algorithm: &str) -> String {
    format!(
        "[[rule]]\nmatch = \"bench *\"\nlimit = {limit:?}\nalgorithm = {algorithm:?}\n\
         [smockron]\naccounting = \"tcp://127.0.0.1:0\"\ncontrol = \"tcp://127.0.0.1:0\"\n\
         [http]\nlisten = \"127.0.0.1:0\"\n"
    )
}

impl Args {
    fn load<'a>(&self, peers: &'a Peers, master: SocketAddr, count: Count) -> SmockronLoad<'a> {
        let (publishers, messages, ids) = (self.publishers, self.messages, self.ids);
        SmockronLoad { peers, master, count, publishers, messages, ids }
    }
}
