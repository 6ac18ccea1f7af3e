//! How calls are counted and answered, as `[grpc]` says. It is in force for all doors that take
//! such calls.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use bytes::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate_envoy::config::Configuration;

use super::page::ErlPages;
use super::statistics::Statistics;
use crate::doors::Gate;

/// How descriptors are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Counting {
    /// A request counts for all of its descriptors, or for none if one is over its limit.
    #[default]
    AllOrNothing,
    /// As envoyproxy/ratelimit does: each descriptor is counted on its own, refused or not.
    Envoy,
}

/// The names of the response headers.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct HeaderNames {
    /// The header with the uses that the limit allows.
    pub limit: String,
    /// The header with the uses that are left.
    pub remaining: String,
    /// The header with the seconds until all uses are available again.
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

/// How the descriptors of one domain are counted, and when they refuse a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct DomainSettings {
    pub(super) counting: Counting,
    /// All descriptors that have limits are quotas: a call is refused only if all of them are over.
    pub(super) is_quota: bool,
    /// No call is refused.
    pub(super) is_shadow: bool,
}

impl DomainSettings {
    /// Whether a descriptor that is over its limit never keeps the others from being counted.
    pub(super) fn skips_what_is_over(self) -> bool {
        self.is_quota || self.is_shadow
    }
}

/// How calls are counted and answered.
#[derive(Debug, Default)]
pub(crate) struct AnswerSettings {
    /// How descriptors are counted, except in the domains below.
    pub(crate) counting: Option<Counting>,
    /// How descriptors of these domains are counted.
    pub(crate) domains: HashMap<String, Counting>,
    /// Whether limits that come with descriptors are obeyed. They are counted under rules that only
    /// a server with a gRPC door has.
    pub(crate) overrides: bool,
    /// Calls are counted and never refused.
    pub(crate) shadow: bool,
    /// All descriptors that have limits are quotas.
    pub(crate) quota: bool,
    /// The names of response headers, if answers have any.
    pub(crate) headers: Option<HeaderNames>,
    /// Whether answers carry dynamic metadata.
    pub(crate) metadata: bool,
    /// Whether what is decided is counted by the names of envoyproxy/ratelimit, too.
    pub(crate) erl_metrics: bool,
    /// The body of refusals and its type.
    pub(crate) over_limit_body: Option<(Bytes, String)>,
    /// envoyproxy/ratelimit's configuration, if there is one.
    pub(crate) configuration: Option<Arc<Configuration>>,
    /// Whether a management server shall send a configuration and has not sent one yet.
    pub(crate) awaits_xds: bool,
}

impl AnswerSettings {
    /// How the descriptors of a domain are decided on.
    pub(super) fn of_domain(&self, domain: &str) -> DomainSettings {
        let counting = self.counting(domain);
        DomainSettings { counting, is_quota: self.quota, is_shadow: self.shadow }
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

/// What the doors that take such calls share, for as long as the process lives.
#[derive(Default)]
pub(crate) struct EnvoyState {
    settings: ArcSwap<AnswerSettings>,
    pub(super) statistics: Statistics,
}

impl EnvoyState {
    pub(crate) fn of(gate: &Gate) -> Arc<Self> {
        gate.shared.part(|| {
            let state = Arc::<Self>::default();
            gate.metrics.register_unprefixed(Box::new(ErlPages::new(&state, &gate.metrics)));
            state
        })
    }

    /// The settings in force.
    pub(crate) fn settings(&self) -> Arc<AnswerSettings> {
        self.settings.load_full()
    }

    /// Puts settings in force, and forgets statistics of domains that they do not have.
    pub(crate) fn put_in_force(&self, settings: AnswerSettings) {
        let configuration = settings.configuration.clone().filter(|_| settings.erl_metrics);
        self.settings.store(Arc::new(settings));
        self.statistics.retain(configuration.as_deref());
    }
}
