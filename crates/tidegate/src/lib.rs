//! Tidegate: one rate limiter behind many doors.
//!
//! The way of a request: socket, codec, limiter, store, algorithm, and back.
//!
//! - [`doors`]: one folder for each protocol; a door turns requests into keys
//! - [`limiter`]: rules, slots, verdicts; what every door asks
//! - [`stores`]: where keys are remembered
//! - [`records`]: counters and buffers with a time to live, beside the limiter
//! - `table`, `budget`: what both are kept in, and the bytes that they share
//! - [`uses`]: uses in flight that a client ends later
//! - [`waiting`]: holds requests until they may go
//! - [`metrics`]: what is counted
//! - [`clock`]: the only module that reads a clock; `completions`: answers that come later
//! - [`config`]: the file, read and checked whole
//! - [`settings`]: what its tables are made of: addresses, units, rules
//! - [`server`]: spawns, binds, stops, reloads, changes rules
//! - [`control`], [`shutdown`]: what doors may ask of the process, and its sign to stop
//! - [`cli`], [`logs`]: the command line, and what it writes to standard error

mod budget;
pub mod cli;
pub mod clock;
mod completions;
pub mod config;
pub mod control;
pub mod doors;
pub mod limiter;
pub mod logs;
pub mod metrics;
pub mod records;
pub mod server;
pub mod settings;
pub mod shutdown;
pub mod snapshot;
pub mod stores;
mod table;
pub mod uses;
pub mod waiting;
