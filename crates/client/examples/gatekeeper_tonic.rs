//! A gRPC server behind a gatekeeper: clients are known by a key that they send.
//!
//! Run a master that knows the domain `grpc` with `tidegate serve -c examples/smockron.toml`, then
//! `cargo run -p tidegate-client --example gatekeeper_tonic`. Calls without an `x-api-key` pass.

use std::error::Error;

use tidegate_client::gatekeeper::{Config, Gatekeeper, Master};
use tidegate_client::layer::{GatekeeperLayer, RefusedRequest, retry_after};
use tokio::net::TcpListener;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::Response;
use tonic::codegen::http::header::RETRY_AFTER;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let master = Master::new("tcp://127.0.0.1:10004", "tcp://127.0.0.1:10005", ["grpc"]);
    let gatekeeper = Gatekeeper::connect(&Config::new([master]))?;
    let listener = TcpListener::bind("127.0.0.1:3001").await?;
    println!("listening on http://{}", listener.local_addr()?);
    serve(listener, gatekeeper).await
}

/// Serves a health service; calls of one client that come too fast wait, or are unavailable.
pub(crate) async fn serve(
    listener: TcpListener,
    gatekeeper: Gatekeeper,
) -> Result<(), Box<dyn Error>> {
    let (_reporter, health) = tonic_health::server::health_reporter();
    let layer =
        GatekeeperLayer::refusing(gatekeeper, "grpc", |head| head.header("x-api-key"), refuse);
    let incoming = TcpIncoming::from(listener);
    Server::builder().layer(layer).add_service(health).serve_with_incoming(incoming).await?;
    Ok(())
}

/// In gRPC an answer is 200 with a status of its own, which clients know how to repeat after.
fn refuse(refused: &RefusedRequest) -> Response<Body> {
    let status = Status::unavailable(format!("too fast; come back in {:?}", refused.after));
    let mut response = status.into_http();
    response.headers_mut().insert(RETRY_AFTER, retry_after(refused.after));
    response
}
