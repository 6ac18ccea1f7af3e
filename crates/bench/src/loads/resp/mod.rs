//! `tidegate-bench resp`: load on the RESP door, alone or in turns with redis-server.

mod speech;

use std::path::PathBuf;

use anyhow::Context as _;
use clap::ValueEnum;

use self::speech::Speech;
use crate::failure::Failure;
use crate::frame::Contender;
use crate::frame::flags::{Programs, Report, Running};
use crate::servers::{Program, Server};
use crate::stream::{Flags, StreamLoad};

/// The arguments of `tidegate-bench resp`.
#[derive(Debug, clap::Args)]
#[command(mut_arg("pipeline", |pipeline| pipeline.default_value("64")))]
#[command(mut_arg("keys", |keys| keys.default_value("1000000")))]
pub(crate) struct Args {
    #[command(flatten)]
    programs: Programs,
    #[command(flatten)]
    running: Running,
    /// What our server is asked. Every key is used once first.
    #[arg(long, value_enum, default_value_t = Speech::Throttle)]
    request: Speech,
    #[command(flatten)]
    stream: Flags,
    /// Compare with a peer: the same keys on both, in turns.
    #[arg(long, value_enum)]
    peer: Option<Peer>,
    /// Compare with redis-cell, too: the file of the module for redis-server, which is asked to
    /// CL.THROTTLE the same keys.
    #[arg(long, value_name = "PATH", conflicts_with = "address")]
    module: Option<PathBuf>,
    #[command(flatten)]
    report: Report,
}

/// A server to measure beside ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Peer {
    /// redis-server, which is asked to INCR the same keys.
    Redis,
    /// redis-server with the module of `--module`.
    #[value(skip)]
    Cell,
}

/// Runs the load once, or the comparison.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let frame = args.running.frame("resp", "request", &args.programs, &args.report)?;
    let cell = args.module.as_ref().map(|_| Peer::Cell);
    let peers: Vec<_> = args.peer.into_iter().chain(cell).collect();
    frame.run(|program| args.ours(program), &peers, |peer, _| args.contender(peer))
}

impl Args {
    /// What our server is started with: room for every key that is used.
    fn config(&self) -> String {
        let keys = self.stream.keys;
        format!(
            "[memory]\nmax_keys = {keys}\nmax_records = {keys}\n[resp]\nlisten = \"127.0.0.1:0\"\n"
        )
    }

    fn ours(&self, program: &Program) -> Result<Contender<StreamLoad<Speech>>, Failure> {
        self.start("tidegate", program.serve(&self.config())?, self.request)
    }

    fn contender(&self, peer: Peer) -> Result<Contender<StreamLoad<Speech>>, Failure> {
        match peer {
            Peer::Redis => self.start("redis", Server::redis(None)?, Speech::Incr),
            Peer::Cell => {
                let server = Server::redis(self.module.as_deref())?;
                self.start("redis-cell", server, Speech::Throttle)
            }
        }
    }

    /// The load on a server that has seen every key.
    fn start(
        &self,
        name: &'static str,
        server: Server,
        speech: Speech,
    ) -> Result<Contender<StreamLoad<Speech>>, Failure> {
        let load = self.stream.load(server.address(), speech);
        load.every_key_once(speech).with_context(|| format!("cannot fill {name}"))?;
        Ok(Contender { name, server, load })
    }
}
