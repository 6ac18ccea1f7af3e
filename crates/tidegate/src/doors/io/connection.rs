//! One connection in its loop: read, hand to the handler, write; and all errors of that.
//!
//! An idle connection holds no buffers: what is read and written in one go passes through the
//! buffers of the loop. Only what could not be taken or written yet is kept here, in bounds.

use std::os::fd::{AsFd, BorrowedFd};

use tidegate_core::Nanos;
use tidegate_core::time::SECOND;

use super::byte_queue::{self, ByteQueue};
use super::epoll::Interest;
use super::handler::{ConnectionId, Context, Handler, Progress, SlowReader};
use super::limits::ConnectionAdmission;
use super::listener::Peer;
use super::shared::Shared;
use super::stream::{ClientStream, Read};

/// An unfinished request of up to so many bytes is copied in front of the next read; a longer one
/// grows in a buffer of its own.
pub(super) const COPY_BYTES_MAX: usize = 4 << 10;
/// Replies of one connection in one turn, about; then it is the turn of the others.
const TURN_BYTES_MAX: usize = 512 << 10;
/// The most bytes that one write tries to send: more than a turn makes, so that less and less waits
/// for a client that reads.
const WRITE_BYTES_MAX: usize = 1 << 20;
/// While so many bytes of replies wait, no request is executed whose reply is longer than itself.
const UNWRITTEN_BYTES_MAX: usize = 8 << 20;
/// Then requests wait until fewer bytes of replies do.
const UNWRITTEN_BYTES_LOW: usize = 4 << 20;
/// A request of which nothing has come for so long does not keep its connection from being idle.
const REQUEST_STALL_MAX: Nanos = 5 * SECOND;
/// How long a TLS handshake may take, from its first byte on.
const HANDSHAKE_MAX: Nanos = 5 * SECOND;
/// A silent client for which too much is kept is closed after this time.
const GIVE_WAY_AFTER: Nanos = SECOND;

/// What a connection wants next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// To be woken when its socket is ready or its answer has come.
    Wait,
    /// To go on, after the others had their turn.
    Again,
    /// To be opened: its handshake is over.
    Open,
    /// To be closed, after the client had time to read what it was sent.
    Linger,
    /// To be closed.
    Close,
    /// To be closed: its client leaves too many replies unread.
    CloseSlow,
}

/// How far a write got.
enum Sent {
    All,
    Part,
    /// More waits than the handler lets wait.
    TooMuch,
    Dead,
}

/// One connection of a loop of `H`.
pub(super) struct Connection<H: Handler> {
    stream: ClientStream,
    peer: Peer,
    pub(super) id: ConnectionId,
    /// What the socket is watched for; `None` while epoll does not know it.
    pub(super) watched: Option<Interest>,
    /// Whether the loop has it in its list `again`.
    pub(super) again: bool,
    /// Whether the loop has it in its list `pushed`.
    pub(super) has_pushed: bool,
    /// Absent before it is opened and while it lingers.
    session: Option<H::Session>,
    is_lingering: bool,
    /// When the client began its handshake.
    handshake_at: Option<Nanos>,
    /// Read and not taken.
    input: ByteQueue,
    /// To be written.
    unwritten: ByteQueue,
    /// To be written when the replies are.
    pub(super) pushed: Vec<u8>,
    /// The handler waits for an answer.
    pub(super) is_pending: bool,
    /// That answer is of no use once the client has closed its sending side.
    is_waiting: bool,
    /// So many replies wait to be written that requests wait, too.
    is_full: bool,
    /// The handler wants no more input.
    pub(super) is_closing: bool,
    /// The client sends no more.
    has_ended: bool,
    /// Bytes that were thrown away, while it lingers.
    discarded: usize,
    /// When something was last read or written.
    active_at: Nanos,
    pub(super) admission: ConnectionAdmission,
}

impl<H: Handler> Connection<H> {
    pub(super) fn new(
        stream: ClientStream,
        peer: Peer,
        id: ConnectionId,
        admission: ConnectionAdmission,
        now: Nanos,
    ) -> Self {
        Self {
            stream,
            peer,
            id,
            watched: None,
            again: false,
            has_pushed: false,
            session: None,
            is_lingering: false,
            handshake_at: None,
            input: ByteQueue::default(),
            unwritten: ByteQueue::default(),
            pushed: Vec::new(),
            is_pending: false,
            is_waiting: false,
            is_full: false,
            is_closing: false,
            has_ended: false,
            discarded: 0,
            active_at: now,
            admission,
        }
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Whether its TLS handshake is not over: the handler does not know of it yet.
    pub(super) fn is_handshaking(&self) -> bool {
        self.session.is_none() && !self.is_lingering
    }

    /// What its socket should be watched for. Nothing is read while something is to be written,
    /// unless the policy says so.
    pub(super) fn interest(&self) -> Interest {
        if self.is_lingering {
            return Interest::IN;
        }
        let drained = self.is_drained();
        let mut interest = Interest::empty();
        interest.set(Interest::OUT, !drained);
        let has_stopped = self.is_pending && !self.is_waiting || self.is_closing;
        let may_read = drained || H::POLICY.reads_on;
        interest.set(Interest::IN, !has_stopped && !self.has_ended && may_read);
        interest
    }

    #[inline]
    fn is_drained(&self) -> bool {
        self.unwritten.is_empty() && self.stream.is_flushed()
    }

    /// The socket is ready for what it is watched for.
    #[inline]
    pub(super) fn ready(&mut self, shared: &mut Shared<H>) -> Next {
        let watched = self.watched.unwrap_or(Interest::empty());
        if watched.is_empty() {
            // It waits for nothing of its socket: the socket is broken.
            return Next::Close;
        }
        if !watched.contains(Interest::OUT) {
            return self.readable(shared);
        }
        match self.writable(shared) {
            Next::Wait if watched.contains(Interest::IN) => self.readable(shared),
            next => next,
        }
    }

    /// The socket may have something to read.
    pub(super) fn readable(&mut self, shared: &mut Shared<H>) -> Next {
        if self.is_lingering {
            return self.discard(shared);
        }
        let must_write = !H::POLICY.reads_on && !self.is_drained();
        let is_held = self.is_pending && !self.is_waiting;
        if is_held || self.is_closing || self.has_ended || self.again || must_write {
            return Next::Wait;
        }
        let is_kept = self.is_waiting || self.is_full;
        let in_place = self.input.len() > COPY_BYTES_MAX || is_kept;
        let kept = self.input.len();
        let Shared { scratch, ciphertext, .. } = shared;
        let read = if in_place {
            let input = self.input.back();
            let end = input.len();
            input.resize(end + scratch.len() - COPY_BYTES_MAX, 0);
            let read = self.stream.read(&mut input[end..], ciphertext);
            input.truncate(if let Read::Bytes(bytes) = read { end + bytes } else { end });
            read
        } else {
            self.stream.read(&mut scratch[kept..], ciphertext)
        };
        let bytes = match read {
            Read::Bytes(bytes) => bytes,
            Read::Nothing if self.session.is_none() => return self.shake_hands(shared.now.mono),
            Read::Nothing => return Next::Wait,
            Read::End => {
                self.has_ended = true;
                return Next::Wait;
            }
            Read::Dead => return Next::Close,
            Read::NotTls => {
                shared.bad_input("tls");
                return Next::Close;
            }
        };
        let Some(session) = &mut self.session else {
            // The first request came with the end of the handshake: it is taken after opening.
            if !in_place {
                self.input.back().extend_from_slice(&shared.scratch[kept..kept + bytes]);
            }
            return self.shake_hands(shared.now.mono);
        };
        shared.handler.on_read(session, bytes);
        if is_kept {
            // It is executed later. It is read all the same: the client may read no reply before it
            // has sent everything, and its end must be seen.
            self.active_at = shared.now.mono;
            return if self.trim_buffers(shared) { Next::Wait } else { Next::CloseSlow };
        }
        if in_place {
            return self.go_on(shared);
        }
        shared.scratch[..kept].copy_from_slice(self.input.waiting());
        self.input.clear();
        // Taken out so that both it and the rest can be used.
        let scratch = std::mem::take(&mut shared.scratch);
        let (taken, next) = self.work(shared, &scratch[..kept + bytes]);
        if !self.is_closing {
            self.input.back().extend_from_slice(&scratch[taken..kept + bytes]);
        }
        shared.scratch = scratch;
        if self.trim_buffers(shared) { next } else { Next::CloseSlow }
    }

    fn shake_hands(&mut self, now: Nanos) -> Next {
        self.active_at = now;
        self.handshake_at.get_or_insert(now);
        if self.stream.is_handshaking() { Next::Wait } else { Next::Open }
    }

    /// Tells the handler that the client is there.
    pub(super) fn open(&mut self, shared: &mut Shared<H>) -> Next {
        let context = Context { now: shared.now, id: self.id };
        let Shared { handler, output, .. } = shared;
        let mut output = output.lend();
        let (mut session, progress) = match handler.on_open(self.peer, &mut output, &context) {
            Ok(opened) => opened,
            Err(reason) => {
                drop(output);
                shared.bad_input(reason);
                return Next::Close;
            }
        };
        // Bytes may have come with the handshake.
        if !self.input.is_empty() {
            handler.on_read(&mut session, self.input.len());
        }
        self.session = Some(session);
        self.set_progress(progress);
        let sent = self.send(&mut output, handler);
        drop(output);
        match self.after(sent, progress) {
            Some(Next::Wait) if progress == Progress::More && !self.input.is_empty() => {
                self.go_on(shared)
            }
            Some(next) => next,
            None => self.go_on(shared),
        }
    }

    /// Goes on with what was read before.
    pub(super) fn go_on(&mut self, shared: &mut Shared<H>) -> Next {
        let mut input = std::mem::take(&mut self.input);
        let (taken, next) = self.work(shared, input.waiting());
        if self.is_closing {
            input.clear();
        } else {
            input.take(taken);
        }
        self.input = input;
        if self.trim_buffers(shared) { next } else { Next::CloseSlow }
    }

    /// Hands `input` to the handler and writes its output, as far as both go. Returns how much was
    /// taken.
    fn work(&mut self, shared: &mut Shared<H>, input: &[u8]) -> (usize, Next) {
        self.active_at = shared.now.mono;
        let context = Context { now: shared.now, id: self.id };
        let Shared { handler, output, .. } = shared;
        let mut output = output.lend();
        let (mut taken, mut written) = (0, 0);
        let next = loop {
            let Some(session) = &mut self.session else { break Next::Wait };
            let (bytes, progress) =
                handler.on_bytes(session, &input[taken..], &mut output, &context);
            taken += bytes;
            written += output.len();
            self.set_progress(progress);
            let sent = self.send(&mut output, handler);
            // Otherwise executing more makes what is kept for the client no longer.
            self.is_full = written > taken && self.unwritten.len() > UNWRITTEN_BYTES_MAX;
            match self.after(sent, progress) {
                Some(Next::Wait) if progress == Progress::More && self.is_drained() => {
                    break self.send_pushed(handler);
                }
                Some(Next::Again) | None if self.is_full => break Next::Wait,
                Some(next) => break next,
                None if written > TURN_BYTES_MAX => break Next::Again,
                None => {}
            }
        };
        (taken, next)
    }

    fn set_progress(&mut self, progress: Progress) {
        self.is_waiting = progress == Progress::Waiting;
        self.is_pending = self.is_waiting || progress == Progress::Pending;
        self.is_closing = progress == Progress::Close;
    }

    /// What comes after output was sent; `None` if the handler goes on.
    fn after(&self, sent: Sent, progress: Progress) -> Option<Next> {
        match (sent, progress) {
            (Sent::Dead, _) => Some(Next::Close),
            (Sent::TooMuch, _) => Some(Next::CloseSlow),
            (Sent::Part, _) if !H::POLICY.reads_on => Some(Next::Wait),
            (_, Progress::Flush) => None,
            (_, Progress::Yield) => Some(Next::Again),
            (Sent::All, Progress::Close) => Some(Next::Linger),
            (Sent::Part, _) | (Sent::All, _) => Some(Next::Wait),
        }
    }

    /// Writes `output`, unless earlier output waits in front of it, and keeps what the socket does
    /// not take.
    fn send(&mut self, output: &mut Vec<u8>, handler: &mut H) -> Sent {
        if H::POLICY.reads_on && !self.is_drained() {
            return self.keep(output, handler);
        }
        if output.is_empty() {
            return Sent::All;
        }
        let Some(bytes) = self.stream.write(output, self.is_closing) else { return Sent::Dead };
        self.unwritten.back().extend_from_slice(&output[bytes..]);
        output.clear();
        let all = self.is_drained();
        if let Some(session) = &mut self.session {
            handler.on_written(session, bytes, all);
        }
        match all {
            true => Sent::All,
            false if H::POLICY.reads_on => self.keep(output, handler),
            false => Sent::Part,
        }
    }

    /// Keeps `output` behind what waits already, unless that is more than the handler allows.
    fn keep(&mut self, output: &mut Vec<u8>, handler: &mut H) -> Sent {
        self.unwritten.back().append(output);
        if self.tell_kept(handler) { Sent::Part } else { Sent::TooMuch }
    }

    /// Tells the handler how much waits to be written. `false` if that is too much.
    fn tell_kept(&mut self, handler: &mut H) -> bool {
        let Some(session) = &mut self.session else { return true };
        handler.on_kept(session, self.unwritten.len(), self.unwritten.room())
    }

    /// The socket may take more of what is to be written.
    pub(super) fn writable(&mut self, shared: &mut Shared<H>) -> Next {
        if self.is_drained() {
            return Next::Wait;
        }
        let end = self.unwritten.len().min(WRITE_BYTES_MAX);
        let last = self.is_closing && end == self.unwritten.len();
        let Some(bytes) = self.stream.write(&self.unwritten.waiting()[..end], last) else {
            return Next::Close;
        };
        self.unwritten.take(bytes);
        self.active_at = shared.now.mono;
        let drained = self.is_drained();
        if let Some(session) = &mut self.session {
            shared.handler.on_written(session, bytes, drained);
        }
        if H::POLICY.reads_on {
            // Less waits than before, so that it cannot be too much.
            self.tell_kept(&mut shared.handler);
        }
        let was_full = self.is_full;
        self.is_full = was_full && self.unwritten.len() >= UNWRITTEN_BYTES_LOW;
        if drained && self.is_closing {
            Next::Linger
        } else if (drained || was_full && !self.is_full) && self.may_go_on() {
            // What was read meanwhile may hold whole requests, and something may be pushed.
            self.go_on(shared)
        } else {
            self.trim_buffers(shared);
            Next::Wait
        }
    }

    /// Whether the handler may be asked for more.
    fn may_go_on(&self) -> bool {
        let has_stopped = self.is_pending || self.is_closing || self.is_full || self.again;
        self.session.is_some() && !has_stopped
    }

    /// All replies are written: now what was pushed may go.
    fn send_pushed(&mut self, handler: &mut H) -> Next {
        if self.pushed.is_empty() {
            return Next::Wait;
        }
        let mut pushed = std::mem::take(&mut self.pushed);
        let sent = self.send(&mut pushed, handler);
        self.pushed = pushed;
        match sent {
            Sent::Dead => Next::Close,
            Sent::TooMuch => Next::CloseSlow,
            Sent::All | Sent::Part => Next::Wait,
        }
    }

    /// Something was pushed, and is written now if nothing is in its way.
    pub(super) fn flush_pushed(&mut self, shared: &mut Shared<H>) -> Next {
        let waits = self.is_lingering || self.is_pending || self.again || !self.is_drained();
        if waits {
            return Next::Wait;
        }
        self.active_at = shared.now.mono;
        let next = self.send_pushed(&mut shared.handler);
        self.trim_buffers(shared);
        next
    }

    /// The answer that it is pending for has come. One that is pending for nothing goes on.
    pub(super) fn answered(&mut self, answer: H::Answer, shared: &mut Shared<H>) -> Next {
        let (Some(session), true) = (&mut self.session, self.is_pending) else { return Next::Wait };
        let output = self.unwritten.back();
        let progress = shared.handler.on_answer(session, answer, output, shared.now);
        self.set_progress(progress);
        self.active_at = shared.now.mono;
        if self.is_drained() {
            return match progress {
                Progress::Close => Next::Linger,
                Progress::Pending | Progress::Waiting => Next::Wait,
                Progress::More | Progress::Flush | Progress::Yield => self.go_on(shared),
            };
        }
        match self.writable(shared) {
            // The next requests wait for no reply, unless the policy says so.
            Next::Wait if H::POLICY.reads_on && !self.is_drained() && self.may_go_on() => {
                self.go_on(shared)
            }
            next => next,
        }
    }

    /// Whether the client sends no more and has all its replies. A wait is of no use to it then.
    pub(super) fn has_ended(&self) -> bool {
        let has_ended = self.has_ended || self.stream.has_ended();
        let waits_in_vain = self.is_waiting && self.is_drained();
        has_ended && !self.is_lingering && (waits_in_vain || self.is_done())
    }

    /// Whether the last thing that the client sent is no whole request.
    pub(super) fn is_cut_short(&self) -> bool {
        !self.is_waiting && !self.input.is_empty()
    }

    /// Leaves the handler and tells the client that nothing more will come; `false` if it cannot
    /// be told. What it still sends must be read: a reset would take unread replies along.
    pub(super) fn linger(&mut self, shared: &mut Shared<H>) -> bool {
        self.leave(shared);
        self.is_lingering = true;
        (self.input, self.pushed) = (ByteQueue::default(), Vec::new());
        self.stream.finish()
    }

    /// Throws away what a lingering client has sent.
    pub(super) fn discard(&mut self, shared: &mut Shared<H>) -> Next {
        let linger = &H::POLICY.linger;
        let stays = self.stream.discard(&mut self.discarded, linger.bytes_max, &mut shared.scratch);
        if self.discarded > linger.bytes_max
            && let Some(reason) = linger.too_much
        {
            shared.bad_input(reason);
        }
        if stays { Next::Wait } else { Next::Close }
    }

    /// Leaves the handler, if it has not yet, and ends TLS: the connection is closed now.
    pub(super) fn close(&mut self, shared: &mut Shared<H>) {
        if !self.is_lingering {
            self.leave(shared);
            self.stream.end_tls();
        }
    }

    /// Leaves the handler, if it has not yet.
    fn leave(&mut self, shared: &mut Shared<H>) {
        if let Some(session) = self.session.take() {
            shared.handler.on_close(session);
        }
    }

    /// Whether the client sent something that was not read yet, or its end.
    pub(super) fn has_input(&self) -> bool {
        self.stream.has_input()
    }

    /// Whether nothing keeps it from being closed.
    pub(super) fn is_done(&self) -> bool {
        self.is_drained() && !self.is_pending && !self.again && self.pushed.is_empty()
    }

    /// Tells its place whether it is idle, as it is [`REQUEST_STALL_MAX`] after half a request.
    #[inline]
    pub(super) fn update_place(&self, handler: &H, now: Option<Nanos>) {
        let ConnectionAdmission::Place(place) = &self.admission else { return };
        let silent = now.unwrap_or(self.active_at).saturating_sub(self.active_at);
        let begun = !self.input.is_empty() && silent < REQUEST_STALL_MAX;
        let busy = match &self.session {
            None => self.is_lingering || self.handshake_at.is_some(),
            Some(session) => handler.is_listening(session),
        };
        if begun || busy || !self.is_done() {
            place.set_busy();
        } else {
            place.set_idle(self.active_at);
        }
    }

    /// Why it is closed now, if it has been idle or slow for too long. It does not linger.
    pub(super) fn overdue(&self, handler: &H, now: Nanos, idle_max: Nanos) -> Option<&'static str> {
        let stalled = now.saturating_sub(self.active_at);
        if self.is_handshaking() && self.handshake_at.is_some_and(|at| now > at + HANDSHAKE_MAX) {
            return Some("handshake_slow");
        }
        let gives_way = |session| stalled > GIVE_WAY_AFTER && handler.keeps_too_much(session);
        if self.session.as_ref().is_some_and(gives_way) {
            return Some("slow_reader");
        }
        if !self.is_drained() {
            let reader = SlowReader { now, stalled, idle_max };
            let slow = match &self.session {
                Some(session) => handler.is_too_slow(session, &reader),
                None => false,
            };
            return slow.then_some("slow_reader");
        }
        let idle = self.admission.idle_since().is_some() && stalled > idle_max;
        idle.then_some("idle")
    }

    pub(super) fn is_lingering(&self) -> bool {
        self.is_lingering
    }

    /// Gives large buffers back that are empty, and tells the handler what the others take. `false`
    /// if that is too much.
    fn trim_buffers(&mut self, shared: &mut Shared<H>) -> bool {
        self.input.trim();
        self.unwritten.trim();
        byte_queue::trim(&mut self.pushed);
        let Some(session) = &mut self.session else { return true };
        let Self { input, unwritten, pushed, .. } = self;
        let allocated = input.capacity() + unwritten.capacity() + pushed.capacity();
        let used = input.len() + unwritten.len() + pushed.len();
        shared.handler.on_buffers(session, allocated, used);
        let room = input.room() + unwritten.room() + byte_queue::room(pushed);
        shared.handler.on_kept(session, used, room)
    }
}
