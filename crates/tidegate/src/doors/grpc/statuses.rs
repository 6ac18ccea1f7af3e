//! One status for each descriptor, made of what its limits said.

use std::sync::Arc;

use tidegate_core::time::SECOND;
use tidegate_core::{Limit, Nanos};
use tidegate_envoy::config::Unit;
use tidegate_envoy::proto::ratelimit::rate_limit_response::{Code, DescriptorStatus, RateLimit};

use super::asked::Hits;
use super::config::Counting;
use crate::limiter::{Basis, LimitRow};

/// What was decided on one descriptor.
#[derive(Clone, Debug, Default)]
pub(super) struct DescriptorVerdict {
    /// It stands in the way of the request.
    pub(super) is_over: bool,
    /// The rule of the limit that is shown.
    pub(super) rule: Option<Arc<str>>,
    pub(super) status: DescriptorStatus,
}

impl DescriptorVerdict {
    /// Nothing limits it, or nothing is known of its limit: only the code is told.
    pub(super) fn bare(code: Code) -> Self {
        Self {
            status: DescriptorStatus { code: code.into(), ..Default::default() },
            ..Self::default()
        }
    }

    /// Of what each limit of its key said.
    pub(super) fn of<'a>(
        rows: impl Iterator<Item = &'a LimitRow> + Clone,
        hits: Hits,
        counting: Counting,
    ) -> Self {
        let over = rows.clone().find(|row| is_over(row, hits, counting));
        let share = |row: &LimitRow| row.verdict.rate / row.limit.amount.max(1) as f64;
        // Of equals the first.
        let nearest = || rows.clone().min_by(|one, other| share(other).total_cmp(&share(one)));
        let Some(row) = over.or_else(nearest) else { return Self::bare(Code::Ok) };
        let is_refused = over.is_some() && !row.shadow;
        let code = if is_refused { Code::OverLimit } else { Code::Ok };
        if row.basis == Basis::Policy && !is_refused {
            // Nothing was counted.
            return Self::bare(code);
        }
        let left = if over.is_some() { 0 } else { row.verdict.remaining };
        let status = DescriptorStatus {
            code: code.into(),
            current_limit: Some(current_limit(&row.limit, &row.rule)),
            limit_remaining: u32::try_from(left).unwrap_or(u32::MAX),
            duration_until_reset: Some(until_reset(row, over.is_some())),
        };
        Self { is_over: is_refused, rule: Some(row.rule.clone()), status }
    }
}

/// Whether a limit is against what was asked.
fn is_over(row: &LimitRow, hits: Hits, counting: Counting) -> bool {
    match (hits, counting) {
        (Hits::GiveBack(_), _) => false,
        // As envoyproxy/ratelimit has it, a look finds a limit over only beyond its amount.
        (Hits::Look, Counting::Envoy) => {
            !row.verdict.allowed && row.verdict.rate > row.limit.amount as f64
        }
        // What can never be had was looked at as one use.
        (Hits::Take(hits), _) if row.limit.capacity() < hits => true,
        _ => !row.verdict.allowed,
    }
}

fn current_limit(limit: &Limit, rule: &str) -> RateLimit {
    RateLimit {
        requests_per_unit: u32::try_from(limit.amount).unwrap_or(u32::MAX),
        unit: Unit::of_period(limit.period).number(),
        name: rule.to_owned(),
    }
}

/// Whole seconds, rounded up, at least one: Envoy cuts fractions.
fn until_reset(row: &LimitRow, is_over: bool) -> prost_types::Duration {
    let span = match is_over {
        // Until what was asked can be had; what never can be, until the next period.
        true if row.verdict.delay == Nanos::MAX || row.verdict.allowed => row.limit.period,
        true => row.verdict.delay,
        false => row.verdict.reset,
    };
    let seconds = if span == Nanos::MAX { 1 } else { span.div_ceil(SECOND).max(1) };
    prost_types::Duration { seconds: seconds.cast_signed(), nanos: 0 }
}
