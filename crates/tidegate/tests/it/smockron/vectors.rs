//! Golden conversations: `vectors/smockron/*.txt`, played without sockets on a clock that stands
//! still.
//!
//! A file opens with its configuration between two `+++` lines. Then, one thing a line:
//!
//! - `>> web\0 | ACCEPTED | me | t+0 | | curl` is a message of a gatekeeper, its frames parted by
//!   bars; several in a row arrive in one batch
//! - `<< web\0 | DELAY_UNTIL | me | t+1000` is what must be published, in this order; `<<` alone
//!   says that nothing is
//! - `?? web me` asks for the key as another door would, and `!! yes` or `!! no 1000` is the
//!   answer, with the milliseconds until it would be another
//! - `@ +100ms` lets time pass; `@ wall -1h` steps the wall clock only
//! - `#` begins a remark
//!
//! `t+N` is a time in milliseconds after the beginning; `\0` and `\xNN` write bytes that would not
//! survive an editor. `x*300` is three hundred of them.

use std::sync::Arc;

use tidegate::clock::Clock;
use tidegate::config::Config;
use tidegate::doors::smockron::{Handler, Messages, Publish, Settings};
use tidegate::limiter::{Decision, Key, Limiter, LimiterHandle, Request};
use tidegate::metrics::{Door, Metrics};
use tidegate::stores::memory;
use tidegate_core::time::MILLISECOND;
use tidegate_wire::smockron::Frames;
use tokio::runtime::Builder;
use tokio::task::yield_now;

use crate::vectors::{START, each_file, front, pass};

const MEMORY: memory::Settings = memory::Settings { max_keys: 10_000, max_bytes: 64 << 20 };

#[test]
fn golden() {
    each_file("smockron", 6, |text| {
        let mut wrong = Vec::new();
        let expected = play(text, |line, expected, got| {
            wrong.push(format!("{line}:\n  expected {expected}\n  got      {got}"));
        });
        (wrong, expected > 0)
    });
}

#[test]
fn a_wrong_vector_is_noticed() {
    let text = "+++\n[smockron.domains]\nweb = '1/s burst 1'\n+++\n\
                >> web\\0 | ACCEPTED | me | t+0 |\n<<\n\
                >> web\\0 | ACCEPTED | you | t+0 |\n<< web\\0 | DELAY_UNTIL | you | t+999\n\
                >> web\\0 | REJECTED | you | t+0 |\n<< web\\0 | DELAY_UNTIL | you | t+1000\n\
                ?? web me\n!! yes\n?? web me\n!! no 1000\n";
    let mut wrong = Vec::new();
    assert_eq!(play(text, |line, _, _| wrong.push(line)), 5);
    assert_eq!(wrong, [6, 8, 10, 12]);
}

/// Messages that lie in memory.
struct Batch(Vec<Vec<Vec<u8>>>);

impl Messages for Batch {
    fn count(&self) -> usize {
        self.0.len()
    }

    fn frames<'a, 'r>(&'a self, index: usize, room: &'r mut [&'a [u8]]) -> &'r [&'a [u8]] {
        let mut count = 0;
        for (slot, frame) in room.iter_mut().zip(&self.0[index]) {
            *slot = frame;
            count += 1;
        }
        &room[..count]
    }
}

/// What was published, as files write it.
#[derive(Default)]
struct Published(Vec<String>);

impl Publish for Published {
    fn publish(&mut self, message: &Frames) -> bool {
        let frames: Vec<String> = message.iter().map(written).collect();
        self.0.push(frames.join(" | "));
        true
    }
}

fn start_ms() -> u64 {
    START.unix / MILLISECOND
}

fn written(frame: &[u8]) -> String {
    if let [first, .., last] = frame
        && frame.len() > 50
        && frame.iter().all(|byte| byte == first)
    {
        return format!("{}*{}", char::from(*last), frame.len());
    }
    let number = std::str::from_utf8(frame).ok().and_then(|text| text.parse::<u64>().ok());
    match number {
        // Nothing else in these files is a number as large.
        Some(ms) if ms >= start_ms() => format!("t+{}", ms - start_ms()),
        _ => frame.escape_ascii().to_string().replace("\\x00", "\\0"),
    }
}

fn bytes(text: &str) -> Vec<u8> {
    if let Some(span) = text.strip_prefix("t+") {
        let (whole, fraction) = span.split_once('.').map_or((span, ""), |(w, f)| (w, f));
        let ms = start_ms() + whole.parse::<u64>().expect("milliseconds");
        let point = if fraction.is_empty() { "" } else { "." };
        return format!("{ms}{point}{fraction}").into_bytes();
    }
    if let Some((byte, count)) = text.split_once('*')
        && let Ok(count) = count.parse::<usize>()
    {
        return byte.repeat(count).into_bytes();
    }
    let mut out = Vec::new();
    let mut rest = text.as_bytes();
    while let [byte, after @ ..] = rest {
        rest = after;
        match (byte, after) {
            (b'\\', [b'0', after @ ..]) => (out.push(0), rest = after).0,
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

fn message(line: &str) -> Vec<Vec<u8>> {
    // A bar at the end has an empty frame behind it.
    format!("{line} ").split(" |").map(|frame| bytes(frame.trim_matches(' '))).collect()
}

/// The answer of another door.
fn check(handle: &LimiterHandle, key: &str) -> String {
    let keys = [Key::take(key.as_bytes(), 1)];
    match handle.decide(&Request::all_or_nothing(&keys), handle.now(), None) {
        Ok(Decision::Ready(verdict)) if verdict.is_allowed() => "yes".to_owned(),
        Ok(Decision::Ready(verdict)) => format!("no {}", verdict.delay.div_ceil(MILLISECOND)),
        other => panic!("{other:?}"),
    }
}

/// Plays one file and tells `wrong` of everything that is not as written. Returns how many
/// expectations there were.
fn play(text: &str, mut wrong: impl FnMut(usize, &str, &str)) -> usize {
    let (toml, first) = front(text).expect("a configuration");
    let config = Config::parse("front matter", toml).unwrap_or_else(|wrong| panic!("{wrong}"));
    let clock = Clock::manual(START);
    let limiter = Limiter::new(clock.clone(), Arc::new(Metrics::new()), config.rules, MEMORY);
    let long_pairs = config.file.smockron.is_some_and(|door| door.long_pairs);
    let settings = Settings { long_pairs, ..Settings::default() };
    let mut handler = Handler::new(limiter.handle(Door::Smockron), settings);
    let other_door = limiter.handle(Door::Http);
    let runtime = Builder::new_current_thread().build().expect("a runtime");

    let (mut expected, mut batch, mut asked) = (0, Batch(Vec::new()), None);
    // What was published and is not yet expected.
    let mut open: Option<(usize, Vec<String>)> = None;
    let lines = text.lines().enumerate().skip(first).chain([(usize::MAX, "#")]);
    for (at, line) in lines {
        if let Some(reply) = line.strip_prefix("<<") {
            let (_, left) = open.get_or_insert_with(|| {
                let mut published = Published::default();
                let batch = std::mem::replace(&mut batch, Batch(Vec::new()));
                handler.take(&batch, clock.now(), &mut published);
                runtime.block_on(async {
                    while handler.is_walking() {
                        handler.publish_found(&mut published);
                        yield_now().await;
                    }
                });
                published.0.reverse();
                (at, published.0)
            });
            expected += 1;
            let reply = reply.trim();
            let got = if reply.is_empty() { left.last().cloned() } else { left.pop() };
            let got = got.unwrap_or_default();
            if got != reply {
                left.clear();
                wrong(at + 1, reply, &got);
            }
            continue;
        }
        if let Some((at, left)) = open.take().filter(|(_, left)| !left.is_empty()) {
            wrong(at + 1, "no more", &left.join(", "));
        }
        if let Some(frames) = line.strip_prefix(">> ") {
            batch.0.push(message(frames));
            continue;
        }
        assert!(batch.0.is_empty(), "line {at}: what is published is missing before it");
        if let Some(key) = line.strip_prefix("?? ") {
            asked = Some(check(&other_door, key));
        } else if let Some(answer) = line.strip_prefix("!! ") {
            expected += 1;
            let got = asked.take().expect("a question");
            if got != answer {
                wrong(at + 1, answer, &got);
            }
        } else if let Some(step) = line.strip_prefix("@ ") {
            pass(&clock, step);
        } else {
            assert!(line.is_empty() || line.starts_with('#'), "line {at}: {line:?}");
        }
    }
    expected
}
