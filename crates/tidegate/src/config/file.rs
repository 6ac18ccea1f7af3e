//! The tables of the file, as serde and the JSON schema see them.
//!
//! Every door's table and the server's own live beside the code that obeys them; here are only
//! the file as a whole and the small tables that belong to no room of their own.

use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de};

use crate::doors::{DoorConfig, admin, http, jarl, proxy, smockron, text, throttr};
use crate::logs::LogFormat;
use crate::records;
use crate::settings::draft::Draft;
use crate::settings::rule::{DefaultTable, RuleTable};
use crate::settings::units::{Size, Span};
use crate::stores::{memory, remote};

/// Tidegate's configuration: one TOML file.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct File {
    /// What keys are limited to. Tried in order; the first match decides.
    #[serde(rename = "rule", skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<RuleTable>,
    /// For keys that no rule matches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default: Option<DefaultTable>,
    /// The UDP text protocol. Absent: closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<text::Config>,
    /// Records over binary TCP and Unix sockets, one table for each value size. Absent: closed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub throttr: Vec<throttr::Config>,
    /// How long to wait before a call, over TCP: one table for each service. Absent: closed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub jarl: Vec<jarl::Config>,
    /// The master of Smockron's gatekeepers, over ZeroMQ. Absent: closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub smockron: Option<smockron::Config>,
    /// Proxies that hold requests until their limit lets them go, one table each. Absent: closed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub proxy: Vec<proxy::Config>,
    /// Asking over JSON, /metrics, /healthz and /readyz. Absent: closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http: Option<http::Config>,
    /// Administration over JSON: keys, rules, records, proxies. Loopback only. Absent: closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admin: Option<admin::Config>,
    /// Where counts are kept.
    pub store: remote::settings::Settings,
    /// How much may be remembered.
    pub memory: MemoryTable,
    /// Where counts survive a restart. Absent: nothing is written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotTable>,
    /// The process as a whole.
    pub server: ServerTable,
}

impl File {
    /// The doors that have a table, in the order in which they are opened and told.
    #[must_use]
    pub fn doors(&self) -> Vec<DoorConfig> {
        let text = self.text.clone().map(DoorConfig::Text);
        let throttr = self.throttr.iter().cloned().map(DoorConfig::Throttr);
        let jarl = self.jarl.iter().cloned().map(DoorConfig::Jarl);
        let smockron = self.smockron.iter().cloned();
        let smockron = smockron.map(|master| DoorConfig::Smockron(Box::new(master)));
        let proxy = self.proxy.iter().cloned().map(|proxy| DoorConfig::Proxy(Box::new(proxy)));
        let http = self.http.clone().map(DoorConfig::Http);
        let admin = self.admin.clone().map(DoorConfig::Admin);
        let records = text.into_iter().chain(throttr).chain(jarl);
        records.chain(smockron).chain(proxy).chain(http).chain(admin).collect()
    }

    /// Every rule in order: those of the file, those that doors with a limit of their own add
    /// behind them, and the default.
    pub(super) fn drafts(&self) -> Vec<Draft> {
        let rules = self.rules.iter().filter_map(Draft::of_rule);
        let jarl = self.jarl.iter().map(jarl::Config::own_rule);
        let proxy = self.proxy.iter().map(proxy::Config::own_rule);
        let default = Draft::of_default(self.default.as_ref());
        let smockron = self.smockron.iter().flat_map(smockron::Config::own_rules);
        rules.chain(jarl).chain(proxy).chain(smockron).chain([default]).collect()
    }
}

/// How much may be remembered.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct MemoryTable {
    /// The most keys that are remembered.
    #[serde(deserialize_with = "at_least_one")]
    #[schemars(range(min = 1))]
    pub max_keys: u64,
    /// The most records, counters and buffers, that are kept.
    #[serde(deserialize_with = "at_least_one")]
    #[schemars(range(min = 1))]
    pub max_records: u64,
    /// The most memory that keys and records together may take, all included.
    pub max_bytes: Size,
}

impl Default for MemoryTable {
    fn default() -> Self {
        Self { max_keys: 10_000_000, max_records: 10_000_000, max_bytes: Size(4 << 30) }
    }
}

impl MemoryTable {
    /// The same as the store takes it.
    #[must_use]
    pub fn settings(&self) -> memory::Settings {
        memory::Settings { max_keys: most(self.max_keys), max_bytes: most(self.max_bytes.0) }
    }

    /// The same as the records take it.
    #[must_use]
    pub fn records(&self) -> records::Settings {
        let max_records = most(self.max_records);
        records::Settings { max_records, max_bytes: most(self.max_bytes.0) }
    }
}

fn most(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// Where counts survive a restart.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SnapshotTable {
    /// The file, from the working folder of the process.
    pub path: PathBuf,
    /// How often it is written; a crash loses at most this much. At least one second.
    #[serde(deserialize_with = "at_least_a_second")]
    pub every: Span,
}

impl Default for SnapshotTable {
    fn default() -> Self {
        let every = Span(Duration::from_secs(60));
        Self { path: PathBuf::from("tidegate.snapshot"), every }
    }
}

/// The process as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ServerTable {
    /// How long open requests may take to end when the process is told to stop.
    pub shutdown_grace: Span,
    /// The form of log lines on standard error.
    pub log_format: LogFormat,
}

impl Default for ServerTable {
    fn default() -> Self {
        let shutdown_grace = Span(Duration::from_secs(10));
        Self { shutdown_grace, log_format: LogFormat::default() }
    }
}

fn at_least_one<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    match i64::deserialize(deserializer)? {
        number @ 1.. => Ok(number.unsigned_abs()),
        number => {
            let remedy = "write a whole number, 1 or more";
            Err(de::Error::custom(format!("{number} is too small\n{remedy}")))
        }
    }
}

fn at_least_a_second<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Span, D::Error> {
    let span = Span::deserialize(deserializer)?;
    if span.0 >= Duration::from_secs(1) {
        return Ok(span);
    }
    Err(de::Error::custom("this is too often\nwrite a span of at least \"1s\""))
}
