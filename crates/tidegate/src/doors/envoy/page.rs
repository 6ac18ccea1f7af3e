//! What envoyproxy/ratelimit tells of itself, as it tells it: its statistics, for Prometheus and as
//! plain lines, and its configuration.
//!
//! Nothing is counted here.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;

use super::settings::EnvoyState;
use super::statistics::{COUNTED, HitCounts};
use crate::metrics::Metrics;

/// The most bytes of a page. What is beyond it is left out.
const PAGE_BYTES_MAX: usize = 64 << 20;
/// The most labels of a series: one for each part of its name.
const KEYS_MAX: usize = 32;
const LEFT_OUT: &str = "the rest is left out: the page is too long\n";

const HELP: [&str; COUNTED.len()] = [
    "Hits of descriptors that are limited",
    "Hits over their limit",
    "Hits above eight tenths of their limit, and not over it",
    "Hits within their limit",
    "Hits over their limit that passed",
    "Always 0",
];

/// The pages of `erl_metrics`, at `/stats` and `/rlconfig` of administration and in `/metrics`, and
/// where their figures come from.
pub(crate) struct ErlPages {
    state: Arc<EnvoyState>,
    loads: [(&'static str, [Counter; 2]); 2],
}

impl fmt::Debug for ErlPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ErlPages")
    }
}

impl ErlPages {
    pub(crate) fn new(state: &Arc<EnvoyState>, metrics: &Metrics) -> Self {
        let loads = [("config_load_error", false), ("config_load_success", true)];
        let loads = loads.map(|(name, ok)| (name, metrics.config_loads(ok)));
        Self { state: state.clone(), loads }
    }

    /// Figures of the whole service.
    fn service(&self) -> [(&'static str, u64); 3] {
        let [(error, errors), (success, successes)] = &self.loads;
        let shadow = ("global_shadow_mode", self.state.statistics.global_shadow());
        let sum = |counters: &[Counter; 2]| counters.iter().map(Counter::get).sum();
        [(error, sum(errors)), (success, sum(successes)), shadow]
    }

    /// A line for each figure, `name: value`, by name; `None` if nothing is counted.
    pub(crate) fn statistics(&self) -> Option<String> {
        if !self.state.settings().erl_metrics {
            return None;
        }
        let mut lines = Vec::new();
        let statistics = &self.state.statistics;
        statistics.each(|domain, name, counts| {
            for (what, count) in COUNTED.iter().zip(counts) {
                lines.push(format!("rate_limit.{domain}.{name}.{what}: {count}\n"));
            }
        });
        statistics.each_unknown(|domain, count| {
            lines.push(format!("rate_limit.{domain}.domain_not_found: {count}\n"));
        });
        lines.extend(self.service().iter().map(|(name, count)| format!("{name}: {count}\n")));
        lines.sort();
        let mut text = Bounded::default();
        let write = |line| write!(text, "ratelimit.service.{line}");
        let written = lines.iter().try_for_each(write);
        Some(text.finish(written))
    }

    /// A line for each rule of the configuration; `None` if there is none.
    pub(crate) fn configuration(&self) -> Option<String> {
        let settings = self.state.settings();
        let mut text = Bounded::default();
        let written = settings.configuration.as_ref()?.dump(&mut text);
        Some(text.finish(written))
    }
}

/// A page of at most [`PAGE_BYTES_MAX`].
#[derive(Default)]
struct Bounded(String);

impl fmt::Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > PAGE_BYTES_MAX {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

impl Bounded {
    fn finish(mut self, written: fmt::Result) -> String {
        if written.is_err() {
            self.0.push('\n');
            self.0.push_str(LEFT_OUT);
        }
        self.0
    }
}

/// The names have no `_total`, so to Prometheus their type is unknown.
impl Collector for ErlPages {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        if !self.state.settings().erl_metrics {
            return Ok(());
        }
        let mut rows: Vec<(Vec<(String, String)>, HitCounts)> = Vec::new();
        let statistics = &self.state.statistics;
        statistics.each(|domain, name, counts| rows.push((labels(domain, name), *counts)));
        for (at, (what, help)) in COUNTED.iter().zip(HELP).enumerate() {
            let name = format!("ratelimit_service_rate_limit_{what}");
            let mut family = encoder.encode_descriptor(&name, help, None, MetricType::Unknown)?;
            for (labels, counts) in &rows {
                family.encode_family(labels)?.encode_gauge(&counts[at])?;
            }
        }
        let mut unknown = Vec::new();
        statistics.each_unknown(|domain, count| unknown.push((domain.to_owned(), count)));
        let (name, help) = (
            "ratelimit_service_rate_limit_domain_not_found",
            "Descriptors of domains that nothing is known of",
        );
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Unknown)?;
        for (domain, count) in &unknown {
            family.encode_family(&[("domain", domain.as_str())])?.encode_gauge(count)?;
        }
        for (what, count) in self.service() {
            let name = format!("ratelimit_service_{what}");
            let help = "Of the whole service";
            encoder
                .encode_descriptor(&name, help, None, MetricType::Unknown)?
                .encode_gauge(&count)?;
        }
        Ok(())
    }
}

fn labels(domain: &str, name: &str) -> Vec<(String, String)> {
    let keys = name.splitn(KEYS_MAX, '.').zip(1..);
    let keys = keys.map(|(key, at)| (format!("key{at}"), key.to_owned()));
    [("domain".to_owned(), domain.to_owned())].into_iter().chain(keys).collect()
}
