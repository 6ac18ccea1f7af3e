//! The stream to a management server: an xDS client, state of the world, over the aggregated
//! discovery service.
//!
//! It subscribes, reads what comes, and hands it to the server (`server/xds.rs`). As the server
//! answers, it accepts or refuses. It decides nothing about a configuration, and keeps none: every
//! stream begins without a version, so that the server sends all it has. (A server may count its
//! versions anew after a restart, so one of the same name may be another.)

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tidegate_envoy::proto::core::Node;
use tidegate_envoy::proto::discovery::{
    DiscoveryRequest, DiscoveryResponse,
    aggregated_discovery_service_client::AggregatedDiscoveryServiceClient,
};
use tidegate_envoy::proto::rpc;
use tidegate_envoy::xds;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use super::xds::{Xds, XdsResources};
use crate::metrics::{Door, Metrics};
use crate::settings::files;

/// The largest response that is read. A few bytes become a descriptor, so the memory that it takes
/// is up to a hundred times as much.
const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// The longest text of a refusal. It may name a path of descriptors, which has no bound.
const TEXT_BYTES_MAX: usize = 4 << 10;
/// How long a connection may take, with TLS.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Between two streams, and before the same mistake is refused again.
const PAUSE_MIN: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// A host that is gone is noticed by TCP: signs of life of HTTP/2 that come more often than every
/// five minutes end the connection at gRPC servers in Go that have not been told to expect them.
const TCP_ALIVE_EVERY: Duration = Duration::from_secs(30);
/// A server that is stopped is noticed by HTTP/2.
const ALIVE_EVERY: Duration = Duration::from_secs(330);
const ALIVE_WITHIN: Duration = Duration::from_secs(20);
/// The code of a refusal: the configuration is not valid.
const INVALID_ARGUMENT: i32 = 3;

/// A configuration that came, and where to say whether it is in force.
pub struct XdsUpdate {
    /// What came.
    pub resources: XdsResources,
    /// Takes whether it is in force, or why not.
    pub answer: oneshot::Sender<Result<(), String>>,
}

/// Follows a management server until the receiver of the updates is dropped.
pub async fn follow(server: Xds, updates: mpsc::Sender<XdsUpdate>, metrics: Arc<Metrics>) {
    let mut follower = Follower { server, updates, metrics, pause: Pause::default() };
    let mut logged = String::new();
    loop {
        let ended = follower.stream().await;
        if follower.updates.is_closed() {
            return;
        }
        // The same reason is logged once, until a stream was open again.
        let why = cut(&ended.why);
        let url = follower.server.url.as_str();
        if ended.was_open || logged != why {
            tracing::warn!(url, "no xDS stream, the last configuration stays: {why}");
            why.clone_into(&mut logged);
        }
        follower.pause.pass().await;
    }
}

struct Follower {
    server: Xds,
    updates: mpsc::Sender<XdsUpdate>,
    metrics: Arc<Metrics>,
    pause: Pause,
}

/// The end of a stream.
struct Ended {
    was_open: bool,
    why: String,
}

/// What the client says on one stream.
struct Requests<'a> {
    server: &'a Xds,
    sender: mpsc::Sender<DiscoveryRequest>,
    /// The version that was accepted last on this stream.
    version: String,
}

impl Follower {
    async fn stream(&mut self) -> Ended {
        let mut was_open = false;
        let why = match self.read_stream(&mut was_open).await {
            Ok(()) => "the server has ended it".to_owned(),
            Err(why) => why,
        };
        Ended { was_open, why }
    }

    /// Opens a stream, and reads it until it ends.
    async fn read_stream(&mut self, was_open: &mut bool) -> Result<(), String> {
        let server = self.server.clone();
        // Certificates are read for each connection, so that new ones are used as they come.
        let endpoint = tokio::task::spawn_blocking(move || endpoint(&server));
        let endpoint = endpoint.await.map_err(|error| error.to_string())??;
        let channel = match timeout(CONNECT_MAX, endpoint.connect()).await {
            Ok(connected) => connected.map_err(|error| chain(&error))?,
            Err(_) => return Err("the server does not answer".to_owned()),
        };
        let (sender, receiver) = mpsc::channel(1);
        let server = self.server.clone();
        let mut requests = Requests { server: &server, sender, version: String::new() };
        requests.subscribe().await;
        let mut client = AggregatedDiscoveryServiceClient::new(channel)
            .max_decoding_message_size(MESSAGE_BYTES_MAX);
        let responses = client.stream_aggregated_resources(ReceiverStream::new(receiver)).await;
        let mut responses = responses.map_err(|status| shown(&status))?.into_inner();
        *was_open = true;
        let _connected = Connected::new(&self.metrics);
        tracing::info!(url = server.url, node = server.node, "xDS stream opened");
        let mut refused = None;
        while let Some(response) = responses.message().await.map_err(|status| shown(&status))? {
            let taken = self.hand_over(&response).await;
            self.metrics.xds_update(taken.is_ok());
            match taken {
                Ok(()) => {
                    self.pause.end();
                    requests.accept(response).await;
                    refused = None;
                }
                Err(why) => {
                    let (version, why) = (cut(&response.version_info), cut(&why));
                    tracing::warn!(version, "xDS configuration refused, the last one stays: {why}");
                    match refused.as_deref() == Some(version) {
                        // Some servers send what was refused again, at once.
                        true => self.pause.pass().await,
                        false => self.pause.end(),
                    }
                    requests.refuse(response.nonce, why).await;
                    refused = Some(version.to_owned());
                }
            }
        }
        Ok(())
    }

    /// Reads a response, and waits until the server has put it in force or refused it.
    async fn hand_over(&self, response: &DiscoveryResponse) -> Result<(), String> {
        let domains = xds::read(response).map_err(|error| error.to_string())?;
        let resources = XdsResources::new(response.version_info.clone(), domains);
        let (answer, answered) = oneshot::channel();
        let stopping = |_| "the server is stopping".to_owned();
        self.updates.send(XdsUpdate { resources, answer }).await.map_err(|_| stopping(()))?;
        answered.await.map_err(|_| stopping(()))?
    }
}

impl Requests<'_> {
    async fn subscribe(&mut self) {
        let node = Node {
            id: self.server.node.clone(),
            user_agent_name: "tidegate".to_owned(),
            ..Node::default()
        };
        self.send(DiscoveryRequest { node: Some(node), ..DiscoveryRequest::default() }).await;
    }

    async fn accept(&mut self, response: DiscoveryResponse) {
        self.version = response.version_info;
        let response_nonce = response.nonce;
        self.send(DiscoveryRequest { response_nonce, ..DiscoveryRequest::default() }).await;
    }

    async fn refuse(&mut self, response_nonce: String, why: &str) {
        let (code, message) = (INVALID_ARGUMENT, why.to_owned());
        let error_detail = Some(rpc::Status { code, message, details: Vec::new() });
        let request =
            DiscoveryRequest { response_nonce, error_detail, ..DiscoveryRequest::default() };
        self.send(request).await;
    }

    async fn send(&mut self, request: DiscoveryRequest) {
        let version_info = self.version.clone();
        let request = DiscoveryRequest { type_url: xds::type_url(), version_info, ..request };
        // A stream that has ended says so where it is read.
        let _ = self.sender.send(request).await;
    }
}

/// How to connect.
fn endpoint(server: &Xds) -> Result<Endpoint, String> {
    let endpoint = Endpoint::from_shared(server.url.clone()).map_err(|error| chain(&error))?;
    let endpoint = endpoint
        .connect_timeout(CONNECT_MAX)
        .tcp_keepalive(Some(TCP_ALIVE_EVERY))
        .http2_keep_alive_interval(ALIVE_EVERY)
        .keep_alive_timeout(ALIVE_WITHIN)
        .keep_alive_while_idle(true);
    if !server.is_tls() {
        return Ok(endpoint);
    }
    let mut system = rustls::RootCertStore::empty();
    system.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let mut tls = ClientTlsConfig::new().trust_anchors(system.roots);
    if let Some(path) = &server.ca {
        tls = tls.ca_certificate(Certificate::from_pem(read(path)?));
    }
    if let (Some(cert), Some(key)) = (&server.cert, &server.key) {
        tls = tls.identity(Identity::from_pem(read(cert)?, read(key)?));
    }
    endpoint.tls_config(tls).map_err(|error| chain(&error))
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    files::read(path).map_err(|error| format!("{} cannot be read: {error}", path.display()))
}

/// An error with what caused it.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.ends_with(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    text
}

fn shown(status: &Status) -> String {
    format!("{:?}: {}", status.code(), status.message())
}

/// As much of a text as is told.
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_BYTES_MAX)]
}

/// Counts the server among the peers until it is dropped.
struct Connected(prometheus_client::metrics::gauge::Gauge);

impl Connected {
    fn new(metrics: &Metrics) -> Self {
        let gauge = metrics.peers(Door::Grpc, "xds");
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Grows with every failure that follows on another.
#[derive(Default)]
struct Pause {
    last: Duration,
}

impl Pause {
    async fn pass(&mut self) {
        sleep(self.next(getrandom::u32().unwrap_or(0))).await;
    }

    /// At least half of its span, so that many clients do not come back at one moment.
    fn next(&mut self, random: u32) -> Duration {
        self.last = (self.last * 2).clamp(PAUSE_MIN, PAUSE_MAX);
        self.last.mul_f64(0.5 + 0.5 * f64::from(random) / f64::from(u32::MAX))
    }

    fn end(&mut self) {
        self.last = Duration::ZERO;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_their_bound_and_begin_anew() {
        let mut pause = Pause::default();
        let spans: Vec<u128> = (0..9).map(|_| pause.next(u32::MAX).as_millis()).collect();
        assert_eq!(spans, [250, 500, 1000, 2000, 4000, 8000, 16000, 30000, 30000]);
        assert_eq!(pause.next(0), PAUSE_MAX / 2);
        pause.end();
        assert_eq!(pause.next(0), PAUSE_MIN / 2);
    }

    #[test]
    fn texts_are_cut_between_characters() {
        let long = "ü".repeat(TEXT_BYTES_MAX);
        assert_eq!(cut(&long).len(), TEXT_BYTES_MAX);
        assert_eq!(cut(&format!("a{long}")).len(), TEXT_BYTES_MAX - 1);
        assert_eq!(cut("a"), "a");
    }
}
