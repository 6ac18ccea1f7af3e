//! The load: callers on threads of their own. Each connects, reads its answer, closes, and calls
//! again, as the document's client does.

use std::io::{self, Read as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tidegate_core::Nanos;
use tidegate_wire::jarl::{READ_BYTES_MAX, parse};

use crate::clock;
use crate::frame::Load;
use crate::frame::tally::{Tally, Until, on_threads};

/// A server that says nothing for so long will not answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// A load to put on a server.
pub(super) struct JarlLoad {
    pub(super) server: SocketAddr,
    pub(super) clients: usize,
    pub(super) until: Until,
}

impl JarlLoad {
    /// The work of one thread; `claimed` counts what all of them will have sent.
    fn call_again(&self, claimed: &AtomicU64, answered: &AtomicU64) -> io::Result<Tally> {
        let start = clock::now();
        let end = start.saturating_add(self.until.span);
        let mut tally = Tally::new();
        loop {
            let before = clock::now();
            if before >= end || claimed.fetch_add(1, Relaxed) >= self.until.count {
                break;
            }
            tally.sent += 1;
            if call(self.server)? {
                tally.answered += 1;
                answered.fetch_add(1, Relaxed);
            } else {
                tally.lost += 1;
            }
            tally.latency.saturating_record((clock::now() - before).max(1));
        }
        tally.elapsed = (clock::now() - start).max(1);
        Ok(tally)
    }
}

/// One call; whether it was answered.
fn call(server: SocketAddr) -> io::Result<bool> {
    let mut stream = TcpStream::connect(server)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut room = [0; READ_BYTES_MAX];
    let count = stream.read(&mut room)?;
    Ok(parse(&room[..count]).is_ok())
}

impl Load for JarlLoad {
    fn title(&self) -> String {
        format!("{} clients, a connection for each call", self.clients)
    }

    fn run(&self, progress: &dyn Fn(u64, Nanos)) -> io::Result<Tally> {
        let claimed = AtomicU64::new(0);
        on_threads(self.clients, progress, |_, answered| self.call_again(&claimed, answered))
    }
}
