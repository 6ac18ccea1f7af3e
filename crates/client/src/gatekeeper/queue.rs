//! The queue of accounting to one master: bytes that are ready to be sent, in stripes that threads
//! fill when they decide and that one task empties.
//!
//! A message is written once, as it goes over the wire, so that the task has no work for each of
//! them. Every stripe is a buffer of fixed size behind a lock for which no decision waits: if the
//! stripe is busy, the next one is tried, and what fits nowhere is dropped. The task takes the
//! buffer of a stripe and leaves an empty one.

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
const SHORT_IDENTIFIER_MAX: usize = 255;

/// The longest head that is copied in one piece.
const PADDED_BYTES: usize = 32;

/// What a master is told about one request.
pub(super) struct AccountingMessage<'a> {
    /// The frames of the domain and of the status.
    pub(super) head: &'a [u8],
    pub(super) identifier: &'a [u8],
    pub(super) received_ms: i64,
    /// To when it was delayed.
    pub(super) delayed_ms: Option<i64>,
    pub(super) log_info: &'a [u8],
}

/// The status in a short message: one without a delay and without log info, as most are.
#[derive(Clone, Copy)]
pub(super) enum ShortStatus {
    Accepted,
    Rejected,
}

/// The first frames of the short messages of a domain.
pub(super) struct ShortHead {
    bytes: Box<[u8]>,
    kind: ShortStatus,
    len: usize,
    /// The first bytes once more, or all of them and zeroes behind them.
    padded: [u8; PADDED_BYTES],
}

impl ShortHead {
    pub(super) fn new(kind: ShortStatus, bytes: Box<[u8]>) -> Self {
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

/// All stripes to one master.
pub(super) struct Queue {
    stripes: Box<[Stripe]>,
    stripe_bytes: usize,
    /// The task that empties the stripes sleeps until it is woken.
    sleeps: AtomicBool,
    wakeup: Notify,
}

// Two stripes in one cache line would make two cores fight over locks that have nothing in common.
#[repr(align(128))]
struct Stripe(TryLock<StripeState>);

/// How often a busy stripe is tried before the core is yielded to the thread that has it.
const SPINS: u32 = 100;

impl Stripe {
    /// Waits for the lock, for the task and for statistics alone: a thread that decides has a
    /// stripe for tens of nanoseconds, and waits for nothing meanwhile.
    fn lock(&self) -> Locked<'_, StripeState> {
        let mut looks = 0;
        loop {
            if let Some(state) = self.0.try_lock() {
                return state;
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

struct StripeState {
    buffer: SendBuffer,
    /// How many short messages of each status were taken away.
    taken: [u64; 2],
    /// The time for which the tail was written.
    stamped_ms: i64,
    /// The beginning of the second that it lies in.
    second_ms: i64,
    tail: [u8; TAIL_BYTES],
}

/// Whole messages, back to back, in a buffer that never grows.
#[derive(Default)]
pub(super) struct SendBuffer {
    room: Box<[u8]>,
    len: usize,
    /// How many messages there are: short ones of each status, and others.
    short: [u64; 2],
    others: u64,
}

impl SendBuffer {
    fn with_room(bytes: usize) -> Self {
        Self { room: vec![0; bytes].into(), ..Self::default() }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.room[..self.len]
    }

    /// How many messages there are.
    pub(super) fn messages(&self) -> u64 {
        self.short.iter().sum::<u64>() + self.others
    }

    pub(super) fn clear(&mut self) {
        self.len = 0;
        self.short = [0; 2];
        self.others = 0;
    }

    /// Room for so many more bytes, if there is.
    #[inline(always)]
    fn next(&mut self, bytes: usize) -> Option<&mut [u8]> {
        let room = self.room.get_mut(self.len..self.len + bytes)?;
        self.len += bytes;
        Some(room)
    }
}

impl Queue {
    /// A queue of so many stripes, a power of two, for so many bytes in all.
    pub(super) fn new(stripes: usize, bytes: usize) -> Self {
        let stripe_bytes = bytes / stripes;
        let stripe = || {
            let tail = *b"\x01\x0d0000000000000\x01\0\0\0";
            let buffer = SendBuffer::with_room(stripe_bytes);
            Stripe(TryLock::new(StripeState {
                buffer,
                taken: [0; 2],
                stamped_ms: 0,
                second_ms: 0,
                tail,
            }))
        };
        Self {
            stripes: (0..stripes).map(|_| stripe()).collect(),
            stripe_bytes,
            sleeps: AtomicBool::new(false),
            wakeup: Notify::new(),
        }
    }

    /// A buffer to swap for a full one.
    pub(super) fn spare(&self) -> SendBuffer {
        SendBuffer::with_room(self.stripe_bytes)
    }

    /// Adds a short message to this stripe alone: about a request that passed or was rejected,
    /// with an identifier of usual length and without log info. `false` if the stripe is busy or
    /// full, or the identifier long; [`Queue::push`] may still find room. Neither waits nor
    /// allocates.
    #[inline(always)]
    pub(super) fn push_short(
        &self,
        stripe: usize,
        head: &ShortHead,
        identifier: &[u8],
        received_ms: i64,
    ) -> bool {
        let (before, bytes) = (head.len, identifier.len());
        let stripe = &self.stripes[stripe & (self.stripes.len() - 1)];
        let Some(mut guard) = stripe.0.try_lock() else { return false };
        if bytes > SHORT_IDENTIFIER_MAX {
            return false;
        }
        let state = &mut *guard;
        if received_ms != state.stamped_ms {
            state.stamp(received_ms);
        }
        let Some(room) = state.buffer.next(before + 2 + bytes + TAIL_BYTES) else { return false };
        head.write(room);
        room[before..before + 2].copy_from_slice(&[1, bytes as u8]);
        copy_short(identifier, &mut room[before + 2..before + 2 + bytes]);
        room[before + 2 + bytes..].copy_from_slice(&state.tail);
        state.buffer.short[head.kind as usize] += 1;
        drop(guard);
        self.ring();
        true
    }

    /// Adds a message to a stripe, this one if it can be. `false` if there is no room. Neither
    /// waits nor allocates.
    pub(super) fn push(&self, stripe: usize, message: &AccountingMessage<'_>) -> bool {
        self.fill(stripe, message.bytes(), |room| message.write(room))
    }

    /// Adds a message of these frames, which was written before.
    pub(super) fn push_written(&self, stripe: usize, frames: &[u8]) -> bool {
        self.fill(stripe, frames.len(), |room| room.copy_from_slice(frames))
    }

    fn fill(&self, stripe: usize, bytes: usize, write: impl Fn(&mut [u8])) -> bool {
        for step in 0..self.stripes.len() {
            let stripe = &self.stripes[(stripe + step) & (self.stripes.len() - 1)];
            let Some(mut state) = stripe.0.try_lock() else { continue };
            let Some(room) = state.buffer.next(bytes) else { continue };
            write(room);
            state.buffer.others += 1;
            drop(state);
            self.ring();
            return true;
        }
        false
    }

    /// Wakes the task, if it sleeps.
    #[inline(always)]
    fn ring(&self) {
        if self.sleeps.load(Relaxed) {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        if self.sleeps.swap(false, Relaxed) {
            self.wakeup.notify_one();
        }
    }

    /// Takes what is in a stripe, and leaves it an empty buffer. `false` if there was nothing.
    pub(super) fn take(&self, stripe: usize, spare: &mut SendBuffer) -> bool {
        debug_assert!(spare.bytes().is_empty());
        let mut state = self.stripes[stripe].lock();
        if state.buffer.len == 0 {
            return false;
        }
        std::mem::swap(&mut state.buffer, spare);
        for (taken, more) in state.taken.iter_mut().zip(spare.short) {
            *taken += more;
        }
        true
    }

    /// How many short messages of a status were pushed: counted under a lock that is held anyway.
    pub(super) fn short(&self, kind: ShortStatus) -> u64 {
        let of =
            |state: &StripeState| state.taken[kind as usize] + state.buffer.short[kind as usize];
        self.stripes.iter().map(|stripe| of(&stripe.lock())).sum()
    }

    pub(super) fn stripes(&self) -> usize {
        self.stripes.len()
    }

    /// Returns when there is something to take. For one task alone; dropping it loses nothing.
    pub(super) async fn wait_for_messages(&self) {
        loop {
            // A thread that adds a message after its stripe was found empty sees this.
            self.sleeps.store(true, Relaxed);
            if self.stripes.iter().any(|stripe| stripe.lock().buffer.len > 0) {
                self.sleeps.store(false, Relaxed);
                return;
            }
            self.wakeup.notified().await;
        }
    }
}

impl AccountingMessage<'_> {
    fn bytes(&self) -> usize {
        let delayed = self.delayed_ms.map_or(0, |_| DIGITS);
        let frames = [self.identifier.len(), DIGITS, delayed, self.log_info.len()];
        self.head.len() + frames.map(FrameWriter::bytes_of).iter().sum::<usize>()
    }

    /// Writes the message into a room of just its size.
    fn write(&self, room: &mut [u8]) {
        let (head, tail) = room.split_at_mut(self.head.len());
        head.copy_from_slice(self.head);
        let mut frames = FrameWriter::new(tail);
        frames.frame(true, self.identifier);
        frames.frame(true, &digits(self.received_ms));
        match self.delayed_ms {
            Some(ms) => frames.frame(true, &digits(ms)),
            None => frames.frame(true, b""),
        }
        frames.frame(false, self.log_info);
    }
}

impl StripeState {
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

    fn head(bytes: &[u8]) -> ShortHead {
        ShortHead::new(ShortStatus::Accepted, bytes.into())
    }

    fn message(identifier: &[u8], received_ms: i64) -> AccountingMessage<'_> {
        AccountingMessage { head: b"", identifier, received_ms, delayed_ms: None, log_info: b"" }
    }

    fn taken(queue: &Queue) -> (Vec<u8>, u64) {
        let mut spare = queue.spare();
        let (mut bytes, mut messages) = (Vec::new(), 0);
        for stripe in 0..queue.stripes() {
            if queue.take(stripe, &mut spare) {
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
        assert!(
            queue.push(
                0,
                &AccountingMessage { head: b"<head>", ..message(b"me", 1_700_000_000_123) }
            )
        );
        assert_eq!(taken(&queue), (plain.to_vec(), 1));
        assert!(queue.push_short(0, &head(b"<head>"), b"me", 1_700_000_000_123));
        assert!(!queue.push_short(0, &head(b"<head>"), &[b'x'; 256], 1_700_000_000_123));
        assert_eq!(taken(&queue), (plain.to_vec(), 1));
        for length in [0, 12, 13, 14, 31, 32, 33, 200] {
            let long = vec![b'h'; length];
            assert!(queue.push_short(0, &head(&long), b"", T));
            assert_eq!(
                taken(&queue).0,
                [&long[..], b"\x01\0\x01\x0d1700000000000\x01\0\0\0"].concat()
            );
        }
        let long = [b'x'; 300];
        let whole =
            AccountingMessage { delayed_ms: Some(5), log_info: b"curl", ..message(&long, -7) };
        assert!(queue.push(0, &whole));
        let mut expected = b"\x03\0\0\0\0\0\0\x01\x2c".to_vec();
        expected.extend_from_slice(&long);
        expected.extend_from_slice(b"\x01\x0d0000000000000\x01\x0d0000000000005\0\x04curl");
        assert_eq!(taken(&queue), (expected, 1));
        let times =
            [T, T + 1, T + 999, T + 1_000, T + 999, T - 1, 0, 7, -1, -1_000, 1_000, i64::MAX];
        for ms in times {
            assert!(queue.push_short(0, &head(b""), b"", ms));
            let time = format!("{:013}", ms.clamp(0, STAMP_MS_MAX));
            let expected = [b"\x01\0\x01\x0d", time.as_bytes(), b"\x01\0\0\0"].concat();
            assert_eq!(taken(&queue).0, expected, "{ms}");
        }
        assert!(queue.push(0, &AccountingMessage { log_info: b"i", ..message(b"", i64::MAX) }));
        assert_eq!(taken(&queue).0, b"\x01\0\x01\x0d9999999999999\x01\0\0\x01i");
    }

    #[test]
    fn short_messages_are_counted_by_status_wherever_they_are() {
        let queue = Queue::new(2, 4096);
        let turned_away = ShortHead::new(ShortStatus::Rejected, b"<no>"[..].into());
        let counted = || (queue.short(ShortStatus::Accepted), queue.short(ShortStatus::Rejected));
        assert!(queue.push_short(0, &head(b"<head>"), b"me", T));
        assert!(queue.push_short(1, &turned_away, b"me", T));
        assert!(queue.push_short(0, &turned_away, b"me", T));
        assert!(queue.push(1, &message(b"me", T)));
        assert_eq!(counted(), (1, 2));
        assert_eq!(taken(&queue).1, 4);
        assert_eq!(counted(), (1, 2), "also when they are gone");
        assert!(queue.push_short(0, &head(b"<head>"), b"me", T));
        assert_eq!((counted(), taken(&queue).1), ((2, 2), 1));
    }

    #[test]
    fn identifiers_of_all_lengths_are_copied_whole() {
        let queue = Queue::new(1, 4096);
        for length in 0..=SHORT_IDENTIFIER_MAX {
            let identifier: Vec<u8> = (1..=length as u8).collect();
            assert!(queue.push_short(0, &head(b""), &identifier, T));
            let (bytes, _) = taken(&queue);
            assert_eq!(&bytes[..2], [1, length as u8]);
            assert_eq!(bytes[2..2 + length], identifier);
            assert_eq!(&bytes[2 + length..], b"\x01\x0d1700000000000\x01\0\0\0");
        }
    }

    #[test]
    fn what_does_not_fit_is_dropped_and_no_buffer_grows() {
        let queue = Queue::new(2, 400);
        let fit = (0..100).filter(|_| queue.push(1, &message(b"0123456789", 1))).count();
        assert!(fit > 4 && fit < 16, "{fit}: both stripes, and no more");
        let mut spare = queue.spare();
        for stripe in 0..2 {
            assert!(queue.take(stripe, &mut spare));
            assert!(spare.room.len() <= 200 && spare.messages() > 0);
            spare.clear();
        }
        assert!(!queue.push(0, &message(&[0; 500], 1)), "never");
        assert!(queue.push(0, &message(b"again", 1)));
    }

    #[test]
    fn a_busy_lane_is_passed_over() {
        let queue = Queue::new(2, 4096);
        let held = queue.stripes[0].lock();
        assert!(queue.push(0, &message(b"a", 1)));
        let other = queue.stripes[1].lock();
        assert!(!queue.push(0, &message(b"b", 1)), "nobody waits");
        assert!(!queue.push_short(0, &head(b""), b"b", 1));
        drop((held, other));
        assert_eq!(taken(&queue).1, 1);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_task_is_woken_for_all_of_it() {
        const EACH: u64 = 20_000;
        let queue = Arc::new(Queue::new(4, 1 << 20));
        let taker = queue.clone();
        let taking = tokio::spawn(async move {
            let mut total = 0;
            while total < 4 * EACH {
                taker.wait_for_messages().await;
                let (bytes, messages) = taken(&taker);
                assert_eq!(bytes.len() as u64, messages * (2 + 1 + TAIL_BYTES as u64));
                total += messages;
            }
            total
        });
        let threads: Vec<_> = (0..4)
            .map(|stripe| {
                let queue = queue.clone();
                std::thread::spawn(move || {
                    for at in 0..EACH as i64 {
                        let push = || match at % 2 {
                            0 => queue.push_short(stripe, &head(b""), b"x", at),
                            _ => queue.push(stripe, &message(b"x", at)),
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
