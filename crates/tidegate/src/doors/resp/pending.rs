//! Replies that come later, from a remote store or a line of waiting requests.
//!
//! Requests of one connection are answered in order. The connection reads no further request while
//! replies are missing. Requests that were decided together may be answered in any order.
//!
//! A reply is sent by another thread, or made by [`LateWork`]: a future that the loop of the
//! connection polls and drops with the connection. What such a future takes is answered in the same
//! turn, so that a client that leaves has taken nothing.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::AcqRel, Ordering::Relaxed};
use std::task::{Context, Poll, Wake, Waker};

use tidegate_wire::resp::reply;

use super::RespInbox;
use super::commands::Flow;
use crate::doors::io::handler::ConnectionId;

/// The replies that a connection waits for, in the order of their requests.
#[derive(Default)]
pub(super) struct PendingReplies {
    /// What was written of each, once it is there.
    replies: Vec<Option<Vec<u8>>>,
    missing: usize,
    /// What makes one of them.
    work: Option<RunningWork>,
}

impl PendingReplies {
    /// Whether no reply is waited for.
    pub(super) fn is_empty(&self) -> bool {
        self.replies.is_empty()
    }

    /// Adds a reply that is there already, behind missing ones.
    pub(super) fn add(&mut self, reply: Vec<u8>) {
        self.replies.push(Some(reply));
    }

    /// Adds a reply that will come, and returns its place.
    fn expect(&mut self) -> usize {
        self.replies.push(None);
        self.missing += 1;
        self.replies.len() - 1
    }

    /// Begins to work for a reply, which is appended to `out` if it is there at once.
    pub(super) fn begin(
        &mut self,
        work: LateWork,
        inbox: &Arc<RespInbox>,
        connection: ConnectionId,
        out: &mut Vec<u8>,
    ) -> Flow {
        let is_woken = AtomicBool::new(false);
        let wake = Arc::new(WakeLoop { inbox: inbox.clone(), connection, is_woken });
        let mut running = RunningWork { work, wake, place: 0 };
        if let Poll::Ready(reply) = running.poll() {
            out.extend_from_slice(&reply);
            return Flow::Done;
        }
        running.place = self.expect();
        self.work = Some(running);
        self.flow()
    }

    /// What the connection does as long as replies are missing, and then.
    fn flow(&self) -> Flow {
        match &self.work {
            _ if self.missing == 0 => Flow::Done,
            Some(running) if running.work.in_line.load(Relaxed) => Flow::Waiting,
            _ => Flow::Pending,
        }
    }

    /// Takes a reply that has come, or goes on working for it. Once none is missing, appends all to
    /// `out`.
    pub(super) fn take(&mut self, answer: LateReply, out: &mut Vec<u8>) -> Flow {
        match answer {
            LateReply::Written { place, write } => {
                let mut bytes = Vec::new();
                write(&mut bytes);
                self.fill(place, bytes);
            }
            LateReply::GoOn => {
                if let Some(running) = &mut self.work
                    && let Poll::Ready(reply) = running.poll()
                {
                    let place = running.place;
                    self.work = None;
                    self.fill(place, reply);
                }
            }
        }
        if self.missing == 0 {
            for reply in self.replies.drain(..).flatten() {
                out.extend_from_slice(&reply);
            }
        }
        self.flow()
    }

    fn fill(&mut self, place: usize, bytes: Vec<u8>) {
        if let Some(reply @ None) = self.replies.get_mut(place) {
            *reply = Some(bytes);
            self.missing -= 1;
        }
    }
}

/// What makes a reply.
pub(super) struct LateWork {
    future: Pin<Box<dyn Future<Output = Vec<u8>> + Send>>,
    /// Whether it may wait for its turn: of no use any more once the client sends no more.
    in_line: Arc<AtomicBool>,
}

impl LateWork {
    /// Work that ends soon, as that of a store does.
    pub(super) fn new(future: impl Future<Output = Vec<u8>> + Send + 'static) -> Self {
        Self::in_line(Arc::default(), future)
    }

    /// Work that says by `in_line` whether it may wait for its turn.
    pub(super) fn in_line(
        in_line: Arc<AtomicBool>,
        future: impl Future<Output = Vec<u8>> + Send + 'static,
    ) -> Self {
        Self { future: Box::pin(future), in_line }
    }
}

struct RunningWork {
    work: LateWork,
    wake: Arc<WakeLoop>,
    /// Of its reply.
    place: usize,
}

impl RunningWork {
    fn poll(&mut self) -> Poll<Vec<u8>> {
        self.wake.is_woken.swap(false, AcqRel);
        let waker = Waker::from(self.wake.clone());
        self.work.future.as_mut().poll(&mut Context::from_waker(&waker))
    }
}

/// Has a loop go on with the work for a connection.
struct WakeLoop {
    inbox: Arc<RespInbox>,
    connection: ConnectionId,
    /// Whether that was said already and not done yet.
    is_woken: AtomicBool,
}

impl Wake for WakeLoop {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_woken.swap(true, AcqRel) {
            self.inbox.answer(self.connection, LateReply::GoOn);
        }
    }
}

/// Appends a reply.
pub(super) type Write = Box<dyn FnOnce(&mut Vec<u8>) + Send>;

/// What is left for a connection that waits for replies.
pub(super) enum LateReply {
    /// A reply that has come.
    Written { place: usize, write: Write },
    /// The work for a reply can go on. It may have ended since.
    GoOn,
}

/// The right to answer one request later, from any thread. If it is dropped, the client is told
/// that no answer comes.
pub(super) struct ReplyLater {
    inbox: Arc<RespInbox>,
    connection: ConnectionId,
    place: usize,
    is_sent: bool,
}

impl ReplyLater {
    pub(super) fn new(
        inbox: &Arc<RespInbox>,
        connection: ConnectionId,
        pending: &mut PendingReplies,
    ) -> Self {
        let place = pending.expect();
        Self { inbox: inbox.clone(), connection, place, is_sent: false }
    }

    /// Answers; `write` appends the reply, in the loop of the connection.
    pub(super) fn send(mut self, write: impl FnOnce(&mut Vec<u8>) + Send + 'static) {
        self.leave(Box::new(write));
    }

    fn leave(&mut self, write: Write) {
        self.is_sent = true;
        self.inbox.answer(self.connection, LateReply::Written { place: self.place, write });
    }
}

impl Drop for ReplyLater {
    fn drop(&mut self) {
        if !self.is_sent {
            self.leave(Box::new(|out| reply::error(out, b"ERR no answer: the server is stopping")));
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;
    use crate::doors::io::inbox::LoopInbox;

    #[test]
    fn work_goes_on_until_its_reply_is_there() {
        let inbox = LoopInbox::new().unwrap();
        let connection = ConnectionId { slot: 0, generation: 0 };
        let (mut pending, mut out) = (PendingReplies::default(), Vec::new());
        let at_once = LateWork::new(async { b":1\r\n".to_vec() });
        assert_eq!(pending.begin(at_once, &inbox, connection, &mut out), Flow::Done);
        assert_eq!(std::mem::take(&mut out), b":1\r\n");

        let (sender, receiver) = oneshot::channel();
        let in_line = Arc::new(AtomicBool::new(false));
        let work = LateWork::in_line(in_line.clone(), async { receiver.await.unwrap() });
        assert_eq!(pending.begin(work, &inbox, connection, &mut out), Flow::Pending);
        in_line.store(true, Relaxed);
        assert_eq!(pending.take(LateReply::GoOn, &mut out), Flow::Waiting);
        sender.send(b":2\r\n".to_vec()).unwrap();
        assert_eq!(pending.take(LateReply::GoOn, &mut out), Flow::Done);
        assert_eq!(pending.take(LateReply::GoOn, &mut out), Flow::Done, "it was woken twice");
        assert_eq!(out, b":2\r\n");
        assert!(pending.is_empty());
    }

    #[test]
    fn work_ends_with_its_connection() {
        let inbox = LoopInbox::new().unwrap();
        let connection = ConnectionId { slot: 0, generation: 0 };
        let mut pending = PendingReplies::default();
        let (sender, receiver) = oneshot::channel();
        let work = LateWork::new(async { receiver.await.unwrap() });
        assert_eq!(pending.begin(work, &inbox, connection, &mut Vec::new()), Flow::Pending);
        assert!(!sender.is_closed());
        drop(pending);
        assert!(sender.is_closed());
    }
}
