//! The handler with a store that never answers, and walks without a socket.

use tidegate_core::Now;
use tidegate_core::time::{DAY, HOUR, MILLISECOND, SECOND};
use tidegate_wire::smockron::Frames;
use tokio::task::yield_now;

use super::handler::{ANSWERS_MAX, Handler, Messages, Publish, Settings};
use crate::clock::Clock;
use crate::config::Config;
use crate::limiter::{Limiter, LimiterHandle};
use crate::metrics::{Door, Metrics};

const START: Now = Now { mono: HOUR, unix: 20_000 * DAY };

/// A handle on a limiter whose store cannot be reached.
fn without_store(clock: &Clock) -> LimiterHandle {
    let rule = |policy: &str| {
        format!(
            "[[rule]]\nmatch = '{policy} *'\nlimit = '1 per 1h'\nalgorithm = 'smockron'\n\
             on_store_error = '{policy}'\n"
        )
    };
    let here = rule("allow").replace("allow *", "here *") + "consistency = 'local'\n";
    let store = "[store]\nkind = 'redis'\nurl = 'redis://127.0.0.1:1'\n";
    let door = "[smockron]\naccounting = 'tcp://127.0.0.1:0'\ncontrol = 'tcp://127.0.0.1:0'\n";
    let file = [door, store, &rule("allow"), &rule("deny"), &rule("local"), &here].concat();
    let config = Config::parse("t", &file).expect("a sound file");
    let (memory, metrics) = (config.file.memory.settings(), Metrics::new().into());
    let limiter = Limiter::new(clock.clone(), metrics, config.rules, memory);
    limiter.use_store(&config.file.store).expect("sound settings");
    limiter.handle(Door::Smockron)
}

fn handler(clock: &Clock) -> Handler {
    Handler::new(without_store(clock), Settings::default())
}

struct Batch(Vec<Vec<Vec<u8>>>);

impl Batch {
    /// One use of each pair of domain and identifier, a second ago.
    fn of_uses<'a>(pairs: impl IntoIterator<Item = (&'a str, String)>) -> Self {
        let ms = ((START.unix - SECOND) / MILLISECOND).to_string();
        let message = |(domain, identifier): (&str, String)| {
            let frames = [domain, "ACCEPTED", &identifier, &ms, ""];
            frames.map(|frame| frame.as_bytes().to_vec()).to_vec()
        };
        Self(pairs.into_iter().map(message).collect())
    }

    fn of_resyncs(domains: &[&str]) -> Self {
        let message = |domain: &&str| vec![domain.as_bytes().to_vec(), b"RESYNC".to_vec()];
        Self(domains.iter().map(message).collect())
    }
}

impl Messages for Batch {
    fn count(&self) -> usize {
        self.0.len()
    }

    fn frames<'a, 'r>(&'a self, index: usize, room: &'r mut [&'a [u8]]) -> &'r [&'a [u8]] {
        let frames = &self.0[index];
        for (slot, frame) in room.iter_mut().zip(frames) {
            *slot = frame;
        }
        &room[..frames.len().min(room.len())]
    }
}

#[derive(Default)]
struct Published(Vec<String>);

impl Publish for Published {
    fn publish(&mut self, message: &Frames) -> bool {
        let frames: Vec<_> = message.iter().map(String::from_utf8_lossy).collect();
        self.0.push(frames.join("|"));
        true
    }
}

fn lost(handler: &Handler, what: &'static str) -> u64 {
    handler.handle().limiter().metrics().lost(Door::Smockron, what).get()
}

/// The delay that follows from the one use of a pair.
fn delay_of(domain: &str) -> String {
    format!("{domain}\0|DELAY_UNTIL|a|{}", (START.unix - SECOND + HOUR) / MILLISECOND)
}

#[test]
fn without_its_store_a_rule_lets_uses_go_or_counts_by_itself() {
    let mut handler = handler(&Clock::manual(START));
    let mut published = Published::default();
    let domains = ["allow", "deny", "local", "here", "other"];
    let batch = Batch::of_uses(domains.map(|domain| (domain, "a".to_owned())));
    handler.take(&batch, handler.now(), &mut published);
    assert_eq!(published.0, [delay_of("here")], "the store has no part in it");
    assert!(handler.has_pending());
    handler.publish_answers(&mut published);
    assert!(!handler.has_pending());
    assert_eq!(published.0, [delay_of("here"), delay_of("local")]);
    assert_eq!(lost(&handler, "store"), 0);
}

#[test]
fn a_use_beyond_those_that_may_be_pending_is_counted_and_decided_by_its_rule() {
    let mut handler = handler(&Clock::manual(START));
    let mut published = Published::default();
    handler.handle().fill_pending();
    let domains = ["allow", "deny", "local", "other"];
    let batch = Batch::of_uses(domains.map(|domain| (domain, "a".to_owned())));
    handler.take(&batch, handler.now(), &mut published);
    assert_eq!(published.0, [delay_of("local")], "the one that is counted here");
    assert!(!handler.has_pending());
    assert_eq!(lost(&handler, "store"), 3, "no store is asked about a domain without a rule");
}

#[tokio::test]
async fn many_answers_are_published_in_parts() {
    let mut handler = handler(&Clock::manual(START));
    let mut published = Published::default();
    let names = |number| ("local", format!("{number}"));
    let batch = Batch::of_uses((0..ANSWERS_MAX + 1).map(names));
    handler.take(&batch, handler.now(), &mut published);
    handler.publish_answers(&mut published);
    assert_eq!(published.0.len(), ANSWERS_MAX);
    assert!(handler.has_pending(), "there is one more");
    handler.ready().await;
    assert!(handler.has_pending(), "it was received, and is not published yet");
    handler.ready().await;
    handler.publish_answers(&mut published);
    assert_eq!(published.0.len(), ANSWERS_MAX + 1);
    assert!(!handler.has_pending());
}

#[test]
fn a_time_that_has_come_while_the_store_was_asked_is_not_told() {
    let clock = Clock::manual(START);
    let mut handler = handler(&clock);
    let mut published = Published::default();
    let batch = Batch::of_uses([("local", "a".to_owned())]);
    handler.take(&batch, handler.now(), &mut published);
    clock.advance(HOUR);
    handler.publish_answers(&mut published);
    assert!(published.0.is_empty() && !handler.has_pending(), "{:?}", published.0);
}

#[tokio::test]
async fn a_walk_that_the_store_does_not_answer_is_counted_for_each_domain() {
    let mut handler = handler(&Clock::manual(START));
    let mut published = Published::default();
    handler.take(&Batch::of_resyncs(&["allow", "local"]), handler.now(), &mut published);
    assert!(handler.is_walking());
    while handler.is_walking() {
        handler.publish_found(&mut published);
        yield_now().await;
    }
    assert!(published.0.is_empty(), "nothing was begun: {:?}", published.0);
    assert_eq!(lost(&handler, "resync"), 2);
}

#[tokio::test]
async fn a_domain_that_no_rule_is_for_needs_no_store() {
    let mut handler = handler(&Clock::manual(START));
    let mut published = Published::default();
    handler.take(&Batch::of_resyncs(&["other"]), handler.now(), &mut published);
    while handler.is_walking() {
        handler.ready().await;
        handler.publish_found(&mut published);
    }
    assert_eq!(published.0, ["other\0|RESYNCSTART", "other\0|RESYNCDONE"]);
}
