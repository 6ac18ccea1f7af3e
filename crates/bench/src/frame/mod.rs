//! What all loads share. A load brings a [`Load`], how its servers are started, and its peers.
//!
//! - [`flags`]: the flags that several loads have
//! - [`keys`]: which keys are asked for, and how unevenly
//! - [`tally`]: what came of a load, and the threads that put it on a server
//! - [`measure`]: one run of a load, with progress and the server's CPU time
//! - [`figures`]: what of a run is compared
//! - [`compare`]: the server and its peers in turns
//! - [`report`]: what is printed of one run

mod compare;
mod figures;
pub(crate) mod flags;
pub(crate) mod keys;
pub(crate) mod measure;
pub(crate) mod report;
pub(crate) mod tally;

use std::io;

use serde_json::Value;
use tidegate_core::Nanos;

pub(crate) use self::figures::Figure;
use self::flags::Report;
use self::measure::measure;
use self::tally::Tally;
use crate::failure::{Failure, print};
use crate::servers::{Program, Server};

/// A load that can be put on its server again and again.
pub(crate) trait Load {
    /// Which load it is, for people.
    fn title(&self) -> String;

    /// Runs to the end; tells `progress` now and then how many were answered, and since when.
    fn run(&self, progress: &dyn Fn(u64, Nanos)) -> io::Result<Tally>;
}

/// A server, and the load to put on it.
pub(crate) struct Contender<L> {
    pub(crate) name: &'static str,
    /// The process whose CPU time is measured.
    pub(crate) server: Server,
    pub(crate) load: L,
}

impl<L> Contender<L> {
    /// A contender made from our program.
    pub(crate) fn ours(server: Server, load: L) -> Self {
        Self { name: "tidegate", server, load }
    }
}

/// One load as it was asked for on the command line.
pub(crate) struct Frame<'a> {
    /// What progress is told about.
    pub(crate) name: &'static str,
    /// What the server is sent: requests, messages, connections.
    pub(crate) unit: &'static str,
    /// What is compared; the first figure is the one that rounds tell.
    pub(crate) figures: &'static [Figure],
    pub(crate) program: Program,
    /// Another build of it, to compare with.
    pub(crate) baseline: Option<Program>,
    pub(crate) report: &'a Report,
}

impl Frame<'_> {
    /// Runs the load once, or in turns with every peer that was named and with the baseline. `ours`
    /// starts a program of ours with its load; `peer` starts a peer, which may look at ours.
    pub(crate) fn run<L: Load, P: Copy + PartialEq>(
        &self,
        ours: impl Fn(&Program) -> Result<Contender<L>, Failure>,
        peers: &[P],
        peer: impl Fn(P, &Contender<L>) -> Result<Contender<L>, Failure>,
    ) -> Result<(), Failure> {
        let mut all = vec![ours(&self.program)?];
        if let Some(baseline) = &self.baseline {
            all.push(Contender { name: "baseline", ..ours(baseline)? });
        }
        for (at, named) in peers.iter().enumerate() {
            if !peers[..at].contains(named) {
                let contender = peer(*named, &all[0])?;
                all.push(contender);
            }
        }
        if all.len() > 1 {
            return compare::run(self, &all);
        }
        let run = measure(self.name, &all[0].server, &all[0].load)?;
        self.show(&report::json(&run), &report::human(&run, &all[0].load.title()))
    }

    /// Prints what was asked for: JSON, or the page for people.
    pub(crate) fn show(&self, json: &Value, page: &str) -> Result<(), Failure> {
        if self.report.json { print(&format!("{json:#}\n")) } else { print(page) }
    }
}
