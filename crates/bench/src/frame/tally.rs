//! What came of a load, and the threads that put it on a server.
//!
//! What they send is the business of each load.

use std::io;
use std::num::NonZero;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use hdrhistogram::Histogram;
use tidegate_core::Nanos;
use tidegate_core::time::SECOND;

use crate::clock;

/// How often progress is told.
const PROGRESS_EVERY: Duration = Duration::from_millis(250);

/// When to stop: whichever comes first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Until {
    pub(crate) span: Nanos,
    pub(crate) count: u64,
}

/// What came of a load.
pub(crate) struct Tally {
    pub(crate) sent: u64,
    pub(crate) answered: u64,
    pub(crate) lost: u64,
    /// Answers that said no, where that is looked at.
    pub(crate) refused: Option<u64>,
    /// From the first request to the last.
    pub(crate) elapsed: Nanos,
    /// Nanoseconds that the nodes which asked the server were on a CPU meanwhile, if there are any.
    pub(crate) node_cpu: Option<Nanos>,
    /// In nanoseconds.
    pub(crate) latency: Histogram<u64>,
}

impl Tally {
    /// Nothing yet.
    pub(crate) fn new() -> Self {
        const MINUTE: u64 = 60 * SECOND;
        let latency = Histogram::new_with_bounds(1, MINUTE, 3).expect("the bounds are sound");
        let (refused, node_cpu) = (None, None);
        Self { sent: 0, answered: 0, lost: 0, refused, elapsed: 1, node_cpu, latency }
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
        // Both have the same bounds, so this cannot fail.
        let _ = self.latency.add(&part.latency);
    }
}

/// Runs `work` on so many threads, numbered from 0. Each adds to the counter what was answered.
pub(crate) fn on_threads(
    count: usize,
    progress: &dyn Fn(u64, Nanos),
    work: impl Fn(usize, &AtomicU64) -> io::Result<Tally> + Sync,
) -> io::Result<Tally> {
    let start = clock::now();
    let answered = AtomicU64::new(0);
    let parts = thread::scope(|scope| {
        // Nothing is sent on it: it ends with the last thread.
        let (works, all_done) = mpsc::channel::<()>();
        let threads: Vec<_> = (0..count)
            .map(|number| {
                let (answered, work, works) = (&answered, &work, works.clone());
                scope.spawn(move || {
                    let _works = works;
                    work(number, answered)
                })
            })
            .collect();
        drop(works);
        while all_done.recv_timeout(PROGRESS_EVERY) == Err(RecvTimeoutError::Timeout) {
            progress(answered.load(Relaxed), clock::now() - start);
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

/// One for each core.
pub(crate) fn cores() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}
