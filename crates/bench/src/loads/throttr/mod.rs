//! `tidegate-bench throttr`: load on the Throttr door, alone or in turns with peers.
//!
//! - [`speech`]: the bytes that are sent and what comes back, for ours and for each peer
//! - [`growth`], [`expiry`]: what many new records cost, and what others feel when many expire

mod expiry;
mod growth;
mod speech;

use std::net::SocketAddr;

use anyhow::Context as _;
use clap::ValueEnum;
use tidegate_wire::throttr::ValueSize;

use self::speech::{Asked, Speech};
use crate::failure::Failure;
use crate::frame::Contender;
use crate::frame::flags::{Programs, Report, Running};
use crate::frame::tally::Until;
use crate::servers::{Program, Server};
use crate::stream::{Flags, StreamLoad};

/// The arguments of `tidegate-bench throttr`.
#[derive(Debug, clap::Args)]
#[command(mut_arg("pipeline", |pipeline| pipeline.default_value("128")))]
#[command(mut_arg("keys", |keys| keys.default_value("1000000")))]
pub(crate) struct Args {
    #[command(flatten)]
    programs: Programs,
    #[command(flatten)]
    running: Running,
    /// What is asked. Counters are made first, except for inserts, which use new keys only, at most
    /// --keys in a run: of more than a million, without a peer, each million is told, and may take
    /// --seconds.
    #[arg(long, value_enum, default_value_t = Asked::Query)]
    request: Asked,
    /// The door's value size in bits: 8, 16, 32 or 64.
    #[arg(long, default_value = "16", value_name = "BITS", value_parser = value_size)]
    value_size: ValueSize,
    #[command(flatten)]
    stream: Flags,
    /// Also make so many counters that expire in the same second, and tell how long requests take
    /// before that and from then on.
    #[arg(
        long,
        value_name = "RECORDS",
        conflicts_with_all = ["peer", "baseline"],
        value_parser = clap::value_parser!(u64).range(1..=10_000_000)
    )]
    expire: Option<u64>,
    /// Compare with a peer: the same load on both, in turns. May be given several times.
    #[arg(long, value_enum)]
    peer: Vec<Peer>,
    #[command(flatten)]
    report: Report,
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
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let frame = args.running.frame("throttr", "request", &args.programs, &args.report)?;
    let inserts = args.request == Asked::Insert;
    if let Some(count) = args.expire {
        let (life_s, size) = (expiry::life_s(count, args.stream.length.seconds), args.value_size);
        if inserts || life_s > size.max() {
            let unfit = "--expire goes with short runs of query, update or consume";
            return Err(Failure::Usage(unfit.to_owned()));
        }
        let ours = args.ours(&frame.program)?;
        let speech = Speech::Throttr { asked: Asked::Brief(life_s), size };
        let doomed = StreamLoad::once(ours.server.address(), speech, args.stream.keys, count);
        return expiry::run(&frame, &ours, &doomed, life_s, size);
    }
    if args.is_alone() && inserts && args.until().count > growth::PORTION {
        return growth::run(&frame, args.ours(&frame.program)?);
    }
    frame.run(|program| args.ours(program), &args.peer, |peer, _| args.contender(peer))
}

impl Args {
    fn is_alone(&self) -> bool {
        self.peer.is_empty() && !self.programs.has_baseline()
    }

    /// What our server is started with: room for every key that is used.
    fn config(&self) -> String {
        let again = self.request == Asked::Insert && !self.is_alone();
        let runs = if again { u64::from(self.report.rounds) } else { 1 };
        format!(
            "[memory]\nmax_records = {}\n[[throttr]]\nlisten = \"127.0.0.1:0\"\nvalue_size = {}\n",
            self.stream.keys * runs + self.expire.unwrap_or(0),
            self.value_size.bytes() * 8
        )
    }

    /// Our server, with the counters that the load will use.
    fn ours(&self, program: &Program) -> Result<Contender<StreamLoad<Speech>>, Failure> {
        let server = program.serve(&self.config())?;
        let size = self.value_size;
        let load = self.load(server.address(), Speech::Throttr { asked: self.request, size });
        if self.request != Asked::Insert {
            let consume = self.request == Asked::Consume;
            let asked = if consume { Asked::Consume } else { Asked::Insert };
            let making = Speech::Throttr { asked, size };
            load.every_key_once(making).context("cannot make the counters")?;
        }
        Ok(Contender::ours(server, load))
    }

    fn until(&self) -> Until {
        let until = self.stream.length.until();
        let most = if self.request == Asked::Insert { self.stream.keys } else { u64::MAX };
        Until { count: until.count.min(most), ..until }
    }

    fn load(&self, server: SocketAddr, speech: Speech) -> StreamLoad<Speech> {
        let new_keys = (self.request == Asked::Insert).then(Default::default);
        StreamLoad { new_keys, until: self.until(), ..self.stream.load(server, speech) }
    }

    fn contender(&self, peer: Peer) -> Result<Contender<StreamLoad<Speech>>, Failure> {
        Ok(match peer {
            Peer::Echo => {
                let server = Server::peer(&["tcp-echo"])?;
                let speech = Speech::echoed(self.request, self.value_size);
                let load = self.load(server.address(), speech);
                Contender { name: "echo", server, load }
            }
            Peer::Redis => {
                let server = Server::redis(None)?;
                let load = self.load(server.address(), Speech::Redis);
                if self.request != Asked::Insert {
                    load.every_key_once(Speech::Redis).context("cannot fill redis-server")?;
                }
                Contender { name: "redis", server, load }
            }
        })
    }
}
