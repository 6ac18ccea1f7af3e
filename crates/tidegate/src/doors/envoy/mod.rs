//! What doors have in common that take calls of Envoy's rate limit service, over gRPC or as JSON.
//!
//! - `rate_limit`: one call: from descriptors to keys to an answer; `together`: descriptors that
//!   are counted all or none
//! - `asked`, `statuses`, `answer`: its three steps; `in_flight`: uses that end later;
//!   `metadata`: what an answer may carry
//! - `settings`: how calls are counted and answered
//! - `statistics`, `page`: what envoyproxy/ratelimit's own metrics tell, and how they are shown
//!
//! It is no door, and knows no door that uses it. Messages and keys are `tidegate_envoy`'s.

mod answer;
pub(crate) mod asked;
mod in_flight;
mod metadata;
pub(crate) mod page;
pub(crate) mod rate_limit;
pub(crate) mod settings;
mod statistics;
mod statuses;
mod together;
