//! Canaries of the Smockron door: gatekeepers with a domain of their own, on two raw ZeroMQ
//! connections. Each client they tell of is new and must be delayed by an hour.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read as _, Write as _};
use std::time::Duration;

use super::{Canary, Named, PER_LISTENER, Wrong, failed};
use crate::clock::{Moment, unix_ms};
use crate::hostile::smockron::{accepted, greeting, ready, subscribe};
use crate::net::Stream;
use crate::seed::Random;
use crate::server::{DELAY_MS, Doors};

/// A message may be lost, while a subscription is under way for one: then others are sent.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Clients told of at once.
const TOLD_MAX: usize = 8;

pub(super) fn add(doors: &Doors, canaries: &mut Vec<Named>) {
    for number in 0..PER_LISTENER {
        let domain = format!("bird{number}");
        let gatekeeper =
            Gatekeeper { doors: doors.clone(), domain: domain.clone(), link: None, told: 0 };
        canaries.push((format!("smockron-{domain}"), Box::new(gatekeeper)));
    }
}

struct Gatekeeper {
    doors: Doors,
    domain: String,
    link: Option<Link>,
    /// Clients so far; each is told of once.
    told: u64,
}

struct Link {
    accounting: Stream,
    control: Stream,
    input: Vec<u8>,
    /// Clients whose delay is awaited, and when each was told of.
    awaited: VecDeque<(String, u64)>,
}

impl Link {
    fn open(doors: &Doors, domain: &str) -> Result<Self, Wrong> {
        let open = |address, kind, more: &[u8]| {
            let mut stream = Stream::connect(&Into::into(address))?;
            stream.patience(AGAIN_AFTER)?;
            stream.write_all(&[&greeting()[..], &ready(kind), more].concat())?;
            Ok(stream)
        };
        let accounting = open(doors.accounting, "PUB", &[]).map_err(failed("accounting"))?;
        let topic = subscribe(&format!("{domain}\0"));
        let control = open(doors.control, "SUB", &topic).map_err(failed("control"))?;
        Ok(Self { accounting, control, input: Vec::new(), awaited: VecDeque::new() })
    }

    /// Reads more; `false` if nothing came for a while.
    fn read(&mut self) -> Result<bool, Wrong> {
        let mut buffer = [0; 4096];
        match self.control.read(&mut buffer) {
            Ok(0) => Err("control was closed".to_owned()),
            Ok(count) => {
                self.input.extend_from_slice(&buffer[..count]);
                Ok(true)
            }
            Err(error) if [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&error.kind()) => {
                Ok(false)
            }
            Err(error) => Err(failed("control")(error)),
        }
    }

    /// The next whole message, if it is here: its frames.
    fn message(&mut self) -> Option<Vec<Vec<u8>>> {
        const GREETING_BYTES: usize = 64;
        if self.input.first() == Some(&0xff) {
            if self.input.len() < GREETING_BYTES {
                return None;
            }
            self.input.drain(..GREETING_BYTES);
        }
        let (mut at, mut frames) = (0, Vec::new());
        loop {
            let &[flags, length, ..] = self.input.get(at..)? else { return None };
            let (length, head) = if flags & 2 == 0 {
                (usize::from(length), 2)
            } else {
                let bytes = self.input.get(at + 1..at + 9)?.try_into().expect("eight bytes");
                (usize::try_from(u64::from_be_bytes(bytes)).expect("a length"), 9)
            };
            let body = self.input.get(at + head..at + head + length)?.to_vec();
            at += head + length;
            // A command is about the connection, not for the gatekeeper.
            if flags & 4 == 0 {
                frames.push(body);
            }
            if flags & 1 == 0 {
                self.input.drain(..at);
                if !frames.is_empty() {
                    return Some(frames);
                }
                at = 0;
            }
        }
    }
}

impl Gatekeeper {
    fn tell(&mut self, link: &mut Link, count: usize) -> Result<(), Wrong> {
        let mut messages = Vec::new();
        for _ in 0..count {
            self.told += 1;
            let (client, now) = (format!("{}-client-{}", self.domain, self.told), unix_ms());
            messages.extend_from_slice(&accepted(&self.domain, &client, now));
            link.awaited.push_back((client, now));
        }
        link.accounting.write_all(&messages).map_err(failed("accounting"))
    }

    /// Compares a message with the oldest client that it can be about.
    fn heard(&self, link: &mut Link, frames: &[Vec<u8>]) -> Result<(), Wrong> {
        let text = |frame: &Vec<u8>| String::from_utf8_lossy(frame).into_owned();
        let shown: Vec<String> = frames.iter().map(text).collect();
        let [domain, command, client, at] = &shown[..] else {
            return Err(format!("{shown:?} has other than four frames"));
        };
        if *domain != format!("{}\0", self.domain) || command != "DELAY_UNTIL" {
            return Err(format!("{shown:?} is not for {}", self.domain));
        }
        let Some(place) = link.awaited.iter().position(|(name, _)| name == client) else {
            return Err(format!("{shown:?} is about nobody whom {} told of", self.domain));
        };
        let (_, told_at) = link.awaited.drain(..=place).next_back().expect("it is there");
        let allowed = told_at + DELAY_MS..=unix_ms() + DELAY_MS + 1;
        match at.parse::<u64>() {
            Ok(at) if allowed.contains(&at) => Ok(()),
            _ => Err(format!("{shown:?} in place of a time in {allowed:?}")),
        }
    }
}

impl Canary for Gatekeeper {
    fn ask(&mut self, random: &mut Random) -> Result<(), Wrong> {
        let begun = Moment::now();
        let mut link = match self.link.take() {
            Some(link) => link,
            None => Link::open(&self.doors, &self.domain)?,
        };
        let count = 1 + random.below(TOLD_MAX);
        self.tell(&mut link, count)?;
        while !link.awaited.is_empty() {
            while let Some(frames) = link.message() {
                self.heard(&mut link, &frames)?;
            }
            if link.awaited.is_empty() || link.read()? {
                continue;
            }
            if begun.is_overdue() {
                return Err(format!("{} clients were never delayed", link.awaited.len()));
            }
            self.tell(&mut link, 1)?;
        }
        self.link = Some(link);
        Ok(())
    }
}
