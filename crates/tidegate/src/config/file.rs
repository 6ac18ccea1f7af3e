//! The tables of the file, as serde and the JSON schema see them.
//!
//! Every door's table and the server's own live beside the code that obeys them; here are only
//! the file as a whole and the small tables that belong to no other module.

use std::path::{Path, PathBuf};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de};
use toml::Spanned;

use super::read::Tables;
use crate::doors::{DoorConfig, admin, grpc, http, jarl, proxy, resp, smockron, text, throttr};
use crate::logs::LogFormat;
use crate::records;
use crate::settings::draft::{CompiledRule, Draft};
use crate::settings::read::{completed_table, read, rule_table};
use crate::settings::rule::{DefaultTable, RuleTable};
use crate::settings::units::{ByteSize, Span};
use crate::stores::{memory, remote};

/// Tidegate's configuration: one TOML file.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct File {
    /// The limits of keys. Rules are tried in order; the first match decides.
    #[serde(rename = "rule", skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<RuleTable>,
    /// The limit of keys that no rule matches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default: Option<DefaultTable>,
    /// The UDP text protocol. Absent: closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<text::Config>,
    /// Records over binary TCP and Unix sockets, one table for each value size. Absent: closed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub throttr: Vec<throttr::Config>,
    /// Tells callers over TCP how long to wait before a call: one table for each service. Absent:
    /// closed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub jarl: Vec<jarl::Config>,
    /// The master of Smockron's gatekeepers, over ZeroMQ. Absent: closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub smockron: Option<smockron::Config>,
    /// Reverse proxies that let requests wait until a limit allows them, one table each. Absent:
    /// closed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub proxy: Vec<proxy::Config>,
    /// Envoy's rate limit and quota services over gRPC. Absent: closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grpc: Option<grpc::Config>,
    /// The Redis protocol over TCP and Unix sockets. Absent: closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resp: Option<resp::Config>,
    /// Decisions over JSON, /metrics, /healthz and /readyz. Absent: closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http: Option<http::Config>,
    /// Administration over JSON: keys, rules, records, proxies. Loopback only. Absent: closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admin: Option<admin::Config>,
    /// Where counts are kept.
    pub store: remote::settings::Settings,
    /// Bounds on what is kept in memory.
    pub memory: MemoryTable,
    /// Keeps counts across a restart. Absent: nothing is written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotTable>,
    /// The process as a whole.
    pub server: ServerTable,
}

impl File {
    /// Takes every table out of `tables`.
    pub(super) fn read(mut tables: Tables) -> Self {
        Self {
            rules: tables.list("rule", rule_table),
            default: tables.one("default", rule_table),
            text: tables.one("text", read),
            throttr: tables.list("throttr", completed_table),
            jarl: tables.list("jarl", rule_table),
            smockron: tables.one("smockron", read),
            proxy: tables.list("proxy", rule_table),
            grpc: tables.one("grpc", completed_table),
            resp: tables.one("resp", completed_table),
            http: tables.one("http", read),
            admin: tables.one("admin", read),
            store: tables.one("store", read).unwrap_or_default(),
            memory: tables.one("memory", read).unwrap_or_default(),
            snapshot: tables.one("snapshot", read),
            server: tables.one("server", read).unwrap_or_default(),
        }
    }

    /// The tables of doors, as messages name them, each with its doors, in the order in which doors
    /// are opened and reported.
    pub(super) fn door_tables(&self) -> Vec<(&'static str, Vec<&dyn DoorConfig>)> {
        fn each<T: DoorConfig>(tables: &[T]) -> Vec<&dyn DoorConfig> {
            tables.iter().map(|table| table as &dyn DoorConfig).collect()
        }
        // Every field is named, so that the compiler asks which doors a new one opens.
        let Self {
            text,
            throttr,
            jarl,
            smockron,
            proxy,
            grpc,
            resp,
            http,
            admin,
            rules: _,
            default: _,
            store: _,
            memory: _,
            snapshot: _,
            server: _,
        } = self;
        vec![
            ("[text]", each(text.as_slice())),
            ("[[throttr]]", each(throttr)),
            ("[[jarl]]", each(jarl)),
            ("[smockron]", each(smockron.as_slice())),
            ("[[proxy]]", each(proxy)),
            ("[grpc]", each(grpc.as_slice())),
            ("[resp]", each(resp.as_slice())),
            ("[http]", each(http.as_slice())),
            ("[admin]", each(admin.as_slice())),
        ]
    }

    /// The doors that have a table, in the order in which they are opened and reported.
    #[must_use]
    pub fn doors(&self) -> Vec<&dyn DoorConfig> {
        self.door_tables().into_iter().flat_map(|(_, doors)| doors).collect()
    }

    /// The same, each with the name of its table: `throttr.1` is the second of its kind.
    pub(super) fn named_doors(&self) -> Vec<(String, &dyn DoorConfig)> {
        let doors = self.doors();
        let name = |at: usize| {
            let door = doors[at].door();
            let before = doors[..at].iter().filter(|other| other.door() == door).count();
            (format!("{}.{before}", door.name()), doors[at])
        };
        (0..doors.len()).map(name).collect()
    }

    /// The folder of configuration files that is read beside this one, if there is one.
    pub(crate) fn folder_beside(&self) -> Option<&Path> {
        self.grpc.as_ref().and_then(|grpc| grpc.envoy_config.as_deref())
    }

    /// The management server that sends configuration, if there is one.
    pub(crate) fn xds(&self) -> Option<&grpc::Xds> {
        self.grpc.as_ref()?.xds.as_ref()
    }

    /// Every rule in order: those of the file, those that doors with a limit of their own add
    /// behind them, and the default.
    pub(super) fn drafts(&self) -> Vec<Draft> {
        let rules = self.rules.iter().filter_map(Draft::of_rule);
        let jarl = self.jarl.iter().map(jarl::Config::own_rule);
        let proxy = self.proxy.iter().map(proxy::Config::own_rule);
        let smockron = self.smockron.iter().flat_map(smockron::Config::own_rules);
        let resp = self.resp.iter().filter_map(resp::Config::own_rule);
        let default = Draft::of_default(self.default.as_ref());
        let grpc = self.grpc.iter().flat_map(grpc::Config::own_rules);
        let doors = jarl.chain(proxy).chain(smockron).chain(resp).chain(grpc);
        rules.chain(doors).chain([default]).collect()
    }

    /// Writes out how limits are counted, where that was left to a default. `written` are the
    /// rules that [`Self::drafts`] became.
    pub(super) fn fill_in(&mut self, written: &[CompiledRule]) {
        let mut each = written.iter();
        for (table, written) in self.rules.iter_mut().zip(each.by_ref()) {
            let name = Spanned::new(0..0, written.draft.name.clone());
            table.name.get_or_insert(name);
            table.fields.fill_in(&written.whole);
        }
        for (config, written) in self.jarl.iter_mut().zip(each.by_ref()) {
            config.rule.fill_in(&written.whole);
        }
        for (config, written) in self.proxy.iter_mut().zip(each.by_ref()) {
            config.fill_in(&written.whole);
        }
        if let Some(written) = written.last() {
            self.default.get_or_insert_default().fields.fill_in(&written.whole);
        }
    }
}

/// Bounds on what is kept in memory.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct MemoryTable {
    /// The most keys that are kept.
    #[serde(deserialize_with = "at_least_one")]
    #[schemars(range(min = 1))]
    pub max_keys: u64,
    /// The most records (counters and buffers) that are kept.
    #[serde(deserialize_with = "at_least_one")]
    #[schemars(range(min = 1))]
    pub max_records: u64,
    /// The most memory for keys and records together, with all overhead.
    pub max_bytes: ByteSize,
}

impl Default for MemoryTable {
    fn default() -> Self {
        Self { max_keys: 10_000_000, max_records: 10_000_000, max_bytes: ByteSize(4 << 30) }
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
    /// The file. A relative path starts in the working folder of the process.
    pub path: PathBuf,
    /// How often it is written: a crash loses the counts since then. At least one second.
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
    /// How long open requests may take to end when the process stops.
    pub shutdown_grace: Span,
    /// The format of log lines on standard error.
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
