//! One status for each descriptor, made of what its limits said.

use std::cmp::Reverse;
use std::sync::Arc;

use tidegate_core::Nanos;
use tidegate_core::limit::AMOUNT_MAX;
use tidegate_core::time::SECOND;
use tidegate_envoy::config::Unit;
use tidegate_envoy::proto::ratelimit::rate_limit_response::{Code, DescriptorStatus, RateLimit};

use super::asked::{AskedDescriptor, Hits, Limited, override_rule};
use super::settings::{Counting, DomainSettings};
use crate::limiter::{Basis, LimitRow};

/// What was decided on one descriptor.
#[derive(Clone, Debug, Default)]
pub(super) struct DescriptorVerdict {
    /// More is asked for than there is, and its rule is in force.
    pub(super) is_over: bool,
    /// It is a quota: a call is refused only if all descriptors with quotas are over.
    pub(super) is_quota: bool,
    /// The rule of the limit that is shown.
    pub(super) rule: Option<Arc<str>>,
    pub(super) status: DescriptorStatus,
    /// What its limit has counted, if that is known.
    pub(super) counted: Option<LimitUsage>,
}

/// How much of a limit was used when a descriptor came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LimitUsage {
    /// How much of it was used.
    pub(super) used_before: u64,
    /// Whether more was asked for than was left, refused or not.
    pub(super) is_over: bool,
}

impl DescriptorVerdict {
    /// The verdict on a descriptor: `rows` is what each limit of its key said.
    pub(super) fn of<'r>(
        descriptor: &AskedDescriptor<'_>,
        rows: impl Iterator<Item = &'r LimitRow> + Clone,
        domain: DomainSettings,
    ) -> Self {
        let DomainSettings { counting, is_quota, .. } = domain;
        let AskedDescriptor { hits, limited, .. } = descriptor;
        match limited {
            // What gives back is not judged.
            _ if matches!(hits, Hits::GiveBack(_)) => return Self::bare(Code::Ok),
            Limited::Nothing => return Self::bare(Code::Ok),
            Limited::Configured(rule) if rule.limit.is_none() => {
                return Self { is_quota: rule.quota, ..Self::unlimited() };
            }
            Limited::Override(limit, unit) if limit.amount == 0 => {
                return Self { is_quota, ..Self::denied(*unit) };
            }
            _ => {}
        }
        let wait = |row: &LimitRow| until_allowed(row, *hits, limited);
        // The one that refuses for the longest time, of equals the first.
        let over = rows
            .clone()
            .filter(|row| is_over(row, *hits, counting))
            .min_by_key(|row| Reverse(wait(row)));
        let share = |row: &LimitRow| row.verdict.rate / row.limit.amount.max(1) as f64;
        // Of equals the first.
        let nearest = || rows.clone().min_by(|one, other| share(other).total_cmp(&share(one)));
        let Some(row) = over.or_else(nearest) else { return Self::bare(Code::Ok) };
        let (is_shadow, is_quota) = match limited {
            Limited::Configured(rule) => (rule.shadow, is_quota || rule.quota),
            _ => (row.shadow, is_quota),
        };
        let is_refused = over.is_some() && !is_shadow;
        let code = if is_refused { Code::OverLimit } else { Code::Ok };
        if row.basis == Basis::Policy && !is_refused {
            // Nothing was counted.
            return Self { is_quota, ..Self::bare(code) };
        }
        let current = current_limit(row, limited);
        let left = if over.is_some() { 0 } else { row.verdict.remaining };
        let status = DescriptorStatus {
            code: code.into(),
            limit_remaining: u32::try_from(left).unwrap_or(u32::MAX),
            duration_until_reset: Some(seconds_up(match over {
                Some(row) => wait(row),
                None => row.verdict.reset,
            })),
            current_limit: Some(current),
        };
        let used = (row.verdict.rate as u64).min(AMOUNT_MAX);
        let counted = Some(match hits {
            // What was taken is among what is used.
            Hits::Take(hits) if over.is_none() => {
                LimitUsage { used_before: used - (*hits).min(used), is_over: false }
            }
            _ => LimitUsage { used_before: used, is_over: over.is_some() },
        });
        Self { is_over: is_refused, is_quota, rule: Some(row.rule.clone()), status, counted }
    }

    /// Takes the descriptor's hits into account, which were counted after it was looked at: under
    /// the limit of `owner`, in the same window.
    pub(super) fn count_with(&mut self, descriptor: &AskedDescriptor<'_>, owner: &Self) {
        if let Hits::Take(hits) = descriptor.hits
            && !self.is_over
        {
            let hits = u32::try_from(hits).unwrap_or(u32::MAX);
            self.status.limit_remaining = self.status.limit_remaining.saturating_sub(hits);
            self.status.duration_until_reset = owner.status.duration_until_reset;
        }
    }

    /// No limit applies, or nothing is known of its count: the status has its code alone.
    fn bare(code: Code) -> Self {
        let status = DescriptorStatus { code: code.into(), ..DescriptorStatus::default() };
        Self { status, ..Self::default() }
    }

    /// A rule says that nothing limits it.
    fn unlimited() -> Self {
        let mut verdict = Self::bare(Code::Ok);
        verdict.status.limit_remaining = u32::MAX;
        verdict
    }

    /// A limit of 0 that came with it.
    fn denied(unit: Unit) -> Self {
        let mut verdict = Self { is_over: true, ..Self::bare(Code::OverLimit) };
        let (requests_per_unit, name) = (0, String::new());
        let current = RateLimit { requests_per_unit, unit: unit.number(), name };
        verdict.rule = Some(override_rule(unit).into());
        verdict.status.current_limit = Some(current);
        verdict.status.duration_until_reset = Some(seconds_up(unit.period().unwrap_or(SECOND)));
        verdict
    }
}

/// Whether a limit refuses what was asked.
fn is_over(row: &LimitRow, hits: Hits, counting: Counting) -> bool {
    match (hits, counting) {
        (Hits::GiveBack(_), _) => false,
        // As envoyproxy/ratelimit has it, a limit that is just used up is not over yet.
        (Hits::Look, Counting::Envoy) => !row.verdict.allowed && !is_just_used_up(row),
        // What can never be had may have been looked at as one use.
        (Hits::Take(hits), _) if row.limit.capacity() < hits => true,
        _ => !row.verdict.allowed,
    }
}

/// Whether all that a limit allows is used, and no more. A limit that allows nothing never is.
fn is_just_used_up(row: &LimitRow) -> bool {
    let (used, most) = (row.verdict.rate, row.limit.capacity() as f64);
    most > 0.0 && used <= most && most < used + 1.0
}

fn current_limit(row: &LimitRow, limited: &Limited<'_>) -> RateLimit {
    match limited {
        Limited::Configured(rule) => RateLimit {
            requests_per_unit: rule.requests_per_unit,
            unit: rule.unit.number(),
            name: rule.name.to_string(),
        },
        Limited::Override(limit, unit) => RateLimit {
            requests_per_unit: u32::try_from(limit.amount).unwrap_or(u32::MAX),
            unit: unit.number(),
            name: String::new(),
        },
        Limited::ByRule | Limited::Nothing => RateLimit {
            requests_per_unit: u32::try_from(row.limit.amount).unwrap_or(u32::MAX),
            unit: Unit::of_period(row.limit.period).number(),
            name: row.rule.to_string(),
        },
    }
}

/// How long until a limit allows what was asked; what it never does, until the next period.
fn until_allowed(row: &LimitRow, hits: Hits, limited: &Limited<'_>) -> Nanos {
    let is_too_much = matches!(hits, Hits::Take(hits) if row.limit.capacity() < hits);
    if !is_too_much && row.verdict.delay != Nanos::MAX {
        return row.verdict.delay;
    }
    let unit = match limited {
        Limited::Configured(rule) => rule.unit,
        Limited::Override(_, unit) => *unit,
        Limited::ByRule | Limited::Nothing => Unit::Unknown,
    };
    match row.limit.period {
        // `deny` has none.
        0 => unit.period().unwrap_or(SECOND),
        period => period,
    }
}

/// Whole seconds, rounded up, at least one: Envoy cuts fractions.
fn seconds_up(span: Nanos) -> prost_types::Duration {
    let seconds = if span == Nanos::MAX { 1 } else { span.div_ceil(SECOND).max(1) };
    prost_types::Duration { seconds: seconds.cast_signed(), nanos: 0 }
}

#[cfg(test)]
mod tests {
    use tidegate_core::limit::Algorithm;
    use tidegate_core::time::DAY;
    use tidegate_core::{Limit, LimitVerdict};

    use super::*;

    /// What was used of five, and whether a look at it as envoyproxy/ratelimit counts is over.
    #[test]
    fn a_look_is_over_unless_a_use_fits_or_the_limit_is_just_used_up() {
        let row = |limit: Limit, rate: f64, allowed: bool, basis: Basis| {
            let verdict = LimitVerdict { allowed, remaining: 0, rate, delay: 0, reset: 0 };
            LimitRow { key: 0, rule: "a".into(), limit, verdict, basis, shadow: false }
        };
        let five = Limit { amount: 3, period: DAY, algorithm: Algorithm::Gcra { burst: 5 } };
        for (rate, allowed, expected) in [
            (0.0, true, false),
            (4.0, true, false),
            (4.5, false, false),
            (5.0, false, false),
            (5.5, false, true),
            (9.0, false, true),
            // Not because of what is used: there is no room for another key.
            (0.0, false, true),
        ] {
            let row = row(five, rate, allowed, Basis::Counts);
            assert_eq!(is_over(&row, Hits::Look, Counting::Envoy), expected, "{rate} {allowed}");
            assert_eq!(is_over(&row, Hits::Look, Counting::AllOrNothing), !allowed);
        }
        // The store is away, and the rule denies.
        let away = row(five, 0.0, false, Basis::Policy);
        assert!(is_over(&away, Hits::Look, Counting::Envoy));
        let denied = row(Limit::DENY, 0.0, false, Basis::Counts);
        assert!(is_over(&denied, Hits::Look, Counting::Envoy));
    }
}
