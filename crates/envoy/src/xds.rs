//! What a management server sends over xDS: the configuration of domains, as messages.
//!
//! Messages become the structures that YAML files become, so that one loader checks both and says
//! what is wrong in the same words. The schema has neither `value_to_metric` nor
//! `share_threshold`. Nothing here opens a stream.

use prost::{DecodeError, Message as _, Name as _};
use prost_types::{ListValue, Struct, Value, value::Kind};

use crate::config::source::{DescriptorNode, DomainNode, Metadata, MetadataValue, RateLimitNode};
use crate::proto::config::{RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit};
use crate::proto::discovery::DiscoveryResponse;

/// The most resources of one response.
pub const RESOURCES_MAX: usize = 10_000;

/// Why a response cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The response, or a resource in it, is of a type that was not asked for.
    #[error("type {found:?} is not {:?}", type_url())]
    WrongType {
        /// Its type.
        found: String,
    },
    /// There are too many resources.
    #[error("{0} resources are more than the {RESOURCES_MAX} of one response")]
    TooMany(usize),
    /// The bytes of a resource are no such message.
    #[error("resource {at} cannot be read: {error}")]
    Unreadable {
        /// The number of the resource, from 0.
        at: usize,
        /// What is wrong.
        error: DecodeError,
    },
}

/// The type of the resources.
#[must_use]
pub fn type_url() -> String {
    RateLimitConfig::type_url()
}

/// Reads the resources of a response, each with the name that errors show.
///
/// # Errors
/// With the first thing that cannot be read. Whether the configuration makes sense is seen when it
/// is loaded.
pub fn read(response: &DiscoveryResponse) -> Result<Vec<(String, DomainNode)>, ReadError> {
    let expected = type_url();
    if response.resources.len() > RESOURCES_MAX {
        return Err(ReadError::TooMany(response.resources.len()));
    }
    let mut types = response.resources.iter().map(|resource| &resource.type_url);
    if let Some(found) =
        types.by_ref().chain([&response.type_url]).find(|found| **found != expected)
    {
        return Err(ReadError::WrongType { found: found.chars().take(200).collect() });
    }
    let read = |(at, resource): (usize, &prost_types::Any)| {
        let config = RateLimitConfig::decode(resource.value.as_slice());
        let config = config.map_err(|error| ReadError::Unreadable { at, error })?;
        let descriptors = config.descriptors.into_iter().map(descriptor).collect();
        Ok((config.name, DomainNode { domain: config.domain, descriptors }))
    };
    response.resources.iter().enumerate().map(read).collect()
}

/// Messages are not nested deeper than their decoder goes.
fn descriptor(message: RateLimitDescriptor) -> DescriptorNode {
    DescriptorNode {
        key: message.key,
        value: message.value,
        rate_limit: message.rate_limit.map(rate_limit),
        descriptors: message.descriptors.into_iter().map(descriptor).collect(),
        shadow_mode: message.shadow_mode,
        quota_mode: message.quota_mode,
        detailed_metric: message.detailed_metric,
        metadata: message.metadata.map(metadata),
        ..DescriptorNode::default()
    }
}

fn rate_limit(message: RateLimitPolicy) -> RateLimitNode {
    let unit = match RateLimitUnit::try_from(message.unit) {
        Ok(unit) => unit.as_str_name().to_owned(),
        Err(_) => message.unit.to_string(),
    };
    RateLimitNode {
        unit,
        requests_per_unit: message.requests_per_unit,
        unlimited: message.unlimited,
        name: message.name,
        replaces: message.replaces.into_iter().map(|replaced| replaced.name).collect(),
        limit: None,
        algorithm: None,
    }
}

fn metadata(message: Struct) -> Metadata {
    message.fields.into_iter().map(|(name, value)| (name, metadata_value(value))).collect()
}

fn metadata_value(message: Value) -> MetadataValue {
    match message.kind {
        None | Some(Kind::NullValue(_)) => MetadataValue::Null,
        Some(Kind::NumberValue(number)) => MetadataValue::Number(number),
        Some(Kind::StringValue(text)) => MetadataValue::Text(text),
        Some(Kind::BoolValue(value)) => MetadataValue::Bool(value),
        Some(Kind::StructValue(fields)) => MetadataValue::Map(metadata(fields)),
        Some(Kind::ListValue(ListValue { values })) => {
            MetadataValue::List(values.into_iter().map(metadata_value).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::{any, proptest};
    use prost_types::Any;

    use super::*;
    use crate::config::{Configuration, Options, Unit, load, load_beside, load_nodes};
    use crate::proto::config::RateLimitReplace;

    fn limited(key: &str, unit: i32, requests_per_unit: u32) -> RateLimitDescriptor {
        let policy = RateLimitPolicy { unit, requests_per_unit, ..RateLimitPolicy::default() };
        RateLimitDescriptor {
            key: key.to_owned(),
            rate_limit: Some(policy),
            ..RateLimitDescriptor::default()
        }
    }

    fn response(configs: &[(&str, &str, Vec<RateLimitDescriptor>)]) -> DiscoveryResponse {
        let resource = |(name, domain, descriptors): &(&str, &str, Vec<RateLimitDescriptor>)| {
            let (name, domain) = ((*name).to_owned(), (*domain).to_owned());
            let config = RateLimitConfig { name, domain, descriptors: descriptors.clone() };
            Any { type_url: type_url(), value: config.encode_to_vec() }
        };
        DiscoveryResponse {
            resources: configs.iter().map(resource).collect(),
            type_url: type_url(),
            ..DiscoveryResponse::default()
        }
    }

    fn loaded(response: &DiscoveryResponse) -> Result<Configuration, String> {
        let nodes = read(response).map_err(|error| error.to_string())?;
        load_nodes(&nodes, Options::default()).map_err(|error| error.to_string())
    }

    #[test]
    fn every_field_is_taken() {
        let mut descriptor = limited("k", 3, 7);
        descriptor.value = "v".to_owned();
        (descriptor.shadow_mode, descriptor.quota_mode) = (true, true);
        descriptor.detailed_metric = true;
        let text = Value { kind: Some(Kind::StringValue("b".to_owned())) };
        let fields = [("a".to_owned(), text)].into();
        descriptor.metadata = Some(Struct { fields });
        let policy = descriptor.rate_limit.as_mut().expect("a limit");
        policy.name = "n".to_owned();
        policy.replaces = vec![RateLimitReplace { name: "m".to_owned() }];
        descriptor.descriptors = vec![limited("inner", 7, 1)];
        let nodes = read(&response(&[("r", "d", vec![descriptor])])).expect("readable");
        let [(name, node)] = &nodes[..] else { panic!("{nodes:?}") };
        assert_eq!((name.as_str(), node.domain.as_str()), ("r", "d"));
        let expected = DescriptorNode {
            key: "k".to_owned(),
            value: "v".to_owned(),
            rate_limit: Some(RateLimitNode {
                unit: "HOUR".to_owned(),
                requests_per_unit: 7,
                name: "n".to_owned(),
                replaces: vec!["m".to_owned()],
                ..RateLimitNode::default()
            }),
            descriptors: node.descriptors[0].descriptors.clone(),
            shadow_mode: true,
            quota_mode: true,
            detailed_metric: true,
            metadata: Some([("a".to_owned(), MetadataValue::Text("b".to_owned()))].into()),
            ..DescriptorNode::default()
        };
        assert_eq!(node.descriptors, [expected]);
        let configuration = load_nodes(&nodes, Options::default()).expect("right");
        let units: Vec<Unit> = configuration.rules().iter().map(|rule| rule.unit).collect();
        assert_eq!(units, [Unit::Hour, Unit::Week]);
    }

    #[test]
    fn what_is_wrong_is_told_as_of_files() {
        let mut unlimited = limited("k", 1, 0);
        unlimited.rate_limit.as_mut().expect("a limit").unlimited = true;
        let deep = |depth| {
            let below = |inner, _| RateLimitDescriptor {
                key: "k".to_owned(),
                descriptors: vec![inner],
                ..RateLimitDescriptor::default()
            };
            (1..depth).fold(limited("k", 1, 1), below)
        };
        for (configs, expected) in [
            (vec![("r", "", vec![])], "r: config file cannot have empty domain"),
            (
                vec![("r", "d", vec![]), ("s", "d", vec![])],
                "s: duplicate domain 'd' in config file",
            ),
            (vec![("r", "d", vec![limited("", 1, 1)])], "r: descriptor has empty key"),
            (
                vec![("r", "d", vec![limited("k", 1, 1), limited("k", 2, 1)])],
                "r: duplicate descriptor composite key 'd.k'",
            ),
            (vec![("r", "d", vec![limited("k", 0, 1)])], "r: invalid rate limit unit 'UNKNOWN'"),
            (vec![("r", "d", vec![limited("k", 9, 1)])], "r: invalid rate limit unit '9'"),
            (
                vec![("r", "d", vec![unlimited])],
                "r: should not specify rate limit unit when unlimited",
            ),
            (vec![("r", "d", vec![deep(33)])], "r: descriptors are nested deeper than 32"),
        ] {
            assert_eq!(loaded(&response(&configs)).expect_err(expected), expected);
        }
        assert!(loaded(&response(&[("r", "d", vec![deep(32)])])).is_ok());
        assert!(loaded(&response(&[("r", "d", vec![deep(90)])])).is_err());
        let mut unlimited = limited("k", 0, 0);
        unlimited.rate_limit.as_mut().expect("a limit").unlimited = true;
        assert!(loaded(&response(&[("r", "d", vec![unlimited])])).is_ok());
    }

    #[test]
    fn what_is_no_configuration_is_refused() {
        let good = response(&[("r", "d", vec![])]);
        let mut other = good.clone();
        other.type_url = "type.googleapis.com/other".to_owned();
        assert!(matches!(read(&other), Err(ReadError::WrongType { .. })));
        let mut other = good.clone();
        other.resources[0].type_url.clear();
        let told = read(&other).expect_err("another type").to_string();
        assert!(told.contains("RateLimitConfig"), "{told}");
        let mut torn = good.clone();
        torn.resources[0].value = b"\x0a\x05a".to_vec();
        assert!(matches!(read(&torn), Err(ReadError::Unreadable { at: 0, .. })));
        let mut many = good;
        many.resources = vec![many.resources[0].clone(); RESOURCES_MAX + 1];
        assert_eq!(read(&many), Err(ReadError::TooMany(RESOURCES_MAX + 1)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(value in vec(any::<u8>(), 0..200)) {
            let mut response = response(&[("r", "d", vec![])]);
            response.resources[0].value = value;
            let _ = loaded(&response);
        }
    }

    #[test]
    fn a_domain_is_in_files_or_comes_over_xds() {
        let text =
            "domain: a\ndescriptors:\n- key: b.c\n  rate_limit: {unit: day, requests_per_unit: 1}";
        let files = load(&[("f", text)], Options::default()).expect("right");
        let beside = |domain: &str, merge_domains| {
            let nodes = read(&response(&[("r", domain, vec![limited("c", 4, 1)])]));
            load_beside(&files, &nodes.expect("readable"), Options { merge_domains })
        };
        for merge_domains in [false, true] {
            let error = beside("a", merge_domains).expect_err("it is in a file").to_string();
            assert_eq!(error, "r: duplicate domain 'a' in config file");
        }
        // Rules of files come first, and keep the names that they had alone.
        let both = beside("a.b", false).expect("another domain");
        let names: Vec<&str> = both.rules().iter().map(|rule| &*rule.id).collect();
        assert_eq!(names, ["grpc:a.b.c", "grpc:a.b.c'"]);
        assert_eq!(files.rules()[0].id, both.rules()[0].id);
    }
}
