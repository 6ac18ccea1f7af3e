//! Generates messages and services from `proto/`, and the descriptors that reflection serves.
//!
//! By `protoc`, which the etcd client needs anyway. `protox`, which is Rust alone, made a clean
//! build of this crate take 68 seconds instead of 61 (one core).

use std::{env, io, path::Path};

use prost_types::field_descriptor_proto::Type;
use prost_types::{DescriptorProto, FieldDescriptorProto};
use tonic_prost_build::{Config, FileDescriptorSet};

/// The files that no other file imports.
const PROTOS: [&str; 4] = [
    "proto/envoy/service/ratelimit/v3/rls.proto",
    "proto/envoy/service/rate_limit_quota/v3/rlqs.proto",
    "proto/envoy/service/discovery/v3/ads.proto",
    "proto/ratelimit/config/ratelimit/v3/rls_conf.proto",
];

/// Fields that Envoy calls strings and fills with what clients send: the values of headers, which
/// need not be UTF-8. Messages with such a string are refused, and Envoy lets a request pass whose
/// call fails; so they are read as bytes, which are the same on the wire.
///
/// A bucket's names are the operator's, but its values may be taken from headers (`custom_value`
/// of `bucket_id_builder`), and one bad value would end the stream that reports all buckets. Such a
/// bucket must not be named in answers: Envoy's protobuf writes such strings but refuses to read
/// them.
const CLIENTS_FIELDS: [&str; 3] = [
    ".envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry.key",
    ".envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry.value",
    ".envoy.service.rate_limit_quota.v3.BucketId.BucketEntry.value",
];

fn main() -> io::Result<()> {
    println!("cargo:rerun-if-changed=proto");
    let out = env::var_os("OUT_DIR").ok_or(io::ErrorKind::NotFound)?;
    let mut config = Config::new();
    config
        .file_descriptor_set_path(Path::new(&out).join("descriptors.bin"))
        .include_file("packages.rs")
        // The xDS client needs the names that type URLs are made of.
        .enable_type_names()
        .type_name_domain(["."], "type.googleapis.com")
        .bytes([
            // One configured body is shared by all answers.
            ".envoy.service.ratelimit.v3.RateLimitResponse.raw_body",
            // What clients send is not copied out of the message.
            ".envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry",
            ".envoy.service.rate_limit_quota.v3.BucketId",
        ])
        // The key of a bucket has its entries sorted by name.
        .btree_map([".envoy.service.rate_limit_quota.v3.BucketId.bucket"]);
    // This writes the descriptors as they are, with strings, and only what follows sees bytes.
    let mut set = config.load_fds(&PROTOS, &["proto"])?;
    for path in CLIENTS_FIELDS {
        let missing = || io::Error::other(format!("{path} is not a field of proto/"));
        find_field(&mut set, path).ok_or_else(missing)?.set_type(Type::Bytes);
    }
    tonic_prost_build::configure()
        // Connections are the server's affair; this crate has no sockets.
        .build_transport(false)
        // One function per service is longer than ours may be, and not ours to split.
        .server_mod_attribute(".", "#[allow(clippy::too_many_lines)]")
        .compile_fds_with_config(set, config)
}

fn find_field<'a>(
    set: &'a mut FileDescriptorSet,
    path: &str,
) -> Option<&'a mut FieldDescriptorProto> {
    set.file.iter_mut().find_map(|file| {
        let in_file = path.strip_prefix('.')?.strip_prefix(file.package())?.strip_prefix('.')?;
        find_in(&mut file.message_type, in_file)
    })
}

fn find_in<'a>(
    messages: &'a mut [DescriptorProto],
    path: &str,
) -> Option<&'a mut FieldDescriptorProto> {
    let (name, rest) = path.split_once('.')?;
    let message = messages.iter_mut().find(|message| message.name() == name)?;
    if rest.contains('.') {
        return find_in(&mut message.nested_type, rest);
    }
    message.field.iter_mut().find(|field| field.name() == rest)
}
