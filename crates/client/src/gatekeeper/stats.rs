//! What a gatekeeper counts. Threads that decide count in stripes, so that they share no line.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// What a gatekeeper did so far, and what it holds now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GatekeeperStats {
    /// Requests that passed at once.
    pub accepted: u64,
    /// Requests that were delayed.
    pub delayed: u64,
    /// Requests that were rejected.
    pub rejected: u64,
    /// Of these, requests that would have waited, but found no place.
    pub rejected_crowded: u64,
    /// Requests of a domain that no master is for; they passed, and count as accepted, too.
    pub unknown_domain: u64,
    /// Accounting that went out.
    pub sent: u64,
    /// Accounting that was dropped because no master was there.
    pub dropped_no_master: u64,
    /// Accounting that found its queue full, or whose identifier is too long to be sent.
    pub dropped_full: u64,
    /// Accounting that was being sent when its connection ended.
    pub dropped_lost: u64,
    /// Connections to masters that were made.
    pub connects: u64,
    /// Delays that masters published and that were taken.
    pub control: u64,
    /// Control messages by why they were not taken.
    pub control_bad: BadControl,
    /// Identifiers that are remembered now.
    pub identifiers: usize,
    /// Requests that are held now.
    pub held: usize,
}

/// Control messages that were not taken, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BadControl {
    /// It is malformed, or a command that this version does not know.
    pub not_understood: u64,
    /// This gatekeeper does not serve the domain.
    pub unknown_domain: u64,
    /// The delay is longer than that of any limit.
    pub too_far: u64,
    /// The table is full of clients that still wait.
    pub table_full: u64,
    /// The identifier is longer than [`IDENTIFIER_BYTES_MAX`](super::IDENTIFIER_BYTES_MAX).
    pub too_long: u64,
}

impl GatekeeperStats {
    /// Accounting that never reached a master, for whatever reason.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped_no_master + self.dropped_full + self.dropped_lost
    }
}

/// What the threads of one stripe count, in cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct DecisionCounters {
    /// Without those that the stripes of the queues count.
    pub(super) accepted: AtomicU64,
    pub(super) delayed: AtomicU64,
    pub(super) rejected: AtomicU64,
    pub(super) rejected_crowded: AtomicU64,
    pub(super) unknown_domain: AtomicU64,
    pub(super) dropped_no_master: AtomicU64,
    pub(super) dropped_full: AtomicU64,
}

/// What the tasks that talk to masters count.
#[derive(Debug, Default)]
pub(super) struct TaskCounters {
    pub(super) sent: AtomicU64,
    pub(super) dropped_lost: AtomicU64,
    pub(super) connects: AtomicU64,
    pub(super) control: AtomicU64,
    pub(super) not_understood: AtomicU64,
    pub(super) unknown_domain: AtomicU64,
    pub(super) too_far: AtomicU64,
    pub(super) table_full: AtomicU64,
    pub(super) too_long: AtomicU64,
}

/// Adds one, and returns the count before.
#[inline]
pub(super) fn count(counter: &AtomicU64) -> u64 {
    counter.fetch_add(1, Relaxed)
}

/// Sums all counters, without those that the stripes of the queues count.
pub(super) fn sum(
    decision_counters: &[DecisionCounters],
    counts: &TaskCounters,
    identifiers: usize,
    held: &AtomicUsize,
) -> GatekeeperStats {
    let all = |of: fn(&DecisionCounters) -> &AtomicU64| {
        decision_counters.iter().map(|it| of(it).load(Relaxed)).sum()
    };
    let one = |counter: &AtomicU64| counter.load(Relaxed);
    GatekeeperStats {
        accepted: all(|counters| &counters.accepted),
        delayed: all(|counters| &counters.delayed),
        rejected: all(|counters| &counters.rejected),
        rejected_crowded: all(|counters| &counters.rejected_crowded),
        unknown_domain: all(|counters| &counters.unknown_domain),
        sent: one(&counts.sent),
        dropped_no_master: all(|counters| &counters.dropped_no_master),
        dropped_full: all(|counters| &counters.dropped_full),
        dropped_lost: one(&counts.dropped_lost),
        connects: one(&counts.connects),
        control: one(&counts.control),
        control_bad: BadControl {
            not_understood: one(&counts.not_understood),
            unknown_domain: one(&counts.unknown_domain),
            too_far: one(&counts.too_far),
            table_full: one(&counts.table_full),
            too_long: one(&counts.too_long),
        },
        identifiers,
        held: held.load(Relaxed),
    }
}
