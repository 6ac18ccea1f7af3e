//! Ours and the peer under the same load, in turns, so that what the machine does meanwhile
//! falls on both.

use anyhow::Context as _;
use serde_json::json;

use super::super::Failure;
use super::super::output::print;
use super::subject::Subject;
use super::{Run, Text, measure, report};

/// Runs the comparison and prints it.
pub(super) fn run(text: &Text) -> Result<(), Failure> {
    let (ours, peer) = (Subject::ours()?, Subject::echo()?);
    let (our_load, peer_load) = (text.load(ours.address())?, text.load(peer.address())?);
    our_load.touch_every_key().context("cannot send")?;
    let mut rounds = Vec::new();
    for round in 1..=text.rounds {
        let ours = measure("tidegate", &ours, &our_load)?;
        let peer = measure("echo", &peer, &peer_load)?;
        let cost = |run: &Run| run.cpu_per_request().context("nothing was answered");
        let (our_cost, peer_cost) = (cost(&ours)?, cost(&peer)?);
        if !text.json {
            let line = format!(
                "round {round}: tidegate {our_cost:.0} ns ({} answered, {} lost), \
                 echo {peer_cost:.0} ns ({} answered, {} lost), ratio {:.2}\n",
                ours.tally.answered,
                ours.tally.lost,
                peer.tally.answered,
                peer.tally.lost,
                our_cost / peer_cost
            );
            print(line.as_bytes())?;
        }
        rounds.push((our_cost, peer_cost, report::json(&ours), report::json(&peer)));
    }
    let our_median = median(rounds.iter().map(|round| round.0).collect());
    let peer_median = median(rounds.iter().map(|round| round.1).collect());
    let ratio = our_median / peer_median;
    let page = if text.json {
        let rounds: Vec<_> =
            rounds.iter().map(|round| json!({ "tidegate": round.2, "echo": round.3 })).collect();
        let medians = json!({ "tidegate": our_median, "echo": peer_median });
        let whole = json!({ "rounds": rounds, "median_cpu_ns": medians, "ratio": ratio });
        format!("{whole:#}\n")
    } else {
        format!(
            "median server CPU per datagram: tidegate {our_median:.0} ns, \
             echo {peer_median:.0} ns, ratio {ratio:.2}\n"
        )
    };
    print(page.as_bytes())?;
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn medians() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(Vec::new()).is_nan());
    }
}
