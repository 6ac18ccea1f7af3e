//! What a run showed, for people and for programs.

use std::fmt::Write;

use serde_json::{Value, json};
use tidegate_core::time::SECOND;

use super::measure::Run;

const QUANTILES: [(&str, f64); 4] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999)];

/// Rows of the histogram's picture.
const ROWS_MAX: usize = 24;

/// Characters of its longest bar.
const BAR: f64 = 50.0;

/// All figures of one run.
pub(crate) fn json(run: &Run) -> Value {
    let tally = &run.tally;
    let latency: serde_json::Map<_, _> = QUANTILES
        .iter()
        .map(|(name, q)| ((*name).to_owned(), json!(tally.latency.value_at_quantile(*q))))
        .chain([("max".to_owned(), json!(tally.latency.max()))])
        .collect();
    json!({
        "sent": tally.sent,
        "answered": tally.answered,
        "lost": tally.lost,
        "refused": tally.refused,
        "seconds": tally.elapsed as f64 / SECOND as f64,
        "per_second": run.per_second(),
        "latency_ns": latency,
        "server_cpu_ns_per_request": run.cpu_per_request(),
        "node_cpu_ns": tally.node_cpu,
    })
}

/// The same for people, with a picture of the latencies. The title says which load it was.
pub(crate) fn human(run: &Run, title: &str) -> String {
    let tally = &run.tally;
    let mut out = format!("{title}\n");
    let refused = tally.refused.map(|refused| format!(", {refused} refused")).unwrap_or_default();
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "{} sent, {} answered, {} lost{refused}, {:.0} answered per second",
        tally.sent,
        tally.answered,
        tally.lost,
        run.per_second()
    );
    if let Some(cpu) = run.cpu_per_request() {
        let _ = writeln!(out, "server CPU per request: {cpu:.0} ns");
    }
    let _ = writeln!(out, "{}", latency(run));
    picture(&mut out, run);
    out
}

/// How long requests took, on one line.
pub(crate) fn latency(run: &Run) -> String {
    let latency = &run.tally.latency;
    let mut out = "latency:".to_owned();
    for (name, quantile) in QUANTILES {
        let _ = write!(out, " {name} {}", span(latency.value_at_quantile(quantile)));
    }
    let _ = write!(out, " max {}", span(latency.max()));
    out
}

/// One row for each doubling of the latency.
fn picture(out: &mut String, run: &Run) {
    let rows: Vec<_> = run
        .tally
        .latency
        .iter_log(1024, 2.0)
        .map(|row| (row.value_iterated_to(), row.count_since_last_iteration()))
        .skip_while(|(_, count)| *count == 0)
        .take(ROWS_MAX)
        .collect();
    let most = rows.iter().map(|(_, count)| *count).max().unwrap_or(0).max(1);
    for (up_to, count) in rows {
        let bar = "#".repeat((count as f64 / most as f64 * BAR).ceil() as usize);
        let _ = writeln!(out, "  up to {:>8} {count:>10} {bar}", span(up_to));
    }
}

fn span(nanos: u64) -> String {
    let nanos = nanos as f64;
    match nanos {
        n if n < 1e3 => format!("{n:.0}ns"),
        n if n < 1e6 => format!("{:.1}us", n / 1e3),
        n if n < 1e9 => format!("{:.1}ms", n / 1e6),
        n => format!("{:.1}s", n / 1e9),
    }
}
