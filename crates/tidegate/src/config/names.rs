//! Which names the file may use at its top. Those of each table are checked by `settings/names.rs`.

use std::sync::LazyLock;

use serde_json::Value;
use toml::Spanned;
use toml::de::DeTable;

use super::file::File;
use crate::settings::names;
use crate::settings::problem::Problem;

static FILE_SCHEMA: LazyLock<Value> = LazyLock::new(names::inline_schema::<File>);

/// The tables of all doors in one phrase, such as "[text], [http] and [admin]".
pub(super) fn doors(last: &str) -> String {
    let file = File::default();
    let names: Vec<&str> = file.door_tables().into_iter().map(|(name, _)| name).collect();
    let (end, others) = names.split_last().unwrap_or((&"", &[]));
    format!("{} {last} {end}", others.join(", "))
}

/// Takes every unknown name out of `table`. Reports these names, and those that are missing.
pub(super) fn check(table: &mut Spanned<DeTable>, problems: &mut Vec<Problem>) {
    names::check(table, &FILE_SCHEMA, names::THE_FILE, problems);
}
