//! `tidegate bench throttr`: load on the Throttr door, alone or in turns with peers.
//!
//! - [`speech`]: the bytes that are sent and what comes back, for ours and for each peer
//! - [`echo`]: a peer, the floor of what any such server costs
//! - [`growth`], [`expiry`]: what many new records cost, and what others feel when many expire

pub(super) mod echo;
mod expiry;
mod growth;
mod speech;

use std::net::SocketAddr;

use anyhow::Context as _;
use clap::ValueEnum;
use tidegate_wire::throttr::ValueSize;

use self::speech::{Asked, Speech};
use super::super::Failure;
use super::compare::{self, Contender};
use super::flags::{Length, Running, Telling};
use super::stream::Load;
use super::subject::Subject;
use super::tally::Until;
use super::{measure, show};
use crate::doors::text::loops;

/// The arguments of `tidegate bench throttr`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    running: Running,
    /// What is asked. Counters are made first, except for inserts, which use new keys only: of
    /// more than a million, without a peer, each million is told, and may take --seconds.
    #[arg(long, value_enum, default_value_t = Asked::Query)]
    request: Asked,
    /// The door's value size in bits: 8, 16, 32 or 64.
    #[arg(long, default_value = "16", value_name = "BITS", value_parser = value_size)]
    value_size: ValueSize,
    /// Connections.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    connections: u32,
    /// Threads that the connections are spread over (default: one for each core).
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: Option<u32>,
    /// Requests that a connection sends at once; when all are answered it sends the next.
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pipeline: u32,
    /// Different keys in play, each used as often as any other; for inserts, the new keys of a run.
    #[arg(
        long,
        default_value_t = 1_000_000,
        value_parser = clap::value_parser!(u64).range(1..=1_000_000_000)
    )]
    keys: u64,
    #[command(flatten)]
    length: Length,
    /// Also make so many counters that expire in the same second, and tell how long requests take
    /// before that and from then on.
    #[arg(
        long,
        value_name = "RECORDS",
        conflicts_with = "peer",
        value_parser = clap::value_parser!(u64).range(1..=10_000_000)
    )]
    expire: Option<u64>,
    /// Compare with a peer: the same load on both, in turns. May be given several times.
    #[arg(long, value_enum, conflicts_with = "server")]
    peer: Vec<Peer>,
    #[command(flatten)]
    telling: Telling,
}

/// A server to measure beside ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Peer {
    /// A plain echo server, which is sent the same bytes.
    Echo,
    /// redis-server, which is asked to INCR the same keys.
    Redis,
}

fn value_size(bits: &str) -> Result<ValueSize, String> {
    let bits: u8 = bits.parse().map_err(|_| "not a number of bits".to_owned())?;
    ValueSize::try_from(bits).map_err(|unknown| unknown.to_string())
}

/// Runs the load once, or the comparison.
pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let subject = args.running.or_ours(&args.config())?;
    let mut load = args.load(subject.address(), args.ours());
    if args.request != Asked::Insert {
        load.every_key_once(args.making()).context("cannot make the counters")?;
    }
    if let Some(count) = args.expire {
        let (life_s, size) = (expiry::life_s(count, args.length.seconds), args.value_size);
        if args.request == Asked::Insert || life_s > size.max() {
            let unfit = "--expire goes with short runs of query, update or consume";
            return Err(Failure::Usage(unfit.to_owned()));
        }
        let speech = Speech::Throttr { asked: Asked::Brief(life_s), size };
        let doomed = Load::once(subject.address(), speech, args.keys, count);
        return expiry::run(&subject, &load, &doomed, life_s, size, args.telling.json);
    }
    if args.peer.is_empty() && args.request == Asked::Insert && load.until.count > growth::PORTION {
        return growth::run(&subject, &mut load, args.telling.json);
    }
    if args.peer.is_empty() {
        let run = measure("throttr", &subject, &load)?;
        return show(&run, &load.title(), args.telling.json);
    }
    let ours = Contender { name: "tidegate", subject, load };
    let peers = compare::each_once(&args.peer, |peer| args.contender(peer))?;
    compare::run(&ours, &peers, "request", args.telling.rounds, args.telling.json)
}

impl Args {
    /// What our server is started with: room for every key that is used.
    fn config(&self) -> String {
        let again = self.request == Asked::Insert && !self.peer.is_empty();
        let runs = if again { u64::from(self.telling.rounds) } else { 1 };
        format!(
            "[memory]\nmax_records = {}\n[[throttr]]\nlisten = \"127.0.0.1:0\"\nvalue_size = {}\n",
            self.keys * runs + self.expire.unwrap_or(0),
            self.value_size.bytes() * 8
        )
    }

    fn ours(&self) -> Speech {
        Speech::Throttr { asked: self.request, size: self.value_size }
    }

    /// The counters that the load will use.
    fn making(&self) -> Speech {
        let asked = if self.request == Asked::Consume { Asked::Consume } else { Asked::Insert };
        Speech::Throttr { asked, size: self.value_size }
    }

    fn load(&self, server: SocketAddr, speech: Speech) -> Load<Speech> {
        let connections = self.connections as usize;
        let insert = self.request == Asked::Insert;
        let most = if insert { self.keys } else { u64::MAX };
        let until = self.length.until();
        Load {
            server,
            speech,
            connections,
            threads: self.threads.map_or(loops(), |n| n as usize).min(connections),
            pipeline: self.pipeline as usize,
            keys: self.keys,
            new_keys: insert.then(Default::default),
            until: Until { count: until.count.min(most), ..until },
        }
    }

    fn contender(&self, peer: Peer) -> Result<Contender<Load<Speech>>, Failure> {
        Ok(match peer {
            Peer::Echo => {
                let subject = Subject::echo("echo-tcp")?;
                let speech = Speech::echoed(self.request, self.value_size);
                let load = self.load(subject.address(), speech);
                Contender { name: "echo", subject, load }
            }
            Peer::Redis => {
                let subject = Subject::redis()?;
                let load = self.load(subject.address(), Speech::Redis);
                if self.request != Asked::Insert {
                    load.every_key_once(Speech::Redis).context("cannot fill redis-server")?;
                }
                Contender { name: "redis", subject, load }
            }
        })
    }
}
