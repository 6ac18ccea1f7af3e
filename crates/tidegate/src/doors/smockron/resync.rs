//! Gatekeepers that have just started ask which clients are delayed; the answer is a walk through
//! all keys.
//!
//! One walk answers for all domains that were asked for before it began, so that a thousand
//! gatekeepers that start at once cost no more than one. What is asked for during a walk waits for
//! the next. A walk is a task beside the door's loop: it looks at a page no sooner than the loop
//! has taken the one before, and the loop takes messages between pages.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tidegate_core::key::{KEY_BYTES_MAX, KeyBuilder};
use tidegate_wire::percent;
use tidegate_wire::smockron::ControlMessage;
use tokio::sync::mpsc;

use super::handler::at_ms;
use crate::limiter::{DelayedPage, DelayedSearch, Limiter};

/// The most domains that wait for a walk.
const DOMAINS_MAX: usize = 4096;
/// Cells of the table in memory that a page looks at.
const CELLS: usize = 256;
/// The most delays that are published in one turn of the loop.
const DELAYS_MAX: usize = 256;

/// Domains as gatekeepers have them, by how keys have them.
type Domains = HashMap<Box<[u8]>, Box<[u8]>>;

/// The domains that were asked for, and the walk that goes on.
#[derive(Default)]
pub(super) struct Resync {
    /// Domains that the next walk is for.
    waiting: HashSet<Box<[u8]>>,
    walk: Option<Walk>,
    identifier: Vec<u8>,
}

struct Walk {
    domains: Arc<Domains>,
    steps: mpsc::Receiver<Step>,
    /// What was taken from the walk and is not published yet.
    next: Option<Step>,
    /// Whether gatekeepers were told that it has begun.
    is_started: bool,
}

enum Step {
    Page(DelayedPage),
    Done,
    /// A remote store was not searched, and why.
    Failed(String),
}

impl Resync {
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

    pub(super) fn is_walking(&self) -> bool {
        self.walk.is_some() || !self.waiting.is_empty()
    }

    /// Waits until [`Self::publish`] has something to do. Cancel-safe.
    pub(super) async fn ready(&mut self) {
        match &mut self.walk {
            Some(walk) if walk.next.is_none() => {
                let ended = || Step::Failed("the walk has ended".to_owned());
                walk.next = Some(walk.steps.recv().await.unwrap_or_else(ended));
            }
            None if self.waiting.is_empty() => std::future::pending().await,
            _ => {}
        }
    }

    /// Begins a walk, or publishes a part of what the present one has found. Returns how many
    /// domains will hear no more because a remote store was not searched. Must be called inside of
    /// a runtime.
    pub(super) fn publish(
        &mut self,
        limiter: &Arc<Limiter>,
        mut publish: impl FnMut(ControlMessage<'_>),
    ) -> usize {
        let Self { waiting, walk: present, identifier } = self;
        let Some(walk) = present else {
            *present = (!waiting.is_empty()).then(|| Walk::new(limiter, waiting.drain()));
            return 0;
        };
        let Some(step) = walk.next.take().or_else(|| walk.steps.try_recv().ok()) else { return 0 };
        let domains = walk.domains.clone();
        // Gatekeepers that hear no beginning ask again, so a walk begins with its first page.
        if !walk.is_started && !matches!(step, Step::Failed(_)) {
            walk.is_started = true;
            domains.values().for_each(|domain| publish(ControlMessage::ResyncStart { domain }));
        }
        match step {
            Step::Page(DelayedPage { mut keys, at }) => {
                for (key, span) in keys.split_off(keys.len().saturating_sub(DELAYS_MAX)) {
                    let Some((domain, word)) = split(&key) else { continue };
                    // Keys of other doors may have several entries: no gatekeeper has such clients.
                    if let Some(domain) = domains.get(domain)
                        && !word.contains(&b' ')
                        && decode(word, identifier)
                    {
                        let at_ms = at_ms(span, at);
                        publish(ControlMessage::DelayUntil { domain, identifier, at_ms });
                    }
                }
                walk.next = (!keys.is_empty()).then_some(Step::Page(DelayedPage { keys, at }));
                0
            }
            Step::Done => {
                domains.values().for_each(|domain| publish(ControlMessage::ResyncDone { domain }));
                *present = None;
                0
            }
            Step::Failed(error) => {
                tracing::debug!(error, "smockron: the delays in force cannot be sent");
                *present = None;
                domains.len()
            }
        }
    }
}

impl Walk {
    /// Begins a walk for these domains.
    fn new(limiter: &Arc<Limiter>, asked: impl Iterator<Item = Box<[u8]>>) -> Self {
        let (mut key, mut domains) = (Vec::new(), Domains::new());
        for domain in asked {
            if let Ok(encoded) = KeyBuilder::new(&mut key, &domain).finish() {
                domains.insert(encoded.into(), domain);
            }
        }
        let search = DelayedSearch::new(limiter, common_prefix(domains.keys()), CELLS);
        let (out, steps) = mpsc::channel(1);
        let domains = Arc::new(domains);
        tokio::spawn(walk(search, domains.clone(), out));
        Self { domains, steps, next: None, is_started: false }
    }
}

/// Hands the pages of a search to the loop, until its end or that of the door.
async fn walk(mut search: DelayedSearch, domains: Arc<Domains>, out: mpsc::Sender<Step>) {
    let asked = |key: &[u8]| split(key).is_some_and(|(domain, _)| domains.contains_key(domain));
    loop {
        let step = match search.next_page(asked).await {
            Ok(Some(page)) => Step::Page(page),
            Ok(None) => Step::Done,
            Err(error) => Step::Failed(error),
        };
        let is_last = !matches!(step, Step::Page(_));
        if out.send(step).await.is_err() || is_last {
            return;
        }
    }
}

/// What the keys of all these domains begin with.
fn common_prefix<'a>(mut domains: impl Iterator<Item = &'a Box<[u8]>>) -> Vec<u8> {
    let key = |domain: &[u8]| [domain, b" "].concat();
    let Some(first) = domains.next() else { return Vec::new() };
    domains.fold(key(first), |mut common, domain| {
        let same = common.iter().zip(key(domain)).take_while(|(a, b)| **a == *b).count();
        common.truncate(same);
        common
    })
}

/// The domain of a key, as keys have it, and what follows.
fn split(key: &[u8]) -> Option<(&[u8], &[u8])> {
    let space = key.iter().position(|&byte| byte == b' ')?;
    Some((&key[..space], &key[space + 1..]))
}

/// Undoes what [`KeyBuilder`] did; `false` if it did not do it.
fn decode(text: &[u8], out: &mut Vec<u8>) -> bool {
    out.clear();
    percent::decode(text, out).is_some()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tidegate_core::Now;
    use tidegate_core::rules::RuleSet;

    use super::*;
    use crate::clock::Clock;
    use crate::metrics::Metrics;
    use crate::stores::memory;

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
        let mut resync = Resync::default();
        assert!(!resync.is_walking());
        assert!((0..1000).all(|_| resync.ask(b"web")));
        assert_eq!(resync.waiting.len(), 1);
        let room = (0..2 * DOMAINS_MAX).filter(|n| resync.ask(n.to_string().as_bytes())).count();
        assert_eq!(room, DOMAINS_MAX - 1);
        assert!(resync.ask(b"web") && resync.is_walking());
        assert!(!Resync::default().ask(&[b'x'; KEY_BYTES_MAX + 1]));
    }

    fn publish(resync: &mut Resync, limiter: &Arc<Limiter>) -> Vec<String> {
        let mut published = Vec::new();
        let failed = resync.publish(limiter, |control| {
            published.push(match control {
                ControlMessage::ResyncStart { .. } => "start".to_owned(),
                ControlMessage::ResyncDone { .. } => "done".to_owned(),
                ControlMessage::DelayUntil { identifier, .. } => {
                    String::from_utf8_lossy(identifier).into_owned()
                }
            });
        });
        assert_eq!(failed, 0);
        published
    }

    #[test]
    fn a_walk_goes_on_until_all_that_it_found_is_published() {
        let clock = Clock::manual(Now::default());
        let (rules, memory) = (RuleSet::default(), memory::Settings::default());
        let limiter = Limiter::new(clock, Arc::new(Metrics::new()), rules, memory);
        let (out, steps) = mpsc::channel(2);
        let domain: Box<[u8]> = b"web".as_slice().into();
        let domains = Arc::new(Domains::from([(domain.clone(), domain)]));
        let walk = Some(Walk { domains, steps, next: None, is_started: false });
        let mut resync = Resync { walk, ..Resync::default() };
        assert!(publish(&mut resync, &limiter).is_empty(), "nothing is found yet");
        // Of keys that no gatekeeper has, nothing is told.
        let found = (0..DELAYS_MAX - 1).map(|number| format!("web {number}"));
        let keys = found.chain(["web a b", "web 5%", "other a"].map(str::to_owned));
        let keys = keys.map(|key| (key.into_bytes(), 1)).collect();
        out.try_send(Step::Page(DelayedPage { keys, at: Now::default() })).expect("room");
        out.try_send(Step::Done).expect("room");
        let first = publish(&mut resync, &limiter);
        assert_eq!((first.len(), first[0].as_str()), (1 + DELAYS_MAX - 3, "start"));
        assert_eq!(publish(&mut resync, &limiter), ["0", "1"]);
        assert!(resync.is_walking());
        assert_eq!(publish(&mut resync, &limiter), ["done"]);
        assert!(!resync.is_walking());
    }

    #[test]
    fn keys_of_several_domains_begin_with_what_these_share() {
        let check = |domains: &[&str], expected: &str| {
            let domains: Vec<Box<[u8]>> = domains.iter().map(|d| d.as_bytes().into()).collect();
            assert_eq!(common_prefix(domains.iter()), expected.as_bytes(), "{domains:?}");
        };
        check(&["web"], "web ");
        check(&["web", "web2"], "web");
        check(&["web", "api"], "");
        check(&["api-eu", "api-us", "api"], "api");
        check(&[], "");
    }
}
