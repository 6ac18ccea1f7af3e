//! What other threads leave for an event loop: messages to its handler, answers to connections,
//! connections to take over, and connections that must give way.
//!
//! Each loop has one inbox. It is bounded for messages, so that a loop that is behind costs the
//! others nothing; the rest is bounded by the number of connections.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};

use super::handler::{ConnectionId, Handler};
use super::limits::ConnectionPlace;
use super::listener::Peer;

/// The most messages that wait for one loop.
const MESSAGES_MAX: usize = 4096;
/// The most bytes of messages that wait for one loop, unless a single one is longer.
const MESSAGE_BYTES_MAX: usize = 8 << 20;

/// The inbox of a loop of `H`.
pub(crate) type InboxOf<H> = LoopInbox<<H as Handler>::Message, <H as Handler>::Answer>;

/// Something that waits for a loop.
pub(crate) enum Item<M, A> {
    /// For the handler.
    Message(M),
    /// What a connection is pending for.
    Answer(ConnectionId, A),
    /// A client that another loop accepted.
    Client(OwnedFd, Peer, ConnectionPlace),
    /// An idle connection whose place another one needs.
    GaveWay(ConnectionId),
}

/// One loop's inbox.
pub(crate) struct LoopInbox<M, A> {
    queue: Mutex<Queue<M, A>>,
    /// Whether the loop was woken and has not looked yet.
    woken: AtomicBool,
    wake: OwnedFd,
}

struct Queue<M, A> {
    items: VecDeque<(Item<M, A>, usize)>,
    messages: usize,
    bytes: usize,
}

impl<M, A> LoopInbox<M, A> {
    /// An empty inbox.
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            queue: Mutex::new(Queue { items: VecDeque::new(), messages: 0, bytes: 0 }),
            woken: AtomicBool::new(false),
            wake: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
        }))
    }

    /// What becomes readable when there is something.
    pub(crate) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Leaves a message of so many bytes; `false` if there is no room for it.
    pub(crate) fn send(&self, message: M, bytes: usize) -> bool {
        let mut queue = self.queue.lock();
        let full = queue.messages > 0 && queue.bytes + bytes > MESSAGE_BYTES_MAX;
        if full || queue.messages >= MESSAGES_MAX {
            return false;
        }
        queue.messages += 1;
        queue.bytes += bytes;
        queue.items.push_back((Item::Message(message), bytes));
        drop(queue);
        self.wake();
        true
    }

    /// Leaves the answer that a connection is pending for.
    pub(crate) fn answer(&self, to: ConnectionId, answer: A) {
        self.leave(Item::Answer(to, answer));
    }

    /// Leaves something that is not lost.
    pub(super) fn leave(&self, item: Item<M, A>) {
        self.queue.lock().items.push_back((item, 0));
        self.wake();
    }

    /// Takes the item that has waited longest.
    pub(super) fn take(&self) -> Option<Item<M, A>> {
        let mut queue = self.queue.lock();
        let (item, bytes) = queue.items.pop_front()?;
        if let Item::Message(_) = item {
            queue.messages -= 1;
            queue.bytes -= bytes;
        }
        Some(item)
    }

    /// Whether the loop was woken since [`Self::begin`].
    #[inline]
    pub(super) fn is_woken(&self) -> bool {
        self.woken.load(Ordering::Acquire)
    }

    /// Says that the loop will look now: whatever comes later wakes it again.
    pub(super) fn begin(&self) {
        self.woken.store(false, Ordering::Release);
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
    }

    /// Wakes the loop, unless it was woken already.
    pub(super) fn wake(&self) {
        if !self.woken.swap(true, Ordering::AcqRel) {
            // The counter cannot be full: it is emptied whenever the loop looks.
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }
}

/// Tells a loop that one of its connections must be closed for another one.
pub(super) struct GiveWay<M, A> {
    pub(super) inbox: Arc<LoopInbox<M, A>>,
    pub(super) id: ConnectionId,
}

impl<M: Send + 'static, A: Send + 'static> Wake for GiveWay<M, A> {
    fn wake(self: Arc<Self>) {
        self.inbox.leave(Item::GaveWay(self.id));
    }
}
