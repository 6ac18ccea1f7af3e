//! The `[[http.authorize]]` tables: which servers ask, how a key is made of their requests, and by
//! which status they get a refusal.

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::doors::template::Template;
use crate::settings::listen::Allow;
use crate::settings::units::Span;

/// The longest name: it stands in a path and at the beginning of every key.
const NAME_BYTES_MAX: usize = 64;
/// The most tables.
const TABLES_MAX: usize = 1_000;

/// One `[[http.authorize]]` table: a path where a web server asks about each of its requests.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Authorize {
    /// The first word of its keys, and the end of the path: `/v1/authorize/<name>`.
    #[serde(deserialize_with = "name")]
    pub name: String,
    /// The entries of the key.
    pub key: Template,
    /// The status of a refusal: 429, or 403 for nginx, which does not accept 429.
    #[serde(default)]
    pub refuse: RefuseStatus,
    /// How long a request over its limit may wait for its turn. Absent: it is refused at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_wait: Option<Span>,
    /// Web servers that are trusted to name the client.
    #[serde(
        default,
        deserialize_with = "Allow::nobody_or",
        skip_serializing_if = "Allow::is_open"
    )]
    pub trusted_proxies: Allow,
}

/// The status that tells a server to refuse its client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RefuseStatus {
    /// 429, which Traefik, Caddy and Envoy hand on to the client.
    #[default]
    TooManyRequests,
    /// 403: to nginx everything but 401 and 403 is a failure of whom it asked.
    Forbidden,
}

impl RefuseStatus {
    /// The status itself.
    #[must_use]
    pub fn status(self) -> StatusCode {
        match self {
            RefuseStatus::TooManyRequests => StatusCode::TOO_MANY_REQUESTS,
            RefuseStatus::Forbidden => StatusCode::FORBIDDEN,
        }
    }
}

impl<'de> Deserialize<'de> for RefuseStatus {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match i64::deserialize(deserializer)? {
            429 => Ok(RefuseStatus::TooManyRequests),
            403 => Ok(RefuseStatus::Forbidden),
            other => {
                let remedy = "write 429, or 403 where nginx asks";
                Err(de::Error::custom(format!("{other} is not a status for refusals\n{remedy}")))
            }
        }
    }
}

impl Serialize for RefuseStatus {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u16(self.status().as_u16())
    }
}

impl JsonSchema for RefuseStatus {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "RefuseStatus".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "The status of a refusal: 429, or 403 for nginx.",
            "enum": [403, 429]
        })
    }
}

/// Reads all tables, and checks that their names differ and that their keys can be filled.
pub(super) fn tables<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<Authorize>, D::Error> {
    let tables = Vec::<Authorize>::deserialize(deserializer)?;
    if tables.len() > TABLES_MAX {
        let many = tables.len();
        let remedy = format!("keep at most {TABLES_MAX}");
        return Err(de::Error::custom(format!("{many} tables are too many\n{remedy}")));
    }
    for (at, table) in tables.iter().enumerate() {
        let Authorize { name, key, trusted_proxies, .. } = table;
        if tables[..at].iter().any(|before| before.name == *name) {
            let remedy = "give each a name of its own";
            return Err(de::Error::custom(format!(
                "two tables have the name \"{name}\"\n{remedy}"
            )));
        }
        if key.asks_for_client() && trusted_proxies.is_open() {
            // The address of the server that asks would be the client of all requests.
            let remedy = "name it: trusted_proxies = [\"127.0.0.1\"]";
            return Err(de::Error::custom(format!(
                "\"{name}\" has {{client}} in its key, and no server is trusted to name the \
                 client\n{remedy}"
            )));
        }
    }
    Ok(tables)
}

fn name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let name = String::deserialize(deserializer)?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    // Programs that normalise paths remove segments of dots.
    let dots = name.bytes().all(|byte| byte == b'.');
    if (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(plain) && !dots {
        return Ok(name);
    }
    let remedy =
        format!("write 1 to {NAME_BYTES_MAX} letters, digits, dots, dashes or underscores");
    Err(de::Error::custom(format!("\"{name}\" is not a name for a path\n{remedy}")))
}

#[cfg(test)]
mod tests {
    use super::super::Config;

    #[track_caller]
    fn refused(tables: &str, why: &str) {
        let error = toml::from_str::<Config>(tables).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }

    #[test]
    fn a_table_is_read_and_shown() {
        let text = "[[authorize]]\nname = 'api'\nkey = 'client={client}'\nrefuse = 403\n\
                    max_wait = '5s'\ntrusted_proxies = ['127.0.0.1']\n\
                    [[authorize]]\nname = 'by-path'\nkey = 'path={path}'";
        let config: Config = toml::from_str(text).unwrap();
        let statuses = config.authorize.iter().map(|table| table.refuse.status().as_u16());
        assert_eq!(statuses.collect::<Vec<_>>(), [403, 429]);
        let again: Config = toml::from_str(&toml::to_string(&config).unwrap()).unwrap();
        assert_eq!(again, config);
    }

    #[test]
    fn tables_that_make_no_sense_are_told() {
        let table = |settings: &str| format!("[[authorize]]\nkey = 'all'\n{settings}\n");
        for name in ["", "a/b", "a b", "ä", "..", &"x".repeat(65)] {
            refused(&table(&format!("name = '{name}'")), "is not a name for a path");
        }
        refused(&table("name = 'a'").repeat(2), "two tables have the name \"a\"");
        refused(&table("name = 'a'\nrefuse = 401"), "401 is not a status for refusals");
        refused("[[authorize]]\nname = 'a'", "missing field `key`");
        let nobody = "[[authorize]]\nname = 'a'\nkey = 'client={client}'";
        refused(nobody, "no server is trusted");
    }
}
