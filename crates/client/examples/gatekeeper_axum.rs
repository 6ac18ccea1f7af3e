//! An axum application behind a gatekeeper: clients are known by their address.
//!
//! Run a master that knows the domain `api` with `tidegate serve -c examples/smockron.toml`, then
//! `cargo run -p tidegate-client --example gatekeeper_axum`. After ten requests of one client
//! (`curl http://127.0.0.1:3000/`) each waits for its second.

use std::error::Error;
use std::net::SocketAddr;

use axum::extract::{ConnectInfo, Request};
use axum::routing::get;
use axum::{Router, ServiceExt};
use tidegate_client::gatekeeper::{Config, Gatekeeper, Master};
use tidegate_client::layer::GatekeeperLayer;
use tokio::net::TcpListener;
use tower::Layer;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let master = Master::new("tcp://127.0.0.1:10004", "tcp://127.0.0.1:10005", ["api"]);
    let gatekeeper = Gatekeeper::connect(&Config::new([master]))?;
    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("listening on http://{}", listener.local_addr()?);
    serve(listener, gatekeeper).await
}

/// Serves the application; requests of one client that come too fast wait, or get a 503.
pub(crate) async fn serve(
    listener: TcpListener,
    gatekeeper: Gatekeeper,
) -> Result<(), Box<dyn Error>> {
    let router = Router::new().route("/", get(|| async { "hello\n" }));
    let layer = GatekeeperLayer::new(gatekeeper, "api", |head| {
        let peer: &ConnectInfo<SocketAddr> = head.extensions.get()?;
        Some(peer.0.into())
    });
    // Around the router, not inside it: what is turned away does not even look for its route. The
    // router gets its state here, as `axum::serve` would give it, or it does so for every request.
    let app = layer.layer(router.with_state::<()>(()));
    let app = ServiceExt::<Request>::into_make_service_with_connect_info::<SocketAddr>(app);
    axum::serve(listener, app).await?;
    Ok(())
}
