//! Uses written down in a remote store, and walks through its counts: what the store has to
//! say comes later, and is told to the gatekeepers then.
//!
//! The door takes messages meanwhile. It keeps so many of them pending and no more; a use beyond
//! that is lost, and counted. One walk goes on at a time, beside the door's loop, and a page of it
//! is looked at no sooner than the delays of the page before are on their way.

use std::collections::HashMap;
use std::sync::Arc;

use prometheus_client::metrics::counter::Counter;
use tidegate_core::{Nanos, Now};
use tidegate_wire::smockron::Control;
use tokio::sync::mpsc;

use super::corridor::at_ms;
use super::resync::{decode, split};
use crate::limiter::{Desk, Limiter, Told, Unfit, When};

/// Uses that wait to be written down, or whose delays wait to be told.
const PENDING_MAX: usize = 16_384;
/// Delays of a walk that wait to be told.
const FOUND_MAX: usize = 256;
/// The most that is told in one turn of the loop.
const TOLD_MAX: usize = 256;

/// What is to be told.
pub(super) enum Letter {
    /// To gatekeepers.
    Delay {
        domain: Box<[u8]>,
        identifier: Box<[u8]>,
        at_ms: u64,
    },
    /// To gatekeepers that have just started.
    Start(Box<[u8]>),
    Done(Box<[u8]>),
    /// To nobody: a use was not written down.
    Unknown(Box<[u8]>),
    Unfit(Unfit),
}

impl Letter {
    /// What gatekeepers are told.
    pub(super) fn control(&self) -> Option<Control<'_>> {
        Some(match self {
            Letter::Delay { domain, identifier, at_ms } => {
                Control::DelayUntil { domain, identifier, at_ms: *at_ms }
            }
            Letter::Start(domain) => Control::ResyncStart { domain },
            Letter::Done(domain) => Control::ResyncDone { domain },
            Letter::Unknown(_) | Letter::Unfit(_) => return None,
        })
    }
}

/// All that one door waits for.
pub(super) struct Elsewhere {
    post: mpsc::Sender<Letter>,
    told: mpsc::Receiver<Letter>,
    /// What the walk that goes on has found.
    found: Option<mpsc::Receiver<Letter>>,
    letters: Vec<Letter>,
    /// Uses that were not written down because too many are pending.
    lost: Counter,
    /// Walks that were broken off.
    broken: Counter,
}

impl Elsewhere {
    pub(super) fn new(lost: Counter, broken: Counter) -> Self {
        Self::with_room(PENDING_MAX, lost, broken)
    }

    fn with_room(pending_max: usize, lost: Counter, broken: Counter) -> Self {
        let (post, told) = mpsc::channel(pending_max);
        Self { post, told, found: None, letters: Vec::new(), lost, broken }
    }

    /// Has a use written down. What there is to say of it comes as a letter.
    pub(super) fn record(
        &self,
        desk: &Desk,
        (key, when): (&[u8], When),
        (domain, identifier): (&[u8], &[u8]),
        now: Now,
    ) {
        let Ok(permit) = self.post.clone().try_reserve_owned() else {
            self.lost.inc();
            return;
        };
        let (domain, identifier) = (Box::from(domain), Box::from(identifier));
        let clock = desk.limiter().clock().clone();
        desk.ask_record(key, when, now, move |told| {
            let letter = match told {
                // It may have come while the store was asked.
                Told::Next(span) if now.after(span).mono <= clock.now().mono => return,
                Told::Next(span) => Letter::Delay { domain, identifier, at_ms: at_ms(span, now) },
                Told::Unknown => Letter::Unknown(domain),
                Told::Unfit(unfit) => Letter::Unfit(unfit),
            };
            permit.send(letter);
        });
    }

    /// Waits until there is something to tell. Cancel-safe.
    pub(super) async fn told(&mut self) {
        if !self.letters.is_empty() {
            return;
        }
        let Self { told, found: Some(walk), letters, .. } = self else {
            self.told.recv_many(&mut self.letters, TOLD_MAX).await;
            return;
        };
        let letter = tokio::select! {
            letter = told.recv() => letter,
            letter = walk.recv() => letter,
        };
        letters.extend(letter);
    }

    /// What is to be told now: of each kind so much that the loop is not held up.
    pub(super) fn letters(&mut self) -> Vec<Letter> {
        let mut letters = std::mem::take(&mut self.letters);
        let waiting = std::iter::from_fn(|| self.told.try_recv().ok());
        letters.extend(waiting.take(TOLD_MAX));
        if let Some(walk) = &mut self.found {
            letters.extend(std::iter::from_fn(|| walk.try_recv().ok()).take(TOLD_MAX));
            if walk.is_closed() && walk.is_empty() {
                self.found = None;
            }
        }
        letters
    }

    /// Whether something is still to be heard of uses that were handed in.
    pub(super) fn is_owed(&self) -> bool {
        self.post.capacity() < self.post.max_capacity() || !self.letters.is_empty()
    }

    pub(super) fn is_walking(&self) -> bool {
        self.found.is_some()
    }

    /// Begins a walk for these domains, by how keys have them. Must be called inside of a runtime.
    pub(super) fn walk(&mut self, limiter: &Arc<Limiter>, domains: HashMap<Box<[u8]>, Box<[u8]>>) {
        let (out, found) = mpsc::channel(FOUND_MAX);
        self.found = Some(found);
        let (limiter, broken) = (limiter.clone(), self.broken.clone());
        tokio::spawn(async move {
            if let Err(error) = walk(&limiter, &domains, &out).await {
                broken.inc_by(domains.len() as u64);
                tracing::debug!(error, "smockron: who is delayed cannot be told");
            }
        });
    }
}

/// Tells all that are delayed, domain by domain as they come. Gatekeepers that hear no beginning
/// ask again, so it is told when the store has answered once.
async fn walk(
    limiter: &Limiter,
    domains: &HashMap<Box<[u8]>, Box<[u8]>>,
    out: &mpsc::Sender<Letter>,
) -> Result<(), String> {
    let mut search = limiter.search_elsewhere(common_beginning(domains.keys()));
    let (mut begun, mut identifier) = (false, Vec::new());
    // The door is closed if nobody takes a letter.
    let closed = |_| String::from("the door is closed");
    loop {
        let mut letters = Vec::new();
        let asked = |key: &[u8]| split(key).is_some_and(|(domain, _)| domains.contains_key(domain));
        let tell = |key: &[u8], span: Nanos| {
            let Some((domain, word)) = split(key) else { return };
            // Keys of other doors may have several entries: no gatekeeper has such a client.
            if let Some(domain) = domains.get(domain)
                && !word.contains(&b' ')
                && decode(word, &mut identifier)
            {
                let (domain, identifier) = (domain.clone(), identifier.as_slice().into());
                let at_ms = at_ms(span, limiter.clock().now());
                letters.push(Letter::Delay { domain, identifier, at_ms });
            }
        };
        let done = limiter.find_delayed_elsewhere(&mut search, asked, tell).await?;
        if !begun {
            begun = true;
            for domain in domains.values() {
                out.send(Letter::Start(domain.clone())).await.map_err(closed)?;
            }
        }
        for letter in letters {
            out.send(letter).await.map_err(closed)?;
        }
        if done {
            break;
        }
    }
    for domain in domains.values() {
        out.send(Letter::Done(domain.clone())).await.map_err(closed)?;
    }
    Ok(())
}

/// What the keys of all these domains begin with.
fn common_beginning<'a>(mut domains: impl Iterator<Item = &'a Box<[u8]>>) -> Vec<u8> {
    let key = |domain: &[u8]| [domain, b" "].concat();
    let Some(first) = domains.next() else { return Vec::new() };
    domains.fold(key(first), |mut common, domain| {
        let same = common.iter().zip(key(domain)).take_while(|(a, b)| **a == *b).count();
        common.truncate(same);
        common
    })
}

#[cfg(test)]
mod tests {
    use tidegate_core::time::{DAY, HOUR, MILLISECOND, SECOND};

    use super::*;
    use crate::clock::Clock;
    use crate::config::Config;
    use crate::metrics::{Door, Metrics};

    const START: Now = Now { mono: HOUR, unix: 20_000 * DAY };

    /// A desk whose store nobody has ever heard of.
    fn alone() -> Desk {
        let rule = |policy: &str| {
            format!(
                "[[rule]]\nmatch = '{policy} *'\nlimit = '1 per 1h'\nalgorithm = 'smockron'\n\
                 on_store_error = '{policy}'\n"
            )
        };
        let store = "[store]\nkind = 'redis'\nurl = 'redis://127.0.0.1:1'\n";
        let door = "[smockron]\naccounting = 'tcp://127.0.0.1:0'\ncontrol = 'tcp://127.0.0.1:0'\n";
        let file = [door, store, &rule("allow"), &rule("deny"), &rule("local")].concat();
        let config = Config::parse("t", &file).expect("a sound file");
        let (memory, metrics) = (config.file.memory.settings(), Metrics::new().into());
        let limiter = Limiter::new(Clock::manual(START), metrics, config.rules, memory);
        limiter.keep_elsewhere(&config.file.store).expect("sound settings");
        limiter.desk(Door::Smockron)
    }

    /// All that there is to tell once nothing is owed any more.
    async fn all_told(elsewhere: &mut Elsewhere) -> Vec<(String, u64)> {
        let mut told = Vec::new();
        while elsewhere.is_owed() {
            tokio::task::yield_now().await;
            for letter in elsewhere.letters() {
                match letter {
                    Letter::Delay { domain, identifier, at_ms } => {
                        let pair = [&*domain, b" ", &*identifier].concat();
                        told.push((String::from_utf8(pair).expect("text"), at_ms));
                    }
                    Letter::Unknown(domain) => told.push((format!("{domain:?}"), 0)),
                    _ => panic!("nobody walks"),
                }
            }
        }
        told
    }

    #[tokio::test]
    async fn without_its_store_a_rule_lets_uses_go_or_counts_by_itself() {
        let (desk, lost) = (alone(), Counter::default());
        let mut elsewhere = Elsewhere::with_room(16, lost.clone(), Counter::default());
        let now = desk.now();
        for domain in ["allow", "deny", "local", "other"] {
            let key = format!("{domain} a");
            let use_of = (key.as_bytes(), When { at: now.mono - SECOND, late: SECOND });
            elsewhere.record(&desk, use_of, (domain.as_bytes(), b"a"), now);
        }
        let mut told = all_told(&mut elsewhere).await;
        told.sort_unstable();
        let at_ms = (START.unix - SECOND + HOUR) / MILLISECOND;
        assert_eq!(told, [(format!("{:?}", b"other"), 0), ("local a".to_owned(), at_ms)]);
        assert_eq!(lost.get(), 0);
    }

    #[tokio::test]
    async fn a_use_that_there_is_no_room_for_is_lost() {
        let (desk, lost) = (alone(), Counter::default());
        let mut elsewhere = Elsewhere::with_room(2, lost.clone(), Counter::default());
        let use_of = (b"local a".as_slice(), When { at: desk.now().mono, late: 0 });
        let record = |elsewhere: &Elsewhere| {
            elsewhere.record(&desk, use_of, (b"local", b"a"), desk.now());
        };
        assert!(!elsewhere.is_owed());
        let first = elsewhere.post.clone().try_reserve_owned().expect("room");
        assert!(elsewhere.is_owed());
        record(&elsewhere);
        assert_eq!(lost.get(), 0, "there is room for two");
        record(&elsewhere);
        record(&elsewhere);
        assert_eq!(lost.get(), 2, "a letter that waits takes a place");
        drop(first);
        assert_eq!(all_told(&mut elsewhere).await.len(), 1);
        record(&elsewhere);
        assert_eq!(lost.get(), 2);
        assert_eq!(all_told(&mut elsewhere).await.len(), 1);
    }

    #[tokio::test]
    async fn what_is_to_be_told_is_owed_until_it_is_taken() {
        let desk = alone();
        let mut elsewhere = Elsewhere::with_room(1, Counter::default(), Counter::default());
        let use_of = (b"local a".as_slice(), When { at: desk.now().mono, late: 0 });
        elsewhere.record(&desk, use_of, (b"local", b"a"), desk.now());
        elsewhere.told().await;
        assert!(elsewhere.is_owed(), "it was heard, and is not told yet");
        elsewhere.told().await;
        assert_eq!(elsewhere.letters().len(), 1);
        assert!(!elsewhere.is_owed());
    }

    #[tokio::test]
    async fn a_walk_goes_on_until_all_that_it_found_is_told() {
        let mut elsewhere = Elsewhere::with_room(1, Counter::default(), Counter::default());
        let (out, found) = mpsc::channel(2 * TOLD_MAX);
        elsewhere.found = Some(found);
        for _ in 0..=TOLD_MAX {
            out.try_send(Letter::Start(b"web".as_slice().into())).expect("room");
        }
        assert_eq!(elsewhere.letters().len(), TOLD_MAX);
        assert_eq!(elsewhere.letters().len(), 1);
        assert!(elsewhere.is_walking(), "there may be more");
        (0..=TOLD_MAX).for_each(|_| {
            out.try_send(Letter::Done(b"web".as_slice().into())).expect("room");
        });
        drop(out);
        assert_eq!(elsewhere.letters().len(), TOLD_MAX);
        assert!(elsewhere.is_walking(), "there is more");
        assert_eq!(elsewhere.letters().len(), 1);
        assert!(!elsewhere.is_walking());
    }

    #[tokio::test]
    async fn a_walk_that_the_store_does_not_answer_is_counted_for_each_domain() {
        let (desk, broken) = (alone(), Counter::default());
        let mut elsewhere = Elsewhere::with_room(1, Counter::default(), broken.clone());
        let domain = |name: &str| -> (Box<[u8]>, Box<[u8]>) {
            (name.as_bytes().into(), name.as_bytes().into())
        };
        elsewhere.walk(desk.limiter(), ["allow", "local"].map(domain).into());
        assert!(elsewhere.is_walking());
        while elsewhere.is_walking() {
            tokio::task::yield_now().await;
            assert!(elsewhere.letters().is_empty(), "nothing was begun");
        }
        assert_eq!(broken.get(), 2);
    }

    #[test]
    fn keys_of_several_domains_begin_with_what_these_share() {
        let check = |domains: &[&str], expected: &str| {
            let domains: Vec<Box<[u8]>> = domains.iter().map(|d| d.as_bytes().into()).collect();
            assert_eq!(common_beginning(domains.iter()), expected.as_bytes(), "{domains:?}");
        };
        check(&["web"], "web ");
        check(&["web", "web2"], "web");
        check(&["web", "api"], "");
        check(&["api-eu", "api-us", "api"], "api");
        check(&[], "");
    }
}
