//! An answer that comes later, from another thread.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

/// What the one who asks and the one who answers share.
struct Letter<T> {
    answer: Option<T>,
    waker: Option<Waker>,
    /// Nobody will read it any more.
    refused: bool,
}

/// The end of the one who asks.
pub(super) struct Later<T>(Arc<Mutex<Letter<T>>>);

/// The end of the one who answers.
pub(super) struct Reply<T>(Arc<Mutex<Letter<T>>>);

/// An answer to come.
pub(super) fn later<T>() -> (Reply<T>, Later<T>) {
    let letter = Arc::new(Mutex::new(Letter { answer: None, waker: None, refused: false }));
    (Reply(letter.clone()), Later(letter))
}

impl<T> Later<T> {
    /// The answer, once.
    pub(super) fn poll(&self, cx: &Context<'_>) -> Poll<T> {
        let mut letter = self.0.lock();
        if let Some(answer) = letter.answer.take() {
            return Poll::Ready(answer);
        }
        letter.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Nobody waits any longer: an answer that is there already is handed back, one that comes
    /// goes back to who gives it.
    pub(super) fn refuse(self) -> Option<T> {
        let mut letter = self.0.lock();
        letter.refused = true;
        letter.answer.take()
    }
}

impl<T> Reply<T> {
    /// Answers; what nobody wants comes back.
    pub(super) fn give(self, answer: T) -> Option<T> {
        let mut letter = self.0.lock();
        if letter.refused {
            return Some(answer);
        }
        letter.answer = Some(answer);
        let waker = letter.waker.take();
        drop(letter);
        if let Some(waker) = waker {
            waker.wake();
        }
        None
    }
}
