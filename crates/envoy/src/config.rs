//! The configuration of envoyproxy/ratelimit.
