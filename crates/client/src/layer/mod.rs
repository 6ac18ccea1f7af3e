//! The gatekeeper as a `tower` layer, for axum, hyper and tonic applications.
//!
//! A request that passes costs one decision. One that is delayed is held, and then forwarded; one
//! that is rejected is answered with 503 and Retry-After, and never reaches the application.
//! Errors of the application go through as they are: the layer has none of its own.
//!
//! The master gets the method, path and user agent of each request, for its accounting log.

mod future;
mod identifier;
mod log_info;
mod refusal;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Extensions, HeaderMap, Method, Request, Response, Uri, Version};
use tower_layer::Layer;
use tower_service::Service;

pub use self::future::ResponseFuture;
pub use self::identifier::Identifier;
pub use self::log_info::LogInfo;
pub use self::refusal::{PlainRefusal, Refuse, RefusedRequest, retry_after};
use crate::gatekeeper::{Decision, Domain, Gatekeeper};

/// The head of a request, by which its client is known.
#[derive(Clone, Copy, Debug)]
pub struct RequestHead<'a> {
    /// The method.
    pub method: &'a Method,
    /// What is asked for.
    pub uri: &'a Uri,
    /// The protocol's version.
    pub version: Version,
    /// The headers.
    pub headers: &'a HeaderMap,
    /// What servers and layers before this one have found out, the peer's address perhaps.
    pub extensions: &'a Extensions,
}

impl<'a> RequestHead<'a> {
    fn of<B>(request: &'a Request<B>) -> Self {
        Self {
            method: request.method(),
            uri: request.uri(),
            version: request.version(),
            headers: request.headers(),
            extensions: request.extensions(),
        }
    }

    /// The first header of a name, as an identifier.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<Identifier<'a>> {
        self.headers.get(name).map(|value| value.as_bytes().into())
    }
}

/// Puts a gatekeeper before a service.
///
/// The closure says who a client is, by its address, a header or a user that another layer found
/// out. Requests without an identifier pass, and are not accounted for.
///
/// Put it around the whole application rather than into an axum router: there every request pays
/// for the boxes that a router puts between layers.
///
/// ```
/// use http::{Request, Response};
/// use tidegate_client::gatekeeper::{Config, Gatekeeper, Master};
/// use tidegate_client::layer::GatekeeperLayer;
/// use tower::{Layer, Service, service_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let master = Master::new("tcp://127.0.0.1:10004", "tcp://127.0.0.1:10005", ["api"]);
/// let gatekeeper = Gatekeeper::connect(&Config::new([master]))?;
/// let layer = GatekeeperLayer::new(gatekeeper, "api", |head| head.header("x-api-key"));
///
/// let mut service = layer.layer(service_fn(|_request: Request<String>| async {
///     Ok::<_, std::convert::Infallible>(Response::new(String::from("hello")))
/// }));
/// let request = Request::get("/").header("x-api-key", "k1").body(String::new())?;
/// assert_eq!(service.call(request).await?.body(), "hello");
/// # Ok(())
/// # }
/// ```
pub struct GatekeeperLayer<I, R = PlainRefusal> {
    state: Arc<LayerState<I, R>>,
}

/// What all services of a layer share.
struct LayerState<I, R> {
    gatekeeper: Gatekeeper,
    domain: Option<Domain>,
    identify: I,
    refuse: R,
    /// Whether the master gets log info.
    tells_requests: bool,
}

impl<I> GatekeeperLayer<I>
where
    I: for<'a> Fn(&RequestHead<'a>) -> Option<Identifier<'a>>,
{
    /// A layer for requests of one domain. If the gatekeeper does not serve the domain, all pass.
    pub fn new(gatekeeper: Gatekeeper, domain: &str, identify: I) -> Self {
        Self::refusing(gatekeeper, domain, identify, PlainRefusal)
    }
}

impl<I, R> GatekeeperLayer<I, R>
where
    I: for<'a> Fn(&RequestHead<'a>) -> Option<Identifier<'a>>,
{
    /// The same with another response to rejected requests: a closure that makes it of a
    /// [`RefusedRequest`], say with a body, or with the status of gRPC.
    pub fn refusing(gatekeeper: Gatekeeper, domain: &str, identify: I, refuse: R) -> Self {
        let domain = gatekeeper.domain(domain);
        let state = LayerState { gatekeeper, domain, identify, refuse, tells_requests: true };
        Self { state: Arc::new(state) }
    }

    /// The same without log info: the master learns who asked, and not for what. It is for a
    /// layer that is not in use yet; clones of it are left as they are.
    #[must_use]
    pub fn without_log_info(mut self) -> Self {
        if let Some(state) = Arc::get_mut(&mut self.state) {
            state.tells_requests = false;
        }
        self
    }
}

impl<I, R> Clone for GatekeeperLayer<I, R> {
    fn clone(&self) -> Self {
        Self { state: self.state.clone() }
    }
}

impl<I, R, S> Layer<S> for GatekeeperLayer<I, R> {
    type Service = Gated<S, I, R>;

    fn layer(&self, inner: S) -> Self::Service {
        Gated { inner, state: self.state.clone() }
    }
}

/// A service behind a gatekeeper.
pub struct Gated<S, I, R = PlainRefusal> {
    inner: S,
    state: Arc<LayerState<I, R>>,
}

impl<S: Clone, I, R> Clone for Gated<S, I, R> {
    #[inline]
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), state: self.state.clone() }
    }
}

impl<S, I, R, B, A> Service<Request<B>> for Gated<S, I, R>
where
    S: Service<Request<B>, Response = Response<A>> + Clone,
    I: for<'a> Fn(&RequestHead<'a>) -> Option<Identifier<'a>>,
    R: Refuse<A>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = ResponseFuture<S, B>;

    #[inline]
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    #[inline]
    fn call(&mut self, request: Request<B>) -> Self::Future {
        match self.state.decide(&request) {
            Decision::Accept => ResponseFuture::passing(self.inner.call(request)),
            // The service that is ready stays here: a held request keeps no place in it.
            Decision::Delay(delay) => ResponseFuture::held(delay, self.inner.clone(), request),
            Decision::Reject(after) => {
                ResponseFuture::refused(self.state.refuse.refuse(&RefusedRequest { after }))
            }
        }
    }
}

impl<I, R> LayerState<I, R>
where
    I: for<'a> Fn(&RequestHead<'a>) -> Option<Identifier<'a>>,
{
    #[inline]
    fn decide<B>(&self, request: &Request<B>) -> Decision {
        let Some(domain) = self.domain else { return Decision::Accept };
        let head = RequestHead::of(request);
        let Some(identifier) = (self.identify)(&head) else { return Decision::Accept };
        if !self.tells_requests {
            return self.gatekeeper.decide_in(domain, identifier.as_bytes());
        }
        let log_info = LogInfo::of(request);
        self.gatekeeper.decide_with(domain, identifier.as_bytes(), log_info.as_bytes())
    }
}

impl<I, R> std::fmt::Debug for GatekeeperLayer<I, R> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let gatekeeper = &self.state.gatekeeper;
        formatter.debug_struct("GatekeeperLayer").field("gatekeeper", gatekeeper).finish()
    }
}

impl<S, I, R> std::fmt::Debug for Gated<S, I, R> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let gatekeeper = &self.state.gatekeeper;
        formatter.debug_struct("Gated").field("gatekeeper", gatekeeper).finish_non_exhaustive()
    }
}
