//! `tidegate bench proxy`: the proxy between a load and an nginx that answers 204, alone or in
//! turns with peers.
//!
//! - [`speech`]: the requests and what comes back
//! - [`crowd`]: what a waiting request costs in memory

mod crowd;
mod speech;

use std::net::SocketAddr;

use anyhow::Context as _;
use clap::ValueEnum;

use self::speech::Speech;
use super::super::Failure;
use super::compare::{self, Contender};
use super::flags::{Length, Telling};
use super::stream::Load;
use super::subject::Subject;
use super::{measure, show};
use crate::doors::text::loops;

/// The arguments of `tidegate bench proxy`.
#[derive(Debug, clap::Args)]
#[command(mut_arg("seconds", |seconds| seconds.default_value("1")))]
#[command(mut_arg("rounds", |rounds| rounds.default_value("15")))]
pub(super) struct Args {
    /// Connections, kept alive.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    connections: u32,
    /// Threads that the connections are spread over (default: one for each core).
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: Option<u32>,
    /// Different paths in play, each used as often as any other.
    #[arg(
        long,
        default_value_t = 100_000,
        value_parser = clap::value_parser!(u64).range(1..=100_000_000)
    )]
    keys: u64,
    #[command(flatten)]
    length: Length,
    /// Compare with a peer: the same load on both, in turns. May be given several times.
    #[arg(long, value_enum)]
    peer: Vec<Peer>,
    /// Instead of a load: hold this many requests back and tell what memory they take.
    #[arg(
        long,
        value_name = "N",
        conflicts_with_all = ["peer", "count"],
        value_parser = clap::value_parser!(u32).range(1..=10_000)
    )]
    waiting: Option<u32>,
    #[command(flatten)]
    telling: Telling,
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
pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let upstream = Subject::nginx(|address| format!("server {{ listen {address}; return 204; }}"))?;
    if let Some(waiting) = args.waiting {
        return crowd::run(upstream.address(), waiting, args.telling.json);
    }
    // More than any path is asked for: the limit is looked at and never reached.
    let subject = Subject::ours(&config(upstream.address(), "1000000 per minute"))?;
    let load = args.load(subject.address());
    load.every_key_once(Speech).context("cannot ask for every path")?;
    if args.peer.is_empty() {
        let run = measure("proxy", &subject, &load)?;
        return show(&run, &load.title(), args.telling.json);
    }
    let ours = Contender { name: "tidegate", subject, load };
    let peers = compare::each_once(&args.peer, |peer| args.contender(peer, upstream.address()))?;
    compare::run(&ours, &peers, "request", args.telling.rounds, args.telling.json)
}

/// Our server as a proxy with this limit for each path, everything else as it is by default.
fn config(upstream: SocketAddr, limit: &str) -> String {
    format!(
        "[[proxy]]\nname = \"bench\"\nlisten = \"127.0.0.1:0\"\n\
         upstream = \"http://{upstream}\"\nlimit = \"{limit}\"\n"
    )
}

/// nginx as a proxy: a limit for each path that is looked at and never reached.
fn nginx(address: SocketAddr, upstream: SocketAddr) -> String {
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
    fn load(&self, server: SocketAddr) -> Load<Speech> {
        let connections = self.connections as usize;
        Load {
            server,
            speech: Speech,
            connections,
            threads: self.threads.map_or(loops(), |n| n as usize).min(connections),
            pipeline: 1,
            keys: self.keys,
            new_keys: None,
            until: self.length.until(),
        }
    }

    fn contender(
        &self,
        peer: Peer,
        upstream: SocketAddr,
    ) -> Result<Contender<Load<Speech>>, Failure> {
        let (name, subject) = match peer {
            Peer::Nginx => ("nginx", Subject::nginx(|address| nginx(address, upstream))?),
            Peer::Unlimited => ("unlimited", Subject::ours(&config(upstream, "none"))?),
        };
        let load = self.load(subject.address());
        load.every_key_once(Speech).context("cannot ask for every path")?;
        Ok(Contender { name, subject, load })
    }
}
