//! How long a DELAY_UNTIL takes: a libzmq gatekeeper sends one accounting message, which exhausts
//! the burst of a new identifier, and waits for what the master publishes about it. The peer is a
//! relay that publishes at once what it receives and decides nothing.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tidegate_core::Nanos;

use super::peers::Peers;
use crate::clock;
use crate::frame::Load;
use crate::frame::tally::Tally;

/// Messages to a master, one after the other.
pub(super) struct Pings<'a> {
    peers: &'a Peers,
    accounting: SocketAddr,
    control: SocketAddr,
    messages: u64,
    /// Runs so far: each uses identifiers of its own.
    runs: AtomicU64,
}

impl<'a> Pings<'a> {
    /// So many messages in each run.
    pub(super) fn new(
        peers: &'a Peers,
        [accounting, control]: [SocketAddr; 2],
        messages: u64,
    ) -> Self {
        Self { peers, accounting, control, messages, runs: AtomicU64::new(0) }
    }
}

impl Load for Pings<'_> {
    fn title(&self) -> String {
        format!("{} messages that exhaust a burst, one at a time", self.messages)
    }

    fn run(&self, _progress: &dyn Fn(u64, Nanos)) -> io::Result<Tally> {
        let words = [
            "ping".to_owned(),
            self.accounting.to_string(),
            self.control.to_string(),
            self.messages.to_string(),
            format!("run-{}", self.runs.fetch_add(1, Relaxed)),
        ];
        let start = clock::now();
        let answers = self.peers.numbers(&words).map_err(io::Error::other)?;
        let mut tally = Tally::new();
        tally.sent = self.messages;
        tally.answered = answers.len() as u64;
        tally.lost = tally.sent.saturating_sub(tally.answered);
        tally.elapsed = (clock::now() - start).max(1);
        for nanos in answers {
            tally.latency.saturating_record(nanos.max(1));
        }
        Ok(tally)
    }
}
