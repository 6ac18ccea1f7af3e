//! The server and its peers under the same load, in turns, so that what the machine does meanwhile
//! falls on all of them.

use std::fmt::Write as _;

use anyhow::Context as _;
use serde_json::{Map, Value, json};

use super::measure::{Run, measure};
use super::{Contender, Figure, Frame, Load, report};
use crate::failure::{Failure, print};

/// What every round showed of each contender, in their order.
type Rounds = Vec<Vec<Run>>;

/// Runs all rounds and prints them, the medians and the ratios of the first to each of the others.
pub(super) fn run<L: Load>(frame: &Frame<'_>, all: &[Contender<L>]) -> Result<(), Failure> {
    let mut rounds: Rounds = Vec::new();
    for number in 1..=frame.report.rounds {
        let round = in_turns(number as usize, all)?;
        if !frame.report.json {
            print(&line(frame, number, all, &round)?)?;
        }
        rounds.push(round);
    }
    let names: Vec<&str> = all.iter().map(|contender| contender.name).collect();
    let medians = frame.figures.iter().map(|figure| (*figure, median_of(*figure, &rounds)));
    let medians: Vec<_> = medians.collect();
    let page = medians.iter().map(|(figure, values)| told(frame.unit, *figure, &names, values));
    frame.show(&json(&names, &rounds, &medians), &page.collect::<String>())
}

/// One round. Each contender is the first as often as any other: who comes after whom may matter.
fn in_turns<L: Load>(number: usize, all: &[Contender<L>]) -> Result<Vec<Run>, Failure> {
    let first = number % all.len();
    let mut runs = Vec::new();
    for at in (first..all.len()).chain(0..first) {
        let Contender { name, server, load } = &all[at];
        runs.push((at, measure(name, server, load)?));
    }
    runs.sort_by_key(|(at, _)| *at);
    Ok(runs.into_iter().map(|(_, run)| run).collect())
}

/// What one round showed.
fn line<L>(
    frame: &Frame<'_>,
    number: u32,
    all: &[Contender<L>],
    round: &[Run],
) -> Result<String, Failure> {
    let mut line = format!("round {number}:");
    // Writing to a String cannot fail.
    for (Contender { name, .. }, run) in all.iter().zip(round) {
        let figures = frame.figures.iter().filter_map(|figure| Some((figure, figure.of(run)?)));
        let shown: Vec<_> = figures.map(|(figure, value)| figure.show_in_round(value)).collect();
        let tally = &run.tally;
        let (answered, lost) = (tally.answered, tally.lost);
        let _ = write!(line, " {name} {} ({answered} answered, {lost} lost", shown.join(", "));
        if let Some(refused) = tally.refused.filter(|refused| *refused > 0) {
            let _ = write!(line, ", {refused} refused");
        }
        line += ");";
    }
    line.pop();
    let values = round.iter().map(|run| frame.figures[0].of(run));
    let values = values.collect::<Option<Vec<f64>>>().context("nothing was answered")?;
    for (peer, ratio) in all[1..].iter().zip(ratios(&values)) {
        let _ = write!(line, "; ratio to {} {ratio:.3}", peer.name);
    }
    Ok(line + "\n")
}

/// The medians of one figure, for each contender that has it.
fn median_of(figure: Figure, rounds: &Rounds) -> Vec<f64> {
    let contenders = rounds.first().map_or(0, Vec::len);
    let values = |at: usize| rounds.iter().filter_map(|round| figure.of(&round[at])).collect();
    (0..contenders).map(|at| median(values(at))).collect()
}

/// One figure's medians and ratios on a line. A contender without the figure is left out.
fn told(unit: &str, figure: Figure, names: &[&str], values: &[f64]) -> String {
    let known = |value: &f64| !value.is_nan();
    let shown = |(name, value): (&&str, &f64)| format!("{name} {}", figure.show(*value));
    let medians: Vec<_> =
        names.iter().zip(values).filter(|(_, value)| known(value)).map(shown).collect();
    let mut line = format!("median {}: {}", figure.title(unit), medians.join(", "));
    let ratios = names[1..].iter().zip(ratios(values)).filter(|(_, ratio)| known(ratio));
    for (at, (name, ratio)) in ratios.enumerate() {
        let mark = if at == 0 { ";" } else { "," };
        let _ = write!(line, "{mark} ratio to {name} {ratio:.3}");
    }
    line + "\n"
}

/// The whole comparison for programs. The ratios are those of the first figure.
fn json(names: &[&str], rounds: &Rounds, medians: &[(Figure, Vec<f64>)]) -> Value {
    let runs = |round: &Vec<Run>| named(names, round.iter().map(report::json));
    let pages: Vec<_> = rounds.iter().map(runs).collect();
    let mut whole = Map::new();
    whole.insert("rounds".to_owned(), json!(pages));
    for (figure, values) in medians {
        // A value that is no number becomes null.
        let values = named(names, values.iter().map(|value| json!(value)));
        whole.insert(figure.json_name().to_owned(), values);
    }
    let first = ratios(&medians[0].1).map(|ratio| json!(ratio));
    whole.insert("ratio".to_owned(), named(&names[1..], first));
    Value::Object(whole)
}

fn named(names: &[&str], values: impl Iterator<Item = Value>) -> Value {
    names.iter().map(|name| (*name).to_owned()).zip(values).collect::<Map<_, _>>().into()
}

/// Of the first to each of the others.
fn ratios(values: &[f64]) -> impl Iterator<Item = f64> {
    values.iter().skip(1).map(|peer| values[0] / peer)
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
    use super::*;

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

    #[test]
    fn a_line_tells_medians_and_ratios_of_those_that_have_the_figure() {
        let line = told("request", Figure::Cpu, &["tidegate", "echo"], &[110.0, 100.0]);
        let whole = "median server CPU per request: tidegate 110 ns, echo 100 ns; \
                     ratio to echo 1.100\n";
        assert_eq!(line, whole);
        let line = told("decision", Figure::NodeCpu, &["tidegate", "script"], &[7.0, f64::NAN]);
        assert_eq!(line, "median node CPU per decision: tidegate 7 ns\n");
    }
}
