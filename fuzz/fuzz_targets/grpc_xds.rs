//! Any bytes as what a management server sends: an error, or a configuration beside that of a
//! folder.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use prost::Message;
use tidegate_core::key::KEY_BYTES_MAX;
use tidegate_envoy::config::{Configuration, Found, Options, load, load_beside};
use tidegate_envoy::proto::config::RateLimitConfig;
use tidegate_envoy::proto::discovery::DiscoveryResponse;
use tidegate_envoy::xds::{read, type_url};

static FILES: LazyLock<Configuration> = LazyLock::new(|| {
    let text = "
domain: web
descriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 1}}]
";
    load(&[("file", text)], Options::default()).expect("it is right")
});

fn check(response: &DiscoveryResponse) {
    let resources = match read(response) {
        Ok(resources) => resources,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let config = match load_beside(&FILES, &resources, Options::default()) {
        Ok(config) => config,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    assert!(config.rules().len() >= FILES.rules().len());
    let mut key = Vec::new();
    for domain in config.domains() {
        key.clear();
        let entries = [(&b"user"[..], &b"a"[..])].into_iter();
        assert_ne!(config.find(domain, entries, None, &mut key), Found::UnknownDomain);
        assert!(key.len() <= KEY_BYTES_MAX);
    }
    config.dump(&mut String::new()).expect("a string takes all");
}

fuzz_target!(|bytes: &[u8]| {
    if let Ok(response) = DiscoveryResponse::decode(bytes) {
        check(&response);
    }
    // One resource, without what is around it.
    let resource = prost_types::Any { type_url: type_url(), value: bytes.to_vec() };
    let resources = vec![resource];
    check(&DiscoveryResponse { type_url: type_url(), resources, ..Default::default() });
    if let Ok(config) = RateLimitConfig::decode(bytes) {
        assert_eq!(RateLimitConfig::decode(&config.encode_to_vec()[..]), Ok(config));
    }
});
