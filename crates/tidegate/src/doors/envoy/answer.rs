//! The answer to a call: one status for each descriptor, the code of all, and what else an operator
//! wants in it.

use tidegate_envoy::config::source::Metadata;
use tidegate_envoy::proto::core::HeaderValue;
use tidegate_envoy::proto::ratelimit::rate_limit_response::{Code, DescriptorStatus};
use tidegate_envoy::proto::ratelimit::{RateLimitRequest, RateLimitResponse};

use super::asked::{AskedCall, AskedDescriptor, Limited};
use super::metadata;
use super::settings::{AnswerSettings, HeaderNames};
use super::statuses::DescriptorVerdict;

/// Which descriptor refuses the call, of several the first: one that is over its limit, or, if all
/// that have quotas are over them, one of those.
pub(super) fn refusing<'v>(
    verdicts: impl Iterator<Item = &'v DescriptorVerdict> + Clone,
) -> Option<usize> {
    let has_quota_left = verdicts.clone().any(|it| it.is_quota && !it.is_over);
    verdicts.enumerate().find_map(|(at, verdict)| {
        let refuses = verdict.is_over && !(verdict.is_quota && has_quota_left);
        refuses.then_some(at)
    })
}

/// Puts an answer together. `refusing` is the descriptor that refuses the call, if one does.
pub(super) fn response(
    call: &RateLimitRequest,
    asked: &AskedCall<'_>,
    verdicts: impl IntoIterator<Item = DescriptorVerdict>,
    refusing: Option<usize>,
    settings: &AnswerSettings,
) -> RateLimitResponse {
    let (mut refused_by, mut passed) = (None, None);
    let statuses: Vec<DescriptorStatus> = { verdicts.into_iter().zip(&asked.descriptors) }
        .enumerate()
        .map(|(at, (verdict, asked))| {
            let DescriptorVerdict { is_over, rule, status, .. } = verdict;
            if refusing == Some(at) {
                refused_by = rule;
            }
            if !is_over {
                passed = passed.or_else(|| rule_metadata(asked));
            }
            status
        })
        .collect();
    let code = if refusing.is_some() { Code::OverLimit } else { Code::Ok };
    let mut response = RateLimitResponse { overall_code: code.into(), ..Default::default() };
    if let Some(names) = &settings.headers {
        response.response_headers_to_add.extend(headers(&statuses, names));
    }
    let body = settings.over_limit_body.as_ref().filter(|_| refusing.is_some());
    if let Some((body, content_type)) = body {
        response.raw_body = body.clone();
        response.response_headers_to_add.push(header("content-type", content_type));
    }
    if settings.metadata {
        let named = refusing.and_then(|at| configured_name(&asked.descriptors[at]));
        let refused_by = named.or(refused_by.as_deref());
        response.dynamic_metadata = Some(metadata::told(call, asked, passed, refused_by));
    }
    response.statuses = statuses;
    response
}

/// The name that envoyproxy/ratelimit's configuration gives to the limit of a descriptor.
fn configured_name<'a>(descriptor: &AskedDescriptor<'a>) -> Option<&'a str> {
    match descriptor.limited {
        Limited::Configured(rule) => Some(&*rule.name).filter(|name| !name.is_empty()),
        _ => None,
    }
}

/// What a rule of envoyproxy/ratelimit's configuration lets answers carry.
fn rule_metadata<'a>(descriptor: &AskedDescriptor<'a>) -> Option<&'a Metadata> {
    match descriptor.limited {
        Limited::Configured(rule) => rule.metadata.as_ref(),
        _ => None,
    }
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
