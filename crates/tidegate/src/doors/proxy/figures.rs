//! What the proxies measure: how long they hold requests up, and what became of those.
//!
//! Each loop writes into a lane of its own, so that measuring never makes two cores meet; whoever
//! asks merges them. Overhead is what a request loses to the proxy itself, from the later of its
//! start and the start of its window until it is forwarded; what it loses to the limit is counted
//! apart, as waiting.

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
use tidegate_core::time::{HOUR, SECOND};

use crate::doors::{DoorReport, Gate};
use crate::metrics::Door;

/// The longest time that is told apart, in nanoseconds; waits may be longer.
const TIME_MAX: Nanos = 24 * HOUR;
/// Times are known to one part in a hundred.
const DIGITS: u8 = 2;
/// Upper bounds of the buckets that Prometheus sees, in nanoseconds.
const OVERHEAD_BUCKETS: [Nanos; 13] = [
    5_000,
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    5_000_000,
    20_000_000,
    100_000_000,
    500_000_000,
    2_000_000_000,
];
const WAIT_BUCKETS: [Nanos; 12] = [
    1_000_000,
    10_000_000,
    100_000_000,
    500_000_000,
    1_000_000_000,
    5_000_000_000,
    15_000_000_000,
    30_000_000_000,
    60_000_000_000,
    120_000_000_000,
    600_000_000_000,
    3_600_000_000_000,
];
/// The shares of requests that times are told of.
const QUANTILES: [f64; 4] = [0.5, 0.9, 0.95, 0.99];
const QUANTILE_LABELS: [&str; 4] = ["0.5", "0.9", "0.95", "0.99"];

/// How a request failed at its upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UpstreamError {
    /// No connection could be made.
    Connect,
    /// It failed a moment ago, and was not tried.
    BackingOff,
    /// No answer came in time.
    Timeout,
    /// The connection broke before the answer's head.
    Closed,
    /// The connection broke, or stood still, within the answer's body.
    Body,
    /// The answer was not HTTP, or none that can be handed on.
    Protocol,
}

const ERRORS: [(UpstreamError, &str); 6] = [
    (UpstreamError::Connect, "connect"),
    (UpstreamError::BackingOff, "backing_off"),
    (UpstreamError::Timeout, "timeout"),
    (UpstreamError::Closed, "closed"),
    (UpstreamError::Body, "body"),
    (UpstreamError::Protocol, "protocol"),
];

const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// What one loop of a proxy has measured. Only that loop writes.
pub(super) struct Lane {
    overhead: Mutex<Histogram<u64>>,
    wait: Mutex<Histogram<u64>>,
    classes: [AtomicU64; CLASSES.len()],
    errors: [AtomicU64; ERRORS.len()],
    connections: AtomicU64,
    upstream_connections: AtomicU64,
}

fn times() -> Histogram<u64> {
    // The bounds are constants that fit each other.
    Histogram::new_with_bounds(1, TIME_MAX, DIGITS).expect("the bounds of a histogram")
}

/// Adds where nobody else writes: no locked instruction.
fn bump(counter: &AtomicU64, by: i64) {
    counter.store(counter.load(Relaxed).wrapping_add_signed(by), Relaxed);
}

impl Lane {
    fn new() -> Self {
        Self {
            overhead: times().into(),
            wait: times().into(),
            classes: Default::default(),
            errors: Default::default(),
            connections: AtomicU64::new(0),
            upstream_connections: AtomicU64::new(0),
        }
    }

    /// Notes what the proxy itself cost a request that was forwarded.
    pub(crate) fn overhead(&self, nanos: Nanos) {
        self.overhead.lock().saturating_record(nanos.max(1));
    }

    /// Notes how long a request waited because of its limit.
    pub(crate) fn wait(&self, nanos: Nanos) {
        self.wait.lock().saturating_record(nanos.max(1));
    }

    /// Counts an answer by its status.
    pub(crate) fn answered(&self, status: u16) {
        let class = usize::from(status / 100).clamp(1, CLASSES.len()) - 1;
        bump(&self.classes[class], 1);
    }

    /// Counts a request that failed at its upstream.
    pub(crate) fn failed(&self, error: UpstreamError) {
        bump(&self.errors[error as usize], 1);
    }

    /// Notes that clients came or went.
    pub(crate) fn connections(&self, by: i64) {
        bump(&self.connections, by);
    }

    /// Notes that connections to the upstream were made or ended.
    pub(crate) fn upstream_connections(&self, by: i64) {
        bump(&self.upstream_connections, by);
    }
}

/// What all loops of one proxy have measured.
pub(super) struct ProxyFigures {
    name: String,
    lanes: Mutex<Vec<Arc<Lane>>>,
    /// Failures to connect, one after another, until one succeeded; over all loops.
    failures: AtomicU64,
}

impl ProxyFigures {
    /// A lane for one loop: one that a loop before it has left, if there is any.
    pub(crate) fn lane(&self) -> Arc<Lane> {
        let mut lanes = self.lanes.lock();
        if let Some(left) = lanes.iter().find(|lane| Arc::strong_count(lane) == 1) {
            return left.clone();
        }
        let lane = Arc::new(Lane::new());
        lanes.push(lane.clone());
        lane
    }

    /// Notes whether a connection to the upstream could be made. Tells how many could not before
    /// it, one after another.
    pub(crate) fn connected(&self, made: bool) -> u64 {
        match made {
            true if self.failures.load(Relaxed) == 0 => 0,
            true => self.failures.swap(0, Relaxed),
            false => self.failures.fetch_add(1, Relaxed),
        }
    }

    /// The proxy's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether the last connection to the upstream could be made.
    fn upstream_up(&self) -> bool {
        self.failures.load(Relaxed) == 0
    }

    fn sum(&self) -> Sum {
        let mut sum = Sum { overhead: times(), wait: times(), ..Sum::default() };
        for lane in self.lanes.lock().iter() {
            // All have the same bounds, so adding them does not fail.
            let _ = sum.overhead.add(&*lane.overhead.lock());
            let _ = sum.wait.add(&*lane.wait.lock());
            let add = |into: &mut [u64], from: &[AtomicU64]| {
                into.iter_mut().zip(from).for_each(|(into, from)| *into += from.load(Relaxed));
            };
            add(&mut sum.classes, &lane.classes);
            add(&mut sum.errors, &lane.errors);
            sum.connections += lane.connections.load(Relaxed);
            sum.upstream_connections += lane.upstream_connections.load(Relaxed);
        }
        sum
    }
}

struct Sum {
    overhead: Histogram<u64>,
    wait: Histogram<u64>,
    classes: [u64; CLASSES.len()],
    errors: [u64; ERRORS.len()],
    connections: u64,
    upstream_connections: u64,
}

impl Default for Sum {
    fn default() -> Self {
        Self {
            overhead: times(),
            wait: times(),
            classes: Default::default(),
            errors: Default::default(),
            connections: 0,
            upstream_connections: 0,
        }
    }
}

/// A count of times, with those that half, and nearly all, of them stay below.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
struct Quantiles {
    /// How many times there are.
    count: u64,
    /// Half of them are at most this, in milliseconds.
    p50: f64,
    /// Nine in ten.
    p90: f64,
    /// Nineteen in twenty.
    p95: f64,
    /// Ninety-nine in a hundred.
    p99: f64,
    /// The longest.
    max: f64,
}

impl Quantiles {
    fn of(times: &Histogram<u64>) -> Self {
        let ms = |nanos: u64| nanos as f64 / 1e6;
        let [p50, p90, p95, p99] = quantiles(times).map(ms);
        Self { count: times.len(), p50, p90, p95, p99, max: ms(times.max()) }
    }
}

/// What each share of the times stays below.
fn quantiles(times: &Histogram<u64>) -> [Nanos; QUANTILES.len()] {
    QUANTILES.map(|share| if times.is_empty() { 0 } else { times.value_at_quantile(share) })
}

/// One proxy as the JSON shows it.
#[derive(Clone, Debug, serde::Serialize)]
struct ProxySummary {
    name: String,
    upstream_up: bool,
    connections: u64,
    upstream_connections: u64,
    overhead_ms: Quantiles,
    wait_ms: Quantiles,
    responses: std::collections::BTreeMap<&'static str, u64>,
    upstream_errors: std::collections::BTreeMap<&'static str, u64>,
}

/// The figures of all proxies there have been since the start, by name.
#[derive(Default)]
pub(super) struct Proxies {
    proxies: Mutex<Vec<Arc<ProxyFigures>>>,
}

impl Proxies {
    /// The figures of the proxy `name`, which may have been open before.
    pub(super) fn figures(&self, name: &str) -> Arc<ProxyFigures> {
        let mut proxies = self.proxies.lock();
        if let Some(known) = proxies.iter().find(|proxy| proxy.name == name) {
            return known.clone();
        }
        let figures = Arc::new(ProxyFigures {
            name: name.to_owned(),
            lanes: Mutex::default(),
            failures: AtomicU64::new(0),
        });
        proxies.push(figures.clone());
        figures
    }

    /// What there is to say about each proxy.
    fn summaries(&self) -> Vec<ProxySummary> {
        let proxies = self.proxies.lock().clone();
        let summary = |proxy: &Arc<ProxyFigures>| {
            let sum = proxy.sum();
            ProxySummary {
                name: proxy.name.clone(),
                upstream_up: proxy.upstream_up(),
                connections: sum.connections,
                upstream_connections: sum.upstream_connections,
                overhead_ms: Quantiles::of(&sum.overhead),
                wait_ms: Quantiles::of(&sum.wait),
                responses: CLASSES.into_iter().zip(sum.classes).collect(),
                upstream_errors: ERRORS.map(|(_, kind)| kind).into_iter().zip(sum.errors).collect(),
            }
        };
        proxies.iter().map(summary).collect()
    }

    /// Those of the process: proxies come and go with reloads, and their figures stay.
    pub(super) fn of(gate: &Gate) -> Arc<Self> {
        gate.shared.part(|| {
            let proxies = Arc::<Self>::default();
            gate.metrics.register(proxies.clone().collector());
            gate.shared.add_report(Door::Proxy, proxies.clone());
            proxies
        })
    }

    /// The series that Prometheus sees.
    fn collector(self: Arc<Self>) -> Box<dyn Collector> {
        Box::new(Series(self))
    }
}

impl DoorReport for Proxies {
    fn rows(&self) -> String {
        // Only maps with keys that are not strings can fail to encode, and there are none here.
        serde_json::to_string(&self.summaries()).unwrap_or_default()
    }
}

/// One of the histograms of a sum.
type Times = fn(&Sum) -> &Histogram<u64>;
/// One of the levels of a proxy: its name, whether its upstream is up, and its sum.
type Level = fn(&(&str, bool, Sum)) -> u64;

struct Series(Arc<Proxies>);

impl fmt::Debug for Series {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Series")
    }
}

/// Counts of what is at most each bound, as a histogram's encoder takes them: apart.
fn buckets(times: &Histogram<u64>, bounds: &[Nanos]) -> Vec<(f64, u64)> {
    let mut below = 0;
    let mut buckets: Vec<(f64, u64)> = Vec::with_capacity(bounds.len() + 1);
    for &bound in bounds {
        let so_far = times.count_between(0, bound);
        buckets.push((bound as f64 / SECOND as f64, so_far - below));
        below = so_far;
    }
    buckets.push((f64::INFINITY, times.len() - below));
    buckets
}

impl Collector for Series {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let proxies = self.0.proxies.lock().clone();
        let sums: Vec<(&str, bool, Sum)> =
            proxies.iter().map(|p| (p.name.as_str(), p.upstream_up(), p.sum())).collect();
        if sums.is_empty() {
            return Ok(());
        }
        let pick: [(&str, &str, &[Nanos], Times); 2] = [
            (
                "proxy_overhead_seconds",
                "Time from the start of a request, or of its window, until it is forwarded, \
                 without waiting for its limit",
                &OVERHEAD_BUCKETS,
                |sum| &sum.overhead,
            ),
            (
                "proxy_wait_seconds",
                "Time that a request waited because of its limit",
                &WAIT_BUCKETS,
                |sum| &sum.wait,
            ),
        ];
        for (name, help, bounds, of) in pick {
            let kind = MetricType::Histogram;
            let mut family = encoder.encode_descriptor(name, help, None, kind)?;
            for (proxy, _, sum) in &sums {
                let times = of(sum);
                let total = times.mean() * times.len() as f64 / SECOND as f64;
                family.encode_family(&[("proxy", *proxy)])?.encode_histogram::<NoLabelSet>(
                    total,
                    times.len(),
                    &buckets(times, bounds),
                    None,
                )?;
            }
        }
        counters(&mut encoder, &sums)?;
        gauges(&mut encoder, &sums)
    }
}

fn counters(encoder: &mut DescriptorEncoder<'_>, sums: &[(&str, bool, Sum)]) -> fmt::Result {
    let kind = ConstCounter::new(0u64).metric_type();
    let help = "Answers of proxies by class of status";
    let mut family = encoder.encode_descriptor("proxy_responses", help, None, kind)?;
    for (proxy, _, sum) in sums {
        for (class, count) in CLASSES.into_iter().zip(sum.classes) {
            let labels = [("proxy", *proxy), ("class", class)];
            ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
        }
    }
    let help = "Requests that failed at their upstream";
    let mut family = encoder.encode_descriptor("proxy_upstream_errors", help, None, kind)?;
    for (proxy, _, sum) in sums {
        for ((_, error), count) in ERRORS.into_iter().zip(sum.errors) {
            let labels = [("proxy", *proxy), ("kind", error)];
            ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

fn gauges(encoder: &mut DescriptorEncoder<'_>, sums: &[(&str, bool, Sum)]) -> fmt::Result {
    let kind = ConstGauge::new(0.0).metric_type();
    let help = "The overhead that this share of all requests since the start stayed below";
    let name = "proxy_overhead_quantile_seconds";
    let mut family = encoder.encode_descriptor(name, help, None, kind)?;
    for (proxy, _, sum) in sums {
        for (quantile, time) in QUANTILE_LABELS.into_iter().zip(quantiles(&sum.overhead)) {
            let labels = [("proxy", *proxy), ("quantile", quantile)];
            let seconds = time as f64 / SECOND as f64;
            ConstGauge::new(seconds).encode(family.encode_family(&labels)?)?;
        }
    }
    let pick: [(&str, &str, Level); 3] = [
        ("proxy_connections", "Connected clients of proxies", |(_, _, sum)| sum.connections),
        ("proxy_upstream_connections", "Connections to upstreams", |(_, _, sum)| {
            sum.upstream_connections
        }),
        ("proxy_upstream_up", "Whether the last connection could be made", |(_, up, _)| {
            u64::from(*up)
        }),
    ];
    for (name, help, of) in pick {
        let kind = ConstGauge::new(0i64).metric_type();
        let mut family = encoder.encode_descriptor(name, help, None, kind)?;
        for sum in sums {
            let labels = [("proxy", sum.0)];
            let value = i64::try_from(of(sum)).unwrap_or(i64::MAX);
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
    fn lanes_are_merged_and_used_again() {
        let proxies = Arc::<Proxies>::default();
        let figures = proxies.figures("api");
        let (one, other) = (figures.lane(), figures.lane());
        (1..=90).for_each(|_| one.overhead(100_000));
        (1..=10).for_each(|_| other.overhead(10_000_000));
        other.wait(3 * SECOND);
        one.answered(200);
        other.answered(204);
        other.answered(503);
        other.failed(UpstreamError::Timeout);
        one.connections(2);
        drop((one, other));
        figures.lane().answered(201);
        assert_eq!(figures.lanes.lock().len(), 2, "a lane that was left is taken over");

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
        metrics.register(proxies.clone().collector());
        let figures = proxies.figures("api");
        let lane = figures.lane();
        lane.overhead(30_000);
        lane.overhead(9 * SECOND);
        lane.answered(404);
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
