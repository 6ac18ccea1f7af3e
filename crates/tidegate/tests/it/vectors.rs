//! Golden conversations: `vectors/text/*.txt`, played without sockets on a clock that stands still.
//!
//! A file may open with its configuration between two `+++` lines; without it the built-in rules
//! hold. Then, one thing a line:
//!
//! - `>> request` sends a datagram; several in a row arrive in one batch
//! - `<< reply` is what must come back, one line for each request; `<<` alone is no reply
//! - `@ +100ms` lets time pass; `@ wall -1h` steps the wall clock only
//! - `#` begins a remark
//!
//! `\n`, `\\` and `\xNN` write bytes that would not survive an editor, and `{N}` in a reply stands
//! for any number. The wall clock starts at the beginning of a statistics bucket.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidegate::clock::Clock;
use tidegate::config::Config;
use tidegate::doors::text::TextHandler;
use tidegate::limiter::Limiter;
use tidegate::metrics::{Door, Metrics};
use tidegate::stores::memory;
use tidegate_core::time::{DAY, HOUR, MILLISECOND, MINUTE, SECOND};
use tidegate_core::{Nanos, Now};

/// A moment at which a bucket of 300 seconds begins.
pub(crate) const START: Now = Now { mono: 1_000 * SECOND, unix: 1_700_000_100 * SECOND };

/// The table that `get_size` talks about.
const MEMORY: memory::Settings = memory::Settings { max_keys: 10_000, max_bytes: 64 << 20 };

/// Plays every file of a door, of which there are so many at least. `play` tells what is not as it
/// is written, each beginning with its line, and whether anything was expected at all.
pub(crate) fn each_file(
    door: &str,
    least: usize,
    mut play: impl FnMut(&str) -> (Vec<String>, bool),
) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors").join(door);
    let mut files: Vec<PathBuf> = std::fs::read_dir(&folder)
        .expect("the vectors are there")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    files.sort();
    assert!(files.len() >= least, "only {} files in {}", files.len(), folder.display());
    let mut all = Vec::new();
    for file in &files {
        let text = std::fs::read_to_string(file).expect("vectors are UTF-8");
        let name = file.file_name().expect("a name").to_string_lossy();
        let (wrong, expects) = play(&text);
        assert!(expects, "{name} expects nothing");
        all.extend(wrong.into_iter().map(|what| format!("{name}:{what}")));
    }
    assert!(all.is_empty(), "\n{}", all.join("\n"));
}

/// What a file opens with, between two `+++` lines, and how many lines that takes.
pub(crate) fn front(text: &str) -> Option<(&str, usize)> {
    let (toml, _) = text.strip_prefix("+++\n")?.split_once("\n+++\n")?;
    Some((toml, toml.lines().count() + 2))
}

#[test]
fn text() {
    each_file("text", 8, |text| {
        let mut wrong = Vec::new();
        let replies = play(text, |line, asked, expected, got| {
            wrong.push(format!("{line}: {asked}\n  expected {expected}\n  got      {got}"));
        });
        (wrong, replies > 0)
    });
}

#[test]
fn a_wrong_vector_is_noticed() {
    let mut wrong = 0;
    play(">> ping\n<< gnop\n>> ping\n<<\n>> pong\n<< pong\n>> ping\n<< pong\n", |_, _, _, _| {
        wrong += 1;
    });
    assert_eq!(wrong, 3);
}

/// Plays one file and tells `wrong` of every reply that is not as written. Returns how many
/// replies, or silences, were expected.
fn play(text: &str, mut wrong: impl FnMut(usize, &str, &str, &str)) -> usize {
    let (config, first) = match front(text) {
        Some((toml, first)) => {
            let whole = format!("{toml}\n[text]\nlisten = \"127.0.0.1:0\"\n");
            (Config::parse("front matter", &whole), first)
        }
        None => (tidegate::config::Source::BuiltIn.load(), 0),
    };
    let config = config.unwrap_or_else(|problems| panic!("{problems}"));
    let clock = Clock::manual(START);
    let metrics = Arc::new(Metrics::new());
    let limiter = Limiter::new(clock.clone(), metrics, config.rules, MEMORY);
    let mut handler = TextHandler::new(limiter.handle(Door::Text)).expect("a notifier");

    let mut expected = 0;
    let mut batch: Vec<(usize, &str)> = Vec::new();
    let mut answers: Vec<String> = Vec::new();
    for (at, line) in text.lines().enumerate().skip(first) {
        let number = at + 1;
        if let Some(request) = line.strip_prefix(">> ") {
            assert!(answers.is_empty(), "line {number}: replies are missing before it");
            batch.push((number, request));
        } else if let Some(reply) = line.strip_prefix("<<") {
            if answers.is_empty() {
                assert!(!batch.is_empty(), "line {number}: a reply to nothing");
                answers = ask(&mut handler, &batch);
                answers.reverse();
            }
            let got = answers.pop().unwrap_or_default();
            let (sent_at, asked) = batch.remove(0);
            let reply = reply.strip_prefix(' ').unwrap_or(reply);
            if !matches(reply, &got) {
                wrong(sent_at, asked, reply, &got);
            }
            expected += 1;
        } else {
            assert!(batch.is_empty(), "line {number}: replies are missing before it");
            if let Some(step) = line.strip_prefix("@ ") {
                pass(&clock, step);
            } else {
                assert!(line.is_empty() || line.starts_with('#'), "line {number}: {line:?}");
            }
        }
    }
    assert!(batch.is_empty(), "replies are missing at the end");
    expected
}

/// The replies to one batch, escaped, empty where there is none.
fn ask(handler: &mut TextHandler<()>, batch: &[(usize, &str)]) -> Vec<String> {
    let packets: Vec<Vec<u8>> = batch.iter().map(|(_, request)| bytes(request)).collect();
    let packets: Vec<&[u8]> = packets.iter().map(Vec::as_slice).collect();
    let mut answers = vec![String::new(); packets.len()];
    for (packet, reply) in handler.on_datagrams(&packets, |_| (), |()| true).iter() {
        assert!(answers[packet].is_empty(), "two replies to one request");
        answers[packet] = escaped(reply);
    }
    answers
}

fn bytes(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = text.as_bytes();
    while let [byte, after @ ..] = rest {
        rest = after;
        match (byte, after) {
            (b'\\', [b'n', after @ ..]) => (out.push(b'\n'), rest = after).0,
            (b'\\', [b'\\', after @ ..]) => (out.push(b'\\'), rest = after).0,
            (b'\\', [b'x', high, low, after @ ..]) => {
                let hex = [*high, *low];
                let hex = std::str::from_utf8(&hex).expect("two digits");
                out.push(u8::from_str_radix(hex, 16).expect("two hexadecimal digits"));
                rest = after;
            }
            _ => out.push(*byte),
        }
    }
    out
}

fn escaped(bytes: &[u8]) -> String {
    let mut out = String::new();
    for &byte in bytes {
        match byte {
            b'\n' => out.push_str("\\n"),
            b'\\' => out.push_str("\\\\"),
            0x20..=0x7e => out.push(char::from(byte)),
            _ => out.push_str(&format!("\\x{byte:02x}")),
        }
    }
    out
}

/// Whether `got` is `expected`, where `{N}` stands for any number.
fn matches(expected: &str, got: &str) -> bool {
    let mut parts = expected.split("{N}");
    let Some(mut rest) = parts.next().and_then(|first| got.strip_prefix(first)) else {
        return false;
    };
    for part in parts {
        let after = rest.trim_start_matches(|c: char| c.is_ascii_digit());
        let Some(next) = after.strip_prefix(part).filter(|_| after.len() < rest.len()) else {
            return false;
        };
        rest = next;
    }
    rest.is_empty()
}

/// Moves the clock as an `@` line says.
pub(crate) fn pass(clock: &Clock, step: &str) {
    let wall = step.strip_prefix("wall ");
    let signed = wall.unwrap_or(step);
    let back = signed.starts_with('-');
    let span = span(signed.trim_start_matches(['+', '-']));
    match wall {
        None => {
            assert!(!back, "time does not run backwards: {step}");
            clock.advance(span);
        }
        Some(_) if back => clock.set_unix(clock.now().unix - span),
        Some(_) => clock.set_unix(clock.now().unix + span),
    }
}

fn span(text: &str) -> Nanos {
    let digits = text.find(|c: char| !c.is_ascii_digit()).expect("a unit");
    let unit = match &text[digits..] {
        "ns" => 1,
        "ms" => MILLISECOND,
        "s" => SECOND,
        "m" => MINUTE,
        "h" => HOUR,
        "d" => DAY,
        other => panic!("no such unit: {other}"),
    };
    text[..digits].parse::<Nanos>().expect("a number") * unit
}
