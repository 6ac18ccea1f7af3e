//! The protocol as an event loop drives it: parse ahead, execute in order, append the replies;
//! events from other loops, listings that are written in the background, and slow readers.
//!
//! The door's loops, the golden vectors and the property tests all go through
//! [`ThrottrHandler::execute`]. It parses the requests of one read ahead and prefetches the index
//! cells and slots of their keys before it executes the first.

use std::sync::Arc;

use tidegate_core::time::SECOND;
use tidegate_core::{Nanos, Now};
use tidegate_wire::throttr::{
    self, Attribute, BrokenRequest, Front, Request, RequestKind, Take, Takes, Ttl, ValueSize, reply,
};

use super::background::{ListingAnswer, ListingJob, Question};
use super::channels::ChannelEvent;
use super::counts::{Figure, LoopCounts, Tally};
use super::session::{Listing, LocalSubscriptions, NotSubscribed, Session};
use super::state::ThrottrState;
use crate::doors::io::handler::{Context, Handler, Linger, Policy, Progress, SlowReader};
use crate::doors::io::listener::Peer;
use crate::doors::io::pushes::{PushOutcome, Pushes};
use crate::metrics::{Door, Metrics};
use crate::records::{self, Life, RecordProbe, Records};

/// Requests that are parsed, prefetched and executed together. Measured to cost less than one after
/// another: prefetches that follow each other closely seem to be served together.
const GROUP: usize = 16;
/// Room for the group that is parsed, the one whose slots are prefetched and the one that is
/// executed. A power of two, because it is a ring.
const AHEAD_MAX: usize = 64;
const _: () = assert!(AHEAD_MAX >= 3 * GROUP && AHEAD_MAX.is_power_of_two());

/// With so many bytes of replies, the rest of the input waits until they are written.
pub(super) const OUTPUT_BYTES_MAX: usize = 128 << 10;

/// The most bytes of events that wait for a connection, unless a single one is longer.
const EVENT_BYTES_MAX: usize = 256 << 10;
/// How long a client may leave a listing unread.
const LISTING_STALL_MAX: Nanos = 30 * SECOND;
/// The same while other connections wait for one.
const LISTING_STALL_WANTED_MAX: Nanos = SECOND;
/// How slowly a client may read a listing.
const LISTING_BYTES_PER_SECOND_MIN: u64 = 64 << 10;
/// How long a client that was told to go may take to read what it was sent.
pub(super) const LINGER_MAX: Nanos = 2 * SECOND;

/// Why execution stopped.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Pause {
    /// Every whole request was executed: read more.
    NeedsInput,
    /// There are [`OUTPUT_BYTES_MAX`] of replies: write them and go on.
    Full,
    /// What comes next should not stand behind the replies so far: write them and go on.
    Flush,
    /// Answer this and go on.
    Ask(Question),
    /// Write the replies and close.
    Broken,
}

/// The protocol in one loop.
pub(super) struct ThrottrHandler {
    pub(super) records: Arc<Records>,
    pub(super) state: Arc<ThrottrState>,
    pub(super) local: LocalSubscriptions,
    pub(super) counts: Arc<LoopCounts>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) size: ValueSize,
    pub(super) value_max: usize,
    /// An event as it is written.
    pub(super) encoded: Vec<u8>,
    tally: Tally,
}

/// A request that was parsed ahead.
#[derive(Clone, Copy)]
struct Ahead<'a> {
    request: Request<'a>,
    probe: RecordProbe<'a>,
    /// Where it ends in the input.
    end: usize,
}

impl ThrottrHandler {
    /// A handler for one loop.
    pub(super) fn new(
        records: Arc<Records>,
        state: Arc<ThrottrState>,
        local: LocalSubscriptions,
        metrics: Arc<Metrics>,
        size: ValueSize,
        value_max: usize,
    ) -> Self {
        let counts = state.new_counts();
        let (encoded, tally) = (Vec::new(), Tally::default());
        Self { records, state, local, counts, metrics, size, value_max, encoded, tally }
    }

    /// Executes the whole requests at the front of `input` as of `now`, appends their replies to
    /// `out`, which is empty, and says how many bytes it took and why it stopped. A later request
    /// sees what an earlier one did.
    pub(super) fn execute(
        &mut self,
        session: &mut Session,
        input: &[u8],
        now: Now,
        out: &mut Vec<u8>,
    ) -> (usize, Pause) {
        self.counts.turn(now);
        let stopped = match throttr::parse(input, self.size, self.value_max) {
            // One at a time is how most clients ask: nothing to look ahead at.
            Front::Request { request, bytes } if bytes == input.len() => {
                let records = self.records.clone();
                let probe = records.probe(key(&request));
                self.tally.count(request.kind());
                let pause = self.execute_one(session, &request, probe, now, out);
                (bytes, pause.unwrap_or(Pause::NeedsInput))
            }
            Front::Request { .. } => self.execute_pipelined(session, input, now, out),
            Front::Incomplete => (0, Pause::NeedsInput),
            Front::Broken(broken) => (0, self.broken(broken)),
        };
        self.tally.settle(&session.stats, &self.counts);
        stopped
    }

    /// Executes many requests, group by group. While one group is executed, the slots of the next
    /// and the index cells of the one behind it are on their way to the cache.
    fn execute_pipelined(
        &mut self,
        session: &mut Session,
        input: &[u8],
        now: Now,
        out: &mut Vec<u8>,
    ) -> (usize, Pause) {
        let records = self.records.clone();
        let nothing = Ahead { request: Request::List, probe: records.probe(&[]), end: 0 };
        let mut ahead = [nothing; AHEAD_MAX];
        // How many requests were parsed, had their slots prefetched, and were executed; and where
        // parsing goes on.
        let (mut parsed, mut fetched, mut done, mut at) = (0, 0, 0, 0);
        let mut end = None;
        let mut taken = 0;
        loop {
            let (parsed_before, fetched_before) = (parsed, fetched);
            while end.is_none() && parsed < parsed_before + GROUP {
                match throttr::parse(&input[at..], self.size, self.value_max) {
                    Front::Request { request, bytes } => {
                        at += bytes;
                        let probe = records.probe(key(&request));
                        ahead[parsed % AHEAD_MAX] = Ahead { request, probe, end: at };
                        parsed += 1;
                    }
                    front => end = Some(front),
                }
            }
            for number in parsed_before..parsed {
                ahead[number % AHEAD_MAX].probe.prefetch();
            }
            while fetched < parsed_before {
                ahead[fetched % AHEAD_MAX].probe.prefetch_slot();
                fetched += 1;
            }
            while done < fetched_before {
                let Ahead { request, probe, end } = &ahead[done % AHEAD_MAX];
                if out.len() >= OUTPUT_BYTES_MAX {
                    return (taken, Pause::Full);
                }
                if !out.is_empty() && self.is_event_to_self(session, request) {
                    return (taken, Pause::Flush);
                }
                self.tally.count(request.kind());
                if let Some(pause) = self.execute_one(session, request, *probe, now, out) {
                    return (*end, pause);
                }
                taken = *end;
                done += 1;
            }
            if end.is_some() && done == parsed {
                break;
            }
        }
        match end {
            Some(Front::Broken(broken)) => (taken, self.broken(broken)),
            _ => (taken, Pause::NeedsInput),
        }
    }

    /// Whether the reply begins with an event, which existing clients understand best at the
    /// front of what they read.
    fn is_event_to_self(&self, session: &Session, request: &Request<'_>) -> bool {
        match *request {
            Request::Publish { channel, .. } => session.is_subscribed(channel),
            Request::Event { payload, .. } => match self.request_in_event(payload) {
                Some(Request::Publish { channel, .. }) => session.is_subscribed(channel),
                _ => false,
            },
            _ => false,
        }
    }

    /// The request in the payload of an EVENT.
    fn request_in_event<'a>(&self, payload: &'a [u8]) -> Option<Request<'a>> {
        match throttr::parse(payload, self.size, self.value_max) {
            Front::Request { request, bytes } if bytes == payload.len() => Some(request),
            _ => None,
        }
    }

    #[inline]
    fn execute_one(
        &mut self,
        session: &mut Session,
        request: &Request<'_>,
        probe: RecordProbe<'_>,
        now: Now,
        out: &mut Vec<u8>,
    ) -> Option<Pause> {
        let (records, size) = (&*self.records, self.size);
        match *request {
            Request::Query { key } => match records.query(key, probe, now) {
                Some(counter) => {
                    reply::query(out, size, counter.quota, counter.unit, counter.left);
                }
                None => reply::status(out, false),
            },
            Request::Update { attribute, change: Some(change), value, key } => {
                reply::status(
                    out,
                    match attribute {
                        Some(Attribute::Quota) => {
                            records.update_quota(key, probe, change, value, size.max(), now)
                        }
                        Some(Attribute::Ttl) => records.update_ttl(key, probe, change, value, now),
                        None => false,
                    },
                );
            }
            Request::Update { change: None, .. } => reply::status(out, false),
            Request::Insert { quota, ttl, key } => {
                let life = life(ttl);
                let done = life.is_some_and(|life| records.insert(key, probe, quota, life, now));
                reply::status(out, done);
            }
            Request::Purge { key } => reply::status(out, records.purge(key, probe, now)),
            Request::Set { ttl, key, value } => {
                let life = life(ttl);
                let done = life.is_some_and(|life| records.set(key, probe, value, life, now));
                reply::status(out, done);
            }
            Request::Get { key } => {
                let see = |value: &[u8], unit, left| reply::get(out, size, unit, left, value);
                if records.get(key, probe, now, see).is_none() {
                    reply::status(out, false);
                }
            }
            Request::Consume { cost, quota, ttl, key } => {
                self.consume(cost, quota, ttl, key, probe, now, out);
            }
            _ => return self.execute_cold(session, request, now, out),
        }
        None
    }

    #[expect(clippy::too_many_arguments, reason = "a request's fields, its probe and the time")]
    fn consume(
        &self,
        cost: u64,
        quota: u64,
        ttl: Ttl,
        key: &[u8],
        probe: RecordProbe<'_>,
        now: Now,
        out: &mut Vec<u8>,
    ) {
        let Some(life) = life(ttl) else {
            return reply::consume(out, self.size, false, 0, 0);
        };
        let consumed = self.records.consume(key, probe, cost, quota, life, now);
        reply::consume(out, self.size, consumed.taken, consumed.remaining, consumed.left);
    }

    /// Requests off the hot path.
    #[inline(never)]
    fn execute_cold(
        &mut self,
        session: &mut Session,
        request: &Request<'_>,
        now: Now,
        out: &mut Vec<u8>,
    ) -> Option<Pause> {
        match *request {
            Request::Whoami => reply::whoami(out, &session.stats.id),
            Request::Stat { key } => match self.records.stat(key, self.records.probe(key), now) {
                Some(stat) => reply::stat(out, &stat),
                None => reply::status(out, false),
            },
            Request::Info => {
                // So that it counts what this batch has done so far, itself included.
                self.tally.settle(&session.stats, &self.counts);
                reply::info(out, &self.state.info(&self.records, self.size, now));
            }
            Request::Connection { id } => {
                self.tally.settle(&session.stats, &self.counts);
                match self.state.connection(&id) {
                    Some(record) => reply::connection(out, &record),
                    None => reply::status(out, false),
                }
            }
            Request::Subscribe { channel } => {
                let done = session.subscribe(channel, &self.state, &mut self.local, now);
                if done == Err(NotSubscribed::TooMany) {
                    self.metrics.bad_input(Door::Throttr, "too_many_subscriptions");
                }
                reply::status(out, done.is_ok());
            }
            Request::Unsubscribe { channel } => {
                let done = session.unsubscribe(channel, &self.state, &mut self.local);
                reply::status(out, done);
            }
            Request::Publish { channel, payload } => {
                let published = self.publish(session, channel, payload, out);
                reply::status(out, published);
            }
            Request::Event { payload, .. } => return self.event(session, payload, now, out),
            Request::List => return Some(Pause::Ask(Question::List)),
            Request::Stats => return Some(Pause::Ask(Question::Stats)),
            Request::Connections => return Some(Pause::Ask(Question::Connections)),
            Request::Channels => return Some(Pause::Ask(Question::Channels)),
            Request::Channel { channel } => {
                return Some(Pause::Ask(Question::Channel(channel.into())));
            }
            Request::Insert { .. }
            | Request::Query { .. }
            | Request::Update { .. }
            | Request::Purge { .. }
            | Request::Set { .. }
            | Request::Get { .. }
            | Request::Consume { .. } => unreachable!("these are on the hot path"),
            Request::ConsumeMany { takes } => self.consume_many(&takes, now, out),
        }
        None
    }

    /// All of them take, or none does; a unit that does not exist refuses all.
    fn consume_many(&self, takes: &Takes<'_>, now: Now, out: &mut Vec<u8>) {
        let records = &self.records;
        let known = takes.iter().map(|take| {
            let Take { cost, quota, ttl, key } = take;
            let life = life(ttl)?;
            Some(records::RecordTake { key, probe: records.probe(key), cost, quota, life })
        });
        let Some(known) = known.collect::<Option<Vec<_>>>() else {
            return reply::consume_many(out, self.size, false, takes.iter().map(|_| (0, 0)));
        };
        let mut stands = Vec::with_capacity(known.len());
        let taken = records.consume_all(&known, now, |remaining, left| {
            stands.push((remaining, left));
        });
        reply::consume_many(out, self.size, taken, stands);
    }

    /// Publishes; `false` if no connection is subscribed. A publisher that is subscribed itself has
    /// its event before any byte of its reply.
    fn publish(
        &mut self,
        session: &Session,
        channel: &[u8],
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> bool {
        session.stats.has_published(payload.len());
        if session.is_subscribed(channel) && reply::event(out, self.size, channel, payload).is_ok()
        {
            session.stats.has_received(payload.len());
            self.counts.add(Figure::Delivered, 1);
        }
        let published = self.state.channels.publish(channel, payload, &session.stats);
        self.counts.add(Figure::Lost, published.lost as u64);
        published.somebody
    }

    /// `01`, then what the request in the payload says.
    fn event(
        &mut self,
        session: &mut Session,
        payload: &[u8],
        now: Now,
        out: &mut Vec<u8>,
    ) -> Option<Pause> {
        let request = match self.request_in_event(payload) {
            // The codec lets no event through that holds another, or something else.
            Some(request) if request.kind() != RequestKind::Event => request,
            _ => return Some(self.broken(BrokenRequest::UnevenEvent)),
        };
        self.tally.count(request.kind());
        if let Request::Publish { channel, payload } = request {
            let published = self.publish(session, channel, payload, out);
            reply::status(out, true);
            reply::status(out, published);
            return None;
        }
        reply::status(out, true);
        let records = self.records.clone();
        self.execute_one(session, &request, records.probe(key(&request)), now, out)
    }

    fn broken(&self, broken: BrokenRequest) -> Pause {
        self.metrics.bad_input(Door::Throttr, broken.reason());
        Pause::Broken
    }
}

impl Handler for ThrottrHandler {
    type Session = Session;
    type Message = Arc<ChannelEvent>;
    type Answer = ListingAnswer;

    const DOOR: Door = Door::Throttr;
    const POLICY: Policy = Policy {
        brief: false,
        reads_on: false,
        refusal: b"",
        output_bytes: OUTPUT_BYTES_MAX,
        push_bytes_max: EVENT_BYTES_MAX,
        drain_max: 30 * SECOND,
        linger: Linger {
            span: LINGER_MAX,
            span_at_end: 0,
            bytes_max: 1 << 20,
            slow: Some("slow_to_leave"),
            too_much: None,
        },
    };

    fn on_open(
        &mut self,
        peer: Peer,
        _: &mut Vec<u8>,
        context: &Context,
    ) -> Result<(Session, Progress), &'static str> {
        let slot = context.id.slot;
        match Session::open(peer, slot, &self.state, &mut self.local, context.now) {
            Ok(session) => Ok((session, Progress::More)),
            Err(error) => {
                tracing::error!(%error, "throttr: the system has no random numbers for an id");
                Err("no_randomness")
            }
        }
    }

    #[inline]
    fn on_bytes(
        &mut self,
        session: &mut Session,
        input: &[u8],
        output: &mut Vec<u8>,
        context: &Context,
    ) -> (usize, Progress) {
        let (taken, pause) = self.execute(session, input, context.now, output);
        let progress = match pause {
            Pause::NeedsInput => Progress::More,
            Pause::Full | Pause::Flush => Progress::Flush,
            Pause::Broken => Progress::Close,
            Pause::Ask(question) => {
                let taken = self.state.background.run(ListingJob {
                    question,
                    from: context.id,
                    size: self.size,
                    state: self.state.clone(),
                    records: self.records.clone(),
                    inbox: self.local.inbox.clone(),
                });
                if taken { Progress::Pending } else { Progress::Close }
            }
        };
        (taken, progress)
    }

    fn on_answer(
        &mut self,
        session: &mut Session,
        answer: ListingAnswer,
        output: &mut Vec<u8>,
        now: Now,
    ) -> Progress {
        let ListingAnswer { bytes, permit } = answer;
        session.listing = Some(Listing { permit, answered_at: now.mono });
        if output.is_empty() {
            *output = bytes;
        } else {
            output.extend_from_slice(&bytes);
        }
        Progress::More
    }

    /// Hands an event to the subscribers in this loop.
    fn on_message(&mut self, event: Arc<ChannelEvent>, pushes: &mut Pushes<'_, Self>) -> usize {
        self.encoded.clear();
        let encoded = &mut self.encoded;
        let fits = reply::event(encoded, self.size, &event.name, &event.payload).is_ok();
        let (mut delivered, mut lost) = (0, 0);
        for (slot, member) in self.local.audience(&event) {
            match if fits { pushes.push(slot, encoded) } else { PushOutcome::Full } {
                PushOutcome::Gone => {}
                PushOutcome::Full => lost += 1,
                PushOutcome::Closing => delivered += 1,
                PushOutcome::Taken => {
                    event.got_by(member);
                    delivered += 1;
                }
            }
        }
        self.counts.add(Figure::Delivered, delivered);
        self.counts.add(Figure::Lost, lost);
        (delivered + lost) as usize
    }

    #[inline]
    fn on_read(&mut self, session: &mut Session, bytes: usize) {
        session.stats.has_read(bytes);
        self.counts.add(Figure::Read, bytes as u64);
    }

    #[inline]
    fn on_written(&mut self, session: &mut Session, bytes: usize, all: bool) {
        session.stats.has_written(bytes);
        self.counts.add(Figure::Written, bytes as u64);
        if all {
            session.listing = None;
        }
    }

    #[inline]
    fn on_buffers(&mut self, session: &Session, allocated: usize, used: usize) {
        session.stats.holds(allocated, used);
    }

    #[inline]
    fn is_listening(&self, session: &Session) -> bool {
        session.has_chosen()
    }

    /// A listing takes memory that others wait for, so it must be read sooner than replies.
    fn is_too_slow(&self, session: &Session, reader: &SlowReader) -> bool {
        let SlowReader { now, stalled, idle_max } = *reader;
        let Some(Listing { permit, answered_at }) = &session.listing else {
            return stalled > idle_max;
        };
        let stall_max =
            if permit.is_wanted() { LISTING_STALL_WANTED_MAX } else { LISTING_STALL_MAX };
        let reading_max = permit.bytes() as u64 * SECOND / LISTING_BYTES_PER_SECOND_MIN;
        stalled > stall_max.min(idle_max)
            || now.saturating_sub(*answered_at) > stall_max + reading_max
    }

    fn on_close(&mut self, session: Session) {
        session.close(&self.state, &mut self.local);
    }

    fn on_end(&mut self) {
        self.state.end_counts(self.counts.clone());
    }
}

/// How long a record shall live; `None` where the unit is unknown.
#[inline]
fn life(ttl: Ttl) -> Option<Life> {
    Some(Life { unit: ttl.unit?, amount: ttl.amount })
}

/// The key that a request looks up; the empty one where it looks up none.
#[inline]
fn key<'a>(request: &Request<'a>) -> &'a [u8] {
    match *request {
        Request::Query { key }
        | Request::Update { key, .. }
        | Request::Insert { key, .. }
        | Request::Purge { key }
        | Request::Set { key, .. }
        | Request::Get { key }
        | Request::Consume { key, .. } => key,
        _ => &[],
    }
}

#[cfg(test)]
mod tests;
