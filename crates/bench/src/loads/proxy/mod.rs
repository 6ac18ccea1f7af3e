//! `tidegate-bench proxy`: the proxy between a load and an nginx that answers 204, alone or in
//! turns with peers.
//!
//! - [`speech`]: the requests
//! - [`crowd`]: what a waiting request costs in memory

mod crowd;
mod speech;

use std::net::SocketAddr;

use anyhow::Context as _;
use clap::ValueEnum;

use self::speech::Get;
use crate::failure::Failure;
use crate::frame::Contender;
use crate::frame::flags::{Programs, Report};
use crate::servers::Server;
use crate::stream::{Flags, StreamLoad};

/// The arguments of `tidegate-bench proxy`.
#[derive(Debug, clap::Args)]
#[command(mut_arg("connections", |connections| connections.default_value("64")))]
#[command(mut_arg("seconds", |seconds| seconds.default_value("1")))]
#[command(mut_arg("rounds", |rounds| rounds.default_value("15")))]
pub(crate) struct Args {
    #[command(flatten)]
    programs: Programs,
    #[command(flatten)]
    stream: Flags,
    /// Compare with a peer: the same load on both, in turns. May be given several times.
    #[arg(long, value_enum)]
    peer: Vec<Peer>,
    /// Instead of a load: hold this many requests back and tell what memory they take.
    #[arg(
        long,
        value_name = "N",
        conflicts_with_all = ["peer", "baseline", "count"],
        value_parser = clap::value_parser!(u32).range(1..=10_000)
    )]
    waiting: Option<u32>,
    #[command(flatten)]
    report: Report,
}

/// A server to measure beside ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Peer {
    /// nginx with one worker: proxy_pass, connections kept to the upstream, limit_req by path.
    Nginx,
    /// The same proxy of ours, with `limit = "none"`.
    Unlimited,
}

/// Runs the load once, or the comparison.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let frame = args.programs.frame("proxy", "request", &args.report)?;
    let nginx = Server::nginx(|address| format!("server {{ listen {address}; return 204; }}"))?;
    let upstream = nginx.address();
    if let Some(waiting) = args.waiting {
        return crowd::run(&frame, upstream, waiting);
    }
    frame.run(
        |program| {
            // More than any path is asked for: the limit is looked at and never reached.
            let server = program.serve(&config(upstream, "1000000 per minute"))?;
            let load = args.load(server.address())?;
            Ok(Contender::ours(server, load))
        },
        &args.peer,
        |peer, _| {
            let (name, server) = match peer {
                Peer::Nginx => {
                    ("nginx", Server::nginx(|address| limited_nginx(address, upstream))?)
                }
                Peer::Unlimited => ("unlimited", frame.program.serve(&config(upstream, "none"))?),
            };
            let load = args.load(server.address())?;
            Ok(Contender { name, server, load })
        },
    )
}

/// Our server as a proxy with this limit for each path, everything else as it is by default.
fn config(upstream: SocketAddr, limit: &str) -> String {
    format!(
        "[[proxy]]\nname = \"bench\"\nlisten = \"127.0.0.1:0\"\n\
         upstream = \"http://{upstream}\"\nlimit = \"{limit}\"\n"
    )
}

/// nginx as a proxy: a limit for each path that is looked at and never reached.
fn limited_nginx(address: SocketAddr, upstream: SocketAddr) -> String {
    format!(
        "limit_req_zone $uri zone=paths:64m rate=1000000r/m;\n\
         upstream behind {{ server {upstream}; keepalive 128; keepalive_requests 1000000000; }}\n\
         server {{ listen {address}; location / {{\n\
         limit_req zone=paths burst=1000000 nodelay;\nproxy_pass http://behind;\n\
         proxy_http_version 1.1;\nproxy_set_header Connection \"\";\n\
         proxy_set_header Host $host;\n\
         proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;\n}} }}"
    )
}

impl Args {
    /// The load on a server that has seen every path.
    fn load(&self, server: SocketAddr) -> anyhow::Result<StreamLoad<Get>> {
        let load = self.stream.load(server, Get);
        load.every_key_once(Get).context("cannot ask for every path")?;
        Ok(load)
    }
}
