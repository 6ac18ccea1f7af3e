//! The decision: what the last word about a client means for its request, in memory alone.
//!
//! Here is what all handles and tasks of a gatekeeper share. Deciding waits for nobody, allocates
//! nothing and takes no lock but that of one shard, for one lookup.

use std::cell::Cell;
use std::collections::HashMap;
use std::num::NonZeroI64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use foldhash::fast::RandomState;
use tidegate_wire::smockron::{Accounting, Frames, Status, topic};
use tidegate_wire::zmtp::write_frame;
use tokio::sync::Notify;

use super::config::Config;
use super::delay::Delay;
use super::queue::{Note, Plain, PlainHead, Queue};
use super::stats::{Counts, Tally, count};
use super::table::Table;
use super::{Decision, Domain};
use crate::clock::Clock;

/// The longest identifier that is told to a master.
pub const IDENTIFIER_BYTES_MAX: usize = 1024;
/// The most bytes of log info that go along; more is cut off.
pub const LOG_INFO_BYTES_MAX: usize = 512;
/// Lanes of each queue: at least two, so that one that is busy can be passed over.
const LANES: std::ops::RangeInclusive<usize> = 2..=16;
/// The machine's clock ticks far more often: every ten milliseconds at the least.
const TICK_MS_MAX: i64 = 1_000;
/// No limit delays anybody for longer: periods end at 366 days.
const DELAY_MS_MAX: i64 = 367 * 24 * 3600 * 1000;

/// What all handles and tasks share.
pub(super) struct Core {
    clock: Clock,
    table: Table,
    names: HashMap<Box<[u8]>, u16, RandomState>,
    pub(super) domains: Box<[Served]>,
    pub(super) masters: Box<[Arc<Ways>]>,
    tallies: Box<[Tally]>,
    pub(super) counts: Counts,
    pub(super) held: AtomicUsize,
    held_max: usize,
    max_delay_ms: i64,
    /// Delays up to so far ahead of the last tick are compared with the exact time.
    near_ms: i64,
    reject_every: u64,
}

/// The ways to and from a master.
pub(super) struct Ways {
    pub(super) queue: Queue,
    /// How often one of them opened.
    opened: AtomicU64,
    /// Rung whenever one opens, and whenever the master begins or ceases to hear of a domain.
    pub(super) changed: Notify,
}

impl Ways {
    pub(super) fn opened(&self) -> u64 {
        self.opened.load(Relaxed)
    }
}

/// Until when a request would have to wait, and when that was asked, in milliseconds since 1970.
#[derive(Clone, Copy)]
pub(super) struct Until {
    ms: NonZeroI64,
    now_ms: i64,
}

/// A domain and its master.
pub(super) struct Served {
    pub(super) topic: Box<[u8]>,
    pub(super) master: u16,
    ways: Arc<Ways>,
    /// The master takes accounting of it.
    pub(super) heard: AtomicBool,
    /// The master was asked for its delays and has begun to tell, since both ways are open.
    pub(super) synced: AtomicBool,
    accepted: PlainHead,
    delayed: Box<[u8]>,
    rejected: PlainHead,
}

impl Served {
    fn new(domain: &str, master: u16, ways: Arc<Ways>) -> Self {
        let topic = topic(domain.as_bytes()).into_boxed_slice();
        let head = |status: Status| {
            let (domain, identifier) = (domain.as_bytes(), &b""[..]);
            let mut frames = Frames::new();
            Accounting { domain, status, identifier, received_ns: 0, log_info: None }
                .write(&mut frames);
            let mut head = Vec::new();
            frames.iter().take(2).for_each(|frame| write_frame(true, frame, &mut head));
            head.into_boxed_slice()
        };
        Self {
            master,
            ways,
            heard: AtomicBool::new(false),
            synced: AtomicBool::new(false),
            accepted: PlainHead::new(Plain::Accepted, head(Status::Accepted)),
            delayed: head(Status::Delayed { until_ns: 0 }),
            rejected: PlainHead::new(Plain::Rejected, head(Status::Rejected)),
            topic,
        }
    }
}

impl Core {
    /// For a configuration that was checked.
    pub(super) fn new(config: &Config) -> Self {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let lanes = cores.next_power_of_two().clamp(*LANES.start(), *LANES.end());
        let ways = |_: &_| {
            Arc::new(Ways {
                queue: Queue::new(lanes, config.queue_bytes()),
                opened: AtomicU64::new(0),
                changed: Notify::new(),
            })
        };
        let masters: Box<[Arc<Ways>]> = config.masters.iter().map(ways).collect();
        let mut names = HashMap::default();
        let mut domains = Vec::new();
        for (master, of) in config.masters.iter().enumerate() {
            for domain in &of.domains {
                names.insert(domain.as_bytes().into(), domains.len() as u16);
                domains.push(Served::new(domain, master as u16, masters[master].clone()));
            }
        }
        let max_delay_ms = i64::try_from(config.max_delay.as_millis()).unwrap_or(i64::MAX);
        Self {
            clock: config.clock.clone(),
            table: Table::new(config.identifiers_max),
            names,
            domains: domains.into(),
            masters,
            tallies: (0..lanes).map(|_| Tally::default()).collect(),
            counts: Counts::default(),
            held: AtomicUsize::new(0),
            held_max: config.held_max,
            max_delay_ms,
            near_ms: max_delay_ms.saturating_add(TICK_MS_MAX),
            reject_every: u64::from(config.reject_every),
        }
    }

    pub(super) fn domain(&self, name: &[u8]) -> Option<Domain> {
        self.names.get(name).copied().map(Domain)
    }

    pub(super) fn now_ms(&self) -> i64 {
        self.clock.unix_ms()
    }

    /// Until when a client must wait, if it must.
    #[inline]
    pub(super) fn until(&self, domain: Domain, identifier: &[u8]) -> Option<i64> {
        self.table.until(domain.0, identifier)
    }

    /// Lets a request pass that may, and tells its master. Otherwise it returns until when it would
    /// have to wait, of which nothing is told yet.
    // Inlined: saving and restoring registers for a call is a tenth of it.
    #[inline(always)]
    pub(super) fn pass(&self, domain: Domain, identifier: &[u8], log_info: &[u8]) -> Option<Until> {
        let Some(served) = self.domains.get(usize::from(domain.0)) else {
            self.pass_unknown();
            return None;
        };
        let until_ms = self.table.until(domain.0, identifier).unwrap_or(0);
        // Who passes by the last tick passes by the exact time, too.
        let mut now_ms = self.clock.tick_ms();
        if until_ms > now_ms {
            now_ms = self.exact_if_near(until_ms, now_ms);
            if until_ms > now_ms {
                return NonZeroI64::new(until_ms).map(|ms| Until { ms, now_ms });
            }
        }
        let lane = lane();
        let queue = &served.ways.queue;
        let plain = served.heard.load(Relaxed) && log_info.is_empty();
        if !(plain && queue.push_plain(lane, &served.accepted, identifier, now_ms)) {
            self.pass_with_care(served, lane, (identifier, log_info), now_ms);
        }
        None
    }

    /// The exact time, where it could decide otherwise than the last tick: who waits for longer
    /// than anybody is held is turned away by both.
    #[inline(never)]
    fn exact_if_near(&self, until_ms: i64, tick_ms: i64) -> i64 {
        let near = until_ms.saturating_sub(tick_ms) <= self.near_ms;
        if near { self.clock.unix_ms() } else { tick_ms }
    }

    /// Tells of a request that passes where that is not plain work.
    #[cold]
    fn pass_with_care(
        &self,
        served: &Served,
        lane: usize,
        (identifier, log_info): (&[u8], &[u8]),
        received_ms: i64,
    ) {
        count(&self.tally(lane).accepted);
        let head = served.accepted.bytes();
        let note = Note { head, identifier, received_ms, delayed_ms: None, log_info };
        self.account(served, lane, note);
    }

    /// What becomes of a request that must wait.
    #[inline(never)]
    pub(super) fn hold_or_reject(
        self: &Arc<Self>,
        domain: Domain,
        identifier: &[u8],
        log_info: &[u8],
        until: Until,
    ) -> Decision {
        let served = &self.domains[usize::from(domain.0)];
        let wait_ms = until.ms.get().saturating_sub(until.now_ms).max(0);
        let wait = Duration::from_millis(wait_ms.unsigned_abs());
        if wait_ms <= self.max_delay_ms
            && let Some(delay) = self.hold(served, (identifier, log_info), until, wait)
        {
            return Decision::Delay(delay);
        }
        let lane = lane();
        let plain = self.reject_every == 1 && served.heard.load(Relaxed) && log_info.is_empty();
        let queue = &served.ways.queue;
        if !(plain && queue.push_plain(lane, &served.rejected, identifier, until.now_ms)) {
            self.reject_with_care(served, lane, (identifier, log_info), until.now_ms);
        }
        Decision::Reject(wait)
    }

    /// A place for a request that may wait, if there is one.
    #[cold]
    fn hold(
        self: &Arc<Self>,
        served: &Served,
        (identifier, log_info): (&[u8], &[u8]),
        until: Until,
        wait: Duration,
    ) -> Option<Delay> {
        let lane = lane();
        let tally = self.tally(lane);
        let (until_ms, received_ms) = (until.ms.get(), until.now_ms);
        let Some(delay) = Delay::new(self, until_ms, wait) else {
            count(&tally.rejected_crowded);
            return None;
        };
        count(&tally.delayed);
        // Told at once and not when it goes: the master gives the next one a later time.
        let (head, delayed_ms) = (&served.delayed, Some(until_ms));
        self.account(served, lane, Note { head, identifier, received_ms, delayed_ms, log_info });
        Some(delay)
    }

    /// Tells of a request that is turned away, or not, where that is not plain work.
    #[cold]
    fn reject_with_care(
        &self,
        served: &Served,
        lane: usize,
        (identifier, log_info): (&[u8], &[u8]),
        received_ms: i64,
    ) {
        let before = count(&self.tally(lane).rejected);
        if self.reject_every > 0 && before.is_multiple_of(self.reject_every) {
            let head = served.rejected.bytes();
            let note = Note { head, identifier, received_ms, delayed_ms: None, log_info };
            self.account(served, lane, note);
        }
    }

    fn tally(&self, lane: usize) -> &Tally {
        &self.tallies[lane & (self.tallies.len() - 1)]
    }

    /// A request of nobody's domain passes.
    #[cold]
    pub(super) fn pass_unknown(&self) {
        let tally = self.tally(lane());
        count(&tally.accepted);
        count(&tally.unknown_domain);
    }

    #[cold]
    fn account(&self, served: &Served, lane: usize, note: Note<'_>) {
        let tally = self.tally(lane);
        let dropped = if !served.heard.load(Relaxed) {
            &tally.dropped_no_master
        } else if note.identifier.len() <= IDENTIFIER_BYTES_MAX {
            let log_info = &note.log_info[..note.log_info.len().min(LOG_INFO_BYTES_MAX)];
            if served.ways.queue.push(lane, &Note { log_info, ..note }) {
                return;
            }
            &tally.dropped_full
        } else {
            &tally.dropped_full
        };
        count(dropped);
    }

    /// A place among those that are held, if there is one.
    pub(super) fn take_place(&self) -> bool {
        let taken = self.held.fetch_add(1, Relaxed) < self.held_max;
        if !taken {
            self.held.fetch_sub(1, Relaxed);
        }
        taken
    }

    /// Takes a master's word about a client.
    pub(super) fn remember(&self, domain: Domain, identifier: &[u8], until_ms: i64) -> bool {
        let now_ms = self.now_ms();
        let refused: &AtomicU64 = if identifier.len() > IDENTIFIER_BYTES_MAX {
            &self.counts.too_long
        } else if until_ms.saturating_sub(now_ms) > DELAY_MS_MAX {
            &self.counts.too_far
        } else if self.table.remember(domain.0, identifier, until_ms, now_ms) {
            &self.counts.control
        } else {
            &self.counts.table_full
        };
        count(refused);
        std::ptr::eq(refused, &self.counts.control)
    }

    /// The domains of a master.
    pub(super) fn of(&self, master: usize) -> impl Iterator<Item = &Served> {
        self.domains.iter().filter(move |served| usize::from(served.master) == master)
    }

    /// A way to or from a master has opened: what it said before is to be asked for.
    pub(super) fn way_opened(&self, master: usize) {
        self.of(master).for_each(|served| served.synced.store(false, Relaxed));
        count(&self.masters[master].opened);
        self.masters[master].changed.notify_waiters();
    }

    pub(super) fn sweep(&self) {
        self.table.sweep(self.now_ms());
    }

    pub(super) fn stats(&self) -> super::Stats {
        let told = |kind| self.masters.iter().map(|ways| ways.queue.plain(kind)).sum::<u64>();
        let mut stats =
            super::stats::sum(&self.tallies, &self.counts, self.table.len(), &self.held);
        stats.accepted += told(Plain::Accepted);
        stats.rejected += told(Plain::Rejected);
        stats
    }
}

/// The lane of this thread: threads take turns, so that loops have lanes of their own.
#[inline]
fn lane() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static LANE: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    // A thread that is ending may have lost its own.
    let own = LANE.try_with(Cell::get).unwrap_or(0);
    if own != usize::MAX {
        return own;
    }
    let own = NEXT.fetch_add(1, Relaxed) & (usize::MAX >> 1);
    let _ = LANE.try_with(|lane| lane.set(own));
    own
}
