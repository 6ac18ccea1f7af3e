//! How calls are counted and answered: what `[grpc]` says of it, in force for all doors that are
//! asked.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use bytes::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate_envoy::config::Configuration;

use super::page::Page;
use super::statistics::Statistics;
use crate::doors::Gate;

/// How descriptors are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Counting {
    /// A request counts for all of its descriptors, or, if one of them is over, for none.
    #[default]
    AllOrNothing,
    /// As envoyproxy/ratelimit: each descriptor is counted by itself, refused or not.
    Envoy,
}

/// The names of the response headers.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct HeaderNames {
    /// Uses that the limit allows.
    pub limit: String,
    /// Uses that are left.
    pub remaining: String,
    /// Seconds until the limit is as new.
    pub reset: String,
}

impl Default for HeaderNames {
    fn default() -> Self {
        Self {
            limit: "RateLimit-Limit".to_owned(),
            remaining: "RateLimit-Remaining".to_owned(),
            reset: "RateLimit-Reset".to_owned(),
        }
    }
}

/// How the descriptors of one domain are decided on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Manner {
    pub(super) counting: Counting,
    /// Each descriptor that has a limit stands in the way only if all such descriptors do.
    pub(super) is_quota: bool,
}

/// How calls are counted and answered.
#[derive(Debug, Default)]
pub(crate) struct AnswerSettings {
    /// How descriptors are counted of which the next says nothing.
    pub(crate) counting: Option<Counting>,
    pub(crate) domains: HashMap<String, Counting>,
    /// Whether limits that come with descriptors hold: the rules that they count under are there.
    pub(crate) overrides: bool,
    /// Nothing is refused.
    pub(crate) shadow: bool,
    /// All descriptors that have limits are quotas.
    pub(crate) quota: bool,
    /// The names of response headers, if answers have any.
    pub(crate) headers: Option<HeaderNames>,
    pub(crate) metadata: bool,
    /// Whether what is decided is counted by the names of envoyproxy/ratelimit, too.
    pub(crate) erl_metrics: bool,
    /// The body of refusals and its type.
    pub(crate) over_limit_body: Option<(Bytes, String)>,
    /// envoyproxy/ratelimit's configuration, if there is one.
    pub(crate) configuration: Option<Arc<Configuration>>,
    /// A management server is to send one, and has not yet.
    pub(crate) awaits_xds: bool,
}

impl AnswerSettings {
    /// How the descriptors of a domain are decided on.
    pub(super) fn manner(&self, domain: &str) -> Manner {
        Manner { counting: self.counting(domain), is_quota: self.quota }
    }

    fn counting(&self, domain: &str) -> Counting {
        let is_configured = || self.configuration.as_ref().is_some_and(|it| it.has_domain(domain));
        match self.domains.get(domain) {
            Some(counting) => *counting,
            None => self.counting.unwrap_or_else(|| match is_configured() {
                true => Counting::Envoy,
                false => Counting::AllOrNothing,
            }),
        }
    }
}

/// What the process keeps for as long as it lives.
#[derive(Default)]
pub(crate) struct EnvoyState {
    answers: ArcSwap<AnswerSettings>,
    pub(super) statistics: Statistics,
}

impl EnvoyState {
    pub(crate) fn of(gate: &Gate) -> Arc<Self> {
        gate.shared.part(|| {
            let state = Arc::<Self>::default();
            gate.metrics.register_unprefixed(Box::new(Page::new(&state, &gate.metrics)));
            state
        })
    }

    /// The settings in force.
    pub(crate) fn answers(&self) -> Arc<AnswerSettings> {
        self.answers.load_full()
    }

    /// Puts settings in force, and forgets statistics of what they do not have.
    pub(crate) fn put_in_force(&self, answers: AnswerSettings) {
        let configuration = answers.configuration.clone().filter(|_| answers.erl_metrics);
        self.answers.store(Arc::new(answers));
        self.statistics.retain(configuration.as_deref());
    }
}
