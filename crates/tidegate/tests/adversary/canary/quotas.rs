//! Canaries of the quota service: each holds two streams that share one limited bucket, as two
//! Envoys would. Whatever they are told is about buckets of their own, and what both may use
//! together is within the limit.

use std::collections::HashSet;
use std::sync::Arc;

use tidegate_envoy::proto::quota::rate_limit_quota_response::bucket_action::BucketAction as Action;
use tidegate_envoy::proto::quota::rate_limit_quota_service_client::RateLimitQuotaServiceClient;
use tidegate_envoy::proto::quota::rate_limit_quota_usage_reports::BucketQuotaUsage;
use tidegate_envoy::proto::quota::{BucketId, RateLimitQuotaResponse, RateLimitQuotaUsageReports};
use tidegate_envoy::proto::strategy::TokenBucket;
use tidegate_envoy::proto::strategy::rate_limit_strategy::{BlanketRule, Strategy};
use tokio::runtime::Runtime;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::mpsc::{Sender, UnboundedReceiver, channel, unbounded_channel};
use tokio_stream::wrappers::ReceiverStream;

use super::grpc::{connect, runtime};
use super::{Canary, Named, Wrong, same};
use crate::clock::{Moment, WATCHDOG, pause_ms};
use crate::net::Address;
use crate::seed::Random;
use crate::server::{Doors, QUOTA_PER_S};

/// Requests that each stream reports of its limited bucket at a time.
const REQUESTS: u64 = 40;

pub(super) fn add(doors: &Doors, canaries: &mut Vec<Named>) {
    let runtime = runtime();
    for (at, address) in doors.grpc.iter().enumerate() {
        let name = format!("quotas-{at}");
        let canary = Quotas {
            runtime: runtime.clone(),
            address: address.clone(),
            name: name.clone(),
            streams: Vec::new(),
        };
        canaries.push((name, Box::new(canary)));
    }
}

struct Quotas {
    runtime: Arc<Runtime>,
    address: Address,
    name: String,
    streams: Vec<Stream>,
}

/// A stream, whose answers are read whatever its canary does.
struct Stream {
    reports: Sender<RateLimitQuotaUsageReports>,
    answers: UnboundedReceiver<Result<RateLimitQuotaResponse, tonic::Status>>,
    /// What it may use of the limited bucket, in uses per second, by the last word.
    rate: f64,
    /// Unlimited buckets of which it was not told yet.
    asked: HashSet<String>,
}

/// A bucket of a canary: a kind that a rule may limit, and a value that nobody else has.
fn usage(value: &str, denied: u64) -> BucketQuotaUsage {
    let bucket = [("user".to_owned(), value.to_owned().into())].into_iter().collect();
    let bucket_id = Some(BucketId { bucket });
    BucketQuotaUsage { bucket_id, num_requests_denied: denied, ..Default::default() }
}

fn per_second(bucket: &TokenBucket) -> Result<f64, Wrong> {
    let interval = bucket.fill_interval.as_ref().map_or(0, |span| span.seconds);
    match bucket.tokens_per_fill {
        Some(tokens @ 1..) if interval > 0 => Ok(f64::from(tokens) / interval as f64),
        _ => Err(format!("no limit to Envoy: {bucket:?}")),
    }
}

impl Stream {
    /// Opens one. However many streams hostile connections have, another connection gets its own.
    fn open(runtime: &Runtime, address: &Address) -> Result<Self, Wrong> {
        let (reports, sent) = channel(8);
        let mut client = RateLimitQuotaServiceClient::new(connect(runtime, address)?);
        let opening = client.stream_rate_limit_quotas(ReceiverStream::new(sent));
        let opened = runtime.block_on(async {
            tokio::time::timeout(WATCHDOG, opening).await.map_err(|_| "a stream: no answer")
        })?;
        let mut told = opened.map_err(|error| format!("a stream: {error}"))?.into_inner();
        let (read, answers) = unbounded_channel();
        runtime.spawn(async move {
            while let Some(answer) = told.message().await.transpose() {
                if read.send(answer).is_err() {
                    break;
                }
            }
        });
        Ok(Self { reports, answers, rate: 0.0, asked: HashSet::new() })
    }

    fn report(&mut self, domain: &str, usages: Vec<BucketQuotaUsage>) -> Result<(), Wrong> {
        let domain = domain.to_owned();
        let report = RateLimitQuotaUsageReports { domain, bucket_quota_usages: usages };
        self.reports.blocking_send(report).map_err(|_| "the stream has ended".to_owned())
    }

    /// Takes in what was said; returns whether there was something.
    fn listen(&mut self, own: &str) -> Result<bool, Wrong> {
        let answer = match self.answers.try_recv() {
            Ok(answer) => answer.map_err(|error| format!("the stream has ended: {error}"))?,
            Err(TryRecvError::Empty) => return Ok(false),
            Err(TryRecvError::Disconnected) => return Err("the stream has ended".to_owned()),
        };
        for told in answer.bucket_action {
            let id = told.bucket_id.unwrap_or_default().bucket;
            let user = id.get("user").map_or(&b""[..], |user| user);
            let user = String::from_utf8_lossy(user).into_owned();
            let action = told.bucket_action.ok_or("no action")?;
            same("entries of a bucket", id.len(), 1)?;
            if user == own {
                self.rate = rate(action)?;
            } else if user.strip_prefix(own).is_some_and(|rest| rest.starts_with(' ')) {
                // One that was silent for long, or finds no room, is abandoned.
                if !matches!(action, Action::AbandonAction(_)) {
                    same("the rate of a bucket without a limit", rate(action)?, f64::INFINITY)?;
                }
                self.asked.remove(&user);
            } else {
                return Err(format!("told of a bucket of another: {user:?}"));
            }
        }
        Ok(true)
    }
}

/// What an assignment allows, in uses per second.
fn rate(action: Action) -> Result<f64, Wrong> {
    let Action::QuotaAssignmentAction(assigned) = action else { return Ok(0.0) };
    let ttl = assigned.assignment_time_to_live.as_ref().map_or(0, |ttl| ttl.seconds);
    if ttl < 2 {
        return Err(format!("it ends too soon: {assigned:?}"));
    }
    match assigned.rate_limit_strategy.and_then(|strategy| strategy.strategy) {
        Some(Strategy::TokenBucket(bucket)) => per_second(&bucket),
        Some(Strategy::BlanketRule(rule)) if rule == BlanketRule::DenyAll as i32 => Ok(0.0),
        Some(Strategy::BlanketRule(rule)) if rule == BlanketRule::AllowAll as i32 => {
            Ok(f64::INFINITY)
        }
        other => Err(format!("Envoy does not know {other:?}")),
    }
}

impl Canary for Quotas {
    fn ask(&mut self, random: &mut Random) -> Result<(), Wrong> {
        while self.streams.len() < 2 {
            self.streams.push(Stream::open(&self.runtime, &self.address)?);
        }
        let limited = usage(&self.name, REQUESTS);
        for stream in &mut self.streams {
            // It is told at once, since it has no limit.
            let free = format!("{} {:016x}", self.name, random.next());
            stream.report("canary-quota", vec![limited.clone()])?;
            stream.report("free-quota", vec![usage(&free, 1)])?;
            stream.asked.insert(free);
        }
        let begun = Moment::now();
        while self.streams.iter().any(|stream| !stream.asked.is_empty()) || self.hears()? {
            self.hears()?;
            if begun.is_overdue() {
                return Err("no answer to a report".to_owned());
            }
            pause_ms(1);
        }
        // What one stream loses is given to the other when the server takes its lease for ended.
        let sum: f64 = self.streams.iter().map(|stream| stream.rate).sum();
        if sum > QUOTA_PER_S + 1e-6 {
            return Err(format!("{sum} of {QUOTA_PER_S} uses per second"));
        }
        Ok(())
    }
}

impl Quotas {
    /// Takes in what both streams were told; returns whether there was something.
    fn hears(&mut self) -> Result<bool, Wrong> {
        let mut any = false;
        for stream in &mut self.streams {
            any |= stream.listen(&self.name)?;
        }
        Ok(any)
    }
}
