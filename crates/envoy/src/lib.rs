//! Envoy's rate limit service and quota service, without sockets and clocks.
//!
//! - [`config`]: envoyproxy/ratelimit's configuration: YAML in, the limit of a descriptor out
//! - [`quota`]: divides a limit among the streams of Envoys that ask for quotas

pub mod config;
pub mod quota;
