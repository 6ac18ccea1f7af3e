//! Accounting on its way to one master: bytes that are ready to be sent, in lanes that whoever
//! decides fills and one task empties.
//!
//! A message is written once, as it goes over the wire, so that the task has nothing to do for each
//! of them. Every lane is a buffer of fixed size behind a lock that nobody waits for: a lane that
//! is busy is passed over for the next, and what fits nowhere is dropped. Emptying a lane swaps its
//! buffer for an empty one.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::yield_now;

use tidegate_wire::zmtp::FrameWriter;
use tokio::sync::Notify;
use try_lock::{Locked, TryLock};

/// Digits of a time: from 2001 to 2286 there are thirteen.
const DIGITS: usize = 13;
const STAMP_MS_MAX: i64 = 9_999_999_999_999;
/// What follows the identifier of a message without a delay and without log info: the frame of its
/// time, and two that are empty.
const TAIL_BYTES: usize = 2 + DIGITS + 2 + 2;
/// The longest identifier whose length fits the short form of a frame.
const PLAIN_BYTES_MAX: usize = 255;

/// The longest head that is copied in one piece.
const PADDED_BYTES: usize = 32;

/// What is told about one request.
pub(super) struct Note<'a> {
    /// The frames of the domain and of the status.
    pub(super) head: &'a [u8],
    pub(super) identifier: &'a [u8],
    pub(super) received_ms: i64,
    /// To when it was delayed.
    pub(super) delayed_ms: Option<i64>,
    pub(super) log_info: &'a [u8],
}

/// What becomes of a request about which a plain message is told.
#[derive(Clone, Copy)]
pub(super) enum Plain {
    Accepted,
    Rejected,
}

/// The first frames of most messages of a domain.
pub(super) struct PlainHead {
    bytes: Box<[u8]>,
    kind: Plain,
    len: usize,
    /// The first bytes once more, or all of them and zeroes behind them.
    padded: [u8; PADDED_BYTES],
}

impl PlainHead {
    pub(super) fn new(kind: Plain, bytes: Box<[u8]>) -> Self {
        let mut padded = [0; PADDED_BYTES];
        let front = bytes.len().min(PADDED_BYTES);
        padded[..front].copy_from_slice(&bytes[..front]);
        Self { len: bytes.len(), bytes, kind, padded }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Writes it to the front of a room that is longer; what comes after it is written later. A
    /// copy of a fixed size is a few moves, where one of any size is a call.
    #[inline(always)]
    fn write(&self, room: &mut [u8]) {
        match room.first_chunk_mut() {
            Some(front) if self.len <= PADDED_BYTES => *front = self.padded,
            _ => room[..self.len].copy_from_slice(&self.bytes),
        }
    }
}

/// Copies an identifier into a room of just its size. Those of usual lengths are two moves that
/// meet in the middle.
#[inline(always)]
fn copy_short(from: &[u8], to: &mut [u8]) {
    #[inline(always)]
    fn ends<const N: usize>(from: &[u8], to: &mut [u8]) -> Option<()> {
        let (first, last) = (*from.first_chunk::<N>()?, *from.last_chunk::<N>()?);
        *to.first_chunk_mut()? = first;
        *to.last_chunk_mut()? = last;
        Some(())
    }
    let copied = match from.len() {
        8..=16 => ends::<8>(from, to),
        17..=32 => ends::<16>(from, to),
        _ => None,
    };
    if copied.is_none() {
        to.copy_from_slice(from);
    }
}

/// All lanes to one master.
pub(super) struct Queue {
    lanes: Box<[Lane]>,
    lane_bytes: usize,
    /// The task that empties the lanes sleeps until it is woken.
    resting: AtomicBool,
    bell: Notify,
}

// Two lanes in one line would make two cores fight over locks that have nothing in common.
#[repr(align(128))]
struct Lane(TryLock<Filling>);

/// Looks at a lane that is busy before the core is offered to whoever has it.
const SPINS: u32 = 100;

impl Lane {
    /// For the task and for those who count: whoever decides has a lane for tens of nanoseconds,
    /// and waits for nobody meanwhile.
    fn lock(&self) -> Locked<'_, Filling> {
        let mut looks = 0;
        loop {
            if let Some(filling) = self.0.try_lock() {
                return filling;
            }
            if looks < SPINS {
                looks += 1;
                spin_loop();
            } else {
                yield_now();
            }
        }
    }
}

struct Filling {
    load: Load,
    /// How many plain messages of each kind were taken away.
    taken: [u64; 2],
    /// The time for which the tail was written.
    stamped_ms: i64,
    /// The beginning of the second that it lies in.
    second_ms: i64,
    tail: [u8; TAIL_BYTES],
}

/// Whole messages, back to back, in a buffer that never grows.
#[derive(Default)]
pub(super) struct Load {
    room: Box<[u8]>,
    len: usize,
    /// How many messages there are: plain ones of each kind, and others.
    plain: [u64; 2],
    others: u64,
}

impl Load {
    fn with_room(bytes: usize) -> Self {
        Self { room: vec![0; bytes].into(), ..Self::default() }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.room[..self.len]
    }

    /// How many messages there are.
    pub(super) fn messages(&self) -> u64 {
        self.plain.iter().sum::<u64>() + self.others
    }

    pub(super) fn clear(&mut self) {
        self.len = 0;
        self.plain = [0; 2];
        self.others = 0;
    }

    /// Room for so many bytes more, if there is.
    #[inline(always)]
    fn next(&mut self, bytes: usize) -> Option<&mut [u8]> {
        let room = self.room.get_mut(self.len..self.len + bytes)?;
        self.len += bytes;
        Some(room)
    }
}

impl Queue {
    /// A queue of so many lanes, a power of two, for so many bytes in all.
    pub(super) fn new(lanes: usize, bytes: usize) -> Self {
        let lane_bytes = bytes / lanes;
        let lane = || {
            let tail = *b"\x01\x0d0000000000000\x01\0\0\0";
            let load = Load::with_room(lane_bytes);
            Lane(TryLock::new(Filling { load, taken: [0; 2], stamped_ms: 0, second_ms: 0, tail }))
        };
        Self {
            lanes: (0..lanes).map(|_| lane()).collect(),
            lane_bytes,
            resting: AtomicBool::new(false),
            bell: Notify::new(),
        }
    }

    /// A load to swap for a full one.
    pub(super) fn spare(&self) -> Load {
        Load::with_room(self.lane_bytes)
    }

    /// Adds what most messages are, to this lane and no other: about a request that passed or was
    /// turned away, with an identifier of usual length and without log info. `false` if it did not
    /// work out, which says nothing about [`Queue::push`]. Neither waits nor allocates.
    #[inline(always)]
    pub(super) fn push_plain(
        &self,
        lane: usize,
        head: &PlainHead,
        identifier: &[u8],
        received_ms: i64,
    ) -> bool {
        let (before, bytes) = (head.len, identifier.len());
        let lane = &self.lanes[lane & (self.lanes.len() - 1)];
        let Some(mut guard) = lane.0.try_lock() else { return false };
        if bytes > PLAIN_BYTES_MAX {
            return false;
        }
        let filling = &mut *guard;
        if received_ms != filling.stamped_ms {
            filling.stamp(received_ms);
        }
        let Some(room) = filling.load.next(before + 2 + bytes + TAIL_BYTES) else { return false };
        head.write(room);
        room[before..before + 2].copy_from_slice(&[1, bytes as u8]);
        copy_short(identifier, &mut room[before + 2..before + 2 + bytes]);
        room[before + 2 + bytes..].copy_from_slice(&filling.tail);
        filling.load.plain[head.kind as usize] += 1;
        drop(guard);
        self.ring();
        true
    }

    /// Adds a message to a lane, this one if it can be. `false` if there is no room. Neither
    /// waits nor allocates.
    pub(super) fn push(&self, lane: usize, note: &Note<'_>) -> bool {
        self.fill(lane, note.bytes(), |room| note.write(room))
    }

    /// Adds a message of these frames, which was written before.
    pub(super) fn push_written(&self, lane: usize, frames: &[u8]) -> bool {
        self.fill(lane, frames.len(), |room| room.copy_from_slice(frames))
    }

    fn fill(&self, lane: usize, bytes: usize, write: impl Fn(&mut [u8])) -> bool {
        for step in 0..self.lanes.len() {
            let lane = &self.lanes[(lane + step) & (self.lanes.len() - 1)];
            let Some(mut filling) = lane.0.try_lock() else { continue };
            let Some(room) = filling.load.next(bytes) else { continue };
            write(room);
            filling.load.others += 1;
            drop(filling);
            self.ring();
            return true;
        }
        false
    }

    /// Wakes the task, if it sleeps.
    #[inline(always)]
    fn ring(&self) {
        if self.resting.load(Relaxed) {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        if self.resting.swap(false, Relaxed) {
            self.bell.notify_one();
        }
    }

    /// Takes what is in a lane, and leaves it an empty load. `false` if there was nothing.
    pub(super) fn take(&self, lane: usize, spare: &mut Load) -> bool {
        debug_assert!(spare.bytes().is_empty());
        let mut filling = self.lanes[lane].lock();
        if filling.load.len == 0 {
            return false;
        }
        std::mem::swap(&mut filling.load, spare);
        for (taken, more) in filling.taken.iter_mut().zip(spare.plain) {
            *taken += more;
        }
        true
    }

    /// How many requests of a kind were told by [`Queue::push_plain`]: counted under a lock that is
    /// held anyway.
    pub(super) fn plain(&self, kind: Plain) -> u64 {
        let of =
            |filling: &Filling| filling.taken[kind as usize] + filling.load.plain[kind as usize];
        self.lanes.iter().map(|lane| of(&lane.lock())).sum()
    }

    pub(super) fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// Returns when there is something to take. For one task alone; dropping it loses nothing.
    pub(super) async fn rest(&self) {
        loop {
            // Whoever adds something after a lane was found empty locks it later, and sees this.
            self.resting.store(true, Relaxed);
            if self.lanes.iter().any(|lane| lane.lock().load.len > 0) {
                self.resting.store(false, Relaxed);
                return;
            }
            self.bell.notified().await;
        }
    }
}

impl Note<'_> {
    fn bytes(&self) -> usize {
        let delayed = self.delayed_ms.map_or(0, |_| DIGITS);
        let frames = [self.identifier.len(), DIGITS, delayed, self.log_info.len()];
        self.head.len() + frames.map(FrameWriter::bytes_of).iter().sum::<usize>()
    }

    /// Writes the message into a room of just its size.
    fn write(&self, room: &mut [u8]) {
        let (head, rest) = room.split_at_mut(self.head.len());
        head.copy_from_slice(self.head);
        let mut frames = FrameWriter::new(rest);
        frames.frame(true, self.identifier);
        frames.frame(true, &digits(self.received_ms));
        match self.delayed_ms {
            Some(ms) => frames.frame(true, &digits(ms)),
            None => frames.frame(true, b""),
        }
        frames.frame(false, self.log_info);
    }
}

impl Filling {
    /// Writes another time into the tail: within a second, its last three digits alone.
    #[inline]
    fn stamp(&mut self, ms: i64) {
        self.stamped_ms = ms;
        let within = ms.wrapping_sub(self.second_ms) as u64;
        if within < 1_000 {
            let digit = |number: u64| b'0' + (number % 10) as u8;
            let last = [digit(within / 100), digit(within / 10), digit(within)];
            self.tail[2 + DIGITS - 3..2 + DIGITS].copy_from_slice(&last);
        } else {
            self.stamp_whole(ms);
        }
    }

    #[cold]
    fn stamp_whole(&mut self, ms: i64) {
        // Beyond what has thirteen digits there are no seconds to rely on.
        let second_ms = ms - ms.rem_euclid(1_000);
        self.second_ms = if (0..STAMP_MS_MAX).contains(&ms) { second_ms } else { i64::MIN };
        self.tail[2..2 + DIGITS].copy_from_slice(&digits(ms));
    }
}

/// A time as ASCII decimal, with zeroes in front where it has fewer digits.
fn digits(ms: i64) -> [u8; DIGITS] {
    let mut left = ms.clamp(0, STAMP_MS_MAX);
    let mut digits = [b'0'; DIGITS];
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (left % 10) as u8;
        left /= 10;
    }
    digits
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const T: i64 = 1_700_000_000_000;

    fn head(bytes: &[u8]) -> PlainHead {
        PlainHead::new(Plain::Accepted, bytes.into())
    }

    fn note(identifier: &[u8], received_ms: i64) -> Note<'_> {
        Note { head: b"", identifier, received_ms, delayed_ms: None, log_info: b"" }
    }

    fn taken(queue: &Queue) -> (Vec<u8>, u64) {
        let mut spare = queue.spare();
        let (mut bytes, mut messages) = (Vec::new(), 0);
        for lane in 0..queue.lanes() {
            if queue.take(lane, &mut spare) {
                bytes.extend_from_slice(spare.bytes());
                messages += spare.messages();
                spare.clear();
            }
        }
        (bytes, messages)
    }

    #[test]
    fn messages_are_written_as_they_are_sent() {
        let queue = Queue::new(1, 4096);
        let plain = b"<head>\x01\x02me\x01\x0d1700000000123\x01\0\0\0";
        assert!(queue.push(0, &Note { head: b"<head>", ..note(b"me", 1_700_000_000_123) }));
        assert_eq!(taken(&queue), (plain.to_vec(), 1));
        assert!(queue.push_plain(0, &head(b"<head>"), b"me", 1_700_000_000_123));
        assert!(!queue.push_plain(0, &head(b"<head>"), &[b'x'; 256], 1_700_000_000_123));
        assert_eq!(taken(&queue), (plain.to_vec(), 1));
        for length in [0, 12, 13, 14, 31, 32, 33, 200] {
            let long = vec![b'h'; length];
            assert!(queue.push_plain(0, &head(&long), b"", T));
            assert_eq!(
                taken(&queue).0,
                [&long[..], b"\x01\0\x01\x0d1700000000000\x01\0\0\0"].concat()
            );
        }
        let long = [b'x'; 300];
        let whole = Note { delayed_ms: Some(5), log_info: b"curl", ..note(&long, -7) };
        assert!(queue.push(0, &whole));
        let mut expected = b"\x03\0\0\0\0\0\0\x01\x2c".to_vec();
        expected.extend_from_slice(&long);
        expected.extend_from_slice(b"\x01\x0d0000000000000\x01\x0d0000000000005\0\x04curl");
        assert_eq!(taken(&queue), (expected, 1));
        let times =
            [T, T + 1, T + 999, T + 1_000, T + 999, T - 1, 0, 7, -1, -1_000, 1_000, i64::MAX];
        for ms in times {
            assert!(queue.push_plain(0, &head(b""), b"", ms));
            let time = format!("{:013}", ms.clamp(0, STAMP_MS_MAX));
            let expected = [b"\x01\0\x01\x0d", time.as_bytes(), b"\x01\0\0\0"].concat();
            assert_eq!(taken(&queue).0, expected, "{ms}");
        }
        assert!(queue.push(0, &Note { log_info: b"i", ..note(b"", i64::MAX) }));
        assert_eq!(taken(&queue).0, b"\x01\0\x01\x0d9999999999999\x01\0\0\x01i");
    }

    #[test]
    fn plain_messages_are_counted_by_kind_wherever_they_are() {
        let queue = Queue::new(2, 4096);
        let turned_away = PlainHead::new(Plain::Rejected, b"<no>"[..].into());
        let counted = || (queue.plain(Plain::Accepted), queue.plain(Plain::Rejected));
        assert!(queue.push_plain(0, &head(b"<head>"), b"me", T));
        assert!(queue.push_plain(1, &turned_away, b"me", T));
        assert!(queue.push_plain(0, &turned_away, b"me", T));
        assert!(queue.push(1, &note(b"me", T)));
        assert_eq!(counted(), (1, 2));
        assert_eq!(taken(&queue).1, 4);
        assert_eq!(counted(), (1, 2), "also when they are gone");
        assert!(queue.push_plain(0, &head(b"<head>"), b"me", T));
        assert_eq!((counted(), taken(&queue).1), ((2, 2), 1));
    }

    #[test]
    fn identifiers_of_all_lengths_are_copied_whole() {
        let queue = Queue::new(1, 4096);
        for length in 0..=PLAIN_BYTES_MAX {
            let identifier: Vec<u8> = (1..=length as u8).collect();
            assert!(queue.push_plain(0, &head(b""), &identifier, T));
            let (bytes, _) = taken(&queue);
            assert_eq!(&bytes[..2], [1, length as u8]);
            assert_eq!(bytes[2..2 + length], identifier);
            assert_eq!(&bytes[2 + length..], b"\x01\x0d1700000000000\x01\0\0\0");
        }
    }

    #[test]
    fn what_does_not_fit_is_dropped_and_no_buffer_grows() {
        let queue = Queue::new(2, 400);
        let fit = (0..100).filter(|_| queue.push(1, &note(b"0123456789", 1))).count();
        assert!(fit > 4 && fit < 16, "{fit}: both lanes, and no more");
        let mut spare = queue.spare();
        for lane in 0..2 {
            assert!(queue.take(lane, &mut spare));
            assert!(spare.room.len() <= 200 && spare.messages() > 0);
            spare.clear();
        }
        assert!(!queue.push(0, &note(&[0; 500], 1)), "never");
        assert!(queue.push(0, &note(b"again", 1)));
    }

    #[test]
    fn a_busy_lane_is_passed_over() {
        let queue = Queue::new(2, 4096);
        let held = queue.lanes[0].lock();
        assert!(queue.push(0, &note(b"a", 1)));
        let other = queue.lanes[1].lock();
        assert!(!queue.push(0, &note(b"b", 1)), "nobody waits");
        assert!(!queue.push_plain(0, &head(b""), b"b", 1));
        drop((held, other));
        assert_eq!(taken(&queue).1, 1);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn whoever_rests_is_woken_for_all_of_it() {
        const EACH: u64 = 20_000;
        let queue = Arc::new(Queue::new(4, 1 << 20));
        let taker = queue.clone();
        let taking = tokio::spawn(async move {
            let mut total = 0;
            while total < 4 * EACH {
                taker.rest().await;
                let (bytes, messages) = taken(&taker);
                assert_eq!(bytes.len() as u64, messages * (2 + 1 + TAIL_BYTES as u64));
                total += messages;
            }
            total
        });
        let threads: Vec<_> = (0..4)
            .map(|lane| {
                let queue = queue.clone();
                std::thread::spawn(move || {
                    for at in 0..EACH as i64 {
                        let push = || match at % 2 {
                            0 => queue.push_plain(lane, &head(b""), b"x", at),
                            _ => queue.push(lane, &note(b"x", at)),
                        };
                        while !push() {
                            std::thread::yield_now();
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(taking.await.unwrap(), 4 * EACH);
    }
}
