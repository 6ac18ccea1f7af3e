//! The flags that several loads have.
//!
//! A group knows what its flags say and what follows from that, and nothing of any door. A load
//! that wants another default says so with `mut_arg`.

use std::net::SocketAddr;

use tidegate_core::time::SECOND;

use super::super::address;
use super::subject::Subject;
use super::tally::Until;

/// The server under load.
#[derive(Debug, clap::Args)]
pub(super) struct Running {
    /// A running server's door; without it a server is started for the run.
    #[arg(long, value_name = "ADDR", value_parser = address)]
    pub(super) server: Option<SocketAddr>,
    /// The process id of that server, to tell its CPU time.
    #[arg(long, value_name = "PID", requires = "server")]
    server_pid: Option<u32>,
}

impl Running {
    /// The server that runs already, or ours, started with this configuration.
    pub(super) fn or_ours(&self, config: &str) -> anyhow::Result<Subject> {
        match self.server {
            Some(address) => Ok(Subject::running(address, self.server_pid)),
            None => Subject::ours(config),
        }
    }
}

/// When to stop.
#[derive(Debug, clap::Args)]
pub(super) struct Length {
    /// How long to send (each round, in a comparison).
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(super) seconds: u64,
    /// Stop after this many requests, if that comes first.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
}

impl Length {
    pub(super) fn until(&self) -> Until {
        Until { span: self.seconds * SECOND, count: self.count.unwrap_or(u64::MAX) }
    }
}

/// How often ours and the peers take turns, and how that is told.
#[derive(Debug, clap::Args)]
pub(super) struct Telling {
    /// Rounds of a comparison.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(super) rounds: u32,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}
