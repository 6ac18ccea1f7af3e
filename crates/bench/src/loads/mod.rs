//! One module for each door, and one for stores: what is said to it, and what it is compared with.
//!
//! Everything else is the frame's. To add a stream door, write its `Speech`, its configuration and
//! its peers.

mod grpc;
mod http;
mod jarl;
mod proxy;
mod resp;
mod smockron;
mod store;
mod text;
mod throttr;

use crate::failure::Failure;

/// The loads.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// The text door (UDP).
    Text(Box<text::Args>),
    /// The Throttr door (TCP).
    Throttr(Box<throttr::Args>),
    /// The RESP door (TCP).
    Resp(Box<resp::Args>),
    /// The JARL door (TCP).
    Jarl(Box<jarl::Args>),
    /// The gRPC door: calls of Envoy's rate limit service.
    Grpc(Box<grpc::Args>),
    /// The HTTP door: POST /v1/check.
    Http(Box<http::Args>),
    /// The proxy (HTTP), between the load and an nginx that is started for the run.
    Proxy(Box<proxy::Args>),
    /// The Smockron master (ZeroMQ), with libzmq programs that are compiled for the run.
    Smockron(Box<smockron::Args>),
    /// Redis and etcd as stores, which are started for the run.
    #[command(subcommand)]
    Store(store::Command),
}

impl Command {
    /// Runs the load and prints what came of it.
    pub(crate) fn run(&self) -> Result<(), Failure> {
        match self {
            Command::Text(args) => text::run(args),
            Command::Throttr(args) => throttr::run(args),
            Command::Resp(args) => resp::run(args),
            Command::Jarl(args) => jarl::run(args),
            Command::Grpc(args) => grpc::run(args),
            Command::Http(args) => http::run(args),
            Command::Proxy(args) => proxy::run(args),
            Command::Smockron(args) => smockron::run(args),
            Command::Store(command) => command.run(),
        }
    }
}
