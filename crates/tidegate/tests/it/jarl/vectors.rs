//! Golden conversations: `vectors/jarl/*.txt`, played without sockets on a clock that stands still.
//!
//! A file opens with its configuration between two `+++` lines. Then, one thing a line:
//!
//! - `>> service` is a caller of that service, who connects and sends nothing
//! - `<< answer` is what it must be told; `<<` alone is no answer
//! - `@ +100ms` lets time pass; `@ wall -1h` steps the wall clock only
//! - `#` begins a remark

use std::collections::HashMap;
use std::sync::Arc;

use tidegate::clock::Clock;
use tidegate::config::Config;
use tidegate::doors::jarl::JarlHandler;
use tidegate::limiter::Limiter;
use tidegate::metrics::{Door, Metrics};
use tidegate::stores::memory;

use crate::vectors::{START, each_file, front, pass};

const MEMORY: memory::Settings = memory::Settings { max_keys: 1_000, max_bytes: 64 << 20 };

#[test]
fn golden() {
    each_file("jarl", 4, |text| {
        let mut wrong = Vec::new();
        let answers = play(text, |line, expected, got| {
            wrong.push(format!("{line}: expected {expected}, got {got}"));
        });
        (wrong, answers > 0)
    });
}

#[test]
fn a_wrong_vector_is_noticed() {
    let text = "+++\n[[jarl]]\nservice = 'a'\nlisten = '127.0.0.1:0'\nlimit = '1/s'\n+++\n\
                >> a\n<< 0.0\n>> a\n<< 2.000\n>> a\n<<\n";
    let mut wrong = Vec::new();
    assert_eq!(play(text, |line, _, got| wrong.push((line, got.to_owned()))), 3);
    assert_eq!(wrong, [(8, "0.000".to_owned()), (12, "3.000".to_owned())]);
}

/// Plays one file and tells `wrong` of every answer that is not as written. Returns how many
/// answers, or silences, were expected.
fn play(text: &str, mut wrong: impl FnMut(usize, &str, &str)) -> usize {
    let (toml, first) = front(text).expect("a configuration");
    let config = Config::parse("front matter", toml).unwrap_or_else(|wrong| panic!("{wrong}"));
    let clock = Clock::manual(START);
    let limiter = Limiter::new(clock.clone(), Arc::new(Metrics::new()), config.rules, MEMORY);
    let handler =
        |service: &str| JarlHandler::new(limiter.handle(Door::Jarl), service).expect("an eventfd");
    let mut handlers: HashMap<&str, JarlHandler> = config
        .file
        .jarl
        .iter()
        .map(|door| (door.service.get_ref().as_str(), handler(door.service.get_ref())))
        .collect();
    let mut expected = 0;
    let mut told = None;
    for (at, line) in text.lines().enumerate().skip(first) {
        if let Some(service) = line.strip_prefix(">> ") {
            assert!(told.is_none(), "line {at}: an answer is missing");
            let handler = handlers.get_mut(service).expect("a service of the file");
            let mut answer = String::new();
            let text = |bytes: &[u8]| answer.push_str(str::from_utf8(bytes).expect("text"));
            // A service whose rule this door cannot ask answers nothing.
            let _ = handler.answer(1, clock.now(), text);
            told = Some(answer);
        } else if let Some(answer) = line.strip_prefix("<<") {
            let told = told.take().unwrap_or_else(|| panic!("line {at}: an answer to nothing"));
            if told != answer.trim_start() {
                wrong(at + 1, answer.trim_start(), &told);
            }
            expected += 1;
        } else if let Some(step) = line.strip_prefix("@ ") {
            pass(&clock, step);
        } else {
            assert!(line.is_empty() || line.starts_with('#'), "line {at}: {line:?}");
        }
    }
    assert!(told.is_none(), "an answer is missing at the end");
    expected
}
