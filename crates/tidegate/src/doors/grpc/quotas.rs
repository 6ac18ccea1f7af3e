//! The quota service: Envoys report what they let pass, and are told how much they may.
//!
//! One [`Division`] divides the limits of all buckets among all streams of the process. A task
//! calls it when something is due, and sleeps for as long as there is no stream and no lease.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_core::Now;
use tidegate_envoy::config::write_key;
use tidegate_envoy::proto::quota::rate_limit_quota_usage_reports::BucketQuotaUsage;
use tidegate_envoy::proto::quota::{BucketId, RateLimitQuotaResponse, RateLimitQuotaUsageReports};
use tidegate_envoy::quota::{
    Assignment, BUCKETS_PER_STREAM_MAX, Division, Report, StreamId, Terms, TooManyStreams,
};
use tokio::sync::{Notify, mpsc};
use tonic::Status;

use super::quota_bank::{LateGrants, LimiterBank};
use super::quota_messages::{abandoned, assigned};
use crate::clock::Clock;
use crate::doors::Gate;
use crate::limiter::LimiterHandle;
use crate::metrics::Door;

/// Messages that wait for one stream. A client that leaves more unread loses its stream.
const UNREAD_MESSAGES_MAX: usize = 64;

/// The messages for a stream: the client's end of the channel.
pub(super) type QuotaMessages = mpsc::Receiver<Result<RateLimitQuotaResponse, Status>>;

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
    streams: HashMap<StreamId, QuotaStream>,
    next: u64,
    /// What a remote store has granted meanwhile.
    grants: LateGrants,
}

struct QuotaStream {
    messages: mpsc::Sender<Result<RateLimitQuotaResponse, Status>>,
    /// The ids by which the client knows its buckets, by their keys.
    ids: HashMap<Arc<[u8]>, BucketId>,
}

impl Quotas {
    /// The one of the process. What drives it ends with the process.
    pub(super) fn of(gate: &Gate) -> Arc<Self> {
        gate.shared.part(|| {
            let now = gate.clock().now();
            let quotas = Arc::new(Self {
                limiter: gate.limiter.handle(Door::Grpc),
                clock: gate.clock().clone(),
                inner: Mutex::new(Inner {
                    division: Division::new(now),
                    streams: HashMap::new(),
                    next: 0,
                    grants: LateGrants::default(),
                }),
                changed: Notify::new(),
            });
            tokio::spawn(quotas.clone().run());
            quotas
        })
    }

    /// A stream has begun.
    pub(super) fn open(&self) -> Result<(StreamId, QuotaMessages), TooManyStreams> {
        let (sender, messages) = mpsc::channel(UNREAD_MESSAGES_MAX);
        let mut inner = self.inner.lock();
        let id = StreamId(inner.next);
        inner.division.open(id)?;
        inner.next += 1;
        inner.streams.insert(id, QuotaStream { messages: sender, ids: HashMap::new() });
        Ok((id, messages))
    }

    /// A stream is over. The division keeps reserved what it gave, until no Envoy can use it any
    /// more.
    pub(super) fn close(&self, stream: StreamId) {
        let mut inner = self.inner.lock();
        inner.streams.remove(&stream);
        inner.division.close(stream);
    }

    /// A stream reports.
    pub(super) fn report(
        &self,
        stream: StreamId,
        domain: &str,
        reports: RateLimitQuotaUsageReports,
    ) {
        let now = self.clock.now();
        let mut inner = self.inner.lock();
        let mut out = Vec::new();
        let mut key = Vec::new();
        for usage in reports.bucket_quota_usages {
            let id = usage.bucket_id.clone().unwrap_or_default();
            if !self.can_be_assigned(&id) {
                continue;
            }
            key.clear();
            let entries = id.bucket.iter().map(|(name, value)| (name.as_bytes(), &value[..]));
            write_key(&mut key, domain, entries);
            self.report_bucket(&mut inner, stream, (&key, id), &usage, now, &mut out);
        }
        self.send(&mut inner, out);
        drop(inner);
        self.changed.notify_one();
    }

    fn report_bucket(
        &self,
        inner: &mut Inner,
        stream: StreamId,
        (key, id): (&[u8], BucketId),
        usage: &BucketQuotaUsage,
        now: Now,
        out: &mut Vec<Assignment>,
    ) {
        let Inner { division, streams, grants, .. } = inner;
        let Some(known) = streams.get_mut(&stream) else { return };
        if known.ids.len() < BUCKETS_PER_STREAM_MAX && !known.ids.contains_key(key) {
            known.ids.insert(key.into(), id.clone());
        }
        let mut bank = LimiterBank::new(&self.limiter, grants);
        let (allowed, denied) = (usage.num_requests_allowed, usage.num_requests_denied);
        let report = Report { key, allowed, denied };
        let from = out.len();
        division.report(stream, report, &self.terms(key), now, &mut bank, out);
        if !known.ids.contains_key(key) {
            // The stream has too many buckets to remember this one, so it is answered here.
            let own: Vec<_> = out.drain(from..).filter(|it| it.stream == stream).collect();
            let actions = own.iter().map(|it| assigned(id.clone(), it.action)).collect();
            let _ = known.messages.try_send(Ok(RateLimitQuotaResponse { bucket_action: actions }));
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
            Some(rule) => Terms::of(&rule.limits, rule.shadow, limiter.counts_remotely(rule)),
            None => Terms::of(&[], false, false),
        }
    }

    /// Sends assignments, one message for each stream. A stream that does not read is over.
    fn send(&self, inner: &mut Inner, out: Vec<Assignment>) {
        let mut messages: HashMap<StreamId, RateLimitQuotaResponse> = HashMap::new();
        for Assignment { stream, key, action } in out {
            let Some(known) = inner.streams.get_mut(&stream) else { continue };
            let id = match abandoned(action) {
                true => known.ids.remove(&key),
                false => known.ids.get(&key).cloned(),
            };
            if let Some(id) = id {
                messages.entry(stream).or_default().bucket_action.push(assigned(id, action));
            }
        }
        for (stream, message) in messages {
            let Some(known) = inner.streams.get(&stream) else { continue };
            if known.messages.try_send(Ok(message)).is_err() {
                self.limiter.limiter().metrics().bad_input(Door::Grpc, "slow_reader");
                inner.streams.remove(&stream);
                inner.division.close(stream);
            }
        }
    }

    /// Calls the division when something is due.
    async fn run(self: Arc<Self>) {
        let mut rules = self.limiter.limiter().rules();
        let arrived = self.inner.lock().grants.arrived();
        loop {
            let due = self.turn(&mut rules);
            tokio::select! {
                () = self.changed.notified() => {}
                () = arrived.notified() => {}
                () = sleep_until(due, &self.clock) => {}
            }
        }
    }

    /// Does what is due now; returns when to come again, `None` if there is nothing to do.
    fn turn(&self, rules: &mut Arc<tidegate_core::rules::RuleSet>) -> Option<u64> {
        let now = self.clock.now();
        let mut inner = self.inner.lock();
        let mut out = Vec::new();
        let Inner { division, grants, .. } = &mut *inner;
        for (request, uses) in grants.take() {
            let mut bank = LimiterBank::new(&self.limiter, grants);
            division.granted(request, uses, now, &mut bank, &mut out);
        }
        let mut bank = LimiterBank::new(&self.limiter, grants);
        let present = self.limiter.limiter().rules();
        if !Arc::ptr_eq(rules, &present) {
            *rules = present;
            division.change_terms(|key| self.terms(key), now, &mut bank, &mut out);
        }
        let due = division.tick(now, &mut bank, &mut out);
        let is_idle = division.is_idle();
        self.send(&mut inner, out);
        (!is_idle).then_some(due)
    }
}

async fn sleep_until(due: Option<u64>, clock: &Clock) {
    match due {
        Some(due) => {
            let span = due.saturating_sub(clock.now().mono);
            tokio::time::sleep(Duration::from_nanos(span)).await;
        }
        None => std::future::pending().await,
    }
}
