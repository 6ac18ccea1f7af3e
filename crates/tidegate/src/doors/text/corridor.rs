//! From datagrams to replies, without a socket: parse, decide, encode.
//!
//! The door's loops, the golden vectors and the allocation test all go through
//! [`answer_batch`]. It neither knows who asked nor how a reply travels.

use std::ops::Range;

use tidegate_core::{Now, Op};
use tidegate_wire::text::{self, Check, Command, Ignored, Request, reply};

use super::mmsg::BATCH;
use crate::limiter::{Desk, Line, Unfit};
use crate::metrics::Door;

/// A use as this door makes it.
pub(super) const ONE_USE: Op = Op::Take(1);

/// The replies to one batch, in buffers that are used again for the next.
pub struct Replies {
    /// Always long enough for one more reply of the usual kind.
    bytes: Vec<u8>,
    /// Where the next reply begins in `bytes`.
    end: usize,
    list: Vec<Reply>,
    lines: Vec<Result<Line, Unfit>>,
}

#[derive(Clone, Copy)]
struct Reply {
    packet: usize,
    start: usize,
    end: usize,
}

impl Replies {
    /// Allocates room for the replies to a whole batch. Only `check_limit`, whose reply is much
    /// longer than its request, can make it grow, up to a bound.
    #[must_use]
    pub fn new() -> Self {
        Self {
            bytes: vec![0; BATCH * text::REPLY_BYTES_MAX],
            end: 0,
            list: Vec::with_capacity(BATCH),
            lines: Vec::with_capacity(BATCH),
        }
    }

    /// The replies: for which packet of the batch, and the bytes. In no particular order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (usize, &[u8])> {
        self.list.iter().map(|reply| (reply.packet, &self.bytes[reply.start..reply.end]))
    }

    /// The replies: for which packet of the batch, and where among [`Self::bytes`].
    pub(super) fn places(&self) -> impl Iterator<Item = (usize, Range<usize>)> {
        self.list.iter().map(|reply| (reply.packet, reply.start..reply.end))
    }

    /// The bytes of all replies.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn clear(&mut self) {
        self.end = 0;
        self.list.clear();
    }

    /// Adds the reply to `packet` that `write` encodes.
    pub(super) fn add<E>(
        &mut self,
        packet: usize,
        write: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) {
        if self.bytes.len() - self.end < text::REPLY_BYTES_MAX {
            self.bytes.resize(self.end + text::REPLY_BYTES_MAX, 0);
        }
        let start = self.end;
        // A buffer of REPLY_BYTES_MAX is enough for every request that was parsed; were it not,
        // silence is the one answer that harms nobody.
        if let Ok(length) = write(&mut self.bytes[start..]) {
            self.end = start + length;
            self.list.push(Reply { packet, start, end: self.end });
        }
    }

    /// Adds a reply of any length.
    pub(super) fn add_long(&mut self, packet: usize, bytes: &[u8]) {
        let start = self.end;
        self.end += bytes.len();
        if self.bytes.len() < self.end {
            self.bytes.resize(self.end, 0);
        }
        self.bytes[start..self.end].copy_from_slice(bytes);
        self.list.push(Reply { packet, start, end: self.end });
    }
}

impl Default for Replies {
    fn default() -> Self {
        Self::new()
    }
}

/// Uses that were asked for one after the other and are decided together, so that the table can
/// fetch all their slots at once.
struct Run<'p> {
    keys: [&'p [u8]; BATCH],
    ids: [Option<&'p [u8]>; BATCH],
    packets: [usize; BATCH],
    count: usize,
}

impl<'p> Run<'p> {
    fn new() -> Self {
        Self { keys: [&[]; BATCH], ids: [None; BATCH], packets: [0; BATCH], count: 0 }
    }

    fn push(&mut self, packet: usize, id: Option<&'p [u8]>, key: &'p [u8]) {
        self.keys[self.count] = key;
        self.ids[self.count] = id;
        self.packets[self.count] = packet;
        self.count += 1;
    }

    /// Decides all of them in order and adds their replies.
    fn finish(&mut self, desk: &Desk, now: Now, replies: &mut Replies) {
        if self.count == 0 {
            return;
        }
        // Taken out so that replies can be added while it is read; an empty Vec costs nothing.
        let mut lines = std::mem::take(&mut replies.lines);
        desk.lines(&self.keys[..self.count], ONE_USE, now, &mut lines);
        for (at, line) in lines.iter().enumerate() {
            match line {
                Ok(line) => replies.add(self.packets[at], |out| {
                    reply::over_limit(out, self.ids[at], &to_wire(line))
                }),
                Err(unfit) => ignore(desk, unfit.reason()),
            }
        }
        replies.lines = lines;
        self.count = 0;
    }
}

/// Answers `packets` in order, as of `now`: a later request of the batch sees what an earlier one
/// did. What is no request, or cannot be answered, is counted and gets no reply. Allocates for
/// `check_limit` only.
pub fn answer_batch(desk: &Desk, now: Now, packets: &[&[u8]], replies: &mut Replies) {
    replies.clear();
    let mut run = Run::new();
    for (at, packet) in packets.iter().enumerate() {
        match text::parse(packet) {
            Ok(Request { id, command: Command::OverLimit(key) }) => {
                if run.count == BATCH {
                    run.finish(desk, now, replies);
                }
                run.push(at, id, key);
            }
            Ok(request) => {
                run.finish(desk, now, replies);
                answer(desk, now, at, &request, replies);
            }
            Err(ignored) => ignore(desk, ignored.reason()),
        }
    }
    run.finish(desk, now, replies);
}

/// Answers what is not a plain use of one key.
pub(super) fn answer(
    desk: &Desk,
    now: Now,
    packet: usize,
    request: &Request<'_>,
    replies: &mut Replies,
) {
    let id = request.id;
    match request.command {
        Command::Ping => replies.add(packet, |out| reply::ping(out, id)),
        Command::GetSize => {
            let size = desk.limiter().size();
            let size = text::Size {
                used: size.used as u64,
                total: size.total as u64,
                keys: size.keys as u64,
            };
            replies.add(packet, |out| reply::get_size(out, id, &size));
        }
        Command::GetStats(key) => {
            let stats = desk.limiter().stats(key, now);
            let stats = text::Stats {
                requests: stats.requests,
                over: stats.over,
                last_max_rate: stats.last_max_rate,
            };
            replies.add(packet, |out| reply::get_stats(out, id, &stats, key));
        }
        Command::CheckLimit(json) => match check(desk, now, id, json) {
            Ok(bytes) => replies.add_long(packet, &bytes),
            Err(reason) => ignore(desk, reason),
        },
        Command::OverLimit(key) => match desk.line(key, ONE_USE, now) {
            Ok(line) => replies.add(packet, |out| reply::over_limit(out, id, &to_wire(&line))),
            Err(unfit) => ignore(desk, unfit.reason()),
        },
    }
}

/// Makes a use of each key that the JSON names, up to the first that is over its limit.
fn check(desk: &Desk, now: Now, id: Option<&[u8]>, json: &[u8]) -> Result<Vec<u8>, &'static str> {
    let check = Check::parse(json).map_err(Ignored::reason)?;
    let mut lines = Vec::with_capacity(check.keys().len());
    for key in check.keys() {
        let line = desk.line(key.as_bytes(), ONE_USE, now).map_err(|unfit| unfit.reason())?;
        lines.push(to_wire(&line));
        if line.over {
            break;
        }
    }
    let mut bytes = Vec::new();
    check.reply(&mut bytes, id, &lines);
    Ok(bytes)
}

pub(super) fn to_wire(line: &Line) -> text::Line {
    text::Line { over: line.over, rate: line.rate, limit: line.limit, period_ns: line.period }
}

pub(super) fn ignore(desk: &Desk, reason: &'static str) {
    desk.limiter().metrics().bad_input(Door::Text, reason);
}
