//! One run of a load: its progress on a terminal, and the server's CPU time meanwhile.

use std::io::{self, IsTerminal as _, Write as _};

use anyhow::{Context as _, bail};
use tidegate_core::time::SECOND;

use super::Load;
use super::tally::Tally;
use crate::servers::Server;

/// What one run showed.
pub(crate) struct Run {
    pub(crate) tally: Tally,
    /// Nanoseconds that the server was on a CPU, where its process is known.
    cpu: Option<u64>,
}

impl Run {
    /// The server's CPU nanoseconds for each request that it answered.
    pub(crate) fn cpu_per_request(&self) -> Option<f64> {
        self.per_request(self.cpu)
    }

    /// The share of one request that was answered.
    pub(super) fn per_request(&self, total: Option<u64>) -> Option<f64> {
        let answered = self.tally.answered;
        total.filter(|_| answered > 0).map(|total| total as f64 / answered as f64)
    }

    /// How many were answered in a second.
    pub(crate) fn per_second(&self) -> f64 {
        self.tally.answered as f64 / (self.tally.elapsed as f64 / SECOND as f64)
    }
}

/// Puts the load on the server.
pub(crate) fn measure(name: &str, server: &Server, load: &impl Load) -> anyhow::Result<Run> {
    let before = server.cpu();
    let terminal = io::stderr().is_terminal();
    let tally = load.run(&|answered, elapsed| {
        if terminal {
            let rate = answered as f64 / (elapsed.max(1) as f64 / SECOND as f64);
            eprint!("\r{name}: {answered} answered, {rate:.0} per second ");
            let _ = io::stderr().flush();
        }
    });
    if terminal {
        eprint!("\r\x1b[K");
    }
    let tally = tally.context("cannot send")?;
    if tally.answered == 0 {
        bail!("no answer from the server at {}", server.address());
    }
    let cpu = before.zip(server.cpu()).map(|(before, after)| after.saturating_sub(before));
    Ok(Run { tally, cpu })
}
