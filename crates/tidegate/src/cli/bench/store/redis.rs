//! What decisions cost a redis-server: its CPU time for each, beside what a plain script costs that
//! counts uses in fixed windows, called by redis-benchmark with as many outstanding.

use std::io;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::Context as _;
use parking_lot::Mutex;
use tidegate_core::Nanos;
use tidegate_core::time::{MINUTE, SECOND};

use super::super::super::Failure;
use super::super::super::output::print;
use super::super::compare::{self, Contender, median};
use super::super::flags::Telling;
use super::super::keys::Choice;
use super::super::subject::Subject;
use super::super::tally::{Drive, Tally, Until, on_threads};
use super::node::{self, Asking};
use crate::clock::Clock;
use crate::limiter::Limiter;
use crate::stores::remote::settings::Kind;

/// What a user of Redis would write.
const SCRIPT: &str = "local count = redis.call('INCR', KEYS[1])
if count == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end
return count";

/// Uses of each key in an hour. A run takes some dozens: what is refused is not written, and would
/// be cheaper; what is far from its limit is forgotten within seconds, and would be dearer.
const AMOUNT: u64 = 1_000;

/// The window of the script, in milliseconds.
const WINDOW_MS: &str = "60000";

/// The arguments of `tidegate bench store redis`.
#[derive(Debug, clap::Args)]
#[command(mut_arg("rounds", |rounds| rounds.default_value("75")))]
pub(super) struct Args {
    /// Different keys in play.
    #[arg(
        long,
        default_value_t = 100_000,
        value_parser = clap::value_parser!(u64).range(1..=10_000_000)
    )]
    keys: u64,
    /// Decisions, or calls of the script, that are outstanding at a time.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=16_384))]
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
    telling: Telling,
}

/// Runs the comparison.
pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let ours = args.ours()?;
    let script = args.script()?;
    let medians =
        compare::medians(&ours, &[script], "decision", args.telling.rounds, args.telling.json)?;
    let Load::Ours { costs, .. } = &ours.load else { return Ok(()) };
    if let [decision, call] = medians[..]
        && !args.telling.json
    {
        let per_second = |cost: f64| SECOND as f64 / cost;
        let own = median(costs.lock().clone());
        let page = format!(
            "decisions per CPU second of redis-server: tidegate {:.0}, script {:.0}; {:.2}x\n\
             decisions per CPU second of tidegate, asking included: {:.0} ({own:.0} ns)\n",
            per_second(decision),
            per_second(call),
            call / decision,
            per_second(own),
        );
        print(page.as_bytes())?;
    }
    Ok(())
}

/// What is put on a redis-server.
enum Load {
    /// Decisions of a node in this process; and what they cost this process, in each round.
    Ours {
        limiter: Arc<Limiter>,
        asking: Asking,
        costs: Mutex<Vec<f64>>,
    },
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
    fn ours(&self) -> anyhow::Result<Contender<Load>> {
        let subject = Subject::redis()?;
        let limiter = node::start(&node::settings(Kind::Redis, subject.address()), AMOUNT)?;
        let until = Until { span: Nanos::MAX, count: self.count };
        let choice = Choice::Skewed(0.0);
        let asking = Asking { window: self.window, keys: self.keys, choice, until };
        // Every key once, so that the rounds meet no strangers.
        let all = Until { count: self.keys, ..until };
        let first = Asking { choice: Choice::InTurn, until: all, ..asking };
        node::ask(&limiter, first, 0, &0.into()).context("cannot ask")?;
        let load = Load::Ours { limiter, asking, costs: Mutex::default() };
        Ok(Contender { name: "tidegate", subject, load })
    }

    fn script(&self) -> anyhow::Result<Contender<Load>> {
        let subject = Subject::redis()?;
        let server = subject.address();
        let client = redis::Client::open(format!("redis://{server}"))?;
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(SCRIPT);
        let name = load.query(&mut client.get_connection()?).context("no script was loaded")?;
        let Self { keys, window, count, .. } = *self;
        let mut script = Script { server, name, keys, window, count: keys.saturating_mul(3) };
        // As above, but for a few: redis-benchmark draws its keys.
        script.drive().context("cannot call")?;
        script.count = count;
        Ok(Contender { name: "script", subject, load: Load::Script(script) })
    }
}

impl Drive for Load {
    fn drive(&self, progress: &dyn Fn(u64, Nanos)) -> io::Result<Tally> {
        match self {
            Load::Ours { limiter, asking, costs } => {
                let this = Subject::running(([127, 0, 0, 1], 0).into(), Some(std::process::id()));
                let tally = on_threads(1, MINUTE, progress, |_, _, total| {
                    // Looked at while the thread that asks is there: it counts, too.
                    let before = this.cpu();
                    let mut tally = node::ask(limiter, *asking, 1, total)?;
                    tally.own_cpu = before.zip(this.cpu()).map(|(before, after)| after - before);
                    Ok(tally)
                })?;
                if let Some(cpu) = tally.own_cpu.filter(|_| tally.answered > 0) {
                    costs.lock().push(cpu as f64 / tally.answered as f64);
                }
                Ok(tally)
            }
            Load::Script(script) => script.drive(),
        }
    }
}

impl Script {
    /// So many calls. Nothing is heard of them before the last.
    fn drive(&self) -> io::Result<Tally> {
        let clock = Clock::system();
        let start = clock.now().mono;
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
        tally.elapsed = (clock.now().mono - start).max(1);
        Ok(tally)
    }
}
