//! The rate limit service of gRPC: hands calls on, and what became of them back.

use tidegate_envoy::proto::ratelimit::rate_limit_service_server::RateLimitService;
use tidegate_envoy::proto::ratelimit::{RateLimitRequest, RateLimitResponse};
use tonic::{Request, Response, Status};

use crate::doors::envoy::rate_limit::RateLimits;

#[tonic::async_trait]
impl RateLimitService for RateLimits {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        self.decide(request.get_ref()).await.map(Response::new).map_err(|refusal| refusal.status)
    }
}
