//! The `[grpc]` table, and which of its settings a reload takes over while the door is open.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::header::{HeaderName, HeaderValue};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de};
use tidegate_core::Limit;
use tidegate_core::limit::{AMOUNT_MAX, Algorithm};
use tidegate_envoy::config::{self, Configuration, Options, Rule, Unit};

use super::envoy_files::EnvoyFiles;
use super::xds::{MergedConfiguration, Xds, XdsResources};
use crate::doors::envoy::asked::override_rule;
use crate::doors::envoy::settings::{AnswerSettings, Counting, HeaderNames};
use crate::doors::io::limits::DoorLimits;
use crate::doors::io::settings::{self, CONNECTIONS_MAX};
use crate::settings::draft::{CompiledRule, Draft, RuleOrigin};
use crate::settings::listen::{Allow, Listen};
use crate::settings::problem::Problem;
use crate::settings::read::CompletedTable;
use crate::settings::tls::Tls;
use crate::settings::units::Span;

/// The units of limits that come with descriptors.
const OVERRIDE_UNITS: [Unit; 6] =
    [Unit::Second, Unit::Minute, Unit::Hour, Unit::Day, Unit::Month, Unit::Year];

/// The port of envoyproxy/ratelimit.
const PORT: u16 = 8081;
/// Connections of the door, unless told otherwise. An Envoy has a few for each of its workers.
const CONNECTIONS_USUAL: u32 = 4_096;
/// How long a connection may last, unless told otherwise.
const AGE_USUAL: Duration = Duration::from_secs(24 * 60 * 60);
/// How long a use in flight may last, unless told otherwise.
const HOLD_USUAL: Duration = Duration::from_secs(60);
/// The least and the most that the setting may say.
const HOLD_MIN: Duration = Duration::from_secs(1);
const HOLD_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// The `[grpc]` table.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The addresses to listen on. Absent, and without `unix`: 127.0.0.1:8081.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<Listen>,
    /// The path of a Unix socket to listen on.
    #[serde(deserialize_with = "settings::socket_path", skip_serializing_if = "Option::is_none")]
    pub unix: Option<PathBuf>,
    /// Clients that may connect over TCP. File permissions control access to a Unix socket.
    #[serde(skip_serializing_if = "Allow::is_open")]
    pub allow: Allow,
    /// Certificates for clients over TCP. Absent: plain TCP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,
    /// The most open connections. Beyond it clients wait to be accepted.
    #[serde(deserialize_with = "settings::connections")]
    #[schemars(range(min = 1, max = CONNECTIONS_MAX))]
    pub max_connections: u32,
    /// The most connections from one source: an IPv4 address, or an IPv6 /64. Absent: a tenth of
    /// max_connections, at least 64, and loopback and Unix sockets are exempt.
    #[serde(deserialize_with = "settings::per_source", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = CONNECTIONS_MAX))]
    pub max_connections_per_source: Option<u32>,
    /// Connections without a call are closed after this time. Absent: never.
    #[serde(
        deserialize_with = "settings::some_idle_timeout",
        skip_serializing_if = "Option::is_none"
    )]
    pub idle_timeout: Option<Span>,
    /// After this time, give or take a tenth, the server asks a client to reconnect.
    #[serde(deserialize_with = "settings::idle_timeout")]
    pub max_connection_age: Span,
    /// How descriptors are counted. Absent: envoy for the domains of `envoy_config` and `xds`,
    /// all_or_nothing for others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counting: Option<Counting>,
    /// A folder of envoyproxy/ratelimit's YAML files. No rules apply to their domains.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub envoy_config: Option<PathBuf>,
    /// Whether several of those files may define the same domain.
    pub merge_domains: bool,
    /// What was read from that folder.
    #[serde(skip)]
    pub(super) files: EnvoyFiles,
    /// The management server that sends such a configuration. No rules apply to its domains.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub xds: Option<Xds>,
    /// The configuration of the folder and of that server together, once the server has sent one.
    #[serde(skip)]
    merged: MergedConfiguration,
    /// A use in flight that Envoy does not give back lapses after this time, 1 s to 24 h.
    #[serde(deserialize_with = "hold")]
    pub hold: Span,
    /// Settings of individual domains.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub domains: BTreeMap<String, DomainTable>,
    /// Whether requests over a limit are only counted and reported, not refused.
    pub shadow: bool,
    /// Whether a call is refused only if all of its descriptors that have limits are over them.
    pub quota: bool,
    /// Whether response headers show the limit that is closest to being used up.
    pub headers: bool,
    /// The names of those headers.
    pub header_names: HeaderNames,
    /// Whether answers contain the request's descriptors and the rule that refused, as dynamic
    /// metadata.
    pub metadata: bool,
    /// Whether decisions are also counted under the names of envoyproxy/ratelimit: in /metrics, and
    /// at /stats of administration.
    pub erl_metrics: bool,
    /// The body of refusals. Absent: Envoy's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub over_limit_body: Option<String>,
    /// The type of that body.
    pub over_limit_content_type: String,
}

/// Settings of one domain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DomainTable {
    /// How its descriptors are counted.
    pub counting: Counting,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: None,
            unix: None,
            allow: Allow::default(),
            tls: None,
            max_connections: CONNECTIONS_USUAL,
            max_connections_per_source: None,
            idle_timeout: None,
            max_connection_age: Span(AGE_USUAL),
            counting: None,
            envoy_config: None,
            merge_domains: false,
            files: EnvoyFiles::default(),
            xds: None,
            merged: MergedConfiguration::default(),
            hold: Span(HOLD_USUAL),
            domains: BTreeMap::new(),
            shadow: false,
            quota: false,
            headers: false,
            header_names: HeaderNames::default(),
            metadata: false,
            erl_metrics: false,
            over_limit_body: None,
            over_limit_content_type: "text/plain".to_owned(),
        }
    }
}

/// Reads how long a use in flight may last.
fn hold<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Span, D::Error> {
    let span = Span::deserialize(deserializer)?;
    if (HOLD_MIN..=HOLD_MAX).contains(&span.0) {
        return Ok(span);
    }
    let remedy = "write a span from \"1s\" to \"24h\", longer than requests last";
    Err(de::Error::custom(format!("{span} is not a valid time for uses to lapse\n{remedy}")))
}

impl CompletedTable for Config {
    fn complete(&mut self) -> Result<(), String> {
        settings::complete_sockets(
            PORT,
            &mut self.listen,
            self.unix.as_deref(),
            self.tls.as_ref(),
        )?;
        self.xds.as_ref().map_or(Ok(()), Xds::check)?;
        let HeaderNames { limit, remaining, reset } = &self.header_names;
        for name in [limit, remaining, reset] {
            if HeaderName::from_bytes(name.as_bytes()).is_err() {
                let remedy = "write a name such as \"RateLimit-Limit\"";
                return Err(format!("{name:?} is not the name of a header\n{remedy}"));
            }
        }
        if HeaderValue::from_str(&self.over_limit_content_type).is_err() {
            let remedy = "write a type such as \"text/plain\"";
            return Err(format!("`over_limit_content_type` is not a type\n{remedy}"));
        }
        self.files = EnvoyFiles::read(self.envoy_config.as_deref(), self.merge_domains);
        Ok(())
    }
}

impl Config {
    /// What the table says of counting and answering calls.
    pub(super) fn answer_settings(&self) -> AnswerSettings {
        let Self { counting, domains, shadow, quota, headers, header_names, metadata, .. } = self;
        let body = self.over_limit_body.as_ref().map(|body| {
            (Bytes::copy_from_slice(body.as_bytes()), self.over_limit_content_type.clone())
        });
        AnswerSettings {
            counting: *counting,
            domains: domains.iter().map(|(name, table)| (name.clone(), table.counting)).collect(),
            overrides: true,
            shadow: *shadow,
            quota: *quota,
            headers: headers.then(|| header_names.clone()),
            metadata: *metadata,
            erl_metrics: self.erl_metrics,
            over_limit_body: body,
            configuration: self.configuration().cloned(),
            awaits_xds: self.awaits_xds(),
        }
    }

    /// Whether a door of `other` can go on as this one: what [`AnswerSettings`] has and the allow
    /// list may differ.
    pub(super) fn same_door(&self, other: &Self) -> bool {
        self.listen == other.listen
            && self.unix == other.unix
            && self.tls == other.tls
            && self.max_connections == other.max_connections
            && self.max_connections_per_source == other.max_connections_per_source
            && self.idle_timeout == other.idle_timeout
            && self.max_connection_age == other.max_connection_age
    }

    /// envoyproxy/ratelimit's configuration, if there is one.
    fn configuration(&self) -> Option<&Arc<Configuration>> {
        self.merged.0.as_ref().or(self.files.configuration())
    }

    /// Whether the management server has not sent a configuration yet.
    fn awaits_xds(&self) -> bool {
        self.xds.is_some() && self.merged.0.is_none()
    }

    /// Merges what the management server has sent with the folder. Returns the rules of what was
    /// sent.
    ///
    /// # Errors
    /// What is wrong with it, in envoyproxy/ratelimit's words.
    pub(crate) fn merge_xds(&mut self, resources: &XdsResources) -> Result<Vec<Draft>, String> {
        let files = self.files.configuration().cloned().unwrap_or_default();
        let options = Options { merge_domains: self.merge_domains };
        let merged = config::load_beside(&files, &resources.domains, options);
        let merged = merged.map_err(|error| error.to_string())?;
        let rules =
            merged.rules().into_iter().skip(files.rules().len()).filter_map(draft).collect();
        self.merged = MergedConfiguration(Some(Arc::new(merged)));
        Ok(rules)
    }

    /// The rules of the folder's limits, and those that limits of descriptors count under.
    pub(crate) fn own_rules(&self) -> Vec<Draft> {
        let configured = self.files.configuration().into_iter().flat_map(|it| it.rules());
        let configured = configured.filter_map(draft);
        let overrides = OVERRIDE_UNITS.into_iter().filter_map(|unit| {
            let (amount, period) = (AMOUNT_MAX, unit.period()?);
            let limit = Limit { amount, period, algorithm: Algorithm::FixedWindow };
            Some(Draft::of_limit(override_rule(unit), &limit, false))
        });
        configured.chain(overrides).collect()
    }

    /// `[[rule]]`s that are for keys of a domain of the folder: they limit no call, because the
    /// folder alone does.
    pub(crate) fn rules_without_calls(&self, written: &[CompiledRule]) -> Vec<Problem> {
        let of_domain = |name: &str| {
            let mut key = Vec::new();
            config::write_key(&mut key, name, std::iter::empty());
            key.push(b' ');
            (key, name.to_owned())
        };
        let folder = self.files.configuration();
        let domains: Vec<(Vec<u8>, String)> =
            folder.into_iter().flat_map(|it| it.domains()).map(of_domain).collect();
        let warning = |CompiledRule { draft, .. }: &CompiledRule| {
            let found =
                draft.table.r#match.as_ref().filter(|_| draft.origin == RuleOrigin::Rule)?;
            let beginning = draft.pattern.beginning();
            let (_, domain) = domains.iter().find(|(key, _)| beginning.starts_with(key))?;
            let message = format!(
                "warning: this rule limits no call of Envoy: the files of `envoy_config` alone \
                 limit the domain \"{domain}\""
            );
            let remedy = "remove it, unless another door uses its keys";
            Some(Problem::new(found.span(), message, remedy))
        };
        written.iter().filter_map(warning).collect()
    }

    /// What is wrong with the files that it names.
    pub(super) fn wrong_files(&self) -> Vec<(&'static str, String)> {
        let mut wrong = self.tls.as_ref().map(Tls::wrong_files).unwrap_or_default();
        wrong.extend(self.files.wrong().map(|wrong| ("envoy_config", wrong)));
        wrong.extend(self.xds.iter().flat_map(Xds::wrong_files));
        wrong
    }

    /// What its table says about connections.
    pub(super) fn connections(&self) -> DoorLimits {
        DoorLimits {
            connections: self.max_connections,
            per_source: self.max_connections_per_source,
            trusted: Allow::default(),
            keeps_descriptors_back: true,
            // Envoy keeps idle connections and expects to find them.
            idle_gives_way: false,
        }
    }
}

/// The rule that the limiter knows by the name of a configured one; none where nothing is counted.
fn draft(rule: &Rule) -> Option<Draft> {
    let limit = match rule.limit? {
        limit if limit.amount == 0 => Limit::DENY,
        limit => limit,
    };
    // What is over its quota passes unless all are, which the door sees.
    Some(Draft::of_limit(&rule.id, &limit, rule.shadow || rule.quota))
}
