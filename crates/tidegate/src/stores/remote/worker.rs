//! The one thread that speaks to the store: it takes updates, sends changes and receives answers.
//!
//! It owns the engine and the cached counts, so it needs no locks. No door waits for the store: a
//! door hands in an update, and the worker tells the update's step the outcome.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tidegate_core::time::{MILLISECOND, SECOND};
use tidegate_core::{Nanos, Now};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinSet, yield_now};
use tokio::time::sleep;

use super::Shared;
use super::breaker::Breaker;
use super::engine::{Blame, Engine, EngineFault, Swapped, Timed};
use super::time::StoreTime;
use super::update::{StoreError, Update, UpdateKind};
use super::update_queue::{ChangeInFlight, UpdateQueue};

/// Messages that the loop takes at once.
const INBOX_MAX: usize = 1024;
/// Changes that are sent in one call.
const SENT_MAX: usize = 256;
/// While a call is under way, a call with fewer changes than this waits for more of them, and at
/// most for so long: a call costs the server more than a change.
const FEW: usize = 32;
const GATHER: Nanos = MILLISECOND;
/// A loop that wakes later than this did not get the processor: timers are late by two
/// milliseconds at most.
const OVERSLEPT: Nanos = 5 * MILLISECOND;
/// How often a node reports that it is alive, and how long a report counts.
const BEAT: Nanos = 3 * SECOND;
const BEAT_LIVES: Nanos = 10 * SECOND;
/// How often the worker tries a store that is away, with a random part.
const RETRY_EVERY: Nanos = 200 * MILLISECOND;
/// The first pause between two tries before the store has ever answered; it doubles each time.
const FIRST_RETRY: Nanos = 5 * MILLISECOND;
/// The longest sleep of the loop.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// How often a failure is logged.
const TELL_EVERY: Nanos = 10 * SECOND;
/// How long closing waits for updates that give back.
const CLOSE_MAX: Nanos = SECOND;

/// What other threads ask of the worker.
pub(super) enum WorkerMessage {
    Update(Update),
    Remove(Arc<[u8]>, oneshot::Sender<Result<bool, EngineFault>>),
    Scan(Vec<u8>, Vec<u8>, oneshot::Sender<Scanned>),
    Watch(Arc<[u8]>),
    Unwatch(Arc<[u8]>),
    Close(oneshot::Sender<()>),
}

/// A page of names and values, where the next begins, and the store's time.
pub(super) type Scanned = Result<(Vec<(Vec<u8>, Vec<u8>)>, Option<Vec<u8>>, Now), EngineFault>;

/// What comes back from the store.
enum StoreAnswer {
    /// The answers to a call, and when they came.
    Swapped(u64, Vec<Result<Timed<Swapped>, EngineFault>>, Nanos),
    Beat(Result<Timed<Vec<u64>>, EngineFault>, Nanos),
    /// A name that was removed.
    Removed(Arc<[u8]>),
    Nothing,
}

/// The loop.
pub(super) struct StoreWorker {
    pub(super) engine: Engine,
    pub(super) shared: Arc<Shared>,
    pub(super) updates: UpdateQueue,
    pub(super) time: StoreTime,
    breaker: Breaker,
    flights: HashMap<u64, Vec<ChangeInFlight>>,
    next_flight: u64,
    /// When the last call was sent.
    called_at: Nanos,
    /// Calls to the store that are under way.
    calls: JoinSet<StoreAnswer>,
    /// Names that requests wait for, and how many requests.
    watched: HashMap<Arc<[u8]>, usize>,
    beat_at: Nanos,
    beating: bool,
    told_at: Option<Nanos>,
    /// The kind of fault that was logged as the reason why the store is away.
    told_kind: Option<&'static str>,
    /// When the start stops to wait for the first answer; `None` once it is over.
    start_until: Option<Nanos>,
    /// The next pause between two tries, before the store has ever answered.
    first_retry: Nanos,
    closing: Option<(oneshot::Sender<()>, Nanos)>,
}

impl StoreWorker {
    pub(super) fn new(engine: Engine, shared: Arc<Shared>, start_timeout: Duration) -> Self {
        let start_timeout = u64::try_from(start_timeout.as_nanos()).unwrap_or(Nanos::MAX);
        let start_until = shared.pace.now().mono.saturating_add(start_timeout);
        let mut updates = UpdateQueue::new(shared.node, shared.timeout);
        updates.keeps_ends = engine.keeps_ends();
        Self {
            engine,
            shared,
            updates,
            time: StoreTime::default(),
            breaker: Breaker::new(),
            flights: HashMap::new(),
            next_flight: 0,
            called_at: 0,
            calls: JoinSet::new(),
            watched: HashMap::new(),
            beat_at: 0,
            beating: false,
            told_at: None,
            told_kind: None,
            start_until: Some(start_until),
            first_retry: FIRST_RETRY,
            closing: None,
        }
    }

    /// Runs until it is closed, or until all senders of messages are gone.
    pub(super) async fn run(mut self, mut inbox: mpsc::Receiver<WorkerMessage>) {
        let mut messages = Vec::with_capacity(INBOX_MAX);
        let mut wake_at = Nanos::MAX;
        loop {
            let now = self.local();
            if now.saturating_sub(wake_at) > OVERSLEPT {
                self.breaker.overslept(now);
            }
            self.end_start(now);
            self.beat(now);
            self.expire(now);
            self.send(now);
            if self.is_closed(now) {
                break;
            }
            let engine = self.engine.clone();
            let pause = self.sleep_for(now);
            wake_at = now.saturating_add(u64::try_from(pause.as_nanos()).unwrap_or(Nanos::MAX));
            tokio::select! {
                count = inbox.recv_many(&mut messages, INBOX_MAX) => {
                    if count == 0 {
                        break;
                    }
                    messages.drain(..).for_each(|message| self.on_message(message));
                    self.send(self.local());
                    // Lets the connections send and receive, however many messages come.
                    yield_now().await;
                }
                Some(answer) = self.calls.join_next() => {
                    self.on_answer(answer.unwrap_or(StoreAnswer::Nothing));
                }
                name = engine.freed() => (self.shared.freed)(&name),
                () = sleep(pause) => {}
            }
            while let Some(answer) = self.calls.try_join_next() {
                self.on_answer(answer.unwrap_or(StoreAnswer::Nothing));
            }
        }
        self.engine.leave(self.shared.node).await;
        if let Some((closed, _)) = self.closing {
            let _ = closed.send(());
        }
    }

    fn local(&self) -> Nanos {
        self.shared.pace.now().mono
    }

    fn is_closed(&self, now: Nanos) -> bool {
        let Some((_, until)) = &self.closing else { return false };
        (self.updates.is_idle() && self.flights.is_empty()) || now >= *until
    }

    fn sleep_for(&self, now: Nanos) -> Duration {
        let beat = (!self.beating).then_some(self.beat_at);
        let closing = self.closing.as_ref().map(|(_, until)| *until);
        // If that is past, only an answer lets the next call go.
        let gathered = Some(self.called_at + GATHER).filter(|at| *at > now);
        let gathered = gathered.filter(|_| self.updates.ready() > 0);
        let due = [self.updates.due(), beat, closing, gathered, self.start_until];
        let due = due.into_iter().flatten().min();
        let left = due.map_or(SLEEP_MAX, |at| Duration::from_nanos(at.saturating_sub(now)));
        left.min(SLEEP_MAX)
    }

    fn on_message(&mut self, message: WorkerMessage) {
        match message {
            WorkerMessage::Update(update) => self.add(update),
            WorkerMessage::Remove(name, reply) => {
                let engine = self.engine.clone();
                self.calls.spawn(async move {
                    let _ = reply.send(engine.remove(&name).await);
                    StoreAnswer::Removed(name)
                });
            }
            WorkerMessage::Scan(prefix, mark, reply) => {
                let (engine, time) = (self.engine.clone(), self.time);
                let clock = self.shared.clock.clone();
                self.calls.spawn(async move {
                    let page = engine.scan(&prefix, mark).await;
                    let _ = reply.send(page.map(|(all, next)| (all, next, time.at(clock.now()))));
                    StoreAnswer::Nothing
                });
            }
            WorkerMessage::Watch(name) => {
                let watchers = self.watched.entry(name.clone()).or_default();
                *watchers += 1;
                if *watchers == 1 {
                    self.engine.watch(&name);
                }
            }
            WorkerMessage::Unwatch(name) => {
                let watchers = self.watched.entry(name.clone()).or_default();
                *watchers = watchers.saturating_sub(1);
                if *watchers == 0 {
                    self.watched.remove(&name);
                    self.engine.unwatch(&name);
                }
            }
            WorkerMessage::Close(reply) => self.closing = Some((reply, self.local() + CLOSE_MAX)),
        }
    }

    fn add(&mut self, mut update: Update) {
        match update.kind {
            _ if !self.breaker.is_open() => {}
            // It was handed in before the store was known to be away.
            UpdateKind::Take => return update.step.end(Err(StoreError::Away)),
            // The store gets it when it is back. The caller does not wait for that.
            UpdateKind::GiveBack | UpdateKind::Refund => update.step.answer_early(),
        }
        self.updates.add(update);
    }

    /// Sends all changes that can be sent, as long as not too many calls are under way.
    fn send(&mut self, now: Nanos) {
        // Also of changes that are not sent now: the loop must not wake for them again and again.
        self.updates.end_rests(now);
        while !self.breaker.is_open() && self.may_call(now) {
            let at = self.time.at(self.shared.clock.now());
            let (mut requests, mut attempts) = (Vec::new(), Vec::new());
            while requests.len() < SENT_MAX
                && let Some((changes, attempt)) = self.updates.next(now, at)
            {
                requests.push(changes);
                attempts.push(attempt);
            }
            if requests.is_empty() {
                return;
            }
            let id = self.next_flight;
            self.next_flight += 1;
            self.called_at = now;
            self.flights.insert(id, attempts);
            let (engine, clock) = (self.engine.clone(), self.shared.pace.clone());
            self.calls.spawn(async move {
                let answers = engine.swap(requests).await;
                StoreAnswer::Swapped(id, answers, clock.now().mono)
            });
        }
    }

    /// Whether the changes that are ready are worth a call now.
    fn may_call(&self, now: Nanos) -> bool {
        let calls = self.flights.len();
        let since_last = now.saturating_sub(self.called_at);
        let is_worth = !self.engine.gathers() || is_worth(calls, self.updates.ready(), since_last);
        calls < self.engine.calls_max() && is_worth
    }

    fn on_answer(&mut self, answer: StoreAnswer) {
        let now = self.local();
        match answer {
            StoreAnswer::Swapped(id, answers, heard) => {
                let attempts = self.flights.remove(&id).unwrap_or_default();
                let sent = attempts.first().map_or(now, ChangeInFlight::sent);
                if let Some(told) = answers.iter().flatten().find_map(|answer| answer.time) {
                    self.learn_time(told, sent, heard);
                }
                for (attempt, answer) in attempts.into_iter().zip(answers) {
                    match &answer {
                        Err(fault) => self.failed(fault, now),
                        Ok(_) => self.answered(now),
                    }
                    self.updates.finish(attempt, answer.map(|answer| answer.what), now);
                }
            }
            StoreAnswer::Beat(beat, asked) => {
                self.beating = false;
                match beat {
                    Ok(Timed { what: nodes, time }) => {
                        if let Some(told) = time {
                            self.learn_time(told, asked, now);
                        }
                        self.updates.members.learn(&nodes);
                        self.answered(now);
                        self.beat_at = now + BEAT;
                    }
                    Err(fault) => {
                        self.failed(&fault, now);
                        self.beat_at = now + self.retry_pause();
                    }
                }
            }
            StoreAnswer::Removed(name) => self.updates.forget(&name),
            StoreAnswer::Nothing => {}
        }
    }

    fn learn_time(&mut self, told: Nanos, asked: Nanos, heard: Nanos) {
        if !self.shared.clock.is_manual() {
            self.time.learn(told, asked, heard);
        }
    }

    /// Reports that this node is alive. While the store is away, this tries whether it is back.
    fn beat(&mut self, now: Nanos) {
        if self.beating || now < self.beat_at {
            return;
        }
        self.beating = true;
        self.updates.members.ask();
        let (engine, node) = (self.engine.clone(), self.shared.node);
        self.calls
            .spawn(async move { StoreAnswer::Beat(engine.beat(node, BEAT_LIVES).await, now) });
    }

    fn expire(&mut self, now: Nanos) {
        if self.updates.expire(now) {
            // A store that answers other calls is busy, or this node is: asking it less would not
            // help.
            let is_silent = self.breaker.is_silent(now, self.shared.timeout / 2);
            let blame =
                if is_silent { self.engine.blame(&EngineFault::Slow) } else { Blame::Partial };
            self.blame(&EngineFault::Slow, blame, now);
        }
    }

    /// The pause after a try that failed. Short at the start, because doors wait for the first
    /// answer; then [`RETRY_EVERY`].
    fn retry_pause(&mut self) -> Nanos {
        let usual = RETRY_EVERY / 2 + self.shared.node % (RETRY_EVERY / 2);
        let pause = self.first_retry.min(usual);
        self.first_retry = self.first_retry.saturating_mul(2);
        pause
    }

    /// Ends the start if the store has not answered within `start_timeout`.
    fn end_start(&mut self, now: Nanos) {
        if self.start_until.is_none_or(|until| now < until) {
            return;
        }
        self.start_until = None;
        let fault = self.shared.last_fault.lock().clone().unwrap_or(EngineFault::Slow);
        self.told_kind = Some(fault.kind());
        tracing::warn!(
            store = self.engine.name(),
            error = %fault,
            "the store has not answered within start_timeout: \
             on_store_error decides until it answers"
        );
        self.shared.started.send_replace(true);
    }

    fn answered(&mut self, now: Nanos) {
        self.first_retry = RETRY_EVERY;
        if self.breaker.answered(now) {
            self.updates.forget_all();
            self.shared.away.store(false, Relaxed);
            tracing::info!(store = self.engine.name(), "the store answers");
        }
        if self.start_until.take().is_some() {
            self.shared.started.send_replace(true);
        }
    }

    fn failed(&mut self, fault: &EngineFault, now: Nanos) {
        self.blame(fault, self.engine.blame(fault), now);
    }

    fn blame(&mut self, fault: &EngineFault, blame: Blame, now: Nanos) {
        self.shared.metrics.store_error(self.engine.name(), fault.kind());
        let was_away = self.breaker.is_open();
        if self.breaker.failed(blame) {
            self.shared.away.store(true, Relaxed);
            tracing::warn!(
                store = self.engine.name(),
                error = %fault,
                "the store is away: on_store_error decides until it answers"
            );
            self.told_kind = Some(fault.kind());
            self.told_at = Some(now);
            self.updates.give_up();
            // The next try is not far away.
            self.beat_at =
                self.beat_at.min(now + RETRY_EVERY / 2 + self.shared.node % (RETRY_EVERY / 2));
        } else if was_away {
            self.still_away(fault);
        } else if self.told_at.is_none_or(|at| now >= at + TELL_EVERY) {
            tracing::warn!(store = self.engine.name(), error = %fault, "the store failed");
            self.told_at = Some(now);
        }
        *self.shared.last_fault.lock() = Some(fault.clone());
    }

    /// A store that is away has failed again: logs it only if the kind of fault is another one.
    fn still_away(&mut self, fault: &EngineFault) {
        if self.start_until.is_none() && self.told_kind != Some(fault.kind()) {
            self.told_kind = Some(fault.kind());
            tracing::warn!(store = self.engine.name(), error = %fault, "the store is still away");
        }
    }
}

/// Whether so many changes are worth another call beside those that are under way.
fn is_worth(calls: usize, changes: usize, since_last: Nanos) -> bool {
    calls == 0 || changes >= FEW || since_last >= GATHER
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_wait_for_others_while_a_call_is_under_way_and_not_for_long() {
        assert!(is_worth(0, 1, 0), "nobody waits for a store that does nothing");
        assert!(!is_worth(1, 1, 0) && !is_worth(7, FEW - 1, GATHER - 1));
        assert!(is_worth(1, FEW, 0));
        assert!(is_worth(1, 1, GATHER), "a store that is slow is not waited for");
    }
}
