//! The `[smockron]` table, and the rules that its domains make.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use tidegate_core::key::KeyBuilder;
use tidegate_core::limit::AlgorithmName;
use tidegate_core::rules::Pattern;
use toml::Spanned;

use crate::settings::draft::{Draft, RuleOrigin};
use crate::settings::limits::AlgorithmWord;
use crate::settings::listen::{Allow, socket_address};
use crate::settings::rule::{RuleFields, RuleTable, Texts, TextsSchema};
use crate::settings::units::{ByteSize, Span};

/// The ports of the document.
const ACCOUNTING_PORT: u16 = 10004;
const CONTROL_PORT: u16 = 10005;
/// What the name of a domain's own rule begins with.
const RULE_PREFIX: &str = "smockron:";
/// The longest name of a domain: with an identifier it must stay below 255 bytes.
const DOMAIN_BYTES_MAX: usize = 200;
/// Messages that may wait in each queue and for each peer, unless told otherwise, and the most.
const HWM_USUAL: u32 = 1_000;
const HWM_MAX: u32 = 1_000_000;
/// Peers of each socket, unless told otherwise, and the most.
const CONNECTIONS_USUAL: u32 = 10_000;
const CONNECTIONS_MAX: u32 = 1_000_000;
/// The most old accounting logs that may be kept.
const LOGS_MAX: u32 = 1_000;
/// The least size from which on an accounting log may be put aside.
const LOG_BYTES_MIN: u64 = 64 * 1024;

/// The `[smockron]` table: the master of the gatekeepers that connect to it.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Where gatekeepers report requests: "tcp://127.0.0.1:10004".
    pub accounting: ZmqEndpoint,
    /// Where gatekeepers learn until when a client must wait: "tcp://127.0.0.1:10005".
    pub control: ZmqEndpoint,
    /// Domains whose messages this master takes, if several masters are behind one ZeroMQ proxy.
    /// Absent: all.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "subscribed")]
    pub subscribe: Vec<String>,
    /// Gatekeepers that may connect.
    #[serde(skip_serializing_if = "Allow::is_open")]
    pub allow: Allow,
    /// The high-water mark: messages that may wait, in each queue and for each gatekeeper. More are
    /// dropped.
    #[serde(deserialize_with = "hwm")]
    #[schemars(range(min = 1, max = HWM_MAX))]
    pub hwm: u32,
    /// The most gatekeepers that are connected to each of the two sockets.
    #[serde(deserialize_with = "connections")]
    #[schemars(range(min = 1, max = CONNECTIONS_MAX))]
    pub max_connections: u32,
    /// The longest delay that is accepted from a gatekeeper's report. Longer ones are cut to it.
    pub max_delay: Span,
    /// Whether delays are also published if domain and identifier together have 255 bytes or more.
    /// Gatekeepers written in C overflow on them.
    pub long_pairs: bool,
    /// A file that gets every accounting message, as JSON lines. Absent: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accounting_log: Option<PathBuf>,
    /// The size at which the file is rotated.
    #[serde(deserialize_with = "log_size")]
    pub accounting_log_size: ByteSize,
    /// How many rotated files are kept.
    #[serde(deserialize_with = "logs")]
    #[schemars(range(max = LOGS_MAX))]
    pub accounting_log_keep: u32,
    /// How uses of the domains of this table are counted. Absent: smockron, the protocol's own
    /// rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<AlgorithmWord>")]
    pub algorithm: Option<Spanned<AlgorithmWord>>,
    /// Limits of domains, each one or a list: web = "1/sec burst 10". A [[rule]] that matches takes
    /// precedence.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "domains")]
    #[schemars(with = "BTreeMap<String, TextsSchema>")]
    pub domains: BTreeMap<Spanned<String>, Spanned<Texts>>,
}

impl Default for Config {
    fn default() -> Self {
        let loopback = |port| ZmqEndpoint(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        Self {
            accounting: loopback(ACCOUNTING_PORT),
            control: loopback(CONTROL_PORT),
            subscribe: Vec::new(),
            allow: Allow::default(),
            hwm: HWM_USUAL,
            max_connections: CONNECTIONS_USUAL,
            max_delay: Span(Duration::from_secs(3600)),
            long_pairs: false,
            accounting_log: None,
            accounting_log_size: ByteSize(100 << 20),
            accounting_log_keep: 5,
            algorithm: None,
            domains: BTreeMap::new(),
        }
    }
}

impl Config {
    /// Whether a door of `other` can go on as this one: the rules know the domains, and the allow
    /// list is swapped.
    pub(crate) fn same_door(&self, other: &Self) -> bool {
        let bare = |config: &Self| Self {
            allow: Allow::default(),
            algorithm: None,
            domains: BTreeMap::new(),
            ..config.clone()
        };
        bare(self) == bare(other)
    }

    /// The rules that its domains make.
    pub(crate) fn own_rules(&self) -> impl Iterator<Item = Draft> {
        self.domains.iter().map(|(domain, limit)| Draft {
            name: format!("{RULE_PREFIX}{}", domain.get_ref()),
            at: domain.span(),
            pattern: pattern(domain.get_ref()),
            origin: RuleOrigin::Door { usual: AlgorithmName::Smockron, can_end: false },
            table: RuleTable::new(
                limit.clone(),
                RuleFields { algorithm: self.algorithm.clone(), ..RuleFields::default() },
            ),
        })
    }
}

/// Every key of a domain.
fn pattern(domain: &str) -> Pattern {
    let mut key = Vec::new();
    // Never too long: the names of domains are bounded.
    let _ = KeyBuilder::new(&mut key, domain.as_bytes()).word(b"").finish();
    let literal = String::from_utf8_lossy(&key).replace('\\', r"\\").replace('*', r"\*");
    Pattern::new(&format!("{literal}*"))
}

/// Where a socket is bound, as ZeroMQ writes it: `tcp://127.0.0.1:10004`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZmqEndpoint(pub SocketAddr);

impl fmt::Display for ZmqEndpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "tcp://{}", self.0)
    }
}

impl<'de> Deserialize<'de> for ZmqEndpoint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let address = text.strip_prefix("tcp://").unwrap_or(&text);
        // ZeroMQ's way to say every address.
        let everywhere = address.strip_prefix("*:").map(|port| format!("0.0.0.0:{port}"));
        let parsed = socket_address(everywhere.as_deref().unwrap_or(address));
        match parsed {
            Some(address) if text.starts_with("tcp://") => Ok(Self(address)),
            Some(_) => {
                let remedy = format!("write \"tcp://{address}\"");
                Err(de::Error::custom(format!("\"{text}\" is not an endpoint\n{remedy}")))
            }
            None => {
                let remedy = "an IP address and a port: \"tcp://127.0.0.1:10004\", \
                              \"tcp://*:10004\"; names are not looked up";
                Err(de::Error::custom(format!("\"{text}\" is not an endpoint\n{remedy}")))
            }
        }
    }
}

impl Serialize for ZmqEndpoint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl JsonSchema for ZmqEndpoint {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Endpoint".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "The endpoint of a ZeroMQ socket. Port 0 chooses a free one.",
            "type": "string",
            "pattern": "^tcp://"
        })
    }
}

fn domains<'de, D>(deserializer: D) -> Result<BTreeMap<Spanned<String>, Spanned<Texts>>, D::Error>
where
    D: Deserializer<'de>,
{
    let domains = BTreeMap::<Spanned<String>, Spanned<Texts>>::deserialize(deserializer)?;
    domains.keys().try_for_each(|name| check_domain(name.get_ref()))?;
    Ok(domains)
}

fn subscribed<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let names = Vec::<String>::deserialize(deserializer)?;
    names.iter().try_for_each(|name| check_domain(name))?;
    Ok(names)
}

fn check_domain<E: de::Error>(name: &str) -> Result<(), E> {
    let fits = (1..=DOMAIN_BYTES_MAX).contains(&name.len());
    if fits && !name.contains(char::is_control) {
        return Ok(());
    }
    let remedy = format!("write a readable name of 1 to {DOMAIN_BYTES_MAX} bytes");
    Err(E::custom(format!("{name:?} is not the name of a domain\n{remedy}")))
}

fn hwm<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    whole(deserializer, 1, HWM_MAX, "number of messages that may wait")
}

fn connections<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    whole(deserializer, 1, CONNECTIONS_MAX, "number of connections to hold")
}

fn logs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    whole(deserializer, 0, LOGS_MAX, "number of files to keep")
}

fn whole<'de, D>(deserializer: D, least: u32, most: u32, what: &str) -> Result<u32, D::Error>
where
    D: Deserializer<'de>,
{
    let number = i64::deserialize(deserializer)?;
    let fits = u32::try_from(number).ok().filter(|number| (least..=most).contains(number));
    fits.ok_or_else(|| {
        let remedy = format!("write a whole number from {least} to {most}");
        de::Error::custom(format!("{number} is not a valid {what}\n{remedy}"))
    })
}

fn log_size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ByteSize, D::Error> {
    let size = ByteSize::deserialize(deserializer)?;
    if size.0 >= LOG_BYTES_MIN {
        return Ok(size);
    }
    let remedy = format!("write at least \"{}\"", ByteSize(LOG_BYTES_MIN));
    Err(de::Error::custom(format!("files of {size} are too small\n{remedy}")))
}
