//! The flags that several loads have.
//!
//! A group knows what its flags say and what follows from that, and nothing of any door. A load
//! that wants another default says so with `mut_arg`.

use std::net::SocketAddr;
use std::path::PathBuf;

use tidegate_core::time::SECOND;

use super::tally::Until;
use super::{Figure, Frame};
use crate::servers::Program;

/// The programs under load.
#[derive(Debug, clap::Args)]
pub(crate) struct Programs {
    /// The server's program (default: `tidegate` beside this one).
    #[arg(long, value_name = "PATH")]
    server: Option<PathBuf>,
    /// Another build of the server, to compare with in turns.
    #[arg(long, value_name = "PATH")]
    baseline: Option<PathBuf>,
}

impl Programs {
    /// Whether another build takes turns with ours.
    pub(crate) fn has_baseline(&self) -> bool {
        self.baseline.is_some()
    }

    /// The load on a server that is started for the run.
    pub(crate) fn frame<'a>(
        &'a self,
        name: &'static str,
        unit: &'static str,
        report: &'a Report,
    ) -> anyhow::Result<Frame<'a>> {
        let program = match &self.server {
            Some(path) => Program::at(path),
            None => Program::beside_this_one()?,
        };
        let baseline = self.baseline.as_deref().map(Program::at);
        Ok(Frame { name, unit, figures: &[Figure::Cpu], program, baseline, report })
    }
}

/// A server that runs already.
#[derive(Debug, clap::Args)]
pub(crate) struct Running {
    /// A running server's door; without it a server is started for the run.
    #[arg(
        long,
        value_name = "ADDR",
        value_parser = address,
        conflicts_with_all = ["server", "baseline", "peer"]
    )]
    pub(crate) address: Option<SocketAddr>,
    /// The process id of that server, to tell its CPU time.
    #[arg(long, value_name = "PID", requires = "address")]
    pid: Option<u32>,
}

impl Running {
    /// The load on the running server, or on one that is started for the run.
    pub(crate) fn frame<'a>(
        &self,
        name: &'static str,
        unit: &'static str,
        programs: &'a Programs,
        report: &'a Report,
    ) -> anyhow::Result<Frame<'a>> {
        let Some(address) = self.address else { return programs.frame(name, unit, report) };
        let program = Program::Running { address, pid: self.pid };
        Ok(Frame { name, unit, figures: &[Figure::Cpu], program, baseline: None, report })
    }
}

/// An address and a port.
fn address(text: &str) -> Result<SocketAddr, String> {
    let local = text.strip_prefix("localhost:").map(|port| format!("127.0.0.1:{port}"));
    let wrong = |_| "write an IP address, or localhost, and a port: 127.0.0.1:2000".to_owned();
    local.as_deref().unwrap_or(text).parse().map_err(wrong)
}

/// When to stop.
#[derive(Debug, clap::Args)]
pub(crate) struct Length {
    /// How long to send (each round, in a comparison).
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) seconds: u64,
    /// Stop after this many requests, if that comes first.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
}

impl Length {
    pub(crate) fn until(&self) -> Until {
        Until { span: self.seconds * SECOND, count: self.count.unwrap_or(u64::MAX) }
    }
}

/// How many rounds a comparison has, and how results are printed.
#[derive(Debug, clap::Args)]
pub(crate) struct Report {
    /// Rounds of a comparison.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}
