//! What the table's locks are made of, in one place: a test swaps it for types under which every
//! order of events, and every value that a core may still see, can be tried.

pub(super) use std::cell::UnsafeCell;
pub(super) use std::hint::spin_loop;
pub(super) use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32};
pub(super) use std::thread::{sleep as nap, yield_now};
