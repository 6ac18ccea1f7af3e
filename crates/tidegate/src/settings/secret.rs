//! Secrets by reference: the file says where one is, never what it is.

use std::path::Path;
use std::{env, io};

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de};

use super::files;

/// A reference to a secret: `env:NAME` or `file:PATH`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// The secret itself. The end of a file's last line does not belong to it.
    ///
    /// # Errors
    /// What is not there.
    pub fn reveal(&self) -> Result<String, String> {
        match self.0.split_once(':') {
            Some(("env", name)) => env::var(name)
                .map_err(|_| format!("the variable {name} is not set, or is not UTF-8")),
            Some(("file", path)) => {
                let text = files::read_text(Path::new(path));
                let told = |error: io::Error| format!("the file {path} cannot be read: {error}");
                text.map(|text| text.trim_end_matches(['\r', '\n']).to_owned()).map_err(told)
            }
            _ => Err(REMEDY.to_owned()),
        }
    }
}

const REMEDY: &str =
    "write \"env:NAME\" or \"file:PATH\": the secret itself must not be in the file";

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match text.split_once(':') {
            Some(("env" | "file", place)) if !place.is_empty() => Ok(Self(text)),
            // What was written is not shown: it may be the secret.
            _ => Err(de::Error::custom(format!("this is not a reference to a secret\n{REMEDY}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[derive(Deserialize)]
    struct Table {
        password: Secret,
    }

    fn table(text: &str) -> Result<Table, String> {
        toml::from_str::<Table>(text).map_err(|error| error.to_string())
    }

    #[test]
    fn a_file_holds_a_secret_without_the_end_of_its_line() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "s3cret \r\n").unwrap();
        let text = format!("password = \"file:{}\"", file.path().display());
        assert_eq!(table(&text).unwrap().password.reveal().unwrap(), "s3cret ");
    }

    #[test]
    fn what_is_not_there_is_named() {
        let missing = table("password = \"env:TIDEGATE_NO_SUCH\"").unwrap().password.reveal();
        assert!(missing.unwrap_err().contains("TIDEGATE_NO_SUCH"));
    }

    #[test]
    fn a_secret_in_the_file_is_refused_and_not_shown() {
        for text in ["hunter2", "env:", "pass:word"] {
            let error = table(&format!("password = {text:?}")).err().unwrap();
            assert!(error.contains("env:NAME"), "{error}");
        }
    }
}
