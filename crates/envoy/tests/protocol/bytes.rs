//! Messages and enumerations are on the wire what those of `envoy-types` are.

use envoy_types::pb::{
    envoy::{
        service::{
            discovery::v3 as discovery_theirs, rate_limit_quota::v3 as quota_theirs,
            ratelimit::v3 as ratelimit_theirs,
        },
        r#type::v3 as strategy_theirs,
    },
    ratelimit::config::ratelimit::v3 as config_theirs,
};
use proptest::{collection::vec, prelude::*};
use prost::Message;
use prost_types::field_descriptor_proto::Type;
use tidegate_envoy::proto::{FILE_DESCRIPTOR_SET, config, discovery, quota, ratelimit, strategy};

use crate::twins::compare;

proptest! {
    #[test]
    fn messages_are_the_same_bytes(entropy in vec(any::<u8>(), 0..300)) {
        compare::<ratelimit::RateLimitRequest, ratelimit_theirs::RateLimitRequest>(&entropy);
        compare::<ratelimit::RateLimitResponse, ratelimit_theirs::RateLimitResponse>(&entropy);
        compare::<
            quota::RateLimitQuotaUsageReports, quota_theirs::RateLimitQuotaUsageReports
        >(&entropy);
        compare::<quota::RateLimitQuotaResponse, quota_theirs::RateLimitQuotaResponse>(&entropy);
        compare::<discovery::DiscoveryRequest, discovery_theirs::DiscoveryRequest>(&entropy);
        compare::<discovery::DiscoveryResponse, discovery_theirs::DiscoveryResponse>(&entropy);
        compare::<config::RateLimitConfig, config_theirs::RateLimitConfig>(&entropy);
    }

    #[test]
    fn arbitrary_bytes_are_read_or_refused(bytes in vec(any::<u8>(), 0..200)) {
        let _ = ratelimit::RateLimitRequest::decode(bytes.as_slice());
        let _ = quota::RateLimitQuotaUsageReports::decode(bytes.as_slice());
        let _ = discovery::DiscoveryResponse::decode(bytes.as_slice());
        let _ = config::RateLimitConfig::decode(bytes.as_slice());
    }
}

#[test]
fn maps_of_many_entries_are_read() {
    let entries = ["a", "b", "c"].map(|name| (name.to_owned(), "1".to_owned()));
    let theirs = quota_theirs::BucketId { bucket: entries.clone().into() };
    let ours = quota::BucketId::decode(theirs.encode_to_vec().as_slice()).expect("readable");
    assert_eq!(ours.bucket, entries.map(|(name, value)| (name, value.into())).into());
}

/// Two descriptors, of which one has a key and one a value that is not UTF-8.
#[test]
fn entries_need_not_be_utf8() {
    let bytes =
        b"\x0a\x01d\x12\x08\x0a\x06\x0a\x01\xff\x12\x01v\x12\x09\x0a\x07\x0a\x01k\x12\x02\xc3\x28";
    let ours = ratelimit::RateLimitRequest::decode(&bytes[..]).expect("readable");
    assert_eq!(ours.domain, "d");
    let entries: Vec<_> = { ours.descriptors.iter().flat_map(|descriptor| &descriptor.entries) }
        .map(|entry| (&entry.key[..], &entry.value[..]))
        .collect();
    assert_eq!(entries, [(&b"\xff"[..], &b"v"[..]), (b"k", b"\xc3\x28")]);
    assert_eq!(ours.encode_to_vec(), bytes);
    assert!(ratelimit_theirs::RateLimitRequest::decode(&bytes[..]).is_err());
    // The domain is the operator's.
    assert!(ratelimit::RateLimitRequest::decode(&b"\x0a\x01\xff"[..]).is_err());
}

#[test]
fn values_of_buckets_need_not_be_utf8() {
    let bytes = b"\x0a\x06\x0a\x01k\x12\x01\xff";
    let ours = quota::BucketId::decode(&bytes[..]).expect("readable");
    assert_eq!(ours.bucket["k"], &b"\xff"[..]);
    assert_eq!(ours.encode_to_vec(), bytes);
    assert!(quota_theirs::BucketId::decode(&bytes[..]).is_err());
    // Names of values are the operator's.
    assert!(quota::BucketId::decode(&b"\x0a\x06\x0a\x01\xff\x12\x01v"[..]).is_err());
}

#[test]
fn names_and_numbers_of_enumerations_are_the_same() {
    macro_rules! same {
        ($($ours:ty = $theirs:ty),* $(,)?) => {$(
            for number in -1..20 {
                let ours = <$ours>::try_from(number).map(|value| value.as_str_name()).ok();
                let theirs = <$theirs>::try_from(number).map(|value| value.as_str_name()).ok();
                assert_eq!(ours, theirs, "{number} of {}", stringify!($ours));
            }
        )*};
    }
    same!(
        config::RateLimitUnit = config_theirs::RateLimitUnit,
        ratelimit::rate_limit_response::Code = ratelimit_theirs::rate_limit_response::Code,
        ratelimit::rate_limit_response::rate_limit::Unit =
            ratelimit_theirs::rate_limit_response::rate_limit::Unit,
        strategy::RateLimitUnit = strategy_theirs::RateLimitUnit,
        strategy::rate_limit_strategy::BlanketRule =
            strategy_theirs::rate_limit_strategy::BlanketRule,
    );
}

#[test]
fn reflection_says_string_as_envoy_does() {
    let set = prost_types::FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).expect("a set");
    let messages: Vec<_> = { set.file.iter().flat_map(|file| &file.message_type) }
        .flat_map(|message| &message.nested_type)
        .filter(|message| ["Entry", "BucketEntry"].contains(&message.name()))
        .collect();
    assert_eq!(messages.len(), 2);
    for field in messages.iter().flat_map(|message| &message.field) {
        assert_eq!(field.r#type(), Type::String, "{}", field.name());
    }
}

#[test]
fn reflection_has_every_service_and_import() {
    let set = prost_types::FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).expect("a set");
    let services = set.file.iter().flat_map(|file| &file.service).map(|service| service.name());
    let mut services: Vec<_> = services.collect();
    services.sort_unstable();
    let expected = ["AggregatedDiscoveryService", "RateLimitQuotaService", "RateLimitService"];
    assert_eq!(services, expected);
    for import in set.file.iter().flat_map(|file| &file.dependency) {
        assert!(set.file.iter().any(|file| file.name() == import), "{import} is missing");
    }
}
