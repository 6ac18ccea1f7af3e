//! Several Envoys, other doors and one server around one key, step by step; every admitted use is
//! remembered for an oracle.

use std::collections::BTreeMap;

use tidegate_core::rules::Rule;
use tidegate_core::time::{MILLISECOND, Nanos, Now, SECOND};
use tidegate_core::{JointOutcome, Limit, Op, State, algorithms};

use super::envoy::{Envoy, Sent};
use crate::quota::{Action, Assignment, Bank, Division, Grant, Report, RequestId, StreamId, Terms};

pub(super) const STEP: Nanos = 10 * MILLISECOND;
const KEY: &[u8] = b"web user=a";
const START: Now = Now { mono: 1_000 * SECOND, unix: 1_700_000_003 * SECOND };

/// The real count of the key.
#[derive(Debug)]
pub(super) struct Count {
    pub(super) limit: Limit,
    pub(super) state: State,
}

impl Count {
    fn ask(&mut self, op: Op, now: Now) -> u64 {
        let judgement = algorithms::judge(&self.limit, &self.state, op, now);
        let outcome = if judgement.allowed { JointOutcome::Granted } else { JointOutcome::Refused };
        algorithms::apply(&self.limit, &mut self.state, op, &judgement, outcome, now);
        judgement.granted
    }
}

impl Bank for Count {
    fn take_up_to(&mut self, _: &[u8], most: u64, _: RequestId, now: Now) -> Option<Grant> {
        Some(Grant::counted(self.ask(Op::TakeUpTo(most), now)))
    }

    fn record(&mut self, _: &[u8], cost: u64, at: Nanos, now: Now) {
        self.ask(Op::Record { cost, at }, now);
    }

    fn refund(&mut self, _: &[u8], uses: u64, now: Now) {
        self.ask(Op::Refund(uses), now);
    }
}

/// What may happen at some moment.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    Join {
        load: u64,
    },
    Load {
        envoy: usize,
        load: u64,
    },
    Close {
        envoy: usize,
    },
    Kill {
        envoy: usize,
    },
    Stop {
        envoy: usize,
        span_s: u64,
    },
    Restart,
    /// The server does nothing for a while, at this door and all others.
    Stall {
        span_s: u64,
    },
    Others {
        load: u64,
    },
    /// The clock of the wall is set.
    Clock {
        unix_s: u64,
    },
    Limit(Limit),
    /// Another rule is for the key, and has a count of its own.
    Rule(Limit),
}

pub(super) struct Simulation {
    pub(super) now: Now,
    pub(super) bank: Count,
    division: Division,
    next: Nanos,
    pub(super) envoys: Vec<Envoy>,
    last_stream: u64,
    reports: Vec<Sent>,
    /// The rule of the key.
    rule: u64,
    /// Requests per 1000 s through another door, and how many of one are owed.
    others: (u64, u64),
    /// When uses were admitted, and how many, by Envoys (by number) and by others.
    pub(super) admitted: Vec<(Now, Option<usize>, u64)>,
    pub(super) limits: Vec<(Nanos, Limit)>,
    pub(super) messages: usize,
    stalled_until: Nanos,
    delay_max: Nanos,
    seed: u64,
}

impl Simulation {
    pub(super) fn new(limit: Limit, delay_max: Nanos, seed: u64) -> Self {
        Self {
            now: START,
            bank: Count { limit, state: State::None },
            division: Division::new(START),
            next: START.mono,
            envoys: Vec::new(),
            last_stream: 0,
            reports: Vec::new(),
            rule: 0,
            others: (0, 0),
            admitted: Vec::new(),
            limits: vec![(0, limit)],
            messages: 0,
            stalled_until: 0,
            delay_max,
            seed,
        }
    }

    fn delay(&mut self) -> Nanos {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
        (self.seed >> 33) % (self.delay_max / STEP + 1) * STEP
    }

    /// The server sees at once that the stream of this Envoy is closed.
    fn close(&mut self, envoy: usize) {
        if let Some(stream) = self.envoys[envoy].stream.take() {
            self.envoys[envoy].closed_at = self.now.mono;
            self.division.close(stream);
            self.reports.retain(|sent| sent.stream != stream);
        }
    }

    /// Whether messages to this Envoy may have arrived later than the promise allows: then it may
    /// use its lease for longer than the server knows, and must hear of its end by a message.
    fn was_stopped(&self, envoy: usize) -> bool {
        self.envoys[envoy].stopped_until + 10 * SECOND > self.now.mono
    }

    pub(super) fn happen(&mut self, event: Event) {
        let now = self.now.mono;
        let count = self.envoys.len().max(1);
        let place = |envoy: usize| envoy % count;
        match event {
            Event::Join { load } => self.envoys.push(Envoy::new(load, now)),
            Event::Stall { span_s } => self.stalled_until = now + span_s * SECOND,
            Event::Others { load } => self.others.0 = load,
            Event::Clock { unix_s } => self.now.unix = unix_s * SECOND,
            Event::Limit(limit) => {
                self.bank.limit = limit;
                self.limits.push((now, limit));
                self.division.rules_changed();
            }
            Event::Rule(limit) => {
                self.rule += 1;
                self.bank = Count { limit, state: State::None };
                self.limits.push((now, limit));
                self.division.rules_changed();
            }
            _ if self.envoys.is_empty() => {}
            Event::Load { envoy, load } => self.envoys[place(envoy)].load = load,
            Event::Close { envoy } | Event::Kill { envoy } | Event::Stop { envoy, .. }
                if self.was_stopped(place(envoy)) => {}
            // What is on its way on a closed stream would arrive after the stop, too late.
            Event::Stop { envoy, .. } if !self.envoys[place(envoy)].has_settled(now) => {}
            Event::Stop { envoy, span_s } => {
                self.envoys[place(envoy)].stopped_until = now + span_s * SECOND;
            }
            Event::Close { envoy } => self.close(place(envoy)),
            Event::Kill { envoy } => {
                self.close(place(envoy));
                self.envoys[place(envoy)].die(now);
            }
            Event::Restart if (0..count).any(|envoy| self.was_stopped(envoy)) => {}
            Event::Restart => {
                (0..count).for_each(|envoy| self.close(envoy));
                self.division.settle(self.now, &mut self.bank);
                self.division = Division::new(self.now);
                self.next = now;
            }
        }
    }

    fn send(&mut self, out: Vec<Assignment>) {
        let mut messages: BTreeMap<StreamId, Vec<Action>> = BTreeMap::new();
        for assignment in out {
            messages.entry(assignment.stream).or_default().push(assignment.action);
        }
        for (stream, actions) in messages {
            let arrives = self.now.mono + self.delay();
            let envoy = self.envoys.iter_mut().find(|envoy| envoy.stream == Some(stream));
            envoy.expect("only open streams are told").deliver(arrives, actions);
            self.messages += 1;
        }
    }

    fn serve(&mut self) {
        let now = self.now.mono;
        if now < self.stalled_until {
            return;
        }
        let mut out = Vec::new();
        let rule = Rule::new(&format!("rule {}", self.rule), "*", vec![self.bank.limit]);
        let terms = Terms::of_rule(&rule, false);
        // A stream keeps the order of its reports: they are in the order of sending here.
        let mut waiting = Vec::new();
        for sent in std::mem::take(&mut self.reports) {
            let behind = waiting.iter().any(|other: &Sent| other.stream == sent.stream);
            if sent.arrives > now || behind {
                waiting.push(sent);
                continue;
            }
            let Sent { allowed, denied, is_first, .. } = sent;
            let report = Report { key: KEY, allowed, denied, is_first };
            let bank = &mut self.bank;
            self.division.report(sent.stream, report, &terms, self.now, bank, &mut out);
            self.next = now;
        }
        self.reports = waiting;
        if now >= self.next {
            self.next = self.division.tick(|_| terms.clone(), self.now, &mut self.bank, &mut out);
        }
        self.send(out);
        self.others.1 += self.others.0 * (STEP / 1_000);
        while self.others.1 >= SECOND {
            self.others.1 -= SECOND;
            if self.bank.ask(Op::Take(1), self.now) == 1 {
                self.admitted.push((self.now, None, 1));
            }
        }
    }

    pub(super) fn run(&mut self, span: Nanos) {
        let end = self.now.mono + span;
        while self.now.mono < end {
            self.serve();
            for place in 0..self.envoys.len() {
                if self.envoys[place].wants_stream(self.now.mono) {
                    self.last_stream += 1;
                    let stream = StreamId(self.last_stream);
                    self.division.open(stream).expect("few streams");
                    self.envoys[place].stream = Some(stream);
                }
                let delay = self.delay();
                let (uses, sent) = self.envoys[place].step(self.now.mono, STEP, delay);
                self.reports.extend(sent);
                if uses > 0 {
                    self.admitted.push((self.now, Some(place), uses));
                }
            }
            self.now = self.now.after(STEP);
        }
    }

    /// Uses admitted in the last `span`, by one Envoy or by all.
    pub(super) fn used(&self, envoy: Option<usize>, span: Nanos) -> u64 {
        let since = self.now.mono - span;
        let late = self.admitted.iter().rev().take_while(|(at, ..)| at.mono >= since);
        late.filter(|(_, by, _)| envoy.is_none() || *by == envoy).map(|(.., uses)| uses).sum()
    }
}
