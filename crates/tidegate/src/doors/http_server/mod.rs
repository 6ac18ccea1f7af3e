//! What listeners that speak HTTP with JSON have in common, below their own paths.
//!
//! - `bound`: takes the addresses of a door, and serves it
//! - `connections`: accepts, bounds and drains connections
//! - `guard`: what every request passes on its way in and out
//! - `host`: which Host headers are answered
//! - `body`: reads a JSON body within bounds
//! - `health`: `/healthz`, `/readyz`, `/metrics`
//! - `json`, `problem`: the shapes of answers
//!
//! It is no door, and knows no door that uses it.

pub(crate) mod body;
pub(crate) mod bound;
pub(crate) mod connections;
pub(crate) mod guard;
pub(crate) mod health;
pub(crate) mod host;
pub(crate) mod json;
pub(crate) mod problem;
#[cfg(test)]
pub(crate) mod tests;
