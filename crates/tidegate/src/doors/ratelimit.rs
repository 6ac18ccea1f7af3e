//! What HTTP says of limits: the `RateLimit` fields (draft-ietf-httpapi-ratelimit-headers), that is
//! what a limit is and how much of it is left, and when to come back.

use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use sfv::{Integer, KeyRef, ListSerializer, StringRef};
use tidegate_core::Nanos;
use tidegate_core::limit::PERIOD_MAX;
use tidegate_core::time::SECOND;

use crate::limiter::{Answer, LimitAnswer};

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// How a key stands with its limits, as headers of an answer.
pub(crate) struct Standing([(HeaderName, Option<HeaderValue>); 2]);

impl Standing {
    pub(crate) fn of(answer: &Answer) -> Self {
        let value = |line: Option<String>| line.and_then(|line| HeaderValue::try_from(line).ok());
        Self([(RATELIMIT_POLICY, value(policy(answer))), (RATELIMIT, value(state(answer)))])
    }

    /// Adds them to what somebody else may say of limits of its own.
    pub(crate) fn write(self, headers: &mut HeaderMap) {
        for (name, value) in self.0 {
            if let Some(value) = value {
                headers.append(name, value);
            }
        }
    }
}

/// `"rule";q=100;w=60` for each limit.
fn policy(answer: &Answer) -> Option<String> {
    list(answer, |limit, item| {
        let item = item.parameter(KeyRef::constant("q"), integer(limit.limit.amount));
        if limit.limit.period > 0 {
            let window = limit.limit.period.div_ceil(SECOND);
            let _ = item.parameter(KeyRef::constant("w"), integer(window));
        }
    })
}

/// `"rule";r=0;t=30` for each limit.
fn state(answer: &Answer) -> Option<String> {
    list(answer, |limit, item| {
        let item = item.parameter(KeyRef::constant("r"), integer(limit.verdict.remaining));
        let wait = if limit.verdict.allowed { limit.verdict.reset } else { limit.verdict.delay };
        // A use in flight ends when it ends.
        if wait <= PERIOD_MAX {
            let _ = item.parameter(KeyRef::constant("t"), integer(wait.div_ceil(SECOND)));
        }
    })
}

type Item<'a> = sfv::ParameterSerializer<&'a mut String>;

fn list(answer: &Answer, mut write: impl FnMut(&LimitAnswer, Item<'_>)) -> Option<String> {
    let mut list = ListSerializer::new();
    // Of a limit that was decided without its counts nothing is known that these fields tell.
    let known = answer.limits.iter().enumerate().filter(|(_, limit)| !limit.is_degraded());
    for (at, limit) in known {
        let twins = answer.limits.iter().filter(|other| other.rule == limit.rule).count();
        let mut name = printable(&limit.rule);
        if twins > 1 {
            name.push_str(&format!("#{}", at + 1));
        }
        let Ok(name) = StringRef::from_str(&name) else { continue };
        write(limit, list.bare_item(name));
    }
    list.finish()
}

/// The Retry-After of a refusal: whole seconds, rounded up. Where one limit cannot tell (a use in
/// flight ends when it ends), what the others say; where none can, it asks to try in a second.
/// `None` where the rule lets nothing pass: there is no time to come back at.
pub(crate) fn retry_after_s(answer: &Answer) -> Option<u64> {
    if answer.is_denied() {
        return None;
    }
    let known = |delay: &Nanos| *delay != Nanos::MAX;
    let delay = Some(answer.delay).filter(known).or_else(|| {
        let refused = answer.limits.iter().filter(|limit| !limit.verdict.allowed);
        refused.map(|limit| limit.verdict.delay).filter(known).max()
    });
    Some(delay.unwrap_or(0).div_ceil(SECOND).max(1))
}

/// A rule's name as a header may carry it.
pub(crate) fn printable(name: &str) -> String {
    name.chars().map(|c| if (' '..='~').contains(&c) { c } else { '?' }).collect()
}

fn integer(number: u64) -> Integer {
    // Amounts end at 2^53, and the format's integers at 10^15.
    Integer::try_from(number.min(999_999_999_999_999)).unwrap_or(Integer::MAX)
}

#[cfg(test)]
mod tests {
    use tidegate_core::{Algorithm, Limit, LimitVerdict, Now};

    use super::*;
    use crate::limiter::Basis;

    fn answer(limits: &[(Limit, LimitVerdict)]) -> Answer {
        let limits = limits.iter().map(|&(limit, verdict)| LimitAnswer {
            key: 0,
            rule: "proxy:ä\"pi".into(),
            limit,
            verdict,
            basis: Basis::Counts,
        });
        let limits: Vec<_> = limits.collect();
        Answer {
            allowed: false,
            at: Now::default(),
            delay: limits.iter().map(|limit| limit.verdict.delay).max().unwrap_or(0),
            firm: true,
            refused_by: Some("proxy:ä\"pi".into()),
            held: Vec::new(),
            limits,
        }
    }

    #[test]
    fn several_limits_have_names_of_their_own_and_uses_in_flight_no_window() {
        let second = Limit { amount: 5, period: SECOND, algorithm: Algorithm::FixedWindow };
        let flying =
            Limit { amount: 9, period: 0, algorithm: Algorithm::InFlight { per_window: false } };
        let delay = Nanos::MAX;
        let lost = LimitVerdict { allowed: false, remaining: 0, rate: 1.0, delay, reset: delay };
        let fine = LimitVerdict { allowed: true, remaining: 3, rate: 1.0, delay: 0, reset: SECOND };
        let answer = answer(&[(second, fine), (flying, lost)]);
        assert_eq!(policy(&answer).unwrap(), r#""proxy:?\"pi#1";q=5;w=1, "proxy:?\"pi#2";q=9"#);
        assert_eq!(state(&answer).unwrap(), r#""proxy:?\"pi#1";r=3;t=1, "proxy:?\"pi#2";r=0"#);
    }

    #[test]
    fn nothing_is_said_of_limits_that_were_decided_without_the_store() {
        let limit = Limit { amount: 5, period: SECOND, algorithm: Algorithm::FixedWindow };
        let verdict = LimitVerdict { allowed: true, remaining: 0, rate: 0.0, delay: 0, reset: 0 };
        let mut answer = answer(&[(limit, verdict), (limit, verdict)]);
        answer.limits[0].basis = Basis::LocalCounts;
        assert_eq!(state(&answer).unwrap(), r#""proxy:?\"pi#2";r=0;t=0"#);
        answer.limits[1].basis = Basis::Policy;
        assert_eq!((policy(&answer), state(&answer)), (None, None));
    }

    #[test]
    fn clients_are_asked_back_in_whole_seconds() {
        let limit = Limit { amount: 1, period: SECOND, algorithm: Algorithm::FixedWindow };
        let refused =
            |delay| LimitVerdict { allowed: false, remaining: 0, rate: 1.0, delay, reset: delay };
        let check = |delays: &[Nanos], expected| {
            let limits: Vec<_> = delays.iter().map(|&delay| (limit, refused(delay))).collect();
            assert_eq!(retry_after_s(&answer(&limits)), Some(expected), "{delays:?}");
        };
        check(&[], 1);
        check(&[1], 1);
        check(&[SECOND], 1);
        check(&[SECOND + 1, 1], 2);
        check(&[Nanos::MAX], 1);
        check(&[Nanos::MAX, 5 * SECOND], 5);
        let denied = answer(&[(Limit::DENY, refused(Nanos::MAX)), (limit, refused(1))]);
        assert_eq!(retry_after_s(&denied), None);
        assert_eq!(policy(&denied).unwrap(), r#""proxy:?\"pi#1";q=0, "proxy:?\"pi#2";q=1;w=1"#);
        let other = Answer { refused_by: Some("another rule".into()), ..denied };
        assert_eq!(retry_after_s(&other), Some(1), "only a shadow of it");
    }
}
