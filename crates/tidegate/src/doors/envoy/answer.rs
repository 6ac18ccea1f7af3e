//! The answer to a call: one status for each descriptor, the code of all, and what else an operator
//! wants in it.

use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};
use tidegate_envoy::config::Unit;
use tidegate_envoy::proto::core::HeaderValue;
use tidegate_envoy::proto::descriptor::RateLimitDescriptor;
use tidegate_envoy::proto::ratelimit::rate_limit_response::{Code, DescriptorStatus};
use tidegate_envoy::proto::ratelimit::{RateLimitRequest, RateLimitResponse};

use super::asked::{AskedCall, Hits};
use super::settings::{AnswerSettings, HeaderNames};
use super::statuses::DescriptorVerdict;

/// Whether a descriptor is over its limit, or all are over theirs that have quotas.
pub(super) fn is_over(verdicts: &[DescriptorVerdict]) -> bool {
    let (mut is_over, mut quotas, mut quotas_over) = (false, 0, 0);
    for DescriptorVerdict { is_over: over, is_quota, .. } in verdicts {
        quotas += usize::from(*is_quota);
        quotas_over += usize::from(*is_quota && *over);
        is_over |= *over && !*is_quota;
    }
    is_over || quotas > 0 && quotas == quotas_over
}

/// Puts an answer together.
pub(super) fn response(
    call: &RateLimitRequest,
    asked: &AskedCall<'_>,
    verdicts: impl IntoIterator<Item = DescriptorVerdict>,
    is_over: bool,
    settings: &AnswerSettings,
) -> RateLimitResponse {
    let mut refused_by = None;
    let statuses: Vec<DescriptorStatus> = { verdicts.into_iter() }
        .map(|verdict| {
            let DescriptorVerdict { is_over: over, rule, status, .. } = verdict;
            if over {
                refused_by = refused_by.take().or(rule);
            }
            status
        })
        .collect();
    let code = if is_over { Code::OverLimit } else { Code::Ok };
    let mut response = RateLimitResponse { overall_code: code.into(), ..Default::default() };
    if let Some(names) = &settings.headers {
        response.response_headers_to_add.extend(headers(&statuses, names));
    }
    if let Some((body, content_type)) = settings.over_limit_body.as_ref().filter(|_| is_over) {
        response.raw_body = body.clone();
        response.response_headers_to_add.push(header("content-type", content_type));
    }
    if settings.metadata {
        let refused_by = refused_by.as_deref().filter(|_| is_over);
        response.dynamic_metadata = Some(metadata(call, asked, refused_by));
    }
    response.statuses = statuses;
    response
}

/// Of the last descriptor that is over, otherwise of the one with the fewest uses left.
fn headers<'a>(
    statuses: &'a [DescriptorStatus],
    names: &HeaderNames,
) -> impl Iterator<Item = HeaderValue> + use<'a> {
    let limited = || statuses.iter().filter(|status| status.current_limit.is_some());
    let over = limited().rfind(|status| status.code() == Code::OverLimit);
    let shown = over.or_else(|| limited().min_by_key(|status| status.limit_remaining));
    let HeaderNames { limit, remaining, reset } = names.clone();
    shown.into_iter().flat_map(move |status| {
        let amount = status.current_limit.as_ref().map_or(0, |limit| limit.requests_per_unit);
        let seconds = status.duration_until_reset.as_ref().map_or(0, |span| span.seconds);
        [
            header(&limit, &amount.to_string()),
            header(&remaining, &status.limit_remaining.to_string()),
            header(&reset, &seconds.to_string()),
        ]
    })
}

fn header(key: &str, value: &str) -> HeaderValue {
    HeaderValue { key: key.to_owned(), value: value.to_owned(), ..Default::default() }
}

/// What was asked, and which rule refused, in the form of envoyproxy/ratelimit.
fn metadata(call: &RateLimitRequest, asked: &AskedCall<'_>, refused_by: Option<&str>) -> Struct {
    let descriptors = call.descriptors.iter().zip(&asked.descriptors);
    let descriptors = descriptors.map(|(descriptor, asked)| described(descriptor, asked.hits));
    let mut fields = vec![
        ("domain", text(&call.domain)),
        ("descriptors", list(descriptors)),
        ("hitsAddend", number(f64::from(call.hits_addend.max(1)))),
    ];
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
        fields.push(("limit", Value { kind: Some(Kind::StructValue(limit)) }));
    }
    let hits = match hits {
        Hits::Look => 0.0,
        Hits::Take(hits) => hits as f64,
        Hits::GiveBack(hits) => -(hits as f64),
    };
    fields.push(("hitsAddend", number(hits)));
    Value { kind: Some(Kind::StructValue(object(fields))) }
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
