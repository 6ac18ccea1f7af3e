//! The division: the streams of a server, their buckets, the bounds on both, and when each bucket
//! acts.
//!
//! How one bucket is divided is not decided here: see `leases`, `slices` and `blanket`.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use tidegate_core::Now;
use tidegate_core::time::{MILLISECOND, Nanos, SECOND};

use super::blanket::{self, Blanket};
use super::divider::{Divider, RequestCounts, Requests, Turn};
use super::leases::Leases;
use super::slices::Slices;
use super::{
    Action, Assignment, BLANKET_TTL_S, BUCKETS_PER_STREAM_MAX, Bank, Grant, KEYS_MAX, LEASE_LIFE,
    OWN_SEATS, RequestId, SEATS_PER_CALL, SHARED_SEATS_MAX, STREAMS_MAX, StreamId, TURNS_MAX,
    Terms,
};

/// A server that calls this much too late stood still.
const STALL: Nanos = 100 * MILLISECOND;
/// For so long after a stall reports are read that came while it lasted.
const STALL_REPORTS: Nanos = 5 * SECOND;

/// There are as many streams as there may be: the door refuses this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("more than {STREAMS_MAX} quota streams")]
pub struct TooManyStreams;

/// What a stream reports of one bucket since its last report.
#[derive(Clone, Copy, Debug)]
pub struct Report<'a> {
    /// The bucket.
    pub key: &'a [u8],
    /// Requests that passed.
    pub allowed: u64,
    /// Requests that did not.
    pub denied: u64,
    /// Whether it is the first that Envoy has to say of this bucket: what passed had no assignment.
    pub is_first: bool,
}

/// Divides the limits of many buckets among the streams of one server.
pub struct Division {
    /// Leases of an earlier server may run until then.
    opens_at: Nanos,
    /// The buckets in which each stream has a seat.
    streams: BTreeMap<StreamId, HashSet<Arc<[u8]>>>,
    buckets: HashMap<Arc<[u8]>, Bucket>,
    /// When each bucket is due, the next one first.
    queue: BTreeSet<(Nanos, Arc<[u8]>)>,
    /// The seats that streams have beyond their own ones.
    shared_seats: usize,
    requests: Requests,
    /// How often the rules have changed.
    changes: u64,
    /// When the next call was asked for; `None` if none was.
    called_at: Option<Nanos>,
    /// Until when reports may be older than they seem.
    stall_until: Nanos,
}

struct Bucket {
    terms: Terms,
    /// Up to which change of the rules its terms are.
    changes: u64,
    divider: Box<dyn Divider + Send>,
    due: Nanos,
}

/// How a bucket with these terms is divided.
fn divider_for(terms: &Terms, opens_at: Nanos) -> Box<dyn Divider + Send> {
    match terms {
        Terms::Leases(rate) => Box::new(Leases::new(*rate, opens_at)),
        Terms::Slices(plan) => Box::new(Slices::new(plan.clone(), opens_at)),
        Terms::Unlimited | Terms::Shadow | Terms::Denied => Box::new(Blanket::new(terms.clone())),
    }
}

impl Bucket {
    /// Takes over other terms. Streams join anew where these need another divider.
    fn change(&mut self, terms: &Terms, opens_at: Nanos, turn: &mut Turn<'_>) {
        if self.terms == *terms {
            return;
        }
        if !self.divider.change(terms, turn) {
            let divided = |terms: &Terms| matches!(terms, Terms::Leases(_) | Terms::Slices(_));
            // What was granted under the old terms may be used until it ends.
            let ended = turn.mono().saturating_add(LEASE_LIFE);
            let opens_at = if divided(&self.terms) { ended } else { opens_at };
            let must_wait = divided(terms) && turn.mono() < opens_at;
            let streams = self.divider.streams();
            self.divider = divider_for(terms, opens_at);
            for stream in streams {
                if must_wait {
                    // What it has is of the old terms, and the new ones grant nothing yet.
                    turn.send(stream, Action::DenyAll { ttl_s: BLANKET_TTL_S });
                }
                let counts = RequestCounts { allowed: 0, denied: 0, is_first: false };
                self.divider.report(stream, counts, turn);
            }
        }
        self.terms = terms.clone();
        self.due = turn.mono();
    }
}

impl Division {
    /// Begins at the start of the server: for 7 s only blanket rules are given, because leases of a
    /// server before this one may still be in use.
    #[must_use]
    pub fn new(now: Now) -> Self {
        Self {
            opens_at: now.mono.saturating_add(LEASE_LIFE),
            streams: BTreeMap::new(),
            buckets: HashMap::new(),
            queue: BTreeSet::new(),
            shared_seats: 0,
            requests: Requests::default(),
            changes: 0,
            called_at: None,
            stall_until: 0,
        }
    }

    /// A stream was opened.
    ///
    /// # Errors
    /// If there are [`STREAMS_MAX`] already.
    pub fn open(&mut self, stream: StreamId) -> Result<(), TooManyStreams> {
        if self.streams.len() >= STREAMS_MAX {
            return Err(TooManyStreams);
        }
        self.streams.entry(stream).or_default();
        Ok(())
    }

    /// A stream was closed. What it had stays reserved until it would have ended.
    pub fn close(&mut self, stream: StreamId) {
        let Some(seats) = self.streams.remove(&stream) else { return };
        self.shared_seats -= seats.len().saturating_sub(OWN_SEATS);
        for key in seats {
            if let Some(bucket) = self.buckets.get_mut(&key) {
                bucket.divider.leave(stream);
            }
        }
    }

    /// Whether a stream may have a seat in one more bucket.
    fn has_room(&self, seats: usize) -> bool {
        if seats < OWN_SEATS {
            return true;
        }
        let share = SHARED_SEATS_MAX / self.streams.len().max(1);
        let is_fair = self.shared_seats < SHARED_SEATS_MAX / 2 || seats - OWN_SEATS < share;
        is_fair && seats < BUCKETS_PER_STREAM_MAX && self.shared_seats < SHARED_SEATS_MAX
    }

    /// Whether a stream has a seat in a bucket.
    #[must_use]
    pub fn has_seat(&self, stream: StreamId, key: &[u8]) -> bool {
        self.streams.get(&stream).is_some_and(|seats| seats.contains(key))
    }

    /// A stream reports a bucket whose key has these terms now. A first report is answered at once.
    /// False if there is no room for the bucket: then the answer is all that is known of it. One
    /// without requests is abandoned then, so that no Envoy reports more and more of them.
    pub fn report(
        &mut self,
        stream: StreamId,
        report: Report<'_>,
        terms: &Terms,
        now: Now,
        bank: &mut dyn Bank,
        out: &mut Vec<Assignment>,
    ) -> bool {
        self.note_stall(now.mono);
        let Some(seats) = self.streams.get(&stream) else { return false };
        let Report { allowed, denied, is_first, .. } = report;
        let counts = RequestCounts { allowed, denied, is_first };
        let known = self.buckets.get_key_value(report.key).map(|(key, _)| Arc::clone(key));
        let joins = !seats.contains(report.key);
        let is_divided = matches!(terms, Terms::Leases(_) | Terms::Slices(_));
        let full = known.is_none() && self.buckets.len() >= KEYS_MAX;
        if joins && (full || !self.has_room(seats.len())) {
            let key = Arc::from(report.key);
            let action = match counts.requests() {
                0 => Action::Abandon,
                _ => blanket::rule(terms),
            };
            out.push(Assignment { stream, key, action });
            return false;
        }
        let key = known.unwrap_or_else(|| self.add_bucket(report.key, terms, now));
        if joins && let Some(seats) = self.streams.get_mut(&stream) {
            self.shared_seats += usize::from(seats.len() >= OWN_SEATS);
            seats.insert(Arc::clone(&key));
        }
        let (opens_at, changes) = (self.opens_at, self.changes);
        self.turn(&key, now, bank, out, |bucket, turn| {
            bucket.change(terms, opens_at, turn);
            bucket.changes = changes;
            if joins && is_first && is_divided {
                // Envoy let them pass before there was an assignment, if it is told to.
                turn.count(allowed);
            }
            bucket.divider.report(stream, counts, turn);
            // A stream that joins may be charged, or renewed, before the bucket's own time.
            if joins {
                bucket.due = bucket.due.min(turn.mono());
            }
        });
        true
    }

    fn add_bucket(&mut self, key: &[u8], terms: &Terms, now: Now) -> Arc<[u8]> {
        let key: Arc<[u8]> = Arc::from(key);
        let divider = divider_for(terms, self.opens_at);
        let changes = self.changes;
        let bucket = Bucket { terms: terms.clone(), changes, divider, due: now.mono };
        self.buckets.insert(Arc::clone(&key), bucket);
        self.queue.insert((now.mono, Arc::clone(&key)));
        key
    }

    /// The rules have changed. Each bucket takes over its terms in its next turn, within a second.
    pub fn rules_changed(&mut self) {
        self.changes += 1;
    }

    /// Does what is due in at most [`TURNS_MAX`] buckets with about [`SEATS_PER_CALL`] seats, those
    /// first that have waited longest, and returns when to be called again: at once, if that time
    /// has come already. After a change of the rules it asks for the terms of these buckets. A call
    /// that is late by more than a few milliseconds lets other doors take what leases should have
    /// been charged for.
    pub fn tick(
        &mut self,
        mut terms_of: impl FnMut(&[u8]) -> Terms,
        now: Now,
        bank: &mut dyn Bank,
        out: &mut Vec<Assignment>,
    ) -> Nanos {
        self.note_stall(now.mono);
        let (opens_at, changes) = (self.opens_at, self.changes);
        let mut seats = 0;
        for _ in 0..TURNS_MAX {
            if seats >= SEATS_PER_CALL {
                break;
            }
            let Some((_, key)) = self.queue.first().filter(|(due, _)| *due <= now.mono) else {
                break;
            };
            let key = Arc::clone(key);
            self.turn(&key, now, bank, out, |bucket, turn| {
                if bucket.changes != changes {
                    bucket.changes = changes;
                    bucket.change(&terms_of(turn.key), opens_at, turn);
                }
                seats += bucket.divider.seats();
                // A bucket has one turn at a time, so that none keeps others from theirs.
                bucket.due = bucket.divider.tick(turn).max(turn.mono().saturating_add(1));
            });
            if self.buckets.get(&key).is_some_and(|bucket| bucket.divider.is_done())
                && let Some(bucket) = self.buckets.remove(&key)
            {
                self.queue.remove(&(bucket.due, key));
            }
        }
        let due = self.queue.first().map_or(now.mono.saturating_add(SECOND), |(due, _)| *due);
        self.called_at = (!self.is_idle()).then_some(due);
        due
    }

    /// Notices that the server stood still.
    fn note_stall(&mut self, now: Nanos) {
        if self.called_at.is_some_and(|due| now > due.saturating_add(STALL)) {
            self.stall_until = now.saturating_add(STALL_REPORTS);
        }
    }

    /// Whether there is nothing to do until a stream comes.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.streams.is_empty() && self.buckets.is_empty()
    }

    /// The bank answers a question with these uses. What was taken for a stream that is
    /// gone stays counted: its window may be over, and giving back into another would be too much.
    pub fn granted(
        &mut self,
        request: RequestId,
        grant: Grant,
        now: Now,
        bank: &mut dyn Bank,
        out: &mut Vec<Assignment>,
    ) {
        let Some((key, stream)) = self.requests.answer(request) else { return };
        self.turn(&key, now, bank, out, |bucket, turn| {
            bucket.divider.granted(stream, request, grant, turn);
            bucket.due = bucket.due.min(turn.mono());
        });
    }

    /// The server ends. What was given and is to be counted when it has been used is counted now:
    /// no server after this one knows of it.
    pub fn settle(&mut self, now: Now, bank: &mut dyn Bank) {
        let keys: Vec<Arc<[u8]>> = self.buckets.keys().cloned().collect();
        for key in keys {
            self.turn(&key, now, bank, &mut Vec::new(), |bucket, turn| bucket.divider.settle(turn));
        }
    }

    /// Lets a bucket act, and forgets the seats that it gave up.
    fn turn(
        &mut self,
        key: &Arc<[u8]>,
        now: Now,
        bank: &mut dyn Bank,
        out: &mut Vec<Assignment>,
        act: impl FnOnce(&mut Bucket, &mut Turn<'_>),
    ) {
        let Some(bucket) = self.buckets.get_mut(key) else { return };
        let mut left = Vec::new();
        let was_due = bucket.due;
        let (requests, after_stall) = (&mut self.requests, now.mono < self.stall_until);
        let left_streams = &mut left;
        act(bucket, &mut Turn { now, key, bank, out, left: left_streams, requests, after_stall });
        if bucket.due != was_due {
            self.queue.remove(&(was_due, Arc::clone(key)));
            self.queue.insert((bucket.due, Arc::clone(key)));
        }
        for stream in left {
            if let Some(seats) = self.streams.get_mut(&stream)
                && seats.remove(key)
            {
                self.shared_seats -= usize::from(seats.len() >= OWN_SEATS);
            }
        }
    }
}
