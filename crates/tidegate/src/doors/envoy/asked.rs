//! What a call asks for: of each descriptor its key, what limits it, and how many uses to take or
//! give back.

use std::ops::Range;

use smallvec::SmallVec;
use tidegate_core::Limit;
use tidegate_core::limit::AMOUNT_MAX;
use tidegate_envoy::config::{Configuration, Found, Override, Rule, Unit, write_key};
use tidegate_envoy::proto::descriptor::RateLimitDescriptor;
use tidegate_envoy::proto::ratelimit::RateLimitRequest;
use tonic::Status;

/// The most descriptors of one call, and the most entries of one descriptor.
const DESCRIPTORS_MAX: usize = crate::limiter::KEYS_MAX;
const ENTRIES_MAX: usize = 32;

/// The name of the rule that limits of descriptors count under.
pub(crate) fn override_rule(unit: Unit) -> &'static str {
    match unit {
        Unit::Second => "grpc:override/second",
        Unit::Minute => "grpc:override/minute",
        Unit::Hour => "grpc:override/hour",
        Unit::Day => "grpc:override/day",
        Unit::Month => "grpc:override/month",
        _ => "grpc:override/year",
    }
}

/// A call whose keys are written.
pub(super) struct AskedCall<'a> {
    /// All keys, one behind the other.
    keys: Vec<u8>,
    pub(super) descriptors: SmallVec<[AskedDescriptor<'a>; 4]>,
}

/// One descriptor of a call.
#[derive(Clone)]
pub(super) struct AskedDescriptor<'a> {
    /// Where its key lies.
    key: Range<usize>,
    pub(super) hits: Hits,
    pub(super) limited: Limited<'a>,
    /// The rule that limits it, if that has one count for all of its keys.
    pub(super) shared_rule: Option<usize>,
}

/// What limits a descriptor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Limited<'a> {
    /// The rules that hold at every door.
    ByRule,
    /// A rule of envoyproxy/ratelimit's configuration.
    Configured(&'a Rule),
    /// What came with the descriptor, in place of its rule.
    Override(Limit, Unit),
    /// Nothing, and the answer tells nothing either.
    Nothing,
}

/// How many uses a descriptor asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hits {
    /// None: the answer says what is left.
    Look,
    Take(u64),
    /// Gives uses back, or none: whatever the limit says, it is not over.
    GiveBack(u64),
}

/// An error in place of an answer, and the reason by which it is counted. Envoy lets a request
/// pass on any error, so what its clients choose must not cause one: only what operators set up.
pub(crate) struct CallError {
    pub(crate) reason: &'static str,
    pub(crate) status: Status,
}

impl CallError {
    fn unknown(reason: &'static str, text: &str) -> Self {
        Self { reason, status: Status::unknown(text) }
    }

    /// No configuration has come from the management server yet, and it may have the domain.
    pub(super) fn not_configured() -> Self {
        Self::unknown("no_configuration", "no rate limit configuration loaded")
    }

    pub(super) fn invalid(reason: &'static str, text: impl Into<String>) -> Self {
        Self { reason, status: Status::invalid_argument(text) }
    }
}

impl<'a> AskedCall<'a> {
    /// Writes the keys of a call.
    pub(super) fn read(
        call: &RateLimitRequest,
        configuration: Option<&'a Configuration>,
    ) -> Result<Self, CallError> {
        if call.domain.is_empty() {
            return Err(CallError::unknown("no_domain", "rate limit domain must not be empty"));
        }
        if call.descriptors.is_empty() {
            let text = "rate limit descriptor list must not be empty";
            return Err(CallError::unknown("empty_call", text));
        }
        if call.descriptors.len() > DESCRIPTORS_MAX {
            let text = format!("a call has at most {DESCRIPTORS_MAX} descriptors");
            return Err(CallError::invalid("too_many_keys", text));
        }
        let mut asked = Self { keys: Vec::with_capacity(64), descriptors: SmallVec::new() };
        for descriptor in &call.descriptors {
            if descriptor.entries.len() > ENTRIES_MAX {
                let text = format!("a descriptor has at most {ENTRIES_MAX} entries");
                return Err(CallError::invalid("too_many_entries", text));
            }
            let given = given_limit(descriptor)?;
            let start = asked.keys.len();
            let entries = descriptor.entries.iter().map(|entry| (&entry.key[..], &entry.value[..]));
            let found = match configuration {
                Some(configuration) => {
                    configuration.find(&call.domain, entries.clone(), given, &mut asked.keys)
                }
                None => Found::UnknownDomain,
            };
            let limited = match (found, given) {
                (Found::Rule(rule), _) => Limited::Configured(rule),
                (Found::Override(limit, unit), _) => Limited::Override(limit, unit),
                (Found::Nothing, _) => Limited::Nothing,
                (Found::UnknownDomain, given) => {
                    write_key(&mut asked.keys, &call.domain, entries);
                    let limit = given.and_then(|given| Some((given.limit()?, given.unit)));
                    limit.map_or(Limited::ByRule, |(limit, unit)| Limited::Override(limit, unit))
                }
            };
            let hits = Hits::of(descriptor, call.hits_addend);
            let key = start..asked.keys.len();
            asked.descriptors.push(AskedDescriptor { key, hits, limited, shared_rule: None });
        }
        asked.leave_out_replaced();
        Ok(asked)
    }

    /// Applies `replaces`: a rule that another descriptor's rule replaces by name limits nothing.
    fn leave_out_replaced(&mut self) {
        let configured = |descriptor: &AskedDescriptor<'a>| match descriptor.limited {
            Limited::Configured(rule) => Some(rule),
            _ => None,
        };
        let rules: SmallVec<[&Rule; 4]> = self.descriptors.iter().filter_map(configured).collect();
        if rules.iter().all(|rule| rule.replaces.is_empty()) {
            return;
        }
        let is_replaced = |rule: &Rule| {
            !rule.name.is_empty() && rules.iter().any(|other| other.replaces.contains(&rule.name))
        };
        for descriptor in &mut self.descriptors {
            if configured(descriptor).is_some_and(is_replaced) {
                descriptor.limited = Limited::Nothing;
            }
        }
    }

    /// Gives descriptors that are the same the largest of their hits: they are one use.
    pub(super) fn join_same(&mut self) {
        if self.descriptors.len() < 2 {
            return;
        }
        let most = |descriptor: &AskedDescriptor<'_>| {
            let same = self.descriptors.iter().filter(|other| self.are_same(other, descriptor));
            same.fold(descriptor.hits, |most, other| most.or_more(other.hits))
        };
        let hits: SmallVec<[Hits; 4]> = self.descriptors.iter().map(most).collect();
        for (descriptor, hits) in self.descriptors.iter_mut().zip(hits) {
            descriptor.hits = hits;
        }
    }

    /// Whether two descriptors have one count.
    pub(super) fn are_same(&self, one: &AskedDescriptor<'_>, other: &AskedDescriptor<'_>) -> bool {
        if one.shared_rule.is_some() && one.shared_rule == other.shared_rule {
            return true;
        }
        one.limited.counts_as(&other.limited) && self.key(one) == self.key(other)
    }

    /// The key of a descriptor.
    pub(super) fn key(&self, descriptor: &AskedDescriptor<'_>) -> &[u8] {
        &self.keys[descriptor.key.clone()]
    }
}

/// The limit that came with a descriptor.
fn given_limit(descriptor: &RateLimitDescriptor) -> Result<Option<Override>, CallError> {
    let Some(given) = &descriptor.limit else { return Ok(None) };
    let Some(unit) = Unit::of_override(given.unit) else {
        let text = format!("{} is no unit that a limit of a descriptor can have", given.unit);
        return Err(CallError::invalid("override_unit", text));
    };
    Ok(Some(Override { requests_per_unit: given.requests_per_unit, unit }))
}

impl Limited<'_> {
    /// Whether both count under the same rule, if their keys are the same.
    fn counts_as(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Override(_, unit), Self::Override(_, other)) => unit == other,
            (Self::ByRule, Self::ByRule) => true,
            (Self::Configured(one), Self::Configured(other)) => {
                one.limit.is_some() && other.limit.is_some()
            }
            _ => false,
        }
    }

    /// The limit that came with the descriptor.
    pub(super) fn given(&self) -> Option<&Limit> {
        match self {
            Self::Override(limit, _) => Some(limit),
            Self::ByRule | Self::Configured(_) | Self::Nothing => None,
        }
    }
}

impl Hits {
    /// The larger of two. What gives back stays as it is.
    fn or_more(self, other: Self) -> Self {
        match (self, other) {
            (Self::Take(hits), Self::Take(other)) => Self::Take(hits.max(other)),
            (Self::Look, Self::Take(_)) => other,
            _ => self,
        }
    }

    fn of(descriptor: &RateLimitDescriptor, of_call: u32) -> Self {
        let hits = descriptor.hits_addend.unwrap_or(u64::from(of_call.max(1)));
        // More than any limit allows is too much, however much more.
        match hits.min(AMOUNT_MAX) {
            hits if descriptor.is_negative_hits => Self::GiveBack(hits),
            0 => Self::Look,
            hits => Self::Take(hits),
        }
    }
}
