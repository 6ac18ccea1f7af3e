//! What the limiter answers: one small verdict, and on request a row for each limit.
//!
//! The short forms of the protocols (a text line, a delay, a status, JSON) are made of these in the
//! doors.

use std::sync::Arc;
use std::task::{Context, Poll};

use smallvec::SmallVec;
use tidegate_core::time::SECOND;
use tidegate_core::{Limit, LimitVerdict, Nanos, Now};

use crate::completions::AnswerTicket;
use crate::stores::memory::TakenFrom;

/// The answer to a request: now, or when its store has answered.
#[derive(Debug)]
pub enum Decision {
    /// It is decided. A degraded verdict is ready at once only where too many decisions wait for
    /// the store already.
    Ready(Verdict),
    /// Its store was asked.
    Pending(PendingVerdict),
}

impl Decision {
    /// The verdict of a decision that no remote store has a part in.
    #[must_use]
    pub fn ready(self) -> Option<Verdict> {
        match self {
            Decision::Ready(verdict) => Some(verdict),
            Decision::Pending(_) => None,
        }
    }
}

/// A verdict that will come. Dropped, it gives back what it grants.
pub struct PendingVerdict(pub(crate) AnswerTicket<Answered>);

impl PendingVerdict {
    /// The answer, once it is there.
    pub(crate) fn poll_answer(&mut self, now: Now, context: &Context<'_>) -> Poll<Answered> {
        self.0.poll_answer(context).map(|answered| {
            // The store's thread has ended with the process.
            let closed = |_| Answered {
                verdict: Verdict::when_closed(now),
                rows: Rows::default(),
                taken: Vec::new(),
            };
            answered.unwrap_or_else(closed)
        })
    }

    /// Calls `see` with the verdict, in the thread of the store.
    pub(crate) fn when_answered(self, see: impl FnOnce(&Verdict) + Send + 'static) {
        self.0.forward(move |answered| see(&answered.verdict));
    }

    /// Lets the store do what it was asked, and does not wait for its answer.
    pub fn forget(self) {
        self.0.forward(drop);
    }

    /// Gives back what an answer of this ticket grants that comes too late.
    pub(crate) fn give_back(self, answered: Answered) {
        self.0.give_back(answered);
    }
}

impl std::fmt::Debug for PendingVerdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PendingVerdict")
    }
}

/// The verdict on a whole request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verdict {
    /// What was decided.
    pub outcome: Outcome,
    /// Some limit was decided without the remote store that has its counts.
    pub degraded: bool,
    /// Whether a caller that goes a little before `delay` is over breaks a limit. Not so under the
    /// formula of JARL's document, which promises nothing.
    pub firm: bool,
    /// Where the end of the use must give it back, if the request has one key; see [`Rows::held`]
    /// for several.
    pub held: Option<TakenFrom>,
    /// How many uses were granted; of several limits the least.
    pub granted: u64,
    /// How long until the request could go, as far as is known; [`Nanos::MAX`] if time alone will
    /// not help. After a record, how long until the next use. After a refund to a limit that the
    /// request has brought, how long until it would be done: 0 if it was.
    pub delay: Nanos,
    /// The use was taken, and may start only after this long.
    pub booked: Nanos,
    /// When the window began that the use was counted in, on the monotonic clock; 0 if it is not
    /// known. Told to requests that have waited.
    pub window_start: Nanos,
    /// When that window ends, on the monotonic clock, if a remote store has counted the use: later
    /// it would start in a window that does not know of it.
    pub window_ends: Nanos,
    /// The use of the key in requests per period, by the limit to show.
    pub rate: f64,
    /// The amount of the limit to show: of the one that refuses, else of the one nearest its
    /// amount.
    pub amount: u64,
    /// The period of that limit.
    pub period: Nanos,
    /// For a key that has brought a limit: how many uses the limit to show allows at once. 0 if no
    /// count was asked.
    pub capacity: u64,
    /// For such a key: how many uses of that limit are left.
    pub remaining: u64,
    /// For such a key: how long until that limit has forgotten all uses.
    pub reset: Nanos,
    /// The key has brought a limit that would count, and finds no room: the table is full, and keys
    /// with different limits cannot share a count. Under a rule, `on_full` decides.
    pub no_room: bool,
    /// When it was decided, by the clock of the counts: the start of the use.
    pub at: Now,
}

impl Verdict {
    /// The verdict on keys that nothing limits.
    #[inline]
    pub(crate) fn unlimited(outcome: Outcome, granted: u64, at: Now) -> Self {
        Self {
            outcome,
            degraded: false,
            firm: false,
            held: None,
            granted,
            delay: 0,
            booked: 0,
            window_start: 0,
            window_ends: Nanos::MAX,
            rate: 0.0,
            amount: 1,
            period: SECOND,
            capacity: 0,
            remaining: 0,
            reset: 0,
            no_room: false,
            at,
        }
    }

    /// Others are in line.
    pub(super) fn behind(at: Now) -> Self {
        Self::unlimited(Outcome::Behind, 0, at)
    }

    /// The store's thread has ended with the process.
    pub(super) fn when_closed(at: Now) -> Self {
        Self { delay: SECOND, ..Self::unlimited(Outcome::Refused, 0, at) }
    }

    /// The verdict on a request of which this and `other` are parts.
    pub(super) fn and(self, other: Self) -> Self {
        let share = |verdict: &Self| verdict.rate / verdict.amount as f64;
        let first = match (self.is_allowed(), other.is_allowed()) {
            (true, true) => share(&self) >= share(&other),
            (allowed, _) => !allowed,
        };
        let (shown, rest) = if first { (self, other) } else { (other, self) };
        let (delay, firm) = (shown.delay, shown.firm).max((rest.delay, rest.firm));
        Self {
            outcome: if shown.is_allowed() { Outcome::Allowed } else { shown.outcome },
            degraded: shown.degraded || rest.degraded,
            held: None,
            granted: shown.granted.min(rest.granted),
            delay,
            firm,
            at: other.at,
            ..shown
        }
    }

    /// Whether the request may go.
    #[inline]
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        matches!(self.outcome, Outcome::Allowed | Outcome::NoRule)
    }
}

/// What was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The request may go.
    Allowed,
    /// No rule is for its key: it may go, and nothing is counted for the key.
    NoRule,
    /// A limit refuses it.
    Refused,
    /// Not now; nothing was written. Worth another try after `delay`.
    Later,
    /// It would be booked for later than the caller can wait, or nothing passes under its rule;
    /// nothing was written.
    TooLong,
    /// Others are in line for the same count; nothing was written.
    Behind,
}

/// What each limit says, and what is held: filled on request, and used again by its owner.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rows {
    /// The rule that refused.
    pub refused_by: Option<Arc<str>>,
    /// What each limit of each key says.
    pub limits: Vec<LimitRow>,
    /// Which of the request's keys hold uses in flight that must be released; the others must not
    /// be, since that would give back the uses of another request.
    pub held: SmallVec<[HeldKey; 1]>,
}

impl Rows {
    /// Forgets the last answer.
    pub fn clear(&mut self) {
        self.refused_by = None;
        self.limits.clear();
        self.held.clear();
    }

    /// Whether the rule that refused lets nothing pass, so that another try is useless.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        let refusing = |rule| self.refused_by.as_ref() == Some(rule);
        self.limits.iter().any(|row| row.limit.denies() && refusing(&row.rule))
    }
}

/// What one limit of one key says.
#[derive(Clone, Debug, PartialEq)]
pub struct LimitRow {
    /// Which of the request's keys.
    pub key: usize,
    /// The rule's name.
    pub rule: Arc<str>,
    /// The limit.
    pub limit: Limit,
    /// Its verdict.
    pub verdict: LimitVerdict,
    /// What the verdict rests on.
    pub basis: Basis,
    /// Its rule refuses nothing.
    pub shadow: bool,
}

impl LimitRow {
    /// How many uses are left, and how long until the limit has forgotten all. Where nothing was
    /// counted, as many are left as a new key would have, or none while the rule refuses.
    #[must_use]
    pub fn left(&self) -> (u64, Nanos) {
        match self.basis {
            Basis::Policy if self.verdict.allowed => (self.limit.capacity(), 0),
            Basis::Policy => (0, self.verdict.delay),
            Basis::Counts | Basis::LocalCounts => (self.verdict.remaining, self.verdict.reset),
        }
    }

    /// Whether it was decided without the remote store that has its counts.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        self.basis != Basis::Counts
    }
}

/// A key of a request that holds uses in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldKey {
    /// Which of the request's keys.
    pub key: usize,
    /// Where its end must give it back.
    pub from: TakenFrom,
    /// When it was taken, by the clock of its count.
    pub started: Now,
}

/// What a limit's verdict rests on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Basis {
    /// The counts where they belong: in this process' memory, or in the remote store.
    #[default]
    Counts,
    /// What this node has counted by itself, because the remote store was not there.
    LocalCounts,
    /// No counts: the remote store was not there, and the rule's `on_store_error` has decided.
    Policy,
}

/// What a remote store's answer became.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) verdict: Verdict,
    /// Rows only if they were asked for; what is held in any case.
    pub(crate) rows: Rows,
    /// Which of the request's keys have taken something that can be given back.
    pub(super) taken: Vec<usize>,
}
