//! The locks and atomics of the wait queues, in one place: their tests swap them for ones whose
//! every order of events can be tried.

pub(super) use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

pub(super) use parking_lot::Mutex;
