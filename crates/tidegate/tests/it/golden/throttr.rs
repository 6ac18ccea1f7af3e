//! The Throttr door at every value size, whole and one byte at a time.
//!
//! A file's settings are `sizes`, the value sizes to play it at (all four), `max_value` and
//! `max_records`. `<< close` ends the connection; what is sent behind it is not answered. `= N`
//! goes on with a new client of a listener of N bits, `=` of the same.
//!
//! Bytes are written as `0a`, `"text"`, `x*255` (so many x) or `00*7`; `n60` is a number of the
//! listener's size, `nmax` its largest and `nsize` its bytes, `u60` one of eight bytes. In replies
//! `??`, `?*16`, `n?` and `u?` stand for any bytes of that length.

use std::sync::Arc;

use serde::Deserialize;
use tidegate::clock::Clock;
use tidegate::doors::throttr::{Conversation, ThrottrState};
use tidegate::metrics::Metrics;
use tidegate::records::{Records, Settings};
use tidegate_wire::throttr::ValueSize;

use super::Adapter;
use super::script::{Exchange, Mismatch};

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct FileSettings {
    sizes: Vec<u8>,
    max_value: usize,
    max_records: usize,
}

impl Default for FileSettings {
    fn default() -> Self {
        Self { sizes: vec![8, 16, 32, 64], max_value: 64 << 10, max_records: 10_000 }
    }
}

pub(super) fn open(settings: Option<&str>, clock: &Clock) -> Box<dyn Adapter> {
    let settings: FileSettings = toml::from_str(settings.unwrap_or("")).expect("settings");
    let mut players = Vec::new();
    for &bits in &settings.sizes {
        for piecemeal in [false, true] {
            players.push(Player::new(&settings, clock, bits, piecemeal));
        }
    }
    Box::new(Players(players))
}

/// One player for each way to play the file; all play side by side on one clock.
struct Players(Vec<Player>);

impl Adapter for Players {
    fn exchange(&mut self, exchange: &Exchange) -> Vec<Mismatch> {
        self.0.iter_mut().flat_map(|player| player.exchange(exchange)).collect()
    }

    fn connect(&mut self, bits: &str) {
        for player in &mut self.0 {
            if !bits.is_empty() {
                player.size = size(bits.parse().expect("bits"));
            }
            player.client = player.open();
        }
    }
}

struct Player {
    records: Arc<Records>,
    state: Arc<ThrottrState>,
    metrics: Arc<Metrics>,
    clock: Clock,
    max_value: usize,
    size: ValueSize,
    /// Whether every byte comes by itself.
    piecemeal: bool,
    client: Option<Conversation>,
}

impl Player {
    fn new(settings: &FileSettings, clock: &Clock, bits: u8, piecemeal: bool) -> Self {
        let table = Settings { max_records: settings.max_records, max_bytes: 64 << 20 };
        let mut player = Self {
            records: Records::new(table),
            state: ThrottrState::new(clock.clone()),
            metrics: Arc::new(Metrics::new()),
            clock: clock.clone(),
            max_value: settings.max_value,
            size: size(bits),
            piecemeal,
            client: None,
        };
        player.client = player.open();
        player
    }

    fn open(&self) -> Option<Conversation> {
        let (records, state) = (self.records.clone(), self.state.clone());
        let (metrics, now) = (self.metrics.clone(), self.clock.now());
        Conversation::open(records, state, metrics, self.size, self.max_value, now).ok()
    }

    fn exchange(&mut self, exchange: &Exchange) -> Vec<Mismatch> {
        let sent: Vec<u8> =
            exchange.requests.iter().flat_map(|line| bytes(&line.text, self.size)).collect();
        let (got, closed) = self.say(&sent);
        let how = if self.piecemeal { "byte by byte" } else { "whole" };
        let mut wrong = Vec::new();
        let mut note = |line, expected: &str, got: String| {
            let expected = format!("{expected} ({:?}, {how})", self.size);
            wrong.push(Mismatch { line, expected, got });
        };
        let (mut rest, mut line, mut close_expected) = (got.as_slice(), 0, false);
        for reply in &exchange.replies {
            line = reply.number;
            let pattern = pattern(&reply.text, self.size);
            close_expected |= pattern.close;
            match pattern.strip_from(rest) {
                Some(after) => rest = after,
                None => note(line, &reply.text, hex(std::mem::take(&mut rest))),
            }
        }
        if !rest.is_empty() {
            note(line, "no more", hex(rest));
        }
        if closed != close_expected {
            let state = |closed| if closed { "closed" } else { "open" };
            note(line, state(close_expected), state(closed).to_owned());
        }
        wrong
    }

    /// All replies, and whether the connection was closed.
    fn say(&mut self, sent: &[u8]) -> (Vec<u8>, bool) {
        let now = self.clock.now();
        let client = self.client.as_mut().expect("a client");
        let mut replies = Vec::new();
        let pieces = sent.chunks(if self.piecemeal { 1 } else { sent.len().max(1) });
        let open = pieces.into_iter().all(|piece| client.say(piece, now, &mut replies));
        (replies, !open)
    }
}

/// Some bytes, and which of them may be anything.
#[derive(Default)]
struct Pattern {
    bytes: Vec<Option<u8>>,
    close: bool,
}

impl Pattern {
    /// What stands behind it, if `got` begins with it.
    fn strip_from<'g>(&self, got: &'g [u8]) -> Option<&'g [u8]> {
        let (front, rest) = got.split_at_checked(self.bytes.len())?;
        let same = |(byte, expected): (&u8, &Option<u8>)| expected.is_none_or(|one| one == *byte);
        front.iter().zip(&self.bytes).all(same).then_some(rest)
    }

    fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes.iter().map(|byte| Some(*byte)));
    }

    fn any(&mut self, count: usize) {
        self.bytes.resize(self.bytes.len() + count, None);
    }
}

fn size(bits: u8) -> ValueSize {
    bits.try_into().expect("a value size")
}

fn bytes(text: &str, size: ValueSize) -> Vec<u8> {
    let pattern = pattern(text, size);
    assert!(!pattern.close, "requests do not close: {text}");
    pattern.bytes.into_iter().map(|byte| byte.expect("requests are exact")).collect()
}

fn pattern(text: &str, size: ValueSize) -> Pattern {
    let mut pattern = Pattern::default();
    for token in text.split_whitespace() {
        let number = |digits: &str| match digits {
            "max" => size.max(),
            "size" => size.bytes() as u64,
            _ => digits.parse().unwrap_or_else(|_| panic!("no number: {token}")),
        };
        if token == "close" {
            pattern.close = true;
        } else if token == "??" {
            pattern.any(1);
        } else if let Some((what, count)) = token.split_once('*').filter(|_| token != "\"*\"") {
            let count: usize = count.parse().expect("a count");
            match what {
                "?" => pattern.any(count),
                "x" => pattern.push(&vec![b'x'; count]),
                pair => pattern.push(&vec![byte(pair); count]),
            }
        } else if let Some(quoted) = token.strip_prefix('"') {
            pattern.push(quoted.strip_suffix('"').expect("a closing quote").as_bytes());
        } else if let Some(digits) = token.strip_prefix('n') {
            match digits {
                "?" => pattern.any(size.bytes()),
                _ => {
                    let number = number(digits);
                    assert!(number <= size.max(), "{token} does not fit {size:?}");
                    pattern.push(&number.to_le_bytes()[..size.bytes()]);
                }
            }
        } else if let Some(digits) = token.strip_prefix('u') {
            match digits {
                "?" => pattern.any(8),
                _ => pattern.push(&number(digits).to_le_bytes()),
            }
        } else {
            pattern.push(&[byte(token)]);
        }
    }
    pattern
}

fn byte(pair: &str) -> u8 {
    assert_eq!(pair.len(), 2, "no byte: {pair}");
    u8::from_str_radix(pair, 16).unwrap_or_else(|_| panic!("no byte: {pair}"))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ")
}
