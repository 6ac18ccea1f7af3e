//! The services of the door: rate limits, quotas, health and reflection. The rate limit service is
//! here whole: it hands each call to `doors/envoy`, and what was decided back to the client.

use std::sync::Arc;

use tidegate_envoy::proto::quota::rate_limit_quota_service_server::{
    self, RateLimitQuotaServiceServer,
};
use tidegate_envoy::proto::ratelimit::rate_limit_service_server::{
    self, RateLimitService, RateLimitServiceServer,
};
use tidegate_envoy::proto::ratelimit::{RateLimitRequest, RateLimitResponse};
use tidegate_envoy::proto::{FILE_DESCRIPTOR_SET, MESSAGE_BYTES_MAX};
use tonic::service::Routes;
use tonic::{Request, Response, Status};
use tonic_health::ServingStatus;
use tonic_health::pb::health_server;
use tonic_health::server::{HealthReporter, health_reporter};

use super::call_counts::CallCounts;
use super::quota_service::QuotaStreams;
use crate::clock::Clock;
use crate::doors::Gate;
use crate::doors::envoy::rate_limit::RateLimits;
use crate::metrics::Door;

/// What is asked after: the whole server, and the name that envoyproxy/ratelimit has.
const HEALTH_NAMES: [&str; 2] = ["", "ratelimit"];

/// All services, and what tells clients whether they are served.
pub(super) async fn services(gate: &Gate) -> (Routes, HealthReporter) {
    let (reporter, health) = health_reporter();
    set_status(&reporter, ServingStatus::Serving).await;
    let rate_limits = RateLimitServiceServer::new(TimedRateLimits::new(gate))
        .max_decoding_message_size(MESSAGE_BYTES_MAX);
    let quotas = RateLimitQuotaServiceServer::new(QuotaStreams::new(gate))
        .max_decoding_message_size(MESSAGE_BYTES_MAX);
    let mut routes = Routes::new(rate_limits).add_service(quotas).add_service(health);
    // The messages of xDS are among the descriptors, and its service is not served here.
    let reflection = tonic_reflection::server::Builder::configure()
        .with_service_name(rate_limit_service_server::SERVICE_NAME)
        .with_service_name(rate_limit_quota_service_server::SERVICE_NAME)
        .with_service_name(health_server::SERVICE_NAME)
        .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1();
    match reflection {
        Ok(reflection) => routes = routes.add_service(reflection),
        Err(error) => tracing::error!(%error, "no reflection"),
    }
    (routes.prepare(), reporter)
}

/// Tells clients that ask after the server's health.
pub(super) async fn set_status(reporter: &HealthReporter, status: ServingStatus) {
    for name in HEALTH_NAMES {
        reporter.set_service_status(name, status).await;
    }
}

/// The rate limit service. Some calls are timed, from the decoded message to the whole answer.
struct TimedRateLimits {
    limits: RateLimits,
    clock: Clock,
    counts: Arc<CallCounts>,
}

impl TimedRateLimits {
    fn new(gate: &Gate) -> Self {
        let (clock, counts) = (gate.clock().clone(), CallCounts::of(gate));
        Self { limits: RateLimits::new(gate, Door::Grpc), clock, counts }
    }
}

#[tonic::async_trait]
impl RateLimitService for TimedRateLimits {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let begun = self.clock.now().mono;
        let decided = self.limits.decide(request.get_ref()).await;
        self.counts.time(begun, &self.clock);
        decided.map(Response::new).map_err(|error| error.status)
    }
}
