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
        // What was written is not shown: it may be the secret.
        let wrong = || de::Error::custom(format!("this is not a reference to a secret\n{REMEDY}"));
        let text = String::deserialize(deserializer).map_err(|_: D::Error| wrong())?;
        if is_reference(&text) { Ok(Self(text)) } else { Err(wrong()) }
    }
}

/// Whether the text names a place, and so is no secret itself.
pub(super) fn is_reference(text: &str) -> bool {
    let place = text.strip_prefix("env:").or_else(|| text.strip_prefix("file:"));
    place.is_some_and(|place| !place.is_empty())
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
        for text in ["'hunter2'", "'env:'", "'pass:word'", "12345", "['12345']"] {
            let text = format!("password = {text}");
            let error = toml::from_str::<Table>(&text).err().unwrap();
            assert!(error.message().contains("env:NAME"), "{error}");
            assert!(!error.message().contains("12345"), "{error}");
        }
    }
}
