//! The gRPC door: Envoy's rate limit service at the real program.

mod cancelled;
mod certificates;
mod chosen;
mod envoy;
mod envoy_config;
mod in_flight;
mod json;
mod one_count;
mod quota_reports;
mod quotas;
mod reference;
mod series;
mod service;
mod statistics;
mod together;
mod told;
mod unreadable;
mod ways;
mod xds;

use tidegate_envoy::proto::descriptor::RateLimitDescriptor;
use tidegate_envoy::proto::descriptor::rate_limit_descriptor::Entry;
use tidegate_envoy::proto::ratelimit::rate_limit_response::{Code, DescriptorStatus};
use tidegate_envoy::proto::ratelimit::rate_limit_service_client::RateLimitServiceClient;
use tidegate_envoy::proto::ratelimit::{RateLimitRequest, RateLimitResponse};
use tokio::runtime::Runtime;
use tonic::transport::{Channel, Endpoint};

use crate::program::Program;

/// The door on a free port, and where its figures are told.
const DOORS: &str = "
[grpc]
listen = '127.0.0.1:0'
[http]
listen = '127.0.0.1:0'
[admin]
listen = '127.0.0.1:0'
[text]
listen = '127.0.0.1:0'
";

/// A client as Envoy is one, which waits for each answer.
struct Client {
    runtime: Runtime,
    client: RateLimitServiceClient<Channel>,
}

impl Client {
    fn new(program: &Program) -> Self {
        let endpoint = Endpoint::from_shared(format!("http://{}", program.address("grpc")));
        Self::of(&endpoint.expect("an address"))
    }

    fn of(endpoint: &Endpoint) -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let channel = {
            let _entered = runtime.enter();
            endpoint.connect_lazy()
        };
        Self { runtime, client: RateLimitServiceClient::new(channel) }
    }

    fn call(&mut self, request: RateLimitRequest) -> Result<RateLimitResponse, tonic::Status> {
        let answer = self.runtime.block_on(self.client.should_rate_limit(request));
        answer.map(tonic::Response::into_inner)
    }

    /// Asks, and returns the code of all and those of each descriptor with what is left.
    #[track_caller]
    fn ask(&mut self, request: RateLimitRequest) -> (Code, Vec<(Code, u32)>) {
        let answer = self.call(request).expect("an answer");
        let brief = |status: &DescriptorStatus| (status.code(), status.limit_remaining);
        (answer.overall_code(), answer.statuses.iter().map(brief).collect())
    }
}

/// A call of a domain with descriptors of one entry each: `key=value`.
fn call(domain: &str, descriptors: &[&str]) -> RateLimitRequest {
    let descriptors = descriptors.iter().map(|text| descriptor(text)).collect();
    RateLimitRequest { domain: domain.to_owned(), descriptors, hits_addend: 0 }
}

/// A descriptor of entries that are separated by commas.
fn descriptor(text: &str) -> RateLimitDescriptor {
    let entry = |pair: &str| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        Entry { key: key.to_owned().into(), value: value.to_owned().into() }
    };
    RateLimitDescriptor { entries: text.split(',').map(entry).collect(), ..Default::default() }
}
