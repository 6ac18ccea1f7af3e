//! A client of `envoy-types` calls our servers and our client calls its server: paths, streams and
//! framing are the same.

use std::pin::Pin;

use envoy_types::pb::envoy::service::{
    discovery::v3 as discovery_theirs, rate_limit_quota::v3 as quota_theirs,
    ratelimit::v3 as ratelimit_theirs,
};
use tidegate_envoy::proto::{descriptor, discovery, quota, ratelimit};
use tonic::{
    Request, Response, Status, Streaming,
    codegen::tokio_stream::{Stream, once},
};

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Answers with what it was asked: a domain and its entries, a bucket, a version.
struct Echo;

#[tonic::async_trait]
impl ratelimit::rate_limit_service_server::RateLimitService for Echo {
    async fn should_rate_limit(
        &self,
        request: Request<ratelimit::RateLimitRequest>,
    ) -> Result<Response<ratelimit::RateLimitResponse>, Status> {
        let ratelimit::RateLimitRequest { domain, descriptors, .. } = request.into_inner();
        let mut raw_body = domain.into_bytes();
        for entry in descriptors.iter().flat_map(|descriptor| &descriptor.entries) {
            raw_body.extend([b" ", &*entry.key, b"=", &*entry.value].concat());
        }
        let raw_body = raw_body.into();
        Ok(Response::new(ratelimit::RateLimitResponse { raw_body, ..Default::default() }))
    }
}

#[tonic::async_trait]
impl quota::rate_limit_quota_service_server::RateLimitQuotaService for Echo {
    type StreamRateLimitQuotasStream = Answers<quota::RateLimitQuotaResponse>;

    async fn stream_rate_limit_quotas(
        &self,
        request: Request<Streaming<quota::RateLimitQuotaUsageReports>>,
    ) -> Result<Response<Self::StreamRateLimitQuotasStream>, Status> {
        let reports = request.into_inner().message().await?.unwrap_or_default();
        let action = |usage: quota::rate_limit_quota_usage_reports::BucketQuotaUsage| {
            quota::rate_limit_quota_response::BucketAction {
                bucket_id: usage.bucket_id,
                bucket_action: None,
            }
        };
        let bucket_action = reports.bucket_quota_usages.into_iter().map(action).collect();
        let answer = quota::RateLimitQuotaResponse { bucket_action };
        Ok(Response::new(Box::pin(once(Ok(answer)))))
    }
}

#[tonic::async_trait]
impl discovery_theirs::aggregated_discovery_service_server::AggregatedDiscoveryService for Echo {
    type StreamAggregatedResourcesStream = Answers<discovery_theirs::DiscoveryResponse>;
    type DeltaAggregatedResourcesStream = Answers<discovery_theirs::DeltaDiscoveryResponse>;

    async fn stream_aggregated_resources(
        &self,
        request: Request<Streaming<discovery_theirs::DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        let request = request.into_inner().message().await?.unwrap_or_default();
        let answer = discovery_theirs::DiscoveryResponse {
            version_info: request.version_info,
            ..Default::default()
        };
        Ok(Response::new(Box::pin(once(Ok(answer)))))
    }

    async fn delta_aggregated_resources(
        &self,
        _: Request<Streaming<discovery_theirs::DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaAggregatedResourcesStream>, Status> {
        Err(Status::unimplemented("state of the world only"))
    }
}

#[tokio::test]
async fn their_client_asks_our_rate_limit_service() {
    let server = ratelimit::rate_limit_service_server::RateLimitServiceServer::new(Echo);
    let mut client =
        ratelimit_theirs::rate_limit_service_client::RateLimitServiceClient::new(server);
    let domain = "edge".to_owned();
    let request = ratelimit_theirs::RateLimitRequest { domain, ..Default::default() };
    let answer = client.should_rate_limit(request).await.expect("an answer");
    assert_eq!(answer.into_inner().raw_body, b"edge");
}

/// As Envoy sends it for a header with such bytes, which no string of `envoy-types` can hold.
#[tokio::test]
async fn a_call_with_bytes_that_are_not_utf8_is_answered() {
    let server = ratelimit::rate_limit_service_server::RateLimitServiceServer::new(Echo);
    let mut client = ratelimit::rate_limit_service_client::RateLimitServiceClient::new(server);
    let entry = descriptor::rate_limit_descriptor::Entry {
        key: b"k\xff"[..].into(),
        value: b"\xfe\xff"[..].into(),
    };
    let descriptor = descriptor::RateLimitDescriptor { entries: vec![entry], ..Default::default() };
    let request = ratelimit::RateLimitRequest {
        domain: "edge".to_owned(),
        descriptors: vec![descriptor],
        ..Default::default()
    };
    let answer = client.should_rate_limit(request).await.expect("an answer");
    assert_eq!(answer.into_inner().raw_body, &b"edge k\xff=\xfe\xff"[..]);
}

#[tokio::test]
async fn their_client_streams_to_our_quota_service() {
    let server = quota::rate_limit_quota_service_server::RateLimitQuotaServiceServer::new(Echo);
    let mut client =
        quota_theirs::rate_limit_quota_service_client::RateLimitQuotaServiceClient::new(server);
    let bucket = [("user".to_owned(), "a".to_owned())].into();
    let usage = quota_theirs::rate_limit_quota_usage_reports::BucketQuotaUsage {
        bucket_id: Some(quota_theirs::BucketId { bucket }),
        ..Default::default()
    };
    let reports = quota_theirs::RateLimitQuotaUsageReports {
        domain: "edge".to_owned(),
        bucket_quota_usages: vec![usage.clone()],
    };
    let answers = client.stream_rate_limit_quotas(once(reports)).await.expect("a stream");
    let answer = answers.into_inner().message().await.expect("an answer").expect("not the end");
    assert_eq!(answer.bucket_action[0].bucket_id, usage.bucket_id);
}

#[tokio::test]
async fn our_client_asks_their_configuration_server() {
    use discovery_theirs::aggregated_discovery_service_server as theirs;
    let server = theirs::AggregatedDiscoveryServiceServer::new(Echo);
    let mut client =
        discovery::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient::new(
            server,
        );
    let version_info = "7".to_owned();
    let request = discovery::DiscoveryRequest { version_info, ..Default::default() };
    let answers = client.stream_aggregated_resources(once(request)).await.expect("a stream");
    let answer = answers.into_inner().message().await.expect("an answer").expect("not the end");
    assert_eq!(answer.version_info, "7");
}
