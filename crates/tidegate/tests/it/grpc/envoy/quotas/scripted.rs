//! A quota service that says what a test wants, and tells what Envoy reported.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc::{Receiver, Sender, channel};

use tidegate_envoy::proto::quota::rate_limit_quota_response::BucketAction;
use tidegate_envoy::proto::quota::rate_limit_quota_response::bucket_action::{
    AbandonAction, BucketAction as Action, QuotaAssignmentAction,
};
use tidegate_envoy::proto::quota::rate_limit_quota_service_server::{
    RateLimitQuotaService, RateLimitQuotaServiceServer,
};
use tidegate_envoy::proto::quota::rate_limit_quota_usage_reports::BucketQuotaUsage;
use tidegate_envoy::proto::quota::{BucketId, RateLimitQuotaResponse, RateLimitQuotaUsageReports};
use tidegate_envoy::proto::strategy::rate_limit_strategy::{
    BlanketRule, RequestsPerTimeUnit, Strategy,
};
use tidegate_envoy::proto::strategy::{RateLimitStrategy, TokenBucket};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};

use crate::program::PATIENCE;

/// The service, and the streams that Envoys have opened.
pub(super) struct Scripted {
    pub(super) address: SocketAddr,
    streams: Receiver<Stream>,
    _runtime: Runtime,
}

/// A stream. Dropping it closes it.
pub(super) struct Stream {
    answers: mpsc::Sender<Result<RateLimitQuotaResponse, Status>>,
    reports: Receiver<RateLimitQuotaUsageReports>,
}

struct Service(Sender<Stream>);

#[tonic::async_trait]
impl RateLimitQuotaService for Service {
    type StreamRateLimitQuotasStream = ReceiverStream<Result<RateLimitQuotaResponse, Status>>;

    async fn stream_rate_limit_quotas(
        &self,
        request: Request<Streaming<RateLimitQuotaUsageReports>>,
    ) -> Result<Response<Self::StreamRateLimitQuotasStream>, Status> {
        let (answers, out) = mpsc::channel(8);
        let (told, reports) = channel();
        let mut incoming = request.into_inner();
        tokio::spawn(async move {
            while let Ok(Some(message)) = incoming.message().await {
                if told.send(message).is_err() {
                    break;
                }
            }
        });
        let _ = self.0.send(Stream { answers, reports });
        Ok(Response::new(ReceiverStream::new(out)))
    }
}

impl Scripted {
    pub(super) fn start() -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let (opened, streams) = channel();
        let incoming = {
            let _entered = runtime.enter();
            TcpIncoming::bind((Ipv4Addr::LOCALHOST, 0).into()).expect("a free port")
        };
        let address = incoming.local_addr().expect("an address");
        let service = RateLimitQuotaServiceServer::new(Service(opened));
        runtime.spawn(Server::builder().add_service(service).serve_with_incoming(incoming));
        Self { address, streams, _runtime: runtime }
    }

    /// The next stream that Envoy opens.
    pub(super) fn next(&self) -> Stream {
        self.streams.recv_timeout(PATIENCE).expect("Envoy opens a stream")
    }
}

impl Stream {
    /// The next message of Envoy: its domain, and what it reports of each bucket by user.
    pub(super) fn next(&self) -> Vec<(String, BucketQuotaUsage)> {
        let message = self.reports.recv_timeout(PATIENCE).expect("Envoy reports");
        assert_eq!(message.domain, "web");
        let named = |usage: BucketQuotaUsage| {
            let id = usage.bucket_id.as_ref().expect("a bucket");
            let user = id.bucket.get("user").map_or(&b""[..], |user| user);
            (String::from_utf8_lossy(user).into_owned(), usage)
        };
        let mut usages: Vec<_> = message.bucket_quota_usages.into_iter().map(named).collect();
        usages.sort_by(|(one, _), (other, _)| one.cmp(other));
        usages
    }

    /// What the next message says of one user's bucket: allowed, denied and seconds.
    pub(super) fn next_of(&self, user: &str) -> (u64, u64, i64) {
        loop {
            if let Some((_, usage)) = self.next().into_iter().find(|(name, _)| name == user) {
                let seconds = usage.time_elapsed.as_ref().map_or(0, |span| span.seconds);
                assert_eq!(usage.time_elapsed.map_or(0, |span| span.nanos), 0, "whole seconds");
                return (usage.num_requests_allowed, usage.num_requests_denied, seconds);
            }
        }
    }

    /// Sends one message.
    pub(super) fn say(&self, actions: &[(&str, Told)]) {
        let bucket_action = actions.iter().map(|(user, told)| told.of(user)).collect();
        let message = RateLimitQuotaResponse { bucket_action };
        self.answers.blocking_send(Ok(message)).expect("Envoy listens");
    }
}

/// What a bucket is told.
#[derive(Clone, Copy, Debug)]
pub(super) enum Told {
    Allow,
    Deny,
    /// So many tokens, and no more for a year.
    Tokens(u32),
    /// The same for so many seconds only.
    Brief(u32, i64),
    /// A bucket of this size, with so many tokens per interval of seconds and nanoseconds.
    Filled(u32, u32, (i64, i32)),
    /// Every request passes, for this time.
    AllowFor(Option<(i64, i32)>),
    DenyFor(i64),
    /// So many requests per second, which Envoy does not know.
    PerSecond(u64),
    Abandon,
}

impl Told {
    fn of(self, user: &str) -> BucketAction {
        let span = |(seconds, nanos)| prost_types::Duration { seconds, nanos };
        let blanket = |rule: BlanketRule| Strategy::BlanketRule(rule.into());
        let filled = |max_tokens, tokens_per_fill, interval| {
            Strategy::TokenBucket(TokenBucket {
                max_tokens,
                tokens_per_fill: Some(tokens_per_fill),
                fill_interval: Some(span(interval)),
            })
        };
        let tokens = |max_tokens| filled(max_tokens, 1, (31_536_000, 0));
        let long = Some((600, 0));
        let (strategy, ttl) = match self {
            Told::Abandon => return action(user, Action::AbandonAction(AbandonAction {})),
            Told::Allow => (blanket(BlanketRule::AllowAll), long),
            Told::AllowFor(ttl) => (blanket(BlanketRule::AllowAll), ttl),
            Told::Deny => (blanket(BlanketRule::DenyAll), long),
            Told::DenyFor(seconds) => (blanket(BlanketRule::DenyAll), Some((seconds, 0))),
            Told::Tokens(count) => (tokens(count), long),
            Told::Brief(count, seconds) => (tokens(count), Some((seconds, 0))),
            Told::Filled(max, fill, interval) => (filled(max, fill, interval), long),
            Told::PerSecond(requests) => (per_second(requests), long),
        };
        let assigned = QuotaAssignmentAction {
            assignment_time_to_live: ttl.map(span),
            rate_limit_strategy: Some(RateLimitStrategy { strategy: Some(strategy) }),
        };
        action(user, Action::QuotaAssignmentAction(assigned))
    }
}

fn per_second(requests_per_time_unit: u64) -> Strategy {
    const SECOND: i32 = 1;
    Strategy::RequestsPerTimeUnit(RequestsPerTimeUnit { requests_per_time_unit, time_unit: SECOND })
}

fn action(user: &str, action: Action) -> BucketAction {
    let entries = [("kind", "web"), ("user", user)];
    let entry = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned().into());
    let bucket = entries.into_iter().filter(|(_, value)| !value.is_empty()).map(entry).collect();
    BucketAction { bucket_id: Some(BucketId { bucket }), bucket_action: Some(action) }
}
