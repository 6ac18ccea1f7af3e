//! Where answers of a remote store wait for a loop that is a thread of its own.
//!
//! A loop hands out envelopes, as many at a time as it is ready to keep pending, and goes on. The
//! store's thread posts them back, and a bell that the loop waits for beside its sockets becomes
//! readable. Nobody ever waits here. What is in a letter is the door's business.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};

/// One loop's box.
pub(crate) struct Mailbox<T> {
    letters: Mutex<Vec<T>>,
    bell: OwnedFd,
    /// Envelopes that are out, and letters that were not taken yet.
    owed: AtomicUsize,
    owed_max: usize,
}

/// The right to post one letter. One that is let go of without a letter is a place free again.
pub(crate) struct Envelope<T> {
    /// The answers to a door that was closed interest nobody.
    to: Weak<Mailbox<T>>,
    posted: bool,
}

impl<T> Mailbox<T> {
    /// An empty box of a loop that keeps so many requests pending at most.
    pub(crate) fn new(owed_max: usize) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            letters: Mutex::default(),
            bell: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
            owed: AtomicUsize::new(0),
            owed_max,
        }))
    }

    /// What becomes readable when there are letters.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// An envelope for one more request, unless too many are pending. Only the loop asks.
    pub(crate) fn envelope(self: &Arc<Self>) -> Option<Envelope<T>> {
        if self.owed.load(Relaxed) >= self.owed_max {
            return None;
        }
        self.owed.fetch_add(1, Relaxed);
        Some(Envelope { to: Arc::downgrade(self), posted: false })
    }

    /// Whether somebody is still to be answered.
    pub(crate) fn is_owed(&self) -> bool {
        self.owed.load(Relaxed) > 0
    }

    /// Moves all letters behind `out`, in the order in which they were posted.
    pub(crate) fn take(&self, out: &mut Vec<T>) {
        // Silenced before the letters are taken: one that comes in between rings again.
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        let before = out.len();
        out.append(&mut self.letters.lock());
        self.owed.fetch_sub(out.len() - before, Relaxed);
    }
}

impl<T> Envelope<T> {
    /// Posts the letter, and wakes the loop unless it was woken for an earlier one.
    pub(crate) fn post(mut self, letter: T) {
        let Some(mailbox) = self.to.upgrade() else { return };
        self.posted = true;
        let mut letters = mailbox.letters.lock();
        letters.push(letter);
        let first = letters.len() == 1;
        drop(letters);
        if first {
            // The counter cannot be full: it is emptied whenever the loop looks.
            let _ = rustix::io::write(&mailbox.bell, &1u64.to_ne_bytes());
        }
    }
}

impl<T> Drop for Envelope<T> {
    fn drop(&mut self) {
        if !self.posted
            && let Some(mailbox) = self.to.upgrade()
        {
            mailbox.owed.fetch_sub(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn rings<T>(mailbox: &Mailbox<T>) -> bool {
        let bell = mailbox.bell();
        let mut fds = [PollFd::new(&bell, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).expect("a bell") > 0
    }

    #[test]
    fn a_letter_rings_once_and_is_taken_once() {
        let mailbox = Mailbox::new(3).expect("a bell");
        let [one, two] = [(); 2].map(|()| mailbox.envelope().expect("room"));
        assert!(!rings(&mailbox));
        two.post(2);
        one.post(1);
        assert!(rings(&mailbox) && mailbox.is_owed());
        let mut taken = Vec::new();
        mailbox.take(&mut taken);
        assert_eq!(taken, [2, 1]);
        assert!(!rings(&mailbox) && !mailbox.is_owed());
        mailbox.envelope().expect("room").post(3);
        assert!(rings(&mailbox), "whatever comes later rings again");
    }

    #[test]
    fn no_more_is_pending_than_was_said() {
        let mailbox = Mailbox::new(2).expect("a bell");
        let (one, two) = (mailbox.envelope(), mailbox.envelope());
        assert!(one.is_some() && two.is_some() && mailbox.envelope().is_none());
        drop(one);
        let three = mailbox.envelope().expect("a place that was let go of");
        three.post(3);
        assert!(mailbox.envelope().is_none(), "a letter that waits takes a place");
        mailbox.take(&mut Vec::new());
        assert!(mailbox.envelope().is_some() && mailbox.is_owed());
    }

    #[test]
    fn letters_to_a_closed_door_are_thrown_away() {
        let mailbox = Mailbox::new(1).expect("a bell");
        let envelope = mailbox.envelope().expect("room");
        drop(mailbox);
        let letter = Arc::new(());
        envelope.post(letter.clone());
        assert_eq!(Arc::strong_count(&letter), 1);
    }

    #[test]
    fn no_letter_of_many_threads_is_overlooked() {
        const LETTERS: usize = 20_000;
        let mailbox = Mailbox::new(64).expect("a bell");
        let (hand, envelopes) = std::sync::mpsc::channel::<Envelope<usize>>();
        let envelopes = Arc::new(Mutex::new(envelopes));
        thread::scope(|scope| {
            for _ in 0..2 {
                let envelopes = envelopes.clone();
                scope.spawn(move || {
                    loop {
                        let Ok(envelope) = envelopes.lock().recv() else { return };
                        envelope.post(1);
                    }
                });
            }
            let (mut out, mut taken, mut letters) = (0, 0, Vec::new());
            while taken < LETTERS {
                while out < LETTERS
                    && let Some(envelope) = mailbox.envelope()
                {
                    hand.send(envelope).expect("somebody posts");
                    out += 1;
                }
                // A loop that was not woken would wait here for ever.
                let bell = mailbox.bell();
                poll(&mut [PollFd::new(&bell, PollFlags::IN)], None).expect("a bell");
                mailbox.take(&mut letters);
                taken += letters.drain(..).count();
            }
            drop(hand);
        });
        assert!(!mailbox.is_owed());
    }
}
