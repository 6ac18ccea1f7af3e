//! Messages and services of Envoy, generated from our own `proto/`: only the fields that Tidegate
//! reads or writes, under their names and numbers, so that bytes and gRPC paths are Envoy's.
//! Strings that clients fill are bytes here (see `build.rs`): they need not be UTF-8.
//!
//! Nothing here decides or validates anything.

#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    reason = "generated from fields that Envoy documents"
)]
mod packages {
    include!(concat!(env!("OUT_DIR"), "/packages.rs"));
}

pub use packages::{
    envoy::{
        config::core::v3 as core, extensions::common::ratelimit::v3 as descriptor,
        service::discovery::v3 as discovery, service::rate_limit_quota::v3 as quota,
        service::ratelimit::v3 as ratelimit, r#type::v3 as strategy,
    },
    google::rpc,
    ratelimit::config::ratelimit::v3 as config,
};

/// The longest message of a client, as envoyproxy/ratelimit has it.
pub const MESSAGE_BYTES_MAX: usize = 4 << 20;

/// All of `proto/` and what it imports as an encoded `FileDescriptorSet`, for gRPC reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
