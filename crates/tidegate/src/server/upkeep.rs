//! What has to be done now and then, beside the doors: forgetting dead keys, and the snapshot.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::config::file::SnapshotTable;
use crate::limiter::Limiter;
use crate::records::Records;
use crate::snapshot::Snapshot;

/// How often the table is swept.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// Sweeps after which every slot has been looked at.
const SWEEPS_PER_ROUND: usize = 60;
/// The fewest slots that a sweep looks at.
const SWEEP_SLOTS_MIN: usize = 4096;
/// Slots that a sweep looks at in one go, well within what a request is used to wait.
const SWEEP_SLICE: usize = 256;
/// What a sweep leaves to others after each slice.
const SWEEP_PAUSE: Duration = Duration::from_micros(500);
/// A slice in which one of so many slots was dead calls for more of the same.
const SWEEP_RICH: usize = 8;

/// Runs beside the doors. A turn is short: the work itself is done on threads for blocking work,
/// one of each kind at a time.
pub(super) struct Upkeep {
    limiter: Arc<Limiter>,
    records: Arc<Records>,
    sweep: Chore,
    snapshot: Option<(SnapshotTable, Chore)>,
}

impl Upkeep {
    pub(super) fn new(limiter: Arc<Limiter>, records: Arc<Records>) -> Self {
        Self { limiter, records, sweep: Chore::new(SWEEP_EVERY), snapshot: None }
    }

    /// Reads back what an earlier process wrote. A file that cannot be used is told and left
    /// alone: the process goes on without it.
    pub(super) fn restore(&self) {
        let Some((SnapshotTable { path, .. }, _)) = &self.snapshot else { return };
        match Snapshot::restore(&self.limiter, &self.records, path) {
            Ok(restored) => {
                let file = path.display();
                tracing::info!(%file, ?restored, "snapshot restored");
                if restored.forgiven > 0 {
                    let keys = restored.forgiven;
                    tracing::warn!(
                        %file,
                        keys,
                        "no room for keys whose rule has on_full deny or allow: they start anew; \
                         raise max_keys or max_bytes"
                    );
                }
                if restored.lost > 0 {
                    let records = restored.lost;
                    tracing::warn!(
                        %file,
                        records,
                        "no room for records: they are gone; raise max_records or max_bytes"
                    );
                }
            }
            Err(error) => {
                let file = path.display();
                tracing::error!(%file, "snapshot not restored, going on without it: {error}");
            }
        }
    }

    /// Changes where and how often the snapshot is written; `None` to write none.
    pub(super) fn set_snapshot(&mut self, table: Option<SnapshotTable>) {
        if self.snapshot.as_ref().map(|(table, _)| table) != table.as_ref() {
            self.snapshot = table.map(|table| {
                let chore = Chore::new(table.every.0);
                (table, chore)
            });
        }
    }

    /// Waits for whatever is due next and begins it. Giving up waiting loses nothing.
    pub(super) async fn turn(&mut self) {
        let Self { limiter, records, sweep, snapshot } = self;
        let (limiter, records) = (limiter.clone(), records.clone());
        match snapshot {
            None => {
                sweep.due().await;
                sweep.begin(move || sweep_some(&limiter, &records));
            }
            Some((table, chore)) => tokio::select! {
                () = sweep.due() => sweep.begin(move || sweep_some(&limiter, &records)),
                () = chore.due() => {
                    let path = table.path.clone();
                    chore.begin(move || write(&limiter, &records, &path));
                }
            },
        }
    }

    /// Writes the last snapshot, after the doors have drained.
    pub(super) async fn finish(self) {
        let Some((table, chore)) = self.snapshot else { return };
        // Two writers at once would race for the same name.
        chore.end().await;
        let (limiter, records) = (self.limiter, self.records);
        let written = tokio::task::spawn_blocking(move || write(&limiter, &records, &table.path));
        let _ = written.await;
    }
}

fn sweep_some(limiter: &Limiter, records: &Records) {
    limiter.sweep((limiter.size().total / SWEEPS_PER_ROUND).max(SWEEP_SLOTS_MIN));
    sweep_records(records.size().cells, |slice| records.sweep(slice, limiter.clock().now()));
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

fn write(limiter: &Limiter, records: &Records, path: &Path) {
    match Snapshot::write(limiter, records, path) {
        Ok(written) => tracing::debug!(file = %path.display(), ?written, "snapshot written"),
        Err(error) => tracing::error!(file = %path.display(), "snapshot not written: {error}"),
    }
}

/// Something that is done again and again, but never twice at once.
struct Chore {
    interval: Interval,
    running: Option<JoinHandle<()>>,
}

impl Chore {
    fn new(every: Duration) -> Self {
        let mut interval = interval(every);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first tick would be due at once.
        interval.reset();
        Self { interval, running: None }
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
