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

use super::corridor::{ONE_USE, Replies, answer, ignore, to_wire};
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
        let mailbox = Mailbox::new(PENDING_MAX)?;
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
            Ok(Request { id, command: Command::CheckLimit(json) }) => match Check::parse(json) {
                Ok(check) => {
                    let first = check.keys()[0].clone();
                    self.ask(desk, now, asked(id, Some((check, Vec::new()))), first.as_bytes());
                }
                Err(ignored) => ignore(desk, ignored.reason()),
            },
            Ok(request) => answer(desk, now, at, &request, replies),
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
