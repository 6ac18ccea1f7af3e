//! What every TCP door's table says about connections, as it is read from the file. The fields are
//! in the table of each door: its own defaults stand beside its code.

use serde::{Deserialize, Deserializer, de};

use crate::settings::units::Span;

/// The most connections that a table may allow.
pub(crate) const CONNECTIONS_MAX: u32 = 1_000_000;

/// Reads a number of connections.
pub(crate) fn connections<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let number = i64::deserialize(deserializer)?;
    let fits = u32::try_from(number).ok().filter(|n| (1..=CONNECTIONS_MAX).contains(n));
    fits.ok_or_else(|| {
        let remedy = format!("write a whole number from 1 to {CONNECTIONS_MAX}");
        let wrong = format!("{number} is not a valid number of connections to hold");
        de::Error::custom(format!("{wrong}\n{remedy}"))
    })
}

/// Reads the share of one source.
pub(crate) fn per_source<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<u32>, D::Error> {
    connections(deserializer).map(Some)
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
