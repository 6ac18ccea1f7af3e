//! What one loop can send to another: events, clients to take over, and answers that took long.
//!
//! Each loop has one box. It is bounded for events, so that a loop that is behind costs the others
//! nothing; the rest is bounded by the number of connections.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Wake;

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};

use super::channels::Event;
use super::clerk::Answer;
use super::socket::Peer;
use crate::doors::io::limits::Place;

/// The most events that wait for one loop.
const EVENTS_MAX: usize = 4096;
/// The most bytes of events that wait for one loop, unless a single one is longer.
const EVENT_BYTES_MAX: usize = 8 << 20;

/// Something that waits for a loop.
pub(super) enum Letter {
    /// Was published to a channel that somebody in this loop is subscribed to.
    Event(Arc<Event>),
    /// A client that another loop accepted.
    Client(OwnedFd, Peer, Place),
    /// The answer that a connection waits for.
    Answer(Answer),
    /// An idle connection whose place another one needed.
    GaveWay { slot: u32, generation: u32 },
}

/// Tells a loop that one of its connections must be closed for another one.
pub(super) struct GiveWay {
    pub(super) post: Arc<Post>,
    pub(super) slot: u32,
    pub(super) generation: u32,
}

impl Wake for GiveWay {
    fn wake(self: Arc<Self>) {
        let Self { post, slot, generation } = &*self;
        post.leave(Letter::GaveWay { slot: *slot, generation: *generation });
    }
}

/// One loop's box.
pub(super) struct Post {
    queue: Mutex<VecDeque<Letter>>,
    /// Bytes and number of the events in the queue.
    bytes: AtomicUsize,
    events: AtomicUsize,
    /// Whether there is something that the loop was told about.
    told: AtomicBool,
    bell: OwnedFd,
}

impl Post {
    /// An empty box.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            queue: Mutex::default(),
            bytes: AtomicUsize::new(0),
            events: AtomicUsize::new(0),
            told: AtomicBool::new(false),
            bell: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
        })
    }

    /// What becomes readable when there is something.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Leaves an event; `false` if there is no room for it.
    pub(super) fn event(&self, event: &Arc<Event>) -> bool {
        let mut queue = self.queue.lock();
        let (bytes, events) =
            (self.bytes.load(Ordering::Relaxed), self.events.load(Ordering::Relaxed));
        if events >= EVENTS_MAX || (events > 0 && bytes + event.bytes() > EVENT_BYTES_MAX) {
            return false;
        }
        self.bytes.store(bytes + event.bytes(), Ordering::Relaxed);
        self.events.store(events + 1, Ordering::Relaxed);
        queue.push_back(Letter::Event(event.clone()));
        drop(queue);
        self.ring();
        true
    }

    /// Leaves something that is not lost.
    pub(super) fn leave(&self, letter: Letter) {
        self.queue.lock().push_back(letter);
        self.ring();
    }

    /// Takes the letter that has waited longest.
    pub(super) fn take(&self) -> Option<Letter> {
        let mut queue = self.queue.lock();
        let letter = queue.pop_front();
        if let Some(Letter::Event(event)) = &letter {
            self.bytes.fetch_sub(event.bytes(), Ordering::Relaxed);
            self.events.fetch_sub(1, Ordering::Relaxed);
        }
        letter
    }

    /// Whether the bell was rung since [`Self::hush`].
    #[inline]
    pub(super) fn is_rung(&self) -> bool {
        self.told.load(Ordering::Acquire)
    }

    /// Says that the loop will look now: whatever comes later rings again.
    pub(super) fn hush(&self) {
        self.told.store(false, Ordering::Release);
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
    }

    /// Wakes the loop, unless it was woken already.
    pub(super) fn ring(&self) {
        if !self.told.swap(true, Ordering::AcqRel) {
            // The counter cannot be full: it is emptied whenever the loop looks.
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }
}
