//! One client of the door without a socket, for golden vectors and tests: bytes in, replies out.

use std::io;
use std::sync::Arc;

use tidegate_core::Now;

use super::config::Config;
use super::handler::{LaterParts, Parts, RespHandler};
use super::session::Session;
use super::state::RespState;
use crate::doors::io::handler::{ConnectionId, Context, Handler as _, Progress};
use crate::doors::io::inbox::LoopInbox;
use crate::doors::io::listener::Peer;
use crate::limiter::Limiter;
use crate::metrics::Door;
use crate::records::Records;
use crate::shutdown::Shutdown;
use crate::uses::UsesInFlight;
use crate::waiting::{WaiterBounds, WaiterLimit, WaitingRequests};

/// A client of a handler of its own, like one in a loop by itself. Counts must lie in memory.
pub struct RespConversation {
    handler: RespHandler,
    session: Session,
    /// Not a whole request yet.
    kept: Vec<u8>,
    /// Replies of one write.
    out: Vec<u8>,
}

impl RespConversation {
    /// A client that has just connected to a door of this table.
    ///
    /// # Errors
    /// If the system has no eventfd, or a password cannot be read.
    pub fn open(
        limiter: &Arc<Limiter>,
        records: Arc<Records>,
        config: &Config,
        now: Now,
    ) -> io::Result<Self> {
        let state = RespState::new(now.unix);
        state.settings.store(Arc::new(config.settings().map_err(io::Error::other)?));
        let mut handler = RespHandler::new(Parts {
            limiter: limiter.handle(Door::Resp),
            records,
            later: Arc::new(LaterParts {
                limiter: limiter.handle(Door::Resp),
                uses: UsesInFlight::before(limiter),
                waiting: WaitingRequests::new(limiter),
                waiter_limit: WaiterLimit::new(
                    limiter.metrics(),
                    Door::Resp,
                    WaiterBounds::default(),
                ),
                shutdown: Shutdown::new(),
            }),
            metrics: limiter.metrics().clone(),
            state,
            inbox: LoopInbox::new()?,
            value_max: usize::try_from(config.max_value.0).unwrap_or(usize::MAX),
        });
        let opened = handler.on_open(Peer::Unix, &mut Vec::new(), &context(now));
        let (session, _) = opened.map_err(io::Error::other)?;
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

    fn execute(&mut self, bytes: &[u8], now: Now, replies: &mut Vec<u8>) -> (usize, bool) {
        let Self { handler, session, out, .. } = self;
        let mut taken = 0;
        loop {
            let (more, progress) = handler.execute(session, &bytes[taken..], out, &context(now));
            replies.append(out);
            taken += more;
            match progress {
                Progress::Flush | Progress::Yield => {}
                Progress::Close => return (taken, false),
                _ => return (taken, true),
            }
        }
    }
}

fn context(now: Now) -> Context {
    Context { now, id: ConnectionId { slot: 0, generation: 0 }, fresh_bytes: 0 }
}

#[cfg(test)]
mod tests {
    use tidegate_core::rules::RuleSet;
    use tidegate_wire::resp::request::request;

    use super::*;
    use crate::clock::Clock;
    use crate::metrics::Metrics;
    use crate::stores::memory;

    #[test]
    fn other_clients_have_a_turn_amid_a_long_transaction() {
        let now = Now { mono: 1, unix: 1 };
        let settings = memory::Settings { max_keys: 100, max_bytes: 1 << 20 };
        let rules = RuleSet::new(Vec::new(), None);
        let limiter = Limiter::new(Clock::manual(now), Arc::new(Metrics::new()), rules, settings);
        let records = Records::beside(&limiter, 100);
        let mut client =
            RespConversation::open(&limiter, records, &Config::default(), now).unwrap();
        let mut sent = b"MULTI\r\n".to_vec();
        let del = [&[&b"DEL"[..]], &[&b"k"[..]; 1023][..]].concat();
        (0..20).for_each(|_| request(&mut sent, &del));
        let mut out = Vec::new();
        assert!(client.say(&sent, now, &mut out));
        assert_eq!(out.len(), "+OK\r\n".len() + 20 * "+QUEUED\r\n".len());
        let RespConversation { handler, session, out, .. } = &mut client;
        let mut turns = 0;
        let mut input: &[u8] = b"EXEC\r\nPING\r\n";
        loop {
            let (taken, progress) = handler.execute(session, input, out, &context(now));
            input = &input[taken..];
            match progress {
                Progress::Yield => turns += 1,
                progress => break assert_eq!(progress, Progress::More),
            }
        }
        assert_eq!(turns, 2, "20 commands of 1,024 arguments, 9 in a turn");
        let replies = "*20\r\n".to_owned() + &":0\r\n".repeat(20) + "+PONG\r\n";
        assert_eq!(String::from_utf8_lossy(out), replies);
    }
}
