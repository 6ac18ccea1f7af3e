//! The folder of envoyproxy/ratelimit's YAML files: read whole, all of them or none.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidegate_envoy::config::{self, Configuration, Options};

use crate::settings::files;

/// The most files of a folder.
const FILES_MAX: usize = 10_000;

/// What was read from a folder, or why it could not be.
#[derive(Clone, Debug, Default)]
pub(super) struct EnvoyFiles {
    /// The texts by the names of their files, in order.
    texts: Vec<(String, String)>,
    read: Option<Result<Arc<Configuration>, String>>,
}

impl PartialEq for EnvoyFiles {
    fn eq(&self, other: &Self) -> bool {
        self.texts == other.texts && self.wrong() == other.wrong()
    }
}

impl EnvoyFiles {
    /// Reads a folder, if one is named.
    pub(super) fn read(folder: Option<&Path>, merge_domains: bool) -> Self {
        let Some(folder) = folder else { return Self::default() };
        let texts = match texts(folder) {
            Ok(texts) => texts,
            Err(why) => return Self { texts: Vec::new(), read: Some(Err(why)) },
        };
        let named: Vec<(&str, &str)> =
            texts.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
        let loaded = config::load(&named, Options { merge_domains });
        let read = Some(loaded.map(Arc::new).map_err(|error| error.to_string()));
        Self { texts, read }
    }

    /// The configuration, if a folder is named and all of its files are right.
    pub(super) fn configuration(&self) -> Option<&Arc<Configuration>> {
        self.read.as_ref().and_then(|read| read.as_ref().ok())
    }

    /// What is wrong with the folder.
    pub(super) fn wrong(&self) -> Option<String> {
        let remedy = "mend the file; the configuration in force stays until then";
        let wrong = self.read.as_ref().and_then(|read| read.as_ref().err());
        wrong.map(|wrong| format!("{wrong}\n{remedy}"))
    }
}

/// Reads a folder of YAML files.
///
/// # Errors
/// What is wrong with it.
pub fn load_folder(folder: &Path, merge_domains: bool) -> Result<Arc<Configuration>, String> {
    EnvoyFiles::read(Some(folder), merge_domains).read.unwrap_or_else(|| Ok(Arc::default()))
}

/// Native rules that decide alike, as TOML, and what they cannot say of which rule.
#[must_use]
pub fn native_rules(configuration: &Configuration) -> (String, Vec<(String, &'static str)>) {
    let (rules, unsupported) = config::import::to_toml(configuration);
    (rules, unsupported.into_iter().map(|it| (it.rule, it.reason)).collect())
}

/// The texts of the YAML files of a folder, in the order of their names, or what cannot be read.
/// Files whose names begin with a dot are left out: a mounted ConfigMap has links of that kind to
/// all files. So are folders.
fn texts(folder: &Path) -> Result<Vec<(String, String)>, String> {
    let cannot_be_read =
        |error: io::Error| format!("the folder {} cannot be read: {error}", folder.display());
    let mut paths: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(folder).map_err(cannot_be_read)? {
        let path = entry.map_err(cannot_be_read)?.path();
        let is_yaml = path.extension().is_some_and(|it| it == "yaml" || it == "yml");
        let is_hidden = path.file_name().is_some_and(|it| it.as_encoded_bytes().starts_with(b"."));
        if is_yaml && !is_hidden && !path.is_dir() {
            paths.push(path);
        }
        if paths.len() > FILES_MAX {
            let error = format!("it has more than {FILES_MAX} files");
            return Err(cannot_be_read(io::Error::other(error)));
        }
    }
    paths.sort();
    let text = |path: PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let text = files::read_text(&path);
        text.map(|text| (name, text)).map_err(|error| format!("{}: {error}", path.display()))
    };
    paths.into_iter().map(text).collect()
}
