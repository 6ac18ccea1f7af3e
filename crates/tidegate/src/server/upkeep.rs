//! What the server does now and then, beside the doors: it sweeps dead keys, has freed memory given
//! back to the system, and writes snapshots.

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::config::file::SnapshotTable;
use crate::control::ProcessState;
use crate::doors::Gate;
use crate::limiter::Limiter;
use crate::metrics::Metrics;
use crate::records::Records;
use crate::snapshot::{
    self, Aside, BadPath, FoundSnapshot, Restored, Snapshot, SnapshotSource, Unusable,
};

/// How often the table is swept.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// Sweeps after which every slot has been looked at.
const SWEEPS_PER_ROUND: usize = 60;
/// The fewest slots that a sweep looks at.
const SWEEP_SLOTS_MIN: usize = 4096;
/// Slots that a sweep looks at in one go. That takes less time than requests usually wait.
const SWEEP_SLICE: usize = 256;
/// How long a sweep pauses after each slice, so that others get the core.
const SWEEP_PAUSE: Duration = Duration::from_micros(500);
/// If at least one in so many slots of a slice was dead, the sweep goes on with another slice.
const SWEEP_RICH: usize = 8;

/// mimalloc gives freed memory back to the system a second later, but only when it frees one of its
/// pages again: an idle server would keep what clients have made it take. A block of this size has
/// such a page for itself.
const PAGE_BLOCK_BYTES: usize = 1 << 20;

/// Runs beside the doors. A turn is short: the work itself is done on threads for blocking work,
/// one of each kind at a time.
pub(super) struct Upkeep {
    kept: Arc<Kept>,
    sweep: Chore,
    snapshot: Option<SnapshotTable>,
    /// One for all paths: two writers at once could take each other's file for their own.
    write: Chore,
}

/// What is swept and written, and where the results go.
struct Kept {
    limiter: Arc<Limiter>,
    records: Arc<Records>,
    metrics: Arc<Metrics>,
    state: Arc<ProcessState>,
}

impl Upkeep {
    pub(super) fn new(gate: &Gate, state: Arc<ProcessState>) -> Self {
        let (limiter, records) = (gate.limiter.clone(), gate.records.clone());
        let kept = Arc::new(Kept { limiter, records, metrics: gate.metrics.clone(), state });
        let write = Chore::new(SnapshotTable::default().every.0);
        Self { kept, sweep: Chore::new(SWEEP_EVERY), snapshot: None, write }
    }

    /// Reads back what an earlier process wrote.
    pub(super) fn restore(&self) {
        if let Some(SnapshotTable { path, .. }) = &self.snapshot {
            self.kept.restore(path);
        }
    }

    /// Whether snapshots can be kept where `table` says. What is in use already has been checked.
    pub(super) fn check_snapshot(&self, table: Option<&SnapshotTable>) -> Result<(), BadPath> {
        let used = self.snapshot.as_ref().map(|table| &table.path);
        match table.map(|table| &table.path) {
            Some(path) if Some(path) != used => snapshot::check(path),
            _ => Ok(()),
        }
    }

    /// Changes where and how often the snapshot is written; `None` to write none.
    pub(super) fn set_snapshot(&mut self, table: Option<SnapshotTable>) {
        if self.snapshot != table {
            if let Some(table) = &table {
                self.write.set_every(table.every.0);
            }
            self.snapshot = table;
        }
    }

    /// Waits for whatever is due next and begins it. Giving up waiting loses nothing.
    pub(super) async fn turn(&mut self) {
        let Self { kept, sweep, snapshot, write } = self;
        let kept = kept.clone();
        match snapshot {
            None => {
                sweep.due().await;
                sweep.begin(move || sweep_some(&kept.limiter, &kept.records));
            }
            Some(table) => tokio::select! {
                () = sweep.due() => sweep.begin(move || sweep_some(&kept.limiter, &kept.records)),
                () = write.due() => {
                    let path = table.path.clone();
                    write.begin(move || kept.write(&path));
                }
            },
        }
    }

    /// Writes the last snapshot, after the doors have drained.
    pub(super) async fn finish(self) {
        self.write.end().await;
        let Some(SnapshotTable { path, .. }) = self.snapshot else { return };
        let _ = tokio::task::spawn_blocking(move || self.kept.write(&path)).await;
    }
}

impl Kept {
    fn restore(&self, path: &Path) {
        let FoundSnapshot { restored, unusable } =
            Snapshot::restore(&self.limiter, &self.records, path);
        for Unusable { file, problem, aside } in &unusable {
            let file = file.display();
            match aside {
                Ok(Aside { name, replaced }) => {
                    let kept = name.display();
                    let more = if *replaced { ", in place of an older one" } else { "" };
                    tracing::error!(
                        %file,
                        "snapshot not restored, kept as {kept}{more}: {problem}"
                    );
                }
                Err(error) => tracing::error!(
                    %file,
                    "snapshot not restored: {problem}; it could not be renamed: {error}"
                ),
            }
        }
        let from = restored.map(|(source, _)| source);
        if from != Some(SnapshotSource::Newest) && (from.is_some() || !unusable.is_empty()) {
            self.state.set_snapshot_restored_from(from.map_or("nothing", SnapshotSource::name));
        }
        self.metrics.snapshot_restored(from.map_or("nothing", SnapshotSource::name));
        let file = path.display();
        match restored {
            Some((source, restored)) => {
                self.metrics.snapshot_written(restored.written);
                tell(path, source, restored);
            }
            None if unusable.is_empty() => tracing::info!(%file, "no snapshot yet"),
            None => {
                tracing::error!(%file, "no snapshot can be used: all counts start from zero")
            }
        }
    }

    fn write(&self, path: &Path) {
        let file = path.display();
        match Snapshot::write(&self.limiter, &self.records, path) {
            Ok(written) => {
                self.metrics.snapshot_written(written.at);
                self.state.set_snapshot_error(None);
                tracing::debug!(%file, entries = written.entries, "snapshot written");
            }
            Err(error) => {
                self.metrics.snapshot_failed();
                self.state.set_snapshot_error(Some(format!("{file}: {error}")));
                tracing::error!(%file, "snapshot not written, the older ones stay: {error}");
            }
        }
    }
}

/// Says what came back, and what did not.
fn tell(path: &Path, source: SnapshotSource, restored: Restored) {
    let file = path.display();
    let Restored { keys, shared, records, dropped, forgiven, lost, .. } = restored;
    if source == SnapshotSource::Previous {
        tracing::warn!(%file, "the previous snapshot is restored: later uses are lost");
    }
    let from = source.name();
    tracing::info!(%file, from, keys, shared, records, dropped, "snapshot restored");
    if forgiven > 0 {
        tracing::warn!(
            %file,
            keys = forgiven,
            "no room for keys whose rule has on_full deny or allow: they start from zero; \
             raise max_keys or max_bytes"
        );
    }
    if lost > 0 {
        tracing::warn!(
            %file,
            records = lost,
            "no room for records: they are lost; raise max_records or max_bytes"
        );
    }
}

fn sweep_some(limiter: &Limiter, records: &Records) {
    limiter.sweep((limiter.size().total / SWEEPS_PER_ROUND).max(SWEEP_SLOTS_MIN));
    sweep_records(records.size().cells, |slice| records.sweep(slice, limiter.clock().now()));
    // Nothing is written to the block, so that it takes no memory itself.
    drop(black_box(Vec::<u8>::with_capacity(PAGE_BLOCK_BYTES)));
}

/// Sweeps a share of so many cells, and up to all of them where many records turn out to be dead:
/// those of one moment often expire in one moment, too. In slices, so that a core is never taken
/// from a door for long.
fn sweep_records(cells: usize, mut sweep: impl FnMut(usize) -> usize) {
    let share = (cells / SWEEPS_PER_ROUND).max(SWEEP_SLOTS_MIN).min(cells);
    let (mut looked, mut rich) = (0, false);
    while looked < share || rich && looked < cells {
        rich = sweep(SWEEP_SLICE) >= SWEEP_SLICE / SWEEP_RICH;
        looked += SWEEP_SLICE;
        thread::sleep(SWEEP_PAUSE);
    }
}

/// Something that is done again and again, but never twice at once.
struct Chore {
    interval: Interval,
    running: Option<JoinHandle<()>>,
}

impl Chore {
    fn new(every: Duration) -> Self {
        Self { interval: ticks(every), running: None }
    }

    /// Begins a new interval. What is running goes on, and is still the only one.
    fn set_every(&mut self, every: Duration) {
        self.interval = ticks(every);
    }

    async fn due(&mut self) {
        self.interval.tick().await;
    }

    fn begin(&mut self, work: impl FnOnce() + Send + 'static) {
        if self.running.as_ref().is_none_or(JoinHandle::is_finished) {
            self.running = Some(tokio::task::spawn_blocking(work));
        }
    }

    async fn end(self) {
        if let Some(running) = self.running {
            let _ = running.await;
        }
    }
}

fn ticks(every: Duration) -> Interval {
    let mut interval = interval(every);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first tick would be due at once.
    interval.reset();
    interval
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[tokio::test]
    async fn a_new_interval_does_not_let_two_run_at_once() {
        let mut chore = Chore::new(SWEEP_EVERY);
        let (end, ended) = channel::<()>();
        let (began, begun) = channel();
        let second = began.clone();
        chore.begin(move || {
            let _ = began.send(1);
            let _ = ended.recv();
        });
        chore.set_every(Duration::from_secs(3600));
        chore.begin(move || second.send(2).expect("the test listens"));
        drop(end);
        chore.end().await;
        assert_eq!(begun.iter().collect::<Vec<_>>(), [1]);
    }
}
