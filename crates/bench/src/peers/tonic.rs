//! A peer of the gRPC door: tonic on tokio, as the door is, without a limiter. It reads each call
//! and answers that every descriptor is within its limit.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use tidegate_envoy::proto::ratelimit::rate_limit_response::{Code, DescriptorStatus};
use tidegate_envoy::proto::ratelimit::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use tidegate_envoy::proto::ratelimit::{RateLimitRequest, RateLimitResponse};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

/// Serves until the process is killed.
pub(super) fn serve() -> io::Result<()> {
    serve_with(Always)
}

/// Serves this answer to every call, until the process is killed.
pub(super) fn serve_with(service: impl RateLimitService) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let free = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let incoming = TcpIncoming::bind(free)?.with_nodelay(Some(true));
        eprintln!("listening door=peer addr={}", incoming.local_addr()?);
        eprintln!("ready");
        let service = RateLimitServiceServer::new(service);
        let served = Server::builder().add_service(service).serve_with_incoming(incoming).await;
        served.map_err(io::Error::other)
    })
}

/// Answers OK.
struct Always;

#[tonic::async_trait]
impl RateLimitService for Always {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let status = DescriptorStatus { code: Code::Ok.into(), ..Default::default() };
        let statuses = vec![status; request.get_ref().descriptors.len()];
        let overall_code = Code::Ok.into();
        Ok(Response::new(RateLimitResponse { overall_code, statuses, ..Default::default() }))
    }
}
