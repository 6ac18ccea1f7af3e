//! What the loops count: commands and bytes.
//!
//! Each loop counts in a place of its own, so that counting never makes two cores meet. A reader
//! sums the places.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::commands::COMMANDS;

/// The counts of one loop. Only that loop adds to it.
pub(super) struct LoopCounts {
    /// By the position of the command; the last is for all that are none.
    commands: Box<[AtomicU64]>,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
}

/// Adds to a figure that only this thread writes: no locked instruction is needed.
#[inline]
fn bump(figure: &AtomicU64, count: u64) {
    figure.store(figure.load(Relaxed) + count, Relaxed);
}

impl LoopCounts {
    fn new() -> Self {
        Self {
            commands: (0..=COMMANDS.len()).map(|_| AtomicU64::new(0)).collect(),
            read_bytes: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
        }
    }

    /// Counts requests of the command at this position; `None`: of no command.
    #[inline]
    pub(super) fn count(&self, command: Option<usize>, requests: u64) {
        bump(&self.commands[command.unwrap_or(COMMANDS.len())], requests);
    }

    #[inline]
    pub(super) fn has_read(&self, bytes: usize) {
        bump(&self.read_bytes, bytes as u64);
    }

    #[inline]
    pub(super) fn has_written(&self, bytes: usize) {
        bump(&self.written_bytes, bytes as u64);
    }
}

/// The counts of all loops of the process.
#[derive(Default)]
pub(super) struct AllCounts {
    all: Vec<Arc<LoopCounts>>,
    /// Those whose loop has ended. They keep their counts, and the next loop goes on with them.
    free: Vec<Arc<LoopCounts>>,
}

impl AllCounts {
    /// A place for a loop that begins.
    pub(super) fn take(&mut self) -> Arc<LoopCounts> {
        self.free.pop().unwrap_or_else(|| {
            let counts = Arc::new(LoopCounts::new());
            self.all.push(counts.clone());
            counts
        })
    }

    /// Takes back the place of a loop that has ended.
    pub(super) fn give_back(&mut self, counts: Arc<LoopCounts>) {
        self.free.push(counts);
    }

    /// The sum of all loops.
    pub(super) fn sum(&self) -> CountsSum {
        let mut sum =
            CountsSum { commands: vec![0; COMMANDS.len() + 1], read_bytes: 0, written_bytes: 0 };
        for counts in &self.all {
            for (total, count) in sum.commands.iter_mut().zip(&counts.commands) {
                *total += count.load(Relaxed);
            }
            sum.read_bytes += counts.read_bytes.load(Relaxed);
            sum.written_bytes += counts.written_bytes.load(Relaxed);
        }
        sum
    }
}

/// What all loops counted.
pub(super) struct CountsSum {
    /// By the position of the command; the last is for all that are none.
    pub(super) commands: Vec<u64>,
    pub(super) read_bytes: u64,
    pub(super) written_bytes: u64,
}
