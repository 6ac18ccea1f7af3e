//! The flags of every load on a stream.

use std::net::SocketAddr;

use super::{Speech, StreamLoad};
use crate::frame::flags::Length;
use crate::frame::tally::cores;

/// How many connections, threads, requests and keys.
#[derive(Debug, clap::Args)]
pub(crate) struct Flags {
    /// Connections, which stay open for the whole run.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=4096))]
    connections: u32,
    /// Threads that the connections are spread over (default: one for each core).
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: Option<u32>,
    /// Requests that a connection sends at once; when all are answered it sends the next.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pipeline: u32,
    /// Different keys in play, each used as often as any other.
    #[arg(
        long,
        default_value_t = 100_000,
        value_parser = clap::value_parser!(u64).range(1..=1_000_000_000)
    )]
    pub(crate) keys: u64,
    #[command(flatten)]
    pub(crate) length: Length,
}

impl Flags {
    /// The load on this server.
    pub(crate) fn load<S: Speech>(&self, server: SocketAddr, speech: S) -> StreamLoad<S> {
        let connections = self.connections as usize;
        StreamLoad {
            server,
            speech,
            connections,
            threads: self.threads.map_or(cores(), |n| n as usize).min(connections),
            pipeline: self.pipeline as usize,
            keys: self.keys,
            new_keys: None,
            until: self.length.until(),
        }
    }
}
