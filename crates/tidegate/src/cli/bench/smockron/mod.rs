//! `tidegate bench smockron`: accounting messages for the master, alone or in turns with a libzmq
//! program that only receives; or how long a DELAY_UNTIL takes, beside a bare relay.
//!
//! - [`peers`]: the libzmq programs, compiled from `peer.c` for the run
//! - [`load`]: publishers, and how many of their messages have come
//! - [`latency`]: one message at a time, and its answer

mod latency;
mod load;
mod peers;

use anyhow::Context as _;
use clap::ValueEnum;
use tidegate_core::time::SECOND;

use self::load::{Count, Load};
use self::peers::Peers;
use super::super::Failure;
use super::super::output::print;
use super::compare::{self, Contender};
use super::flags::Telling;
use super::subject::Subject;
use super::tally::Drive as _;
use super::{measure, show};

/// The arguments of `tidegate bench smockron`.
#[derive(Debug, clap::Args)]
#[command(mut_arg("rounds", |rounds| rounds.default_value("9")))]
pub(super) struct Args {
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
    telling: Telling,
}

/// A program to measure beside ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Peer {
    /// A libzmq SUB loop in C that receives and does nothing with it.
    Sub,
}

/// Runs the load once, or a comparison.
pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let peers = Peers::compile()?;
    if let Some(messages) = args.latency {
        return latency::run(&peers, messages, args.telling.rounds, args.telling.json);
    }
    let ours = args.ours(&peers)?;
    let Some(Peer::Sub) = args.peer else {
        let run = measure("smockron", &ours.subject, &ours.load)?;
        return show(&run, &ours.load.title(), args.telling.json);
    };
    let sub = args.sub(&peers)?;
    let medians =
        compare::medians(&ours, &[sub], "message", args.telling.rounds, args.telling.json)?;
    if let [ours, sub] = medians[..]
        && !args.telling.json
    {
        let per_second = |cost: f64| SECOND as f64 / cost;
        let page = format!(
            "messages per CPU second: tidegate {:.0}, sub {:.0}; {:.2}x\n",
            per_second(ours),
            per_second(sub),
            sub / ours
        );
        print(page.as_bytes())?;
    }
    Ok(())
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
    fn ours<'a>(&self, peers: &'a Peers) -> anyhow::Result<Contender<Load<'a>>> {
        let subject = Subject::ours(&config(&self.limit, &self.algorithm))?;
        let [accounting, _control, http] = *subject.addresses() else {
            anyhow::bail!("the master told other addresses than were expected");
        };
        let load = self.load(peers, accounting, Count::Metrics(http));
        // Every identifier once, so that the rounds meet no strangers.
        Load { messages: self.ids, ..load.clone() }.drive(&|_, _| ()).context("cannot send")?;
        Ok(Contender { name: "tidegate", subject, load })
    }

    fn sub<'a>(&self, peers: &'a Peers) -> anyhow::Result<Contender<Load<'a>>> {
        let count = peers.file("count");
        let subject = Subject::start(peers.command(["sub".as_ref(), count.as_os_str()]))?;
        let load = self.load(peers, subject.address(), Count::File(count));
        Ok(Contender { name: "sub", subject, load })
    }

    fn load<'a>(&self, peers: &'a Peers, master: std::net::SocketAddr, count: Count) -> Load<'a> {
        let (publishers, messages, ids) = (self.publishers, self.messages, self.ids);
        Load { peers, master, count, publishers, messages, ids }
    }
}
