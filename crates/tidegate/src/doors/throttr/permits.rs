//! The memory that answers about the whole server may take together, in bytes.
//!
//! An answer is built under a permit and keeps it until it is sent. Permits are given in the order
//! of asking, so that a large answer does not wait for ever behind small ones. An answer that is
//! larger than all there is gets the whole budget and is the only one in memory then.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use parking_lot::{Condvar, Mutex};

/// A budget of bytes.
pub(super) struct Permits {
    max_bytes: usize,
    state: Mutex<State>,
    changed: Condvar,
    waiting: AtomicUsize,
}

#[derive(Default)]
struct State {
    taken_bytes: usize,
    /// The numbers of the next asker and of the one that is served next.
    next_asker: u64,
    next_served: u64,
}

/// The right to keep so many bytes in memory. Given back when dropped.
pub(super) struct Permit {
    permits: Arc<Permits>,
    bytes: usize,
}

impl Permits {
    pub(super) fn new(max_bytes: usize) -> Arc<Self> {
        Arc::new(Self {
            max_bytes,
            state: Mutex::default(),
            changed: Condvar::new(),
            waiting: AtomicUsize::new(0),
        })
    }

    /// Blocks until `bytes` are free and all earlier calls have their permits.
    pub(super) fn wait(self: &Arc<Self>, bytes: usize) -> Permit {
        let bytes = bytes.min(self.max_bytes);
        let mut state = self.state.lock();
        let asker = state.next_asker;
        state.next_asker += 1;
        while state.next_served != asker || state.taken_bytes + bytes > self.max_bytes {
            self.waiting.fetch_add(1, Relaxed);
            self.changed.wait(&mut state);
            self.waiting.fetch_sub(1, Relaxed);
        }
        state.next_served += 1;
        state.taken_bytes += bytes;
        drop(state);
        self.changed.notify_all();
        Permit { permits: self.clone(), bytes }
    }

    /// Whether a thread waits for a permit.
    pub(super) fn are_wanted(&self) -> bool {
        self.waiting.load(Relaxed) > 0
    }
}

impl Permit {
    /// Changes it to what the answer takes, now that it is known.
    pub(super) fn set_bytes(&mut self, bytes: usize) {
        let bytes = bytes.min(self.permits.max_bytes);
        let mut state = self.permits.state.lock();
        state.taken_bytes = state.taken_bytes - self.bytes + bytes;
        self.bytes = bytes;
        drop(state);
        self.permits.changed.notify_all();
    }

    /// How many bytes it is for.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether a thread waits for bytes to be given back.
    pub(super) fn is_wanted(&self) -> bool {
        self.permits.are_wanted()
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.permits.state.lock().taken_bytes -= self.bytes;
        self.permits.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    #[test]
    fn who_asks_for_too_much_waits_and_nobody_overtakes() {
        let permits = Permits::new(100);
        let first = permits.wait(60);
        let (told, order) = channel();
        thread::scope(|scope| {
            let (asking, large) = (permits.clone(), told.clone());
            scope.spawn(move || large.send(("large", asking.wait(1000))));
            while !permits.are_wanted() {
                thread::yield_now();
            }
            let (asking, small) = (permits.clone(), told);
            scope.spawn(move || small.send(("small", asking.wait(10))));
            while permits.waiting.load(Relaxed) < 2 {
                thread::yield_now();
            }
            assert!(order.try_recv().is_err(), "10 bytes would fit, but came second");
            drop(first);
            let (name, mut permit) = order.recv().expect("the first in line");
            assert_eq!((name, permit.bytes()), ("large", 100));
            permit.set_bytes(90);
            let (name, permit) = order.recv().expect("the second in line");
            assert_eq!((name, permit.bytes()), ("small", 10));
        });
        assert_eq!(permits.state.lock().taken_bytes, 0);
        assert!(!permits.are_wanted());
    }
}
