//! Requests whose counts lie in a remote store: asked here, and answered when the store has told.
//!
//! The loop goes on meanwhile. Who asked and what is to be answered travels with the question, so
//! the loop remembers no more of it than that an answer is owed. Commands that make no use of a key
//! are answered at once, as ever.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use tidegate_core::Now;
use tidegate_wire::text::{self, Check, Command, Request, reply};

use super::corridor::{AMPLIFIES, ONE_USE, Replies, answer, ignore, to_wire};
use super::mmsg::{Address, BATCH, Local};
use crate::doors::mailbox::Mailbox;
use crate::limiter::{Desk, Line};

/// Requests that one loop keeps pending. Those beyond it are decided without the store, as their
/// rules' `on_store_error` says.
const PENDING_MAX: usize = 16_384;

/// Where a reply goes.
#[derive(Clone, Copy)]
pub(super) struct Whom {
    /// The client.
    pub(super) to: Address,
    /// Our address that the client asked.
    pub(super) from: Local,
}

/// A request that waits for the store.
struct Asked {
    whom: Whom,
    id: Option<Box<[u8]>>,
    /// Of a `check_limit`: its keys, and what was said of the first of them.
    check: Option<(Check, Vec<text::Line>)>,
}

/// What the store said of the last key that was asked about.
struct Told {
    asked: Box<Asked>,
    line: Line,
}

/// All that waits at one loop.
pub(super) struct Pending {
    mailbox: Arc<Mailbox<Told>>,
    /// Letters to be looked at, and answers for which the store was not asked.
    told: Vec<Told>,
    /// Where the replies of a batch go.
    whom: Vec<Whom>,
}

impl Pending {
    pub(super) fn new() -> io::Result<Self> {
        Self::with_room(PENDING_MAX)
    }

    fn with_room(pending_max: usize) -> io::Result<Self> {
        let mailbox = Mailbox::new(pending_max)?;
        Ok(Self { mailbox, told: Vec::new(), whom: Vec::with_capacity(BATCH) })
    }

    /// What becomes readable when the store has told something.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.mailbox.bell()
    }

    /// Whether somebody is still to be answered.
    pub(super) fn is_owed(&self) -> bool {
        self.mailbox.is_owed() || !self.told.is_empty()
    }

    /// Takes a packet, number `at` of its batch: asks the store what it wants, or adds the reply
    /// that needs no store.
    pub(super) fn take(
        &mut self,
        desk: &Desk,
        now: Now,
        (at, packet): (usize, &[u8]),
        whom: Whom,
        trusted: impl Fn() -> bool,
        replies: &mut Replies,
    ) {
        let asked = |id: Option<&[u8]>, check| {
            let id = id.map(Box::from);
            Box::new(Asked { whom, id, check })
        };
        match text::parse(packet) {
            Ok(Request { id, command: Command::OverLimit(key) }) => {
                self.ask(desk, now, asked(id, None), key);
            }
            Ok(Request { command: Command::CheckLimit(_), .. }) if !trusted() => {
                ignore(desk, AMPLIFIES);
            }
            Ok(Request { id, command: Command::CheckLimit(json) }) => match Check::parse(json) {
                Ok(check) => {
                    let first = check.keys()[0].clone();
                    self.ask(desk, now, asked(id, Some((check, Vec::new()))), first.as_bytes());
                }
                Err(ignored) => ignore(desk, ignored.reason()),
            },
            Ok(request) => answer(desk, now, (at, packet.len()), &request, trusted, replies),
            Err(ignored) => ignore(desk, ignored.reason()),
        }
    }

    fn ask(&mut self, desk: &Desk, now: Now, asked: Box<Asked>, key: &[u8]) {
        let done = match self.mailbox.envelope() {
            Some(envelope) => desk.ask(&[key], ONE_USE, false, now, move |answer| {
                envelope.post(Told { asked, line: answer.line() });
            }),
            None => desk.answer_crowded(&[key], ONE_USE, false, now).map(|answer| {
                self.told.push(Told { asked, line: answer.line() });
            }),
        };
        if let Err(unfit) = done {
            ignore(desk, unfit.reason());
        }
    }

    /// Answers all of whom the store has told something: `send` is handed replies, [`BATCH`] at
    /// most, and where each of them goes.
    pub(super) fn settle(
        &mut self,
        desk: &Desk,
        now: Now,
        replies: &mut Replies,
        mut send: impl FnMut(&[Whom], &Replies),
    ) {
        self.mailbox.take(&mut self.told);
        replies.clear();
        // Again for those who were turned away meanwhile, no more than a request has keys.
        while !self.told.is_empty() {
            for told in std::mem::take(&mut self.told) {
                self.settle_one(desk, now, told, replies);
                if self.whom.len() == BATCH {
                    send(&self.whom, replies);
                    self.whom.clear();
                    replies.clear();
                }
            }
        }
        if !self.whom.is_empty() {
            send(&self.whom, replies);
            self.whom.clear();
        }
    }

    /// Adds the reply, unless another key has to be asked about first.
    fn settle_one(&mut self, desk: &Desk, now: Now, told: Told, replies: &mut Replies) {
        let Told { mut asked, line } = told;
        let packet = self.whom.len();
        let Some((check, lines)) = &mut asked.check else {
            replies.add(packet, |out| reply::over_limit(out, asked.id.as_deref(), &to_wire(&line)));
            return self.whom.push(asked.whom);
        };
        lines.push(to_wire(&line));
        if let Some(next) = check.keys().get(lines.len()).filter(|_| !line.over) {
            let next = next.clone();
            return self.ask(desk, now, asked, next.as_bytes());
        }
        let mut bytes = Vec::new();
        check.reply(&mut bytes, asked.id.as_deref(), lines);
        replies.add_long(packet, &bytes);
        self.whom.push(asked.whom);
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::clock::Clock;
    use crate::config::Config;
    use crate::limiter::Limiter;
    use crate::metrics::{Door, Metrics};

    const FILE: &str = "
        [text]
        listen = '127.0.0.1:0'
        [store]
        kind = 'redis'
        url = 'redis://127.0.0.1:1'
        [[rule]]
        match = 'ws ip=*'
        limit = '1/h'
        on_store_error = 'deny'
        [[rule]]
        match = 'local *'
        limit = '1/h'
        on_store_error = 'local'
        [[rule]]
        match = 'allow *'
        limit = '1/h'
        [[rule]]
        match = 'jobs *'
        limit = '1 in flight'
    ";

    /// What is said to these packets, sorted, by a loop with so much room and no store.
    fn replies(room: usize, packets: &[&str]) -> Vec<String> {
        replies_to(room, packets, true)
    }

    /// The same, with whether the sender's address is trusted.
    fn replies_to(room: usize, packets: &[&str], trusted: bool) -> Vec<String> {
        let config = Config::parse("t", FILE).expect("a sound file");
        let memory = config.file.memory.settings();
        let clock = Clock::system();
        let limiter = Limiter::new(clock, Metrics::new().into(), config.rules, memory);
        limiter.keep_elsewhere(&config.file.store).expect("sound settings");
        let desk = limiter.desk(Door::Text);
        let mut pending = Pending::with_room(room).expect("a bell");
        let mut at_once = Replies::new();
        let client = SocketAddr::from(([127, 0, 0, 1], 7));
        let whom = Whom { to: client.into(), from: Local::V4([127, 0, 0, 2]) };
        for (at, packet) in packets.iter().enumerate() {
            pending.take(
                &desk,
                desk.now(),
                (at, packet.as_bytes()),
                whom,
                || trusted,
                &mut at_once,
            );
        }
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
        let mut said: Vec<String> = at_once.iter().map(|(_, reply)| text(reply)).collect();
        let mut later = Replies::new();
        while pending.is_owed() {
            pending.settle(&desk, desk.now(), &mut later, |whom, replies| {
                assert!(whom.len() <= BATCH && replies.iter().len() == whom.len());
                for (at, reply) in replies.iter() {
                    assert_eq!((whom[at].to, whom[at].from), (client.into(), whom[0].from));
                    said.push(text(reply));
                }
            });
        }
        said.sort_unstable();
        said
    }

    /// The rules decide for those whom there is no room to keep, and for those whom the store does
    /// not answer, and in the same words.
    #[test]
    fn whoever_is_not_kept_is_told_what_the_rules_say() {
        let mut packets = vec![
            "1 over_limit ws ip=a",
            "2 over_limit local a",
            "3 over_limit local a",
            "4 over_limit allow a",
            "5 over_limit allow a",
            "6 over_limit jobs a",
            "7 ping",
            "8 check_limit {\"origin\":\"ws\",\"ip\":\"a\"}",
            "9 check_limit []",
            "over_limit",
        ];
        let expected = [
            "1 ok Y 0.0 1.0 3600",
            "2 ok N 1.0 1.0 3600",
            "3 ok Y 1.0 1.0 3600",
            "4 ok N 0.0 1.0 3600",
            "5 ok N 0.0 1.0 3600",
            "7 pong",
            "8 ok Y 0.0 1.0 3600, [\"ws ua=\",\"ws ip=a\"], \
             [{\"key\":\"ws ua=\",\"over_limit\":\"ok N 0.0 1.0 1\"},\
             {\"key\":\"ws ip=a\",\"over_limit\":\"ok Y 0.0 1.0 3600\"}]",
        ];
        for room in [0, 1, 2, PENDING_MAX] {
            assert_eq!(replies(room, &packets), expected, "room for {room}");
        }
        // An address that is not trusted: all but the long reply of `check_limit`.
        assert_eq!(replies_to(PENDING_MAX, &packets, false), expected[..6]);
        // More than one send takes.
        packets = vec!["4 over_limit allow a"; 3 * BATCH + 1];
        for room in [0, BATCH, PENDING_MAX] {
            assert_eq!(replies(room, &packets), vec![expected[3]; packets.len()]);
        }
    }
}
