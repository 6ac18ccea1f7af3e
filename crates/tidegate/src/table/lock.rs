//! The lock of a shard: held for tens of nanoseconds, freed by a plain store.
//!
//! A lock that parks its waiters must ask on the way out whether there are any, with a second
//! locked instruction, and the two were a fifth of a decision in the cache. Here a waiter spins,
//! then yields, then naps, so a holder that lost its core gets it back. There is no queue:
//! its holder must be quick.
#![allow(unsafe_code, reason = "the guard is the proof that one thread has the value, see below")]

use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

use super::sync::{AtomicBool, UnsafeCell, nap, spin_loop, yield_now};

/// Looks at a lock that is taken before the thread yields its core.
const SPINS: u32 = 100;
/// Looks, some of them after offering the core, before the waiter naps.
const LOOKS: u32 = 150;
/// How long it naps: longer than any holder works, shorter than a client notices.
const NAP: Duration = Duration::from_micros(100);

/// A value that one thread at a time has.
pub(super) struct Lock<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: only the holder of the guard reaches the value, and `lock` gives out one at a time: the
// swap that takes it acquires what the store that freed it released.
unsafe impl<T: Send> Sync for Lock<T> {}

/// The right to the value, until it is dropped.
pub(super) struct Guard<'a, T>(&'a Lock<T>);

impl<T> Lock<T> {
    pub(super) fn new(value: T) -> Self {
        Self { taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Waits until no other thread has the value.
    #[inline(always)]
    pub(super) fn lock(&self) -> Guard<'_, T> {
        if self.taken.swap(true, Acquire) {
            wait_for(&self.taken);
        }
        Guard(self)
    }
}

/// Takes what another thread has, as soon as it is free.
#[cold]
pub(super) fn wait_for(taken: &AtomicBool) {
    let mut looks = 0;
    while taken.load(Relaxed) || taken.swap(true, Acquire) {
        match looks {
            0..SPINS => spin_loop(),
            SPINS..LOOKS => yield_now(),
            _ => nap(NAP),
        }
        looks = looks.saturating_add(1);
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.taken.store(false, Release);
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: this guard is the only one.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard is the only one, and it is borrowed mutably.
        unsafe { &mut *self.0.value.get() }
    }
}
