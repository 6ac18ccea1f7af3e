//! `tidegate-bench grpc`: calls of Envoy's rate limit service at the gRPC door, alone or in turns
//! with a service that answers OK without deciding, or with Limitador.
//!
//! - [`http2`]: the calls as bytes
//! - [`load`]: connections and their streams

mod http2;
mod load;

use std::net::SocketAddr;

use anyhow::Context as _;
use clap::ValueEnum;

use self::load::CallLoad;
use crate::failure::Failure;
use crate::frame::flags::{Length, Programs, Report, Running};
use crate::frame::keys::Choice;
use crate::frame::tally::cores;
use crate::frame::{Contender, Figure};
use crate::servers::{Program, Server};

/// The arguments of `tidegate-bench grpc`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    programs: Programs,
    #[command(flatten)]
    running: Running,
    /// Connections, which stay open for the whole run.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    connections: u32,
    /// Threads that the connections are spread over (default: one for each core).
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: Option<u32>,
    /// Calls that each connection has under way; when one is answered the next begins.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1000))]
    streams: u32,
    /// Different descriptors in play, each used as often as any other.
    #[arg(
        long,
        default_value_t = 1_000_000,
        value_parser = clap::value_parser!(u64).range(1..=1_000_000_000)
    )]
    keys: u64,
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
    /// tonic on tokio, as our door is, which reads each call and answers OK.
    Tonic,
    /// Limitador, the library, in the same service.
    #[cfg(feature = "limitador")]
    Limitador,
}

/// Runs the load once, or the comparison.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let mut frame = args.running.frame("grpc", "call", &args.programs, &args.report)?;
    frame.figures = &[Figure::Cpu, Figure::P999];
    frame.run(
        |program| args.ours(program),
        &args.peer,
        |peer, _| match peer {
            Peer::Tonic => {
                let server = Server::peer(&["tonic"])?;
                let load = args.load(server.address());
                Ok(Contender { name: "tonic", server, load })
            }
            #[cfg(feature = "limitador")]
            Peer::Limitador => {
                let server = Server::peer(&["limitador", &args.keys.to_string()])?;
                let load = args.load(server.address());
                load.every_key_once().context("cannot ask for every key")?;
                Ok(Contender { name: "limitador", server, load })
            }
        },
    )
}

impl Args {
    /// What our server is started with: a limit that is looked at and never reached, and room for
    /// every key.
    fn config(&self) -> String {
        let keys = self.keys;
        format!(
            "[[rule]]\nname = 'bench'\nmatch = 'bench *'\nlimit = '1000000 per minute'\n\
             [memory]\nmax_keys = {keys}\n[grpc]\nlisten = '127.0.0.1:0'\n"
        )
    }

    /// Our server, which has seen every key.
    fn ours(&self, program: &Program) -> Result<Contender<CallLoad>, Failure> {
        let server = program.serve(&self.config())?;
        let load = self.load(server.address());
        load.every_key_once().context("cannot ask for every key")?;
        Ok(Contender::ours(server, load))
    }

    fn load(&self, server: SocketAddr) -> CallLoad {
        let connections = self.connections as usize;
        CallLoad {
            server,
            connections,
            threads: self.threads.map_or(cores(), |n| n as usize).min(connections),
            streams: self.streams as usize,
            keys: self.keys,
            choice: Choice::Skewed(0.0),
            until: self.length.until(),
        }
    }
}
