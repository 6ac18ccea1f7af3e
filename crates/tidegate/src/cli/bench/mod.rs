//! `tidegate bench`: the load generators, and the comparison with peers.
//!
//! - [`load`], [`client`], [`echo`]: the text door's load, one client of it, and its peer
//! - [`stream`]: load on doors that answer requests on a stream
//! - [`throttr`], [`jarl`], [`proxy`], [`smockron`]: the loads of those doors, and their peers
//! - [`store`]: decisions on counts in Redis and in etcd, beside what these do by themselves
//! - [`flags`]: the flags that several loads have
//! - [`keys`]: which keys are asked for, and how unevenly
//! - [`subject`]: the server under load, started here or already running, and its CPU time
//! - [`tally`]: what came of a load
//! - [`compare`]: ours and the peers, in turns
//! - [`report`]: what is printed
//!
//! Benchmarks are not tests: nothing here passes or fails.

mod client;
mod compare;
mod echo;
mod flags;
mod jarl;
mod keys;
mod load;
mod proxy;
mod report;
mod smockron;
mod store;
mod stream;
mod subject;
mod tally;
mod throttr;

use std::io::{self, IsTerminal, Write};
use std::net::SocketAddr;

use anyhow::{Context as _, bail};
use clap::builder::RangedU64ValueParser;
use clap::{Subcommand, ValueEnum};
use tidegate_core::time::SECOND;

use self::compare::Contender;
use self::flags::{Length, Running, Telling};
use self::jarl::plain::Close;
use self::keys::Choice;
use self::load::{Load, Pace};
use self::subject::Subject;
use self::tally::{Drive, Tally};
use super::output::print;
use super::{Code, Failure, OK};
use crate::doors::text::loops;
use crate::doors::text::mmsg::BATCH;

/// The arguments of `tidegate bench`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// The text door (UDP).
    Text(Box<Text>),
    /// The Throttr door (TCP).
    Throttr(Box<throttr::Args>),
    /// The JARL door (TCP).
    Jarl(Box<jarl::Args>),
    /// The proxy (HTTP), between the load and an nginx that is started for the run.
    Proxy(Box<proxy::Args>),
    /// The Smockron master (ZeroMQ), with libzmq programs that are compiled for the run.
    Smockron(Box<smockron::Args>),
    /// Redis and etcd as stores, which are started for the run.
    Store(Box<store::Args>),
    /// The peer of the comparison: sends every datagram back as it came.
    #[command(hide = true)]
    Echo(Echo),
    /// A peer of the Throttr door: sends every byte back as it came.
    #[command(hide = true)]
    EchoTcp(Echo),
    /// A peer of the JARL door: accepts, writes and closes the same way.
    #[command(hide = true)]
    PlainTcp(Echo),
    /// A peer of the JARL door: accepts, writes and closes at once.
    #[command(hide = true)]
    AbruptTcp(Echo),
}

/// The arguments of the peers.
#[derive(Debug, clap::Args)]
struct Echo {
    /// Where to listen.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
}

/// A server to measure beside ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Peer {
    /// A plain recvmmsg/sendmmsg echo server.
    Echo,
}

/// The arguments of `tidegate bench text`.
#[derive(Debug, clap::Args)]
#[command(mut_arg("seconds", |seconds| seconds.default_value("5")))]
struct Text {
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
    #[arg(long, value_enum, conflicts_with_all = ["server", "rate"])]
    peer: Option<Peer>,
    #[command(flatten)]
    telling: Telling,
}

/// One system call sends this many.
fn at_once() -> RangedU64ValueParser<u32> {
    RangedU64ValueParser::new().range(1..=BATCH as u64)
}

/// Keys are written as IPv4 addresses.
fn numbered() -> RangedU64ValueParser<u64> {
    RangedU64ValueParser::new().range(1..=1 << 32)
}

impl Text {
    fn load(&self, server: SocketAddr) -> Result<Load, Failure> {
        if !(0.0..=10.0).contains(&self.skew) {
            return Err(Failure::Usage("--skew must lie between 0 and 10".to_owned()));
        }
        let window = self.window.unwrap_or(self.burst);
        if window < self.burst {
            let burst = self.burst;
            let small = format!("--window {window} is too small for --burst {burst}");
            return Err(Failure::Usage(small));
        }
        Ok(Load {
            server,
            clients: self.clients as usize,
            threads: self.threads.map_or(loops(), |n| n as usize).min(self.clients as usize),
            burst: self.burst as usize,
            join: self.join,
            pace: match self.rate {
                Some(per_second) => Pace::Open { per_second },
                None => Pace::Closed { window: window as usize },
            },
            keys: self.keys,
            choice: Choice::Skewed(self.skew),
            until: self.length.until(),
        })
    }
}

pub(super) fn run(args: &Args) -> Result<Code, Failure> {
    match &args.what {
        What::Echo(echo) => echo::serve(echo.listen).context("cannot listen")?,
        What::EchoTcp(echo) => throttr::echo::serve(echo.listen).context("cannot listen")?,
        What::Text(text) => match text.peer {
            Some(Peer::Echo) => beside_echo(text)?,
            None => one(text)?,
        },
        What::Throttr(args) => throttr::run(args)?,
        What::Jarl(args) => jarl::run(args)?,
        What::PlainTcp(peer) => serve_plain(peer, Close::Careful)?,
        What::AbruptTcp(peer) => serve_plain(peer, Close::Abrupt)?,
        What::Proxy(args) => proxy::run(args)?,
        What::Smockron(args) => smockron::run(args)?,
        What::Store(args) => store::run(args)?,
    }
    Ok(OK)
}

fn serve_plain(peer: &Echo, close: Close) -> anyhow::Result<()> {
    jarl::plain::serve(peer.listen, close).context("cannot listen")
}

/// What our server is started with: the seed's rule for the keys that the load asks for.
const TEXT_CONFIG: &str = r#"
[[rule]]
match = "ws ip=*"
limit = "22 per 20s"
algorithm = "average"
strict = true

[text]
listen = "127.0.0.1:0"
"#;

/// The text door and a plain echo server, in turns.
fn beside_echo(text: &Text) -> Result<(), Failure> {
    let (ours, echo) = (Subject::ours(TEXT_CONFIG)?, Subject::echo("echo")?);
    let (our_load, echo_load) = (text.load(ours.address())?, text.load(echo.address())?);
    our_load.touch_every_key().context("cannot send")?;
    let ours = Contender { name: "tidegate", subject: ours, load: our_load };
    let echo = Contender { name: "echo", subject: echo, load: echo_load };
    compare::run(&ours, &[echo], "datagram", text.telling.rounds, text.telling.json)
}

/// The text door under load, once.
fn one(text: &Text) -> Result<(), Failure> {
    let subject = text.running.or_ours(TEXT_CONFIG)?;
    let load = text.load(subject.address())?;
    if text.running.server.is_none() {
        load.touch_every_key().context("cannot send")?;
    }
    let run = measure("text", &subject, &load)?;
    show(&run, &load.title(), text.telling.json)
}

/// Prints one run.
fn show(run: &Run, title: &str, json: bool) -> Result<(), Failure> {
    let page = if json { format!("{:#}\n", report::json(run)) } else { report::human(run, title) };
    print(page.as_bytes())?;
    Ok(())
}

/// What one run showed.
struct Run {
    tally: Tally,
    /// Nanoseconds that the server was on a CPU, where its process is known.
    cpu: Option<u64>,
}

impl Run {
    /// The server's CPU nanoseconds for each request that it answered.
    fn cpu_per_request(&self) -> Option<f64> {
        let answered = self.tally.answered;
        self.cpu.filter(|_| answered > 0).map(|cpu| cpu as f64 / answered as f64)
    }
}

fn measure(name: &str, subject: &Subject, load: &impl Drive) -> anyhow::Result<Run> {
    let before = subject.cpu();
    let terminal = io::stderr().is_terminal();
    let tally = load.drive(&|answered, elapsed| {
        if terminal {
            let rate = answered as f64 / (elapsed.max(1) as f64 / SECOND as f64);
            eprint!("\r{name}: {answered} answered, {rate:.0} per second ");
            let _ = io::stderr().flush();
        }
    });
    if terminal {
        eprint!("\r\x1b[K");
    }
    let tally = tally.context("cannot send")?;
    if tally.answered == 0 {
        bail!("no answer from the server at {}", subject.address());
    }
    let cpu = before.zip(subject.cpu()).map(|(before, after)| after.saturating_sub(before));
    Ok(Run { tally, cpu })
}
