//! The client's side of the text protocol: writing requests and reading replies.
//!
//! What a reply tells is kept as it was shown: a rate is rounded, a period is in whole seconds.

use serde::{Deserialize, Serialize};

use super::DATAGRAM_BYTES_MAX;
use super::number::{U64_BYTES_MAX, put_u64};
use super::server::{TextCommand, split_id};

/// A request cannot be written in this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnwritableText {
    /// The request would be longer than [`DATAGRAM_BYTES_MAX`]; servers ignore such a datagram.
    TooLong,
    /// The key or the JSON holds a newline; servers do not recognise such a request.
    Newline,
}

impl std::fmt::Display for UnwritableText {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            UnwritableText::TooLong => "the request is longer than 1000 bytes, shorten the key",
            UnwritableText::Newline => "the key holds a newline, which this protocol cannot carry",
        })
    }
}

impl std::error::Error for UnwritableText {}

/// Writes a request at the start of `out` and returns its length.
///
/// # Errors
/// [`UnwritableText`] if no server could understand the request.
pub fn request(
    out: &mut [u8; DATAGRAM_BYTES_MAX],
    id: Option<u64>,
    command: TextCommand<'_>,
) -> Result<usize, UnwritableText> {
    let mut at = 0;
    if let Some(id) = id {
        at = put_u64(&mut out[..U64_BYTES_MAX], id);
        out[at] = b' ';
        at += 1;
    }
    let (name, argument): (&[u8], &[u8]) = match command {
        TextCommand::OverLimit(key) => (b"over_limit ", key),
        TextCommand::GetStats(key) => (b"get_stats ", key),
        TextCommand::CheckLimit(json) => (b"check_limit ", json),
        TextCommand::GetSize => (b"get_size", b""),
        TextCommand::Ping => (b"ping", b""),
    };
    if argument.contains(&b'\n') {
        return Err(UnwritableText::Newline);
    }
    for part in [name, argument] {
        let room = out.get_mut(at..at + part.len()).ok_or(UnwritableText::TooLong)?;
        room.copy_from_slice(part);
        at += part.len();
    }
    Ok(at)
}

/// What a `check_limit` asks about. A field that is `None` is left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CheckFields<'a> {
    /// Where the use comes from: `ws`, `search`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<&'a str>,
    /// The user agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ua: Option<&'a str>,
    /// The client's address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ip: Option<&'a str>,
}

impl CheckFields<'_> {
    /// The JSON of [`TextCommand::CheckLimit`]. It holds no newline: strings have theirs escaped.
    #[must_use]
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("an object of strings is always JSON")
    }
}

/// A reply, with the id of the request that it answers.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply<'a> {
    /// The id's digits, byte for byte. A client that sent an id must compare.
    pub id: Option<&'a [u8]>,
    /// What is answered.
    pub answer: ReplyBody<'a>,
}

/// What a reply answers.
#[derive(Clone, Debug, PartialEq)]
pub enum ReplyBody<'a> {
    /// To `over_limit`.
    Line(LineShown),
    /// To `get_stats`.
    Stats {
        /// The statistics.
        stats: super::StatsReply,
        /// The key that they are about.
        key: &'a [u8],
    },
    /// To `check_limit`: each key that was checked, in order. Never empty.
    Checked(Vec<Checked>),
    /// To `get_size`.
    Size {
        /// How full the table is, in the server's own words; Tidegate says `USED/TOTAL` in slots.
        size: &'a [u8],
        /// Keys that are remembered.
        keys: u64,
    },
    /// To `ping`.
    Pong,
}

/// An `ok …` line as it was shown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LineShown {
    /// Whether the key is over its limit, so that the use was refused.
    pub over: bool,
    /// The key's rate in uses per period.
    pub rate: f64,
    /// Uses per period that are allowed.
    pub limit: f64,
    /// The period in seconds.
    pub period_s: u64,
}

/// One key of a `check_limit` and what was told about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Checked {
    /// The key.
    pub key: String,
    /// Its line.
    pub line: LineShown,
}

/// Reads a reply. `None` is a datagram that no server of this protocol sends.
#[must_use]
pub fn reply(datagram: &[u8]) -> Option<Reply<'_>> {
    let (id, text) = split_id(datagram)?;
    let answer = if text.starts_with(b"ok ") {
        match text.windows(3).position(|window| window == b", [") {
            Some(end) => ReplyBody::Checked(checked(&text[..end], &text[end + 2..])?),
            None => ReplyBody::Line(line(text)?),
        }
    } else if let Some(rest) = text.strip_prefix(b"n_req=") {
        stats(rest)?
    } else if let Some(rest) = text.strip_prefix(b"size=") {
        let end = rest.iter().position(|&byte| byte == b' ')?;
        ReplyBody::Size { size: &rest[..end], keys: whole(rest[end..].strip_prefix(b" keys=")?)? }
    } else if text == b"pong" {
        ReplyBody::Pong
    } else {
        return None;
    };
    Some(Reply { id, answer })
}

/// Reads `ok Y|N rate limit period`. Here, and only here, a `Y` becomes being over.
fn line(text: &[u8]) -> Option<LineShown> {
    let rest = text.strip_prefix(b"ok ")?;
    let over = match rest.first()? {
        b'Y' => true,
        b'N' => false,
        _ => return None,
    };
    let mut words = rest[1..].strip_prefix(b" ")?.split(|&byte| byte == b' ');
    let rate = decimal(words.next()?)?;
    let limit = decimal(words.next()?)?;
    let period_s = whole(words.next()?)?;
    words.next().is_none().then_some(LineShown { over, rate, limit, period_s })
}

fn stats(rest: &[u8]) -> Option<ReplyBody<'_>> {
    let (requests, rest) = field(rest, b" n_over=")?;
    let (over, rest) = field(rest, b" last_max_rate=")?;
    let (last_max_rate, key) = field(rest, b" key=")?;
    Some(ReplyBody::Stats { stats: super::StatsReply { requests, over, last_max_rate }, key })
}

/// Reads a whole number and the words that must follow it.
fn field<'a>(text: &'a [u8], then: &[u8]) -> Option<(u64, &'a [u8])> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    Some((whole(&text[..digits])?, text[digits..].strip_prefix(then)?))
}

/// Reads the two arrays behind the last line. All three must tell the same story.
fn checked(last: &[u8], arrays: &[u8]) -> Option<Vec<Checked>> {
    #[derive(Deserialize)]
    struct Entry {
        key: String,
        over_limit: String,
    }
    let mut values = serde_json::Deserializer::from_slice(arrays).into_iter::<Vec<String>>();
    let keys = values.next()?.ok()?;
    let rest = arrays[values.byte_offset()..].strip_prefix(b", ")?;
    let entries: Vec<Entry> = serde_json::from_slice(rest).ok()?;
    let same_keys = keys.iter().eq(entries.iter().map(|entry| &entry.key));
    if !same_keys || entries.last()?.over_limit.as_bytes() != last {
        return None;
    }
    let shown =
        |entry: Entry| Some(Checked { line: line(entry.over_limit.as_bytes())?, key: entry.key });
    entries.into_iter().map(shown).collect()
}

fn whole(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Reads digits with at most one point between them: no sign, exponent, `inf` or `nan`.
fn decimal(text: &[u8]) -> Option<f64> {
    let digit_at_ends = text.first()?.is_ascii_digit() && text.last()?.is_ascii_digit();
    let plain = text.iter().all(|&byte| byte.is_ascii_digit() || byte == b'.');
    if !digit_at_ends || !plain {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok().filter(|number: &f64| number.is_finite())
}

#[cfg(test)]
mod tests {
    use super::super::{
        CheckLimit, REPLY_BYTES_MAX, ReplyLine, Request, SizeReply, StatsReply, parse,
        server as write,
    };
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn check(datagram: &str, id: Option<&str>, answer: ReplyBody<'_>) {
        let expected = Some(Reply { id: id.map(str::as_bytes), answer });
        assert_eq!(reply(datagram.as_bytes()), expected, "{datagram}");
    }

    const LINE: LineShown = LineShown { over: true, rate: 28.1, limit: 22.0, period_s: 20 };

    #[test]
    fn replies() {
        check("1332 ok Y 28.1 22.0 20", Some("1332"), ReplyBody::Line(LINE));
        check("ok N 28.1 22.0 20", None, ReplyBody::Line(LineShown { over: false, ..LINE }));
        check("ok Y 28 22 20", None, ReplyBody::Line(LineShown { rate: 28.0, ..LINE }));
        check("pong", None, ReplyBody::Pong);
        check("007 pong", Some("007"), ReplyBody::Pong);
        check("size=1/2 keys=3", None, ReplyBody::Size { size: b"1/2", keys: 3 });
        check("size=4MB keys=3", None, ReplyBody::Size { size: b"4MB", keys: 3 });
        let stats = StatsReply { requests: 2, over: 1, last_max_rate: 3 };
        check(
            "9 n_req=2 n_over=1 last_max_rate=3 key=a key=b",
            Some("9"),
            ReplyBody::Stats { stats, key: b"a key=b" },
        );
        check(
            r#"ok Y 28.1 22.0 20, ["k\""], [{"key":"k\"","over_limit":"ok Y 28.1 22.0 20"}]"#,
            None,
            ReplyBody::Checked(vec![Checked { key: "k\"".into(), line: LINE }]),
        );
    }

    #[test]
    fn no_replies() {
        for datagram in ["", " ", "7", "7 ", "pong ", "pong\n", "ping", "7  pong", "-7 pong", "ok "]
        {
            assert_eq!(reply(datagram.as_bytes()), None, "{datagram}");
        }
        for rest in ["y 1.0 1.0 1", "YN 1.0 1.0 1", "Y", "Y 1.0 1.0", "Y 1.0 1.0 1 ", "Y  1 1 1"] {
            assert_eq!(reply(format!("ok {rest}").as_bytes()), None, "{rest}");
        }
        for word in ["-1.0", "+1", "1e3", "nan", "inf", "1,0", ".5", "5.", "1.0.0", ""] {
            assert_eq!(reply(format!("ok N {word} 1.0 1").as_bytes()), None, "{word}");
            assert_eq!(reply(format!("ok N 1.0 {word} 1").as_bytes()), None, "{word}");
            assert_eq!(reply(format!("ok N 1.0 1.0 {word}").as_bytes()), None, "{word}");
        }
        let huge = "9".repeat(400);
        assert_eq!(reply(format!("ok N {huge} 1.0 1").as_bytes()), None);
        for datagram in ["size=1/2", "size=1/2 keys=", "size=1/2 keys=x", "size=1 2 keys=1"] {
            assert_eq!(reply(datagram.as_bytes()), None, "{datagram}");
        }
        for datagram in ["n_req=1 over=1 last_max_rate=1 key=k", "n_req=1 n_over=1 last_max_rate="]
        {
            assert_eq!(reply(datagram.as_bytes()), None, "{datagram}");
        }
        let entry = r#"{"key":"k","over_limit":"ok N 1.0 1.0 1"}"#;
        for rest in [
            "[]".to_string(),
            "[], []".into(),
            format!(r#"["k"],[{entry}]"#),
            format!(r#"["other"], [{entry}]"#),
            format!(r#"["k","k"], [{entry}]"#),
            format!(r#"["k"], [{entry}]x"#),
            format!(r#"["k"], [{}]"#, entry.replace("N", "Y")),
            r#"["k"], [{"key":"k","over_limit":7}]"#.into(),
        ] {
            assert_eq!(reply(format!("ok N 1.0 1.0 1, {rest}").as_bytes()), None, "{rest}");
        }
    }

    #[test]
    fn requests_that_no_server_understands() {
        let mut out = [0; DATAGRAM_BYTES_MAX];
        let mut check = |id, len: usize, expected| {
            let key = vec![b'k'; len];
            assert_eq!(request(&mut out, id, TextCommand::OverLimit(&key)), expected);
        };
        check(None, 989, Ok(1000));
        check(None, 990, Err(UnwritableText::TooLong));
        check(Some(7), 987, Ok(1000));
        check(Some(7), 988, Err(UnwritableText::TooLong));
        check(Some(u64::MAX), 5000, Err(UnwritableText::TooLong));
        for key in ["a\nb", "a\n", "\n"] {
            let command = TextCommand::GetStats(key.as_bytes());
            assert_eq!(request(&mut out, None, command), Err(UnwritableText::Newline));
        }
    }

    #[test]
    fn fields_that_are_left_out() {
        assert_eq!(CheckFields::default().json(), "{}");
        let fields = CheckFields { origin: Some("w\n\"s"), ip: Some(""), ..CheckFields::default() };
        assert_eq!(fields.json(), r#"{"origin":"w\n\"s","ip":""}"#);
    }

    fn written(write: impl FnOnce(&mut [u8]) -> Result<usize, super::super::NoRoom>) -> Vec<u8> {
        let mut out = vec![0; REPLY_BYTES_MAX + 100];
        let len = write(&mut out).unwrap();
        out.truncate(len);
        out
    }

    proptest! {
        /// What a client writes, a server reads.
        #[test]
        fn requests_go_round(
            which in 0..5,
            id: Option<u64>,
            key in prop::collection::vec(any::<u8>(), 0..60),
        ) {
            let command = match which {
                0 => TextCommand::OverLimit(&key),
                1 => TextCommand::GetStats(&key),
                2 => TextCommand::CheckLimit(&key),
                3 => TextCommand::GetSize,
                _ => TextCommand::Ping,
            };
            let mut out = [0; DATAGRAM_BYTES_MAX];
            let with_argument = which < 3;
            match request(&mut out, id, command) {
                Ok(len) => {
                    let digits = id.map(|id| id.to_string());
                    let id = digits.as_ref().map(String::as_bytes);
                    prop_assert_eq!(parse(&out[..len]), Ok(Request { id, command }));
                }
                Err(UnwritableText::Newline) => prop_assert!(with_argument && key.contains(&b'\n')),
                Err(UnwritableText::TooLong) => prop_assert!(false, "60 bytes are not too long"),
            }
        }

        /// What a server writes, a client reads.
        #[test]
        fn lines_go_round(
            over: bool, tenths in 0u32..100_000_000, limit in 1u64..=1 << 53,
            period_s in 1u64..=1 << 30, id: u64
        ) {
            let rate = f64::from(tenths) / 10.0;
            let line = ReplyLine { over, rate, limit, period_ns: period_s * 1_000_000_000 };
            let id = id.to_string();
            let datagram = written(|out| write::over_limit(out, Some(id.as_bytes()), &line));
            let answer = ReplyBody::Line(LineShown { over, rate, limit: limit as f64, period_s });
            prop_assert_eq!(reply(&datagram), Some(Reply { id: Some(id.as_bytes()), answer }));
        }

        #[test]
        fn statistics_and_sizes_go_round(
            a: u64, b: u64, c: u64, key in prop::collection::vec(any::<u8>(), 0..60)
        ) {
            let stats = StatsReply { requests: a, over: b, last_max_rate: c };
            let datagram = written(|out| write::get_stats(out, None, &stats, &key));
            let answer = ReplyBody::Stats { stats, key: &key };
            prop_assert_eq!(reply(&datagram), Some(Reply { id: None, answer }));
            let datagram =
                written(|out| {
                    write::get_size(out, None, &SizeReply { used: a, total: b, keys: c })
                });
            let size = format!("{a}/{b}");
            let answer = ReplyBody::Size { size: size.as_bytes(), keys: c };
            prop_assert_eq!(reply(&datagram), Some(Reply { id: None, answer }));
        }

        #[test]
        fn checks_go_round(
            origin in "(?s:.){0,20}", ua in "(?s:.){0,20}", ip in ".{0,20}",
            over: bool, count in 1usize..=3
        ) {
            let fields = CheckFields { origin: Some(&origin), ua: Some(&ua), ip: Some(&ip) };
            let json = fields.json();
            let mut out = [0; DATAGRAM_BYTES_MAX];
            prop_assert!(request(&mut out, None, TextCommand::CheckLimit(json.as_bytes())).is_ok());
            // A server ignores fields with control bytes.
            let Ok(check) = CheckLimit::parse(json.as_bytes()) else { return Ok(()) };
            let line = ReplyLine { over: false, rate: 1.5, limit: 9, period_ns: 1 };
            let mut lines = vec![line; count];
            lines[count - 1].over = over;
            let mut datagram = vec![];
            check.reply(&mut datagram, Some(b"7"), &lines);
            let read = reply(&datagram).unwrap();
            prop_assert_eq!(read.id, Some(&b"7"[..]));
            let ReplyBody::Checked(checked) = read.answer else { panic!("another answer") };
            prop_assert_eq!(checked.len(), count);
            for (position, one) in checked.iter().enumerate() {
                prop_assert_eq!(&one.key, &check.keys()[position]);
                prop_assert_eq!(one.line.over, over && position == count - 1);
            }
        }

        /// A hostile server can send anything.
        #[test]
        fn any_bytes_are_a_reply_or_not(datagram in prop::collection::vec(any::<u8>(), 0..60)) {
            prop_assert_eq!(reply(&datagram), None);
        }

        #[test]
        fn nearly_replies_never_panic(
            pieces in prop::collection::vec(
                prop::sample::select(&[
                    "ok ", "Y ", "N ", "1.0", " ", "1", ", [", "\"k\"", "]", "{\"key\":", "}",
                    "\"over_limit\":", "n_req=", " n_over=", " last_max_rate=", " key=", "size=",
                    " keys=", "pong", "\u{e9}", "99999999999999999999",
                ] as &[&str]),
                0..12,
            )
        ) {
            let datagram = pieces.concat();
            if let Some(read) = reply(datagram.as_bytes()) {
                let first_is_digit = datagram.as_bytes()[0].is_ascii_digit();
                prop_assert_eq!(read.id.is_some(), first_is_digit);
            }
        }
    }
}
