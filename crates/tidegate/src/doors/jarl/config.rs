//! The `[[jarl]]` tables, and the rule that each of them makes.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de};
use tidegate_core::key::{KEY_BYTES_MAX, KeyBuilder};
use tidegate_core::limit::AlgorithmName;
use tidegate_core::rules::Pattern;
use toml::Spanned;

use crate::doors::io::limits::DoorLimits;
use crate::doors::io::settings::{self, CONNECTIONS_MAX};
use crate::settings::draft::{Draft, RuleOrigin};
use crate::settings::listen::{Allow, Listen};
use crate::settings::rule::{MakesRule, NAME_BYTES_MAX, RuleFields, RuleTable, Texts, TextsSchema};
use crate::settings::tls::Tls;

/// What the name of a service's own rule begins with.
const RULE_PREFIX: &str = "jarl:";
/// The longest name of a service: with the prefix it is the name of a rule.
const SERVICE_BYTES_MAX: usize = NAME_BYTES_MAX - RULE_PREFIX.len();
/// The key of a service is never too long, even if every byte of its name is encoded.
const _: () = assert!(3 * SERVICE_BYTES_MAX + "jarl service=".len() <= KEY_BYTES_MAX);
/// Clients that a door holds at most, unless told otherwise.
const CONNECTIONS_USUAL: u32 = 10_000;

/// One `[[jarl]]` table: a service, and how often it may be called.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The service that callers wait for. Its key is `jarl service=<name>`, its rule `jarl:<name>`.
    #[serde(deserialize_with = "service")]
    #[schemars(with = "String")]
    pub service: Spanned<String>,
    /// The addresses to listen on.
    pub listen: Listen,
    /// A limit such as "100 per 1s", or a list of limits that must all hold. A [[rule]] that
    /// matches the service's key takes precedence.
    #[schemars(with = "TextsSchema")]
    pub limit: Spanned<Texts>,
    /// How the limit is counted.
    #[serde(flatten, skip_deserializing)]
    #[schemars(!skip_deserializing)]
    pub rule: RuleFields,
    /// Clients that may connect.
    #[serde(default, skip_serializing_if = "Allow::is_open")]
    pub allow: Allow,
    /// Certificates for callers. Absent: plain TCP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,
    /// The most clients that have their answer and may take time to disconnect. Beyond it the
    /// oldest are closed at once.
    #[serde(default = "connections_max", deserialize_with = "settings::connections")]
    #[schemars(range(min = 1, max = CONNECTIONS_MAX))]
    pub max_connections: u32,
    /// The most connections from one source; those beyond it are closed without an answer. Absent:
    /// a tenth of max_connections, at least 64, and loopback is exempt.
    #[serde(
        default,
        deserialize_with = "settings::per_source",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(range(min = 1, max = CONNECTIONS_MAX))]
    pub max_connections_per_source: Option<u32>,
}

impl Config {
    /// The key under which every caller of the service is booked.
    #[must_use]
    pub fn key(&self) -> Vec<u8> {
        key(self.service.get_ref())
    }

    /// Whether a door of `other` can go on as this one: the rules know the limit, and the allow
    /// list is swapped.
    pub(crate) fn same_door(&self, other: &Self) -> bool {
        let of = |config: &Self| {
            let bounds = (config.max_connections, config.max_connections_per_source);
            (config.service.get_ref().clone(), config.tls.clone(), bounds)
        };
        of(self) == of(other) && self.listen == other.listen
    }

    /// What its table says about connections.
    pub(super) fn connections(&self) -> DoorLimits {
        DoorLimits {
            connections: self.max_connections,
            per_source: self.max_connections_per_source,
            trusted: Allow::default(),
            keeps_descriptors_back: true,
            idle_gives_way: true,
        }
    }

    /// The rule that its limit makes.
    pub(crate) fn own_rule(&self) -> Draft {
        Draft {
            name: format!("{RULE_PREFIX}{}", self.service.get_ref()),
            at: self.service.span(),
            pattern: Pattern::exact(&self.key()),
            origin: RuleOrigin::Door { usual: AlgorithmName::Jarl, can_end: false },
            table: RuleTable::new(self.limit.clone(), self.rule.clone()),
        }
    }
}

impl MakesRule for Config {
    fn rule_fields(&mut self) -> &mut RuleFields {
        &mut self.rule
    }
}

/// The key of a service.
pub(super) fn key(service: &str) -> Vec<u8> {
    let mut key = Vec::new();
    // Never too long: the names of services are bounded.
    let _ = KeyBuilder::new(&mut key, b"jarl").entry(b"service", service.as_bytes()).finish();
    key
}

/// What is wrong with the name of a service, if something is.
///
/// # Errors
/// What is wrong, then on a line of its own what would be right.
pub fn check_service(name: &str) -> Result<(), String> {
    let wrong = match name.len() {
        0 => "a service must have a name",
        1..=SERVICE_BYTES_MAX if name.contains(char::is_control) => {
            "the name of a service has no control characters"
        }
        1..=SERVICE_BYTES_MAX => return Ok(()),
        _ => "the name of the service is too long",
    };
    Err(format!("{wrong}\nwrite a readable name of 1 to {SERVICE_BYTES_MAX} bytes"))
}

fn service<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Spanned<String>, D::Error> {
    let name = Spanned::<String>::deserialize(deserializer)?;
    check_service(name.get_ref()).map_err(de::Error::custom)?;
    Ok(name)
}

fn connections_max() -> u32 {
    CONNECTIONS_USUAL
}
