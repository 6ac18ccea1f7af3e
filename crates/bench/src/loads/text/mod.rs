//! `tidegate-bench text`: load on the text door, alone or in turns with a plain echo server.
//!
//! - [`load`]: clients spread over threads, and when they send
//! - [`client`]: one client of them, and what it waits for
//! - [`speech`]: requests and replies
//! - [`datagrams`]: many of them in one system call

mod client;
mod datagrams;
pub(crate) mod load;
mod speech;

use std::net::SocketAddr;

use anyhow::Context as _;
use clap::ValueEnum;
use clap::builder::RangedU64ValueParser;
use tidegate_core::Nanos;
use tidegate_core::time::MILLISECOND;

use self::datagrams::BATCH;
use self::load::{Pace, TextLoad};
use crate::failure::Failure;
use crate::frame::Contender;
use crate::frame::flags::{Length, Programs, Report, Running};
use crate::frame::keys::Choice;
use crate::frame::tally::cores;
use crate::servers::Server;

/// A reply that has not come after this long will not come.
const LOST_AFTER: Nanos = 500 * MILLISECOND;

/// The arguments of `tidegate-bench text`.
#[derive(Debug, clap::Args)]
#[command(mut_arg("seconds", |seconds| seconds.default_value("5")))]
pub(crate) struct Args {
    #[command(flatten)]
    programs: Programs,
    #[command(flatten)]
    running: Running,
    /// Client sockets.
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=4096))]
    clients: u32,
    /// Threads that the clients are spread over (default: one for each core). With too few the
    /// server idles, wakes for a few datagrams at a time, and waking is what is measured.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: Option<u32>,
    /// Closed loop: requests that each client has outstanding (default: 1, or the burst).
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4096), conflicts_with = "rate")]
    window: Option<u32>,
    /// Requests that a client sends at once.
    #[arg(long, default_value_t = 1, value_parser = at_once())]
    burst: u32,
    /// Send a burst as the kernel can best carry it, joined (UDP_SEGMENT), and take replies joined
    /// (UDP_GRO). Between machines the kernel may join them; on one machine only a client can.
    #[arg(long)]
    join: bool,
    /// Open loop: requests per second from all clients together, answered or not.
    #[arg(long, value_name = "PER_SECOND", value_parser = clap::value_parser!(u64).range(1..))]
    rate: Option<u64>,
    /// Different keys in play.
    #[arg(long, default_value_t = 1_000_000, value_parser = numbered())]
    keys: u64,
    /// Zipf exponent of how unevenly keys are used; 0 is evenly.
    #[arg(long, default_value_t = 0.0)]
    skew: f64,
    #[command(flatten)]
    length: Length,
    /// Compare with a peer: the same load on both, in turns.
    #[arg(long, value_enum, conflicts_with = "rate")]
    peer: Option<Peer>,
    #[command(flatten)]
    report: Report,
}

/// A server to measure beside ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Peer {
    /// A plain recvmmsg/sendmmsg echo server.
    Echo,
}

/// One system call sends this many.
fn at_once() -> RangedU64ValueParser<u32> {
    RangedU64ValueParser::new().range(1..=BATCH as u64)
}

/// Keys are written as IPv4 addresses.
fn numbered() -> RangedU64ValueParser<u64> {
    RangedU64ValueParser::new().range(1..=1 << 32)
}

/// What our server is started with: the limit of the protocol's own example, for every key.
const TEXT_CONFIG: &str = r#"
[[rule]]
match = "ws ip=*"
limit = "22 per 20s"
algorithm = "average"
strict = true

[text]
listen = "127.0.0.1:0"
"#;

/// Runs the load once, or the comparison.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let frame = args.running.frame("text", "request", &args.programs, &args.report)?;
    frame.run(
        |program| {
            let server = program.serve(TEXT_CONFIG)?;
            let load = args.load(server.address())?;
            if args.running.address.is_none() {
                load.touch_every_key().context("cannot send")?;
            }
            Ok(Contender::ours(server, load))
        },
        args.peer.as_slice(),
        |Peer::Echo, _| {
            let server = Server::peer(&["udp-echo"])?;
            let load = args.load(server.address())?;
            Ok(Contender { name: "echo", server, load })
        },
    )
}

impl Args {
    fn load(&self, server: SocketAddr) -> Result<TextLoad, Failure> {
        if !(0.0..=10.0).contains(&self.skew) {
            return Err(Failure::Usage("--skew must lie between 0 and 10".to_owned()));
        }
        let window = self.window.unwrap_or(self.burst);
        if window < self.burst {
            let burst = self.burst;
            let small = format!("--window {window} is too small for --burst {burst}");
            return Err(Failure::Usage(small));
        }
        Ok(TextLoad {
            server,
            clients: self.clients as usize,
            threads: self.threads.map_or(cores(), |n| n as usize).min(self.clients as usize),
            burst: self.burst as usize,
            join: self.join,
            pace: match self.rate {
                Some(per_second) => Pace::Open { per_second },
                None => Pace::Closed { window: window as usize },
            },
            keys: self.keys,
            choice: Choice::Skewed(self.skew),
            until: self.length.until(),
            lost_after: LOST_AFTER,
        })
    }
}
