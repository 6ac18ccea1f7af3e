//! What is remembered of one key under one limit.
//!
//! Each algorithm owns its variant; nobody else reads the fields. The durable encoding at the
//! bottom is what snapshots and remote stores hold: versioned, fixed little-endian words.

use crate::algorithms::{
    average, fixed_window, gcra, in_flight, jarl, sliding_log, sliding_window, smockron,
};

/// The memory of one limit of one key. `None` is a key never used.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum State {
    /// Nothing is remembered.
    #[default]
    None,
    /// Token bucket.
    Gcra(gcra::Bucket),
    /// One counter in an aligned window.
    FixedWindow(fixed_window::Window),
    /// Two counters in aligned windows.
    SlidingWindow(sliding_window::Windows),
    /// Every use of the last period.
    SlidingLog(Box<sliding_log::Log>),
    /// An exponentially weighted rate.
    Average(average::Rate),
    /// Bookings of callers that wait.
    Jarl(Box<jarl::Bookings>),
    /// The last `burst` uses.
    Smockron(Box<smockron::History>),
    /// Uses that have not ended.
    InFlight(in_flight::Held),
}

// A slot of the memory store holds a state inline: its size is bytes per key.
const _: () = assert!(size_of::<State>() == 32);

impl State {
    /// Bytes that this state holds outside of itself, counted towards `max_bytes`.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        match self {
            State::SlidingLog(log) => size_of_val(&**log) + log.heap_bytes(),
            State::Jarl(bookings) => size_of_val(&**bookings) + bookings.heap_bytes(),
            State::Smockron(history) => size_of_val(&**history) + history.heap_bytes(),
            _ => 0,
        }
    }
}
