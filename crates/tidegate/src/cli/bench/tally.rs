//! What came of a load, and the threads that put it on a server.
//!
//! What they send is the business of each load.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use hdrhistogram::Histogram;
use tidegate_core::Nanos;
use tidegate_core::time::SECOND;

use crate::clock::Clock;

/// How often progress is told.
const PROGRESS_EVERY: Duration = Duration::from_millis(250);

/// When to stop: whichever comes first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Until {
    pub(super) span: Nanos,
    pub(super) count: u64,
}

/// What came of a load.
pub(super) struct Tally {
    pub(super) sent: u64,
    pub(super) answered: u64,
    pub(super) lost: u64,
    /// Answers that said no, where that is looked at.
    pub(super) refused: Option<u64>,
    /// From the first request to the last.
    pub(super) elapsed: Nanos,
    /// Nanoseconds that this process was on a CPU meanwhile, where that is looked at.
    pub(super) own_cpu: Option<Nanos>,
    /// In nanoseconds.
    pub(super) latency: Histogram<u64>,
}

impl Tally {
    /// Nothing yet.
    pub(super) fn new() -> Self {
        const MINUTE: u64 = 60 * SECOND;
        let latency = Histogram::new_with_bounds(1, MINUTE, 3).expect("the bounds are sound");
        let (refused, own_cpu) = (None, None);
        Self { sent: 0, answered: 0, lost: 0, refused, elapsed: 1, own_cpu, latency }
    }

    /// Adds what came of another thread's share, at the same time.
    fn add(&mut self, part: &Self) {
        self.sent += part.sent;
        self.answered += part.answered;
        self.lost += part.lost;
        if let Some(refused) = part.refused {
            *self.refused.get_or_insert(0) += refused;
        }
        self.elapsed = self.elapsed.max(part.elapsed);
        // Of the whole process: each part has seen the same.
        self.own_cpu = self.own_cpu.max(part.own_cpu);
        // Both have the same bounds, so this cannot fail.
        let _ = self.latency.add(&part.latency);
    }
}

/// A load that can be put on its server again and again.
pub(super) trait Drive {
    /// Runs to the end; tells `progress` now and then how many were answered, and since when.
    fn drive(&self, progress: &dyn Fn(u64, Nanos)) -> io::Result<Tally>;
}

/// Runs `work` on so many threads, numbered from 0. Each adds to the counter what was answered.
pub(super) fn on_threads(
    count: usize,
    span: Nanos,
    progress: &dyn Fn(u64, Nanos),
    work: impl Fn(usize, Clock, &AtomicU64) -> io::Result<Tally> + Sync,
) -> io::Result<Tally> {
    let clock = Clock::system();
    let start = clock.now().mono;
    let answered = AtomicU64::new(0);
    let parts = thread::scope(|scope| {
        let threads: Vec<_> = (0..count)
            .map(|number| {
                let (answered, work, clock) = (&answered, &work, clock.clone());
                scope.spawn(move || work(number, clock, answered))
            })
            .collect();
        while threads.iter().any(|thread| !thread.is_finished()) {
            thread::sleep(PROGRESS_EVERY.min(Duration::from_nanos(span)));
            progress(answered.load(Relaxed), clock.now().mono - start);
        }
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(io::Error::other("a panic"))))
            .collect::<io::Result<Vec<_>>>()
    })?;
    let mut total = Tally::new();
    parts.iter().for_each(|part| total.add(part));
    Ok(total)
}
