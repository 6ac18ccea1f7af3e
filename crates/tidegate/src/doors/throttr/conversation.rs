//! One client of the door without a socket, for golden vectors and tests: bytes in, replies out.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tidegate_core::Now;
use tidegate_wire::throttr::ValueSize;

use super::corridor::{Corridor, Pause};
use super::guest::{Floor, Guest};
use super::hall::Hall;
use super::post::Post;
use super::socket::Peer;
use crate::metrics::Metrics;
use crate::records::Records;

/// A client that speaks through a corridor of its own, like one in a loop by itself.
pub struct Conversation {
    corridor: Corridor,
    guest: Guest,
    /// Not a whole request yet.
    kept: Vec<u8>,
    /// Replies of one write.
    out: Vec<u8>,
}

impl Conversation {
    /// A client that has just connected.
    ///
    /// # Errors
    /// If the system has no eventfd or no randomness.
    pub fn open(
        records: Arc<Records>,
        hall: Arc<Hall>,
        metrics: Arc<Metrics>,
        size: ValueSize,
        value_max: usize,
        now: Now,
    ) -> io::Result<Self> {
        let floor = Floor::new(Arc::new(Post::new()?));
        let mut corridor = Corridor::new(records, hall, floor, metrics, size, value_max);
        let peer = Peer::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 1)));
        let guest = Guest::enter(peer, 0, &corridor.hall, &mut corridor.floor, now)
            .map_err(io::Error::other)?;
        Ok(Self { corridor, guest, kept: Vec::new(), out: Vec::new() })
    }

    /// Says some bytes and appends the replies, as though the socket took all of them at once. What
    /// is not a whole request yet waits for more. `false` if the connection would be closed now.
    pub fn say(&mut self, bytes: &[u8], now: Now, replies: &mut Vec<u8>) -> bool {
        if self.kept.is_empty() {
            let (taken, open) = self.execute(bytes, now, replies);
            self.kept.extend_from_slice(&bytes[taken..]);
            return open;
        }
        let mut kept = std::mem::take(&mut self.kept);
        kept.extend_from_slice(bytes);
        let (taken, open) = self.execute(&kept, now, replies);
        kept.drain(..taken);
        self.kept = kept;
        open
    }

    /// Forgets a request that was begun.
    pub fn hang_up(&mut self) {
        self.kept.clear();
    }

    fn execute(&mut self, bytes: &[u8], now: Now, replies: &mut Vec<u8>) -> (usize, bool) {
        let Self { corridor, guest, out, .. } = self;
        let mut taken = 0;
        loop {
            let (more, pause) = corridor.execute(guest, &bytes[taken..], now, out);
            replies.append(out);
            taken += more;
            match pause {
                Pause::Starved => return (taken, true),
                Pause::Broken => return (taken, false),
                Pause::Full | Pause::Flush => {}
                Pause::Ask(question) => {
                    let Corridor { hall, records, size, .. } = corridor;
                    question.answer(hall, records, *size, now, replies);
                }
            }
        }
    }
}
