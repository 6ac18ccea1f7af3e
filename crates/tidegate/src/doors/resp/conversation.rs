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
        let mut handler = handler(limiter, records, config, now)?;
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

/// The handler of a door of this table.
fn handler(
    limiter: &Arc<Limiter>,
    records: Arc<Records>,
    config: &Config,
    now: Now,
) -> io::Result<RespHandler> {
    let state = RespState::new(now.unix);
    state.settings.store(Arc::new(config.settings().map_err(io::Error::other)?));
    let bounds = WaiterBounds::default();
    Ok(RespHandler::new(Parts {
        limiter: limiter.handle(Door::Resp),
        records,
        later: Arc::new(LaterParts {
            limiter: limiter.handle(Door::Resp),
            uses: UsesInFlight::before(limiter),
            waiting: WaitingRequests::new(limiter),
            waiter_limit: WaiterLimit::new(limiter.metrics(), Door::Resp, bounds),
            shutdown: Shutdown::new(),
        }),
        metrics: limiter.metrics().clone(),
        state,
        inbox: LoopInbox::new()?,
        value_max: usize::try_from(config.max_value.0).unwrap_or(usize::MAX),
    }))
}

fn context(now: Now) -> Context {
    Context { now, id: ConnectionId { slot: 0, generation: 0 } }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use tidegate_core::rules::RuleSet;
    use tidegate_wire::resp::request::request;

    use super::*;
    use crate::clock::Clock;
    use crate::doors::io::test_loop::TestLoop;
    use crate::doors::resp::pending::LateReply;
    use crate::metrics::Metrics;
    use crate::stores::memory;

    const NOW: Now = Now { mono: 1, unix: 1 };

    fn limiter(clock: Clock) -> Arc<Limiter> {
        let settings = memory::Settings { max_keys: 100, max_bytes: 1 << 20 };
        Limiter::new(clock, Arc::new(Metrics::new()), RuleSet::new(Vec::new(), None), settings)
    }

    /// Otherwise a client could leave one byte unread, and the server would keep the room of all.
    #[test]
    fn room_is_counted_and_given_back_while_a_client_reads() {
        let clock = Clock::manual(NOW);
        let limiter = limiter(clock.clone());
        let records = Records::beside(&limiter, 100);
        let handler = handler(&limiter, records, &Config::default(), NOW).unwrap();
        let (state, inbox) = (handler.parts.state.clone(), handler.parts.inbox.clone());
        let metrics = limiter.metrics().clone();
        let mut test_loop = TestLoop::new(handler, inbox, None, (clock, metrics), 10);
        let mut client = test_loop.client();
        let message = "x".repeat(60_000);
        let requests = format!("*2\r\n$4\r\nECHO\r\n$60000\r\n{message}\r\n").repeat(300);
        let mut unwritten = requests.as_bytes();
        while !unwritten.is_empty() {
            let written = client.write(unwritten).unwrap_or(0);
            unwritten = &unwritten[written..];
            test_loop.turn();
        }
        while state.sum().read_bytes < requests.len() as u64 {
            test_loop.turn();
        }
        let mut unread = format!("$60000\r\n{message}\r\n").len() * 300;
        let kernel_max = 1 << 20;
        assert!(state.kept() > unread - kernel_max, "{} of {unread}", state.kept());
        assert!(state.kept() < 2 * unread);
        let mut bytes = vec![0; 64 << 10];
        while unread > 2 * kernel_max {
            while let Ok(read @ 1..) = client.read(&mut bytes) {
                unread -= read;
            }
            assert_eq!(test_loop.connections(), 1);
            test_loop.turn();
            assert!(state.kept() < 4 * unread + kernel_max, "{} for {unread}", state.kept());
        }
        assert!(state.kept() > 0, "some of it waits");
    }

    #[test]
    fn other_clients_have_a_turn_amid_many_answers() {
        let clock = Clock::manual(NOW);
        let limiter = limiter(clock.clone());
        let records = Records::beside(&limiter, 100);
        let handler = handler(&limiter, records, &Config::default(), NOW).unwrap();
        let (inbox, metrics) = (handler.parts.inbox.clone(), limiter.metrics().clone());
        let mut test_loop = TestLoop::new(handler, inbox.clone(), None, (clock, metrics), 10);
        let _client = test_loop.client();
        for left in [100, 1_000] {
            let first = ConnectionId { slot: 0, generation: 0 };
            (0..left).for_each(|_| inbox.answer(first, LateReply::GoOn));
            test_loop.turn();
            assert_eq!(test_loop.has_left(), left == 1_000);
        }
        (0..3).for_each(|_| test_loop.turn());
        assert!(!test_loop.has_left());
    }

    #[test]
    fn other_clients_have_a_turn_amid_many_empty_requests() {
        let limiter = limiter(Clock::manual(NOW));
        let records = Records::beside(&limiter, 100);
        let mut client =
            RespConversation::open(&limiter, records, &Config::default(), NOW).unwrap();
        let RespConversation { handler, session, out, .. } = &mut client;
        let input = "\n".repeat(100_000);
        let (taken, progress) = handler.execute(session, input.as_bytes(), out, &context(NOW));
        assert_eq!(progress, Progress::Yield);
        assert!(taken < 10_000, "{taken}");
    }

    #[test]
    fn a_transaction_that_is_too_long_is_refused() {
        let limiter = limiter(Clock::manual(NOW));
        let records = Records::beside(&limiter, 100);
        let mut client =
            RespConversation::open(&limiter, records, &Config::default(), NOW).unwrap();
        let mut out = Vec::new();
        let sent = "MULTI\r\n".to_owned() + &"PING\r\n".repeat(1025) + "EXEC\r\n";
        assert!(client.say(sent.as_bytes(), NOW, &mut out));
        let replies = "+OK\r\n".to_owned() + &"+QUEUED\r\n".repeat(1024);
        let text = "-ERR a transaction has at most 1024 commands and 4 MiB\r\n-EXECABORT ";
        assert!(out.starts_with((replies + text).as_bytes()), "{}", out.escape_ascii());
    }

    #[test]
    fn other_clients_have_a_turn_amid_a_long_transaction() {
        let limiter = limiter(Clock::manual(NOW));
        let records = Records::beside(&limiter, 100);
        let mut client =
            RespConversation::open(&limiter, records, &Config::default(), NOW).unwrap();
        let mut sent = b"MULTI\r\n".to_vec();
        let del = [&[&b"DEL"[..]], &[&b"k"[..]; 1023][..]].concat();
        (0..20).for_each(|_| request(&mut sent, &del));
        let mut out = Vec::new();
        assert!(client.say(&sent, NOW, &mut out));
        assert_eq!(out.len(), "+OK\r\n".len() + 20 * "+QUEUED\r\n".len());
        let RespConversation { handler, session, out, .. } = &mut client;
        let mut turns = 0;
        let mut input: &[u8] = b"EXEC\r\nPING\r\n";
        loop {
            let (taken, progress) = handler.execute(session, input, out, &context(NOW));
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
