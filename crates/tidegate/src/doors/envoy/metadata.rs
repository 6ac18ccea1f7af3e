//! The dynamic metadata of an answer, in the form of envoyproxy/ratelimit.

use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};
use tidegate_envoy::config::Unit;
use tidegate_envoy::config::source::{Metadata, MetadataValue};
use tidegate_envoy::proto::descriptor::RateLimitDescriptor;
use tidegate_envoy::proto::ratelimit::RateLimitRequest;

use super::asked::{AskedCall, Hits};

/// What was asked, what the first rule that let it pass says of itself, and which rule refused.
pub(super) fn told(
    call: &RateLimitRequest,
    asked: &AskedCall<'_>,
    passed: Option<&Metadata>,
    refused_by: Option<&str>,
) -> Struct {
    let descriptors = call.descriptors.iter().zip(&asked.descriptors);
    let descriptors = descriptors.map(|(descriptor, asked)| described(descriptor, asked.hits));
    let mut fields = vec![
        ("domain", text(&call.domain)),
        ("descriptors", list(descriptors)),
        ("hitsAddend", number(f64::from(call.hits_addend.max(1)))),
    ];
    fields.extend(passed.map(|passed| ("metadata", structure(written(passed)))));
    fields.extend(refused_by.map(|rule| ("refused_by", text(rule))));
    object(fields)
}

fn described(descriptor: &RateLimitDescriptor, hits: Hits) -> Value {
    let entry = |key: &[u8], value: &[u8]| {
        let (key, value) = (String::from_utf8_lossy(key), String::from_utf8_lossy(value));
        text(&format!("{key}={value}"))
    };
    let entries = descriptor.entries.iter();
    let entries = entries.map(|it| entry(it.key.as_ref(), it.value.as_ref()));
    let mut fields = vec![("entries", list(entries))];
    if let Some(limit) = &descriptor.limit {
        let unit = Unit::of_override(limit.unit).unwrap_or(Unit::Unknown);
        let limit = object(vec![
            ("requestsPerUnit", number(f64::from(limit.requests_per_unit))),
            ("unit", text(unit.name())),
        ]);
        fields.push(("limit", structure(limit)));
    }
    let hits = match hits {
        Hits::Look => 0.0,
        Hits::Take(hits) => hits as f64,
        // Not minus zero.
        Hits::GiveBack(hits) => 0.0 - hits as f64,
    };
    fields.push(("hitsAddend", number(hits)));
    structure(object(fields))
}

/// As it is written in the configuration.
fn written(metadata: &Metadata) -> Struct {
    let field = |(name, value): (&String, &MetadataValue)| (name.clone(), value_of(value));
    Struct { fields: metadata.iter().map(field).collect() }
}

fn value_of(value: &MetadataValue) -> Value {
    match value {
        MetadataValue::Null => Value { kind: Some(Kind::NullValue(0)) },
        MetadataValue::Bool(is_so) => Value { kind: Some(Kind::BoolValue(*is_so)) },
        MetadataValue::Number(amount) => number(*amount),
        MetadataValue::Text(content) => text(content),
        MetadataValue::List(items) => list(items.iter().map(value_of)),
        MetadataValue::Map(fields) => structure(written(fields)),
    }
}

fn structure(fields: Struct) -> Value {
    Value { kind: Some(Kind::StructValue(fields)) }
}

fn object(fields: Vec<(&str, Value)>) -> Struct {
    Struct { fields: fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect() }
}

fn list(values: impl Iterator<Item = Value>) -> Value {
    Value { kind: Some(Kind::ListValue(ListValue { values: values.collect() })) }
}

fn text(text: &str) -> Value {
    Value { kind: Some(Kind::StringValue(text.to_owned())) }
}

fn number(number: f64) -> Value {
    Value { kind: Some(Kind::NumberValue(number)) }
}
