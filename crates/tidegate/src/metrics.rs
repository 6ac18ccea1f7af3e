//! The counters of the process, and their page for Prometheus.
//!
//! Decisions are counted in stripes, one for each door loop, so that counting never makes two cores
//! meet; a scrape sums them. Everything else is rare enough for an ordinary registry.

mod process;
mod scrape;

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{EncodeLabelSet, LabelValueEncoder, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use tidegate_core::Nanos;
use tidegate_core::time::SECOND;

use self::process::ProcessSeries;
use self::scrape::Scrape;
pub use self::scrape::Sizes;

/// The most door loops that count apart at one time; more share the last stripe.
const STRIPES_MAX: usize = 256;
/// What the names of all series begin with, but those of other programs.
const PREFIX: &str = "tidegate";
/// What keys are counted under that no rule matches.
const NO_RULE: &str = "none";

/// The protocols that listeners can speak, by the names of their configuration tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "each is named after its protocol")]
pub enum Door {
    Text,
    Throttr,
    Jarl,
    Smockron,
    Proxy,
    Http,
    Admin,
    Grpc,
    Resp,
}

impl Door {
    /// The name in configuration files, `listening` lines and labels.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Door::Text => "text",
            Door::Throttr => "throttr",
            Door::Jarl => "jarl",
            Door::Smockron => "smockron",
            Door::Proxy => "proxy",
            Door::Http => "http",
            Door::Admin => "admin",
            Door::Grpc => "grpc",
            Door::Resp => "resp",
        }
    }
}

impl prometheus_client::encoding::EncodeLabelValue for Door {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        self.name().encode(encoder)
    }
}

/// What became of a decision, as it is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum CountedAs {
    Allow,
    Delay,
    Refuse,
    Shadow,
}

const COUNTED: [(CountedAs, &str); 4] = [
    (CountedAs::Allow, "allow"),
    (CountedAs::Delay, "delay"),
    (CountedAs::Refuse, "refuse"),
    (CountedAs::Shadow, "shadow"),
];

/// One rule's counts in one stripe.
type Cell = [AtomicU64; COUNTED.len()];

/// A rule as it is shown: its name, and its policy for a remote store that fails.
pub(crate) type RuleLabels = (Arc<str>, &'static str);

/// The counts of all rules of one configuration, in stripes.
pub(crate) struct DecisionCounts {
    rules: Vec<RuleLabels>,
    stripes: [OnceLock<Box<[Cell]>>; STRIPES_MAX],
    /// Decisions that were made without the remote store they belong to.
    degraded: [OnceLock<Box<[AtomicU64]>>; STRIPES_MAX],
}

impl DecisionCounts {
    fn new(rules: Vec<RuleLabels>) -> Self {
        let stripes = [const { OnceLock::new() }; STRIPES_MAX];
        Self { rules, stripes, degraded: [const { OnceLock::new() }; STRIPES_MAX] }
    }

    /// Counts a decision of the rule at this position that was made without its remote store.
    pub(crate) fn add_degraded(&self, stripe: usize, rule: usize) {
        let cells = self.degraded[stripe]
            .get_or_init(|| self.rules.iter().map(|_| AtomicU64::default()).collect());
        cells[rule].fetch_add(1, Relaxed);
    }

    fn each_degraded(&self, doors: &[Door], mut see: impl FnMut(Door, (usize, &RuleLabels), u64)) {
        for (stripe, door) in self.degraded.iter().zip(doors) {
            let cells = stripe.get().into_iter().flatten();
            for (rule, count) in self.rules.iter().enumerate().zip(cells) {
                see(*door, rule, count.load(Relaxed));
            }
        }
    }

    /// Counts decisions of the rule at this position; `None` where no rule matched.
    #[inline]
    pub(crate) fn add(
        &self,
        stripe: usize,
        rule: Option<usize>,
        counted: CountedAs,
        decisions: u64,
    ) {
        let cells = self.stripes[stripe]
            .get_or_init(|| (0..=self.rules.len()).map(|_| Cell::default()).collect());
        cells[rule.unwrap_or(self.rules.len())][counted as usize].fetch_add(decisions, Relaxed);
    }

    fn each(&self, doors: &[Door], mut see: impl FnMut(Door, (usize, &Arc<str>), usize, u64)) {
        let none: Arc<str> = NO_RULE.into();
        let names = || self.rules.iter().map(|(name, _)| name).chain([&none]);
        for (stripe, door) in self.stripes.iter().zip(doors) {
            let Some(cells) = stripe.get() else { continue };
            for (rule, cell) in names().enumerate().zip(cells) {
                for (kind, count) in cell.iter().enumerate() {
                    let count = count.load(Relaxed);
                    if count > 0 {
                        see(*door, rule, kind, count);
                    }
                }
            }
        }
    }
}

/// Counts of all doors and rules, summed over stripes and configurations.
#[derive(Clone, Default)]
struct Totals {
    decisions: BTreeMap<(Door, Arc<str>), [u64; COUNTED.len()]>,
    degraded: BTreeMap<(Door, RuleLabels), u64>,
}

impl Totals {
    fn add(&mut self, Open { counts, shown }: &Open, doors: &[Door]) {
        // What no rule matched has no place among the rules.
        let is_shown = |rule: usize| shown.get(rule).is_none_or(|shown| *shown);
        counts.each(doors, |door, (at, rule), kind, count| {
            if is_shown(at) {
                self.decisions.entry((door, rule.clone())).or_default()[kind] += count;
            }
        });
        counts.each_degraded(doors, |door, (at, rule), count| {
            if count > 0 && is_shown(at) {
                *self.degraded.entry((door, rule.clone())).or_default() += count;
            }
        });
    }
}

/// The counts of one configuration, and which of its rules are shown.
struct Open {
    counts: Arc<DecisionCounts>,
    /// Not so once a later configuration has had no such rule: one that comes back begins anew.
    shown: Vec<bool>,
}

#[derive(Default)]
struct Books {
    /// Which door each stripe counts for.
    doors: Vec<Door>,
    /// Stripes whose loop has ended.
    free: Vec<usize>,
    /// Counts of configurations that are in use, or were and may still be written to.
    open: Vec<Open>,
    /// Counts of configurations that no loop writes to any more.
    closed: Totals,
}

impl Books {
    /// Folds the counts of configurations that are gone into the totals.
    fn close_retired(&mut self) {
        let Self { doors, open, closed, .. } = self;
        open.retain_mut(|open| {
            // Only this list holds it: its configuration is gone and no loop can add any more.
            let retired = Arc::get_mut(&mut open.counts).is_some();
            if retired {
                closed.add(open, doors);
            }
            !retired
        });
    }

    /// Forgets the counts of rules that a new configuration does not have, so that series do not
    /// pile up over many reloads.
    fn forget_all_but(&mut self, rules: &[RuleLabels]) {
        let names: HashSet<&str> = rules.iter().map(|(name, _)| &**name).chain([NO_RULE]).collect();
        self.closed.decisions.retain(|(_, rule), _| names.contains(&**rule));
        self.closed.degraded.retain(|(_, (rule, _)), _| names.contains(&**rule));
        for Open { counts, shown } in &mut self.open {
            for ((name, _), shown) in counts.rules.iter().zip(shown) {
                *shown &= names.contains(&**name);
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BadInput {
    door: Door,
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DoorLabel {
    door: Door,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ActionLabel {
    action: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StatusLabel {
    status: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LostLabel {
    door: Door,
    what: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PeersLabel {
    door: Door,
    socket: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StoreLabel {
    store: &'static str,
    kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FromLabel {
    from: &'static str,
}

/// What became of snapshots.
#[derive(Default)]
struct Snapshots {
    last_success: Gauge<f64, AtomicU64>,
    failures: Counter,
    restored: Family<FromLabel, Gauge>,
}

impl Snapshots {
    fn register(registry: &mut Registry) -> Self {
        let Self { last_success, failures, restored } = Self::default();
        registry.register(
            "snapshot_last_success_timestamp_seconds",
            "When the newest snapshot was started; 0 if there is none",
            last_success.clone(),
        );
        registry.register("snapshot_failures", "Snapshots that were not written", failures.clone());
        registry.register(
            "snapshot_restored",
            "Which snapshot was restored at the start",
            restored.clone(),
        );
        Self { last_success, failures, restored }
    }
}

/// What became of configurations.
#[derive(Default)]
struct Reloads {
    read: Family<ResultLabel, Counter>,
    last_successful: Gauge,
    last_success: Gauge<f64, AtomicU64>,
}

impl Reloads {
    fn register(registry: &mut Registry) -> Self {
        let Self { read, last_successful, last_success } = Self::default();
        registry.register("config_reloads", "Configurations read", read.clone());
        registry.register(
            "config_last_reload_successful",
            "1 if the newest configuration is in force, 0 if it was refused",
            last_successful.clone(),
        );
        registry.register(
            "config_last_reload_success_timestamp_seconds",
            "When the configuration in force was read",
            last_success.clone(),
        );
        Self { read, last_successful, last_success }
    }
}

/// Everything that is counted in this process.
pub struct Metrics {
    books: Arc<Mutex<Books>>,
    bad_input: Family<BadInput, Counter>,
    decision_seconds: Family<DoorLabel, Histogram>,
    reloads: Reloads,
    full: Family<ActionLabel, Counter>,
    waiting: Family<DoorLabel, Gauge>,
    waiting_max: Family<DoorLabel, Gauge>,
    rule_changes: Family<ActionLabel, Counter>,
    accounting: Family<StatusLabel, Counter>,
    lost: Family<LostLabel, Counter>,
    peers: Family<PeersLabel, Gauge>,
    store_errors: Family<StoreLabel, Counter>,
    xds_updates: Family<ResultLabel, Counter>,
    snapshots: Snapshots,
    sizes: Arc<Mutex<Sizes>>,
    registry: Mutex<Registry>,
    /// Of the process as any other: its series have the names that all programs give them.
    process: ProcessSeries,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Nothing counted yet.
    #[must_use]
    pub fn new() -> Self {
        Self::of_process(0)
    }

    /// Nothing counted yet, for a process that began at this Unix time.
    #[must_use]
    pub fn of_process(began_at: Nanos) -> Self {
        let process = ProcessSeries { began_at };
        let books = Arc::new(Mutex::new(Books::default()));
        let sizes = Arc::new(Mutex::new(Sizes::default()));
        let bad_input = Family::<BadInput, Counter>::default();
        let full = Family::<ActionLabel, Counter>::default();
        for action in ["share", "deny", "allow"] {
            // rate() does not see the first event of a series that begins with it.
            let _ = full.get_or_create(&ActionLabel { action });
        }
        let waiting = Family::<DoorLabel, Gauge>::default();
        let waiting_max = Family::<DoorLabel, Gauge>::default();
        let rule_changes = Family::<ActionLabel, Counter>::default();
        let accounting = Family::<StatusLabel, Counter>::default();
        let lost = Family::<LostLabel, Counter>::default();
        let peers = Family::<PeersLabel, Gauge>::default();
        let store_errors = Family::<StoreLabel, Counter>::default();
        let xds_updates = Family::<ResultLabel, Counter>::default();
        let decision_seconds = Family::<DoorLabel, Histogram>::new_with_constructor(|| {
            Histogram::new(exponential_buckets(1e-8, 4.0, 12))
        });
        let mut whole = Registry::default();
        let registry = whole.sub_registry_with_prefix(PREFIX);
        registry.register("bad_input", "Input that was not answered, by reason", bad_input.clone());
        registry.register(
            "decision_seconds",
            "Time for one decision, sampled",
            decision_seconds.clone(),
        );
        let reloads = Reloads::register(registry);
        registry.register("table_full", "New keys that found no free slot", full.clone());
        registry.register("waiting", "Requests that wait for their turn", waiting.clone());
        registry.register("waiting_max", "The most requests that may wait", waiting_max.clone());
        registry.register("rule_changes", "Rules changed over the API", rule_changes.clone());
        registry.register("accounting", "Requests that gatekeepers reported", accounting.clone());
        registry.register("lost", "What was dropped instead of waiting", lost.clone());
        registry.register("peers", "Connected peers", peers.clone());
        registry.register("store_errors", "Failures of the store", store_errors.clone());
        registry.register("xds_updates", "Configurations sent over xDS", xds_updates.clone());
        let snapshots = Snapshots::register(registry);
        registry.register(
            "build",
            "The version that is running",
            Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]),
        );
        registry
            .register_collector(Box::new(Scrape { books: books.clone(), sizes: sizes.clone() }));
        let registry = whole.into();
        Self {
            books,
            bad_input,
            decision_seconds,
            reloads,
            full,
            waiting,
            waiting_max,
            rule_changes,
            accounting,
            lost,
            peers,
            store_errors,
            xds_updates,
            snapshots,
            sizes,
            registry,
            process,
        }
    }

    /// Adds series that other code counts and sums when a page is asked for.
    pub fn register(&self, collector: Box<dyn Collector>) {
        self.registry.lock().sub_registry_with_prefix(PREFIX).register_collector(collector);
    }

    /// The same for series whose names are another program's.
    pub(crate) fn register_unprefixed(&self, collector: Box<dyn Collector>) {
        self.registry.lock().register_collector(collector);
    }

    /// Counts input that a door did not answer, or answered with an error.
    pub fn bad_input(&self, door: Door, reason: &'static str) {
        self.bad_input.get_or_create(&BadInput { door, reason }).inc();
    }

    /// Counts a configuration that was read at this Unix time, and whether it was good.
    pub fn config_reload(&self, ok: bool, at: Nanos) {
        let result = if ok { "ok" } else { "error" };
        self.reloads.read.get_or_create(&ResultLabel { result }).inc();
        self.reloads.last_successful.set(ok.into());
        if ok {
            self.reloads.last_success.set(at as f64 / SECOND as f64);
        }
    }

    /// Counts a configuration that a management server sent, and whether it was good.
    pub(crate) fn xds_update(&self, ok: bool) {
        let result = if ok { "ok" } else { "error" };
        self.xds_updates.get_or_create(&ResultLabel { result }).inc();
    }

    /// The counters of configurations that were good, or not: files, and what came over xDS.
    pub(crate) fn config_loads(&self, ok: bool) -> [Counter; 2] {
        let result = if ok { "ok" } else { "error" };
        [&self.reloads.read, &self.xds_updates]
            .map(|it| it.get_or_create_owned(&ResultLabel { result }))
    }

    /// Says when the newest snapshot on disk was begun, in Unix time.
    pub fn snapshot_written(&self, at: Nanos) {
        self.snapshots.last_success.set(at as f64 / SECOND as f64);
    }

    /// Counts a snapshot that could not be written.
    pub fn snapshot_failed(&self) {
        self.snapshots.failures.inc();
    }

    /// Says which snapshot was restored at the start.
    pub fn snapshot_restored(&self, from: &'static str) {
        self.snapshots.restored.get_or_create(&FromLabel { from }).set(1);
    }

    /// Counts a rule that was set or restored over the API.
    pub fn rule_change(&self, action: &'static str) {
        self.rule_changes.get_or_create(&ActionLabel { action }).inc();
    }

    /// Everything in Prometheus' text form, with the process as is said.
    #[must_use]
    pub fn encode(&self, sizes: Sizes) -> String {
        *self.sizes.lock() = sizes;
        let mut page = String::new();
        // Writing to a string does not fail.
        let _ = text::encode_registry(&mut page, &self.registry.lock());
        let _ = self.process.write(&mut page);
        let _ = text::encode_eof(&mut page);
        page
    }

    /// The gauge of requests that wait at a door, for its `WaiterLimit`.
    pub(crate) fn waiting(&self, door: Door) -> Gauge {
        self.waiting.get_or_create_owned(&DoorLabel { door })
    }

    /// The gauge of the most requests that may wait at a door, for its `WaiterLimit`.
    pub(crate) fn waiting_max(&self, door: Door) -> Gauge {
        self.waiting_max.get_or_create_owned(&DoorLabel { door })
    }

    /// The counter of requests that gatekeepers reported with this status, for a loop to keep.
    pub(crate) fn accounting(&self, status: &'static str) -> Counter {
        self.accounting.get_or_create_owned(&StatusLabel { status })
    }

    /// The counter of what a door dropped instead of waiting, for a loop to keep.
    pub(crate) fn lost(&self, door: Door, what: &'static str) -> Counter {
        self.lost.get_or_create_owned(&LostLabel { door, what })
    }

    /// The gauge of peers that are connected to a socket of a door, for its watcher to keep.
    pub(crate) fn peers(&self, door: Door, socket: &'static str) -> Gauge {
        self.peers.get_or_create_owned(&PeersLabel { door, socket })
    }

    /// Counts a failure of the store, or a decision that was made without it.
    pub(crate) fn store_error(&self, store: &'static str, kind: &'static str) {
        self.store_errors.get_or_create(&StoreLabel { store, kind }).inc();
    }

    pub(crate) fn table_full(&self, action: &'static str) {
        self.full.get_or_create(&ActionLabel { action }).inc();
    }

    pub(crate) fn decision_seconds(&self, door: Door, seconds: f64) {
        self.decision_seconds.get_or_create(&DoorLabel { door }).observe(seconds);
    }

    /// A place to count for one loop of a door.
    pub(crate) fn counter_stripe(&self, door: Door) -> usize {
        // A series that appears only once something was sampled cannot be waited for.
        let _ = self.decision_seconds.get_or_create(&DoorLabel { door });
        let mut books = self.books.lock();
        if let Some(at) = books.free.iter().position(|&stripe| books.doors[stripe] == door) {
            return books.free.swap_remove(at);
        }
        if books.doors.len() < STRIPES_MAX {
            books.doors.push(door);
        }
        books.doors.len() - 1
    }

    /// Gives a stripe back when its loop ends.
    pub(crate) fn leave(&self, stripe: usize) {
        let mut books = self.books.lock();
        // The last stripe may have had several loops.
        if !books.free.contains(&stripe) {
            books.free.push(stripe);
        }
    }

    /// Opens the counts of a new configuration.
    pub(crate) fn counts(&self, rules: Vec<RuleLabels>) -> Arc<DecisionCounts> {
        let counts = Arc::new(DecisionCounts::new(rules));
        let mut books = self.books.lock();
        books.close_retired();
        books.forget_all_but(&counts.rules);
        let shown = vec![true; counts.rules.len()];
        books.open.push(Open { counts: counts.clone(), shown });
        counts
    }
}
