//! The `[store]` table: which store, where it is, and who comes.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::secret::Secret;
use crate::config::units::Span;

/// How long a decision waits for Redis, unless told otherwise.
const REDIS_TIMEOUT: Duration = Duration::from_millis(15);
/// How long a decision waits for etcd, unless told otherwise.
const ETCD_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a start waits for the first answer, unless told otherwise.
const START_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest that a decision may wait.
const TIMEOUT_MAX: Duration = Duration::from_secs(60);

/// The kinds of store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// This process' own memory.
    #[default]
    Memory,
    /// Redis or Valkey: one node or a Cluster.
    Redis,
    /// etcd, one member or several.
    Etcd,
}

/// One address, or several.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Urls {
    /// One.
    One(String),
    /// The nodes of a Cluster, or the members of an etcd.
    Several(Vec<String>),
}

/// Where counts are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The kind of store.
    pub kind: Kind,
    /// Where it is: "redis://127.0.0.1:6379/0", "rediss://…" for TLS, "http://127.0.0.1:2379" or
    /// "https://…" for etcd; or a list of nodes. Absent: the usual port on this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<Urls>,
    /// Whether the url is of a Redis Cluster. A list of several is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<bool>,
    /// How long a decision waits for it. Absent: 15 ms for Redis, 1 s for etcd.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Span>,
    /// How long a start waits for its first answer before decisions are made without it, as
    /// `on_store_error` says. Absent: 5 s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_timeout: Option<Span>,
    /// Who to log in as. Absent: Redis' default user; nobody at etcd.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The password, by reference: "env:NAME" or "file:PATH".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password: Option<Secret>,
    /// A file of certificates (PEM) to trust beside those of the system, for TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<std::path::PathBuf>,
    /// The certificate (PEM) to show to a store that asks for one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cert: Option<std::path::PathBuf>,
    /// The key (PEM) of that certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<std::path::PathBuf>,
    /// What every name in the store begins with: nodes that share counts have the same one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
}

impl Settings {
    /// What is wrong with the table, if something is: on the first line what, on the second what
    /// would be right.
    ///
    /// # Errors
    /// Just that.
    pub fn check(&self) -> Result<(), String> {
        if self.kind == Kind::Memory {
            let bare = Self { kind: self.kind, ..Self::default() };
            return match *self == bare {
                true => Ok(()),
                false => Err("has settings of a store elsewhere, and kind = \"memory\"\n\
                              write kind = \"redis\" or \"etcd\", or remove them"
                    .to_owned()),
            };
        }
        let (schemes, example): (&[&str], _) = match self.kind {
            Kind::Etcd => (&["http://", "https://"], "http://127.0.0.1:2379"),
            _ => (&["redis://", "rediss://", "unix://", "redis+unix://"], "redis://127.0.0.1:6379"),
        };
        let urls = self.urls();
        if urls.is_empty() {
            return Err(format!("has a list of urls without any\nwrite url = \"{example}\""));
        }
        let known = |url: &&String| !schemes.iter().any(|scheme| url.starts_with(scheme));
        if let Some(url) = urls.iter().find(known) {
            // What stands before an @ may be a password.
            let shown = url.rsplit('@').next().unwrap_or_default();
            return Err(format!("\"{shown}\" is no url of this kind\nwrite url = \"{example}\""));
        }
        if self.timeout().is_zero() || self.timeout() > TIMEOUT_MAX {
            return Err("has a timeout that is none\nwrite a span of up to \"60s\"".to_owned());
        }
        if self.cert.is_some() != self.key.is_some() {
            return Err("has one of cert and key\nwrite both, or none".to_owned());
        }
        Ok(())
    }

    /// How long a decision waits.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        let usual = if self.kind == Kind::Etcd { ETCD_TIMEOUT } else { REDIS_TIMEOUT };
        self.timeout.map_or(usual, |span| span.0)
    }

    /// How long a start waits for the first answer.
    #[must_use]
    pub fn start_timeout(&self) -> Duration {
        self.start_timeout.map_or(START_TIMEOUT, |span| span.0)
    }

    /// Where it is.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        match &self.url {
            Some(Urls::One(url)) => vec![url.clone()],
            Some(Urls::Several(urls)) => urls.clone(),
            None if self.kind == Kind::Etcd => vec!["http://127.0.0.1:2379".to_owned()],
            None => vec!["redis://127.0.0.1:6379".to_owned()],
        }
    }

    /// Whether it is a Redis Cluster.
    #[must_use]
    pub fn is_cluster(&self) -> bool {
        self.cluster.unwrap_or(self.urls().len() > 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Result<(), String> {
        toml::from_str::<Settings>(text).expect("a table").check()
    }

    #[test]
    fn what_cannot_be_meant_is_told() {
        for good in [
            "",
            "kind = 'redis'",
            "kind = 'redis'\nurl = ['redis://a:1', 'rediss://b:2']",
            "kind = 'etcd'\nurl = 'https://a:2379'\ntimeout = '2s'",
            "kind = 'etcd'\nstart_timeout = '2m'",
        ] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for (bad, word) in [
            ("url = 'redis://a'", "memory"),
            ("start_timeout = '1s'", "memory"),
            ("kind = 'etcd'\nurl = 'redis://a'", "http://"),
            ("kind = 'redis'\nurl = 'http://me:pass@a'", "redis://"),
            ("kind = 'redis'\nurl = []", "redis://"),
            ("kind = 'redis'\ntimeout = '61s'", "60s"),
            ("kind = 'redis'\ncert = 'a.pem'", "both"),
        ] {
            let wrong = check(bad).expect_err(bad);
            assert!(wrong.contains(word) && !wrong.contains("pass@"), "{wrong}");
        }
    }

    #[test]
    fn a_decision_waits_as_long_as_its_store_needs() {
        let timeout = |text| toml::from_str::<Settings>(text).expect("a table").timeout();
        assert_eq!(timeout("kind = 'redis'"), Duration::from_millis(15));
        assert_eq!(timeout("kind = 'etcd'"), Duration::from_secs(1));
        assert_eq!(timeout("kind = 'etcd'\ntimeout = '200ms'"), Duration::from_millis(200));
    }
}
