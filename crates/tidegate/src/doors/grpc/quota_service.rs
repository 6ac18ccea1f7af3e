//! The quota service at its connections: one stream for each Envoy and domain.

use std::pin::Pin;
use std::sync::Arc;

use tidegate_envoy::proto::quota::rate_limit_quota_service_server::RateLimitQuotaService;
use tidegate_envoy::proto::quota::{RateLimitQuotaResponse, RateLimitQuotaUsageReports};
use tidegate_envoy::quota::StreamId;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Request, Response, Status, Streaming};

use super::call_counts::CallCounts;
use super::quota_answers::{Answer, Answers};
use super::quotas::Quotas;
use crate::doors::Gate;
use crate::doors::io::held_bytes::CallBytes;
use crate::shutdown::Shutdown;

/// The service behind all connections of the door.
pub(super) struct QuotaStreams {
    quotas: Arc<Quotas>,
    /// Set when the door closes: streams end then, since they would never by themselves.
    shutdown: Shutdown,
    counts: Arc<CallCounts>,
}

impl QuotaStreams {
    pub(super) fn new(gate: &Gate) -> Self {
        let (quotas, counts) = (Quotas::of(gate), CallCounts::of(gate));
        Self { quotas, shutdown: gate.door.shutdown.clone(), counts }
    }
}

/// Closes a stream when its task is over, however it ends.
struct OpenStream {
    quotas: Arc<Quotas>,
    id: StreamId,
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.quotas.close(self.id);
    }
}

#[tonic::async_trait]
impl RateLimitQuotaService for QuotaStreams {
    type StreamRateLimitQuotasStream =
        Pin<Box<dyn Stream<Item = Result<RateLimitQuotaResponse, Status>> + Send>>;

    async fn stream_rate_limit_quotas(
        &self,
        request: Request<Streaming<RateLimitQuotaUsageReports>>,
    ) -> Result<Response<Self::StreamRateLimitQuotasStream>, Status> {
        let held = request.extensions().get::<Arc<CallBytes>>().cloned();
        let held = held.ok_or_else(|| Status::internal("a call without its bytes"))?;
        let (answers, messages) = Answers::new(held);
        let unread = answers.unread();
        let opened = self.quotas.open(answers);
        let id = opened.map_err(|why| Status::resource_exhausted(why.to_string()))?;
        let open = OpenStream { quotas: self.quotas.clone(), id };
        let (shutdown, counts) = (self.shutdown.clone(), self.counts.clone());
        let mut reports = request.into_inner();
        tokio::spawn(async move {
            let mut domain = String::new();
            loop {
                let message = tokio::select! {
                    message = reports.message() => message,
                    () = unread.has_ended() => return,
                    () = shutdown.wait() => return,
                };
                let mut message = match message {
                    Ok(Some(message)) => message,
                    Ok(None) => return,
                    Err(status) => return counts.unreadable(&status),
                };
                // Only the first message must name it; Envoy does so in all.
                if !message.domain.is_empty() {
                    domain = std::mem::take(&mut message.domain);
                }
                if !open.quotas.report(open.id, &domain, message).await {
                    return;
                }
                tokio::select! {
                    () = unread.is_short() => {}
                    () = shutdown.wait() => return,
                }
            }
        });
        let told = ReceiverStream::new(messages).map(Answer::taken).map(Ok);
        Ok(Response::new(Box::pin(told)))
    }
}
