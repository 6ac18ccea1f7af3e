//! `check_limit`: one request that makes a use of up to three keys, named in JSON.
//!
//! `{"origin":"ws","ua":"x","ip":"1.2.3.4"}` asks about `ws ua=x`, `ws ip=1.2.3.4` and `ws global`
//! in that order; the door stops at the first that is over its limit. This is the one request of
//! the protocol that allocates. Everything it allocates is bounded by the datagram's length.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};

use super::LINE_BYTES_MAX;
use super::server::{Ignored, ReplyLine, put_line};

/// How many keys a `check_limit` asks about.
pub const KEYS: usize = 3;

/// The keys of a `check_limit`, in the order in which they are to be checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckLimit {
    keys: [String; KEYS],
}

impl CheckLimit {
    /// Reads the JSON of a `check_limit`.
    ///
    /// Fields other than `origin`, `ua` and `ip` are ignored if they are strings. If a field comes
    /// twice the last one counts. A missing origin is `unspecified`; a missing `ua` or `ip` is
    /// empty. Fields go into the keys byte for byte, so that `check_limit` and `over_limit` count
    /// the same key.
    ///
    /// # Errors
    /// [`Ignored::BadJson`] for anything but an object of strings, [`Ignored::ControlByte`] if one
    /// of the three fields holds a control byte.
    pub fn parse(json: &[u8]) -> Result<CheckLimit, Ignored> {
        let fields: Fields<'_> = serde_json::from_slice(json).map_err(|_| Ignored::BadJson)?;
        let origin = fields.origin.as_deref().unwrap_or("unspecified");
        let ua = fields.ua.as_deref().unwrap_or_default();
        let ip = fields.ip.as_deref().unwrap_or_default();
        if [origin, ua, ip].iter().any(|field| field.bytes().any(|byte| byte.is_ascii_control())) {
            return Err(Ignored::ControlByte);
        }
        let keys =
            [format!("{origin} ua={ua}"), format!("{origin} ip={ip}"), format!("{origin} global")];
        Ok(CheckLimit { keys })
    }

    /// The keys, in the order in which they are to be checked.
    #[must_use]
    pub fn keys(&self) -> &[String; KEYS] {
        &self.keys
    }

    /// Appends the reply to `out`: the last line, the keys checked, and each key with its line.
    ///
    /// `lines` are the answers for the first of [`CheckLimit::keys`], as many as were checked. The
    /// reply takes at most [`super::CHECK_REPLY_BYTES_MAX`] bytes. Without any line there is
    /// nothing to tell, and nothing is appended.
    pub fn reply(&self, out: &mut Vec<u8>, id: Option<&[u8]>, lines: &[ReplyLine]) {
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

fn append_line(out: &mut Vec<u8>, line: &ReplyLine) {
    let mut room = [0; LINE_BYTES_MAX];
    let len = put_line(&mut room, line);
    out.extend_from_slice(&room[..len]);
}

/// Appends a JSON string. Keys hold no control bytes, so two bytes need an escape.
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
    use super::super::{CHECK_REPLY_BYTES_MAX, DATAGRAM_BYTES_MAX, KEY_BYTES_MAX};
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn check(json: &str, expected: [&str; KEYS]) {
        let check = CheckLimit::parse(json.as_bytes()).expect(json);
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

    /// The keys are those that `over_limit` would be asked about.
    #[test]
    fn fields_go_into_keys_byte_for_byte() {
        check(
            r#"{"origin":"w s","ua":"a b=c/1%20","ip":"\"\\é\u0085"}"#,
            ["w s ua=a b=c/1%20", "w s ip=\"\\é\u{85}", "w s global"],
        );
    }

    #[test]
    fn control_bytes_are_refused_where_they_would_enter_a_key() {
        for byte in (0..0x20).chain([0x7f]) {
            for name in ["origin", "ua", "ip"] {
                let json = format!(r#"{{"{name}":"a\u{byte:04x}b"}}"#);
                assert_eq!(CheckLimit::parse(json.as_bytes()), Err(Ignored::ControlByte), "{json}");
            }
            let json = format!(r#"{{"other":"\u{byte:04x}"}}"#);
            assert!(CheckLimit::parse(json.as_bytes()).is_ok(), "{json}");
        }
    }

    #[test]
    fn anything_but_an_object_of_strings() {
        for json in ["", "null", "7", "\"ws\"", "[]", "[\"ws\",\"x\",\"y\"]", "{", "{}x", "{}{}"] {
            assert_eq!(CheckLimit::parse(json.as_bytes()), Err(Ignored::BadJson), "{json}");
        }
        for value in ["null", "1", "true", "[]", "{}", "[\"x\"]", "\"", "\"\\ud800\"", "'x'"] {
            for name in ["origin", "ua", "ip", "other"] {
                let json = format!("{{\"{name}\":{value}}}");
                assert_eq!(CheckLimit::parse(json.as_bytes()), Err(Ignored::BadJson), "{json}");
            }
        }
        assert_eq!(CheckLimit::parse(b"{\"ua\":\"\xff\"}"), Err(Ignored::BadJson));
        assert_eq!(CheckLimit::parse(b"\xef\xbb\xbf{}"), Err(Ignored::BadJson));
        assert_eq!(CheckLimit::parse(&[b'['; 900]), Err(Ignored::BadJson));
        assert_eq!(CheckLimit::parse(&b"{\"ua\":".repeat(140)), Err(Ignored::BadJson));
    }

    /// However a datagram spends its bytes, its keys are within the bound on keys.
    #[test]
    fn the_longest_keys_are_no_longer_than_keys_may_be() {
        let room = DATAGRAM_BYTES_MAX - "check_limit ".len();
        for name in ["origin", "ua", "ip"] {
            let empty = format!("{{\"{name}\":\"\"}}");
            let json = empty.replace("\"\"", &format!("\"{}\"", "x".repeat(room - empty.len())));
            assert_eq!(json.len(), room);
            let check = CheckLimit::parse(json.as_bytes()).expect("an object of strings");
            assert!(check.keys().iter().all(|key| key.len() <= KEY_BYTES_MAX), "{name}");
        }
    }

    fn line(over: bool, rate: f64) -> ReplyLine {
        ReplyLine { over, rate, limit: 22, period_ns: 20_000_000_000 }
    }

    fn reply(check: &CheckLimit, id: Option<&[u8]>, lines: &[ReplyLine]) -> String {
        let mut out = vec![];
        check.reply(&mut out, id, lines);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn replies() {
        let check = CheckLimit::parse(br#"{"origin":"ws","ip":"\"1","ua":"x"}"#).unwrap();
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

    const LONGEST_LINE: ReplyLine =
        ReplyLine { over: true, rate: f64::MAX, limit: u64::MAX, period_ns: u64::MAX };

    /// Fields that are likely to need escapes or none; a few hold control bytes.
    fn field() -> impl Strategy<Value = String> {
        prop_oneof!["[ -~]{0,300}", "[ %\"\\\\]{0,300}", ".{0,80}"]
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
            let Ok(check) = CheckLimit::parse(json.as_bytes()) else { return Ok(()) };
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

        #[test]
        fn any_bytes_are_json_or_not(json in prop::collection::vec(any::<u8>(), 0..60)) {
            let read = serde_json::from_slice::<std::collections::HashMap<String, String>>(&json);
            prop_assert_eq!(CheckLimit::parse(&json) == Err(Ignored::BadJson), read.is_err());
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
            prop_assert_eq!(CheckLimit::parse(json.as_bytes()).is_ok(), read.is_ok(), "{}", json);
        }
    }
}
