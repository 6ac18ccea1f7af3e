//! What decisions cost a redis-server: its CPU time for each, beside what a plain script costs that
//! counts uses in fixed windows, called by redis-benchmark with as many outstanding.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};

use anyhow::Context as _;
use tidegate_core::Nanos;

use super::nodes::{Asking, Nodes};
use crate::clock;
use crate::failure::Failure;
use crate::frame::flags::{Programs, Report};
use crate::frame::keys::Choice;
use crate::frame::tally::{Tally, Until};
use crate::frame::{Contender, Figure, Frame, Load};
use crate::servers::Server;

/// What a user of Redis would write.
const SCRIPT: &str = "local count = redis.call('INCR', KEYS[1])
if count == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end
return count";

/// Uses of each key in an hour, at least. What is far from its limit is forgotten within seconds
/// and would be dearer.
const AMOUNT_MIN: u64 = 1_000;

/// The window of the script, in milliseconds.
const WINDOW_MS: &str = "60000";

/// The arguments of `tidegate-bench store redis`.
#[derive(Debug, clap::Args)]
#[command(mut_arg("rounds", |rounds| rounds.default_value("75")))]
pub(crate) struct Args {
    #[command(flatten)]
    programs: Programs,
    /// Different keys in play.
    #[arg(
        long,
        default_value_t = 100_000,
        value_parser = clap::value_parser!(u64).range(1..=10_000_000)
    )]
    keys: u64,
    /// Decisions, or calls of the script, that are outstanding at a time.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=4_096))]
    window: u64,
    /// Decisions, or calls of the script, in each round: few, because many short rounds in turns
    /// are steadier than a few long ones.
    #[arg(
        long,
        default_value_t = 20_000,
        value_parser = clap::value_parser!(u64).range(1_000..=1_000_000_000)
    )]
    count: u64,
    #[command(flatten)]
    report: Report,
}

/// Runs the comparison.
pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let frame = args.programs.frame("redis", "decision", &args.report)?;
    let frame = Frame { figures: &[Figure::Cpu, Figure::NodeCpu], ..frame };
    frame.run(
        |program| {
            let server = Server::redis(None)?;
            let store =
                format!("[store]\nkind = \"redis\"\nurl = \"redis://{}\"\n", server.address());
            let until = Until { span: Nanos::MAX / 2, count: args.count };
            let choice = Choice::Skewed(0.0);
            let asking = Asking { window: args.window, keys: args.keys, choice, until };
            let mut nodes = Nodes::start(program, 1, &store, args.amount(), asking)?;
            // Every key once, so that none is new when the server is measured.
            let all = Until { count: args.keys, ..until };
            let once = Asking { choice: Choice::InTurn, until: all, ..asking };
            nodes.warm_up(once).context("cannot ask")?;
            Ok(Contender::ours(server, RedisLoad::Nodes(nodes)))
        },
        &["script"],
        |name, _| {
            let server = Server::redis(None)?;
            let load = RedisLoad::Script(args.script(server.address())?);
            Ok(Contender { name, server, load })
        },
    )
}

/// What is put on a redis-server.
enum RedisLoad {
    Nodes(Nodes),
    Script(Script),
}

/// Calls of the script that has this name.
struct Script {
    server: SocketAddr,
    name: String,
    keys: u64,
    window: u64,
    count: u64,
}

impl Args {
    /// Twice what all rounds use of each key: what is refused is not written, and would be cheaper.
    fn amount(&self) -> u64 {
        let uses =
            (self.count.saturating_mul(self.report.rounds.into()) / self.keys).saturating_add(1);
        AMOUNT_MIN.max(uses.saturating_mul(2))
    }

    fn script(&self, server: SocketAddr) -> anyhow::Result<Script> {
        let name = load_script(server).context("no script was loaded")?;
        let Self { keys, window, count, .. } = *self;
        let mut script = Script { server, name, keys, window, count: keys.saturating_mul(3) };
        // Every key once, but for a few: redis-benchmark draws its keys.
        script.run().context("cannot call")?;
        script.count = count;
        Ok(script)
    }
}

/// Gives the script to the server; returns the name that it goes by.
fn load_script(server: SocketAddr) -> io::Result<String> {
    let mut stream = TcpStream::connect(server)?;
    let length = SCRIPT.len();
    write!(stream, "*3\r\n$6\r\nSCRIPT\r\n$4\r\nLOAD\r\n${length}\r\n{SCRIPT}\r\n")?;
    let mut lines = BufReader::new(stream).lines();
    let mut line = || lines.next().unwrap_or_else(|| Err(io::ErrorKind::UnexpectedEof.into()));
    match line()?.as_str() {
        "$40" => line(),
        other => Err(io::Error::other(format!("redis-server said {other}"))),
    }
}

impl Load for RedisLoad {
    fn title(&self) -> String {
        match self {
            RedisLoad::Nodes(nodes) => nodes.title(),
            RedisLoad::Script(script) => format!("calls of a script, window {}", script.window),
        }
    }

    fn run(&self, progress: &dyn Fn(u64, Nanos)) -> io::Result<Tally> {
        match self {
            RedisLoad::Nodes(nodes) => nodes.run(progress),
            RedisLoad::Script(script) => script.run(),
        }
    }
}

impl Script {
    /// So many calls. Nothing is heard of them before the last.
    fn run(&self) -> io::Result<Tally> {
        let start = clock::now();
        let [port, count, keys, window] =
            [u64::from(self.server.port()), self.count, self.keys, self.window]
                .map(|number| number.to_string());
        let mut command = Command::new("redis-benchmark");
        command.args(["-h", "127.0.0.1", "-p", &port, "-n", &count, "-r", &keys, "-P", &window]);
        command.args(["-c", "1", "-q", "EVALSHA", &self.name, "1", "limit:__rand_int__"]);
        let output = match command.arg(WINDOW_MS).stdin(Stdio::null()).output() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(io::Error::other(
                    "redis-benchmark is not installed\n\
                     install it with `make setup-bench`, or with `apt-get install redis-tools`",
                ));
            }
            output => output?,
        };
        if !output.status.success() {
            let said = [output.stdout, output.stderr].concat();
            let (status, said) = (output.status, String::from_utf8_lossy(&said));
            return Err(io::Error::other(format!("redis-benchmark failed, {status}: {said}")));
        }
        let mut tally = Tally::new();
        (tally.sent, tally.answered) = (self.count, self.count);
        tally.elapsed = (clock::now() - start).max(1);
        Ok(tally)
    }
}
