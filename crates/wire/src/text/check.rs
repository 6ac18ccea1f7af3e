//! `check_limit`: one request that makes a use of up to three keys, named in JSON.
//!
//! `{"origin":"ws","ua":"x","ip":"1.2.3.4"}` asks about `ws ua=x`, `ws ip=1.2.3.4` and `ws global`
//! in that order; the door stops at the first that is over its limit. This is the one request of
//! the protocol that allocates. Everything it allocates is bounded by the datagram's length.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};

use super::parse::Ignored;
use super::reply::{Line, put_line};
use super::{KEY_BYTES_MAX, LINE_BYTES_MAX};

/// How many keys a `check_limit` asks about.
pub const KEYS: usize = 3;

/// The keys of a `check_limit`, in the order in which they are to be checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    keys: [String; KEYS],
}

impl Check {
    /// Reads the JSON of a `check_limit`.
    ///
    /// Fields other than `origin`, `ua` and `ip` are ignored if they are strings. If a field comes
    /// twice the last one counts. A missing origin is `unspecified`; a missing `ua` or `ip` is
    /// empty. In the keys, spaces, `%` and control bytes of a field are percent-encoded, so that
    /// no field can pretend to be two.
    ///
    /// # Errors
    /// [`Ignored::BadJson`] for anything but an object of strings, [`Ignored::KeyTooLong`] if a
    /// key would be longer than [`KEY_BYTES_MAX`].
    pub fn parse(json: &[u8]) -> Result<Check, Ignored> {
        let fields: Fields<'_> = serde_json::from_slice(json).map_err(|_| Ignored::BadJson)?;
        let origin = fields.origin.as_deref().unwrap_or("unspecified");
        let keys = [
            compose(origin, " ua=", fields.ua.as_deref().unwrap_or_default()),
            compose(origin, " ip=", fields.ip.as_deref().unwrap_or_default()),
            compose(origin, " global", ""),
        ];
        if keys.iter().any(|key| key.len() > KEY_BYTES_MAX) {
            return Err(Ignored::KeyTooLong);
        }
        Ok(Check { keys })
    }

    /// The keys, in the order in which they are to be checked.
    #[must_use]
    pub fn keys(&self) -> &[String; KEYS] {
        &self.keys
    }

    /// Appends the reply to `out`: the last line, the keys checked, and each key with its line.
    ///
    /// `lines` are the answers for the first of [`Check::keys`], as many as were checked. The
    /// reply takes at most [`super::CHECK_REPLY_BYTES_MAX`] bytes. Without any line there is
    /// nothing to tell, and nothing is appended.
    pub fn reply(&self, out: &mut Vec<u8>, id: Option<&[u8]>, lines: &[Line]) {
        let Some(last) = lines.last() else { return };
        if let Some(id) = id {
            out.extend_from_slice(id);
            out.push(b' ');
        }
        append_line(out, last);
        out.extend_from_slice(b", [");
        for (position, key) in self.keys.iter().take(lines.len()).enumerate() {
            out.extend_from_slice(if position == 0 { b"" } else { b"," });
            append_json(out, key);
        }
        out.extend_from_slice(b"], [");
        for (position, (key, line)) in self.keys.iter().zip(lines).enumerate() {
            out.extend_from_slice(if position == 0 { b"{\"key\":" } else { b",{\"key\":" });
            append_json(out, key);
            out.extend_from_slice(b",\"over_limit\":\"");
            append_line(out, line);
            out.extend_from_slice(b"\"}");
        }
        out.push(b']');
    }
}

fn append_line(out: &mut Vec<u8>, line: &Line) {
    let mut room = [0; LINE_BYTES_MAX];
    let len = put_line(&mut room, line);
    out.extend_from_slice(&room[..len]);
}

/// Appends a JSON string. Keys are composed without control bytes, so two bytes need an escape.
fn append_json(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    for &byte in text.as_bytes() {
        if matches!(byte, b'"' | b'\\') {
            out.push(b'\\');
        }
        out.push(byte);
    }
    out.push(b'"');
}

fn compose(origin: &str, entry: &str, value: &str) -> String {
    let mut key = String::with_capacity(origin.len() + entry.len() + value.len());
    append_encoded(&mut key, origin);
    key.push_str(entry);
    append_encoded(&mut key, value);
    key
}

fn append_encoded(key: &mut String, field: &str) {
    const HEX: [char; 16] =
        ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'A', 'B', 'C', 'D', 'E', 'F'];
    for char in field.chars() {
        if char == ' ' || char == '%' || char.is_ascii_control() {
            let byte = char as usize;
            key.extend(['%', HEX[byte >> 4], HEX[byte & 15]]);
        } else {
            key.push(char);
        }
    }
}

#[derive(Default)]
struct Fields<'a> {
    origin: Option<Cow<'a, str>>,
    ua: Option<Cow<'a, str>>,
    ip: Option<Cow<'a, str>>,
}

/// A string that stays where it is unless it holds escapes.
#[derive(serde::Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        json.deserialize_map(FieldsVisitor)
    }
}

/// Written by hand because a derived struct would accept an array and refuse a field twice.
struct FieldsVisitor;

impl<'de> Visitor<'de> for FieldsVisitor {
    type Value = Fields<'de>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object of strings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        let mut fields = Fields::default();
        while let Some((Text(name), Text(value))) = entries.next_entry()? {
            match &*name {
                "origin" => fields.origin = Some(value),
                "ua" => fields.ua = Some(value),
                "ip" => fields.ip = Some(value),
                _ => {}
            }
        }
        Ok(fields)
    }
}
