//! What a reload changes while the door is open, and what all connections share.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use bytes::Bytes;
use tidegate_envoy::config::Configuration;

use super::config::{Config, Counting, HeaderNames};
use crate::doors::Gate;

/// How calls are counted and answered.
#[derive(Debug, Default)]
pub(super) struct AnswerSettings {
    counting: Option<Counting>,
    domains: HashMap<String, Counting>,
    /// Nothing is refused.
    pub(super) shadow: bool,
    /// The names of response headers, if answers have any.
    pub(super) headers: Option<HeaderNames>,
    pub(super) metadata: bool,
    /// The body of refusals and its type.
    pub(super) over_limit_body: Option<(Bytes, String)>,
    /// envoyproxy/ratelimit's configuration, if there is one.
    pub(super) configuration: Option<Arc<Configuration>>,
}

impl AnswerSettings {
    pub(super) fn of(config: &Config) -> Self {
        let Config { counting, domains, shadow, headers, header_names, metadata, .. } = config;
        let body = config.over_limit_body.as_ref().map(|body| {
            (Bytes::copy_from_slice(body.as_bytes()), config.over_limit_content_type.clone())
        });
        Self {
            counting: *counting,
            domains: domains.iter().map(|(name, table)| (name.clone(), table.counting)).collect(),
            shadow: *shadow,
            headers: headers.then(|| header_names.clone()),
            metadata: *metadata,
            over_limit_body: body,
            configuration: config.files.configuration().cloned(),
        }
    }

    /// How the descriptors of a domain are counted.
    pub(super) fn counting(&self, domain: &str) -> Counting {
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

/// What the door keeps for as long as the process lives.
#[derive(Default)]
pub(super) struct GrpcState {
    pub(super) answers: ArcSwap<AnswerSettings>,
}

impl GrpcState {
    pub(super) fn of(gate: &Gate) -> Arc<Self> {
        gate.shared.part(Arc::default)
    }
}
