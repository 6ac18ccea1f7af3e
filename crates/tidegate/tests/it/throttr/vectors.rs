//! Golden conversations: `vectors/throttr/*.txt`, played without sockets on a clock that stands
//! still, at every value size, whole and one byte at a time.
//!
//! A file may open with settings between two `+++` lines: `sizes`, the value sizes to play it at
//! (all four), `max_value` and `max_records`. Then, one thing a line:
//!
//! - `>> bytes` sends; several in a row arrive in one read
//! - `<< bytes` is what must come back, one line for each `>>`; `<<` alone is nothing
//! - `<< close` ends the connection; what is sent behind it is not answered
//! - `= N` goes on with a new client of a listener of N bits, `=` of the same
//! - `@ +100ms` lets time pass; `@ wall -1h` steps the wall clock only
//! - `#` begins a remark
//!
//! Bytes are written as `0a`, `"text"`, `x*255` (so many x) or `00*7`; `n60` is a number of the
//! listener's size, `nmax` its largest and `nsize` its bytes, `u60` one of eight bytes. In replies
//! `??`, `?*16`, `n?` and `u?` stand for any bytes of that length.

use std::sync::Arc;

use tidegate::clock::Clock;
use tidegate::doors::throttr::{Conversation, ThrottrState};
use tidegate::metrics::Metrics;
use tidegate::records::{Records, Settings};
use tidegate_wire::throttr::ValueSize;

use crate::vectors::{START, each_file, pass};

#[test]
fn golden() {
    each_file("throttr", 10, |text| {
        let (mut wrong, mut expects) = (Vec::new(), true);
        let script = Script::read(text);
        for size in &script.sizes {
            for piecemeal in [false, true] {
                let replies = script.play(*size, piecemeal, |line, expected, got| {
                    let how = if piecemeal { "byte by byte" } else { "whole" };
                    wrong.push(format!(
                        "{line}: {size:?} {how}\n  expected {expected}\n  got      {got}"
                    ));
                });
                expects &= replies > 0;
            }
        }
        (wrong, expects)
    });
}

#[test]
fn a_wrong_vector_is_noticed() {
    let count = |text: &str| {
        let mut wrong = 0;
        Script::read(text).play(ValueSize::Bits16, false, |_, _, _| wrong += 1);
        wrong
    };
    assert_eq!(count(">> 02 00\n<< 00\n"), 0);
    assert_eq!(count(">> 02 00\n<< 01\n"), 1);
    assert_eq!(count(">> 02 00\n<<\n"), 1, "a reply too many");
    assert_eq!(count(">> 02 00\n<< 00 00\n"), 1, "a reply too few");
    assert_eq!(count(">> 02 00\n<< close\n"), 2, "answered, and still open");
    assert_eq!(count(">> ff\n<<\n"), 1, "closed without a word");
    assert_eq!(count(">> 18\n<< 01 ?*15\n"), 1);
    assert_eq!(count(">> 01 n1 04 n9 00\n>> 02 00\n<< 01\n<< 01 n1 04 n?\n"), 0);
}

struct Script<'t> {
    sizes: Vec<ValueSize>,
    max_value: usize,
    max_records: usize,
    lines: Vec<(usize, &'t str)>,
}

/// Some bytes, and which of them may be anything.
#[derive(Default)]
struct Pattern {
    bytes: Vec<Option<u8>>,
    close: bool,
}

impl<'t> Script<'t> {
    fn read(text: &'t str) -> Self {
        let mut script = Self {
            sizes: ValueSize::ALL.to_vec(),
            max_value: 64 << 10,
            max_records: 10_000,
            lines: Vec::new(),
        };
        let mut lines = text.lines().enumerate().map(|(at, line)| (at + 1, line)).peekable();
        if lines.next_if(|(_, line)| *line == "+++").is_some() {
            for (number, line) in lines.by_ref().take_while(|(_, line)| *line != "+++") {
                let (name, value) = line.split_once(" = ").expect("a setting");
                let settings = format!("line {number}: a number");
                match name {
                    "sizes" => {
                        let bits = value.trim_matches(['[', ']']).split(", ");
                        script.sizes = bits.map(size).collect();
                    }
                    "max_value" => script.max_value = value.parse().expect(&settings),
                    "max_records" => script.max_records = value.parse().expect(&settings),
                    other => panic!("line {number}: no such setting: {other}"),
                }
            }
        }
        script.lines.extend(lines);
        script
    }

    /// Plays it and tells `wrong` of every reply that is not as written. Returns how many replies
    /// were expected.
    fn play(
        &self,
        size: ValueSize,
        piecemeal: bool,
        mut wrong: impl FnMut(usize, &str, &str),
    ) -> usize {
        let mut player = Player::new(self, size);
        let mut expected = 0;
        let mut lines = self.lines.iter().peekable();
        while let Some(&(number, line)) = lines.next() {
            if let Some(request) = line.strip_prefix(">> ") {
                let mut sent = bytes(request, player.size);
                while let Some((_, more)) = lines.next_if(|(_, line)| line.starts_with(">>")) {
                    sent.extend(bytes(&more[3..], player.size));
                }
                let (got, closed) = player.say(&sent, piecemeal);
                let mut rest = got.as_slice();
                let mut close_expected = false;
                while let Some((_, reply)) = lines.next_if(|(_, line)| line.starts_with("<<")) {
                    expected += 1;
                    let reply = reply[2..].trim_start();
                    let pattern = pattern(reply, player.size);
                    close_expected |= pattern.close;
                    match pattern.strip_from(rest) {
                        Some(after) => rest = after,
                        None => {
                            wrong(number, reply, &hex(rest));
                            rest = &[];
                        }
                    }
                }
                if !rest.is_empty() {
                    wrong(number, "nothing more", &hex(rest));
                }
                if closed != close_expected {
                    wrong(number, "", if closed { "closed" } else { "still open" });
                }
            } else if let Some(step) = line.strip_prefix("@ ") {
                pass(&player.clock, step);
            } else if let Some(bits) = line.strip_prefix('=') {
                if !bits.is_empty() {
                    player.size = self::size(bits.trim());
                }
                player.connect();
            } else {
                assert!(line.is_empty() || line.starts_with('#'), "line {number}: {line:?}");
            }
        }
        expected
    }
}

struct Player {
    records: Arc<Records>,
    state: Arc<ThrottrState>,
    metrics: Arc<Metrics>,
    clock: Clock,
    max_value: usize,
    size: ValueSize,
    client: Conversation,
}

impl Player {
    fn new(script: &Script<'_>, size: ValueSize) -> Self {
        let settings = Settings { max_records: script.max_records, max_bytes: 64 << 20 };
        let records = Records::new(settings);
        let clock = Clock::manual(START);
        let state = ThrottrState::new(clock.clone());
        let metrics = Arc::new(Metrics::new());
        let max_value = script.max_value;
        let client = open(&records, &state, &metrics, size, max_value, &clock);
        Self { records, state, metrics, clock, max_value, size, client }
    }

    fn connect(&mut self) {
        let Self { records, state, metrics, clock, .. } = self;
        self.client = open(records, state, metrics, self.size, self.max_value, clock);
    }

    /// All replies, and whether the connection was closed.
    fn say(&mut self, sent: &[u8], piecemeal: bool) -> (Vec<u8>, bool) {
        let now = self.clock.now();
        let mut replies = Vec::new();
        let pieces = sent.chunks(if piecemeal { 1 } else { sent.len().max(1) });
        let open = pieces.into_iter().all(|piece| self.client.say(piece, now, &mut replies));
        (replies, !open)
    }
}

fn open(
    records: &Arc<Records>,
    state: &Arc<ThrottrState>,
    metrics: &Arc<Metrics>,
    size: ValueSize,
    max_value: usize,
    clock: &Clock,
) -> Conversation {
    let (records, state, metrics) = (records.clone(), state.clone(), metrics.clone());
    Conversation::open(records, state, metrics, size, max_value, clock.now()).expect("a client")
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

fn size(bits: &str) -> ValueSize {
    bits.parse::<u8>().ok().and_then(|bits| bits.try_into().ok()).expect("a value size")
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
