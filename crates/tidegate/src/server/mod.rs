//! Spawns, binds, stops: the process around the limiter.
//!
//! Start-up is the first reload. From then on the process waits for a new configuration or for a
//! signal. Decisions are made on the doors' own loops.

mod notify;
mod open_doors;
mod process;
mod reload;
mod report;
mod upkeep;
mod xds;

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tidegate_core::rules::RuleSet;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::Receiver;

pub use self::open_doors::BindError;
use self::open_doors::{OpenDoors, say};
use self::process::Difference;
pub use self::process::Process;
use self::reload::{Loaded, Reloader};
use self::report::Report;
use self::upkeep::Upkeep;
use self::xds::XdsFeed;
use crate::clock::Clock;
use crate::config::Config;
use crate::config::file::{MemoryTable, ServerTable};
use crate::doors::grpc::{XdsResources, XdsUpdate};
use crate::doors::{DoorConfig as _, Gate};
use crate::limiter::Limiter;
use crate::logs::Logs;
use crate::metrics::Metrics;
use crate::records::Records;
use crate::settings::problem::Problems;
use crate::shutdown::Shutdown;
use crate::snapshot::BadPath;
use crate::stores::remote::settings::{self, StoreKind};

/// Why the server did not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] Problems),
    /// An address cannot be had.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The store cannot even be tried.
    #[error("the [store] cannot be used: {0}")]
    Store(String),
    /// The configuration does not fit what a management server has sent.
    #[error("{0}; it came over xDS, and conflicts with this file")]
    Xds(String),
    /// There can be no snapshot where the configuration wants it.
    #[error(transparent)]
    Snapshot(#[from] BadPath),
    /// The system gives no runtime or no signals.
    #[error("cannot start: {0}")]
    System(#[from] std::io::Error),
}

/// Serves every door of the named file, or of the default, until a signal stops it.
pub fn serve(named: Option<PathBuf>, logs: Logs) -> Result<(), ServeError> {
    let mut reloader = Reloader::start(named);
    let config = reloader.load()?;
    serve_until_told(config, Some(reloader), logs)
}

/// Serves the doors of a configuration without a file, which does not change, until a signal stops
/// it.
pub fn serve_fixed(config: Config, logs: Logs) -> Result<(), ServeError> {
    serve_until_told(config, None, logs)
}

fn serve_until_told(
    config: Config,
    reloader: Option<Reloader>,
    logs: Logs,
) -> Result<(), ServeError> {
    raise_file_limit();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let served = runtime.block_on(async {
        let mut signals = Signals::new()?;
        let mut server = Server::new(&config, logs);
        let file = reloader.as_ref().map(|reloader| reloader.source().name());
        if server.start(config, file.as_deref(), &mut signals.stop).await? {
            // Without a file, SIGHUP is ignored: the terminal that started the server may be gone.
            let reloads = reloader.map(|reloader| reloader.run(signals.hang_up));
            server.run(reloads, &mut signals.stop).await;
        }
        server.stop(&mut signals.stop).await;
        Ok(())
    });
    // What did not drain within the grace is not waited for.
    runtime.shutdown_background();
    served
}

/// Lets the process open as many files as it is allowed to: every connection is one, and what a
/// system allows by default is less than what doors are asked to hold.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    // Where that is refused, the doors make do with less.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// The signals that the process obeys.
struct Signals {
    stop: Stop,
    hang_up: Signal,
}

struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        let stop = Stop {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        };
        Ok(Self { stop, hang_up: signal(SignalKind::hangup())? })
    }
}

impl Stop {
    async fn told(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

struct Server {
    gate: Gate,
    process: Arc<Process>,
    doors: OpenDoors,
    upkeep: Upkeep,
    settings: ServerTable,
    store: settings::Settings,
    /// The configuration of the file alone, and what comes over xDS.
    base: Option<Config>,
    xds: XdsFeed,
    logs: Logs,
    /// Stops what runs beside the doors.
    shutdown: Shutdown,
}

impl Server {
    fn new(config: &Config, logs: Logs) -> Self {
        let clock = Clock::system();
        let metrics = Arc::new(Metrics::of_process(clock.now().unix));
        let memory = config.file.memory.settings();
        // The rules come with the first reload, like everything else.
        let limiter = Limiter::new(clock, metrics.clone(), RuleSet::default(), memory);
        let records = Records::beside(&limiter, config.file.memory.records().max_records);
        let process = Process::new(limiter.clone());
        let gate = Gate::new(limiter, records, metrics, process.clone());
        Self {
            doors: OpenDoors::new(gate.clone()),
            upkeep: Upkeep::new(&gate, process.state.clone()),
            base: None,
            xds: XdsFeed::new(gate.metrics.clone()),
            gate,
            process,
            settings: ServerTable::default(),
            store: settings::Settings::default(),
            logs,
            shutdown: Shutdown::new(),
        }
    }

    /// Opens every door, and serves those that decide once a remote store has answered or its
    /// `start_timeout` is over: before that a decision could only be made without the counts.
    /// `false` if a signal stopped the process meanwhile. `file` is where the configuration comes
    /// from.
    async fn start(
        &mut self,
        config: Config,
        file: Option<&str>,
        stop: &mut Stop,
    ) -> Result<bool, ServeError> {
        let store = &config.file.store;
        if store.kind != StoreKind::Memory {
            self.gate.limiter.use_store(store).map_err(ServeError::Store)?;
            self.doors.hold();
        }
        self.store = store.clone();
        self.apply(config).await?;
        if let Some(file) = file {
            tracing::info!(file, "configuration loaded");
        }
        self.gate.metrics.config_reload(true, self.gate.clock().now().unix);
        let (uses, shutdown) = (self.gate.uses.clone(), self.shutdown.clone());
        tokio::spawn(async move { uses.keep_lapsing(shutdown).await });
        let (waiting, shutdown) = (self.gate.waiting.clone(), self.shutdown.clone());
        thread::Builder::new()
            .name("waiting".to_owned())
            .spawn(move || waiting.keep_waking(&shutdown))
            .expect("the system has threads left at start-up");
        if self.gate.limiter.has_store() {
            notify::status("waiting for the first answer of the store");
        }
        tokio::select! {
            () = stop.told() => return Ok(false),
            () = self.gate.limiter.store_started() => {}
        }
        self.doors.serve_held();
        self.process.state.set_ready(true);
        say("ready");
        notify::ready("serving");
        notify::keep_alive();
        Ok(true)
    }

    /// Puts a configuration into effect, whole or not at all.
    async fn apply(&mut self, config: Config) -> Result<Report, ServeError> {
        let base = config.clone();
        let config = match self.xds.resources() {
            Some(resources) => config.with_xds(resources).map_err(ServeError::Xds)?,
            None => config,
        };
        let Config { file, written, warnings, .. } = config;
        self.upkeep.check_snapshot(file.snapshot.as_ref())?;
        let first = !self.process.state.is_ready();
        let grace = self.settings.shutdown_grace.0;
        let wanted = file.doors().into_iter().map(|door| door.boxed()).collect();
        let (gate, process, store, logs, upkeep) =
            (&self.gate, &self.process, &self.store, &self.logs, &mut self.upkeep);
        let mut rules = Difference::default();
        let commit = || {
            logs.set_format(file.server.log_format);
            resize(gate, &file.memory);
            if file.store != *store {
                tracing::warn!("the new [store] needs a restart; the old one stays until then");
            }
            warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
            rules = process.install(written);
            if rules.taken_back > 0 {
                let rules = rules.taken_back;
                tracing::warn!(rules, "changes made over the API are undone");
            }
            upkeep.set_snapshot(file.snapshot.clone());
            if first {
                // Before any door answers, so that no verdict is given without the past.
                upkeep.restore();
            }
        };
        let doors = self.doors.change(wanted, grace, commit).await?;
        self.xds.follow(file.xds());
        self.base = Some(base);
        self.settings = file.server;
        Ok(Report { rules, doors })
    }

    /// Puts in force what a management server has sent, whole or not at all, and answers it.
    fn take_update(&mut self, XdsUpdate { resources, answer }: XdsUpdate) {
        let taken = self.put_in_force(&resources);
        let answered = match taken {
            Ok(rules) => {
                report::log_update(&rules, &resources.version, resources.count());
                self.xds.keep(resources);
                Ok(())
            }
            Err(why) => Err(why),
        };
        // The stream may have ended meanwhile: what it brought is in force.
        let _ = answer.send(answered);
    }

    fn put_in_force(&mut self, resources: &XdsResources) -> Result<Difference, String> {
        let base = self.base.clone().ok_or("there is no configuration yet")?;
        let Config { file, written, .. } = base.with_xds(resources)?;
        let rules = self.process.renew(written);
        if let Some(grpc) = file.grpc {
            self.doors.renew(grpc.boxed());
        }
        Ok(rules)
    }

    /// Runs until a signal stops it. Without `reloads` there is no file to read again.
    async fn run(&mut self, mut reloads: Option<Receiver<Loaded>>, stop: &mut Stop) {
        loop {
            let loaded = async {
                match &mut reloads {
                    Some(reloads) => reloads.recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = stop.told() => return,
                Some(loaded) = loaded => self.reload(loaded).await,
                update = self.xds.next() => self.take_update(update),
                () = self.upkeep.turn() => {}
            }
        }
    }

    /// A bad configuration changes nothing; the log, the metrics and `/readyz` show it.
    async fn reload(&mut self, Loaded { config, file }: Loaded) {
        notify::reloading();
        let applied = match config {
            Ok(config) => self.apply(config).await.map_err(|error| error.to_string()),
            Err(problems) => Err(problems.plain()),
        };
        self.gate.metrics.config_reload(applied.is_ok(), self.gate.clock().now().unix);
        match &applied {
            Ok(report) => report.log(&file),
            Err(error) => {
                tracing::error!(file, "configuration not reloaded, nothing has changed: {error}");
            }
        }
        let status = match applied {
            Ok(_) => "serving",
            Err(_) => "serving; the last reload failed and changed nothing, see the log",
        };
        self.process.state.set_reload_error(applied.err());
        notify::ready(status);
    }

    /// Stops accepting, drains, and writes down what must be remembered. A second signal cuts
    /// the draining short.
    async fn stop(self, stop: &mut Stop) {
        tracing::info!("stopping");
        notify::stopping();
        self.process.state.set_ready(false);
        tokio::select! {
            in_time = self.doors.stop(self.settings.shutdown_grace.0) => {
                if !in_time {
                    tracing::warn!("some requests did not end within shutdown_grace");
                }
            }
            () = stop.told() => tracing::warn!("second signal to stop: not waiting any longer"),
        }
        self.shutdown.set();
        self.gate.limiter.close().await;
        self.upkeep.finish().await;
    }
}

/// Applies each bound by itself. The tables were reserved at the start, and cannot become larger.
fn resize(gate: &Gate, memory: &MemoryTable) {
    let keys = gate.limiter.resize(memory.settings());
    let records = gate.records.resize(memory.records());
    for (name, fits) in [("max_keys", keys), ("max_records", records)] {
        if !fits {
            tracing::warn!(
                "the new {name} of [memory] needs a restart; the old one stays until then"
            );
        }
    }
}
