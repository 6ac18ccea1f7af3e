//! From datagrams to replies, without a socket: parse, decide, encode.
//!
//! The door's loops, the golden vectors and the allocation test all go through
//! [`answer_batch`]. It does not know how a reply travels, and of its receiver only whether the
//! address is trusted.
//!
//! The source of a datagram may be forged, so a reply that is much longer than its request goes to
//! trusted addresses only: to loopback and to those that the operator has named.

use std::ops::Range;

use tidegate_core::{Now, Op};
use tidegate_wire::text::{self, Check, Command, Ignored, Request, reply};

use super::mmsg::BATCH;
use crate::limiter::{Desk, Line, Unfit};
use crate::metrics::Door;

/// A use as this door makes it.
pub(super) const ONE_USE: Op = Op::Take(1);

/// Why a request gets no reply whose reply would be too long for an address that is not trusted.
pub(super) const AMPLIFIES: &str = "amplifies";

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

    /// Takes back the reply to `packet`, if that is the last and too long for a request of
    /// `length` bytes from an address that is not trusted. Returns whether it did.
    fn bound(&mut self, packet: usize, length: usize, trusted: impl Fn() -> bool) -> bool {
        let too_long = |last: &mut Reply| {
            let bytes = last.end - last.start;
            last.packet == packet && bytes > text::AMPLIFICATION_MAX * length && !trusted()
        };
        let Some(reply) = self.list.pop_if(too_long) else { return false };
        self.end = reply.start;
        true
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
/// did. What is no request, or cannot be answered, is counted and gets no reply. `trusted` says
/// whether a packet's sender may have a reply of any length; it is asked about long replies only.
/// Allocates for `check_limit` only.
pub fn answer_batch(
    desk: &Desk,
    now: Now,
    packets: &[&[u8]],
    trusted: impl Fn(usize) -> bool,
    replies: &mut Replies,
) {
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
                answer(desk, now, (at, packet.len()), &request, || trusted(at), replies);
            }
            Err(ignored) => ignore(desk, ignored.reason()),
        }
    }
    run.finish(desk, now, replies);
}

/// Answers what is not a plain use of one key, asked by a packet with its number and length.
pub(super) fn answer(
    desk: &Desk,
    now: Now,
    (packet, length): (usize, usize),
    request: &Request<'_>,
    trusted: impl Fn() -> bool,
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
        Command::CheckLimit(_) if !trusted() => return ignore(desk, AMPLIFIES),
        Command::CheckLimit(json) => match check(desk, now, id, json) {
            Ok(bytes) => return replies.add_long(packet, &bytes),
            Err(reason) => return ignore(desk, reason),
        },
        Command::OverLimit(key) => match desk.line(key, ONE_USE, now) {
            Ok(line) => replies.add(packet, |out| reply::over_limit(out, id, &to_wire(&line))),
            Err(unfit) => ignore(desk, unfit.reason()),
        },
    }
    if replies.bound(packet, length, trusted) {
        ignore(desk, AMPLIFIES);
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::clock::Clock;
    use crate::config::Config;
    use crate::limiter::Limiter;
    use crate::metrics::Metrics;

    /// Limits whose lines are as long as lines can be.
    const FILE: &str = "
        [text]
        listen = '127.0.0.1:0'
        [[rule]]
        match = 'long*'
        limit = '1000000000 per 365d'
        algorithm = 'fixed-window'
        [default]
        limit = '1/h'
    ";

    fn desk() -> Desk {
        let config = Config::parse("t", FILE).expect("a sound file");
        let memory = config.file.memory.settings();
        let metrics = Metrics::new().into();
        Limiter::new(Clock::system(), metrics, config.rules, memory).desk(Door::Text)
    }

    /// How many replies were left out for their length.
    fn left_out(desk: &Desk) -> u64 {
        let told = desk.limiter().metrics().encode(Default::default());
        let series = "tidegate_bad_input_total{door=\"text\",reason=\"amplifies\"} ";
        let line = told.lines().find_map(|line| line.strip_prefix(series));
        line.map_or(0, |count| count.parse().expect("a count"))
    }

    /// The reply to one packet.
    fn reply(desk: &Desk, packet: &str, trusted: bool) -> Option<String> {
        let mut replies = Replies::new();
        answer_batch(desk, desk.now(), &[packet.as_bytes()], |_| trusted, &mut replies);
        replies.iter().next().map(|(_, reply)| String::from_utf8_lossy(reply).into_owned())
    }

    #[test]
    fn check_limit_is_for_trusted_addresses() {
        let desk = desk();
        let request = "7 check_limit {\"origin\":\"ws\"}";
        assert_eq!(reply(&desk, request, false), None);
        assert_eq!(reply(&desk, "check_limit []", false), None, "and says no more of it");
        assert_eq!(left_out(&desk), 2);
        let unused = "n_req=0 n_over=0 last_max_rate=0 key=ws ua=";
        assert_eq!(reply(&desk, "get_stats ws ua=", false).as_deref(), Some(unused), "no use");
        assert!(reply(&desk, request, true).is_some_and(|reply| reply.starts_with("7 ok N ")));
        assert_eq!(left_out(&desk), 2);
    }

    /// Counts of so many digits take longer than a test; the replies are made by hand.
    #[test]
    fn a_reply_of_more_than_five_times_its_request_is_taken_back() {
        for (length, trusted, kept) in [(10, false, true), (9, false, false), (9, true, true)] {
            let mut replies = Replies::new();
            replies.add_long(0, b"another's, however long it may be");
            replies.add_long(1, &[b'x'; 50]);
            assert_eq!(replies.bound(1, length, || trusted), !kept);
            assert!(!replies.bound(1, 50, || false) && !replies.bound(2, 0, || false));
            replies.add_long(2, b"next");
            let list: Vec<_> = replies.iter().map(|(at, bytes)| (at, bytes.len())).collect();
            let expected = [(0, 33), (1, 50), (2, 4)];
            let expected = expected.iter().filter(|(at, _)| *at != 1 || kept);
            assert_eq!(list, expected.copied().collect::<Vec<_>>());
        }
    }

    fn request() -> impl Strategy<Value = Vec<u8>> {
        let command = prop_oneof![
            Just("ping".to_owned()),
            Just("get_size".to_owned()),
            "over_limit (long)?[ -~]{0,3}\n?",
            "get_stats (long)?[ -~]{0,3}\n?",
            "check_limit [{]\"(origin|ua|ip)\":\"[ -~&&[^\"\\\\]]{0,9}\"[}]\n?",
            "[ -~]{0,12}",
        ];
        ("([0-9]{1,22} )?", command).prop_map(|(id, command)| (id + &command).into_bytes())
    }

    proptest! {
        /// Whoever sends us a victim's address sends the victim at most five times what it spends.
        #[test]
        fn no_reply_to_a_forged_address_is_more_than_five_times_its_request(
            packets in prop::collection::vec(request(), 1..40)
        ) {
            let desk = desk();
            let packets: Vec<&[u8]> = packets.iter().map(Vec::as_slice).collect();
            let mut replies = Replies::new();
            answer_batch(&desk, desk.now(), &packets, |_| false, &mut replies);
            for (at, reply) in replies.iter() {
                prop_assert!(
                    reply.len() <= 5 * packets[at].len(),
                    "{} -> {}", packets[at].escape_ascii(), reply.escape_ascii(),
                );
            }
            let expected = packets.iter().filter(|packet| {
                text::parse(packet).is_ok_and(|request| {
                    !matches!(request.command, Command::CheckLimit(_))
                })
            });
            prop_assert_eq!(replies.iter().len(), expected.count(), "and all others are answered");
        }
    }
}
