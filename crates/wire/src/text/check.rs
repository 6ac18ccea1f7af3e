//! `check_limit`: one request that makes a use of up to three keys, named in JSON.
//!
//! `{"origin":"ws","ua":"x","ip":"1.2.3.4"}` asks about `ws ua=x`, `ws ip=1.2.3.4` and `ws global`
//! in that order; the door stops at the first that is over its limit. This is the one request of
//! the protocol that allocates. Everything it allocates is bounded by the datagram's length.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use tidegate_core::key::{KeyBuilder, KeyTooLong};

use super::LINE_BYTES_MAX;
use super::parse::Ignored;
use super::reply::{Line, put_line};

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
    /// key would be longer than [`super::KEY_BYTES_MAX`].
    pub fn parse(json: &[u8]) -> Result<Check, Ignored> {
        let fields: Fields<'_> = serde_json::from_slice(json).map_err(|_| Ignored::BadJson)?;
        let origin = fields.origin.as_deref().unwrap_or("unspecified");
        let compose = |entry: Option<(&str, Option<&str>)>| {
            let mut key = Vec::new();
            let builder = KeyBuilder::new(&mut key, origin.as_bytes());
            let builder = match entry {
                Some((name, value)) => {
                    builder.entry(name.as_bytes(), value.unwrap_or_default().as_bytes())
                }
                None => builder.word(b"global"),
            };
            builder.finish().map_err(|KeyTooLong| Ignored::KeyTooLong)?;
            // Only ASCII is encoded, so text stays text.
            String::from_utf8(key).map_err(|_| Ignored::BadJson)
        };
        let keys = [
            compose(Some(("ua", fields.ua.as_deref())))?,
            compose(Some(("ip", fields.ip.as_deref())))?,
            compose(None)?,
        ];
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

#[cfg(test)]
mod tests {
    use super::super::{CHECK_REPLY_BYTES_MAX, DATAGRAM_BYTES_MAX};
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn check(json: &str, expected: [&str; KEYS]) {
        let check = Check::parse(json.as_bytes()).expect(json);
        assert_eq!(check.keys(), &expected.map(String::from), "{json}");
    }

    #[test]
    fn keys_of_well_formed_json() {
        check(
            r#"{"origin":"ws","ip":"1.2.3.4","ua":"x"}"#,
            ["ws ua=x", "ws ip=1.2.3.4", "ws global"],
        );
        check("{}", ["unspecified ua=", "unspecified ip=", "unspecified global"]);
        check(r#" { "ua" : "" } "#, ["unspecified ua=", "unspecified ip=", "unspecified global"]);
        check(r#"{"origin":""}"#, [" ua=", " ip=", " global"]);
        check(r#"{"origin":"a","origin":"b"}"#, ["b ua=", "b ip=", "b global"]);
        check(r#"{"origin":"a","other":"b"}"#, ["a ua=", "a ip=", "a global"]);
        check(r#"{"or\u0069gin":"\u00e9"}"#, ["é ua=", "é ip=", "é global"]);
    }

    /// Fields cannot pretend to be two: what would split a key is encoded.
    #[test]
    fn keys_of_fields_that_hold_separators() {
        check(
            r#"{"origin":"w s","ua":"a b=c/1%","ip":"\n\u0000\u007f\"\\"}"#,
            ["w%20s ua=a%20b=c/1%25", "w%20s ip=%0A%00%7F\"\\", "w%20s global"],
        );
    }

    #[test]
    fn anything_but_an_object_of_strings() {
        for json in ["", "null", "7", "\"ws\"", "[]", "[\"ws\",\"x\",\"y\"]", "{", "{}x", "{}{}"] {
            assert_eq!(Check::parse(json.as_bytes()), Err(Ignored::BadJson), "{json}");
        }
        for value in ["null", "1", "true", "[]", "{}", "[\"x\"]", "\"", "\"\\ud800\"", "'x'"] {
            for name in ["origin", "ua", "ip", "other"] {
                let json = format!("{{\"{name}\":{value}}}");
                assert_eq!(Check::parse(json.as_bytes()), Err(Ignored::BadJson), "{json}");
            }
        }
        assert_eq!(Check::parse(b"{\"ua\":\"\xff\"}"), Err(Ignored::BadJson));
        assert_eq!(Check::parse(b"\xef\xbb\xbf{}"), Err(Ignored::BadJson));
        assert_eq!(Check::parse(&[b'['; 900]), Err(Ignored::BadJson));
        assert_eq!(Check::parse(&b"{\"ua\":".repeat(140)), Err(Ignored::BadJson));
    }

    #[test]
    fn a_key_may_have_1024_bytes_and_no_more() {
        // An encoded space is three bytes long, and one key is ` ua=` longer than its fields.
        let json =
            |spaces, more| format!("{{\"origin\":\"{}{}\"}}", " ".repeat(spaces), "x".repeat(more));
        let longest = Check::parse(json(339, 0).as_bytes()).unwrap();
        assert_eq!(longest.keys().each_ref().map(String::len), [1021, 1021, 1024]);
        assert_eq!(Check::parse(json(339, 1).as_bytes()), Err(Ignored::KeyTooLong));
        let json = format!("{{\"ua\":\"{}\"}}", "%".repeat(800));
        assert_eq!(Check::parse(json.as_bytes()), Err(Ignored::KeyTooLong));
    }

    fn line(over: bool, rate: f64) -> Line {
        Line { over, rate, limit: 22, period_ns: 20_000_000_000 }
    }

    fn reply(check: &Check, id: Option<&[u8]>, lines: &[Line]) -> String {
        let mut out = vec![];
        check.reply(&mut out, id, lines);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn replies() {
        let check = Check::parse(br#"{"origin":"ws","ip":"\"1","ua":"x"}"#).unwrap();
        let lines = [line(false, 1.4), line(false, 2.0), line(true, 28.1)];
        assert_eq!(
            reply(&check, None, &lines[..1]),
            r#"ok N 1.4 22.0 20, ["ws ua=x"], [{"key":"ws ua=x","over_limit":"ok N 1.4 22.0 20"}]"#
        );
        assert_eq!(
            reply(&check, Some(b"07"), &lines),
            concat!(
                r#"07 ok Y 28.1 22.0 20, ["ws ua=x","ws ip=\"1","ws global"], "#,
                r#"[{"key":"ws ua=x","over_limit":"ok N 1.4 22.0 20"},"#,
                r#"{"key":"ws ip=\"1","over_limit":"ok N 2.0 22.0 20"},"#,
                r#"{"key":"ws global","over_limit":"ok Y 28.1 22.0 20"}]"#
            )
        );
        assert_eq!(reply(&check, Some(b"07"), &[]), "");
    }

    const LONGEST_LINE: Line =
        Line { over: true, rate: f64::MAX, limit: u64::MAX, period_ns: u64::MAX };

    /// Fields that are likely to need escapes, percent signs or neither.
    fn field() -> impl Strategy<Value = String> {
        prop_oneof!["[ -~]{0,300}", "[ %\"\\\\\u{0}-\u{1f}\u{7f}]{0,300}", ".{0,80}"]
    }

    proptest! {
        /// Each array is JSON, and says what was put into it.
        #[test]
        fn replies_are_json_within_their_bound(
            origin in field(), ua in field(), ip in field(), count in 1..=KEYS
        ) {
            let json = serde_json::json!({"origin": origin, "ua": ua, "ip": ip}).to_string();
            // About one in eight; an assumption would give up on a soak's many cases.
            if json.len() > DATAGRAM_BYTES_MAX {
                return Ok(());
            }
            let Ok(check) = Check::parse(json.as_bytes()) else { return Ok(()) };
            let text = reply(&check, None, &vec![LONGEST_LINE; count]);
            prop_assert!(text.len() + DATAGRAM_BYTES_MAX <= CHECK_REPLY_BYTES_MAX);
            let ok = "ok Y 9999999.9 18446744073709551615.0 18446744074";
            let arrays = text.strip_prefix(ok).unwrap().strip_prefix(", ").unwrap();
            let array = format!("[{}]", arrays.replacen("], [", "],[", 1));
            let (keys, entries): (Vec<String>, Vec<serde_json::Value>) =
                serde_json::from_str(&array).unwrap();
            prop_assert_eq!(&keys[..], &check.keys()[..count]);
            for (key, entry) in keys.iter().zip(&entries) {
                prop_assert_eq!(entry, &serde_json::json!({"key": key, "over_limit": ok}));
            }
            prop_assert_eq!(entries.len(), count);
        }

        /// Two requests with different fields never share a key.
        #[test]
        fn different_fields_have_different_keys(
            left in ("[a %=]{0,4}", "[a %=]{0,4}"), right in ("[a %=]{0,4}", "[a %=]{0,4}")
        ) {
            let keys = |(origin, ua): &(String, String)| {
                let json = serde_json::json!({"origin": origin, "ua": ua}).to_string();
                Check::parse(json.as_bytes()).unwrap().keys().clone()
            };
            let (left_keys, right_keys) = (keys(&left), keys(&right));
            prop_assert_eq!(left == right, left_keys[0] == right_keys[0]);
            prop_assert_eq!(left.0 == right.0, left_keys[2] == right_keys[2]);
        }

        #[test]
        fn any_bytes_are_json_or_not(json in prop::collection::vec(any::<u8>(), 0..60)) {
            let read = serde_json::from_slice::<std::collections::HashMap<String, String>>(&json);
            prop_assert_eq!(Check::parse(&json).is_ok(), read.is_ok());
        }

        #[test]
        fn nearly_json_is_json_or_not(
            pieces in prop::collection::vec(
                prop::sample::select(
                    &["{", "}", "\"origin\"", ":", ",", "\"\"", "\"a", "1", " ", "null", "[", "]"]
                        as &[&str]
                ),
                0..9,
            )
        ) {
            let json = pieces.concat();
            let read = serde_json::from_str::<std::collections::HashMap<String, String>>(&json);
            prop_assert_eq!(Check::parse(json.as_bytes()).is_ok(), read.is_ok(), "{}", json);
        }
    }
}
