//! From accounting messages to delays, without a socket: parse, record, publish.
//!
//! The door's loop, the golden vectors and the allocation test all go through [`Handler::take`].
//! It knows neither the sender of a message nor how messages travel.

use prometheus_client::metrics::counter::Counter;
use tidegate_core::time::{DAY, HOUR, MINUTE};
use tidegate_core::{Nanos, Now};
use tidegate_wire::smockron::{
    self as wire, Accounting, AccountingMessage, ControlMessage, FRAMES_MAX, Frames,
    PAIR_BYTES_END, Status, ms_up,
};
use tokio::sync::mpsc;

use super::log::UseLog;
use super::resync::Resync;
use super::uses::{RecordedUses, record};
use crate::limiter::{Decision, InvalidRequest, LimiterHandle, Outcome, PendingVerdict};
use crate::metrics::Door;

/// The latest time that is published. A limit that no wait satisfies would name the end of time.
const LATEST: Nanos = 366 * DAY;
/// The most answers of a remote store that are published in one turn of the loop. It takes no more
/// messages than that in one, so answers do not pile up.
pub(super) const ANSWERS_MAX: usize = 256;
/// How often unknown domains are complained about.
const COMPLAIN_EVERY: Nanos = MINUTE;
/// So much of an unknown domain is shown.
const SHOWN_BYTES_MAX: usize = 64;

/// A domain and an identifier.
type Pair<'a> = (&'a [u8], &'a [u8]);

/// Messages that were received together.
pub trait Messages {
    /// How many there are.
    fn count(&self) -> usize;
    /// The frames of one, as many as there is room for.
    fn frames<'a, 'r>(&'a self, index: usize, room: &'r mut [&'a [u8]]) -> &'r [&'a [u8]];
}

/// Where control messages go.
pub trait Publish {
    /// Sends a message to the gatekeepers of its domain; `false` if it is lost.
    fn publish(&mut self, message: &Frames) -> bool;
}

/// What may be set.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The longest delay that a gatekeeper is believed.
    pub max_delay: Nanos,
    /// Whether delays are published for pairs that are too long for gatekeepers written in C.
    pub long_pairs: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { max_delay: HOUR, long_pairs: false }
    }
}

/// What is counted beside decisions and bad input.
struct Counts {
    accepted: Counter,
    delayed: Counter,
    rejected: Counter,
    /// Delays that no queue had room for.
    control: Counter,
    /// Delays that were not told because the pair is too long.
    long_pair: Counter,
    /// Questions of gatekeepers that have just started, beyond those that can be remembered, or
    /// that a remote store did not answer.
    resync: Counter,
    /// Uses that a remote store was not asked to record because too many are pending.
    store: Counter,
}

/// A delay that follows from a use which a remote store has recorded.
struct Answer {
    domain: Box<[u8]>,
    identifier: Box<[u8]>,
    /// When the use was told, and how long from then until the next.
    told: Now,
    delay: Nanos,
}

/// The sending end of the inbox: each pending decision has one.
struct Sender(mpsc::UnboundedSender<Answer>);

impl Sender {
    /// Has the answer to a use sent to the inbox, if a delay follows from it.
    fn expect(&self, pending: PendingVerdict, (domain, identifier): Pair<'_>, told: Now) {
        let (sender, domain, identifier) = (self.0.clone(), domain.into(), identifier.into());
        pending.0.forward(move |answered| {
            let delay = answered.verdict.delay;
            if delay > 0 {
                // Fails only when the door is closed.
                let _ = sender.send(Answer { domain, identifier, told, delay });
            }
        });
    }

    fn is_any_pending(&self) -> bool {
        self.0.strong_count() > 1
    }
}

/// The way to the limiter for the messages of gatekeepers.
pub struct Handler {
    handle: LimiterHandle,
    settings: Settings,
    uses: RecordedUses,
    decisions: Vec<Result<Decision, InvalidRequest>>,
    /// Where pending decisions send their answers. No more are there than decisions may be
    /// pending: the loop publishes answers as fast as it takes messages.
    sender: Sender,
    inbox: mpsc::UnboundedReceiver<Answer>,
    /// Answers that are published next.
    answers: Vec<Answer>,
    resync: Resync,
    frames: Frames,
    log: Option<UseLog>,
    counts: Counts,
    unknown: Unknown,
}

impl Handler {
    /// For the messages of one door.
    #[must_use]
    pub fn new(handle: LimiterHandle, settings: Settings) -> Self {
        let metrics = handle.limiter().metrics().clone();
        let lost = |what| metrics.lost(Door::Smockron, what);
        let counts = Counts {
            accepted: metrics.accounting("accepted"),
            delayed: metrics.accounting("delayed"),
            rejected: metrics.accounting("rejected"),
            control: lost("control"),
            long_pair: lost("long_pair"),
            resync: lost("resync"),
            store: lost("store"),
        };
        let (sender, inbox) = mpsc::unbounded_channel();
        Self {
            handle,
            settings,
            uses: RecordedUses::default(),
            decisions: Vec::new(),
            sender: Sender(sender),
            inbox,
            answers: Vec::new(),
            resync: Resync::default(),
            frames: Frames::new(),
            log: None,
            counts,
            unknown: Unknown::default(),
        }
    }

    /// The same, and every accounting message is written down.
    pub(super) fn with_log(self, log: Option<UseLog>) -> Self {
        Self { log, ..self }
    }

    /// The time, to be read once for each batch.
    #[must_use]
    pub fn now(&self) -> Now {
        self.handle.now()
    }

    /// Records the uses that gatekeepers report, and publishes which clients must wait.
    pub fn take(&mut self, messages: &impl Messages, now: Now, out: &mut impl Publish) {
        self.uses.clear();
        let (mut accepted, mut delayed, mut rejected) = (0, 0, 0);
        for index in 0..messages.count() {
            let mut room = [&[][..]; FRAMES_MAX];
            match wire::parse(messages.frames(index, &mut room)) {
                Ok(AccountingMessage::Accounting(told)) => {
                    if let Some(log) = &mut self.log {
                        log.line(&told, now);
                    }
                    let op = match told.status {
                        Status::Accepted => {
                            accepted += 1;
                            record(told.received_ns, told.received_ns, 0, now)
                        }
                        Status::Delayed { until_ns } => {
                            delayed += 1;
                            record(told.received_ns, until_ns, self.settings.max_delay, now)
                        }
                        Status::Rejected => {
                            rejected += 1;
                            continue;
                        }
                    };
                    let Some(op) = op else {
                        self.count_bad_input("too_old");
                        continue;
                    };
                    if self.uses.add(told.domain, told.identifier, op, index).is_err() {
                        self.count_bad_input("key_too_long");
                    }
                }
                Ok(AccountingMessage::Resync { domain }) => {
                    if !self.resync.ask(domain) {
                        self.counts.resync.inc();
                    }
                }
                Err(fault) => self.count_bad_input(fault.reason()),
            }
        }
        self.counts.accepted.inc_by(accepted);
        self.counts.delayed.inc_by(delayed);
        self.counts.rejected.inc_by(rejected);
        self.record(messages, now, out);
        if let Some(log) = &mut self.log {
            log.flush();
        }
    }

    /// Records the uses of a batch. What a remote store has to say of them comes to the inbox.
    fn record(&mut self, messages: &impl Messages, now: Now, out: &mut impl Publish) {
        let Self { uses, decisions, handle, .. } = self;
        for (keys, indices) in uses.groups() {
            handle.decide_batch(&keys, now, decisions);
            for (decision, index) in decisions.drain(..).zip(indices) {
                match decision {
                    Ok(Decision::Ready(verdict)) if verdict.outcome == Outcome::NoRule => {
                        let mut room = [&[][..]; 1];
                        let domain = messages.frames(index, &mut room).first();
                        self.unknown.count(domain.copied().unwrap_or_default());
                        count_bad_input(handle, "unknown_domain");
                    }
                    Ok(Decision::Ready(verdict)) => {
                        // Made without its store, and at once: too many are pending.
                        if verdict.degraded {
                            self.counts.store.inc();
                        }
                        let mut room = [&[][..]; FRAMES_MAX];
                        if verdict.delay > 0
                            && let Some(pair) = pair(messages.frames(index, &mut room))
                        {
                            let control = delay_until(pair, verdict.delay, now);
                            publish(control, self.settings, &self.counts, &mut self.frames, out);
                        }
                    }
                    Ok(Decision::Pending(pending)) => {
                        let mut room = [&[][..]; FRAMES_MAX];
                        if let Some(pair) = pair(messages.frames(index, &mut room)) {
                            self.sender.expect(pending, pair, now);
                        }
                    }
                    Err(invalid) => count_bad_input(handle, invalid.reason()),
                }
            }
        }
        self.unknown.complain(now);
    }

    /// Whether an answer of a remote store is still to come or to be published.
    pub(super) fn has_pending(&self) -> bool {
        self.sender.is_any_pending() || !self.inbox.is_empty() || !self.answers.is_empty()
    }

    /// Waits until there is something to publish. Cancel-safe.
    pub(super) async fn ready(&mut self) {
        if self.answers.is_empty() {
            tokio::select! {
                _ = self.inbox.recv_many(&mut self.answers, ANSWERS_MAX) => {}
                () = self.resync.ready() => {}
            }
        }
    }

    /// Waits until a remote store has answered. Cancel-safe.
    pub(super) async fn answered(&mut self) {
        if self.answers.is_empty() {
            self.inbox.recv_many(&mut self.answers, ANSWERS_MAX).await;
        }
    }

    /// Publishes what remote stores have answered, a part at a time.
    pub(super) fn publish_answers(&mut self, out: &mut impl Publish) {
        let Self { inbox, answers, counts, frames, settings, .. } = self;
        while answers.len() < ANSWERS_MAX
            && let Ok(answer) = inbox.try_recv()
        {
            answers.push(answer);
        }
        if answers.is_empty() {
            return;
        }
        let now = self.handle.now();
        for Answer { domain, identifier, told, delay } in answers.drain(..) {
            // The time may have come while the store was asked.
            if told.after(delay).mono > now.mono {
                let control = delay_until((&domain, &identifier), delay, told);
                publish(control, *settings, counts, frames, out);
            }
        }
    }

    /// Whether gatekeepers that have just started wait for what [`Self::publish_found`] tells.
    #[must_use]
    pub fn is_walking(&self) -> bool {
        self.resync.is_walking()
    }

    /// Goes on with the answers to gatekeepers that have just started, a part at a time. Must be
    /// called inside of a runtime.
    pub fn publish_found(&mut self, out: &mut impl Publish) {
        let Self { resync, handle, frames, counts, settings, .. } = self;
        let failed = resync.publish(handle.limiter(), |control| {
            publish(control, *settings, counts, frames, out);
        });
        counts.resync.inc_by(failed as u64);
    }

    #[cfg(test)]
    pub(super) fn handle(&self) -> &LimiterHandle {
        &self.handle
    }

    fn count_bad_input(&self, reason: &'static str) {
        count_bad_input(&self.handle, reason);
    }
}

fn count_bad_input(handle: &LimiterHandle, reason: &'static str) {
    handle.limiter().metrics().bad_input(Door::Smockron, reason);
}

/// The domain and the identifier of an accounting message.
fn pair<'a>(frames: &[&'a [u8]]) -> Option<Pair<'a>> {
    match wire::parse(frames) {
        Ok(AccountingMessage::Accounting(Accounting { domain, identifier, .. })) => {
            Some((domain, identifier))
        }
        _ => None,
    }
}

fn delay_until((domain, identifier): Pair<'_>, span: Nanos, now: Now) -> ControlMessage<'_> {
    ControlMessage::DelayUntil { domain, identifier, at_ms: at_ms(span, now) }
}

/// Sends a message, or counts why it was not sent.
#[inline(always)]
fn publish(
    control: ControlMessage<'_>,
    settings: Settings,
    counts: &Counts,
    frames: &mut Frames,
    out: &mut impl Publish,
) {
    if let ControlMessage::DelayUntil { domain, identifier, .. } = control
        && !settings.long_pairs
        && domain.len() + identifier.len() >= PAIR_BYTES_END
    {
        counts.long_pair.inc();
        return;
    }
    control.write(frames);
    if !out.publish(frames) {
        counts.control.inc();
    }
}

/// When a span from `now` ends, in the wire's milliseconds.
pub(super) fn at_ms(span: Nanos, now: Now) -> u64 {
    ms_up(now.unix.saturating_add(span.min(LATEST)))
}

/// Domains that no rule is for: the log names one of them now and then.
#[derive(Default)]
struct Unknown {
    count: u64,
    example: String,
    complained: Option<Nanos>,
}

impl Unknown {
    /// Counts a message, of whose domain the first is remembered.
    #[cold]
    fn count(&mut self, domain: &[u8]) {
        self.count += 1;
        if self.example.is_empty() {
            let domain = domain.strip_suffix(b"\0").unwrap_or(domain);
            let shown = &domain[..domain.len().min(SHOWN_BYTES_MAX)];
            self.example = shown.escape_ascii().to_string();
        }
    }

    fn complain(&mut self, now: Now) {
        let due = |last: Nanos| now.mono.saturating_sub(last) >= COMPLAIN_EVERY;
        if self.count == 0 || !self.complained.is_none_or(due) {
            return;
        }
        tracing::warn!(
            messages = self.count,
            domain = self.example,
            "smockron: messages of domains without a rule are ignored; \
             add the domain to [smockron.domains], or a [[rule]] that matches its keys"
        );
        *self = Self { complained: Some(now.mono), ..Self::default() };
    }
}
