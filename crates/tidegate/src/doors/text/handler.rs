//! From datagrams to replies, without a socket: parse, decide, encode.
//!
//! The event loop, the golden vectors and the allocation test use the same [`TextHandler`]. It does
//! not know how a reply travels: `P` is what the event loop needs to send it, and the handler keeps
//! it for a request whose verdict comes later.
//!
//! The source of a datagram may be forged, so a reply that is much longer than its request goes to
//! trusted sources only: to loopback and to those that the operator has named.

use std::io;
use std::mem;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use smallvec::SmallVec;
use tidegate_core::Now;
use tidegate_wire::text::{self, CheckLimit, TextCommand, server};

use super::mmsg::BATCH;
use crate::completions::AnswerInbox;
use crate::limiter::{
    Decision, InvalidRequest, Key, KeyStats, LimiterHandle, PendingVerdict, Request, Verdict,
};
use crate::metrics::Door;

/// Why a request gets no reply whose reply would be too long for a source that is not trusted.
const AMPLIFIES: &str = "amplifies";

/// Answers the requests of one event loop.
pub struct TextHandler<P> {
    handle: LimiterHandle,
    /// Verdicts of remote stores, with the requests that wait for them.
    inbox: AnswerInbox<AnsweredRequest<P>>,
    replies: Replies,
    decisions: Vec<Result<Decision, InvalidRequest>>,
    answered: Vec<AnsweredRequest<P>>,
    peers: Vec<P>,
}

/// A request that waits for a remote store.
struct PendingRequest<P> {
    peer: P,
    id: Option<Box<[u8]>>,
    /// Set for a `check_limit`.
    check: Option<CheckProgress>,
}

/// A request and what its store said of the key that was asked last.
struct AnsweredRequest<P> {
    request: PendingRequest<P>,
    line: text::ReplyLine,
}

/// A `check_limit`: its keys, and what was decided on the first of them.
struct CheckProgress {
    check: CheckLimit,
    lines: Vec<text::ReplyLine>,
}

impl CheckProgress {
    /// The key to ask about next: none after the last, and none after one that is over its limit.
    fn next_key(&self) -> Option<&[u8]> {
        let over = self.lines.last().is_some_and(|line| line.over);
        let key = self.check.keys().get(self.lines.len()).filter(|_| !over);
        key.map(String::as_bytes)
    }
}

/// The number of a datagram and the id of its request.
type Asked<'d> = (usize, Option<&'d [u8]>);

/// `over_limit` requests that came one after the other. They are decided together, so that the
/// table can fetch all their slots at once.
struct UseBatch<'d> {
    keys: SmallVec<[Key<'d>; BATCH]>,
    requests: SmallVec<[Asked<'d>; BATCH]>,
}

impl<'d> UseBatch<'d> {
    fn new() -> Self {
        Self { keys: SmallVec::new(), requests: SmallVec::new() }
    }

    #[inline(always)]
    fn push(&mut self, number: usize, id: Option<&'d [u8]>, key: &'d [u8]) {
        self.keys.push(Key::take(key, 1));
        self.requests.push((number, id));
    }

    fn clear(&mut self) {
        self.keys.clear();
        self.requests.clear();
    }
}

impl<P: Send + 'static> TextHandler<P> {
    /// Allocates all buffers.
    ///
    /// # Errors
    /// If the kernel has no descriptor for the notifier.
    pub fn new(handle: LimiterHandle) -> io::Result<Self> {
        Ok(Self {
            handle,
            inbox: AnswerInbox::new()?,
            replies: Replies::new(),
            decisions: Vec::with_capacity(BATCH),
            answered: Vec::new(),
            peers: Vec::with_capacity(BATCH),
        })
    }

    /// Becomes readable when a remote store has answered: time for [`Self::on_answers`].
    pub(super) fn notifier(&self) -> BorrowedFd<'_> {
        self.inbox.notifier()
    }

    /// Whether a request waits for a remote store.
    pub(super) fn has_pending(&self) -> bool {
        self.inbox.has_pending()
    }

    pub(super) fn now(&self) -> Now {
        self.handle.now()
    }

    /// Counts a datagram that gets no reply.
    pub(super) fn ignore(&self, reason: &'static str) {
        self.handle.limiter().metrics().bad_input(Door::Text, reason);
    }

    /// Answers `datagrams` in order: a later request sees what an earlier one did. A datagram that
    /// is no request, or cannot be answered, is counted and gets no reply; a request that waits for
    /// a remote store gets it from [`Self::on_answers`]. A reply has the number of its datagram.
    /// Allocates nothing, except for `check_limit` and for requests that wait.
    pub fn on_datagrams(
        &mut self,
        datagrams: &[&[u8]],
        peer: impl Fn(usize) -> P,
        is_trusted: impl Fn(&P) -> bool,
    ) -> &Replies {
        let now = self.handle.now();
        self.replies.clear();
        let mut uses = UseBatch::new();
        for (number, datagram) in datagrams.iter().enumerate() {
            let text::Request { id, command } = match text::parse(datagram) {
                Ok(request) => request,
                Err(ignored) => {
                    self.ignore(ignored.reason());
                    continue;
                }
            };
            let is_trusted = || is_trusted(&peer(number));
            match command {
                TextCommand::OverLimit(key) => uses.push(number, id, key),
                TextCommand::Ping => self.replies.add(number, |out| server::ping(out, id)),
                TextCommand::GetSize => {
                    self.decide_uses(&mut uses, now, &peer);
                    let size = self.size();
                    let write = |out: &mut [u8]| server::get_size(out, id, &size);
                    self.add_bounded(number, datagram, is_trusted, write);
                }
                TextCommand::GetStats(key) => {
                    self.decide_uses(&mut uses, now, &peer);
                    let stats = self.stats(key, now);
                    let write = |out: &mut [u8]| server::get_stats(out, id, &stats, key);
                    self.add_bounded(number, datagram, is_trusted, write);
                }
                TextCommand::CheckLimit(_) if !is_trusted() => self.ignore(AMPLIFIES),
                TextCommand::CheckLimit(json) => {
                    self.decide_uses(&mut uses, now, &peer);
                    self.begin_check(now, number, peer(number), id, json);
                }
            }
        }
        self.decide_uses(&mut uses, now, &peer);
        &self.replies
    }

    /// Decides on a batch of uses in order, adds the replies and empties the batch.
    #[inline]
    fn decide_uses(&mut self, uses: &mut UseBatch<'_>, now: Now, peer: impl Fn(usize) -> P) {
        if uses.keys.is_empty() {
            return;
        }
        // Taken out so that replies can be added while it is read; an empty Vec costs nothing.
        let mut decisions = mem::take(&mut self.decisions);
        self.handle.decide_batch(&uses.keys, now, &mut decisions);
        for (decision, &(number, id)) in decisions.drain(..).zip(&uses.requests) {
            match decision {
                Ok(Decision::Ready(verdict)) => {
                    self.replies.add(number, |out| server::over_limit(out, id, &line(&verdict)));
                }
                Ok(Decision::Pending(verdict)) => {
                    let (peer, id) = (peer(number), id.map(Box::from));
                    self.expect(verdict, PendingRequest { peer, id, check: None });
                }
                Err(invalid) => self.ignore(invalid.reason()),
            }
        }
        self.decisions = decisions;
        uses.clear();
    }

    fn size(&self) -> text::SizeReply {
        let size = self.handle.limiter().size();
        text::SizeReply { used: size.used as u64, total: size.total as u64, keys: size.keys as u64 }
    }

    fn stats(&self, key: &[u8], now: Now) -> text::StatsReply {
        let KeyStats { requests, over, last_max_rate, .. } = self.handle.limiter().stats(key, now);
        text::StatsReply { requests, over, last_max_rate }
    }

    /// Adds a reply whose length depends on the server's counts, unless it is too long for the
    /// source of its request.
    fn add_bounded<E>(
        &mut self,
        number: usize,
        datagram: &[u8],
        is_trusted: impl Fn() -> bool,
        write: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) {
        let bytes_max = match is_trusted() {
            true => usize::MAX,
            false => text::AMPLIFICATION_MAX * datagram.len(),
        };
        if !self.replies.add_within(number, bytes_max, write) {
            self.ignore(AMPLIFIES);
        }
    }

    fn begin_check(&mut self, now: Now, number: usize, peer: P, id: Option<&[u8]>, json: &[u8]) {
        match CheckLimit::parse(json) {
            Ok(check) => {
                let progress = CheckProgress { check, lines: Vec::new() };
                self.decide_check(now, number, (peer, id.map(Box::from)), progress);
            }
            Err(ignored) => self.ignore(ignored.reason()),
        }
    }

    /// Makes a use of the next keys of a `check_limit`, up to the first that is over its limit, and
    /// adds the reply. Returns the peer then. Otherwise a remote store has to answer first, or the
    /// request is invalid.
    fn decide_check(
        &mut self,
        now: Now,
        number: usize,
        (peer, id): (P, Option<Box<[u8]>>),
        mut progress: CheckProgress,
    ) -> Option<P> {
        while let Some(key) = progress.next_key() {
            let keys = [Key::take(key, 1)];
            match self.handle.decide(&Request::all_or_nothing(&keys), now, None) {
                Ok(Decision::Ready(verdict)) => progress.lines.push(line(&verdict)),
                Ok(Decision::Pending(verdict)) => {
                    self.expect(verdict, PendingRequest { peer, id, check: Some(progress) });
                    return None;
                }
                Err(invalid) => {
                    self.ignore(invalid.reason());
                    return None;
                }
            }
        }
        let mut bytes = Vec::new();
        progress.check.reply(&mut bytes, id.as_deref(), &progress.lines);
        self.replies.add_long(number, &bytes);
        Some(peer)
    }

    /// Has a request answered when its verdict has come.
    fn expect(&self, verdict: PendingVerdict, request: PendingRequest<P>) {
        self.inbox.expect(verdict.0, move |answered| AnsweredRequest {
            request,
            line: line(&answered.verdict),
        });
    }

    /// Answers the requests whose verdicts have come: `send` gets at most [`BATCH`] replies at a
    /// time, and the peers that their numbers stand for.
    pub(super) fn on_answers(&mut self, mut send: impl FnMut(&[P], &Replies)) {
        let now = self.handle.now();
        self.replies.clear();
        let mut answered = mem::take(&mut self.answered);
        self.inbox.take(&mut answered);
        for AnsweredRequest { request, line } in answered.drain(..) {
            if let Some(peer) = self.on_answer(now, request, line) {
                self.peers.push(peer);
            }
            if self.peers.len() == BATCH {
                send(&self.peers, &self.replies);
                self.peers.clear();
                self.replies.clear();
            }
        }
        self.answered = answered;
        if !self.peers.is_empty() {
            send(&self.peers, &self.replies);
            self.peers.clear();
        }
    }

    /// Adds the reply to a request, if nothing else has to be decided first, and returns its peer.
    fn on_answer(
        &mut self,
        now: Now,
        request: PendingRequest<P>,
        line: text::ReplyLine,
    ) -> Option<P> {
        let PendingRequest { peer, id, check } = request;
        let number = self.peers.len();
        let Some(mut progress) = check else {
            self.replies.add(number, |out| server::over_limit(out, id.as_deref(), &line));
            return Some(peer);
        };
        progress.lines.push(line);
        self.decide_check(now, number, (peer, id), progress)
    }
}

/// The verdict on one key as a reply shows it.
#[inline(always)]
fn line(verdict: &Verdict) -> text::ReplyLine {
    let Verdict { rate, amount: limit, period: period_ns, .. } = *verdict;
    text::ReplyLine { over: !verdict.is_allowed(), rate, limit, period_ns }
}

/// The replies to one batch, in buffers that are used again for the next.
pub struct Replies {
    /// Always long enough for one more reply of the usual kind.
    bytes: Vec<u8>,
    /// Where the next reply begins in `bytes`.
    end: usize,
    /// The number of each reply, and where its bytes lie.
    list: Vec<(usize, Range<usize>)>,
}

impl Replies {
    /// Allocates room for the replies to a whole batch. Only `check_limit`, whose reply is much
    /// longer than its request, can make it grow, up to a bound.
    fn new() -> Self {
        let bytes = vec![0; BATCH * text::REPLY_BYTES_MAX];
        Self { bytes, end: 0, list: Vec::with_capacity(BATCH) }
    }

    /// The replies with their numbers, in no particular order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (usize, &[u8])> {
        self.list.iter().map(|(number, place)| (*number, &self.bytes[place.clone()]))
    }

    /// The numbers of the replies, and where they lie among [`Self::bytes`].
    pub(super) fn places(&self) -> &[(usize, Range<usize>)] {
        &self.list
    }

    /// The bytes of all replies.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn clear(&mut self) {
        self.end = 0;
        self.list.clear();
    }

    /// Adds the reply that `write` encodes.
    #[inline(always)]
    fn add<E>(&mut self, number: usize, write: impl FnOnce(&mut [u8]) -> Result<usize, E>) {
        self.add_within(number, usize::MAX, write);
    }

    /// As [`Self::add`], unless the reply is longer than `bytes_max`. Returns whether it is not.
    #[inline(always)]
    fn add_within<E>(
        &mut self,
        number: usize,
        bytes_max: usize,
        write: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> bool {
        if self.bytes.len() - self.end < text::REPLY_BYTES_MAX {
            self.bytes.resize(self.end + text::REPLY_BYTES_MAX, 0);
        }
        // A buffer of REPLY_BYTES_MAX is enough for every request that was parsed; were it not,
        // no reply is the safe answer.
        let Ok(length) = write(&mut self.bytes[self.end..]) else { return true };
        if length > bytes_max {
            return false;
        }
        self.list.push((number, self.end..self.end + length));
        self.end += length;
        true
    }

    /// Adds a reply of any length.
    fn add_long(&mut self, number: usize, bytes: &[u8]) {
        let place = self.end..self.end + bytes.len();
        self.end = place.end;
        if self.bytes.len() < self.end {
            self.bytes.resize(self.end, 0);
        }
        self.bytes[place.clone()].copy_from_slice(bytes);
        self.list.push((number, place));
    }
}

#[cfg(test)]
mod tests;
