//! The `[store]` table: which store, where it is, and who comes.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::settings::secret::Secret;
use crate::settings::units::Span;

/// How long a decision waits for Redis, unless told otherwise.
const REDIS_TIMEOUT: Duration = Duration::from_millis(15);
/// How long a decision waits for etcd, unless told otherwise.
const ETCD_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a start waits for the first answer, unless told otherwise.
const START_TIMEOUT: Duration = Duration::from_secs(5);

/// What names in the store begin with, unless told otherwise.
const PREFIX: &str = "tidegate";

/// The longest that a decision may wait.
const TIMEOUT_MAX: Duration = Duration::from_secs(60);

/// The kinds of store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum StoreKind {
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

/// One thing that is wrong with the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingProblem {
    /// In which setting.
    pub setting: &'static str,
    /// What is wrong.
    pub message: String,
    /// What would be right.
    pub remedy: String,
}

/// Where counts are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The kind of store.
    pub kind: StoreKind,
    /// Its URL: "redis://127.0.0.1:6379/0", "rediss://…" for TLS, "http://127.0.0.1:2379" or
    /// "https://…" for etcd; or a list of nodes. Required unless counts are kept in memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<Urls>,
    /// Whether the store is a Redis Cluster. Absent: yes if `url` is a list of several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<bool>,
    /// How long a decision waits for the store. Absent: 15 ms for Redis, 1 s for etcd.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Span>,
    /// How long the start of the server waits for the store's first answer. After that,
    /// `on_store_error` decides. Absent: 5 s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_timeout: Option<Span>,
    /// The user to log in as. Absent: Redis' default user; at etcd no login.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The password, by reference: "env:NAME" or "file:PATH".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password: Option<Secret>,
    /// A file of certificates (PEM) to trust beside those of the system, for TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<std::path::PathBuf>,
    /// A file with the certificate (PEM) to present to a store that asks for one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cert: Option<std::path::PathBuf>,
    /// A file with the private key (PEM) of that certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<std::path::PathBuf>,
    /// The prefix of every name in the store. Nodes that share counts need the same one. Absent:
    /// `tidegate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
}

impl Settings {
    /// All that is wrong with the table.
    #[must_use]
    pub fn wrong(&self) -> Vec<SettingProblem> {
        let wrong = |setting, message: &str, remedy: &str| {
            vec![SettingProblem { setting, message: message.to_owned(), remedy: remedy.to_owned() }]
        };
        if self.kind == StoreKind::Memory {
            let bare = Self { kind: self.kind, ..Self::default() };
            return match *self == bare {
                true => Vec::new(),
                false => wrong(
                    "kind",
                    "has settings of a remote store, and kind = \"memory\"",
                    "write kind = \"redis\" or \"etcd\", or remove them",
                ),
            };
        }
        let (schemes, example): (&[&str], _) = match self.kind {
            StoreKind::Etcd => (&["http://", "https://"], "http://127.0.0.1:2379"),
            StoreKind::Redis | StoreKind::Memory => {
                (&["redis://", "rediss://", "unix://", "redis+unix://"], "redis://127.0.0.1:6379")
            }
        };
        let mut all = Vec::new();
        let (urls, remedy) = (self.urls(), format!("write url = \"{example}\""));
        if urls.is_empty() {
            all.extend(wrong("url", "has no url", &remedy));
        }
        let known = |url: &str| schemes.iter().any(|scheme| url.starts_with(scheme));
        for url in urls.iter().filter(|url| !known(url)) {
            let message = format!("\"{}\" is not a url of this kind of store", without_login(url));
            // With a login in it the url is not shown.
            let is_place = !url.is_empty() && !url.contains("://") && !url.contains('@');
            let own = format!("write url = \"{}{url}\"", schemes[0]);
            all.extend(wrong("url", &message, if is_place { &own } else { &remedy }));
        }
        if self.timeout().is_zero() || self.timeout() > TIMEOUT_MAX {
            let message = format!("{} is too short or too long", Span(self.timeout()));
            all.extend(wrong("timeout", &message, "write a span from \"1ms\" to \"60s\""));
        }
        if self.cert.is_some() != self.key.is_some() {
            let setting = if self.cert.is_some() { "cert" } else { "key" };
            all.extend(wrong(setting, "has only one of cert and key", "write both, or none"));
        }
        all
    }

    /// How long a decision waits.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        let usual = match self.kind {
            StoreKind::Etcd => ETCD_TIMEOUT,
            StoreKind::Redis | StoreKind::Memory => REDIS_TIMEOUT,
        };
        self.timeout.map_or(usual, |span| span.0)
    }

    /// What every name in the store begins with.
    pub(crate) fn prefix(&self) -> &str {
        self.prefix.as_deref().unwrap_or(PREFIX)
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
            None => Vec::new(),
        }
    }

    /// The same, to be shown: without the passwords that urls may hold.
    pub(crate) fn shown(&self) -> Self {
        let url = self.url.as_ref().map(|urls| match urls {
            Urls::One(url) => Urls::One(without_login(url)),
            Urls::Several(urls) => Urls::Several(urls.iter().map(|u| without_login(u)).collect()),
        });
        Self { url, ..self.clone() }
    }

    /// Whether it is a Redis Cluster.
    #[must_use]
    pub fn is_cluster(&self) -> bool {
        self.cluster.unwrap_or(self.urls().len() > 1)
    }
}

/// A url without the user and the password that may stand before its host.
pub(crate) fn without_login(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").map_or(("", url), |(scheme, rest)| (scheme, rest));
    // A password may hold a slash, although it should not.
    let Some((_, place)) = rest.rsplit_once('@') else { return url.to_owned() };
    if scheme.is_empty() { format!("***@{place}") } else { format!("{scheme}://***@{place}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(text: &str) -> Vec<String> {
        let wrong = toml::from_str::<Settings>(text).expect("a table").wrong();
        wrong.into_iter().map(|wrong| format!("{}; {}", wrong.message, wrong.remedy)).collect()
    }

    #[test]
    fn what_cannot_be_meant_is_told() {
        for good in [
            "",
            "kind = 'redis'\nurl = 'redis://a'",
            "kind = 'redis'\nurl = ['redis://a:1', 'rediss://b:2']",
            "kind = 'etcd'\nurl = 'https://a:2379'\ntimeout = '2s'",
            "kind = 'etcd'\nurl = 'http://a'\nstart_timeout = '2m'",
        ] {
            assert_eq!(wrong(good), [""; 0], "{good}");
        }
        for (bad, word) in [
            ("url = 'redis://a'", "memory"),
            ("start_timeout = '1s'", "memory"),
            ("kind = 'etcd'\nurl = 'redis://a'", "http://"),
            ("kind = 'redis'\nurl = 'http://me:pass@a'", "redis://"),
            ("kind = 'redis'\nurl = []", "redis://"),
            ("kind = 'redis'\nurl = '10.0.0.5:6379'", "write url = \"redis://10.0.0.5:6379\""),
            ("kind = 'redis'\nurl = 'me:pass@a:1'", "redis://127.0.0.1:6379"),
            ("kind = 'redis'", "has no url"),
            ("kind = 'etcd'", "has no url"),
            ("kind = 'redis'\nurl = 'redis://a'\ntimeout = '61s'", "60s"),
            ("kind = 'redis'\nurl = 'redis://a'\ncert = 'a.pem'", "both"),
        ] {
            let told = wrong(bad);
            assert!(told.len() == 1 && told[0].contains(word), "{bad}: {told:?}");
            assert!(!told[0].contains("pass@"), "{told:?}");
        }
    }

    #[test]
    fn what_is_shown_holds_no_password() {
        for (url, shown) in [
            ("redis://me:pa/ss@a:1/0", "redis://***@a:1/0"),
            ("redis://:p@ss@a", "redis://***@a"),
            ("me:pass@a", "***@a"),
            ("http://a:1", "http://a:1"),
        ] {
            assert_eq!(without_login(url), shown);
        }
        let text = "kind = 'redis'\nurl = ['redis://:p@a', 'redis://b']";
        let shown = toml::from_str::<Settings>(text).expect("a table").shown();
        assert_eq!(shown.urls(), ["redis://***@a", "redis://b"]);
    }

    #[test]
    fn a_decision_waits_as_long_as_its_store_needs() {
        let timeout = |text| toml::from_str::<Settings>(text).expect("a table").timeout();
        assert_eq!(timeout("kind = 'redis'"), Duration::from_millis(15));
        assert_eq!(timeout("kind = 'etcd'"), Duration::from_secs(1));
        assert_eq!(timeout("kind = 'etcd'\ntimeout = '200ms'"), Duration::from_millis(200));
    }
}
