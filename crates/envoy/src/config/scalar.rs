//! What an unquoted scalar is: YAML 1.1 as envoyproxy/ratelimit's library reads it.
//!
//! It decides only types; a text field takes the scalar as it was written.

use std::fmt;

use super::yaml::{Node, Value};

/// A scalar by its type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Scalar<'a> {
    Null,
    Bool(bool),
    /// Anything that is written as a whole number and fits.
    Int(i128),
    Float(f64),
    Text(&'a str),
}

impl<'a> Scalar<'a> {
    pub(super) fn of(text: &'a str, plain: bool) -> Self {
        if !plain {
            return Self::Text(text);
        }
        match text {
            "" | "~" | "null" | "Null" | "NULL" => Self::Null,
            "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
                Self::Bool(true)
            }
            "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off"
            | "OFF" => Self::Bool(false),
            ".nan" | ".NaN" | ".NAN" => Self::Float(f64::NAN),
            _ => number(text).unwrap_or(Self::Text(text)),
        }
    }
}

fn number(text: &str) -> Option<Scalar<'static>> {
    if !text.starts_with(|first: char| first.is_ascii_digit() || "+-.".contains(first)) {
        return None;
    }
    let infinite = text.trim_start_matches(['+', '-']);
    if matches!(infinite, ".inf" | ".Inf" | ".INF") {
        return Some(Scalar::Float(f64::INFINITY));
    }
    let digits = text.replace('_', "");
    if let Some(int) = integer(&digits) {
        return Some(Scalar::Int(int));
    }
    let is_decimal = digits.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte));
    digits.parse().ok().filter(|_| is_decimal).map(Scalar::Float)
}

/// A whole number in base 10, 16 (`0x`), 8 (`0o` or `0`) or 2 (`0b`).
fn integer(digits: &str) -> Option<i128> {
    let (sign, bare) = match digits.as_bytes() {
        [b'-', ..] => (-1, &digits[1..]),
        [b'+', ..] => (1, &digits[1..]),
        _ => (1, digits),
    };
    let lower = bare.to_ascii_lowercase();
    let (base, bare) = [("0x", 16), ("0o", 8), ("0b", 2)]
        .into_iter()
        .find_map(|(prefix, base)| Some((base, lower.strip_prefix(prefix)?)))
        .unwrap_or_else(|| {
            if lower.len() > 1 && lower.starts_with('0') { (8, &lower[1..]) } else { (10, &lower) }
        });
    let is_plain = bare.starts_with(|first: char| first.is_ascii_alphanumeric());
    let magnitude = i128::from_str_radix(bare, base).ok().filter(|_| is_plain)?;
    (magnitude <= i128::from(u64::MAX)).then_some(sign * magnitude)
}

/// A node as Go prints it, for error texts.
pub(super) struct Shown<'a>(pub(super) &'a Node);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.value {
            Value::Scalar { text, plain } => match Scalar::of(text, *plain) {
                Scalar::Null => f.write_str("<nil>"),
                Scalar::Bool(value) => write!(f, "{value}"),
                Scalar::Int(value) => write!(f, "{value}"),
                Scalar::Float(value) => write!(f, "{value}"),
                Scalar::Text(text) => f.write_str(text),
            },
            Value::List(items) => {
                f.write_str("[")?;
                for (at, item) in items.iter().enumerate() {
                    let space = if at > 0 { " " } else { "" };
                    write!(f, "{space}{}", Shown(item))?;
                }
                f.write_str("]")
            }
            Value::Map(pairs) => {
                f.write_str("map[")?;
                for (at, (key, value)) in pairs.iter().enumerate() {
                    let space = if at > 0 { " " } else { "" };
                    write!(f, "{space}{}:{}", Shown(key), Shown(value))?;
                }
                f.write_str("]")
            }
        }
    }
}
