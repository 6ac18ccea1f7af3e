//! Envoy's rate limit service and quota service, without sockets and clocks.
//!
//! - [`config`]: envoyproxy/ratelimit's configuration: YAML in, the limit of a descriptor out
//! - [`json`]: a rate limit request and its answer as proto3 JSON
//! - [`proto`]: messages and services as they are on the wire
//! - [`quota`]: divides a limit among the streams of Envoys that ask for quotas
//! - [`report_pieces`]: cuts long reports of quotas into short ones
//! - [`xds`]: the configuration as a management server sends it

pub mod config;
pub mod json;
pub mod proto;
pub mod quota;
pub mod report_pieces;
pub mod xds;
