//! What of a run is compared with other runs.

use super::measure::Run;

/// One number of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Figure {
    /// The server's CPU time for each request that it answered.
    Cpu,
    /// The same of the nodes that asked the server, where the server is their store.
    NodeCpu,
    /// Answers per second.
    PerSecond,
    /// The median latency.
    P50,
    /// The latency that one in a hundred exceeds.
    P99,
    /// The latency that one in a thousand exceeds.
    P999,
}

impl Figure {
    /// Its value, if the run has it.
    pub(super) fn of(self, run: &Run) -> Option<f64> {
        let quantile = |quantile| Some(run.tally.latency.value_at_quantile(quantile) as f64);
        match self {
            Figure::Cpu => run.cpu_per_request(),
            Figure::NodeCpu => run.per_request(run.tally.node_cpu),
            Figure::PerSecond => Some(run.per_second()),
            Figure::P50 => quantile(0.5),
            Figure::P99 => quantile(0.99),
            Figure::P999 => quantile(0.999),
        }
    }

    /// What it is, for people.
    pub(super) fn title(self, unit: &str) -> String {
        match self {
            Figure::Cpu => format!("server CPU per {unit}"),
            Figure::NodeCpu => format!("node CPU per {unit}"),
            Figure::PerSecond => format!("{unit}s per second"),
            Figure::P50 => "p50".to_owned(),
            Figure::P99 => "p99".to_owned(),
            Figure::P999 => "p99.9".to_owned(),
        }
    }

    /// The name of its median, for programs.
    pub(super) fn json_name(self) -> &'static str {
        match self {
            Figure::Cpu => "median_cpu_ns",
            Figure::NodeCpu => "median_node_cpu_ns",
            Figure::PerSecond => "median_per_second",
            Figure::P50 => "median_p50_ns",
            Figure::P99 => "median_p99_ns",
            Figure::P999 => "median_p999_ns",
        }
    }

    /// A value of it among others of one round.
    pub(super) fn show_in_round(self, value: f64) -> String {
        let shown = self.show(value);
        match self {
            Figure::Cpu => shown,
            Figure::NodeCpu => format!("node {shown}"),
            Figure::PerSecond => format!("{shown} per second"),
            Figure::P50 => format!("p50 {shown}"),
            Figure::P99 => format!("p99 {shown}"),
            Figure::P999 => format!("p99.9 {shown}"),
        }
    }

    /// A value of it, for people.
    pub(super) fn show(self, value: f64) -> String {
        match self {
            Figure::Cpu | Figure::NodeCpu => format!("{value:.0} ns"),
            Figure::PerSecond => format!("{value:.0}"),
            Figure::P50 | Figure::P99 | Figure::P999 => format!("{:.1} us", value / 1e3),
        }
    }
}
