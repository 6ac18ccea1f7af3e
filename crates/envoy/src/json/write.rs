//! A rate limit answer as proto3 JSON has it: fields that are zero are left out.

use base64::{Engine, prelude::BASE64_STANDARD};
use prost_types::{Duration, Struct, value::Kind};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::proto::{
    core::HeaderValue,
    ratelimit::{
        RateLimitResponse,
        rate_limit_response::{
            Code as CodeMessage, DescriptorStatus, RateLimit, rate_limit::Unit as UnitMessage,
        },
    },
};

/// Metadata come from a configuration of any depth, the stack does not.
const METADATA_DEPTH_MAX: usize = 64;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Response<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    overall_code: Option<Name>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    statuses: Vec<Status<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    response_headers_to_add: Vec<Header<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    request_headers_to_add: Vec<Header<'a>>,
    #[serde(skip_serializing_if = "String::is_empty")]
    raw_body: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    dynamic_metadata: Option<Value>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Status<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<Name>,
    #[serde(skip_serializing_if = "Option::is_none")]
    current_limit: Option<Limit<'a>>,
    #[serde(skip_serializing_if = "is_zero")]
    limit_remaining: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_until_reset: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Limit<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
    #[serde(skip_serializing_if = "is_zero")]
    requests_per_unit: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    unit: Option<Name>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Header<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    key: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    value: &'a str,
    #[serde(skip_serializing_if = "String::is_empty")]
    raw_value: String,
}

/// A value of an enumeration; one without a name is its number.
#[derive(Serialize)]
#[serde(untagged)]
enum Name {
    Known(&'static str),
    Unknown(i32),
}

impl Name {
    fn of<E: TryFrom<i32>>(number: i32, name: fn(&E) -> &'static str) -> Option<Self> {
        (number != 0).then(|| match E::try_from(number) {
            Ok(value) => Self::Known(name(&value)),
            Err(_) => Self::Unknown(number),
        })
    }
}

impl<'a> From<&'a RateLimitResponse> for Response<'a> {
    fn from(response: &'a RateLimitResponse) -> Self {
        Self {
            overall_code: Name::of(response.overall_code, CodeMessage::as_str_name),
            statuses: response.statuses.iter().map(Status::from).collect(),
            response_headers_to_add: headers(&response.response_headers_to_add),
            request_headers_to_add: headers(&response.request_headers_to_add),
            raw_body: BASE64_STANDARD.encode(&response.raw_body),
            dynamic_metadata: response.dynamic_metadata.as_ref().map(|data| object(data, 0)),
        }
    }
}

impl<'a> From<&'a DescriptorStatus> for Status<'a> {
    fn from(status: &'a DescriptorStatus) -> Self {
        Self {
            code: Name::of(status.code, CodeMessage::as_str_name),
            current_limit: status.current_limit.as_ref().map(Limit::from),
            limit_remaining: status.limit_remaining,
            duration_until_reset: status.duration_until_reset.as_ref().map(seconds),
        }
    }
}

impl<'a> From<&'a RateLimit> for Limit<'a> {
    fn from(limit: &'a RateLimit) -> Self {
        Self {
            name: &limit.name,
            requests_per_unit: limit.requests_per_unit,
            unit: Name::of(limit.unit, UnitMessage::as_str_name),
        }
    }
}

fn headers(headers: &[HeaderValue]) -> Vec<Header<'_>> {
    headers
        .iter()
        .map(|header| Header {
            key: &header.key,
            value: &header.value,
            raw_value: BASE64_STANDARD.encode(&header.raw_value),
        })
        .collect()
}

fn object(data: &Struct, depth: usize) -> Value {
    let field = |(name, value): (&String, &prost_types::Value)| {
        (name.clone(), any(value.kind.as_ref(), depth + 1))
    };
    Value::Object(data.fields.iter().map(field).collect::<Map<_, _>>())
}

fn any(kind: Option<&Kind>, depth: usize) -> Value {
    match kind {
        _ if depth > METADATA_DEPTH_MAX => Value::Null,
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::BoolValue(value)) => Value::Bool(*value),
        Some(Kind::StringValue(text)) => Value::String(text.clone()),
        Some(Kind::StructValue(data)) => object(data, depth),
        Some(Kind::ListValue(list)) => {
            list.values.iter().map(|value| any(value.kind.as_ref(), depth + 1)).collect()
        }
        // Counts and limits are to be read as such: 5, not 5.0.
        Some(Kind::NumberValue(number)) if number.fract() == 0.0 && number.abs() < 1e15 => {
            Value::from(*number as i64)
        }
        // What JSON lacks, NaN and the infinities, becomes null.
        Some(Kind::NumberValue(number)) => Value::from(*number),
    }
}

/// Seconds with as many of 0, 3, 6 or 9 digits behind the point as are needed.
fn seconds(duration: &Duration) -> String {
    let sign = if duration.seconds < 0 || duration.nanos < 0 { "-" } else { "" };
    let (whole, nanos) = (duration.seconds.unsigned_abs(), duration.nanos.unsigned_abs());
    match nanos {
        0 => format!("{sign}{whole}s"),
        _ if nanos % 1_000_000 == 0 => format!("{sign}{whole}.{:03}s", nanos / 1_000_000),
        _ if nanos % 1_000 == 0 => format!("{sign}{whole}.{:06}s", nanos / 1_000),
        _ => format!("{sign}{whole}.{nanos:09}s"),
    }
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}
