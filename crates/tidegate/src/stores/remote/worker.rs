//! The one thread that speaks to the store: it takes updates, sends changes and receives answers.
//!
//! It owns the engine and all that is known of counts, so it needs no locks, and no door ever waits
//! for the store: doors hand updates in, and the steps of the updates get the outcome.

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
use super::engine::{Blame, CellChange, Engine, EngineFault, Swapped, Timed};
use super::time::StoreTime;
use super::update::Update;
use super::update_queue::{ChangeInFlight, ChangeOutcome, UpdateQueue};

/// Messages that are taken in one turn.
const INBOX_MAX: usize = 1024;
/// Changes that are sent in one call.
const SENT_MAX: usize = 256;
/// A call of so few changes waits for others as long as another is under way, and at most for so
/// long: to a server a call costs more than a change.
const FEW: usize = 32;
const GATHER: Nanos = MILLISECOND;
/// A loop that wakes so much too late was not given the processor: timers are late by two
/// milliseconds at most.
const OVERSLEPT: Nanos = 5 * MILLISECOND;
/// How often a node says that it lives, and for how long others believe it.
const BEAT: Nanos = 3 * SECOND;
const BEAT_LIVES: Nanos = 10 * SECOND;
/// How often a store that is away is tried, chance included.
const PROBE: Nanos = 200 * MILLISECOND;
/// The first pause between two tries before the store has ever answered; it doubles each time.
const FIRST_PROBE: Nanos = 5 * MILLISECOND;
/// The longest sleep of the loop.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// How often a failure is told in the log.
const TELL_EVERY: Nanos = 10 * SECOND;
/// How long closing waits for what is to be given back.
const CLOSE_MAX: Nanos = SECOND;

/// What the thread is told.
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

/// What comes back.
enum Heard {
    Swapped(u64, Vec<ChangeOutcome>, Option<(Nanos, Nanos)>),
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
    heard: JoinSet<Heard>,
    /// Names that somebody waits for, and how many do.
    watched: HashMap<Arc<[u8]>, usize>,
    beat_at: Nanos,
    beating: bool,
    told_at: Option<Nanos>,
    /// The kind of the fault that the log gives as the reason why the store is away.
    told_kind: Option<&'static str>,
    /// Until when the start waits for the first answer; `None` once the start is over.
    start_until: Option<Nanos>,
    /// The next pause between two tries, before the store has ever answered.
    first_probe: Nanos,
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
            heard: JoinSet::new(),
            watched: HashMap::new(),
            beat_at: 0,
            beating: false,
            told_at: None,
            told_kind: None,
            start_until: Some(start_until),
            first_probe: FIRST_PROBE,
            closing: None,
        }
    }

    /// Runs until it is told to close, or until nobody is left who could.
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
                    messages.drain(..).for_each(|message| self.take(message));
                    self.send(self.local());
                    // However many come: what was sent must get out, and answers in.
                    yield_now().await;
                }
                Some(heard) = self.heard.join_next() => self.hear(heard.unwrap_or(Heard::Nothing)),
                name = engine.freed() => (self.shared.freed)(&name),
                () = sleep(pause) => {}
            }
            while let Some(heard) = self.heard.try_join_next() {
                self.hear(heard.unwrap_or(Heard::Nothing));
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
        // Where that is past, nothing but an answer can help.
        let gathered = Some(self.called_at + GATHER).filter(|at| *at > now);
        let gathered = gathered.filter(|_| self.updates.ready() > 0);
        let due = [self.updates.due(), beat, closing, gathered, self.start_until];
        let due = due.into_iter().flatten().min();
        let left = due.map_or(SLEEP_MAX, |at| Duration::from_nanos(at.saturating_sub(now)));
        left.min(SLEEP_MAX)
    }

    fn take(&mut self, message: WorkerMessage) {
        match message {
            WorkerMessage::Update(update) => self.updates.add(update),
            WorkerMessage::Remove(name, reply) => {
                let engine = self.engine.clone();
                self.heard.spawn(async move {
                    let _ = reply.send(engine.remove(&name).await);
                    Heard::Removed(name)
                });
            }
            WorkerMessage::Scan(prefix, mark, reply) => {
                let (engine, time) = (self.engine.clone(), self.time);
                let clock = self.shared.clock.clone();
                self.heard.spawn(async move {
                    let page = engine.scan(&prefix, mark).await;
                    let _ = reply.send(page.map(|(all, next)| (all, next, time.at(clock.now()))));
                    Heard::Nothing
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

    /// Sends all changes that can be made, as long as not too many calls are under way.
    fn send(&mut self, now: Nanos) {
        // Also those that are not sent yet: the loop must not wake for them again and again.
        self.updates.end_rests(now);
        while !self.breaker.is_open() && self.may_call(now) {
            let at = self.time.at(self.shared.clock.now());
            let (mut requests, mut attempts) = (Vec::new(), Vec::new());
            let together =
                |all: &[CellChange]| self.engine.together(all.iter().map(|one| &*one.name));
            while requests.len() < SENT_MAX
                && let Some((changes, attempt)) = self.updates.next(now, at, together)
            {
                requests.push((changes, attempt.apart));
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
            self.heard.spawn(async move {
                let (outcomes, time) = exchange(&engine, requests).await;
                Heard::Swapped(id, outcomes, time.map(|time| (time, clock.now().mono)))
            });
        }
    }

    /// Whether what can be changed is worth a call at this moment.
    fn may_call(&self, now: Nanos) -> bool {
        let calls = self.flights.len();
        let since_last = now.saturating_sub(self.called_at);
        let is_worth = !self.engine.gathers() || is_worth(calls, self.updates.ready(), since_last);
        calls < self.engine.calls_max() && is_worth
    }

    fn hear(&mut self, heard: Heard) {
        let now = self.local();
        match heard {
            Heard::Swapped(id, outcomes, time) => {
                let attempts = self.flights.remove(&id).unwrap_or_default();
                let sent = attempts.first().map_or(now, ChangeInFlight::sent);
                if let Some((told, heard)) = time {
                    self.learn_time(told, sent, heard);
                }
                for (attempt, outcome) in attempts.into_iter().zip(outcomes) {
                    match &outcome {
                        ChangeOutcome::Fault(fault) => self.failed(fault, now),
                        _ => self.answered(now),
                    }
                    self.updates.finish(attempt, outcome, now);
                }
            }
            Heard::Beat(beat, asked) => {
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
                        self.beat_at = now + self.probe_after();
                    }
                }
            }
            Heard::Removed(name) => self.updates.forget(&name),
            Heard::Nothing => {}
        }
    }

    fn learn_time(&mut self, told: Nanos, asked: Nanos, heard: Nanos) {
        if !self.shared.clock.is_manual() {
            self.time.learn(told, asked, heard);
        }
    }

    /// Says that this node lives; while the store is away, tries whether it is back.
    fn beat(&mut self, now: Nanos) {
        if self.beating || now < self.beat_at {
            return;
        }
        self.beating = true;
        self.updates.members.ask();
        let (engine, node) = (self.engine.clone(), self.shared.node);
        self.heard.spawn(async move { Heard::Beat(engine.beat(node, BEAT_LIVES).await, now) });
    }

    fn expire(&mut self, now: Nanos) {
        if self.updates.expire(now) {
            // A store that answers others is busy, or we are: asking it less would not help them.
            let is_silent = self.breaker.is_silent(now, self.shared.timeout / 2);
            let blame =
                if is_silent { self.engine.blame(&EngineFault::Slow) } else { Blame::APart };
            self.blame(&EngineFault::Slow, blame, now);
        }
    }

    /// How long after a try that failed the next one follows. Quickly at the start, because doors
    /// wait for the first answer; then at the pace of [`PROBE`].
    fn probe_after(&mut self) -> Nanos {
        let usual = PROBE / 2 + self.shared.node % (PROBE / 2);
        let pause = self.first_probe.min(usual);
        self.first_probe = self.first_probe.saturating_mul(2);
        pause
    }

    /// Ends a start that has waited for the first answer for long enough.
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
        self.first_probe = PROBE;
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
            self.beat_at = self.beat_at.min(now + PROBE / 2 + self.shared.node % (PROBE / 2));
        } else if was_away {
            self.still_away(fault);
        } else if self.told_at.is_none_or(|at| now >= at + TELL_EVERY) {
            tracing::warn!(store = self.engine.name(), error = %fault, "the store failed");
            self.told_at = Some(now);
        }
        *self.shared.last_fault.lock() = Some(fault.clone());
    }

    /// A store that is away has failed again: worth a line only if the cause is another one.
    fn still_away(&mut self, fault: &EngineFault) {
        if self.start_until.is_none() && self.told_kind != Some(fault.kind()) {
            self.told_kind = Some(fault.kind());
            tracing::warn!(store = self.engine.name(), error = %fault, "the store is still away");
        }
    }
}

/// Whether so many changes are worth a call of their own beside those that are under way.
fn is_worth(calls: usize, changes: usize, since_last: Nanos) -> bool {
    calls == 0 || changes >= FEW || since_last >= GATHER
}

/// One call of the engine for all requests that it can change at once, and one after the other for
/// those that it cannot.
async fn exchange(
    engine: &Engine,
    requests: Vec<(Vec<CellChange>, bool)>,
) -> (Vec<ChangeOutcome>, Option<Nanos>) {
    let mut outcomes: Vec<Option<ChangeOutcome>> = requests.iter().map(|_| None).collect();
    let (mut whole, mut places, mut apart) = (Vec::new(), Vec::new(), Vec::new());
    for (at, (changes, is_apart)) in requests.into_iter().enumerate() {
        if is_apart {
            apart.push((at, changes));
        } else {
            whole.push(changes);
            places.push(at);
        }
    }
    let mut time = None;
    if !whole.is_empty() {
        for (at, told) in places.into_iter().zip(engine.swap(whole).await) {
            outcomes[at] = Some(match told {
                Ok(Timed { what, time: told }) => {
                    time = told.or(time);
                    ChangeOutcome::Swapped(what)
                }
                Err(fault) => ChangeOutcome::Fault(fault),
            });
        }
    }
    for (at, changes) in apart {
        outcomes[at] = Some(one_after_the_other(engine, changes).await);
    }
    let missing = || ChangeOutcome::Fault(EngineFault::Garbage("an answer is missing".to_owned()));
    (outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(missing)).collect(), time)
}

/// Changes counts that lie apart, in the order of their names. What was changed is put back where
/// a later one turns out to be different; what cannot be put back is told.
async fn one_after_the_other(engine: &Engine, changes: Vec<CellChange>) -> ChangeOutcome {
    let mut order: Vec<usize> = (0..changes.len()).collect();
    order.sort_by(|a, b| changes[*a].name.cmp(&changes[*b].name));
    let mut versions = vec![0; changes.len()];
    let mut done: Vec<usize> = Vec::new();
    for &at in &order {
        match engine.swap(vec![vec![changes[at].clone()]]).await.pop() {
            Some(Ok(Timed { what: Swapped::Done(written), .. })) => {
                versions[at] = written.first().copied().unwrap_or_default();
                done.push(at);
            }
            Some(Ok(Timed { what: Swapped::Stale(found), .. })) => {
                let found = found.into_iter().map(|found| (at, found)).collect();
                // A change that only compared has nothing to be taken back.
                let charged = done.into_iter().filter(|at| changes[*at].write.is_some()).collect();
                return ChangeOutcome::Broken { found, charged };
            }
            Some(Err(fault)) => return ChangeOutcome::Fault(fault),
            None => {
                return ChangeOutcome::Fault(EngineFault::Garbage(
                    "an answer is missing".to_owned(),
                ));
            }
        }
    }
    ChangeOutcome::Swapped(Swapped::Done(versions))
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
