//! An Envoy 1.40 with one bucket, as it was observed: what it does with assignments, and when it
//! reports. It denies what has no assignment.

use std::collections::VecDeque;

use tidegate_core::time::{Nanos, SECOND};

use crate::quota::{ARRIVAL, Action, StreamId};

/// Reports leave, and lost streams come back, this often.
const REPORT_INTERVAL: Nanos = 5 * SECOND;

#[derive(Clone, Copy, Debug)]
enum Rule {
    Allow,
    Deny,
    Bucket { max: f64, per_ns: f64, tokens: f64, at: Nanos },
}

/// What an Envoy sends: requests allowed and denied since the last report.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) arrives: Nanos,
    pub(super) stream: StreamId,
    pub(super) allowed: u64,
    pub(super) denied: u64,
    pub(super) is_first: bool,
}

#[derive(Debug)]
pub(super) struct Envoy {
    pub(super) stream: Option<StreamId>,
    pub(super) stopped_until: Nanos,
    pub(super) closed_at: Nanos,
    /// Requests per 1000 s.
    pub(super) load: u64,
    offered: u64,
    inbox: VecDeque<(Nanos, Vec<Action>)>,
    rule: Option<(Rule, Nanos)>,
    known: bool,
    allowed: u64,
    denied: u64,
    report_at: Nanos,
    /// How often an assignment has expired.
    pub(super) lapses: usize,
}

impl Envoy {
    pub(super) fn new(load: u64, now: Nanos) -> Self {
        Self {
            stream: None,
            stopped_until: 0,
            closed_at: 0,
            load,
            offered: 0,
            inbox: VecDeque::new(),
            rule: None,
            known: false,
            allowed: 0,
            denied: 0,
            report_at: now,
            lapses: 0,
        }
    }

    /// A message on its way; messages keep their order.
    pub(super) fn deliver(&mut self, arrives: Nanos, actions: Vec<Action>) {
        let last = self.inbox.back().map_or(0, |(at, _)| *at);
        self.inbox.push_back((arrives.max(last), actions));
    }

    /// The process dies and is started again: nothing is known to it.
    pub(super) fn die(&mut self, now: Nanos) {
        *self = Self::new(self.load, now);
    }

    /// Whether it has a stream, and all messages of the one before.
    pub(super) fn has_settled(&self, now: Nanos) -> bool {
        self.stream.is_some() && now > self.closed_at + ARRIVAL
    }

    /// Whether it opens a stream now.
    pub(super) fn wants_stream(&self, now: Nanos) -> bool {
        self.stream.is_none() && now >= self.report_at && now >= self.stopped_until
    }

    fn obey(&mut self, action: Action, now: Nanos) {
        let (rule, ttl_s) = match action {
            Action::AllowAll { ttl_s } => (Rule::Allow, ttl_s),
            Action::DenyAll { ttl_s } => (Rule::Deny, ttl_s),
            Action::Abandon => {
                (self.rule, self.known) = (None, false);
                return;
            }
            Action::TokenBucket { max_tokens, tokens_per_fill, fill_interval_s, ttl_s } => {
                let max = f64::from(max_tokens);
                let per_ns = f64::from(tokens_per_fill) / (fill_interval_s * SECOND) as f64;
                let ratio = match self.rule {
                    Some((Rule::Bucket { max, tokens, .. }, _)) => tokens / max,
                    _ => 1.0,
                };
                (Rule::Bucket { max, per_ns, tokens: ratio * max, at: now }, ttl_s)
            }
        };
        self.rule = Some((rule, now + ttl_s * SECOND));
    }

    fn refill(&mut self, now: Nanos) {
        if let Some((Rule::Bucket { max, per_ns, tokens, at }, _)) = &mut self.rule {
            *tokens = (*tokens + *per_ns * (now - *at) as f64).min(*max);
            *at = now;
        }
    }

    /// Lets `span` pass; returns the uses that it admitted at `now`, and what it sends.
    pub(super) fn step(&mut self, now: Nanos, span: Nanos, delay: Nanos) -> (u64, Option<Sent>) {
        if now < self.stopped_until {
            return (0, None);
        }
        // Messages come before timers, as in Envoy's event loop after a stop.
        while let Some((_, actions)) = self.inbox.pop_front_if(|(arrives, _)| *arrives <= now) {
            for action in actions {
                self.refill(now);
                self.obey(action, now);
            }
        }
        self.lapses += usize::from(self.rule.take_if(|(_, until)| now >= *until).is_some());
        self.refill(now);
        self.offered += self.load * (span / 1_000);
        let requests = self.offered / (1_000 * SECOND / 1_000);
        self.offered %= 1_000 * SECOND / 1_000;
        let admitted = (0..requests).filter(|_| self.admits()).count() as u64;
        let first = requests > 0 && !self.known;
        self.known |= requests > 0;
        let due = now >= self.report_at;
        if due {
            self.report_at = now + REPORT_INTERVAL;
        }
        if !(first || due && self.known) {
            return (admitted, None);
        }
        let sent = self.stream.map(|stream| Sent {
            arrives: now + delay,
            stream,
            allowed: self.allowed,
            denied: self.denied,
            is_first: first,
        });
        (self.allowed, self.denied) = (0, 0);
        (admitted, sent)
    }

    fn admits(&mut self) -> bool {
        let admitted = match &mut self.rule {
            Some((Rule::Allow, _)) => true,
            Some((Rule::Bucket { tokens, .. }, _)) if *tokens >= 1.0 => {
                *tokens -= 1.0;
                true
            }
            _ => false,
        };
        if admitted {
            self.allowed += 1
        } else {
            self.denied += 1
        }
        admitted
    }
}
