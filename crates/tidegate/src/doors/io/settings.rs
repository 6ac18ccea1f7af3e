//! What every TCP door's table says about connections, as it is read from the file. The fields are
//! in the table of each door: its own defaults stand beside its code.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, de};

use crate::settings::listen::{Listen, ListenAddress};
use crate::settings::tls::Tls;
use crate::settings::units::{ByteSize, Span};

/// The most connections that a table may allow.
pub(crate) const CONNECTIONS_MAX: u32 = 1_000_000;

/// The most that `max_value` may allow: every connection may have one such value half sent.
const VALUE_BYTES_MAX: u64 = 16 << 20;
/// The longest path that the system has for a socket.
const PATH_BYTES_MAX: usize = 107;

/// Reads a number of connections.
pub(crate) fn connections<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let number = i64::deserialize(deserializer)?;
    let fits = u32::try_from(number).ok().filter(|n| (1..=CONNECTIONS_MAX).contains(n));
    fits.ok_or_else(|| {
        let remedy = format!("write a whole number from 1 to {CONNECTIONS_MAX}");
        let wrong = format!("{number} is not a valid number of connections");
        de::Error::custom(format!("{wrong}\n{remedy}"))
    })
}

/// Reads the share of one source.
pub(crate) fn per_source<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<u32>, D::Error> {
    connections(deserializer).map(Some)
}

/// Completes the table of a door over TCP and Unix sockets: without any address it listens on
/// loopback, at its usual port.
///
/// # Errors
/// Certificates for a door without a TCP address, which would never be shown: what is wrong, and on
/// a line of its own what would be right.
pub(crate) fn complete_sockets(
    usual_port: u16,
    listen: &mut Option<Listen>,
    unix: Option<&Path>,
    tls: Option<&Tls>,
) -> Result<(), String> {
    if listen.is_none() && unix.is_none() {
        *listen = Some(SocketAddr::from((Ipv4Addr::LOCALHOST, usual_port)).into());
    }
    if listen.is_some() || tls.is_none() {
        return Ok(());
    }
    let remedy = "add `listen`, or remove `tls`: file permissions protect a Unix socket";
    Err(format!("`tls` is for TCP, and this table has only `unix`\n{remedy}"))
}

/// The addresses of such a door, each with the setting that has it.
pub(crate) fn places(
    listen: Option<&Listen>,
    unix: Option<&Path>,
) -> Vec<(&'static str, ListenAddress)> {
    let listen = listen.into_iter().flat_map(Listen::places);
    let unix = unix.map(|path| ("unix", ListenAddress::Unix(path.to_owned())));
    listen.chain(unix).collect()
}

/// Reads how long a connection may be idle.
pub(crate) fn idle_timeout<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Span, D::Error> {
    let span = Span::deserialize(deserializer)?;
    if !span.0.is_zero() {
        return Ok(span);
    }
    let remedy = "write a span like \"75s\" or, to keep connections for very long, \"365d\"";
    Err(de::Error::custom(format!("with 0 every connection would be closed at once\n{remedy}")))
}

/// The same, where idle connections are kept unless a time is set.
pub(crate) fn some_idle_timeout<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Span>, D::Error> {
    idle_timeout(deserializer).map(Some)
}

/// Reads how long a value may be.
pub(crate) fn value_bytes<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<ByteSize, D::Error> {
    let size = ByteSize::deserialize(deserializer)?;
    let wrong = match size.0 {
        0 => "no value fits into 0 bytes".to_owned(),
        1..=VALUE_BYTES_MAX => return Ok(size),
        _ => format!("{size} is too long for a value"),
    };
    let most = ByteSize(VALUE_BYTES_MAX);
    Err(de::Error::custom(format!("{wrong}\nwrite a size from 1 to {most}")))
}

/// Reads the path of a Unix socket.
pub(crate) fn socket_path<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<PathBuf>, D::Error> {
    let path = PathBuf::deserialize(deserializer)?;
    let wrong = match path.as_os_str().len() {
        0 => "an empty path",
        1..=PATH_BYTES_MAX => return Ok(Some(path)),
        _ => "too long for the path of a socket",
    };
    let remedy = format!("write a path of 1 to {PATH_BYTES_MAX} bytes");
    Err(de::Error::custom(format!("{wrong}\n{remedy}")))
}
