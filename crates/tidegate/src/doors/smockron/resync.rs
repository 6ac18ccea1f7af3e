//! Gatekeepers that have just started ask who is delayed; the answer is a walk through all keys.
//!
//! One walk answers for all domains that were asked for before it began, so that a thousand
//! gatekeepers that start at once cost no more than one. What is asked for during a walk waits for
//! the next. A walk goes in pieces, between which messages are taken.

use std::collections::{HashMap, HashSet};

use tidegate_core::Now;
use tidegate_core::key::{KEY_BYTES_MAX, KeyBuilder};
use tidegate_wire::smockron::Control;

use super::corridor::at_ms;
use crate::limiter::{Limiter, Search};

/// The most domains that wait for a walk.
const DOMAINS_MAX: usize = 4096;
/// Cells of the table that a piece looks at; no more messages than that follow from it.
const CELLS: usize = 256;

/// Who asked.
#[derive(Default)]
pub(super) struct Resync {
    /// Domains that the next walk is for.
    waiting: HashSet<Box<[u8]>>,
    walk: Option<Walk>,
    identifier: Vec<u8>,
}

struct Walk {
    /// The domains as gatekeepers have them, by how keys have them.
    domains: HashMap<Box<[u8]>, Box<[u8]>>,
    search: Search,
}

impl Resync {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// Remembers that a domain was asked for; `false` if there is no room for it.
    pub(super) fn ask(&mut self, domain: &[u8]) -> bool {
        if self.waiting.contains(domain) {
            return true;
        }
        if self.waiting.len() == DOMAINS_MAX || domain.len() > KEY_BYTES_MAX {
            return false;
        }
        self.waiting.insert(domain.into())
    }

    pub(super) fn is_searching(&self) -> bool {
        self.walk.is_some() || !self.waiting.is_empty()
    }

    /// The domains that the next walk is for, as gatekeepers have them, by how keys have them:
    /// where it is another's business to walk.
    pub(super) fn take_waiting(&mut self) -> HashMap<Box<[u8]>, Box<[u8]>> {
        Walk::new(self.waiting.drain()).domains
    }

    /// One piece: begins a walk, goes on with it, or ends it.
    pub(super) fn step(&mut self, limiter: &Limiter, now: Now, mut tell: impl FnMut(Control<'_>)) {
        if self.walk.is_none() && !self.waiting.is_empty() {
            let walk = Walk::new(self.waiting.drain());
            walk.each(|domain| tell(Control::ResyncStart { domain }));
            self.walk = Some(walk);
            return;
        }
        let Some(walk) = &mut self.walk else { return };
        let Walk { domains, search } = walk;
        let identifier = &mut self.identifier;
        let asked = |key: &[u8]| split(key).is_some_and(|(domain, _)| domains.contains_key(domain));
        let done = limiter.find_delayed(search, CELLS, now, asked, |key, span| {
            let Some((domain, word)) = split(key) else { return };
            // Keys of other doors may have several entries: no gatekeeper has such a client.
            if let Some(domain) = domains.get(domain)
                && !word.contains(&b' ')
                && decode(word, identifier)
            {
                tell(Control::DelayUntil { domain, identifier, at_ms: at_ms(span, now) });
            }
        });
        if done {
            walk.each(|domain| tell(Control::ResyncDone { domain }));
            self.walk = None;
        }
    }
}

impl Walk {
    fn new(asked: impl Iterator<Item = Box<[u8]>>) -> Self {
        let mut key = Vec::new();
        let mut domains = HashMap::new();
        for domain in asked {
            if let Ok(encoded) = KeyBuilder::new(&mut key, &domain).finish() {
                domains.insert(encoded.into(), domain);
            }
        }
        Self { domains, search: Search::new() }
    }

    fn each(&self, tell: impl FnMut(&[u8])) {
        self.domains.values().map(|domain| &**domain).for_each(tell);
    }
}

/// The domain of a key, as keys have it, and what follows.
pub(super) fn split(key: &[u8]) -> Option<(&[u8], &[u8])> {
    let space = key.iter().position(|&byte| byte == b' ')?;
    Some((&key[..space], &key[space + 1..]))
}

/// Undoes what [`KeyBuilder`] did; `false` if it did not do it.
pub(super) fn decode(text: &[u8], out: &mut Vec<u8>) -> bool {
    out.clear();
    let mut rest = text;
    while let [byte, after @ ..] = rest {
        rest = after;
        if *byte != b'%' {
            out.push(*byte);
            continue;
        }
        let [high, low, after @ ..] = after else { return false };
        let digit = |byte: &u8| char::from(*byte).to_digit(16);
        let (Some(high), Some(low)) = (digit(high), digit(low)) else { return false };
        out.push((high * 16 + low) as u8);
        rest = after;
    }
    true
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn identifiers_come_back_as_they_were(text in prop::collection::vec(any::<u8>(), 0..40)) {
            let mut key = Vec::new();
            let key = KeyBuilder::new(&mut key, b"d").word(&text).finish().unwrap();
            let mut out = Vec::new();
            prop_assert!(decode(&key[2..], &mut out));
            prop_assert_eq!(out, text);
        }

        /// A key of another door may have any `%`: it is read as it was written, or not at all.
        #[test]
        fn what_no_gatekeeper_has_is_left_alone(text in "[%a-gA-G0-9 ]{0,8}") {
            let mut parts = text.split('%');
            let mut expected = parts.next().map(|first| first.as_bytes().to_vec());
            for part in parts {
                let byte = part.get(..2).filter(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()));
                let byte = byte.and_then(|hex| u8::from_str_radix(hex, 16).ok());
                expected = expected.zip(byte).map(|(mut bytes, byte)| {
                    bytes.push(byte);
                    bytes.extend(&part.as_bytes()[2..]);
                    bytes
                });
            }
            let mut out = b"left over".to_vec();
            let read = decode(text.as_bytes(), &mut out);
            prop_assert_eq!(read.then_some(out), expected);
        }
    }

    #[test]
    fn domains_are_remembered_once_and_within_bounds() {
        let mut resync = Resync::new();
        assert!(!resync.is_searching());
        assert!((0..1000).all(|_| resync.ask(b"web")));
        assert_eq!(resync.waiting.len(), 1);
        let room = (0..2 * DOMAINS_MAX).filter(|n| resync.ask(n.to_string().as_bytes())).count();
        assert_eq!(room, DOMAINS_MAX - 1);
        assert!(resync.ask(b"web") && resync.is_searching());
        assert!(!Resync::new().ask(&[b'x'; KEY_BYTES_MAX + 1]));
    }
}
