//! The quota service: Envoys report what they let pass, and are told how much they may.
//!
//! One [`Division`] divides the limits of all buckets among all streams of the process. A task
//! calls it when something is due, and sleeps for as long as there is no stream and no lease.
//!
//! However many buckets there are, other calls must not wait for them: both the task and the
//! reports work off a few buckets at a time, and let other tasks run in between.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prost::Message as _;
use tidegate_core::time::{MILLISECOND, Nanos, Now, SECOND};
use tidegate_envoy::config::write_key;
use tidegate_envoy::proto::quota::rate_limit_quota_response::BucketAction;
use tidegate_envoy::proto::quota::rate_limit_quota_usage_reports::BucketQuotaUsage;
use tidegate_envoy::proto::quota::{BucketId, RateLimitQuotaUsageReports};
use tidegate_envoy::quota::{
    Action, Assignment, Division, Report, StreamId, TURNS_MAX, Terms, TooManyStreams,
};
use tokio::sync::Notify;

use super::bucket_ids::{BucketIds, ID_BYTES_MAX};
use super::quota_answers::{Answers, NotTaken};
use super::quota_bank::{LateGrants, LimiterBank};
use super::quota_messages::{abandoned, assigned};
use super::stream_places::{NoPlace, StreamPlaces};
use crate::clock::Clock;
use crate::doors::Gate;
use crate::limiter::LimiterHandle;
use crate::metrics::Door;

/// The task collects what it has to send for so long, so that many buckets are few messages.
const COLLECTING: Nanos = 50 * MILLISECOND;
/// The least time between two turns of the task unless more is due: no lease needs less.
const PAUSE: Nanos = 3 * MILLISECOND;
/// The log warns at most this often of buckets that are not remembered.
const WARNING_PERIOD: Nanos = 60 * SECOND;

/// The quotas of the process.
pub(super) struct Quotas {
    limiter: LimiterHandle,
    clock: Clock,
    inner: Mutex<Inner>,
    /// Something has come that may be due at once.
    changed: Notify,
}

struct Inner {
    division: Division,
    streams: HashMap<StreamId, Answers>,
    places: StreamPlaces,
    next: u64,
    /// The ids of the buckets in which streams have seats.
    ids: BucketIds,
    /// What is to be sent to streams, and since when.
    unsent: HashMap<StreamId, Vec<BucketAction>>,
    unsent_since: Option<Nanos>,
    /// When the log last warned of a bucket that is not remembered.
    last_warned_at: Option<Nanos>,
    /// What a remote store has granted meanwhile.
    grants: LateGrants,
}

/// Why a bucket is not remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NotKept {
    TooLong,
    NoRoom,
}

impl Quotas {
    /// The one of the process. What drives it ends with the process.
    pub(super) fn of(gate: &Gate) -> Arc<Self> {
        gate.shared.part(|| {
            let limiter = gate.limiter.handle(Door::Grpc);
            let quotas = Arc::new(Self::new(limiter, gate.clock().clone()));
            tokio::spawn(quotas.clone().run());
            quotas
        })
    }

    fn new(limiter: LimiterHandle, clock: Clock) -> Self {
        let inner = Inner {
            division: Division::new(clock.now()),
            streams: HashMap::new(),
            places: StreamPlaces::default(),
            next: 0,
            ids: BucketIds::default(),
            unsent: HashMap::new(),
            unsent_since: None,
            last_warned_at: None,
            grants: LateGrants::default(),
        };
        Self { limiter, clock, inner: Mutex::new(inner), changed: Notify::new() }
    }

    /// A stream has begun.
    pub(super) fn open(&self, answers: Answers) -> Result<StreamId, NoPlace> {
        let mut inner = self.inner.lock();
        let connection = answers.connection();
        let bad_input = || {
            self.limiter.limiter().metrics().bad_input(Door::Grpc, "too_many_streams");
        };
        if let Some(other) = inner.places.room_for(connection).inspect_err(|_| bad_input())? {
            bad_input();
            inner.end(other);
        }
        let id = StreamId(inner.next);
        inner.division.open(id).map_err(|_: TooManyStreams| NoPlace::AtAll)?;
        inner.next += 1;
        inner.places.open(connection, id);
        inner.ids.open(id);
        inner.streams.insert(id, answers);
        Ok(id)
    }

    /// A stream is over. The division keeps reserved what it gave, until no Envoy can use it any
    /// more.
    pub(super) fn close(&self, stream: StreamId) {
        let mut inner = self.inner.lock();
        inner.end(stream);
    }

    /// The door is closed, and nothing may be remembered after it.
    pub(super) fn settle(&self) {
        let Inner { division, grants, .. } = &mut *self.inner.lock();
        division.settle(self.clock.now(), &mut LimiterBank::new(&self.limiter, grants));
    }

    /// A stream reports. False if the server has ended the stream, because its client does not read
    /// its answers: the rest of the report is not read then.
    pub(super) async fn report(
        &self,
        stream: StreamId,
        domain: &str,
        reports: RateLimitQuotaUsageReports,
    ) -> bool {
        let mut usages = reports.bucket_quota_usages.into_iter();
        while usages.len() > 0 {
            if !self.report_some(stream, domain, usages.by_ref().take(TURNS_MAX)) {
                return false;
            }
            if usages.len() > 0 {
                tokio::task::yield_now().await;
            }
        }
        self.send(&mut self.inner.lock());
        self.changed.notify_one();
        true
    }

    /// Takes in some buckets of a report. False if the stream has ended.
    fn report_some(
        &self,
        stream: StreamId,
        domain: &str,
        usages: impl Iterator<Item = BucketQuotaUsage>,
    ) -> bool {
        let now = self.clock.now();
        let mut inner = self.inner.lock();
        if !inner.streams.contains_key(&stream) {
            return false;
        }
        let mut key = Vec::new();
        for mut usage in usages {
            let id = usage.bucket_id.take().unwrap_or_default();
            if !self.can_be_assigned(&id) {
                continue;
            }
            if id.encoded_len() > ID_BYTES_MAX {
                self.turn_away(&mut inner, stream, id, NotKept::TooLong, now.mono);
                continue;
            }
            key.clear();
            let entries = id.bucket.iter().map(|(name, value)| (name.as_bytes(), &value[..]));
            write_key(&mut key, domain, entries);
            self.report_bucket(&mut inner, stream, (&key, id), &usage, now);
        }
        true
    }

    fn report_bucket(
        &self,
        inner: &mut Inner,
        stream: StreamId,
        (key, id): (&[u8], BucketId),
        usage: &BucketQuotaUsage,
        now: Now,
    ) {
        let Inner { division, ids, grants, .. } = inner;
        let is_known = ids.get(stream, key).is_some();
        if !is_known && !ids.has_room(stream, id.encoded_len()) {
            return self.turn_away(inner, stream, id, NotKept::NoRoom, now.mono);
        }
        let mut out = Vec::new();
        let mut bank = LimiterBank::new(&self.limiter, grants);
        let (allowed, denied) = (usage.num_requests_allowed, usage.num_requests_denied);
        // Envoy counts whole seconds since the last report of the bucket.
        let is_first = usage.time_elapsed.is_none_or(|span| span.seconds <= 0);
        let report = Report { key, allowed, denied, is_first };
        let has_seat = division.report(stream, report, &self.terms(key), now, &mut bank, &mut out);
        if !has_seat {
            for assignment in out {
                inner.queue(stream, assigned(id.clone(), assignment.action), now.mono);
            }
            return self.warn(inner, NotKept::NoRoom, now.mono);
        }
        if !is_known {
            ids.remember(stream, key, &id);
        }
        inner.collect(out, now.mono);
    }

    /// Has Envoy forget a bucket that cannot be remembered here: it would report it for ever.
    fn turn_away(
        &self,
        inner: &mut Inner,
        stream: StreamId,
        id: BucketId,
        why: NotKept,
        now: Nanos,
    ) {
        inner.queue(stream, assigned(id, Action::Abandon), now);
        self.warn(inner, why, now);
    }

    /// Counts a bucket that is not remembered, and warns of it in the log from time to time.
    fn warn(&self, inner: &mut Inner, why: NotKept, now: Nanos) {
        let reason = match why {
            NotKept::TooLong => "bucket_too_long",
            NotKept::NoRoom => "too_many_buckets",
        };
        self.limiter.limiter().metrics().bad_input(Door::Grpc, reason);
        if inner.last_warned_at.is_some_and(|at| now < at.saturating_add(WARNING_PERIOD)) {
            return;
        }
        inner.last_warned_at = Some(now);
        match why {
            NotKept::TooLong => tracing::warn!(
                "a quota bucket with an id of more than {ID_BYTES_MAX} bytes: Envoys treat its \
                 requests by their no_assignment_behavior"
            ),
            NotKept::NoRoom => tracing::warn!(
                "no room for another quota bucket: Envoys deny its requests, if it has a limit"
            ),
        }
    }

    /// Whether Envoy would take an assignment for a bucket. It cannot read a message whose strings
    /// are not UTF-8, and rejects assignments for a bucket without entries, although it reports one
    /// where the header of the only entry is empty.
    fn can_be_assigned(&self, id: &BucketId) -> bool {
        let reason = if id.bucket.is_empty() {
            "empty_bucket"
        } else if id.bucket.values().any(|value| std::str::from_utf8(value).is_err()) {
            "bucket_not_text"
        } else {
            return true;
        };
        self.limiter.limiter().metrics().bad_input(Door::Grpc, reason);
        false
    }

    /// What limits a bucket, by the rules that hold at every door.
    fn terms(&self, key: &[u8]) -> Terms {
        let limiter = self.limiter.limiter();
        let rules = limiter.rules();
        match rules.find(key).map(|position| &rules.rules()[position]) {
            Some(rule) => Terms::of_rule(rule, limiter.counts_remotely(rule)),
            None => Terms::of(&[], false, false),
        }
    }

    /// Sends what was collected, in as few messages as can be. A stream that does not read is over.
    fn send(&self, inner: &mut Inner) {
        inner.unsent_since = None;
        for (stream, actions) in std::mem::take(&mut inner.unsent) {
            let Some(answers) = inner.streams.get(&stream) else { continue };
            if let Err(why) = answers.send(actions) {
                let reason = match why {
                    NotTaken::SlowReader => "slow_reader",
                    NotTaken::NoRoom => "overload",
                };
                self.limiter.limiter().metrics().bad_input(Door::Grpc, reason);
                inner.end(stream);
            }
        }
    }

    /// Calls the division when something is due.
    async fn run(self: Arc<Self>) {
        let mut rules = self.limiter.limiter().rules();
        let arrived = self.inner.lock().grants.arrived();
        loop {
            let due = self.turn(&mut rules);
            let now = self.clock.now().mono;
            if due.is_some_and(|due| due <= now) {
                tokio::task::yield_now().await;
                continue;
            }
            let due = due.map(|due| due.max(now.saturating_add(PAUSE)));
            tokio::select! {
                () = self.changed.notified() => {}
                () = arrived.notified() => {}
                () = sleep_until(due, &self.clock) => {}
            }
        }
    }

    /// Does some of what is due now; returns when to come again, `None` if there is nothing to do.
    fn turn(&self, rules: &mut Arc<tidegate_core::rules::RuleSet>) -> Option<Nanos> {
        let now = self.clock.now();
        let mut inner = self.inner.lock();
        let mut out = Vec::new();
        let Inner { division, grants, .. } = &mut *inner;
        for (request, grant) in grants.take() {
            let mut bank = LimiterBank::new(&self.limiter, grants);
            division.granted(request, grant, now, &mut bank, &mut out);
        }
        let mut bank = LimiterBank::new(&self.limiter, grants);
        let present = self.limiter.limiter().rules();
        if !Arc::ptr_eq(rules, &present) {
            *rules = present;
            division.rules_changed();
        }
        let due = division.tick(|key| self.terms(key), now, &mut bank, &mut out);
        let is_idle = division.is_idle();
        inner.collect(out, now.mono);
        let send_at = inner.unsent_since.map(|since| since.saturating_add(COLLECTING));
        if send_at.is_some_and(|at| at <= now.mono) {
            self.send(&mut inner);
            return (!is_idle).then_some(due);
        }
        match send_at {
            Some(at) => Some(due.min(at)),
            None => (!is_idle).then_some(due),
        }
    }
}

impl Inner {
    /// Keeps assignments for their streams until the next messages.
    fn collect(&mut self, out: Vec<Assignment>, now: Nanos) {
        for Assignment { stream, key, action } in out {
            let id = match abandoned(action) {
                true => self.ids.forget(stream, &key),
                false => self.ids.get(stream, &key).cloned(),
            };
            if let Some(id) = id {
                self.queue(stream, assigned(id, action), now);
            }
        }
    }

    /// Keeps what is to be sent to a stream.
    fn queue(&mut self, stream: StreamId, action: BucketAction, now: Nanos) {
        self.unsent.entry(stream).or_default().push(action);
        self.unsent_since.get_or_insert(now);
    }

    /// A stream is over.
    fn end(&mut self, stream: StreamId) {
        self.streams.remove(&stream);
        self.places.close(stream);
        self.ids.close(stream);
        self.unsent.remove(&stream);
        self.division.close(stream);
    }
}

async fn sleep_until(due: Option<Nanos>, clock: &Clock) {
    match due {
        Some(due) => {
            let span = due.saturating_sub(clock.now().mono);
            tokio::time::sleep(Duration::from_nanos(span)).await;
        }
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use tidegate_core::rules::RuleSet;
    use tidegate_envoy::quota::STREAMS_MAX;

    use super::*;
    use crate::doors::grpc::quota_answers::AnswerReceiver;
    use crate::doors::io::held_bytes::{ConnectionBytes, HeldBytes};
    use crate::limiter::Limiter;
    use crate::metrics::Metrics;
    use crate::stores::memory;

    fn quotas() -> Quotas {
        let (clock, rules) = (Clock::manual(Now { mono: 0, unix: 0 }), RuleSet::default());
        let metrics = Arc::new(Metrics::new());
        let limiter = Limiter::new(clock.clone(), metrics, rules, memory::Settings::default());
        Quotas::new(limiter.handle(Door::Grpc), clock)
    }

    fn open(quotas: &Quotas) -> (StreamId, AnswerReceiver) {
        let pot = Arc::new(HeldBytes::default());
        let call = ConnectionBytes::new(&pot).begin(0).expect("room");
        let (answers, receiver) = Answers::new(call);
        (quotas.open(answers).expect("room"), receiver)
    }

    /// A report of buckets with these numbers.
    fn report(numbers: Range<usize>) -> RateLimitQuotaUsageReports {
        let usage = |number: usize| {
            let entry = ("user".to_owned(), number.to_string().into());
            let bucket_id = Some(BucketId { bucket: [entry].into_iter().collect() });
            BucketQuotaUsage { bucket_id, ..Default::default() }
        };
        let bucket_quota_usages = numbers.map(usage).collect();
        RateLimitQuotaUsageReports { bucket_quota_usages, ..Default::default() }
    }

    #[tokio::test]
    async fn a_stream_ends_for_a_connection_that_has_fewer() {
        let quotas = quotas();
        let pot = Arc::new(HeldBytes::default());
        let answers =
            |connection: &Arc<ConnectionBytes>| Answers::new(connection.begin(0).expect("room"));
        let greedy: Vec<_> =
            (0..STREAMS_MAX / 32 + 1).map(|_| ConnectionBytes::new(&pot)).collect();
        let mut open = Vec::new();
        for connection in
            greedy.iter().flat_map(|connection| vec![connection; 32]).take(STREAMS_MAX)
        {
            let (answers, receiver) = answers(connection);
            let unread = answers.unread();
            quotas.open(answers).expect("room");
            open.push((unread, receiver));
        }
        let honest = ConnectionBytes::new(&pot);
        assert!(quotas.open(answers(&honest).0).is_ok());
        let ended = open.iter_mut().filter(|(_, receiver)| receiver.is_closed());
        let ended: Vec<_> = ended.collect();
        assert_eq!(ended.len(), 1);
        // The task that reads its reports hears of it.
        ended[0].0.has_ended().await;
    }

    #[tokio::test]
    async fn a_report_ends_with_its_stream() {
        const MANY: usize = 2 * TURNS_MAX;
        let quotas = quotas();
        let (id, answers) = open(&quotas);
        assert!(quotas.report(id, "web", report(0..MANY)).await);
        drop(answers);
        // The client that would read this answer is gone, which ends the stream.
        assert!(quotas.report(id, "web", report(MANY..MANY + 1)).await);
        assert!(!quotas.report(id, "web", report(0..MANY)).await);
        // A stream may end between two parts of its report.
        let (id, _answers) = open(&quotas);
        let whole = quotas.report(id, "web", report(0..MANY));
        let end = async { quotas.close(id) };
        assert!(!tokio::join!(biased; whole, end).0);
    }
}
