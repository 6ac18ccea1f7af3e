//! New records, a million at a time: whether the last ones cost as much as the first.

use std::fmt::Write;

use anyhow::Context as _;
use serde_json::json;

use super::super::super::Failure;
use super::super::super::output::print;
use super::super::stream::Load;
use super::super::subject::Subject;
use super::super::{measure, report};
use super::speech::Speech;

/// Requests that are measured together.
pub(super) const PORTION: u64 = 1_000_000;

/// Inserts all that the load asks for and tells what each portion cost.
pub(super) fn run(subject: &Subject, load: &mut Load<Speech>, json: bool) -> Result<(), Failure> {
    let all = load.until.count;
    let title = load.title();
    let mut runs = Vec::new();
    let mut costs = Vec::new();
    let mut sent = 0;
    while sent < all {
        load.until.count = PORTION.min(all - sent);
        let run = measure("throttr", subject, load)?;
        sent += run.tally.sent;
        costs.push(run.cpu_per_request().context("the server's CPU time is not known")?);
        runs.push(run);
    }
    let ratio = costs[costs.len() - 1] / costs[0];
    let page = if json {
        let portions: Vec<_> = runs.iter().map(report::json).collect();
        format!("{:#}\n", json!({ "portions": portions, "last_to_first": ratio }))
    } else {
        let mut page = format!("{title}\n");
        let mut until = 0;
        for (run, cost) in runs.iter().zip(&costs) {
            until += run.tally.sent;
            let refused = run.tally.refused.unwrap_or(0);
            // Writing to a String cannot fail.
            let _ = writeln!(page, "up to {until:>10}: {cost:.0} ns ({refused} refused)");
        }
        page + &format!("server CPU per insert, last to first: {ratio:.3}\n")
    };
    print(page.as_bytes())?;
    Ok(())
}
