//! Pairs each message of ours with the one of `envoy-types`, field by field and by name. The list
//! at the end does not compile if it lacks a field of ours.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Debug,
};

use envoy_types::pb::google::protobuf as well_known;
use prost::{Message, Name, bytes::Bytes};
use prost_types::{Any, Duration, ListValue, Struct, Value, value::Kind};

/// The same value in the types of `envoy-types`.
pub(crate) trait Twin<T> {
    fn twin(&self) -> T;
}

/// Random bytes from which values are made. When they end, all that follows is empty.
pub(crate) struct Source<'a>(pub(crate) &'a [u8]);

impl Source<'_> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }
}

pub(crate) trait Sample {
    fn sample(source: &mut Source<'_>) -> Self;
}

/// What is asked of each pair.
pub(crate) fn compare<A, B>(entropy: &[u8])
where
    A: Message + Name + Default + Twin<B> + Sample + PartialEq + Debug,
    B: Message + Name + Default + PartialEq + Debug,
{
    let ours = A::sample(&mut Source(entropy));
    let theirs: B = ours.twin();
    let mut bytes = ours.encode_to_vec();
    assert_eq!(bytes, theirs.encode_to_vec(), "{ours:?}");
    assert_eq!(B::decode(bytes.as_slice()).expect("theirs reads ours"), theirs);
    assert_eq!(A::decode(bytes.as_slice()).expect("ours reads itself"), ours);
    assert_eq!(A::type_url(), B::type_url());
    // Fields to come, of each kind on the wire: a number, eight bytes, text, four bytes.
    bytes.extend(b"\xc0\x3e\x2a\xc1\x3e12345678\xc2\x3e\x03new\xc5\x3e1234");
    assert_eq!(A::decode(bytes.as_slice()).expect("unknown fields are skipped"), ours);
}

macro_rules! plain {
    ($($type:ty),*) => {$(
        impl Twin<$type> for $type {
            fn twin(&self) -> $type {
                self.clone()
            }
        }
    )*};
}

plain!(bool, f64, i32, i64, String, u32, u64, u8);

macro_rules! integers {
    ($($type:ty),*) => {$(
        impl Sample for $type {
            fn sample(source: &mut Source<'_>) -> Self {
                // Small, negative and large numbers have different lengths on the wire.
                match source.byte() {
                    255 => Self::MAX,
                    254 => Self::MIN,
                    small => small as Self,
                }
            }
        }
    )*};
}

integers!(f64, i32, i64, u32, u64, u8);

impl Sample for bool {
    fn sample(source: &mut Source<'_>) -> Self {
        source.byte() % 2 == 1
    }
}

impl Sample for String {
    fn sample(source: &mut Source<'_>) -> Self {
        Vec::<u8>::sample(source).into_iter().map(char::from).collect()
    }
}

impl<T: Sample> Sample for Vec<T> {
    fn sample(source: &mut Source<'_>) -> Self {
        let count = source.byte() % 4;
        (0..count).map(|_| T::sample(source)).collect()
    }
}

impl<T: Sample> Sample for Option<T> {
    fn sample(source: &mut Source<'_>) -> Self {
        bool::sample(source).then(|| T::sample(source))
    }
}

/// `envoy-types` writes the entries of a map in a random order, so there is at most one.
impl<T: Sample> Sample for BTreeMap<String, T> {
    fn sample(source: &mut Source<'_>) -> Self {
        Option::sample(source).into_iter().map(|value| (String::sample(source), value)).collect()
    }
}

/// Most of these are strings in `envoy-types`, so all are UTF-8.
impl Sample for Bytes {
    fn sample(source: &mut Source<'_>) -> Self {
        String::sample(source).into()
    }
}

impl Twin<String> for Bytes {
    fn twin(&self) -> String {
        String::from_utf8(self.to_vec()).expect("sampled as text")
    }
}

impl Twin<Vec<u8>> for Bytes {
    fn twin(&self) -> Vec<u8> {
        self.to_vec()
    }
}

impl<A: Twin<B>, B> Twin<Vec<B>> for Vec<A> {
    fn twin(&self) -> Vec<B> {
        self.iter().map(Twin::twin).collect()
    }
}

impl<A: Twin<B>, B> Twin<Option<B>> for Option<A> {
    fn twin(&self) -> Option<B> {
        self.as_ref().map(Twin::twin)
    }
}

impl<A: Twin<B>, B> Twin<HashMap<String, B>> for BTreeMap<String, A> {
    fn twin(&self) -> HashMap<String, B> {
        self.iter().map(|(name, value)| (name.clone(), value.twin())).collect()
    }
}

impl Twin<well_known::UInt32Value> for u32 {
    fn twin(&self) -> well_known::UInt32Value {
        well_known::UInt32Value { value: *self }
    }
}

impl Twin<well_known::UInt64Value> for u64 {
    fn twin(&self) -> well_known::UInt64Value {
        well_known::UInt64Value { value: *self }
    }
}

/// Messages: ours, theirs, all fields of ours. What only theirs has stays empty.
macro_rules! messages {
    ($($ours:ty = $theirs:ty { $($field:ident),* })*) => {$(
        impl Twin<$theirs> for $ours {
            #[allow(clippy::needless_update, reason = "theirs often has more fields")]
            fn twin(&self) -> $theirs {
                type Theirs = $theirs;
                Theirs { $($field: self.$field.twin(),)* ..Default::default() }
            }
        }

        impl Sample for $ours {
            fn sample(_source: &mut Source<'_>) -> Self {
                type Ours = $ours;
                Ours { $($field: Sample::sample(_source)),* }
            }
        }
    )*};
}

/// Alternatives: ours, theirs, the variants.
macro_rules! choices {
    ($($ours:ty = $theirs:ty { $($variant:ident),* })*) => {$(
        impl Twin<$theirs> for $ours {
            fn twin(&self) -> $theirs {
                type Ours = $ours;
                type Theirs = $theirs;
                match self {
                    $(Ours::$variant(value) => Theirs::$variant(value.twin())),*
                }
            }
        }

        impl Sample for $ours {
            fn sample(source: &mut Source<'_>) -> Self {
                type Ours = $ours;
                let variants: &[fn(&mut Source<'_>) -> Ours] =
                    &[$(|source| Ours::$variant(Sample::sample(source))),*];
                variants[usize::from(source.byte()) % variants.len()](source)
            }
        }
    )*};
}

messages! {
    Any = well_known::Any { type_url, value }
    Duration = well_known::Duration { seconds, nanos }
    ListValue = well_known::ListValue { values }
    Struct = well_known::Struct { fields }
    Value = well_known::Value { kind }
}

choices! {
    Kind = well_known::value::Kind {
        NullValue, NumberValue, StringValue, BoolValue, StructValue, ListValue
    }
}

mod pairs {
    use envoy_types::pb::{
        envoy::{
            config::core::v3 as core_theirs,
            extensions::common::ratelimit::v3 as descriptor_theirs,
            service::{
                discovery::v3 as discovery_theirs, rate_limit_quota::v3 as quota_theirs,
                ratelimit::v3 as ratelimit_theirs,
            },
            r#type::v3 as strategy_theirs,
        },
        google::rpc as rpc_theirs,
        ratelimit::config::ratelimit::v3 as config_theirs,
    };
    use tidegate_envoy::proto::{
        config, core, descriptor, discovery, quota, ratelimit, rpc, strategy,
    };

    use super::{Sample, Source, Twin};

    messages! {
        config::RateLimitConfig = config_theirs::RateLimitConfig { name, domain, descriptors }
        config::RateLimitDescriptor = config_theirs::RateLimitDescriptor {
            key, value, rate_limit, descriptors, shadow_mode, detailed_metric, quota_mode, metadata
        }
        config::RateLimitPolicy = config_theirs::RateLimitPolicy {
            unit, requests_per_unit, unlimited, name, replaces
        }
        config::RateLimitReplace = config_theirs::RateLimitReplace { name }
        core::HeaderValue = core_theirs::HeaderValue { key, value, raw_value }
        core::Node = core_theirs::Node { id, cluster, metadata, user_agent_name }
        descriptor::RateLimitDescriptor = descriptor_theirs::RateLimitDescriptor {
            entries, limit, hits_addend, is_negative_hits
        }
        descriptor::rate_limit_descriptor::Entry = descriptor_theirs::rate_limit_descriptor::Entry {
            key, value
        }
        descriptor::rate_limit_descriptor::RateLimitOverride
            = descriptor_theirs::rate_limit_descriptor::RateLimitOverride {
                requests_per_unit, unit
            }
        discovery::DiscoveryRequest = discovery_theirs::DiscoveryRequest {
            version_info, node, resource_names, type_url, response_nonce, error_detail
        }
        discovery::DiscoveryResponse = discovery_theirs::DiscoveryResponse {
            version_info, resources, type_url, nonce
        }
        quota::RateLimitQuotaUsageReports = quota_theirs::RateLimitQuotaUsageReports {
            domain, bucket_quota_usages
        }
        quota::rate_limit_quota_usage_reports::BucketQuotaUsage
            = quota_theirs::rate_limit_quota_usage_reports::BucketQuotaUsage {
                bucket_id, time_elapsed, num_requests_allowed, num_requests_denied
            }
        quota::RateLimitQuotaResponse = quota_theirs::RateLimitQuotaResponse { bucket_action }
        quota::rate_limit_quota_response::BucketAction
            = quota_theirs::rate_limit_quota_response::BucketAction { bucket_id, bucket_action }
        quota::rate_limit_quota_response::bucket_action::QuotaAssignmentAction
            = quota_theirs::rate_limit_quota_response::bucket_action::QuotaAssignmentAction {
                assignment_time_to_live, rate_limit_strategy
            }
        quota::rate_limit_quota_response::bucket_action::AbandonAction
            = quota_theirs::rate_limit_quota_response::bucket_action::AbandonAction {}
        quota::BucketId = quota_theirs::BucketId { bucket }
        ratelimit::RateLimitRequest = ratelimit_theirs::RateLimitRequest {
            domain, descriptors, hits_addend
        }
        ratelimit::RateLimitResponse = ratelimit_theirs::RateLimitResponse {
            overall_code, statuses, response_headers_to_add, request_headers_to_add, raw_body,
            dynamic_metadata
        }
        ratelimit::rate_limit_response::RateLimit
            = ratelimit_theirs::rate_limit_response::RateLimit { requests_per_unit, unit, name }
        ratelimit::rate_limit_response::DescriptorStatus
            = ratelimit_theirs::rate_limit_response::DescriptorStatus {
                code, current_limit, limit_remaining, duration_until_reset
            }
        rpc::Status = rpc_theirs::Status { code, message, details }
        strategy::RateLimitStrategy = strategy_theirs::RateLimitStrategy { strategy }
        strategy::rate_limit_strategy::RequestsPerTimeUnit
            = strategy_theirs::rate_limit_strategy::RequestsPerTimeUnit {
                requests_per_time_unit, time_unit
            }
        strategy::TokenBucket = strategy_theirs::TokenBucket {
            max_tokens, tokens_per_fill, fill_interval
        }
    }

    choices! {
        quota::rate_limit_quota_response::bucket_action::BucketAction
            = quota_theirs::rate_limit_quota_response::bucket_action::BucketAction {
                QuotaAssignmentAction, AbandonAction
            }
        strategy::rate_limit_strategy::Strategy = strategy_theirs::rate_limit_strategy::Strategy {
            BlanketRule, RequestsPerTimeUnit, TokenBucket
        }
    }
}
