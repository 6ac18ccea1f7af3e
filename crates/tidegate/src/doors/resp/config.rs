//! The `[resp]` table, and what it means to the loops.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::credentials::{Credentials, DEFAULT_USER};
use super::state::Settings;
use crate::doors::io::limits::DoorLimits;
use crate::doors::io::settings::{self, CONNECTIONS_MAX};
use crate::settings::draft::Draft;
use crate::settings::listen::{Allow, Listen};
use crate::settings::read::CompletedTable;
use crate::settings::secret::Secret;
use crate::settings::tls::Tls;
use crate::settings::units::{ByteSize, Span};

/// The rule of keys that no other rule matches: their limit comes with each request.
const GIVEN_RULE: &str = "resp:throttle";
/// The port of the built-in default.
const PORT: u16 = 6380;
/// Connections of the door, unless told otherwise.
const CONNECTIONS_USUAL: u32 = 10_000;
/// The longest argument, unless told otherwise.
const VALUE_USUAL: ByteSize = ByteSize(64 << 10);

/// The `[resp]` table.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The addresses to listen on. Absent, and without `unix`: 127.0.0.1:6380.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<Listen>,
    /// The path of a Unix socket to listen on.
    #[serde(deserialize_with = "settings::socket_path", skip_serializing_if = "Option::is_none")]
    pub unix: Option<PathBuf>,
    /// Clients that may connect over TCP. File permissions control access to a Unix socket.
    #[serde(skip_serializing_if = "Allow::is_open")]
    pub allow: Allow,
    /// Certificates for clients over TCP. Absent: plain TCP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,
    /// The password of the user `default`, by reference. Without it and `users`, clients need no
    /// password.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password: Option<Secret>,
    /// Other users and their passwords, by reference. All users have the same rights.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub users: BTreeMap<String, Secret>,
    /// The most open connections. Beyond it new clients are refused.
    #[serde(deserialize_with = "settings::connections")]
    #[schemars(range(min = 1, max = CONNECTIONS_MAX))]
    pub max_connections: u32,
    /// The most connections from one source: an IPv4 address, or an IPv6 /64. Absent: a tenth of
    /// max_connections, at least 64, and loopback and Unix sockets are exempt.
    #[serde(deserialize_with = "settings::per_source", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = CONNECTIONS_MAX))]
    pub max_connections_per_source: Option<u32>,
    /// Idle connections are closed after this time. Absent: never.
    #[serde(
        deserialize_with = "settings::some_idle_timeout",
        skip_serializing_if = "Option::is_none"
    )]
    pub idle_timeout: Option<Span>,
    /// The longest argument of a command.
    #[serde(deserialize_with = "settings::value_bytes")]
    pub max_value: ByteSize,
    /// Whether CL.THROTTLE may limit keys that no rule matches, by its own parameters.
    pub ad_hoc: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: None,
            unix: None,
            allow: Allow::default(),
            tls: None,
            password: None,
            users: BTreeMap::new(),
            max_connections: CONNECTIONS_USUAL,
            max_connections_per_source: None,
            idle_timeout: None,
            max_value: VALUE_USUAL,
            ad_hoc: true,
        }
    }
}

impl CompletedTable for Config {
    fn complete(&mut self) -> Result<(), String> {
        settings::complete_sockets(PORT, &mut self.listen, self.unix.as_deref(), self.tls.as_ref())
    }
}

impl Config {
    /// Whether a door of `other` can go on as this one: what [`Self::settings`] has and the allow
    /// list may differ.
    pub(super) fn same_door(&self, other: &Self) -> bool {
        let fixed = |config: &Self| Self {
            allow: Allow::default(),
            password: None,
            users: BTreeMap::new(),
            ad_hoc: true,
            ..config.clone()
        };
        fixed(self) == fixed(other)
    }

    /// What a reload may change while the door is open.
    ///
    /// # Errors
    /// Which password is not there.
    pub(super) fn settings(&self) -> Result<Settings, String> {
        let default = self.password.iter().map(|secret| (DEFAULT_USER.to_vec(), secret));
        let named = self.users.iter().map(|(user, secret)| (user.clone().into_bytes(), secret));
        let users = default.chain(named);
        let revealed = users.map(|(user, secret)| Ok((user, password_of(secret)?)));
        Ok(Settings {
            credentials: Credentials::new(revealed.collect::<Result<Vec<_>, String>>()?),
            max_connections: self.max_connections,
        })
    }

    /// What is wrong with the files and variables that it names.
    pub(super) fn wrong_files(&self) -> Vec<(&'static str, String)> {
        let mut wrong = self.tls.as_ref().map(Tls::wrong_files).unwrap_or_default();
        let password = self.password.iter().map(|secret| ("password", secret));
        let users = self.users.values().map(|secret| ("users", secret));
        let secrets = password.chain(users);
        wrong.extend(
            secrets.filter_map(|(setting, secret)| Some((setting, password_of(secret).err()?))),
        );
        wrong
    }

    /// The rule of keys that no other rule matches, if requests may bring their limits.
    pub(crate) fn own_rule(&self) -> Option<Draft> {
        self.ad_hoc.then(|| Draft::of_given_limits(GIVEN_RULE))
    }

    pub(super) fn idle_max(&self) -> Duration {
        self.idle_timeout.map_or(Duration::MAX, |span| span.0)
    }

    /// What its table says about connections.
    pub(super) fn connections(&self) -> DoorLimits {
        DoorLimits {
            connections: self.max_connections,
            per_source: self.max_connections_per_source,
            trusted: Allow::default(),
            keeps_descriptors_back: true,
            // Pools of clients keep idle connections and expect to find them.
            idle_gives_way: false,
        }
    }
}

/// A password. An empty one would let in clients that give none.
fn password_of(secret: &Secret) -> Result<String, String> {
    let password = secret.reveal()?;
    if password.is_empty() { Err("the password is empty".to_owned()) } else { Ok(password) }
}
