//! The `[[proxy]]` tables, and the rule that each of them makes.

use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de};
use tidegate_core::Limit;
use tidegate_core::key::{KEY_BYTES_MAX, KeyBuilder};
use tidegate_core::limit::AlgorithmName;
use tidegate_core::rules::Pattern;
use toml::Spanned;

use super::gatekeeper::GatekeeperConfig;
use super::upstream_url::UpstreamUrl;
use crate::doors::io::limits::DoorLimits;
use crate::doors::io::settings::{self, CONNECTIONS_MAX};
use crate::doors::template::Template;
use crate::settings::draft::{Draft, RuleOrigin};
use crate::settings::listen::{Allow, Listen};
use crate::settings::rule::{MakesRule, NAME_BYTES_MAX, RuleFields, RuleTable, Texts, TextsSchema};
use crate::settings::tls::{Tls, roots};
use crate::settings::units::{ByteSize, Span};

/// What the name of a proxy's own rule begins with.
const RULE_PREFIX: &str = "proxy:";
/// The longest name of a proxy: with the prefix it is the name of a rule.
const PROXY_BYTES_MAX: usize = NAME_BYTES_MAX - RULE_PREFIX.len();
/// A name leaves room for a path, even if every byte of it is encoded.
const _: () = assert!(3 * PROXY_BYTES_MAX + 128 <= KEY_BYTES_MAX);
/// The limit of a proxy that says none.
const LIMIT_DEFAULT: &str = "100 per minute";
/// The same where a master limits.
const LIMIT_BY_MASTER: &str = "none";
/// The most waiters, connections or idle sockets that a table may ask for.
const COUNT_MAX: u32 = 1_000_000;
/// The shortest time that a bound on a wait may be: bounds are looked at ten times a second.
const SPAN_MIN: Duration = Duration::from_millis(100);

/// One `[[proxy]]` table: an upstream, and how often its resources may be asked for.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The first word of its keys, as in `<name> path=/a`. The rule of its own limit is
    /// `proxy:<name>`.
    #[serde(deserialize_with = "name")]
    #[schemars(with = "String")]
    pub name: Spanned<String>,
    /// The addresses to listen on.
    pub listen: Listen,
    /// Where requests go: `http://` or `https://`, a host, and optionally a port.
    #[schemars(with = "String")]
    pub upstream: UpstreamUrl,
    /// A limit such as "100 per minute", or a list of limits that must all hold. A [[rule]] that
    /// matches a key takes precedence. Absent: 100 per minute, or none with a gatekeeper.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<TextsSchema>")]
    pub limit: Option<Spanned<Texts>>,
    /// How the limit is counted.
    #[serde(flatten, skip_deserializing)]
    #[schemars(!skip_deserializing)]
    pub rule: RuleFields,
    /// The entries of a request's key. Requests with equal keys share a count. Absent: path={path}.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Template>,
    /// A Smockron master that the proxy obeys and reports every request to. The domain has the
    /// proxy's name. Its identifiers are the entries of `key`, or the clients' addresses if there
    /// is no `key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gatekeeper: Option<GatekeeperConfig>,
    /// What happens to a request over its limit.
    #[serde(default)]
    pub on_limit: OnLimit,
    /// How long a request may wait. Absent: for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_wait: Option<Span>,
    /// The most requests that may wait for one key.
    #[serde(default = "number::<10_000>", deserialize_with = "count")]
    #[schemars(range(min = 1, max = COUNT_MAX))]
    pub max_waiters: u32,
    /// The most requests that may wait in all.
    #[serde(default = "number::<10_000>", deserialize_with = "count")]
    #[schemars(range(min = 1, max = COUNT_MAX))]
    pub max_waiters_total: u32,
    /// Proxies whose headers are trusted to name the client.
    #[serde(
        default,
        deserialize_with = "Allow::nobody_or",
        skip_serializing_if = "Allow::is_open"
    )]
    pub trusted_proxies: Allow,
    /// Clients that may connect.
    #[serde(default, skip_serializing_if = "Allow::is_open")]
    pub allow: Allow,
    /// Certificates for clients. Absent: plain HTTP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,
    /// Whether the upstream gets HTTP/2: from the first byte with `http://`, by negotiation with
    /// `https://`.
    #[serde(default)]
    pub http2: bool,
    /// A file of certificates (PEM) to check the upstream's certificate against. Absent: those of
    /// the system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upstream_ca: Option<PathBuf>,
    /// How long connecting to the upstream may take.
    #[serde(default = "seconds::<5>", deserialize_with = "span")]
    pub connect_timeout: Span,
    /// How long the upstream may take to begin its answer, and to continue it after a pause.
    #[serde(default = "seconds::<60>", deserialize_with = "span")]
    pub response_timeout: Span,
    /// The most idle connections to the upstream that each event loop keeps.
    #[serde(default = "number::<128>", deserialize_with = "count_or_none")]
    #[schemars(range(max = COUNT_MAX))]
    pub idle_upstream: u32,
    /// How long an idle connection to the upstream is kept.
    #[serde(default = "seconds::<60>", deserialize_with = "span")]
    pub idle_upstream_timeout: Span,
    /// How long a client may take to send the head of a request, from its first byte on, and for a
    /// TLS handshake.
    #[serde(default = "seconds::<5>", deserialize_with = "span")]
    pub head_timeout: Span,
    /// How long a connection may be open without a request.
    #[serde(default = "seconds::<75>", deserialize_with = "span")]
    pub idle_timeout: Span,
    /// How long the transfer of a body may stall because the client neither sends nor reads.
    #[serde(default = "seconds::<60>", deserialize_with = "span")]
    pub stall_timeout: Span,
    /// How long an upgraded connection, such as a WebSocket, may be silent in both directions.
    #[serde(default = "seconds::<3600>", deserialize_with = "span")]
    pub tunnel_timeout: Span,
    /// Whether the upstream's answers, too, get headers that show how much of the limit is left.
    #[serde(default)]
    pub ratelimit_headers: bool,
    /// The largest body of a request. Absent: no bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_body: Option<ByteSize>,
    /// The most open connections. Beyond it an idle one is closed, or clients wait to be accepted.
    #[serde(default = "number::<20_000>", deserialize_with = "settings::connections")]
    #[schemars(range(min = 1, max = CONNECTIONS_MAX))]
    pub max_connections: u32,
    /// The most connections from one source: an IPv4 address, or an IPv6 /64. Absent: a tenth of
    /// max_connections, at least 64, and loopback and trusted_proxies are exempt.
    #[serde(
        default,
        deserialize_with = "settings::per_source",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(range(min = 1, max = CONNECTIONS_MAX))]
    pub max_connections_per_source: Option<u32>,
    /// Where one line for each request goes: true for the log, or the path of a file.
    #[serde(default, skip_serializing_if = "AccessLog::is_off")]
    pub access_log: AccessLog,
}

/// What happens to a request over its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnLimit {
    /// It waits for its turn.
    #[default]
    Wait,
    /// It is refused at once.
    Reject,
}

/// Where a line for each request goes.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum AccessLog {
    /// To the log, or nowhere.
    Log(bool),
    /// To a file.
    File(PathBuf),
}

impl Default for AccessLog {
    fn default() -> Self {
        Self::Log(false)
    }
}

impl AccessLog {
    /// Whether no line is written.
    #[must_use]
    pub fn is_off(&self) -> bool {
        *self == AccessLog::Log(false)
    }
}

impl Config {
    /// Whether a door of `other` can go on as this one: the rules know the limit, and the allow
    /// list is swapped.
    pub(crate) fn same_door(&self, other: &Self) -> bool {
        let of = |config: &Self| Self {
            name: Spanned::new(0..0, config.name.get_ref().clone()),
            limit: None,
            rule: RuleFields::default(),
            allow: Allow::default(),
            ..config.clone()
        };
        of(self) == of(other)
    }

    /// What its table says about connections.
    pub(super) fn connections(&self) -> DoorLimits {
        DoorLimits {
            connections: self.max_connections,
            per_source: self.max_connections_per_source,
            trusted: self.trusted_proxies.clone(),
            keeps_descriptors_back: true,
            idle_gives_way: true,
        }
    }

    /// Which files of certificates cannot be used: the setting, and why.
    pub(super) fn wrong_certificates(&self) -> Vec<(&'static str, String)> {
        let upstream = self.upstream_ca.as_ref().and_then(|path| roots(path).err());
        let upstream = upstream.map(|error| ("upstream_ca", error.to_string()));
        let clients = self.tls.iter().flat_map(Tls::wrong_files);
        upstream.into_iter().chain(clients).collect()
    }

    /// The rule that its limit makes.
    pub(crate) fn own_rule(&self) -> Draft {
        let name = self.name.get_ref();
        Draft {
            name: format!("{RULE_PREFIX}{name}"),
            at: self.name.span(),
            pattern: Pattern::new(&format!("{} *", literal(name))),
            origin: RuleOrigin::Door { usual: AlgorithmName::FixedWindow, can_end: true },
            table: RuleTable::new(self.limit(), self.rule.clone()),
        }
    }

    fn limit(&self) -> Spanned<Texts> {
        let usual = if self.gatekeeper.is_some() { LIMIT_BY_MASTER } else { LIMIT_DEFAULT };
        self.limit.clone().unwrap_or_else(|| Texts::unplaced(usual))
    }

    /// Writes out what the limits are, and are counted by, where the table left it to the default.
    pub(crate) fn fill_in(&mut self, limits: &[Limit]) {
        self.limit = Some(self.limit());
        self.rule.fill_in(limits);
    }
}

impl MakesRule for Config {
    fn rule_fields(&mut self) -> &mut RuleFields {
        &mut self.rule
    }
}

/// The domain of a proxy's keys as a pattern that matches just that.
fn literal(name: &str) -> String {
    let mut domain = Vec::new();
    // Never too long: the names of proxies are bounded.
    let _ = KeyBuilder::new(&mut domain, name.as_bytes()).finish();
    String::from_utf8_lossy(&domain).replace('\\', "\\\\").replace('*', "\\*")
}

/// A default, for serde.
pub(super) fn number<const N: u32>() -> u32 {
    N
}

fn seconds<const N: u64>() -> Span {
    Span(Duration::from_secs(N))
}

fn name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Spanned<String>, D::Error> {
    let name = Spanned::<String>::deserialize(deserializer)?;
    let wrong = match name.get_ref().len() {
        0 => "a proxy must have a name",
        1..=PROXY_BYTES_MAX if name.get_ref().contains(char::is_control) => {
            "the name of a proxy has no control characters"
        }
        1..=PROXY_BYTES_MAX => return Ok(name),
        _ => "the name of the proxy is too long",
    };
    let remedy = format!("write a readable name of 1 to {PROXY_BYTES_MAX} bytes");
    Err(de::Error::custom(format!("{wrong}\n{remedy}")))
}

pub(super) fn count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    number_from(deserializer, 1)
}

pub(super) fn count_or_none<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    number_from(deserializer, 0)
}

fn number_from<'de, D: Deserializer<'de>>(deserializer: D, least: u32) -> Result<u32, D::Error> {
    let number = i64::deserialize(deserializer)?;
    let fits = u32::try_from(number).ok().filter(|n| (least..=COUNT_MAX).contains(n));
    fits.ok_or_else(|| {
        let remedy = format!("write a whole number from {least} to {COUNT_MAX}");
        de::Error::custom(format!("{number} is out of range\n{remedy}"))
    })
}

fn span<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Span, D::Error> {
    let span = Span::deserialize(deserializer)?;
    if span.0 >= SPAN_MIN {
        return Ok(span);
    }
    Err(de::Error::custom("too short\nwrite a span of at least \"100ms\""))
}
