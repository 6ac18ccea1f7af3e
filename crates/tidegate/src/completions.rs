//! Answers that come later, from another thread.
//!
//! The caller holds an [`AnswerTicket`], the store its [`Completion`]. A task awaits its ticket. A
//! loop with a thread of its own has an [`AnswerInbox`]: the answer of a ticket is sent there,
//! together with what the loop needs to know of the request. No thread computes an answer while it
//! holds a lock of this file.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};

/// What the two ends share.
enum State<T> {
    /// No answer yet; the task to wake, if there is one.
    Waiting(Option<Waker>),
    /// No answer yet; it will go to this function.
    Forwarded(Box<dyn FnOnce(T) + Send>),
    Answered(T),
    /// The answer was taken, or will never come, or the ticket was dropped.
    Closed,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    /// Gets an answer whose ticket was dropped.
    give_back: Box<dyn Fn(T) + Send + Sync>,
}

/// The caller's end. Await it, or have the answer sent on. If it is dropped instead,
/// whatever the answer grants is given back.
#[must_use = "a ticket that is dropped gives back what was taken"]
pub(crate) struct AnswerTicket<T>(Arc<Shared<T>>);

/// The end of the thread that answers.
pub(crate) struct Completion<T>(Arc<Shared<T>>);

/// The other end is gone: no answer will come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the answer will not come: its store is closed")]
pub(crate) struct Abandoned;

/// A completion and its ticket. `give_back` gets an answer that comes for a dropped ticket.
pub(crate) fn completion<T>(
    give_back: impl Fn(T) + Send + Sync + 'static,
) -> (Completion<T>, AnswerTicket<T>) {
    let state = Mutex::new(State::Waiting(None));
    let shared = Arc::new(Shared { state, give_back: Box::new(give_back) });
    (Completion(shared.clone()), AnswerTicket(shared))
}

impl<T> Completion<T> {
    /// Answers.
    pub(crate) fn complete(self, answer: T) {
        let mut state = self.0.state.lock();
        match std::mem::replace(&mut *state, State::Closed) {
            State::Waiting(waker) => {
                *state = State::Answered(answer);
                drop(state);
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
            State::Forwarded(forward) => {
                drop(state);
                forward(answer);
            }
            State::Answered(_) | State::Closed => {
                drop(state);
                (self.0.give_back)(answer);
            }
        }
    }
}

impl<T> Drop for Completion<T> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        let unanswered = match &*state {
            State::Waiting(_) | State::Forwarded(_) => {
                std::mem::replace(&mut *state, State::Closed)
            }
            State::Answered(_) | State::Closed => return,
        };
        // Dropping or waking what it held may take other locks.
        drop(state);
        if let State::Waiting(Some(waker)) = unanswered {
            waker.wake();
        }
    }
}

impl<T> AnswerTicket<T> {
    /// Has `forward` called with the answer, by the thread that answers, or here and at once if the
    /// answer is there already. It is never called if no answer comes.
    pub(crate) fn forward(self, forward: impl FnOnce(T) + Send + 'static) {
        let mut state = self.0.state.lock();
        match std::mem::replace(&mut *state, State::Closed) {
            State::Waiting(_) => *state = State::Forwarded(Box::new(forward)),
            State::Answered(answer) => {
                drop(state);
                forward(answer);
            }
            State::Forwarded(_) | State::Closed => {}
        }
    }

    /// The answer, once it is there.
    pub(crate) fn poll_answer(&mut self, context: &Context<'_>) -> Poll<Result<T, Abandoned>> {
        let mut state = self.0.state.lock();
        match std::mem::replace(&mut *state, State::Closed) {
            State::Answered(answer) => Poll::Ready(Ok(answer)),
            State::Waiting(_) => {
                *state = State::Waiting(Some(context.waker().clone()));
                Poll::Pending
            }
            State::Forwarded(_) | State::Closed => Poll::Ready(Err(Abandoned)),
        }
    }

    /// Gives back an answer that was taken and is not wanted after all.
    pub(crate) fn give_back(self, answer: T) {
        (self.0.give_back)(answer);
    }
}

impl<T> Future for AnswerTicket<T> {
    type Output = Result<T, Abandoned>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.get_mut().poll_answer(context)
    }
}

impl<T> Drop for AnswerTicket<T> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        match std::mem::replace(&mut *state, State::Closed) {
            State::Answered(answer) => {
                drop(state);
                (self.0.give_back)(answer);
            }
            // The function stays: it is not this end's any more.
            forwarded @ State::Forwarded(_) => *state = forwarded,
            State::Waiting(_) | State::Closed => {}
        }
    }
}

/// Where answers wait for a loop that is a thread of its own. The loop waits for the notifier
/// beside its sockets. What is in a message is the loop's business.
pub(crate) struct AnswerInbox<M>(Arc<Messages<M>>);

struct Messages<M> {
    waiting: Mutex<Vec<M>>,
    /// Readable while there are messages: written and read under the lock.
    notifier: OwnedFd,
    /// How many answers are expected and not taken from the inbox yet.
    pending: AtomicUsize,
}

impl<M: Send + 'static> AnswerInbox<M> {
    /// An empty inbox.
    ///
    /// # Errors
    /// If the kernel has no descriptor for the notifier.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(Messages {
            waiting: Mutex::default(),
            notifier: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
            pending: AtomicUsize::new(0),
        })))
    }

    /// Becomes readable when there are messages.
    pub(crate) fn notifier(&self) -> BorrowedFd<'_> {
        self.0.notifier.as_fd()
    }

    /// Whether an answer is still to come or to be taken.
    pub(crate) fn has_pending(&self) -> bool {
        self.0.pending.load(Relaxed) > 0
    }

    /// Has the answer of a ticket sent here, as `message` puts it.
    pub(crate) fn expect<T: Send + 'static>(
        &self,
        ticket: AnswerTicket<T>,
        message: impl FnOnce(T) -> M + Send + 'static,
    ) {
        let right = self.reply_right();
        ticket.forward(move |answer| right.send(message(answer)));
    }

    fn reply_right(&self) -> ReplyRight<M> {
        self.0.pending.fetch_add(1, Relaxed);
        ReplyRight { to: self.0.clone(), sent: false }
    }

    /// Takes all messages.
    pub(crate) fn take(&self, out: &mut Vec<M>) {
        if !self.has_pending() {
            return;
        }
        let mut waiting = self.0.waiting.lock();
        if waiting.is_empty() {
            return;
        }
        // Under the lock, as the notification is: otherwise one for messages that are taken
        // already could be left over, and the loop would spin.
        let _ = rustix::io::read(&self.0.notifier, &mut [0; 8]);
        self.0.pending.fetch_sub(waiting.len(), Relaxed);
        out.append(&mut waiting);
    }
}

/// The right to send one message.
struct ReplyRight<M> {
    to: Arc<Messages<M>>,
    sent: bool,
}

impl<M> ReplyRight<M> {
    fn send(mut self, message: M) {
        self.sent = true;
        let mut waiting = self.to.waiting.lock();
        waiting.push(message);
        if waiting.len() == 1 {
            // The counter cannot be full: it is emptied whenever the loop looks.
            let _ = rustix::io::write(&self.to.notifier, &1u64.to_ne_bytes());
        }
    }
}

impl<M> Drop for ReplyRight<M> {
    fn drop(&mut self) {
        if !self.sent {
            self.to.pending.fetch_sub(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn notifies<M: Send + 'static>(inbox: &AnswerInbox<M>) -> bool {
        let notifier = inbox.notifier();
        let mut fds = [PollFd::new(&notifier, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).expect("a notifier") > 0
    }

    /// A pair whose answers go to the receiver if nobody wants them.
    fn pair() -> (Completion<u32>, AnswerTicket<u32>, mpsc::Receiver<u32>) {
        let (out, unwanted) = mpsc::channel();
        let (completion, ticket) = completion(move |answer| {
            let _ = out.send(answer);
        });
        (completion, ticket, unwanted)
    }

    fn poll_once(ticket: &mut AnswerTicket<u32>) -> Poll<Result<u32, Abandoned>> {
        ticket.poll_answer(&Context::from_waker(Waker::noop()))
    }

    #[test]
    fn an_answer_is_told_once() {
        let (completion, mut ticket, unwanted) = pair();
        assert_eq!(poll_once(&mut ticket), Poll::Pending);
        completion.complete(7);
        assert_eq!(poll_once(&mut ticket), Poll::Ready(Ok(7)));
        assert_eq!(poll_once(&mut ticket), Poll::Ready(Err(Abandoned)));
        drop(ticket);
        assert!(unwanted.recv().is_err(), "it was wanted");
    }

    #[test]
    fn an_answer_that_nobody_wants_is_given_back() {
        let (completion, ticket, unwanted) = pair();
        drop(ticket);
        completion.complete(1);
        assert_eq!(unwanted.recv(), Ok(1));
        let (completion, ticket, unwanted) = pair();
        completion.complete(2);
        drop(ticket);
        assert_eq!(unwanted.recv(), Ok(2));
    }

    #[test]
    fn a_completion_that_is_dropped_says_that_no_answer_comes() {
        let (completion, mut ticket, unwanted) = pair();
        assert_eq!(poll_once(&mut ticket), Poll::Pending);
        drop(completion);
        assert_eq!(poll_once(&mut ticket), Poll::Ready(Err(Abandoned)));
        drop(ticket);
        assert!(unwanted.recv().is_err());
    }

    #[test]
    fn a_task_is_woken() {
        let (completion, ticket, _unwanted) = pair();
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let answering = thread::spawn(move || completion.complete(3));
        assert_eq!(runtime.block_on(ticket), Ok(3));
        answering.join().expect("it answers");
    }

    #[test]
    fn a_message_notifies_once_and_is_taken_once() {
        let inbox = AnswerInbox::new().expect("a notifier");
        let (one, first, _) = pair();
        let (two, second, _) = pair();
        inbox.expect(first, |answer| answer);
        inbox.expect(second, |answer| answer + 1);
        assert!(!notifies(&inbox) && inbox.has_pending());
        two.complete(2);
        one.complete(1);
        assert!(notifies(&inbox) && inbox.has_pending());
        let mut taken = Vec::new();
        inbox.take(&mut taken);
        assert_eq!(taken, [3, 1]);
        assert!(!notifies(&inbox) && !inbox.has_pending());
        let (three, third, _) = pair();
        three.complete(3);
        inbox.expect(third, |answer| answer);
        assert!(notifies(&inbox), "an answer that is there already notifies, too");
    }

    #[test]
    fn no_answer_is_pending_that_will_not_come() {
        let inbox = AnswerInbox::<u32>::new().expect("a notifier");
        let (completion, ticket, _unwanted) = pair();
        inbox.expect(ticket, |answer| answer);
        drop(completion);
        assert!(!inbox.has_pending());
    }

    /// A loop may find a message because of its sockets, before it is notified of it.
    #[test]
    fn nothing_notifies_of_messages_that_are_taken() {
        let inbox = AnswerInbox::new().expect("a notifier");
        let (hand, completions) = mpsc::channel::<Completion<u32>>();
        thread::scope(|scope| {
            scope.spawn(move || completions.iter().for_each(|completion| completion.complete(1)));
            let mut messages = Vec::new();
            for _ in 0..20_000 {
                let (completion, ticket) = completion(|_| {});
                inbox.expect(ticket, |answer: u32| answer);
                hand.send(completion).expect("it answers");
                while messages.is_empty() {
                    inbox.take(&mut messages);
                }
                messages.clear();
            }
            drop(hand);
        });
        assert!(!notifies(&inbox), "all messages are taken");
    }

    #[test]
    fn no_message_of_many_threads_is_overlooked() {
        const MESSAGES: u32 = 20_000;
        let inbox = AnswerInbox::new().expect("a notifier");
        let (hand, completions) = mpsc::channel::<Completion<u32>>();
        let completions = Arc::new(Mutex::new(completions));
        thread::scope(|scope| {
            for _ in 0..2 {
                let completions = completions.clone();
                scope.spawn(move || {
                    loop {
                        let Ok(completion) = completions.lock().recv() else { return };
                        completion.complete(1);
                    }
                });
            }
            let (mut asked, mut taken, mut messages) = (0, 0, Vec::new());
            while taken < MESSAGES {
                while asked < MESSAGES.min(taken + 64) {
                    let (completion, ticket) = completion(|_| {});
                    inbox.expect(ticket, |answer: u32| answer);
                    hand.send(completion).expect("somebody answers");
                    asked += 1;
                }
                // A loop that was not notified would wait here for ever.
                let notifier = inbox.notifier();
                poll(&mut [PollFd::new(&notifier, PollFlags::IN)], None).expect("a notifier");
                inbox.take(&mut messages);
                taken += messages.drain(..).sum::<u32>();
            }
            drop(hand);
        });
        assert!(!inbox.has_pending());
    }
}
