//! The `[[throttr]]` tables, and what they mean to the loops.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::doors::io::limits::DoorLimits;
use crate::doors::io::settings::{self, CONNECTIONS_MAX};
use crate::settings::listen::{Allow, Listen};
use crate::settings::read::CompletedTable;
use crate::settings::tls::Tls;
use crate::settings::units::{ByteSize, Span};

/// The port of the built-in default.
const PORT: u16 = 9000;

/// Connections of a door, unless told otherwise.
const CONNECTIONS_USUAL: u32 = 10_000;
/// How long a connection may be idle, unless told otherwise.
const IDLE_USUAL: Duration = Duration::from_secs(600);

/// One `[[throttr]]` table: a listener of one value size.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The addresses to listen on. Absent, and without `unix`: 127.0.0.1:9000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<Listen>,
    /// The path of a Unix socket to listen on.
    #[serde(deserialize_with = "settings::socket_path", skip_serializing_if = "Option::is_none")]
    pub unix: Option<PathBuf>,
    /// The size of quotas, times to live and lengths in bits: 8, 16, 32 or 64.
    pub value_size: Bits,
    /// Clients that may connect over TCP. File permissions control access to a Unix socket.
    #[serde(skip_serializing_if = "Allow::is_open")]
    pub allow: Allow,
    /// Certificates for clients over TCP. Absent: plain TCP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,
    /// The longest value of a SET and the longest payload of a PUBLISH.
    #[serde(deserialize_with = "settings::value_bytes")]
    pub max_value: ByteSize,
    /// The most open connections. Beyond it an idle one is closed, or else the new one.
    #[serde(deserialize_with = "settings::connections")]
    #[schemars(range(min = 1, max = CONNECTIONS_MAX))]
    pub max_connections: u32,
    /// The most connections from one source: an IPv4 address, or an IPv6 /64. Absent: a tenth of
    /// max_connections, at least 64, and loopback and Unix sockets are exempt.
    #[serde(deserialize_with = "settings::per_source", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = CONNECTIONS_MAX))]
    pub max_connections_per_source: Option<u32>,
    /// Idle connections without a subscription are closed after this time.
    #[serde(deserialize_with = "settings::idle_timeout")]
    pub idle_timeout: Span,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: None,
            unix: None,
            value_size: Bits::default(),
            allow: Allow::default(),
            tls: None,
            max_value: ByteSize(64 << 10),
            max_connections: CONNECTIONS_USUAL,
            max_connections_per_source: None,
            idle_timeout: Span(IDLE_USUAL),
        }
    }
}

impl CompletedTable for Config {
    fn complete(&mut self) -> Result<(), String> {
        settings::complete_sockets(PORT, &mut self.listen, self.unix.as_deref(), self.tls.as_ref())
    }
}

impl Config {
    /// Whether a door of `other` can go on as this one: only the allow list may differ.
    pub(crate) fn same_door(&self, other: &Self) -> bool {
        Self { allow: Allow::default(), ..self.clone() }
            == Self { allow: Allow::default(), ..other.clone() }
    }

    /// What its table says about connections.
    pub(super) fn connections(&self) -> DoorLimits {
        DoorLimits {
            connections: self.max_connections,
            per_source: self.max_connections_per_source,
            trusted: Allow::default(),
            keeps_descriptors_back: true,
            idle_gives_way: true,
        }
    }
}

/// How many bits quotas, times to live and lengths have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bits {
    /// One byte.
    Eight,
    /// Two bytes.
    #[default]
    Sixteen,
    /// Four bytes.
    ThirtyTwo,
    /// Eight bytes.
    SixtyFour,
}

impl Bits {
    /// The number of bits.
    #[must_use]
    pub fn count(self) -> u8 {
        match self {
            Bits::Eight => 8,
            Bits::Sixteen => 16,
            Bits::ThirtyTwo => 32,
            Bits::SixtyFour => 64,
        }
    }
}

impl<'de> Deserialize<'de> for Bits {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match i64::deserialize(deserializer)? {
            8 => Ok(Bits::Eight),
            16 => Ok(Bits::Sixteen),
            32 => Ok(Bits::ThirtyTwo),
            64 => Ok(Bits::SixtyFour),
            other => Err(de::Error::custom(format!(
                "{other} is not a value size\nwrite the bits: 8, 16, 32 or 64"
            ))),
        }
    }
}

impl Serialize for Bits {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(self.count())
    }
}

impl JsonSchema for Bits {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Bits".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "The size of quotas, times to live and lengths, in bits.",
            "enum": [8, 16, 32, 64]
        })
    }
}

impl fmt::Display for Bits {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        self.count().fmt(formatter)
    }
}
