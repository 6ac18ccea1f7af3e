//! The bytes that everything remembered may take together: the limiter's keys and the records.
//!
//! The limiter adds up its own bytes, and records count theirs here, so that either side can tell
//! by a few relaxed reads whether there is room. The budget itself refuses nothing but bytes.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// One bound for both tables.
#[derive(Debug)]
pub(crate) struct Budget {
    max_bytes: AtomicUsize,
    records: Counted,
}

// Every record that comes or goes writes here; the bound beside it is read far more often.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Counted(AtomicUsize);

impl Budget {
    /// Nothing counted yet.
    pub(crate) fn new(max_bytes: usize) -> Self {
        Self { max_bytes: max_bytes.into(), records: Counted::default() }
    }

    /// The most bytes.
    pub(crate) fn max_bytes(&self) -> usize {
        self.max_bytes.load(Relaxed)
    }

    /// Changes the bound. What is over it stays until it dies.
    pub(crate) fn set_max_bytes(&self, max_bytes: usize) {
        self.max_bytes.store(max_bytes, Relaxed);
    }

    /// What records take.
    pub(crate) fn records(&self) -> usize {
        self.records.0.load(Relaxed)
    }

    /// Counts more bytes of records beside `keys` bytes of the limiter; `false`, and nothing
    /// counted, if that is more than there may be.
    pub(crate) fn take(&self, bytes: usize, keys: usize) -> bool {
        let before = self.records.0.fetch_add(bytes, Relaxed);
        let fits = before.saturating_add(bytes).saturating_add(keys) <= self.max_bytes();
        if !fits {
            self.give_back(bytes);
        }
        fits
    }

    /// Counts fewer bytes of records.
    pub(crate) fn give_back(&self, bytes: usize) {
        self.records.0.fetch_sub(bytes, Relaxed);
    }
}
