//! Canaries of the RESP door: each question is about a key that no other client has, so that every
//! number in every reply is known; and text that comes back as it was sent. Half of them speak
//! RESP3.

use std::io::{BufRead as _, BufReader, Write as _};

use tidegate_wire::resp::request::request;

use super::{Canary, Named, PER_LISTENER, Wrong, failed, same};
use crate::clock::WATCHDOG;
use crate::net::Stream;
use crate::seed::Random;
use crate::server::{Doors, USES};

/// Questions beyond the limit.
const BEYOND: u64 = 2;
/// The period of the requests' own limit in seconds: 300 days.
const PERIOD_S: u64 = 25_920_000;
/// Seconds that may pass between a question and its answer.
const DELAY_MAX_S: u64 = 300;
/// Keys that one connection asks for before it is opened anew.
const KEYS_MAX: usize = 20;

pub(super) fn add(doors: &Doors, canaries: &mut Vec<Named>) {
    for (at, address) in doors.resp.iter().enumerate() {
        for number in 0..PER_LISTENER {
            let name = format!("resp-{at}-{number}");
            let address = address.clone();
            let is_resp3 = number % 2 == 1;
            let canary = Pipelines { address, stream: None, name: name.clone(), is_resp3, keys: 0 };
            canaries.push((name, Box::new(canary)));
        }
    }
}

struct Pipelines {
    address: crate::net::Address,
    stream: Option<BufReader<Stream>>,
    name: String,
    is_resp3: bool,
    /// Asked for on this connection.
    keys: usize,
}

impl Pipelines {
    /// Sends requests and compares what comes back.
    fn exchange(&mut self, what: &str, sent: &[u8], expected: &str) -> Result<(), Wrong> {
        if self.stream.is_none() {
            self.connect()?;
        }
        let Some(stream) = &mut self.stream else { return Ok(()) };
        stream.get_mut().write_all(sent).map_err(failed("send"))?;
        for wanted in expected.split_inclusive('\n') {
            let found = line(stream, what)?;
            if !is_near(&found, wanted) {
                same(what, found.as_str(), wanted)?;
            }
        }
        Ok(())
    }

    fn connect(&mut self) -> Result<(), Wrong> {
        let stream = Stream::connect(&self.address).map_err(failed("connect"))?;
        stream.patience(WATCHDOG).map_err(failed("patience"))?;
        let mut stream = BufReader::new(stream);
        if self.is_resp3 {
            stream.get_mut().write_all(b"HELLO 3\r\nPING\r\n").map_err(failed("send"))?;
            same("a greeting", line(&mut stream, "a greeting")?.as_str(), "%8\r\n")?;
            while line(&mut stream, "a greeting")? != "+PONG\r\n" {}
        }
        self.stream = Some(stream);
        Ok(())
    }

    fn boolean(&self, value: bool) -> &'static str {
        match (self.is_resp3, value) {
            (true, true) => "#t",
            (true, false) => "#f",
            (false, true) => ":1",
            (false, false) => ":0",
        }
    }

    /// Uses a new key of a rule beyond its limit.
    fn one_key_of_a_rule(&mut self, random: &mut Random) -> Result<(), Wrong> {
        let key = format!("canary {} {:016x}", self.name, random.next());
        let (mut sent, mut expected) = (Vec::new(), String::new());
        for number in 1..=USES + BEYOND {
            request(&mut sent, &[b"TG.CHECK", key.as_bytes()]);
            let left = format!(":{}", USES.saturating_sub(number));
            let (allowed, later) = match number > USES {
                true => (false, LATER),
                false => (true, ":0"),
            };
            expected += if self.is_resp3 { "%8\r\n" } else { "*16\r\n" };
            for (name, value) in [
                ("allowed", self.boolean(allowed)),
                ("limit", &format!(":{USES}")),
                ("remaining", &left),
                ("retry_ms", later),
                ("reset_ms", LATER),
                ("delay_ms", later),
                ("rule", "$8\r\ncanary *"),
                ("degraded", self.boolean(false)),
            ] {
                expected += &format!("${}\r\n{name}\r\n{value}\r\n", name.len());
            }
        }
        self.exchange("checks of a new key", &sent, &expected)
    }

    /// Counts by a new counter, at once or in a transaction, and deletes it.
    fn counter(&mut self, random: &mut Random) -> Result<(), Wrong> {
        let key = format!("{} {:016x}", self.name, random.next());
        let count = 1 + random.below(20);
        let (mut sent, mut replies) = (Vec::new(), String::new());
        for number in 1..=count {
            request(&mut sent, &[b"INCR", key.as_bytes()]);
            replies += &format!(":{number}\r\n");
        }
        for words in [&[b"EXPIRE", key.as_bytes(), b"3600"][..], &[b"GET", key.as_bytes()]] {
            request(&mut sent, words);
        }
        let digits = count.to_string();
        replies += &format!(":1\r\n${}\r\n{digits}\r\n", digits.len());
        if random.one_in(2) {
            let commands = count + 2;
            sent = [b"MULTI\r\n", sent.as_slice(), b"EXEC\r\n"].concat();
            let queued = "+QUEUED\r\n".repeat(commands);
            replies = format!("+OK\r\n{queued}*{commands}\r\n{replies}");
        }
        for words in [[b"DEL", key.as_bytes()], [b"GET", key.as_bytes()]] {
            request(&mut sent, &words);
        }
        replies += ":1\r\n";
        replies += if self.is_resp3 { "_\r\n" } else { "$-1\r\n" };
        self.exchange("a counter", &sent, &replies)
    }

    /// Uses a new key beyond its limit, at once or one after another.
    fn one_key(&mut self, random: &mut Random) -> Result<(), Wrong> {
        let key = format!("{} {:016x}", self.name, random.next());
        let (burst, period) = ((USES - 1).to_string(), PERIOD_S.to_string());
        let words = [b"CL.THROTTLE", key.as_bytes(), burst.as_bytes(), b"1", period.as_bytes()];
        let at_once = random.one_in(2);
        let (mut sent, mut expected) = (Vec::new(), String::new());
        for number in 1..=USES + BEYOND {
            request(&mut sent, &words);
            let used = number.min(USES);
            let (limited, retry) = match number > USES {
                true => (1, PERIOD_S.to_string()),
                false => (0, "-1".to_owned()),
            };
            let (left, reset) = (USES - used, used * PERIOD_S);
            expected +=
                &format!("*5\r\n:{limited}\r\n:{USES}\r\n:{left}\r\n:{retry}\r\n:{reset}\r\n");
            if !at_once {
                self.exchange("a use of a new key", &sent, &expected)?;
                (sent, expected) = (Vec::new(), String::new());
            }
        }
        self.exchange("uses of a new key", &sent, &expected)
    }

    /// Sends text, among it what would be a reply, and expects it back.
    fn echo(&mut self, random: &mut Random) -> Result<(), Wrong> {
        let text = format!("{}\r\n+OK\r\n{:016x}", self.name, random.next());
        let text = text.repeat(1 + random.below(200));
        let mut sent = Vec::new();
        request(&mut sent, &[b"ECHO", text.as_bytes()]);
        sent.extend_from_slice(b"PING\r\n");
        let expected = format!("${}\r\n{text}\r\n+PONG\r\n", text.len());
        self.exchange("an echo", &sent, &expected)
    }
}

/// A time in milliseconds, of at most the period of a rule, that is not over.
const LATER: &str = ":later";
const LATER_MAX_MS: u64 = PERIOD_S * 1000;

/// Reads a line with its end.
fn line(stream: &mut BufReader<Stream>, what: &str) -> Result<String, Wrong> {
    let mut line = Vec::new();
    stream.read_until(b'\n', &mut line).map_err(failed(what))?;
    Ok(String::from_utf8_lossy(&line).into_owned())
}

/// Whether a line is a time that has run on for as long as a canary may wait.
fn is_near(found: &str, wanted: &str) -> bool {
    let number = |line: &str| line.strip_prefix(':')?.trim_end().parse::<u64>().ok();
    if wanted.trim_end() == LATER {
        return number(found).is_some_and(|found| (1..=LATER_MAX_MS).contains(&found));
    }
    let (Some(found), Some(wanted)) = (number(found), number(wanted)) else { return false };
    wanted >= PERIOD_S && (wanted - DELAY_MAX_S..=wanted).contains(&found)
}

impl Canary for Pipelines {
    fn ask(&mut self, random: &mut Random) -> Result<(), Wrong> {
        self.keys += 1;
        if self.keys > KEYS_MAX {
            (self.stream, self.keys) = (None, 0);
        }
        match random.below(4) {
            0 => self.echo(random),
            1 => self.one_key_of_a_rule(random),
            2 => self.counter(random),
            _ => self.one_key(random),
        }
    }
}
