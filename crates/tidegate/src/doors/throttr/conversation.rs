//! One client of the door without a socket, for golden vectors and tests: bytes in, replies out.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tidegate_core::Now;
use tidegate_wire::throttr::ValueSize;

use super::handler::{Pause, ThrottrHandler};
use super::session::{LocalSubscriptions, Session};
use super::state::ThrottrState;
use crate::doors::io::inbox::LoopInbox;
use crate::doors::io::listener::Peer;
use crate::metrics::Metrics;
use crate::records::Records;

/// A client of a handler of its own, like one in a loop by itself.
pub struct Conversation {
    handler: ThrottrHandler,
    session: Session,
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
        state: Arc<ThrottrState>,
        metrics: Arc<Metrics>,
        size: ValueSize,
        value_max: usize,
        now: Now,
    ) -> io::Result<Self> {
        let local = LocalSubscriptions::new(LoopInbox::new()?);
        let mut handler = ThrottrHandler::new(records, state, local, metrics, size, value_max);
        let peer = Peer::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 1)));
        let session = Session::open(peer, 0, &handler.state, &mut handler.local, now)
            .map_err(io::Error::other)?;
        Ok(Self { handler, session, kept: Vec::new(), out: Vec::new() })
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
        let Self { handler, session, out, .. } = self;
        let mut taken = 0;
        loop {
            let (more, pause) = handler.execute(session, &bytes[taken..], now, out);
            replies.append(out);
            taken += more;
            match pause {
                Pause::NeedsInput => return (taken, true),
                Pause::Broken => return (taken, false),
                Pause::Full | Pause::Flush => {}
                Pause::Ask(question) => {
                    let ThrottrHandler { state, records, size, .. } = handler;
                    question.answer(state, records, *size, now, replies);
                }
            }
        }
    }
}
