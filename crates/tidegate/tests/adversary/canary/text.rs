//! Canaries of the text door: each question is about a key that nobody used before, so every
//! figure in every reply is known. A datagram may be lost under a flood: then the canary tries
//! again with another key, for as long as the watchdog lets it.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::time::Duration;

use super::{Canary, Named, PER_LISTENER, Wrong, failed, same};
use crate::clock::Moment;
use crate::seed::Random;
use crate::server::{Doors, USES};

/// Questions beyond the limit.
const BEYOND: u64 = 2;
/// How long a datagram may take before it counts as lost.
const LOST_AFTER: Duration = Duration::from_secs(1);
/// The period of the rule in seconds: 300 days.
const PERIOD_S: u64 = 25_920_000;

pub(super) fn add(doors: &Doors, canaries: &mut Vec<Named>) {
    for number in 0..2 * PER_LISTENER {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
        socket.connect(doors.text).expect("an address");
        socket.set_read_timeout(Some(LOST_AFTER)).expect("a timeout");
        let name = format!("text-{number}");
        canaries.push((name.clone(), Box::new(Datagrams { socket, name, asked: 0 })));
    }
}

struct Datagrams {
    socket: UdpSocket,
    name: String,
    /// The last id; each is used once.
    asked: u64,
}

impl Datagrams {
    /// Sends one question; returns its id.
    fn send(&mut self, question: &str) -> Result<u64, Wrong> {
        self.asked += 1;
        let datagram = format!("{} {question}", self.asked);
        self.socket.send(datagram.as_bytes()).map_err(failed("send"))?;
        Ok(self.asked)
    }

    /// The reply to `id`, which is the oldest that is awaited; `None` if it was lost.
    fn reply(&self, id: u64) -> Result<Option<String>, Wrong> {
        let mut buffer = [0; 2048];
        loop {
            let count = match self.socket.recv(&mut buffer) {
                Ok(count) => count,
                Err(error)
                    if [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&error.kind()) =>
                {
                    return Ok(None);
                }
                Err(error) => return Err(failed("receive")(error)),
            };
            let reply = String::from_utf8_lossy(&buffer[..count]).into_owned();
            let Some((found, rest)) = reply.split_once(' ') else {
                return Err(format!("{reply:?} has no id"));
            };
            match found.parse::<u64>() {
                Ok(found) if found == id => return Ok(Some(rest.to_owned())),
                // Late, and given up already.
                Ok(found) if found < id => {}
                // A later one came: this one is lost.
                Ok(found) if found <= self.asked => return Ok(None),
                _ => return Err(format!("{reply:?} answers no question of {}", self.name)),
            }
        }
    }

    /// Asks for a new key until it is over; `false` if a datagram was lost.
    fn one_key(&mut self, random: &mut Random) -> Result<bool, Wrong> {
        let key = format!("canary-log {} {:016x}", self.name, random.next());
        let over_limit = format!("over_limit {key}");
        let at_once = random.one_in(2);
        let mut ids = Vec::new();
        for number in 0..USES + BEYOND {
            let id = self.send(&over_limit)?;
            ids.push((number, id));
            if !at_once && !self.is_right(&ids.split_off(0))? {
                return Ok(false);
            }
        }
        if !self.is_right(&ids)? {
            return Ok(false);
        }
        let id = self.send(&format!("get_stats {key}"))?;
        let Some(stats) = self.reply(id)? else { return Ok(false) };
        let start = format!("n_req={} n_over={BEYOND} last_max_rate=", USES + BEYOND);
        if !stats.starts_with(&start) || !stats.ends_with(&format!(" key={key}")) {
            return Err(format!("{stats:?} in place of {start}… key={key}"));
        }
        Ok(true)
    }

    /// Compares the replies to the uses `ids` of a key; `false` if one was lost.
    fn is_right(&self, ids: &[(u64, u64)]) -> Result<bool, Wrong> {
        for &(number, id) in ids {
            let Some(reply) = self.reply(id)? else { return Ok(false) };
            let over = if number < USES { 'N' } else { 'Y' };
            let expected = format!("ok {over} {}.0 {USES}.0 {PERIOD_S}", (number + 1).min(USES));
            same(&format!("use {number} of a new key"), reply, expected)?;
        }
        Ok(true)
    }
}

impl Canary for Datagrams {
    fn ask(&mut self, random: &mut Random) -> Result<(), Wrong> {
        let begun = Moment::now();
        while !self.one_key(random)? {
            if begun.is_overdue() {
                return Err("no reply, however often it is asked".to_owned());
            }
        }
        Ok(())
    }
}
