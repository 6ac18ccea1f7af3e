//! How long a DELAY_UNTIL takes: a libzmq gatekeeper sends one accounting message, which exhausts
//! the burst of a new identifier, and waits for what the master publishes about it. Beside ours, in
//! turns, a relay that publishes at once what it receives and decides nothing.

use hdrhistogram::Histogram;
use serde_json::json;
use tidegate_core::time::SECOND;

use super::super::super::Failure;
use super::super::super::output::print;
use super::super::compare::median;
use super::super::subject::Subject;
use super::config;
use super::peers::Peers;

/// What came of one contender's rounds, in nanoseconds.
struct Times {
    name: &'static str,
    master: Subject,
    p50: Vec<f64>,
    p99: Vec<f64>,
}

impl Times {
    fn new(name: &'static str, master: Subject) -> Self {
        Self { name, master, p50: Vec::new(), p99: Vec::new() }
    }

    /// One round: so many messages, one after the other.
    fn round(&mut self, peers: &Peers, messages: u64, round: u32) -> anyhow::Result<String> {
        let [accounting, control, ..] = *self.master.addresses() else {
            anyhow::bail!("the {} told other addresses than were expected", self.name);
        };
        let words = [
            "ping".to_owned(),
            accounting.to_string(),
            control.to_string(),
            messages.to_string(),
            format!("round-{round}"),
        ];
        let mut histogram = Histogram::<u64>::new_with_bounds(1, 60 * SECOND, 3)?;
        for nanos in peers.numbers(&words)? {
            histogram.saturating_record(nanos.max(1));
        }
        let at = |quantile| histogram.value_at_quantile(quantile) as f64;
        let (p50, p99) = (at(0.5), at(0.99));
        self.p50.push(p50);
        self.p99.push(p99);
        Ok(told(self.name, p50, p99))
    }

    fn medians(&self) -> (f64, f64) {
        (median(self.p50.clone()), median(self.p99.clone()))
    }
}

fn told(name: &str, p50: f64, p99: f64) -> String {
    format!("{name} p50 {:.1} us p99 {:.1} us", p50 / 1e3, p99 / 1e3)
}

/// Runs the comparison and prints it.
pub(super) fn run(peers: &Peers, messages: u64, rounds: u32, json: bool) -> Result<(), Failure> {
    // One message is the whole burst.
    let ours = Subject::ours(&config("1/s burst 1", "smockron"))?;
    let relay = Subject::start(peers.command(["relay"]))?;
    let mut all = [Times::new("tidegate", ours), Times::new("relay", relay)];
    for round in 1..=rounds {
        let mut line = format!("round {round}:");
        for times in &mut all {
            line += &format!(" {};", times.round(peers, messages, round)?);
        }
        line.pop();
        if !json {
            print(format!("{line}\n").as_bytes())?;
        }
    }
    let page = if json {
        let one = |times: &Times| {
            let (p50, p99) = times.medians();
            let median = json!({ "p50": p50, "p99": p99 });
            json!({ "p50_ns": times.p50, "p99_ns": times.p99, "median_ns": median })
        };
        format!("{:#}\n", json!({ "tidegate": one(&all[0]), "relay": one(&all[1]) }))
    } else {
        let one = |times: &Times| {
            let (p50, p99) = times.medians();
            told(times.name, p50, p99)
        };
        let all = all.iter().map(one).collect::<Vec<_>>().join("; ");
        format!("medians from a message that exhausts a burst to its DELAY_UNTIL: {all}\n")
    };
    print(page.as_bytes())?;
    Ok(())
}
