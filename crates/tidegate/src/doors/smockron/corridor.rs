//! From accounting messages to delays, without a socket: parse, record, tell.
//!
//! The door's loop, the golden vectors and the allocation test all go through [`Corridor::take`].
//! It knows neither who sent a message nor how one travels.

use prometheus_client::metrics::counter::Counter;
use tidegate_core::time::{DAY, HOUR, MINUTE, SECOND};
use tidegate_core::{Nanos, Now};
use tidegate_wire::smockron::{
    self as wire, Accounting, Control, FRAMES_MAX, Frames, Message, PAIR_BYTES_END, Status, ms_up,
};

use super::elsewhere::{Elsewhere, Letter};
use super::log::Log;
use super::resync::Resync;
use crate::limiter::{Desk, Recording, Told, When};
use crate::metrics::Door;

/// How old a use may be, and how far ahead of the master's a gatekeeper's time.
const OLDEST: Nanos = MINUTE;
const AHEAD: Nanos = 5 * SECOND;
/// The latest time that is told. A limit that nothing satisfies would name the end of time.
const LATEST: Nanos = 366 * DAY;
/// How often unknown domains are complained about.
const COMPLAIN_EVERY: Nanos = MINUTE;
/// So much of an unknown domain is shown.
const SHOWN_BYTES_MAX: usize = 64;

/// Messages that were received together.
pub trait Messages {
    /// How many there are.
    fn count(&self) -> usize;
    /// The frames of one, as many as there is room for.
    fn frames<'a, 'r>(&'a self, index: usize, room: &'r mut [&'a [u8]]) -> &'r [&'a [u8]];
}

/// Where control messages go.
pub trait Post {
    /// Sends a message to the gatekeepers of its domain; `false` if it is lost.
    fn publish(&mut self, message: &Frames) -> bool;
}

/// What may be set.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The longest delay that a gatekeeper is believed.
    pub max_delay: Nanos,
    /// Whether pairs are told that are too long for gatekeepers written in C.
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
    /// Questions of gatekeepers that have just started, beyond those that can be remembered.
    resync: Counter,
}

/// The way to the limiter for the messages of gatekeepers.
pub struct Corridor {
    desk: Desk,
    settings: Settings,
    recording: Recording,
    /// Which message of the batch each recorded use is.
    which: Vec<usize>,
    frames: Frames,
    resync: Resync,
    /// What waits for a remote store, if counts lie in one.
    elsewhere: Option<Elsewhere>,
    log: Option<Log>,
    counts: Counts,
    unknown: Unknown,
}

impl Corridor {
    /// For the messages of one door.
    #[must_use]
    pub fn new(desk: Desk, settings: Settings) -> Self {
        let metrics = desk.limiter().metrics().clone();
        let lost = |what| metrics.lost(Door::Smockron, what);
        let counts = Counts {
            accepted: metrics.accounting("accepted"),
            delayed: metrics.accounting("delayed"),
            rejected: metrics.accounting("rejected"),
            control: lost("control"),
            long_pair: lost("long_pair"),
            resync: lost("resync"),
        };
        let elsewhere = desk.is_remote().then(|| Elsewhere::new(lost("store"), lost("resync")));
        Self {
            elsewhere,
            desk,
            settings,
            recording: Recording::new(),
            which: Vec::new(),
            frames: Frames::new(),
            resync: Resync::new(),
            log: None,
            counts,
            unknown: Unknown::default(),
        }
    }

    /// The same, and every accounting message is written down.
    pub(super) fn with_log(self, log: Option<Log>) -> Self {
        Self { log, ..self }
    }

    /// The time, to be read once for each batch.
    #[must_use]
    pub fn now(&self) -> Now {
        self.desk.now()
    }

    /// Writes down what gatekeepers tell, and tells them who must wait.
    pub fn take(&mut self, messages: &impl Messages, now: Now, post: &mut impl Post) {
        self.recording.begin();
        self.which.clear();
        let (mut accepted, mut delayed, mut rejected) = (0, 0, 0);
        for index in 0..messages.count() {
            let mut room = [&[][..]; FRAMES_MAX];
            match wire::parse(messages.frames(index, &mut room)) {
                Ok(Message::Accounting(told)) => {
                    if let Some(log) = &mut self.log {
                        log.line(&told, now);
                    }
                    let when = match told.status {
                        Status::Accepted => {
                            accepted += 1;
                            when(told.received_ns, told.received_ns, 0, now)
                        }
                        Status::Delayed { until_ns } => {
                            delayed += 1;
                            when(told.received_ns, until_ns, self.settings.max_delay, now)
                        }
                        Status::Rejected => {
                            rejected += 1;
                            continue;
                        }
                    };
                    let Some(when) = when else {
                        self.bad("too_old");
                        continue;
                    };
                    match self.recording.add(told.domain, told.identifier, when) {
                        Ok(()) => self.which.push(index),
                        Err(_) => self.bad("key_too_long"),
                    }
                }
                Ok(Message::Resync { domain }) => {
                    if !self.resync.ask(domain) {
                        self.counts.resync.inc();
                    }
                }
                Err(fault) => self.bad(fault.reason()),
            }
        }
        self.counts.accepted.inc_by(accepted);
        self.counts.delayed.inc_by(delayed);
        self.counts.rejected.inc_by(rejected);
        if self.elsewhere.is_some() {
            self.record_elsewhere(messages, now);
        } else {
            self.desk.record(&mut self.recording, now);
            self.tell(messages, now, post);
        }
        if let Some(log) = &mut self.log {
            log.flush();
        }
    }

    /// Tells the gatekeepers what the recorded uses of a batch have come to.
    fn tell(&mut self, messages: &impl Messages, now: Now, post: &mut impl Post) {
        for (told, &index) in self.recording.told().iter().zip(&self.which) {
            let span = match *told {
                Told::Next(0) => continue,
                Told::Next(span) => span,
                Told::Unknown => {
                    let mut room = [&[][..]; 1];
                    let first = messages.frames(index, &mut room).first();
                    self.unknown.count(first.copied().unwrap_or_default());
                    self.desk.limiter().metrics().bad_input(Door::Smockron, "unknown_domain");
                    continue;
                }
                Told::Unfit(unfit) => {
                    self.desk.limiter().metrics().bad_input(Door::Smockron, unfit.reason());
                    continue;
                }
            };
            let mut room = [&[][..]; FRAMES_MAX];
            let Ok(Message::Accounting(Accounting { domain, identifier, .. })) =
                wire::parse(messages.frames(index, &mut room))
            else {
                continue;
            };
            let control = Control::DelayUntil { domain, identifier, at_ms: at_ms(span, now) };
            publish(control, self.settings, &self.counts, &mut self.frames, post);
        }
        self.unknown.complain(now);
    }

    /// Has the recorded uses of a batch written down in a remote store.
    fn record_elsewhere(&mut self, messages: &impl Messages, now: Now) {
        let Some(elsewhere) = &self.elsewhere else { return };
        for (one, &index) in self.recording.uses().zip(&self.which) {
            let mut room = [&[][..]; FRAMES_MAX];
            if let Ok(Message::Accounting(Accounting { domain, identifier, .. })) =
                wire::parse(messages.frames(index, &mut room))
            {
                elsewhere.record(&self.desk, one, (domain, identifier), now);
            }
        }
    }

    /// Waits until a remote store has told something; for ever, if there is none. Cancel-safe.
    pub(super) async fn told(&mut self) {
        match &mut self.elsewhere {
            Some(elsewhere) => elsewhere.told().await,
            None => std::future::pending().await,
        }
    }

    /// Whether a remote store is still to tell what became of uses.
    pub(super) fn is_owed(&self) -> bool {
        self.elsewhere.as_ref().is_some_and(Elsewhere::is_owed)
    }

    /// Tells the gatekeepers what a remote store has told.
    pub(super) fn tell_told(&mut self, post: &mut impl Post) {
        let Some(elsewhere) = &mut self.elsewhere else { return };
        for letter in elsewhere.letters() {
            match (&letter, letter.control()) {
                (_, Some(control)) => {
                    publish(control, self.settings, &self.counts, &mut self.frames, post);
                }
                (Letter::Unknown(domain), _) => {
                    self.unknown.count(domain);
                    self.desk.limiter().metrics().bad_input(Door::Smockron, "unknown_domain");
                }
                (Letter::Unfit(unfit), _) => {
                    self.desk.limiter().metrics().bad_input(Door::Smockron, unfit.reason());
                }
                _ => {}
            }
        }
        self.unknown.complain(self.desk.now());
    }

    /// Whether gatekeepers that have just started wait for an answer that [`Self::search`] gives.
    #[must_use]
    pub fn is_searching(&self) -> bool {
        let walking = self.elsewhere.as_ref().is_some_and(Elsewhere::is_walking);
        self.resync.is_searching() && !walking
    }

    /// Goes on with the answers to gatekeepers that have just started, a piece of the table. In a
    /// remote store a walk is begun that goes on by itself.
    pub fn search(&mut self, now: Now, post: &mut impl Post) {
        let Self { resync, desk, frames, counts, settings, .. } = self;
        if let Some(elsewhere) = &mut self.elsewhere {
            return elsewhere.walk(desk.limiter(), resync.take_waiting());
        }
        resync.step(desk.limiter(), now, |control| {
            publish(control, *settings, counts, frames, post);
        });
    }

    fn bad(&self, reason: &'static str) {
        self.desk.limiter().metrics().bad_input(Door::Smockron, reason);
    }
}

/// Sends a message, or counts why it was not sent.
#[inline(always)]
fn publish(
    control: Control<'_>,
    settings: Settings,
    counts: &Counts,
    frames: &mut Frames,
    post: &mut impl Post,
) {
    if let Control::DelayUntil { domain, identifier, .. } = control
        && !settings.long_pairs
        && domain.len() + identifier.len() >= PAIR_BYTES_END
    {
        counts.long_pair.inc();
        return;
    }
    control.write(frames);
    if !post.publish(frames) {
        counts.control.inc();
    }
}

/// When a use happened that was asked for at `received_ns` and made at `used_ns`, on the clock that
/// limits decide by; nothing, if it is too old to be counted. A time too far ahead is not believed.
#[inline]
fn when(received_ns: u64, used_ns: u64, ahead_max: Nanos, now: Now) -> Option<When> {
    let oldest = now.unix.saturating_sub(OLDEST);
    if used_ns < oldest {
        return None;
    }
    let latest = now.unix.saturating_add(AHEAD).saturating_add(ahead_max);
    let used_ns = used_ns.min(latest);
    let at = match used_ns.checked_sub(now.unix) {
        Some(ahead) => now.mono.saturating_add(ahead),
        None => now.mono.saturating_sub(now.unix - used_ns),
    };
    // A gatekeeper tells when it gets a request, or after a long delay when that is over.
    let told_ns = if received_ns < oldest { used_ns } else { received_ns };
    Some(When { at, late: now.unix.saturating_sub(told_ns) })
}

/// When a span from now ends, in the wire's milliseconds.
pub(super) fn at_ms(span: Nanos, now: Now) -> u64 {
    ms_up(now.unix.saturating_add(span.min(LATEST)))
}

/// Domains that no rule is for: told once in a while.
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
            "smockron: messages of domains that no rule is for are ignored; \
             add the domain to [smockron.domains], or a [[rule]] that matches its keys"
        );
        *self = Self { complained: Some(now.mono), ..Self::default() };
    }
}
