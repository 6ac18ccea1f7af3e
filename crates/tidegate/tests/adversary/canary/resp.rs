//! Canaries of the RESP door: each question is about a key that no other client has, so that every
//! number in every reply is known; and text that comes back as it was sent.

use std::io::{Read as _, Write as _};

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
            let canary = Pipelines { address, stream: None, name: name.clone(), keys: 0 };
            canaries.push((name, Box::new(canary)));
        }
    }
}

struct Pipelines {
    address: crate::net::Address,
    stream: Option<Stream>,
    name: String,
    /// Asked for on this connection.
    keys: usize,
}

impl Pipelines {
    /// Sends requests and compares what comes back.
    fn exchange(&mut self, what: &str, sent: &[u8], expected: &str) -> Result<(), Wrong> {
        if self.stream.is_none() {
            let stream = Stream::connect(&self.address).map_err(failed("connect"))?;
            stream.patience(WATCHDOG).map_err(failed("patience"))?;
            self.stream = Some(stream);
        }
        let Some(stream) = &mut self.stream else { return Ok(()) };
        stream.write_all(sent).map_err(failed("send"))?;
        let mut replies = vec![0; expected.len()];
        stream.read_exact(&mut replies).map_err(failed(what))?;
        let replies = String::from_utf8_lossy(&replies);
        for (found, wanted) in replies.split_inclusive('\n').zip(expected.split_inclusive('\n')) {
            if !is_near(found, wanted) {
                same(what, found, wanted)?;
            }
        }
        Ok(())
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

/// Whether a line is a time that has run on for as long as a canary may wait.
fn is_near(found: &str, wanted: &str) -> bool {
    let number = |line: &str| line.strip_prefix(':')?.trim_end().parse::<u64>().ok();
    let (Some(found), Some(wanted)) = (number(found), number(wanted)) else { return false };
    wanted >= PERIOD_S && (wanted - DELAY_MAX_S..=wanted).contains(&found)
}

impl Canary for Pipelines {
    fn ask(&mut self, random: &mut Random) -> Result<(), Wrong> {
        self.keys += 1;
        if self.keys > KEYS_MAX {
            (self.stream, self.keys) = (None, 0);
        }
        if random.one_in(3) { self.echo(random) } else { self.one_key(random) }
    }
}
