//! The `RateLimit` fields of HTTP (draft-ietf-httpapi-ratelimit-headers): what a limit is, and how
//! much of it is left.

use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use sfv::{Integer, KeyRef, ListSerializer, StringRef};
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
    for (at, limit) in answer.limits.iter().enumerate() {
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
    use tidegate_core::{Algorithm, Limit, Nanos, Now, Verdict};

    use super::*;

    fn answer(limits: &[(Limit, Verdict)]) -> Answer {
        let limits = limits.iter().map(|&(limit, verdict)| LimitAnswer {
            key: 0,
            rule: "proxy:ä\"pi".into(),
            limit,
            verdict,
        });
        let (refused_by, held) = (Some("proxy:ä\"pi".into()), Vec::new());
        Answer {
            allowed: false,
            at: Now::default(),
            delay: 1,
            refused_by,
            held,
            limits: limits.collect(),
        }
    }

    #[test]
    fn several_limits_have_names_of_their_own_and_uses_in_flight_no_window() {
        let second = Limit { amount: 5, period: SECOND, algorithm: Algorithm::FixedWindow };
        let flying =
            Limit { amount: 9, period: 0, algorithm: Algorithm::InFlight { per_window: false } };
        let delay = Nanos::MAX;
        let lost = Verdict { allowed: false, remaining: 0, rate: 1.0, delay, reset: delay };
        let fine = Verdict { allowed: true, remaining: 3, rate: 1.0, delay: 0, reset: SECOND };
        let answer = answer(&[(second, fine), (flying, lost)]);
        assert_eq!(policy(&answer).unwrap(), r#""proxy:?\"pi#1";q=5;w=1, "proxy:?\"pi#2";q=9"#);
        assert_eq!(state(&answer).unwrap(), r#""proxy:?\"pi#1";r=3;t=1, "proxy:?\"pi#2";r=0"#);
    }
}
