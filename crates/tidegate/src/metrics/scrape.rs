//! What is summed or looked up when a page of metrics is asked for.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::{Books, COUNTED, Totals};

/// What the process is like when a page is asked for: how full it is, and how full it may be.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sizes {
    /// Keys of the limiter.
    pub keys: usize,
    /// The most keys.
    pub keys_max: usize,
    /// Counters and buffers.
    pub records: usize,
    /// The most of them.
    pub records_max: usize,
    /// What keys and records take.
    pub bytes: usize,
    /// The most bytes that they may take.
    pub bytes_max: usize,
    /// Whether work may be sent here.
    pub is_ready: bool,
    /// Whether the remote store is asked; `None` if there is none.
    pub store_up: Option<bool>,
}

/// Sums the stripes when a page is asked for.
pub(super) struct Scrape {
    pub(super) books: Arc<Mutex<Books>>,
    pub(super) sizes: Arc<Mutex<Sizes>>,
}

impl fmt::Debug for Scrape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scrape")
    }
}

impl Scrape {
    fn totals(&self) -> Totals {
        let mut books = self.books.lock();
        books.close_retired();
        let mut totals = books.closed.clone();
        books.open.iter().for_each(|open| totals.add(open, &books.doors));
        totals
    }
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let kind = ConstCounter::new(0u64).metric_type();
        let mut decisions = encoder.encode_descriptor(
            "decisions",
            "Decisions by door, rule and verdict",
            None,
            kind,
        )?;
        let Totals { decisions: all, degraded } = self.totals();
        for ((door, rule), counts) in all {
            for ((_, verdict), count) in COUNTED.iter().zip(counts).filter(|(_, n)| *n > 0) {
                let labels = [("door", door.name()), ("rule", &*rule), ("verdict", verdict)];
                let family = decisions.encode_family(&labels)?;
                ConstCounter::new(count).encode(family)?;
            }
        }
        let help = "Decisions made without the remote store, by door, rule and policy";
        let mut family = encoder.encode_descriptor("degraded", help, None, kind)?;
        for ((door, (rule, policy)), count) in degraded {
            let labels = [("door", door.name()), ("rule", &*rule), ("policy", policy)];
            ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
        }
        let sizes = *self.sizes.lock();
        let store_up = sizes.store_up.map(usize::from);
        for (name, help, value) in [
            ("keys", "Remembered keys", Some(sizes.keys)),
            ("keys_max", "The most keys that are kept", Some(sizes.keys_max)),
            ("records", "Counters and buffers with a time to live", Some(sizes.records)),
            ("records_max", "The most counters and buffers", Some(sizes.records_max)),
            ("memory_bytes", "Bytes that keys and records take", Some(sizes.bytes)),
            (
                "memory_max_bytes",
                "The most bytes that keys and records may take",
                Some(sizes.bytes_max),
            ),
            ("ready", "1 if the server is ready, as /readyz says", Some(sizes.is_ready.into())),
            (
                "store_up",
                "1 if the remote store is in use, 0 if decisions are made without it",
                store_up,
            ),
        ] {
            let Some(value) = value else { continue };
            let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            let descriptor = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
            gauge.encode(descriptor)?;
        }
        Ok(())
    }
}
