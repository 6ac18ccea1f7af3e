//! The `RateLimit` headers of HTTP (draft-ietf-httpapi-ratelimit-headers), which say what a limit
//! is and how much of it is left, and `Retry-After`.

use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use sfv::{Integer, KeyRef, ListSerializer, StringRef};
use tidegate_core::Nanos;
use tidegate_core::limit::PERIOD_MAX;
use tidegate_core::time::SECOND;

use crate::limiter::{LimitRow, Rows, Verdict};

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// The most bytes of one header, about: a request may have many keys, and clients take 8 KiB or so
/// of headers. What does not fit is left out of both.
const HEADER_BYTES_MAX: usize = 2048;
/// What an item takes beside its name, at most.
const PARAMETERS_BYTES_MAX: usize = 48;

/// How much of its limits a key has left, as headers of a response.
pub(crate) struct Standing([(HeaderName, Option<HeaderValue>); 2]);

impl Standing {
    pub(crate) fn of(rows: &Rows) -> Self {
        let value = |line: Option<String>| line.and_then(|line| HeaderValue::try_from(line).ok());
        Self([(RATELIMIT_POLICY, value(policy(rows))), (RATELIMIT, value(state(rows)))])
    }

    /// Adds them to the headers that an upstream may have sent for its own limits.
    pub(crate) fn write(self, headers: &mut HeaderMap) {
        for (name, value) in self.0 {
            if let Some(value) = value {
                headers.append(name, value);
            }
        }
    }
}

/// `"rule";q=100;w=60` for each limit.
fn policy(rows: &Rows) -> Option<String> {
    list(rows, |row, item| {
        let item = item.parameter(KeyRef::constant("q"), integer(row.limit.amount));
        if row.limit.period > 0 {
            let window = row.limit.period.div_ceil(SECOND);
            let _ = item.parameter(KeyRef::constant("w"), integer(window));
        }
    })
}

/// `"rule";r=0;t=30` for each limit.
fn state(rows: &Rows) -> Option<String> {
    list(rows, |row, item| {
        let item = item.parameter(KeyRef::constant("r"), integer(row.verdict.remaining));
        let wait = if row.verdict.allowed { row.verdict.reset } else { row.verdict.delay };
        // A use in flight ends when it ends.
        if wait <= PERIOD_MAX {
            let _ = item.parameter(KeyRef::constant("t"), integer(wait.div_ceil(SECOND)));
        }
    })
}

type Item<'a> = sfv::ParameterSerializer<&'a mut String>;

fn list(rows: &Rows, mut write: impl FnMut(&LimitRow, Item<'_>)) -> Option<String> {
    let mut list = ListSerializer::new();
    // For a limit that was decided without its counts, the values are not known.
    let known = rows.limits.iter().enumerate().filter(|(_, row)| !row.is_degraded());
    let mut room = HEADER_BYTES_MAX;
    for (at, row) in known {
        let twins = rows.limits.iter().filter(|other| other.rule == row.rule).count();
        let mut name = printable(&row.rule);
        if twins > 1 {
            name.push_str(&format!("#{}", at + 1));
        }
        // The same for both headers, so that they list the same limits.
        let Some(left) = room.checked_sub(name.len() + PARAMETERS_BYTES_MAX) else { break };
        room = left;
        let Ok(name) = StringRef::from_str(&name) else { continue };
        write(row, list.bare_item(name));
    }
    list.finish()
}

/// The Retry-After of a refusal: whole seconds, rounded up. A limit on uses in flight does not know
/// the time; then the other limits decide, and without any it is one second. `None` where the rule
/// lets nothing pass: coming back does not help.
pub(crate) fn retry_after_s(verdict: &Verdict, rows: &Rows) -> Option<u64> {
    if rows.is_denied() {
        return None;
    }
    let known = |delay: &Nanos| *delay != Nanos::MAX;
    let delay = Some(verdict.delay).filter(known).or_else(|| {
        let refused = rows.limits.iter().filter(|row| !row.verdict.allowed);
        refused.map(|row| row.verdict.delay).filter(known).max()
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
    use tidegate_core::limit::AMOUNT_MAX;
    use tidegate_core::{Algorithm, Limit, LimitVerdict, Now};

    use super::*;
    use crate::limiter::{Basis, Outcome};

    /// The rows of a refusal by these limits.
    fn rows(limits: &[(Limit, LimitVerdict)]) -> Rows {
        let row = |&(limit, verdict): &(Limit, LimitVerdict)| LimitRow {
            key: 0,
            rule: "proxy:ä\"pi".into(),
            limit,
            verdict,
            basis: Basis::Counts,
            shadow: false,
        };
        Rows {
            refused_by: Some("proxy:ä\"pi".into()),
            limits: limits.iter().map(row).collect(),
            ..Rows::default()
        }
    }

    /// The verdict that goes with them.
    fn refusal(rows: &Rows) -> Verdict {
        let delay = rows.limits.iter().map(|row| row.verdict.delay).max().unwrap_or(0);
        Verdict { delay, ..Verdict::unlimited(Outcome::Refused, 0, Now::default()) }
    }

    #[test]
    fn several_limits_have_names_of_their_own_and_uses_in_flight_no_window() {
        let second = Limit { amount: 5, period: SECOND, algorithm: Algorithm::FixedWindow };
        let flying =
            Limit { amount: 9, period: 0, algorithm: Algorithm::InFlight { per_window: false } };
        let delay = Nanos::MAX;
        let lost = LimitVerdict { allowed: false, remaining: 0, rate: 1.0, delay, reset: delay };
        let fine = LimitVerdict { allowed: true, remaining: 3, rate: 1.0, delay: 0, reset: SECOND };
        let rows = rows(&[(second, fine), (flying, lost)]);
        assert_eq!(policy(&rows).unwrap(), r#""proxy:?\"pi#1";q=5;w=1, "proxy:?\"pi#2";q=9"#);
        assert_eq!(state(&rows).unwrap(), r#""proxy:?\"pi#1";r=3;t=1, "proxy:?\"pi#2";r=0"#);
    }

    #[test]
    fn nothing_is_said_of_limits_that_were_decided_without_the_store() {
        let limit = Limit { amount: 5, period: SECOND, algorithm: Algorithm::FixedWindow };
        let verdict = LimitVerdict { allowed: true, remaining: 0, rate: 0.0, delay: 0, reset: 0 };
        let mut rows = rows(&[(limit, verdict), (limit, verdict)]);
        rows.limits[0].basis = Basis::LocalCounts;
        assert_eq!(state(&rows).unwrap(), r#""proxy:?\"pi#2";r=0;t=0"#);
        rows.limits[1].basis = Basis::Policy;
        assert_eq!((policy(&rows), state(&rows)), (None, None));
    }

    #[test]
    fn headers_of_many_limits_stay_short() {
        let limit = Limit {
            amount: AMOUNT_MAX,
            period: PERIOD_MAX,
            algorithm: Algorithm::Average { strict: true },
        };
        let reset = PERIOD_MAX;
        let verdict =
            LimitVerdict { allowed: true, remaining: AMOUNT_MAX, rate: 0.0, delay: 0, reset };
        let rows = rows(&vec![(limit, verdict); 200]);
        let (policy, state) = (policy(&rows).unwrap(), state(&rows).unwrap());
        let items = |list: &str| list.split(", ").count();
        assert!(items(&policy) > 20 && items(&policy) == items(&state), "{policy}");
        assert!(policy.len().max(state.len()) <= HEADER_BYTES_MAX, "{}", policy.len());
    }

    #[test]
    fn clients_are_asked_back_in_whole_seconds() {
        let limit = Limit { amount: 1, period: SECOND, algorithm: Algorithm::FixedWindow };
        let refused =
            |delay| LimitVerdict { allowed: false, remaining: 0, rate: 1.0, delay, reset: delay };
        let check = |delays: &[Nanos], expected| {
            let limits: Vec<_> = delays.iter().map(|&delay| (limit, refused(delay))).collect();
            let rows = rows(&limits);
            assert_eq!(retry_after_s(&refusal(&rows), &rows), Some(expected), "{delays:?}");
        };
        check(&[], 1);
        check(&[1], 1);
        check(&[SECOND], 1);
        check(&[SECOND + 1, 1], 2);
        check(&[Nanos::MAX], 1);
        check(&[Nanos::MAX, 5 * SECOND], 5);
        let denied = rows(&[(Limit::DENY, refused(Nanos::MAX)), (limit, refused(1))]);
        assert_eq!(retry_after_s(&refusal(&denied), &denied), None);
        assert_eq!(policy(&denied).unwrap(), r#""proxy:?\"pi#1";q=0, "proxy:?\"pi#2";q=1;w=1"#);
        let other = Rows { refused_by: Some("another rule".into()), ..denied };
        assert_eq!(retry_after_s(&refusal(&other), &other), Some(1), "only a shadow of it");
    }
}
