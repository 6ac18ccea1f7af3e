//! The law of Tidegate: what a key is, which limits it has, and whether a use of it may happen.
//!
//! Pure: no I/O, no clock, no async, no randomness. Time comes in as [`Now`]; state comes in and
//! goes out as [`State`]. The same inputs give the same answer, always.
//!
//! - [`key`]: the form of keys that doors compose, and their bound
//! - [`limit`]: the limit grammar (`"22 per 20s"`) and what a limit is
//! - [`rules`]: which limits apply to a key: first match wins
//! - [`algorithms`]: one file for each algorithm: judge, apply, explain, forget
//! - [`state`]: what an algorithm remembers of a key, and its durable encoding
//! - [`verdict`]: operations, judgements and verdicts
//! - [`time`]: nanoseconds, and the pair of clocks that a decision sees

pub mod algorithms;
pub mod key;
pub mod limit;
pub mod rules;
pub mod state;
pub mod time;
pub mod verdict;

pub use limit::{Algorithm, Limit};
pub use state::State;
pub use time::{Nanos, Now};
pub use verdict::{JointOutcome, Judgement, LimitVerdict, Op, Recorded};
