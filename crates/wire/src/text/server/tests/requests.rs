//! Requests against the grammar, slowly derived.

use proptest::prelude::*;

use super::super::*;

const ARGUMENT_COMMANDS: [&str; 3] = ["over_limit", "get_stats", "check_limit"];

/// The grammar, slowly: tries every way in which a datagram could be derived from it.
fn model(datagram: &[u8]) -> Result<Request<'_>, Ignored> {
    if datagram.len() > 1000 {
        return Err(Ignored::TooLong);
    }
    let mut found = vec![];
    for id_end in 0..=datagram.len() {
        let (id, rest) = datagram.split_at(id_end);
        let (id, rest) = match (id, rest) {
            ([], rest) => (None, rest),
            (id, [b' ', rest @ ..]) if id.iter().all(u8::is_ascii_digit) => (Some(id), rest),
            _ => continue,
        };
        if rest == b"ping" {
            found.push(Request { id, command: TextCommand::Ping });
        }
        if rest == b"get_size" {
            found.push(Request { id, command: TextCommand::GetSize });
        }
        for name in ARGUMENT_COMMANDS {
            for newline in ["", "\n"] {
                let before = name.len() + 1;
                let Some(after) = rest.len().checked_sub(newline.len()) else { continue };
                let Some(key) = rest.get(before..after) else { continue };
                let derived = [name.as_bytes(), b" ", key, newline.as_bytes()].concat();
                if derived == rest && key.iter().all(|&b| b != b'\n') {
                    let command = match name {
                        "over_limit" => TextCommand::OverLimit(key),
                        "get_stats" => TextCommand::GetStats(key),
                        _ => TextCommand::CheckLimit(key),
                    };
                    found.push(Request { id, command });
                }
            }
        }
    }
    assert!(found.len() <= 1, "the grammar is ambiguous for {}", datagram.escape_ascii());
    found.pop().ok_or(Ignored::Unrecognised)
}

fn same_as_model(datagram: &[u8]) {
    assert_eq!(parse(datagram), model(datagram), "{}", datagram.escape_ascii());
}

#[track_caller]
fn check(datagram: &str, id: Option<&str>, command: TextCommand<'_>) {
    let expected = Ok(Request { id: id.map(str::as_bytes), command });
    assert_eq!(parse(datagram.as_bytes()), expected, "{datagram:?}");
    assert_eq!(model(datagram.as_bytes()), expected, "the model, {datagram:?}");
}

#[track_caller]
fn check_ignored(datagram: &str) {
    assert_eq!(parse(datagram.as_bytes()), Err(Ignored::Unrecognised), "{datagram:?}");
}

#[test]
fn recognised() {
    use TextCommand::*;
    check("over_limit ws global", None, OverLimit(b"ws global"));
    check("1173 over_limit ws global", Some("1173"), OverLimit(b"ws global"));
    check("over_limit ", None, OverLimit(b""));
    check("over_limit \n", None, OverLimit(b""));
    check("over_limit  ", None, OverLimit(b" "));
    check("over_limit a\n", None, OverLimit(b"a"));
    check("over_limit a\r\n", None, OverLimit(b"a\r"));
    check("over_limit a b  c ", None, OverLimit(b"a b  c "));
    check("over_limit é\0", None, OverLimit("é\0".as_bytes()));
    check("78229 get_stats some-key", Some("78229"), GetStats(b"some-key"));
    check("get_stats \n", None, GetStats(b""));
    check("check_limit {}\n", None, CheckLimit(b"{}"));
    check("check_limit no json", None, CheckLimit(b"no json"));
    check("get_size", None, GetSize);
    check("0 get_size", Some("0"), GetSize);
    check("ping", None, Ping);
    check("000 ping", Some("000"), Ping);
    check("123456789012345678901 ping", Some("123456789012345678901"), Ping);
    check("0 over_limit 7 ping", Some("0"), OverLimit(b"7 ping"));
}

#[test]
fn unrecognised() {
    for datagram in ["", " ", "\n", "1", "1 ", "over_limit", "over_limit\n", "1 over_limit"] {
        check_ignored(datagram);
    }
    for datagram in ["ping ", "ping\n", "get_size ", "get_size\n", " ping", "PING", "pong"] {
        check_ignored(datagram);
    }
    for datagram in ["-1 ping", "+1 ping", "1.5 ping", "7 8 ping", "1  ping", "1\tping"] {
        check_ignored(datagram);
    }
    for datagram in ["1ping", "1a ping", "\u{661} ping", "Over_limit a", "over_limit\ta"] {
        check_ignored(datagram);
    }
    for datagram in ["over_limit a\n\n", "over_limit a\nb", "over_limit \na", "get_stats a\nb\n"] {
        check_ignored(datagram);
    }
    check_ignored("check_limit {\n}");
    check_ignored("over_limitx");
}

#[test]
fn length() {
    let mut datagram = b"over_limit ".to_vec();
    datagram.resize(1000, b'k');
    assert_eq!(
        parse(&datagram),
        Ok(Request { id: None, command: TextCommand::OverLimit(&datagram[11..]) })
    );
    datagram.push(b'\n');
    assert_eq!(parse(&datagram), Err(Ignored::TooLong));
    let digits = [b'7'; 995];
    let datagram = [&digits[..], b" ping"].concat();
    assert_eq!(parse(&datagram), Ok(Request { id: Some(&digits), command: TextCommand::Ping }));
    assert_eq!(parse(&[b'7'; 1001]), Err(Ignored::TooLong));
}

#[test]
fn reasons_are_labels() {
    let reasons = [Ignored::TooLong, Ignored::Unrecognised, Ignored::BadJson, Ignored::ControlByte];
    assert_eq!(
        reasons.map(Ignored::reason),
        ["too_long", "unrecognised", "bad_json", "control_byte"]
    );
}

/// Each command with any byte in any position: instead of what was there, or between.
#[test]
fn every_byte_in_every_position() {
    let commands = ["over_limit ws ip=1", "get_stats k", "check_limit {}", "get_size", "ping"];
    for command in commands {
        for prefix in ["", "7 ", "042 "] {
            for suffix in ["", "\n"] {
                let whole = [prefix, command, suffix].concat().into_bytes();
                same_as_model(&whole);
                for position in 0..=whole.len() {
                    for byte in 0..=255 {
                        let mut changed = whole.clone();
                        changed.insert(position, byte);
                        same_as_model(&changed);
                        if position < whole.len() {
                            changed.remove(position + 1);
                            same_as_model(&changed);
                        }
                    }
                    same_as_model(&whole[..position]);
                }
            }
        }
    }
}

const WORDS: &[&str] =
    &["over_limit", "get_stats", "check_limit", "get_size", "ping", " ", "\n", "7", "k"];

/// Datagrams made of pieces of the grammar in any order: close to requests, often none.
fn nearly_requests() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        8 => prop::sample::select(WORDS).prop_map(|word| word.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..4),
    ];
    prop::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn nearly_requests_are_read_as_the_grammar_says(datagram in nearly_requests()) {
        prop_assert_eq!(parse(&datagram), model(&datagram));
    }

    #[test]
    fn any_bytes_are_read_as_the_grammar_says(
        datagram in prop::collection::vec(any::<u8>(), 0..40)
    ) {
        prop_assert_eq!(parse(&datagram), model(&datagram));
    }
}
