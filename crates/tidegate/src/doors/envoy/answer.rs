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
    let (mut refused_by, mut passed) = (None, None);
    let statuses: Vec<DescriptorStatus> = { verdicts.into_iter().zip(&asked.descriptors) }
        .map(|(verdict, asked)| {
            let DescriptorVerdict { is_over: over, rule, status, .. } = verdict;
            if over {
                refused_by = refused_by.take().or(rule);
            } else {
                passed = passed.or_else(|| rule_metadata(asked));
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
        response.dynamic_metadata = Some(metadata::told(call, asked, passed, refused_by));
    }
    response.statuses = statuses;
    response
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
