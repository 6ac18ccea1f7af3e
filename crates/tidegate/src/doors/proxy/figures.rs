//! What the proxies measure: how long they hold requests up, and what became of those.
//!
//! Each loop has counters of its own, so that two cores never write to one; they are added up when
//! they are read. Overhead is what a request loses to the proxy itself: from the later of its start
//! and the start of its window until it is forwarded. What it loses to its limit is counted apart,
//! as waiting.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use hdrhistogram::Histogram;
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use tidegate_core::Nanos;
use tidegate_core::time::{HOUR, MICROSECOND, MILLISECOND, SECOND};

use crate::doors::{DoorReport, Gate};
use crate::metrics::Door;

/// The longest time that the histograms tell apart, in nanoseconds; waits may be longer.
const TIME_MAX: Nanos = 24 * HOUR;
/// Times are known to one part in a hundred.
const DIGITS: u8 = 2;
/// Upper bounds of the buckets for Prometheus, in microseconds.
const OVERHEAD_BUCKETS_US: [u64; 13] =
    [5, 10, 20, 50, 100, 200, 500, 1_000, 5_000, 20_000, 100_000, 500_000, 2_000_000];
/// The same in milliseconds.
const WAIT_BUCKETS_MS: [u64; 12] =
    [1, 10, 100, 500, 1_000, 5_000, 15_000, 30_000, 60_000, 120_000, 600_000, 3_600_000];
const QUANTILES: [(f64, &str); 4] = [(0.5, "0.5"), (0.9, "0.9"), (0.95, "0.95"), (0.99, "0.99")];

/// How a request failed at its upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UpstreamError {
    /// No connection could be made.
    Connect,
    /// Connecting has just failed several times, and was not tried.
    BackingOff,
    /// No response came in time.
    Timeout,
    /// The connection broke before the response's head was read.
    Closed,
    /// The connection broke, or stopped, within the response's body.
    Body,
    /// The response is not HTTP, or cannot be forwarded.
    Protocol,
}

/// The labels of the errors, in the order of [`UpstreamError`].
pub(super) const UPSTREAM_ERRORS: [&str; 6] =
    ["connect", "backing_off", "timeout", "closed", "body", "protocol"];

const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// Where the counters of [`LoopFigures`] begin: classes of responses, errors, then levels.
const ERRORS: usize = CLASSES.len();
const CONNECTIONS: usize = ERRORS + UPSTREAM_ERRORS.len();
const UPSTREAM_CONNECTIONS: usize = CONNECTIONS + 1;
const COUNTERS: usize = UPSTREAM_CONNECTIONS + 1;

/// What one loop of a proxy has measured. Only that loop writes.
pub(super) struct LoopFigures {
    overhead: Mutex<Histogram<u64>>,
    wait: Mutex<Histogram<u64>>,
    counters: [AtomicU64; COUNTERS],
}

impl Default for LoopFigures {
    fn default() -> Self {
        // The bounds are constants that fit each other.
        let times =
            || Histogram::new_with_bounds(1, TIME_MAX, DIGITS).expect("the bounds of a histogram");
        let counters = [const { AtomicU64::new(0) }; COUNTERS];
        Self { overhead: times().into(), wait: times().into(), counters }
    }
}

impl LoopFigures {
    /// Records what the proxy itself cost a request that was forwarded.
    pub(super) fn overhead(&self, nanos: Nanos) {
        self.overhead.lock().saturating_record(nanos.max(1));
    }

    /// Records how long a request waited because of its limit.
    pub(super) fn wait(&self, nanos: Nanos) {
        self.wait.lock().saturating_record(nanos.max(1));
    }

    /// Counts a response by its status.
    pub(super) fn answered(&self, status: u16) {
        self.bump(usize::from(status / 100).clamp(1, CLASSES.len()) - 1, 1);
    }

    /// Counts a request that failed at its upstream.
    pub(super) fn failed(&self, error: UpstreamError) {
        self.bump(ERRORS + error as usize, 1);
    }

    /// Adds to the number of connected clients.
    pub(super) fn connections(&self, by: i64) {
        self.bump(CONNECTIONS, by);
    }

    /// Adds to the number of connections to the upstream.
    pub(super) fn upstream_connections(&self, by: i64) {
        self.bump(UPSTREAM_CONNECTIONS, by);
    }

    /// Adds without a locked instruction: only one thread writes.
    fn bump(&self, counter: usize, by: i64) {
        let counter = &self.counters[counter];
        counter.store(counter.load(Relaxed).wrapping_add_signed(by), Relaxed);
    }

    fn count(&self, counter: usize) -> u64 {
        self.counters[counter].load(Relaxed)
    }

    /// The counts of consecutive counters, with their labels.
    fn labelled(
        &self,
        labels: &[&'static str],
        first: usize,
    ) -> impl Iterator<Item = (&'static str, u64)> {
        labels.iter().enumerate().map(move |(at, label)| (*label, self.count(first + at)))
    }
}

/// What all loops of one proxy have measured.
pub(super) struct ProxyFigures {
    name: String,
    loops: Mutex<Vec<Arc<LoopFigures>>>,
    /// How many attempts to connect have failed since the last that succeeded; over all loops.
    failures: AtomicU64,
}

impl ProxyFigures {
    /// The figures for a loop: those of a loop that has ended, if there are any.
    pub(super) fn for_loop(&self) -> Arc<LoopFigures> {
        let mut loops = self.loops.lock();
        if let Some(left) = loops.iter().find(|figures| Arc::strong_count(figures) == 1) {
            return left.clone();
        }
        let figures = Arc::<LoopFigures>::default();
        loops.push(figures.clone());
        figures
    }

    /// Notes whether a connection to the upstream could be made. Returns how many attempts before
    /// it had failed, one after another.
    pub(super) fn connected(&self, made: bool) -> u64 {
        match made {
            true if self.failures.load(Relaxed) == 0 => 0,
            true => self.failures.swap(0, Relaxed),
            false => self.failures.fetch_add(1, Relaxed),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Whether the last connection to the upstream could be made.
    fn upstream_up(&self) -> bool {
        self.failures.load(Relaxed) == 0
    }

    fn sum(&self) -> LoopFigures {
        let sum = LoopFigures::default();
        for figures in self.loops.lock().iter() {
            // All histograms have the same bounds, so adding them does not fail.
            let _ = sum.overhead.lock().add(&*figures.overhead.lock());
            let _ = sum.wait.lock().add(&*figures.wait.lock());
            for counter in 0..COUNTERS {
                // A level may fall on one loop and rise on another: the sum wraps back.
                sum.bump(counter, figures.count(counter).cast_signed());
            }
        }
        sum
    }
}

/// A count of times, with those that half, and nearly all, of them stay below, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
struct Quantiles {
    count: u64,
    p50: f64,
    p90: f64,
    p95: f64,
    p99: f64,
    max: f64,
}

impl Quantiles {
    fn of(times: &Histogram<u64>) -> Self {
        let ms = |nanos: u64| nanos as f64 / 1e6;
        let [p50, p90, p95, p99] = QUANTILES.map(|(share, _)| ms(quantile(times, share)));
        Self { count: times.len(), p50, p90, p95, p99, max: ms(times.max()) }
    }
}

/// The time that this share of the times stays below.
fn quantile(times: &Histogram<u64>, share: f64) -> Nanos {
    if times.is_empty() { 0 } else { times.value_at_quantile(share) }
}

/// One proxy in the JSON of `/v1/proxies`.
#[derive(Clone, Debug, serde::Serialize)]
struct ProxySummary {
    name: String,
    upstream_up: bool,
    connections: u64,
    upstream_connections: u64,
    overhead_ms: Quantiles,
    wait_ms: Quantiles,
    responses: BTreeMap<&'static str, u64>,
    upstream_errors: BTreeMap<&'static str, u64>,
}

/// The figures of all proxies there have been since the start.
#[derive(Default)]
pub(super) struct Proxies {
    proxies: Mutex<Vec<Arc<ProxyFigures>>>,
}

impl Proxies {
    /// Those of the process: proxies come and go with reloads, and their figures stay.
    pub(super) fn of(gate: &Gate) -> Arc<Self> {
        gate.shared.part(|| {
            let proxies = Arc::<Self>::default();
            gate.metrics.register(Box::new(Series(proxies.clone())));
            gate.shared.add_report(Door::Proxy, proxies.clone());
            proxies
        })
    }

    /// The figures of the proxy `name`, which may have been open before.
    pub(super) fn figures(&self, name: &str) -> Arc<ProxyFigures> {
        let mut proxies = self.proxies.lock();
        if let Some(known) = proxies.iter().find(|proxy| proxy.name == name) {
            return known.clone();
        }
        let (loops, failures) = (Mutex::default(), AtomicU64::new(0));
        let figures = Arc::new(ProxyFigures { name: name.to_owned(), loops, failures });
        proxies.push(figures.clone());
        figures
    }

    fn summaries(&self) -> Vec<ProxySummary> {
        let proxies = self.proxies.lock().clone();
        let summary = |proxy: &Arc<ProxyFigures>| {
            let sum = proxy.sum();
            ProxySummary {
                name: proxy.name.clone(),
                upstream_up: proxy.upstream_up(),
                connections: sum.count(CONNECTIONS),
                upstream_connections: sum.count(UPSTREAM_CONNECTIONS),
                overhead_ms: Quantiles::of(&sum.overhead.lock()),
                wait_ms: Quantiles::of(&sum.wait.lock()),
                responses: sum.labelled(&CLASSES, 0).collect(),
                upstream_errors: sum.labelled(&UPSTREAM_ERRORS, ERRORS).collect(),
            }
        };
        proxies.iter().map(summary).collect()
    }
}

impl DoorReport for Proxies {
    fn rows(&self) -> String {
        // Only maps with keys that are not strings can fail to encode, and there are none here.
        serde_json::to_string(&self.summaries()).unwrap_or_default()
    }
}

/// The series for Prometheus.
struct Series(Arc<Proxies>);

impl fmt::Debug for Series {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Series")
    }
}

/// How many times lie in each bucket.
fn buckets(times: &Histogram<u64>, bounds: &[u64], unit: Nanos) -> Vec<(f64, u64)> {
    let mut below = 0;
    let mut buckets: Vec<(f64, u64)> = Vec::with_capacity(bounds.len() + 1);
    for bound in bounds.iter().map(|bound| bound * unit) {
        let so_far = times.count_between(0, bound);
        buckets.push((bound as f64 / SECOND as f64, so_far - below));
        below = so_far;
    }
    buckets.push((f64::INFINITY, times.len() - below));
    buckets
}

/// The sums of one proxy.
type Sums<'a> = (&'a ProxyFigures, LoopFigures);

impl Collector for Series {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let proxies = self.0.proxies.lock().clone();
        let sums: Vec<Sums<'_>> = proxies.iter().map(|proxy| (&**proxy, proxy.sum())).collect();
        if sums.is_empty() {
            return Ok(());
        }
        let overhead_help = "Time from the start of a request, or of its window, until it is \
                             forwarded, without waiting for its limit";
        let wait_help = "Time that a request waited because of its limit";
        type Times = fn(&LoopFigures) -> &Mutex<Histogram<u64>>;
        let histograms: [(&str, &str, &[u64], Nanos, Times); 2] = [
            ("proxy_overhead_seconds", overhead_help, &OVERHEAD_BUCKETS_US, MICROSECOND, |sum| {
                &sum.overhead
            }),
            ("proxy_wait_seconds", wait_help, &WAIT_BUCKETS_MS, MILLISECOND, |sum| &sum.wait),
        ];
        for (name, help, bounds, unit, of) in histograms {
            let kind = MetricType::Histogram;
            let mut family = encoder.encode_descriptor(name, help, None, kind)?;
            for (proxy, sum) in &sums {
                let times = of(sum).lock();
                let total = times.mean() * times.len() as f64 / SECOND as f64;
                family.encode_family(&[("proxy", proxy.name())])?.encode_histogram::<NoLabelSet>(
                    total,
                    times.len(),
                    &buckets(&times, bounds, unit),
                    None,
                )?;
            }
        }
        encode_counters(&mut encoder, &sums)?;
        encode_gauges(&mut encoder, &sums)
    }
}

fn encode_counters(encoder: &mut DescriptorEncoder<'_>, sums: &[Sums<'_>]) -> fmt::Result {
    let errors_help = "Requests that failed at their upstream";
    let families = [
        ("proxy_responses", "Answers of proxies by class of status", "class", &CLASSES[..], 0),
        ("proxy_upstream_errors", errors_help, "kind", &UPSTREAM_ERRORS, ERRORS),
    ];
    for (name, help, label, labels, first) in families {
        let kind = MetricType::Counter;
        let mut family = encoder.encode_descriptor(name, help, None, kind)?;
        for (proxy, sum) in sums {
            for (value, count) in sum.labelled(labels, first) {
                let labels = [("proxy", proxy.name()), (label, value)];
                ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
            }
        }
    }
    Ok(())
}

fn encode_gauges(encoder: &mut DescriptorEncoder<'_>, sums: &[Sums<'_>]) -> fmt::Result {
    let kind = MetricType::Gauge;
    let help = "The overhead that this share of all requests since the start did not exceed";
    let name = "proxy_overhead_quantile_seconds";
    let mut family = encoder.encode_descriptor(name, help, None, kind)?;
    for (proxy, sum) in sums {
        for (share, label) in QUANTILES {
            let labels = [("proxy", proxy.name()), ("quantile", label)];
            let seconds = quantile(&sum.overhead.lock(), share) as f64 / SECOND as f64;
            ConstGauge::new(seconds).encode(family.encode_family(&labels)?)?;
        }
    }
    type Level = fn(&Sums<'_>) -> u64;
    let levels: [(&str, &str, Level); 3] = [
        ("proxy_connections", "Connected clients of proxies", |(_, sum)| sum.count(CONNECTIONS)),
        ("proxy_upstream_connections", "Connections to upstreams", |(_, sum)| {
            sum.count(UPSTREAM_CONNECTIONS)
        }),
        ("proxy_upstream_up", "Whether the last connection could be made", |(proxy, _)| {
            u64::from(proxy.upstream_up())
        }),
    ];
    for (name, help, of) in levels {
        let mut family = encoder.encode_descriptor(name, help, None, kind)?;
        for sums in sums {
            let value = i64::try_from(of(sums)).unwrap_or(i64::MAX);
            let labels = [("proxy", sums.0.name())];
            ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;

    #[test]
    fn figures_of_loops_are_added_up_and_used_again() {
        let proxies = Arc::<Proxies>::default();
        let figures = proxies.figures("api");
        let (one, other) = (figures.for_loop(), figures.for_loop());
        (1..=90).for_each(|_| one.overhead(100_000));
        (1..=10).for_each(|_| other.overhead(10_000_000));
        other.wait(3 * SECOND);
        one.answered(200);
        other.answered(204);
        other.answered(503);
        other.failed(UpstreamError::Timeout);
        one.connections(2);
        drop((one, other));
        figures.for_loop().answered(201);
        assert_eq!(figures.loops.lock().len(), 2, "those of a loop that has ended are taken over");

        let summary = &proxies.summaries()[0];
        let near = |found: f64, expected: f64| (found - expected).abs() <= expected / 100.0;
        assert_eq!(summary.overhead_ms.count, 100);
        assert!(near(summary.overhead_ms.p50, 0.1) && near(summary.overhead_ms.p90, 0.1));
        assert!(near(summary.overhead_ms.p95, 10.0) && near(summary.overhead_ms.p99, 10.0));
        assert!(near(summary.wait_ms.p50, 3000.0));
        assert_eq!((summary.responses["2xx"], summary.responses["5xx"]), (3, 1));
        assert_eq!(summary.upstream_errors["timeout"], 1);
        assert_eq!(summary.connections, 2);
        assert!(Arc::ptr_eq(&proxies.figures("api"), &figures));
    }

    #[test]
    fn prometheus_sees_them() {
        let proxies = Arc::<Proxies>::default();
        let metrics = Metrics::new();
        metrics.register(Box::new(Series(proxies.clone())));
        let figures = proxies.figures("api");
        let figures_of_loop = figures.for_loop();
        figures_of_loop.overhead(30_000);
        figures_of_loop.overhead(9 * SECOND);
        figures_of_loop.answered(404);
        assert_eq!((figures.connected(false), figures.connected(false)), (0, 1));
        let page = metrics.encode(Default::default());
        for line in [
            "tidegate_proxy_overhead_seconds_bucket{le=\"0.00002\",proxy=\"api\"} 0",
            "tidegate_proxy_overhead_seconds_bucket{le=\"0.00005\",proxy=\"api\"} 1",
            "tidegate_proxy_overhead_seconds_bucket{le=\"2.0\",proxy=\"api\"} 1",
            "tidegate_proxy_overhead_seconds_bucket{le=\"+Inf\",proxy=\"api\"} 2",
            "tidegate_proxy_overhead_seconds_count{proxy=\"api\"} 2",
            "tidegate_proxy_wait_seconds_count{proxy=\"api\"} 0",
            "tidegate_proxy_overhead_quantile_seconds{proxy=\"api\",quantile=\"0.5\"} 0.000030079",
            "tidegate_proxy_responses_total{proxy=\"api\",class=\"4xx\"} 1",
            "tidegate_proxy_upstream_errors_total{proxy=\"api\",kind=\"connect\"} 0",
            "tidegate_proxy_upstream_up{proxy=\"api\"} 0",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
        }
        assert_eq!((figures.connected(true), figures.connected(true)), (2, 0));
        assert!(figures.upstream_up());
    }
}
