//! Any bytes as a call of Envoy's rate limit service: an error, or a message that is the same when
//! it is written again.
//!
//! Every descriptor has a key that fits, and no two that differ have the same; a configuration says
//! what limits each, and what is answered can be written on the wire and as JSON.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use prost::Message;
use tidegate_core::key::KEY_BYTES_MAX;
use tidegate_envoy::config::{Configuration, Found, Options, Override, Unit, load, write_key};
use tidegate_envoy::json::write_response;
use tidegate_envoy::proto::descriptor::RateLimitDescriptor;
use tidegate_envoy::proto::ratelimit::rate_limit_response::{Code, DescriptorStatus, RateLimit};
use tidegate_envoy::proto::ratelimit::{RateLimitRequest, RateLimitResponse};

static CONFIGURATION: LazyLock<Configuration> = LazyLock::new(|| {
    let text = "
domain: web
descriptors:
- {key: user, rate_limit: {unit: hour, requests_per_unit: 3, name: user}}
- {key: user, value: 'a*', share_threshold: true, rate_limit: {unit: day, requests_per_unit: 5}}
- {key: path, detailed_metric: true, descriptors: [{key: user, rate_limit: {unlimited: true}}]}
";
    load(&[("file", text)], Options::default()).expect("it is right")
});

fn entries(descriptor: &RateLimitDescriptor) -> impl Iterator<Item = (&[u8], &[u8])> + Clone {
    descriptor.entries.iter().map(|entry| (&entry.key[..], &entry.value[..]))
}

fn status(call: &RateLimitRequest, descriptor: &RateLimitDescriptor) -> DescriptorStatus {
    let given = descriptor.limit.as_ref().and_then(|limit| {
        let unit = Unit::of_override(limit.unit)?;
        Some(Override { requests_per_unit: limit.requests_per_unit, unit })
    });
    let mut key = b"before".to_vec();
    let found = CONFIGURATION.find(&call.domain, entries(descriptor), given, &mut key);
    assert!(key.starts_with(b"before") && key.len() <= b"before".len() + KEY_BYTES_MAX);
    let (requests_per_unit, unit, name) = match found {
        Found::UnknownDomain | Found::Nothing => return DescriptorStatus::default(),
        Found::Rule(rule) => (rule.requests_per_unit, rule.unit, rule.name.to_string()),
        Found::Override(limit, unit) => {
            (u32::try_from(limit.amount).expect("as it came"), unit, String::new())
        }
    };
    let current_limit = Some(RateLimit { requests_per_unit, unit: unit.number(), name });
    DescriptorStatus { code: Code::Ok.into(), current_limit, ..Default::default() }
}

fuzz_target!(|bytes: &[u8]| {
    let Ok(call) = RateLimitRequest::decode(bytes) else { return };
    let again = RateLimitRequest::decode(&call.encode_to_vec()[..]);
    assert_eq!(again.as_ref(), Ok(&call));
    let mut name = String::new();
    let mut keys: Vec<Vec<u8>> = Vec::new();
    for descriptor in call.descriptors.iter().take(32) {
        let mut key = Vec::new();
        write_key(&mut key, &call.domain, entries(descriptor));
        assert!(key.len() <= KEY_BYTES_MAX);
        for (other, before) in call.descriptors.iter().zip(&keys) {
            assert_eq!(*before == key, other.entries == descriptor.entries);
        }
        keys.push(key);
        CONFIGURATION.write_statistic(&call.domain, entries(descriptor), &mut name);
    }
    let statuses = call.descriptors.iter().map(|it| status(&call, it)).collect();
    let answer = RateLimitResponse { statuses, ..Default::default() };
    assert_eq!(RateLimitResponse::decode(&answer.encode_to_vec()[..]).as_ref(), Ok(&answer));
    assert!(write_response(&answer).starts_with('{'));
});
