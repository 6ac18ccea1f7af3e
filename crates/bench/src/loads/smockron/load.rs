//! The load: libzmq publishers that wait rather than drop, and what the other end has counted. What
//! was sent and did not come is told as lost.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use tidegate_core::Nanos;
use tidegate_core::time::SECOND;

use super::peers::Peers;
use crate::clock;
use crate::frame::Load;
use crate::frame::tally::Tally;
use crate::servers::metrics;

/// How often it is looked whether everything has come.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// What has not come for so long after something else will not come.
const LOST_AFTER: Nanos = SECOND;

/// Accounting messages to put on a master.
#[derive(Clone)]
pub(super) struct SmockronLoad<'a> {
    pub(super) peers: &'a Peers,
    pub(super) master: SocketAddr,
    pub(super) count: Count,
    pub(super) publishers: u64,
    pub(super) messages: u64,
    pub(super) ids: u64,
}

/// Where the other end tells how many messages have come.
#[derive(Clone)]
pub(super) enum Count {
    /// The first eight bytes of a file.
    File(PathBuf),
    /// The decisions in the metrics of our server.
    Metrics(SocketAddr),
}

impl Count {
    fn read(&self) -> io::Result<u64> {
        match self {
            Count::File(path) => {
                let bytes = std::fs::read(path)?;
                let bytes = bytes.try_into().map_err(|_| io::Error::other("no count"))?;
                Ok(u64::from_ne_bytes(bytes))
            }
            Count::Metrics(http) => metrics::sum(*http, "tidegate_decisions_total", "smockron"),
        }
    }
}

impl SmockronLoad<'_> {
    /// What one publisher is told.
    fn words(&self, number: u64) -> [String; 5] {
        // The first ones take what cannot be divided evenly.
        let rest = u64::from(number < self.messages % self.publishers);
        let share = self.messages / self.publishers + rest;
        let start = self.ids / self.publishers * number;
        let [share, ids, start] = [share, self.ids, start].map(|number| number.to_string());
        ["pub".to_owned(), self.master.to_string(), share, ids, start]
    }

    fn publish(&self) -> anyhow::Result<u64> {
        thread::scope(|scope| {
            let publish = |number| {
                let words = self.words(number);
                scope.spawn(move || self.peers.numbers(&words))
            };
            let threads: Vec<_> = (0..self.publishers).map(publish).collect();
            let mut sent = 0;
            for thread in threads {
                let numbers = thread.join().map_err(|_| anyhow::anyhow!("a panic"))??;
                sent += numbers.iter().sum::<u64>();
            }
            Ok(sent)
        })
    }
}

impl Load for SmockronLoad<'_> {
    fn title(&self) -> String {
        let Self { publishers, messages, ids, .. } = self;
        format!("{publishers} libzmq publishers, {messages} messages about {ids} identifiers")
    }

    fn run(&self, progress: &dyn Fn(u64, Nanos)) -> io::Result<Tally> {
        let (start, before) = (clock::now(), self.count.read()?);
        let mut tally = Tally::new();
        tally.sent = self.publish().map_err(io::Error::other)?;
        let mut came = clock::now();
        loop {
            let answered = self.count.read()?.saturating_sub(before).min(tally.sent);
            let now = clock::now();
            if answered > tally.answered {
                (tally.answered, came) = (answered, now);
                progress(answered, now - start);
            }
            if tally.answered == tally.sent || now - came > LOST_AFTER {
                break;
            }
            thread::sleep(LOOK_EVERY);
        }
        tally.lost = tally.sent - tally.answered;
        tally.elapsed = (came - start).max(1);
        Ok(tally)
    }
}
