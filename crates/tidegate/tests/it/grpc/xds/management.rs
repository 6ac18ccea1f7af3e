//! A management server, made of the messages and the service of `envoy-types`, so that its bytes
//! are those of the official files and not of ours.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};

use envoy_types::pb::envoy::service::discovery::v3::aggregated_discovery_service_server::{
    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
};
use envoy_types::pb::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use envoy_types::pb::google::protobuf::Any;
use envoy_types::pb::ratelimit::config::ratelimit::v3::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy,
};
use prost::Message as _;
use socket2::{Domain, Socket, Type};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::server::{Server, TcpIncoming};
use tonic::transport::{Identity, ServerTlsConfig};
use tonic::{Request, Response, Status, Streaming};

use crate::program::PATIENCE;

/// The type of the resources, as every management server calls it.
pub(super) const TYPE_URL: &str =
    "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// A management server; it ends, with all connections, when the test lets go of it.
pub(super) struct Management {
    pub(super) address: SocketAddr,
    place: Option<Place>,
    streams: Receiver<Stream>,
    runtime: Option<Runtime>,
}

/// An address that nobody else gets while no server is there.
pub(super) struct Place {
    pub(super) address: SocketAddr,
    /// Bound and not listening: connections are refused, and a server can still have the address.
    _held: Socket,
}

impl Place {
    pub(super) fn reserve() -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        socket.set_reuse_address(true).expect("a socket");
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        socket.bind(&any.into()).expect("a free port");
        let address = socket.local_addr().expect("an address").as_socket().expect("an IP address");
        Self { address, _held: socket }
    }
}

/// One stream of a client.
pub(super) struct Stream {
    requests: Receiver<DiscoveryRequest>,
    responses: UnboundedSender<Result<DiscoveryResponse, Status>>,
}

struct Service(Mutex<Sender<Stream>>);

#[tonic::async_trait]
impl AggregatedDiscoveryService for Service {
    type StreamAggregatedResourcesStream =
        UnboundedReceiverStream<Result<DiscoveryResponse, Status>>;

    async fn stream_aggregated_resources(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        let (sender, requests) = channel();
        let (responses, sent) = unbounded_channel();
        let mut incoming = request.into_inner();
        tokio::spawn(async move {
            while let Ok(Some(request)) = incoming.message().await {
                let _ = sender.send(request);
            }
        });
        let _ = self.0.lock().expect("no panic").send(Stream { requests, responses });
        Ok(Response::new(UnboundedReceiverStream::new(sent)))
    }

    type DeltaAggregatedResourcesStream =
        UnboundedReceiverStream<Result<DeltaDiscoveryResponse, Status>>;

    async fn delta_aggregated_resources(
        &self,
        _: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaAggregatedResourcesStream>, Status> {
        Err(Status::unimplemented("nobody asks so"))
    }
}

impl Management {
    pub(super) fn new() -> Self {
        Self::at(Place::reserve(), None)
    }

    /// A server at this address; with TLS, by its certificate and key and the authority of its
    /// clients.
    pub(super) fn at(place: Place, tls: Option<(Identity, Vec<u8>)>) -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let address = place.address;
        let listener = runtime.block_on(TcpListener::bind(address)).expect("a free address");
        let (sender, streams) = channel();
        let service = AggregatedDiscoveryServiceServer::new(Service(Mutex::new(sender)));
        let mut server = Server::builder();
        if let Some((identity, ca)) = tls {
            let ca = tonic::transport::Certificate::from_pem(ca);
            let tls = ServerTlsConfig::new().identity(identity).client_ca_root(ca);
            server = server.tls_config(tls).expect("certificates");
        }
        let served = server.add_service(service).serve_with_incoming(TcpIncoming::from(listener));
        runtime.spawn(served);
        Self { address, place: Some(place), streams, runtime: Some(runtime) }
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The next stream that a client opens, and what it asks for first.
    #[track_caller]
    pub(super) fn stream(&self) -> (Stream, DiscoveryRequest) {
        let stream = self.streams.recv_timeout(PATIENCE).expect("a stream");
        let first = stream.request();
        assert_eq!(first.type_url, TYPE_URL);
        assert_eq!((first.version_info.as_str(), first.response_nonce.as_str()), ("", ""));
        assert!(first.resource_names.is_empty() && first.error_detail.is_none());
        (stream, first)
    }

    /// Ends the server, and tells where it was.
    pub(super) fn stop(mut self) -> Place {
        self.place.take().expect("taken once")
    }
}

impl Drop for Management {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Drops the tasks, and with them the sockets, before it returns.
            runtime.shutdown_timeout(PATIENCE);
        }
    }
}

impl Stream {
    #[track_caller]
    pub(super) fn request(&self) -> DiscoveryRequest {
        self.requests.recv_timeout(PATIENCE).expect("a request")
    }

    pub(super) fn send(&self, version: &str, resources: Vec<Any>) {
        self.send_as(TYPE_URL, version, resources);
    }

    pub(super) fn send_as(&self, type_url: &str, version: &str, resources: Vec<Any>) {
        let response = DiscoveryResponse {
            version_info: version.to_owned(),
            resources,
            type_url: type_url.to_owned(),
            nonce: format!("nonce of {version}"),
            ..DiscoveryResponse::default()
        };
        let _ = self.responses.send(Ok(response));
    }

    /// Sends, and sees that it is accepted.
    #[track_caller]
    pub(super) fn accepted(&self, version: &str, resources: Vec<Any>) {
        self.send(version, resources);
        let said = self.request();
        assert_eq!(said.error_detail, None);
        assert_eq!(said.version_info, version);
        assert_eq!(said.response_nonce, format!("nonce of {version}"));
        assert_eq!(said.type_url, TYPE_URL);
    }

    /// Sends, and sees that it is refused while `before` stays; returns why.
    #[track_caller]
    pub(super) fn refused(&self, before: &str, version: &str, resources: Vec<Any>) -> String {
        self.send(version, resources);
        self.refusal(before, version)
    }

    /// Sees that what was sent is refused while `before` stays; returns why.
    #[track_caller]
    pub(super) fn refusal(&self, before: &str, version: &str) -> String {
        let said = self.request();
        let detail = said.error_detail.expect("a refusal");
        assert_eq!(said.version_info, before);
        assert_eq!(said.response_nonce, format!("nonce of {version}"));
        assert_eq!(detail.code, 3, "INVALID_ARGUMENT");
        detail.message
    }
}

/// A resource: its name, its domain, and its descriptors.
pub(super) fn resource(name: &str, domain: &str, descriptors: &[RateLimitDescriptor]) -> Any {
    let config = RateLimitConfig {
        name: name.to_owned(),
        domain: domain.to_owned(),
        descriptors: descriptors.to_vec(),
    };
    Any { type_url: TYPE_URL.to_owned(), value: config.encode_to_vec() }
}

/// A descriptor for `key` or `key=value` with so many requests per unit.
pub(super) fn limited(entry: &str, unit: i32, requests_per_unit: u32) -> RateLimitDescriptor {
    let (key, value) = entry.split_once('=').unwrap_or((entry, ""));
    let policy = RateLimitPolicy { unit, requests_per_unit, ..RateLimitPolicy::default() };
    RateLimitDescriptor {
        key: key.to_owned(),
        value: value.to_owned(),
        rate_limit: Some(policy),
        ..RateLimitDescriptor::default()
    }
}

/// The same per year, so that no test depends on when it runs.
pub(super) fn yearly(entry: &str, requests_per_unit: u32) -> RateLimitDescriptor {
    limited(entry, 6, requests_per_unit)
}
