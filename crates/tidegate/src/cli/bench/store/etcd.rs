//! How many decisions three nodes make that share an etcd, on one key and on 1,000, beside bare
//! transactions with as many outstanding, in turns.

use std::io;
use std::sync::Arc;

use anyhow::Context as _;
use serde_json::{Value, json};
use tidegate_core::Nanos;
use tidegate_core::time::{MILLISECOND, SECOND};

use super::super::super::Failure;
use super::super::super::output::print;
use super::super::compare::median;
use super::super::flags::Telling;
use super::super::keys::Choice;
use super::super::subject::Subject;
use super::super::tally::{Drive, Tally, Until, on_threads};
use super::super::{measure, report};
use super::bare::{Bare, Shape};
use super::node::{self, Asking};
use crate::limiter::Limiter;
use crate::stores::remote::settings::Kind;

const NODES: usize = 3;
/// Uses of each key in an hour: more than there are, because what is refused is not written.
const AMOUNT: u64 = 10_000_000_000;
/// What is not measured: connections, leases and the first count.
const FIRST: Nanos = 300 * MILLISECOND;

/// The arguments of `tidegate bench store etcd`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Decisions, or transactions, that each of the three has outstanding at a time.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=4096))]
    window: u64,
    /// How long each of them is asked, in each round.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    #[command(flatten)]
    telling: Telling,
}

/// Runs both comparisons.
pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let subject = Subject::etcd()?;
    let settings = node::settings(Kind::Etcd, subject.address());
    let nodes =
        (0..NODES).map(|_| node::start(&settings, AMOUNT)).collect::<anyhow::Result<Vec<_>>>()?;
    let mut shape = None;
    let mut pages = serde_json::Map::new();
    for (title, keys) in [("one key", 1), ("1,000 keys", 1_000)] {
        let until = Until { span: args.seconds * SECOND, count: u64::MAX };
        let asking = Asking { window: args.window, keys, choice: Choice::Skewed(0.0), until };
        let ours = Ours { nodes: &nodes, asking };
        let first = Asking { until: Until { span: FIRST, ..until }, ..asking };
        Ours { nodes: &nodes, asking: first }.drive(&|_, _| ()).context("cannot ask")?;
        let shape = match shape {
            Some(shape) => shape,
            None => *shape.insert(Shape::of_a_count(&settings)?),
        };
        let bare = Bare::new(&settings, shape, NODES, asking);
        let page = in_turns(title, &subject, &ours, &bare, args)?;
        pages.insert(title.to_owned(), page);
    }
    if args.telling.json {
        print(format!("{:#}\n", Value::Object(pages)).as_bytes())?;
    }
    Ok(())
}

/// Ours and bare transactions on so many keys; what the rounds showed.
fn in_turns(
    title: &str,
    etcd: &Subject,
    ours: &Ours<'_>,
    bare: &Bare,
    args: &Args,
) -> Result<Value, Failure> {
    let (mut decided, mut written, mut pages) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=args.telling.rounds {
        let our_run = measure("tidegate", etcd, ours)?;
        let bare_run = measure("bare", etcd, bare)?;
        let rates = [&our_run, &bare_run].map(report::per_second);
        decided.push(rates[0]);
        written.push(rates[1]);
        if !args.telling.json {
            let line = format!(
                "{title}, round {round}: tidegate {:.0} decisions per second ({} without etcd); \
                 bare {:.0} written per second (of {:.0} tried); {:.2}x\n",
                rates[0],
                our_run.tally.lost,
                rates[1],
                bare_run.tally.sent as f64 / bare_run.tally.elapsed as f64 * SECOND as f64,
                rates[0] / rates[1],
            );
            print(line.as_bytes())?;
        }
        let [ours, bare] = [&our_run, &bare_run].map(report::json);
        pages.push(json!({ "tidegate": ours, "bare": bare }));
    }
    let (decided, written) = (median(decided), median(written));
    let ratio = decided / written;
    if !args.telling.json {
        let line = format!(
            "{title}, {NODES} nodes, median per second: tidegate {decided:.0}, bare {written:.0}; \
             {ratio:.2}x\n"
        );
        print(line.as_bytes())?;
    }
    let medians = json!({ "tidegate": decided, "bare": written });
    Ok(json!({ "rounds": pages, "median_per_second": medians, "ratio": ratio }))
}

/// Nodes that share an etcd, each asked by a thread of its own.
struct Ours<'a> {
    nodes: &'a [Arc<Limiter>],
    asking: Asking,
}

impl Drive for Ours<'_> {
    fn drive(&self, progress: &dyn Fn(u64, Nanos)) -> io::Result<Tally> {
        let span = self.asking.until.span;
        on_threads(self.nodes.len(), span, progress, |number, _, total| {
            node::ask(&self.nodes[number], self.asking, number as u64, total)
        })
    }
}
