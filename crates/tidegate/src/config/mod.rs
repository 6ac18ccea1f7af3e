//! The configuration: one TOML file, read and checked whole, and turned into what runs.
//!
//! Nothing here opens a door or changes what runs; that is for `server/`. What tables are made of
//! (addresses, units, rules) is in `settings/`.
//!
//! - [`file`]: the tables; each door's own table lives beside its code
//! - [`outside`]: the certificates, keys and secrets that a file names
//! - [`read`], [`names`]: text to tables, and which names are known

pub mod file;
mod names;
mod outside;
mod read;
mod reference;

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use serde::Serialize;
use tidegate_core::Limit;
use tidegate_core::rules::{Consistency, RuleSet};

pub use file::File;
pub use reference::reference;

use crate::clock::Clock;
use crate::doors::{DoorConfig, grpc};
use crate::settings::draft::{self, CompiledRule};
use crate::settings::files;
use crate::settings::listen::ListenAddress;
use crate::settings::problem::{Problem, Problems};
use crate::stores::remote::settings::{SettingProblem, Settings, StoreKind};

/// The most single uses that one key may remember in a remote store.
const REMOTE_STAMPS_MAX: u64 = 10_000;

/// The file that is read where none is named, if it is there.
pub const DEFAULT_PATH: &str = "tidegate.toml";
/// What runs without a file: doors on loopback, rules of the protocols' documents.
pub const BUILT_IN: &str = include_str!("built_in.toml");
/// How the built-in configuration is called in messages.
pub const BUILT_IN_NAME: &str = "<built-in default>";
/// The commented example, which a test loads.
pub const EXAMPLE: &str = include_str!("../../../../examples/full.toml");

/// Where the configuration comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigSource {
    /// A file.
    File(PathBuf),
    /// The built-in default.
    BuiltIn,
}

impl ConfigSource {
    /// The named file, else `./tidegate.toml` if there is one, else the built-in default.
    #[must_use]
    pub fn find(named: Option<&Path>) -> Self {
        // An empty variable names no file.
        match named.filter(|path| !path.as_os_str().is_empty()) {
            Some(path) => ConfigSource::File(path.to_owned()),
            None if Path::new(DEFAULT_PATH).exists() => ConfigSource::File(DEFAULT_PATH.into()),
            None => ConfigSource::BuiltIn,
        }
    }

    /// How it is called in messages.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            ConfigSource::File(path) => path.display().to_string(),
            ConfigSource::BuiltIn => BUILT_IN_NAME.to_owned(),
        }
    }

    /// The text as it is now.
    pub fn text(&self) -> Result<String, Problems> {
        let path = match self {
            ConfigSource::BuiltIn => return Ok(BUILT_IN.to_owned()),
            ConfigSource::File(path) => path,
        };
        files::read_text(path).map_err(|error| Problems::unreadable(&self.name(), &error))
    }

    /// Reads and checks it whole, as [`Config::parse`] does.
    pub fn load(&self) -> Result<Config, Problems> {
        Config::parse(&self.name(), &self.text()?)
    }

    /// As [`Self::load`], with all that a server would find missing outside of the file.
    pub fn check(&self) -> Result<Config, Problems> {
        let check = |file: &File, text: &str| {
            let snapshot = outside::snapshot(file, text);
            outside::check(file, text).into_iter().chain(snapshot).collect()
        };
        Config::read(&self.name(), &self.text()?, check, expired)
    }
}

/// A configuration in which everything was found right.
#[derive(Clone, Debug)]
pub struct Config {
    /// The tables.
    pub file: File,
    /// The rules, compiled.
    pub rules: RuleSet,
    /// The same, each with the table that it comes from; the default last.
    pub(crate) written: Vec<CompiledRule>,
    /// What is probably a mistake, and no error: one line each.
    pub warnings: Vec<String>,
}

impl Config {
    /// Checks `text`; `name` is what the file is called in messages.
    pub fn parse(name: &str, text: &str) -> Result<Self, Problems> {
        Self::read(name, text, |_, _| Vec::new(), |_, _| Vec::new())
    }

    /// As [`Self::parse`], for a server that will need the files and secrets that are named.
    pub fn load(name: &str, text: &str) -> Result<Self, Problems> {
        Self::read(name, text, outside::check, expired)
    }

    fn read(
        name: &str,
        text: &str,
        outside: impl FnOnce(&File, &str) -> Vec<Problem>,
        warn: impl FnOnce(&File, &str) -> Vec<Problem>,
    ) -> Result<Self, Problems> {
        let mut problems = Vec::new();
        let file = read::file(name, text, &mut problems);
        let written = draft::write_all(text, file.drafts(), &mut problems);
        let rules = draft::rule_set(written.iter());
        if problems.is_empty() {
            // A door whose table is wrong would be missed.
            check_whole(&file, &mut problems);
        }
        check_addresses(&file, text, &mut problems);
        check_store(&file.store, text, &written, &mut problems);
        problems.extend(outside(&file, text));
        if !problems.is_empty() {
            return Err(Problems::new(name, text, problems));
        }
        let mut found = draft::never_matched(&written, text);
        found.extend(file.grpc.iter().flat_map(|grpc| grpc.rules_without_calls(&written)));
        found.extend(warn(&file, text));
        let warnings = Problems::new(name, text, found).plain();
        let warnings = warnings.lines().map(str::to_owned).collect();
        Ok(Self { file, rules, written, warnings })
    }

    /// The same with what a management server has sent beside the file, if the file names one.
    ///
    /// # Errors
    /// Why both cannot be in force together.
    pub(crate) fn with_xds(mut self, resources: &grpc::XdsResources) -> Result<Self, String> {
        let grpc = self.file.grpc.as_mut().filter(|grpc| grpc.xds.is_some());
        let Some(grpc) = grpc else { return Ok(self) };
        let drafts = grpc.merge_xds(resources)?;
        let taken: HashSet<&str> = self.written.iter().map(|it| it.draft.name.as_str()).collect();
        if let Some(draft) = drafts.iter().find(|draft| taken.contains(draft.name.as_str())) {
            return Err(format!("a rule of the file already has the name \"{}\"", draft.name));
        }
        let mut problems = Vec::new();
        let written = draft::write_all("", drafts, &mut problems);
        if let Some(problem) = problems.first() {
            return Err(format!("{}; {}", problem.message, problem.remedy));
        }
        // The default is behind all others.
        let end = self.written.len().saturating_sub(1);
        self.written.splice(end..end, written);
        self.rules = draft::rule_set(self.written.iter());
        Ok(self)
    }

    /// Checks tables that a command has put together.
    ///
    /// # Errors
    /// As [`Self::parse`], with the tables written out.
    pub fn of(tables: &impl Serialize) -> Result<Self, Problems> {
        let name = "<command line>";
        let text = toml::Table::try_from(tables)
            .map(|table| table.to_string())
            .map_err(|error| Problems::unreadable(name, &std::io::Error::other(error)))?;
        Self::parse(name, &text)
    }

    /// What runs, as a file: every setting that has a default is written out.
    /// Secrets are left out.
    pub fn show(&self) -> Result<String, toml::ser::Error> {
        let mut file = self.file.clone();
        file.store = file.store.shown();
        file.fill_in(&self.written);
        // Through a table: a serializer of TOML is then built for tables, not for each struct.
        toml::to_string_pretty(&toml::Table::try_from(&file)?)
    }
}

/// Certificates that have expired.
fn expired(file: &File, text: &str) -> Vec<Problem> {
    outside::expired(file, text, Clock::system().now().unix)
}

/// Checks what no table can know alone.
fn check_whole(file: &File, problems: &mut Vec<Problem>) {
    if file.doors().is_empty() {
        // Also what a file looks like that is just being written.
        let remedy = format!("add the table of a door: {}", names::doors("or"));
        problems.push(Problem::new(0..0, "no door is open", remedy));
    }
}

/// Checks that no two doors want the same address.
fn check_addresses(file: &File, text: &str, problems: &mut Vec<Problem>) {
    let mut taken: Vec<(&dyn DoorConfig, ListenAddress, String)> = Vec::new();
    for (table, door) in file.named_doors() {
        for (setting, address) in door.listens_at() {
            let setting = format!("{table}.{setting}");
            let clash = |(other, theirs, _): &&(&dyn DoorConfig, ListenAddress, String)| {
                other.takes_datagrams() == door.takes_datagrams()
                    && !theirs.takes_any_port()
                    && theirs.overlaps(&address)
            };
            if let Some((other, theirs, first)) = taken.iter().find(clash) {
                let line = text[..read::place(text, first).start].matches('\n').count() + 1;
                let (other, place) = (other.door().name(), read::place(text, &setting));
                let message = format!("{address} is taken by [{other}] in line {line} ({theirs})");
                let remedy = "give every door an address and port of its own";
                problems.push(Problem::new(place, message, remedy));
            }
            taken.push((door, address, setting));
        }
    }
}

/// Checks what a remote store cannot do.
fn check_store(
    store: &Settings,
    text: &str,
    written: &[CompiledRule],
    problems: &mut Vec<Problem>,
) {
    for SettingProblem { setting, message, remedy } in store.wrong() {
        let place = read::place(text, &format!("store.{setting}"));
        problems.push(Problem::new(place, format!("[store] {message}"), remedy));
    }
    if store.kind == StoreKind::Memory {
        return;
    }
    problems.extend(written.iter().filter_map(too_long_for_remote_store));
}

/// What is wrong with a rule whose counts lie in a remote store: that it would keep too many uses.
pub(crate) fn too_long_for_remote_store(rule: &CompiledRule) -> Option<Problem> {
    if rule.rule.consistency == Consistency::Local {
        return None;
    }
    let long = |limit: &&Limit| limit.remembers_uses() && limit.capacity() > REMOTE_STAMPS_MAX;
    let limit = rule.whole.iter().find(long)?;
    let name = limit.algorithm.name();
    let message = format!("`{name}` would have to keep {} uses in the store", limit.capacity());
    let remedy =
        format!("on a remote store it holds at most {REMOTE_STAMPS_MAX}; `gcra` has no such bound");
    Some(Problem::new(rule.draft.table.limit.span(), message, remedy))
}

/// The JSON schema of the file.
#[must_use]
pub fn schema() -> schemars::Schema {
    schemars::schema_for!(File)
}

#[cfg(test)]
mod tests;
