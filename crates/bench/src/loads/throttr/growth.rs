//! New records, a million at a time: whether the last ones cost as much as the first.

use std::fmt::Write;

use anyhow::Context as _;
use serde_json::json;

use super::speech::Speech;
use crate::failure::Failure;
use crate::frame::measure::measure;
use crate::frame::{Contender, Frame, Load as _, report};
use crate::stream::StreamLoad;

/// Requests that are measured together.
pub(super) const PORTION: u64 = 1_000_000;

/// Inserts all that the load asks for and tells what each portion cost.
pub(super) fn run(
    frame: &Frame<'_>,
    mut ours: Contender<StreamLoad<Speech>>,
) -> Result<(), Failure> {
    let all = ours.load.until.count;
    let mut page = format!("{}\n", ours.load.title());
    let (mut portions, mut costs, mut sent) = (Vec::new(), Vec::new(), 0);
    while sent < all {
        ours.load.until.count = PORTION.min(all - sent);
        let run = measure(frame.name, &ours.server, &ours.load)?;
        sent += run.tally.sent;
        let cost = run.cpu_per_request().context("the server's CPU time is not known")?;
        let refused = run.tally.refused.unwrap_or(0);
        // Writing to a String cannot fail.
        let _ = writeln!(page, "up to {sent:>10}: {cost:.0} ns ({refused} refused)");
        costs.push(cost);
        portions.push(report::json(&run));
    }
    let ratio = costs[costs.len() - 1] / costs[0];
    page += &format!("server CPU per insert, last to first: {ratio:.3}\n");
    frame.show(&json!({ "portions": portions, "last_to_first": ratio }), &page)
}
