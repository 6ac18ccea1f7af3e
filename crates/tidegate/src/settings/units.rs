//! Sizes and spans of time as people write them in the file: `"4GiB"`, `"10s"`.

use std::fmt;
use std::time::Duration;

use schemars::JsonSchema;
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tidegate_core::limit::{self, parse_duration};

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteSize(pub u64);

/// Largest first: the first one that divides a size is how it is shown.
const SIZE_UNITS: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("TB", 1_000_000_000_000),
    ("GiB", 1 << 30),
    ("GB", 1_000_000_000),
    ("MiB", 1 << 20),
    ("MB", 1_000_000),
    ("KiB", 1 << 10),
    ("kB", 1_000),
    ("B", 1),
];

fn size(text: &str) -> Option<ByteSize> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (amount, unit) = (text[..digits].parse::<u64>().ok()?, text[digits..].trim_start());
    let known = |(name, _): &&(&str, u64)| unit.eq_ignore_ascii_case(name);
    let (_, bytes) = SIZE_UNITS.iter().find(known)?;
    amount.checked_mul(*bytes).map(ByteSize)
}

impl fmt::Display for ByteSize {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        let fits = |(_, bytes): &&(&str, u64)| self.0 >= *bytes && self.0.is_multiple_of(*bytes);
        let (name, bytes) = SIZE_UNITS.iter().find(fits).unwrap_or(&("B", 1));
        write!(formatter, "{}{name}", self.0 / bytes)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = ByteSize;

            fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
                formatter.write_str("a size like \"4GiB\" or a number of bytes")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<ByteSize, E> {
                size(text).ok_or_else(|| {
                    let remedy = "write a whole number and a unit: \"512MiB\", \"4GiB\"";
                    E::custom(format!("\"{text}\" is not a size\n{remedy}"))
                })
            }

            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<ByteSize, E> {
                let wrong = || E::custom("a size cannot be negative\nwrite \"4GiB\" or the bytes");
                u64::try_from(bytes).map(ByteSize).map_err(|_| wrong())
            }
        }
        deserializer.deserialize_any(Text)
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl JsonSchema for ByteSize {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Size".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "A size such as \"4GiB\", or a number of bytes.",
            "anyOf": [{ "type": "string" }, { "type": "integer", "minimum": 0 }]
        })
    }
}

/// A span of time such as "500ms", "10s" or "1min".
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(rename = "TimeSpan")]
pub struct Span(#[schemars(with = "String")] pub Duration);

impl std::str::FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let read = parse_duration(text);
        read.map(|nanos| Span(Duration::from_nanos(nanos)))
            .map_err(|error| format!("{}\n{}", error.message, error.remedy))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        let nanos = u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX);
        limit::Duration(nanos).fmt(formatter)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Span;

            fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
                formatter.write_str("a span with a unit: \"10s\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Span, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Span, E> {
                let remedy = format!("write a span with a unit: \"{}s\"", number.unsigned_abs());
                Err(E::custom(format!("a unit of time is missing\n{remedy}")))
            }
        }
        deserializer.deserialize_any(Text)
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_shown() {
        for (text, bytes, shown) in [
            ("4GiB", 4 << 30, "4GiB"),
            ("1024 MiB", 1 << 30, "1GiB"),
            ("10MB", 10_000_000, "10MB"),
            ("7b", 7, "7B"),
            ("0kb", 0, "0B"),
        ] {
            assert_eq!(size(text), Some(ByteSize(bytes)), "{text}");
            assert_eq!(ByteSize(bytes).to_string(), shown);
        }
        for text in
            ["", "4", "GiB", "4 Gi", "-4GiB", "1.5GiB", "99999999999999999999B", "9999999TiB99"]
        {
            assert_eq!(size(text), None, "{text}");
        }
        assert_eq!(size("99999999TiB"), None, "too large for any machine");
    }

    #[test]
    fn spans_are_read_and_shown() {
        assert_eq!("60s".parse(), Ok(Span(Duration::from_secs(60))));
        assert_eq!(Span(Duration::from_millis(1500)).to_string(), "1500ms");
        assert!("10".parse::<Span>().is_err());
        assert!("-1s".parse::<Span>().is_err());
    }
}
