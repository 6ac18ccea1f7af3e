//! The quota service at its connections: one stream for each Envoy and domain.

use std::pin::Pin;
use std::sync::Arc;

use tidegate_envoy::proto::quota::rate_limit_quota_service_server::RateLimitQuotaService;
use tidegate_envoy::proto::quota::{RateLimitQuotaResponse, RateLimitQuotaUsageReports};
use tidegate_envoy::quota::StreamId;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Request, Response, Status, Streaming};

use super::call_counts::CallCounts;
use super::quota_answers::{Answer, Answers, Unread};
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
        let reader = ReportReader {
            open,
            reports: request.into_inner(),
            unread,
            shutdown: self.shutdown.clone(),
            counts: self.counts.clone(),
        };
        let (fault, faults) = mpsc::channel(1);
        tokio::spawn(async move {
            if let Err(status) = reader.run().await {
                let _ = fault.try_send(status);
            }
        });
        let told = ReceiverStream::new(messages).map(Answer::taken).map(Ok);
        Ok(Response::new(Box::pin(told.chain(ReceiverStream::new(faults).map(Err)))))
    }
}

/// Reads the reports of one stream.
struct ReportReader {
    open: OpenStream,
    reports: Streaming<RateLimitQuotaUsageReports>,
    unread: Arc<Unread>,
    shutdown: Shutdown,
    counts: Arc<CallCounts>,
}

impl ReportReader {
    /// Runs until the client or the server ends the stream. An error is what the client is told.
    async fn run(mut self) -> Result<(), Status> {
        let OpenStream { quotas, id } = &self.open;
        let mut domain = String::new();
        loop {
            let message = tokio::select! {
                message = self.reports.message() => message,
                () = self.unread.has_ended() => return Ok(()),
                () = self.shutdown.wait() => return Ok(()),
            };
            let message = message.inspect_err(|status| self.counts.unreadable(status))?;
            let Some(mut message) = message else { return Ok(()) };
            // Only the first message must name it; Envoy does so in all.
            if !message.domain.is_empty() {
                domain = std::mem::take(&mut message.domain);
            }
            if domain.is_empty() {
                return Err(self.counts.no_domain());
            }
            if !quotas.report(*id, &domain, message).await {
                return Ok(());
            }
            tokio::select! {
                () = self.unread.is_short() => {}
                () = self.shutdown.wait() => return Ok(()),
            }
        }
    }
}
