//! The RESP door: a request is bytes and CR LF, and so is a reply. `<< closed` says that the
//! connection is over; `= name` goes on as a new client.
//!
//! `throttle.jsonl` has recorded conversations, one a line: `id`, the `command` if it is not
//! CL.THROTTLE, and `steps` with a moment `at` in nanoseconds after the beginning, `args` behind
//! the key, and the reply `ours`. Where that is not given, the reply is redis-cell's, `cell`, or
//! throttlecrab's, `crab`. Each is played twice, the second time with all requests of one moment in
//! one read.

use std::sync::Arc;

use serde_json::Value;
use tidegate::clock::Clock;
use tidegate::config::Config;
use tidegate::doors::resp::RespConversation;
use tidegate::limiter::Limiter;
use tidegate::records::Records;
use tidegate_wire::resp::request::request;

use super::notation::{escaped, unescaped};
use super::script::{Exchange, Line, Mismatch, Script, Step};
use super::{Adapter, config, entries, limiter, vectors};

const CLOSED: &str = "closed";

struct Door {
    config: Config,
    limiter: Arc<Limiter>,
    records: Arc<Records>,
    clock: Clock,
    client: RespConversation,
    /// Whether every client begins with an empty table.
    is_recorded: bool,
    /// Bytes of a read, at most.
    read_max: usize,
}

pub(super) fn open(settings: Option<&str>, clock: &Clock) -> Box<dyn Adapter> {
    open_with(usize::MAX, settings, clock)
}

fn open_with(read_max: usize, settings: Option<&str>, clock: &Clock) -> Box<dyn Adapter> {
    let config = config(settings.unwrap_or("[resp]\nlisten = '127.0.0.1:0'"));
    let limiter = limiter(config.rules.clone(), clock);
    let records = Records::beside(&limiter, 1_000);
    let client = client(&config, &limiter, &records, clock);
    let is_recorded = settings.is_none();
    let clock = clock.clone();
    Box::new(Door { config, limiter, records, clock, client, is_recorded, read_max })
}

/// Every conversation with one byte in each read: replies do not depend on where requests are cut.
#[test]
fn byte_by_byte() {
    for file in entries(&vectors().join("resp")) {
        let script = Script::of("resp", &file);
        let wrong = script.play(|settings, clock| open_with(1, settings, clock)).concat();
        assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    }
}

fn client(
    config: &Config,
    limiter: &Arc<Limiter>,
    records: &Arc<Records>,
    clock: &Clock,
) -> RespConversation {
    let table = config.file.resp.as_ref().expect("a [resp] table");
    RespConversation::open(limiter, records.clone(), table, clock.now()).expect("a client")
}

impl Adapter for Door {
    fn exchange(&mut self, exchange: &Exchange) -> Vec<Mismatch> {
        let mut sent = Vec::new();
        for line in &exchange.requests {
            sent.extend_from_slice(&unescaped(&line.text));
            sent.extend_from_slice(b"\r\n");
        }
        let mut got = Vec::new();
        let mut reads = sent.chunks(self.read_max);
        let is_open = reads.all(|read| self.client.say(read, self.clock.now(), &mut got));
        let mut got = escaped(&got);
        if !is_open {
            got.push_str(CLOSED);
        }
        let mut expected = String::new();
        for reply in exchange.replies.iter().filter(|reply| !reply.text.is_empty()) {
            let end = if reply.text == CLOSED { "" } else { "\\r\\n" };
            expected.push_str(&escaped(&unescaped(&reply.text)));
            expected.push_str(end);
        }
        let is_same = got == expected;
        let line = exchange.replies[0].number;
        (!is_same).then_some(Mismatch { line, expected, got }).into_iter().collect()
    }

    fn connect(&mut self, _: &str) {
        if self.is_recorded {
            self.limiter = limiter(self.config.rules.clone(), &self.clock);
        }
        self.client = client(&self.config, &self.limiter, &self.records, &self.clock);
    }
}

/// Reads recorded conversations.
pub(super) fn recorded(place: &str, text: &str) -> Script {
    let mut steps = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let vector: Value = serde_json::from_str(line).expect("JSON");
        let Some(recorded) = vector["steps"].as_array() else { continue };
        let command = vector["command"].as_str().unwrap_or("CL.THROTTLE");
        let line = |text: String| Line { number: at + 1, text };
        for is_together in [false, true] {
            steps.push(Step::Connect(line(vector["id"].as_str().expect("an id").to_owned())));
            let mut now = 0;
            for step in recorded {
                let moment = step["at"].as_u64().expect("a moment");
                if moment > now {
                    steps.push(Step::Pass(line(format!("+{}ns", moment - now))));
                    now = moment;
                }
                let (asked, reply) = (line(asked(command, step)), line(answered(step)));
                match steps.last_mut() {
                    Some(Step::Exchange(exchange)) if is_together => {
                        exchange.requests.push(asked);
                        exchange.replies.push(reply);
                    }
                    _ => steps.push(Step::Exchange(Exchange {
                        requests: vec![asked],
                        replies: vec![reply],
                    })),
                }
            }
        }
    }
    Script { place: place.to_owned(), settings: None, steps }
}

/// A recorded request, but for its last CR LF.
fn asked(command: &str, step: &Value) -> String {
    let texts = step["args"].as_array().expect("arguments").iter();
    let mut words = vec![command.as_bytes(), b"k"];
    words.extend(texts.map(|text| text.as_str().expect("text").as_bytes()));
    let mut bytes = Vec::new();
    request(&mut bytes, &words);
    escaped(bytes.strip_suffix(b"\r\n").expect("an end"))
}

/// A recorded reply, but for its last CR LF.
fn answered(step: &Value) -> String {
    let theirs = step.get("cell").or_else(|| step.get("crab"));
    match step.get("ours").or(theirs).expect("a reply") {
        Value::Array(numbers) => {
            let numbers = numbers.iter().map(|number| format!("\\r\\n:{number}"));
            format!("*5{}", numbers.collect::<String>())
        }
        error => format!("-{}", error.as_str().expect("a text")),
    }
}
