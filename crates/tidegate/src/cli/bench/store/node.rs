//! A node of ours in this process: a limiter whose counts lie elsewhere, asked as doors ask.

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::{self, Thread};
use std::time::Duration;

use anyhow::{Result, bail};
use tidegate_core::rules::{OnFull, OnStoreError, Pattern, Rule, RuleSet};
use tidegate_core::time::HOUR;
use tidegate_core::{Algorithm, Limit, Op};

use super::super::keys::{Choice, Keys};
use super::super::tally::{Tally, Until};
use crate::clock::Clock;
use crate::limiter::{Answer, Limiter};
use crate::metrics::{Door, Metrics};
use crate::stores::memory;
use crate::stores::remote::settings::{Kind, Settings, Urls};

/// How often, and after how long each time, it is looked whether the store has answered.
const TRIES: u32 = 1_000;
const RETRY: Duration = Duration::from_millis(10);

/// The settings of a store that was started for the run, and nothing that is not usual.
pub(super) fn settings(kind: Kind, store: SocketAddr) -> Settings {
    let scheme = if kind == Kind::Etcd { "http" } else { "redis" };
    let url = Some(Urls::One(format!("{scheme}://{store}")));
    Settings { kind, url, ..Settings::default() }
}

/// A node with one rule, for the keys of [`ask`]: so many uses of each in an hour.
pub(super) fn start(settings: &Settings, amount: u64) -> Result<Arc<Limiter>> {
    let algorithm = Algorithm::Gcra { burst: amount };
    let rule = Rule {
        name: "bench".into(),
        pattern: Pattern::new("bench *"),
        limits: vec![Limit { amount, period: HOUR, algorithm }],
        shared: false,
        shadow: false,
        on_store_error: OnStoreError::Allow,
        on_full: OnFull::Share,
    };
    let rules = RuleSet::new(vec![rule], None);
    let memory = memory::Settings { max_keys: 10_000_000, max_bytes: 4 << 30 };
    let limiter = Limiter::new(Clock::system(), Arc::new(Metrics::new()), rules, memory);
    limiter.keep_elsewhere(settings).map_err(anyhow::Error::msg)?;
    for _ in 0..TRIES {
        if limiter.store_away().is_none() {
            return Ok(limiter);
        }
        thread::sleep(RETRY);
    }
    bail!("the store does not answer: {}", limiter.store_away().unwrap_or_default())
}

/// What is asked of a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asking {
    /// Decisions that are outstanding at a time.
    pub(super) window: u64,
    /// Different keys in play.
    pub(super) keys: u64,
    pub(super) choice: Choice,
    pub(super) until: Until,
}

/// What came back. Told on the store's thread.
struct Heard {
    asks: Thread,
    decided: AtomicU64,
    refused: AtomicU64,
    /// Decisions that were made without the store.
    without: AtomicU64,
}

impl Heard {
    fn hear(&self, answer: &Answer) {
        let counter = match answer {
            // Only the store knows what is left of a limit.
            answer if answer.limits.is_empty() => &self.without,
            answer if !answer.allowed => &self.refused,
            _ => &self.decided,
        };
        counter.fetch_add(1, Relaxed);
        self.asks.unpark();
    }

    fn answered(&self) -> u64 {
        self.decided.load(Relaxed) + self.refused.load(Relaxed)
    }

    fn all(&self) -> u64 {
        self.answered() + self.without.load(Relaxed)
    }
}

/// Keeps decisions outstanding until it is time to stop, and waits for the last of them. Those that
/// were made without the store are told as lost. `total` counts what was answered, for progress.
pub(super) fn ask(
    limiter: &Arc<Limiter>,
    asking: Asking,
    seed: u64,
    total: &AtomicU64,
) -> io::Result<Tally> {
    let Asking { window, keys, choice, until } = asking;
    let desk = limiter.desk(Door::Text);
    let mut keys = Keys::new(keys, choice, seed);
    let (decided, refused, without) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let heard = Arc::new(Heard { asks: thread::current(), decided, refused, without });
    let (mut sent, mut told, start, mut key) = (0, 0, desk.now().mono, Vec::new());
    loop {
        let back = heard.all();
        let answered = heard.answered();
        total.fetch_add(answered - told, Relaxed);
        told = answered;
        let now = desk.now();
        let is_over = sent >= until.count || now.mono - start >= until.span;
        if is_over && back == sent {
            let mut tally = Tally::new();
            (tally.sent, tally.answered, tally.lost) = (sent, told, sent - told);
            tally.refused = Some(heard.refused.load(Relaxed));
            tally.elapsed = (now.mono - start).max(1);
            return Ok(tally);
        }
        let room = window.saturating_sub(sent - back).min(until.count - sent);
        if is_over || room == 0 {
            // Whoever answers between the look above and this ends it at once.
            thread::park();
            continue;
        }
        for _ in 0..room {
            key.clear();
            write!(key, "bench key={}", keys.draw())?;
            let heard = heard.clone();
            desk.ask(&[&key], Op::Take(1), false, now, move |answer| heard.hear(&answer))
                .map_err(|unfit| io::Error::other(unfit.reason()))?;
            sent += 1;
        }
    }
}
