//! What a file of golden vectors says: its settings and its steps, read from text.

use std::path::Path;

use super::resp;

/// What a file says.
pub(super) struct Script {
    /// The door and the file.
    pub(super) place: String,
    pub(super) settings: Option<String>,
    pub(super) steps: Vec<Step>,
}

pub(super) enum Step {
    Exchange(Exchange),
    Connect(Line),
    Pass(Line),
}

/// Requests that arrive together, and what must come back.
#[derive(Default)]
pub(super) struct Exchange {
    pub(super) requests: Vec<Line>,
    pub(super) replies: Vec<Line>,
}

/// What stands behind the mark of a line.
pub(super) struct Line {
    pub(super) number: usize,
    pub(super) text: String,
}

/// A reply that is not as written.
pub(super) struct Mismatch {
    pub(super) line: usize,
    pub(super) expected: String,
    pub(super) got: String,
}

impl Line {
    pub(super) fn mismatch(&self, got: String) -> Mismatch {
        Mismatch { line: self.number, expected: self.text.clone(), got }
    }
}

impl Script {
    pub(super) fn of(door: &str, file: &Path) -> Self {
        let name = file.file_name().expect("a name").to_string_lossy();
        let place = format!("{door}/{name}");
        let text = std::fs::read_to_string(file).expect("vectors are UTF-8");
        let script = match file.extension().and_then(|end| end.to_str()) {
            Some("txt") => Self::text(&place, &text),
            Some("jsonl") if door == "resp" => resp::recorded(&place, &text),
            _ => panic!("no adapter reads {place}"),
        };
        assert!(script.exchanges().next().is_some(), "{place} expects nothing");
        script
    }

    pub(super) fn text(place: &str, text: &str) -> Self {
        let settings = text.strip_prefix("+++\n").and_then(|rest| rest.split_once("\n+++\n"));
        let settings = settings.map(|(settings, _)| settings.to_owned());
        let first = settings.as_ref().map_or(0, |settings| settings.lines().count() + 2);
        let mut script = Self { place: place.to_owned(), settings, steps: Vec::new() };
        for (at, whole) in text.lines().enumerate().skip(first) {
            let number = at + 1;
            let line = |rest: &str| {
                let text = rest.strip_prefix(' ').unwrap_or(rest).to_owned();
                Line { number, text }
            };
            // An exchange that has no reply yet.
            let open = match script.steps.last_mut() {
                Some(Step::Exchange(exchange)) if exchange.replies.is_empty() => Some(exchange),
                _ => None,
            };
            if let Some(request) = whole.strip_prefix(">>") {
                match open {
                    Some(exchange) => exchange.requests.push(line(request)),
                    None => script.steps.push(Step::Exchange(Exchange {
                        requests: vec![line(request)],
                        replies: Vec::new(),
                    })),
                }
                continue;
            }
            if let Some(reply) = whole.strip_prefix("<<") {
                match script.steps.last_mut() {
                    Some(Step::Exchange(exchange)) => exchange.replies.push(line(reply)),
                    _ => panic!("{place}:{number}: a reply to nothing"),
                }
                continue;
            }
            assert!(open.is_none(), "{place}:{number}: replies are missing before it");
            if let Some(step) = whole.strip_prefix('@') {
                script.steps.push(Step::Pass(line(step)));
            } else if let Some(client) = whole.strip_prefix('=') {
                script.steps.push(Step::Connect(line(client)));
            } else {
                let remark = whole.is_empty() || whole.starts_with('#');
                assert!(remark, "{place}:{number}: {whole:?}");
            }
        }
        script
    }

    pub(super) fn exchanges(&self) -> impl Iterator<Item = &Exchange> {
        self.steps.iter().filter_map(|step| match step {
            Step::Exchange(exchange) => Some(exchange),
            _ => None,
        })
    }

    /// Changes one byte of the first reply of every exchange.
    pub(super) fn falsify(&mut self) {
        for step in &mut self.steps {
            let Step::Exchange(exchange) = step else { continue };
            let text = &mut exchange.replies[0].text;
            match text.find(|c: char| c.is_ascii_digit()) {
                Some(at) => {
                    let other = if text[at..].starts_with('0') { "1" } else { "0" };
                    text.replace_range(at..=at, other);
                }
                None => text.push_str(" 00"),
            }
        }
    }
}
