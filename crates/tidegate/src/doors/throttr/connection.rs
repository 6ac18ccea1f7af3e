//! One connection on its socket: read, execute, write, and everything that can go wrong there.
//!
//! An idle connection holds no buffers: what is read and written in one go passes through the
//! buffers of the loop. Only what could not be executed or written yet is kept here, in bounds.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use tidegate_core::time::SECOND;
use tidegate_core::{Nanos, Now};

use super::channels::{Event, Member};
use super::clerk::Question;
use super::corridor::{Corridor, OUTPUT_BYTES_MAX, Pause};
use super::counts::Figure;
use super::guest::Guest;
use super::output::OutputBuffer;
use super::permits::Permit;
use super::poll::Interest;
use crate::clock::Clock;
use crate::doors::io::limits::Place;
use crate::metrics::Door;

/// Bytes that one read takes, about.
const READ_BYTES: usize = 32 << 10;
/// An unfinished request of up to so many bytes is copied in front of the next read; a longer one
/// grows in a buffer of its own.
const COPY_BYTES_MAX: usize = 4 << 10;
/// Replies of one connection in one turn, about; the others come first then.
const TURN_BYTES_MAX: usize = 512 << 10;
/// The most bytes that one write tries to send.
const WRITE_BYTES_MAX: usize = 256 << 10;
/// The most bytes of events that wait for a connection, unless a single one is longer.
const EVENT_BYTES_MAX: usize = 256 << 10;
/// Bytes that are read and thrown away from a client that was told to go.
const LINGER_BYTES_MAX: usize = 1 << 20;
/// How long a client may leave an answer unread that is kept under a permit.
const ANSWER_STALL_MAX: Nanos = 30 * SECOND;
/// The same while other connections wait for a permit.
const ANSWER_STALL_WANTED_MAX: Nanos = SECOND;
/// How slowly a client may read such an answer.
const ANSWER_BYTES_PER_SECOND_MIN: u64 = 64 << 10;
/// A request of which nothing has come for so long does not keep its connection from being idle.
const REQUEST_STALL_MAX: Nanos = 5 * SECOND;
/// Buffers larger than this are given back when they are empty.
const KEEP_BYTES_MAX: usize = 4 << 10;

/// What the connections of one loop share.
pub(super) struct Bench {
    pub(super) corridor: Corridor,
    pub(super) clock: Clock,
    scratch: Box<[u8]>,
    output: OutputBuffer,
}

impl Bench {
    pub(super) fn new(corridor: Corridor, clock: Clock) -> Self {
        Self {
            corridor,
            clock,
            scratch: vec![0; COPY_BYTES_MAX + READ_BYTES].into(),
            output: OutputBuffer::new(2 * OUTPUT_BYTES_MAX),
        }
    }
}

/// What a connection wants next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// To be woken when its socket is ready.
    Wait,
    /// To go on, after the others had their turn.
    Again,
    /// An answer from the clerk.
    Ask(Question),
    /// To be closed, after the client had time to read what it was sent.
    Linger,
    /// To be closed.
    Close,
}

/// How far a write got.
enum Sent {
    All,
    Part,
    Dead,
}

/// One connection.
pub(super) struct Connection {
    socket: OwnedFd,
    pub(super) generation: u32,
    /// What the socket is watched for.
    pub(super) watched: Interest,
    /// Whether it waits in the loop's list of those that go on.
    pub(super) again: bool,
    /// Whether it waits in the loop's list of those that have events to send.
    pub(super) fresh: bool,
    /// Gone from the hall while it lingers.
    guest: Option<Guest>,
    /// Read and not executed.
    input: Vec<u8>,
    /// To be written, from `sent` on.
    pending: Vec<u8>,
    sent: usize,
    /// To be written when the replies are.
    events: Vec<u8>,
    /// It waits for an answer from the clerk.
    asking: bool,
    /// An answer that grows with the server's state is in `pending`.
    permit: Option<Permit>,
    /// When that answer came.
    answered_at: Nanos,
    /// What the client sent cannot be understood.
    broken: bool,
    /// Bytes that were thrown away, while it lingers.
    discarded: usize,
    /// When something was last read or written.
    pub(super) stirred: Nanos,
    pub(super) place: Place,
}

impl Connection {
    pub(super) fn new(
        socket: OwnedFd,
        generation: u32,
        guest: Guest,
        place: Place,
        now: Now,
    ) -> Self {
        Self {
            socket,
            generation,
            watched: Interest::IN,
            again: false,
            fresh: false,
            guest: Some(guest),
            input: Vec::new(),
            pending: Vec::new(),
            sent: 0,
            events: Vec::new(),
            asking: false,
            permit: None,
            answered_at: 0,
            broken: false,
            discarded: 0,
            stirred: now.mono,
            place,
        }
    }

    pub(super) fn socket(&self) -> impl AsFd + '_ {
        self.socket.as_fd()
    }

    /// What its socket should be watched for: nothing is read while something is to be written.
    pub(super) fn interest(&self) -> Interest {
        if self.is_lingering() {
            Interest::IN
        } else if !self.is_drained() {
            Interest::OUT
        } else if self.asking {
            Interest::empty()
        } else {
            Interest::IN
        }
    }

    /// Whether it was told to go and only reads to the end.
    pub(super) fn is_lingering(&self) -> bool {
        self.guest.is_none()
    }

    /// Whether it has left an answer unread for longer than it may keep a permit.
    pub(super) fn loses_permit(&self, now: Nanos) -> bool {
        let Some(permit) = &self.permit else { return false };
        let stall_max = if permit.is_wanted() { ANSWER_STALL_WANTED_MAX } else { ANSWER_STALL_MAX };
        let reading_max = permit.bytes() as u64 * SECOND / ANSWER_BYTES_PER_SECOND_MIN;
        now.saturating_sub(self.stirred) > stall_max
            || now.saturating_sub(self.answered_at) > stall_max + reading_max
    }

    fn is_drained(&self) -> bool {
        self.sent == self.pending.len()
    }

    /// The socket may have something to read.
    pub(super) fn readable(&mut self, bench: &mut Bench) -> Next {
        if self.is_lingering() {
            return self.discard(bench);
        }
        if self.asking || self.again || !self.is_drained() {
            return Next::Wait;
        }
        let in_place = self.input.len() > COPY_BYTES_MAX;
        let kept = self.input.len();
        let read = if in_place {
            self.input.resize(kept + READ_BYTES, 0);
            let read = rustix::io::read(&self.socket, &mut self.input[kept..]);
            self.input.truncate(kept + read.unwrap_or(0));
            read
        } else {
            rustix::io::read(&self.socket, &mut bench.scratch[kept..])
        };
        let bytes = match read {
            Ok(0) => return self.end(bench),
            Ok(bytes) => bytes,
            Err(Errno::AGAIN | Errno::INTR) => return Next::Wait,
            Err(_) => return Next::Close,
        };
        if let Some(guest) = &self.guest {
            guest.card.has_read(bytes);
        }
        bench.corridor.lane.add(Figure::Read, bytes as u64);
        if in_place {
            return self.go_on(bench);
        }
        bench.scratch[..kept].copy_from_slice(&self.input);
        self.input.clear();
        // Taken out so that both it and the rest of the bench can be used.
        let scratch = std::mem::take(&mut bench.scratch);
        let (taken, next) = self.work(bench, &scratch[..kept + bytes]);
        if !self.broken {
            self.input.extend_from_slice(&scratch[taken..kept + bytes]);
        }
        bench.scratch = scratch;
        self.settle();
        next
    }

    /// Goes on with what was read before.
    pub(super) fn go_on(&mut self, bench: &mut Bench) -> Next {
        let mut input = std::mem::take(&mut self.input);
        let (taken, next) = self.work(bench, &input);
        if self.broken {
            input.clear();
        } else {
            input.drain(..taken);
        }
        if input.len() <= COPY_BYTES_MAX {
            input.shrink_to(COPY_BYTES_MAX);
        }
        self.input = input;
        self.settle();
        next
    }

    /// Executes `input` and writes the replies, as far as both go. Returns how much was taken.
    fn work(&mut self, bench: &mut Bench, input: &[u8]) -> (usize, Next) {
        let now = bench.clock.now();
        self.stirred = now.mono;
        let Bench { corridor, output, .. } = bench;
        let mut output = output.lend();
        let (mut taken, mut written) = (0, 0);
        let next = loop {
            let Some(guest) = &mut self.guest else { break Next::Wait };
            let (bytes, pause) = corridor.execute(guest, &input[taken..], now, &mut output);
            taken += bytes;
            written += output.len();
            self.asking = matches!(pause, Pause::Ask(_));
            self.broken = pause == Pause::Broken;
            let sent = self.send(&mut output, corridor);
            match (sent, pause) {
                (Sent::Dead, _) => break Next::Close,
                (_, Pause::Ask(question)) => break Next::Ask(question),
                (Sent::Part, _) => break Next::Wait,
                (Sent::All, Pause::Broken) => break Next::Linger,
                (Sent::All, Pause::Starved) => break self.rest(corridor),
                (Sent::All, Pause::Full | Pause::Flush) if written > TURN_BYTES_MAX => {
                    break Next::Again;
                }
                (Sent::All, Pause::Full | Pause::Flush) => {}
            }
        };
        (taken, next)
    }

    /// Writes `output`, which nothing waits in front of, and keeps what the socket does not take.
    fn send(&mut self, output: &mut Vec<u8>, corridor: &Corridor) -> Sent {
        if output.is_empty() {
            return Sent::All;
        }
        let Some(bytes) = self.write(output, corridor) else { return Sent::Dead };
        let all = bytes == output.len();
        if !all {
            self.pending.extend_from_slice(&output[bytes..]);
        }
        output.clear();
        if all { Sent::All } else { Sent::Part }
    }

    /// Writes once; `None` if the connection is dead.
    fn write(&self, bytes: &[u8], corridor: &Corridor) -> Option<usize> {
        let sent = loop {
            match rustix::net::send(&self.socket, bytes, SendFlags::NOSIGNAL) {
                Ok(sent) => break sent,
                Err(Errno::AGAIN) => break 0,
                Err(Errno::INTR) => {}
                Err(_) => return None,
            }
        };
        if let Some(guest) = &self.guest {
            guest.card.has_written(sent);
        }
        corridor.lane.add(Figure::Written, sent as u64);
        Some(sent)
    }

    /// The socket may take more of what is to be written.
    pub(super) fn writable(&mut self, bench: &mut Bench) -> Next {
        if self.is_drained() {
            return Next::Wait;
        }
        let end = self.pending.len().min(self.sent + WRITE_BYTES_MAX);
        let Some(bytes) = self.write(&self.pending[self.sent..end], &bench.corridor) else {
            return Next::Close;
        };
        self.sent += bytes;
        self.stirred = bench.clock.now().mono;
        if !self.is_drained() {
            self.settle();
            return Next::Wait;
        }
        self.pending.clear();
        self.sent = 0;
        self.permit = None;
        if self.broken {
            Next::Linger
        } else if self.asking {
            Next::Wait
        } else {
            // What was read meanwhile may hold whole requests, and there may be events.
            self.go_on(bench)
        }
    }

    /// All replies are written: now it is the events' turn.
    fn rest(&mut self, corridor: &Corridor) -> Next {
        if self.events.is_empty() {
            return Next::Wait;
        }
        let mut events = std::mem::take(&mut self.events);
        let sent = self.send(&mut events, corridor);
        self.events = events;
        if matches!(sent, Sent::Dead) { Next::Close } else { Next::Wait }
    }

    /// There are events to be written, if nothing is in their way.
    pub(super) fn flush(&mut self, bench: &mut Bench) -> Next {
        let waits = self.is_lingering() || self.asking || self.again || !self.is_drained();
        if waits {
            return Next::Wait;
        }
        self.stirred = bench.clock.now().mono;
        let next = self.rest(&bench.corridor);
        self.settle();
        next
    }

    /// Takes an event of the bytes `encoded` to be written later; `false` if too many wait.
    pub(super) fn hand(&mut self, event: &Event, member: &Member, encoded: &[u8]) -> bool {
        if self.broken || self.is_lingering() {
            return true;
        }
        let waiting = self.events.len();
        if waiting > 0 && waiting + encoded.len() > EVENT_BYTES_MAX {
            return false;
        }
        self.events.extend_from_slice(encoded);
        event.got_by(member);
        true
    }

    /// The answer that it asked for.
    pub(super) fn answered(&mut self, bytes: Vec<u8>, permit: Permit, now: Nanos) {
        self.asking = false;
        self.permit = Some(permit);
        (self.answered_at, self.stirred) = (now, now);
        if self.is_drained() {
            (self.pending, self.sent) = (bytes, 0);
        } else {
            self.pending.extend_from_slice(&bytes);
        }
    }

    /// The client sends no more. Nothing is read before all replies are written, so it has them.
    fn end(&self, bench: &Bench) -> Next {
        if !self.input.is_empty() {
            bench.corridor.metrics.bad_input(Door::Throttr, "cut_short");
        }
        Next::Close
    }

    /// Leaves the hall and tells the client that nothing more will come. What it still sends must
    /// be read, or closing would take back what it has not read yet.
    pub(super) fn linger(&mut self, bench: &mut Bench) -> Next {
        self.leave(bench);
        (self.input, self.events) = (Vec::new(), Vec::new());
        if rustix::net::shutdown(&self.socket, Shutdown::Write).is_err() {
            return Next::Close;
        }
        self.stirred = bench.clock.now().mono;
        self.discard(bench)
    }

    fn discard(&mut self, bench: &mut Bench) -> Next {
        match rustix::io::read(&self.socket, &mut bench.scratch[..]) {
            Ok(0) => Next::Close,
            Ok(bytes) => {
                self.discarded += bytes;
                if self.discarded > LINGER_BYTES_MAX { Next::Close } else { Next::Wait }
            }
            Err(Errno::AGAIN | Errno::INTR) => Next::Wait,
            Err(_) => Next::Close,
        }
    }

    /// Leaves the hall, if it has not yet.
    pub(super) fn leave(&mut self, bench: &mut Bench) {
        if let Some(guest) = self.guest.take() {
            guest.leave(&bench.corridor.hall, &mut bench.corridor.floor);
        }
    }

    /// Whether the client sent something that was not read yet, or its end.
    pub(super) fn has_input(&self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        rustix::net::recv(&self.socket, &mut [0; 1], flags).is_ok()
    }

    /// Whether nothing keeps it from being closed.
    pub(super) fn is_done(&self) -> bool {
        self.is_drained() && !self.asking && !self.again && self.events.is_empty()
    }

    /// Tells its place whether it is idle. A request that has stood still for long is none.
    #[inline]
    pub(super) fn tell_place(&self, now: Nanos) {
        let begun = !self.input.is_empty() && now.saturating_sub(self.stirred) < REQUEST_STALL_MAX;
        let listens = self.guest.as_ref().is_none_or(Guest::has_chosen);
        if begun || listens || !self.is_done() {
            self.place.set_busy();
        } else {
            self.place.set_idle(self.stirred);
        }
    }

    /// Whether the client has left replies unread for so long.
    pub(super) fn is_stuck(&self, now: Nanos, most: Nanos) -> bool {
        !self.is_drained() && now.saturating_sub(self.stirred) > most
    }

    /// Gives large buffers back that are empty, and tells what the others take.
    fn settle(&mut self) {
        for buffer in [&mut self.input, &mut self.pending, &mut self.events] {
            if buffer.is_empty() && buffer.capacity() > KEEP_BYTES_MAX {
                *buffer = Vec::new();
            }
        }
        let Some(guest) = &self.guest else { return };
        let buffers = [&self.input, &self.pending, &self.events];
        let allocated = buffers.iter().map(|buffer| buffer.capacity()).sum();
        let consumed = buffers.iter().map(|buffer| buffer.len()).sum::<usize>() - self.sent;
        guest.card.holds(allocated, consumed);
    }
}
