//! Ours and the peers under the same load, in turns, so that what the machine does meanwhile
//! falls on all of them.

use std::fmt::Write;

use anyhow::Context as _;
use serde_json::{Map, Value, json};

use super::super::Failure;
use super::super::output::print;
use super::subject::Subject;
use super::tally::Drive;
use super::{Run, measure, report};

/// A server, and the load to put on it.
pub(super) struct Contender<L> {
    pub(super) name: &'static str,
    pub(super) subject: Subject,
    pub(super) load: L,
}

/// The peers that were named, each once.
pub(super) fn each_once<P: Copy + PartialEq, L>(
    named: &[P],
    contender: impl Fn(P) -> Result<Contender<L>, Failure>,
) -> Result<Vec<Contender<L>>, Failure> {
    let first = |at: &usize| !named[..*at].contains(&named[*at]);
    (0..named.len()).filter(first).map(|at| contender(named[at])).collect()
}

/// Runs the comparison and prints it; `unit` is what the servers are asked with.
pub(super) fn run<L: Drive>(
    ours: &Contender<L>,
    peers: &[Contender<L>],
    unit: &str,
    rounds: u32,
    json: bool,
) -> Result<(), Failure> {
    medians(ours, peers, unit, rounds, json).map(drop)
}

/// As [`run`], and returns the medians of the CPU nanoseconds, ours first.
pub(super) fn medians<L: Drive>(
    ours: &Contender<L>,
    peers: &[Contender<L>],
    unit: &str,
    rounds: u32,
    json: bool,
) -> Result<Vec<f64>, Failure> {
    let all: Vec<_> = std::iter::once(ours).chain(peers).collect();
    let mut costs = vec![Vec::new(); all.len()];
    let mut pages = Vec::new();
    for round in 1..=rounds {
        let mut line = format!("round {round}:");
        let mut page = Map::new();
        // Each of them is the first as often as any other: who comes after whom may matter.
        let first = round as usize % all.len();
        let mut runs = Vec::new();
        for at in (first..all.len()).chain(0..first) {
            let Contender { name, subject, load } = all[at];
            runs.push((at, measure(name, subject, load)?));
        }
        runs.sort_by_key(|(at, _)| *at);
        for (at, run) in runs {
            let name = all[at].name;
            costs[at].push(run.cpu_per_request().context("nothing was answered")?);
            let _ = write!(line, " {name} {};", told(&run));
            page.insert(name.to_owned(), report::json(&run));
        }
        line.pop();
        let latest: Vec<f64> = costs.iter().filter_map(|costs| costs.last().copied()).collect();
        for (peer, ratio) in peers.iter().zip(ratios(&latest)) {
            let _ = write!(line, "; ratio to {} {ratio:.3}", peer.name);
        }
        if !json {
            print(format!("{line}\n").as_bytes())?;
        }
        pages.push(page);
    }
    let medians: Vec<f64> = costs.into_iter().map(median).collect();
    let names = || all.iter().map(|contender| contender.name);
    let page = if json {
        let medians_told = named(names().zip(medians.iter().copied()));
        let ratios = named(names().skip(1).zip(ratios(&medians)));
        let whole = json!({ "rounds": pages, "median_cpu_ns": medians_told, "ratio": ratios });
        format!("{whole:#}\n")
    } else {
        let costs: Vec<_> =
            names().zip(&medians).map(|(name, cost)| format!("{name} {cost:.0} ns")).collect();
        let ratios: Vec<_> = names()
            .skip(1)
            .zip(ratios(&medians))
            .map(|(name, ratio)| format!("ratio to {name} {ratio:.3}"))
            .collect();
        let (costs, ratios) = (costs.join(", "), ratios.join(", "));
        format!("median server CPU per {unit}: {costs}; {ratios}\n")
    };
    print(page.as_bytes())?;
    Ok(medians)
}

/// What one contender showed in a round.
fn told(run: &Run) -> String {
    let cost = run.cpu_per_request().unwrap_or(f64::NAN);
    let tally = &run.tally;
    let mut out = format!("{cost:.0} ns ({} answered, {} lost", tally.answered, tally.lost);
    if let Some(refused) = tally.refused.filter(|refused| *refused > 0) {
        let _ = write!(out, ", {refused} refused");
    }
    out + ")"
}

/// Of the first to each of the others.
fn ratios(costs: &[f64]) -> impl Iterator<Item = f64> {
    costs.iter().skip(1).map(|peer| costs[0] / peer)
}

fn named<'a>(values: impl Iterator<Item = (&'a str, f64)>) -> Map<String, Value> {
    values.map(|(name, value)| (name.to_owned(), json!(value))).collect()
}

pub(super) fn median(mut values: Vec<f64>) -> f64 {
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
    use super::{median, ratios};

    #[test]
    fn medians() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(Vec::new()).is_nan());
    }

    #[test]
    fn ratios_are_ours_to_each_peer() {
        assert_eq!(ratios(&[2.0, 4.0, 1.0]).collect::<Vec<_>>(), [0.5, 2.0]);
    }
}
