//! Tidegate: one rate limiter behind many doors.
//!
//! A request walks one corridor: socket, codec, limiter, store, algorithm, and back.
//!
//! - [`limiter`]: rules, slots, verdicts; what every door asks
//! - [`stores`]: where keys are remembered
//! - [`metrics`]: what is counted
//! - [`clock`]: the only room that reads a clock

pub mod clock;
pub mod limiter;
pub mod metrics;
pub mod stores;
mod table;
