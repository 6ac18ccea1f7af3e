//! The decision about a request, by what the master said last about its client, in memory alone.
//!
//! All handles and tasks of a gatekeeper share [`Core`]. A decision waits for nothing, allocates
//! nothing and takes one lock: that of a shard of the table, for one lookup.

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
use super::queue::{AccountingMessage, Queue, ShortHead, ShortStatus};
use super::stats::{DecisionCounters, TaskCounters, count};
use super::table::DelayTable;
use super::{Decision, Domain};
use crate::clock::UnixClock;

/// The longest identifier that is sent to a master.
pub const IDENTIFIER_BYTES_MAX: usize = 1024;
/// The most bytes of log info that go along; more is cut off.
pub const LOG_INFO_BYTES_MAX: usize = 512;
/// Stripes of each queue: at least two, so that one that is busy can be passed over.
const STRIPES: std::ops::RangeInclusive<usize> = 2..=16;
/// The machine's clock ticks far more often: every ten milliseconds at the least.
const TICK_MS_MAX: i64 = 1_000;
/// The longest delay of any limit: periods end at 366 days.
const DELAY_MS_MAX: i64 = 367 * 24 * 3600 * 1000;

/// What all handles and tasks share.
pub(super) struct Core {
    clock: UnixClock,
    table: DelayTable,
    names: HashMap<Box<[u8]>, u16, RandomState>,
    pub(super) domains: Box<[DomainState]>,
    pub(super) masters: Box<[Arc<MasterState>]>,
    decision_counters: Box<[DecisionCounters]>,
    pub(super) counts: TaskCounters,
    pub(super) held: AtomicUsize,
    held_max: usize,
    max_delay_ms: i64,
    /// Delays up to so far ahead of the last tick are compared with the exact time.
    near_ms: i64,
    reject_every: u64,
}

/// The queue to a master, and what its two tasks share.
pub(super) struct MasterState {
    pub(super) queue: Queue,
    /// How often a connection to or from the master opened.
    opened: AtomicU64,
    /// Notified when a connection opens, and when the master subscribes to a domain or cancels.
    pub(super) changed: Notify,
}

impl MasterState {
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
pub(super) struct DomainState {
    pub(super) topic: Box<[u8]>,
    pub(super) master: u16,
    master_state: Arc<MasterState>,
    /// The master takes accounting of it.
    pub(super) heard: AtomicBool,
    /// The master was asked for its delays and has begun to tell, since both connections are open.
    pub(super) synced: AtomicBool,
    accepted: ShortHead,
    delayed: Box<[u8]>,
    rejected: ShortHead,
}

impl DomainState {
    fn new(domain: &str, master: u16, master_state: Arc<MasterState>) -> Self {
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
            master_state,
            heard: AtomicBool::new(false),
            synced: AtomicBool::new(false),
            accepted: ShortHead::new(ShortStatus::Accepted, head(Status::Accepted)),
            delayed: head(Status::Delayed { until_ns: 0 }),
            rejected: ShortHead::new(ShortStatus::Rejected, head(Status::Rejected)),
            topic,
        }
    }
}

impl Core {
    /// For a configuration that was checked.
    pub(super) fn new(config: &Config) -> Self {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let stripes = cores.next_power_of_two().clamp(*STRIPES.start(), *STRIPES.end());
        let state = |_: &_| {
            Arc::new(MasterState {
                queue: Queue::new(stripes, config.queue_bytes()),
                opened: AtomicU64::new(0),
                changed: Notify::new(),
            })
        };
        let masters: Box<[Arc<MasterState>]> = config.masters.iter().map(state).collect();
        let mut names = HashMap::default();
        let mut domains = Vec::new();
        for (master, of) in config.masters.iter().enumerate() {
            for domain in &of.domains {
                names.insert(domain.as_bytes().into(), domains.len() as u16);
                domains.push(DomainState::new(domain, master as u16, masters[master].clone()));
            }
        }
        let max_delay_ms = i64::try_from(config.max_delay.as_millis()).unwrap_or(i64::MAX);
        Self {
            clock: config.clock.clone(),
            table: DelayTable::new(config.identifiers_max),
            names,
            domains: domains.into(),
            masters,
            decision_counters: (0..stripes).map(|_| DecisionCounters::default()).collect(),
            counts: TaskCounters::default(),
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

    /// Lets a request pass if it may, and accounts for it. Otherwise it returns until when the
    /// request would have to wait, and accounts for nothing yet.
    // Inlined: saving and restoring registers for a call is a tenth of it.
    #[inline(always)]
    pub(super) fn pass(&self, domain: Domain, identifier: &[u8], log_info: &[u8]) -> Option<Until> {
        let Some(served) = self.domains.get(usize::from(domain.0)) else {
            self.pass_unknown();
            return None;
        };
        let until_ms = self.table.until(domain.0, identifier).unwrap_or(0);
        // A request that passes by the last tick passes by the exact time, too.
        let mut now_ms = self.clock.tick_ms();
        if until_ms > now_ms {
            now_ms = self.exact_if_near(until_ms, now_ms);
            if until_ms > now_ms {
                return NonZeroI64::new(until_ms).map(|ms| Until { ms, now_ms });
            }
        }
        let stripe = stripe();
        let queue = &served.master_state.queue;
        let is_short = served.heard.load(Relaxed) && log_info.is_empty();
        if !(is_short && queue.push_short(stripe, &served.accepted, identifier, now_ms)) {
            self.account_accepted(served, stripe, (identifier, log_info), now_ms);
        }
        None
    }

    /// The exact time, where it could decide otherwise than the last tick. Both reject a request
    /// that would have to wait longer than the longest hold.
    #[inline(never)]
    fn exact_if_near(&self, until_ms: i64, tick_ms: i64) -> i64 {
        let near = until_ms.saturating_sub(tick_ms) <= self.near_ms;
        if near { self.clock.unix_ms() } else { tick_ms }
    }

    /// Accounts for a request that passes, where a short message does not do.
    #[cold]
    fn account_accepted(
        &self,
        served: &DomainState,
        stripe: usize,
        (identifier, log_info): (&[u8], &[u8]),
        received_ms: i64,
    ) {
        count(&self.counters(stripe).accepted);
        let head = served.accepted.bytes();
        let message =
            AccountingMessage { head, identifier, received_ms, delayed_ms: None, log_info };
        self.account(served, stripe, message);
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
        let stripe = stripe();
        let is_short = self.reject_every == 1 && served.heard.load(Relaxed) && log_info.is_empty();
        let queue = &served.master_state.queue;
        if !(is_short && queue.push_short(stripe, &served.rejected, identifier, until.now_ms)) {
            self.account_rejected(served, stripe, (identifier, log_info), until.now_ms);
        }
        Decision::Reject(wait)
    }

    /// A place for a request that may wait, if there is one.
    #[cold]
    fn hold(
        self: &Arc<Self>,
        served: &DomainState,
        (identifier, log_info): (&[u8], &[u8]),
        until: Until,
        wait: Duration,
    ) -> Option<Delay> {
        let stripe = stripe();
        let counters = self.counters(stripe);
        let (until_ms, received_ms) = (until.ms.get(), until.now_ms);
        let Some(delay) = Delay::new(self, until_ms, wait) else {
            count(&counters.rejected_crowded);
            return None;
        };
        count(&counters.delayed);
        // Accounted for now and not when it goes: the master gives the next one a later time.
        let (head, delayed_ms) = (&served.delayed, Some(until_ms));
        self.account(
            served,
            stripe,
            AccountingMessage { head, identifier, received_ms, delayed_ms, log_info },
        );
        Some(delay)
    }

    /// Accounts for one rejected request in `reject_every`, where a short message does not do.
    #[cold]
    fn account_rejected(
        &self,
        served: &DomainState,
        stripe: usize,
        (identifier, log_info): (&[u8], &[u8]),
        received_ms: i64,
    ) {
        let before = count(&self.counters(stripe).rejected);
        if self.reject_every > 0 && before.is_multiple_of(self.reject_every) {
            let head = served.rejected.bytes();
            let message =
                AccountingMessage { head, identifier, received_ms, delayed_ms: None, log_info };
            self.account(served, stripe, message);
        }
    }

    fn counters(&self, stripe: usize) -> &DecisionCounters {
        &self.decision_counters[stripe & (self.decision_counters.len() - 1)]
    }

    /// A request of a domain without a master passes.
    #[cold]
    pub(super) fn pass_unknown(&self) {
        let counters = self.counters(stripe());
        count(&counters.accepted);
        count(&counters.unknown_domain);
    }

    #[cold]
    fn account(&self, served: &DomainState, stripe: usize, message: AccountingMessage<'_>) {
        let counters = self.counters(stripe);
        let dropped = if !served.heard.load(Relaxed) {
            &counters.dropped_no_master
        } else if message.identifier.len() <= IDENTIFIER_BYTES_MAX {
            let log_info = &message.log_info[..message.log_info.len().min(LOG_INFO_BYTES_MAX)];
            if served.master_state.queue.push(stripe, &AccountingMessage { log_info, ..message }) {
                return;
            }
            &counters.dropped_full
        } else {
            &counters.dropped_full
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

    /// Remembers until when a client must wait, as a master says.
    pub(super) fn remember(&self, domain: Domain, identifier: &[u8], until_ms: i64) -> bool {
        let now_ms = self.now_ms();
        let counter: &AtomicU64 = if identifier.len() > IDENTIFIER_BYTES_MAX {
            &self.counts.too_long
        } else if until_ms.saturating_sub(now_ms) > DELAY_MS_MAX {
            &self.counts.too_far
        } else if self.table.remember(domain.0, identifier, until_ms, now_ms) {
            &self.counts.control
        } else {
            &self.counts.table_full
        };
        count(counter);
        std::ptr::eq(counter, &self.counts.control)
    }

    /// The domains of a master.
    pub(super) fn of(&self, master: usize) -> impl Iterator<Item = &DomainState> {
        self.domains.iter().filter(move |served| usize::from(served.master) == master)
    }

    /// A connection to or from a master has opened: its delays are asked for again.
    pub(super) fn connection_opened(&self, master: usize) {
        self.of(master).for_each(|served| served.synced.store(false, Relaxed));
        count(&self.masters[master].opened);
        self.masters[master].changed.notify_waiters();
    }

    pub(super) fn sweep(&self) {
        self.table.sweep(self.now_ms());
    }

    pub(super) fn stats(&self) -> super::GatekeeperStats {
        let short =
            |kind| -> u64 { self.masters.iter().map(|state| state.queue.short(kind)).sum() };
        let mut stats =
            super::stats::sum(&self.decision_counters, &self.counts, self.table.len(), &self.held);
        stats.accepted += short(ShortStatus::Accepted);
        stats.rejected += short(ShortStatus::Rejected);
        stats
    }
}

/// The stripe of this thread. Threads get stripes in turn, so that loops have their own.
#[inline]
fn stripe() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static STRIPE: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    // A thread that is ending may have dropped its number.
    let own = STRIPE.try_with(Cell::get).unwrap_or(0);
    if own != usize::MAX {
        return own;
    }
    let own = NEXT.fetch_add(1, Relaxed) & (usize::MAX >> 1);
    let _ = STRIPE.try_with(|stripe| stripe.set(own));
    own
}
