//! A peer of the gRPC door: Limitador, the library, in memory, behind the same service of tonic as
//! `tonic.rs`. Its limit is that of our server under this load, and its answers have no statuses,
//! as Limitador's own server gives none.

use std::collections::HashMap;
use std::io;

use limitador::RateLimiter;
use limitador::limit::{Context, Limit};
use tidegate_envoy::proto::ratelimit::rate_limit_response::Code;
use tidegate_envoy::proto::ratelimit::rate_limit_service_server::RateLimitService;
use tidegate_envoy::proto::ratelimit::{RateLimitRequest, RateLimitResponse};
use tonic::{Request, Response, Status};

use super::tonic::serve_with;

/// The variable of a limit that is the descriptor of the load, as Limitador's server binds it.
const KEY: &str = "descriptors[0].key";
/// The limit: looked at and never reached.
const AMOUNT: u64 = 1_000_000;
const PERIOD_S: u64 = 60;

/// Serves until the process is killed, with room for so many counters.
pub(super) fn serve(keys: u64) -> io::Result<()> {
    let limiter = RateLimiter::new(keys);
    let key = KEY.try_into().map_err(io::Error::other)?;
    limiter.add_limit(Limit::new("bench", AMOUNT, PERIOD_S, Vec::new(), [key]));
    serve_with(Decides(limiter))
}

/// Answers what the library says.
struct Decides(RateLimiter);

#[tonic::async_trait]
impl RateLimitService for Decides {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let request = request.into_inner();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let descriptors: Vec<HashMap<String, String>> = { request.descriptors.iter() }
            .map(|one| one.entries.iter().map(|it| (text(&it.key), text(&it.value))).collect())
            .collect();
        let mut context = Context::default();
        context.list_binding("descriptors".to_owned(), descriptors);
        let hits = u64::from(request.hits_addend.max(1));
        let checked = self.0.check_rate_limited_and_update(&request.domain.into(), &context, hits);
        let checked = checked.map_err(|error| Status::unavailable(error.to_string()))?;
        let code = if checked.limited { Code::OverLimit } else { Code::Ok };
        Ok(Response::new(RateLimitResponse { overall_code: code.into(), ..Default::default() }))
    }
}
