//! From bytes to replies, without a socket: parse ahead, execute in order, append the replies.
//!
//! The door's loops, the golden vectors and the property tests all go through
//! [`ThrottrHandler::execute`]. Many requests of one read are parsed ahead, so that the cells and
//! slots of their keys are on their way to the cache when the first of them is executed. What the
//! event loop asks of a handler is in `in_loop`.

use std::sync::Arc;

use tidegate_core::Now;
use tidegate_wire::throttr::{
    self, Attribute, Broken, Change, Front, Kind, Request, Take, Takes, Ttl, ValueSize, reply,
};

use super::background::Question;
use super::connection_stats::ConnectionStats;
use super::convert::{self, unit_to_wire};
use super::counts::{Figure, Lane};
use super::session::{LocalSubscriptions, NotSubscribed, Session};
use super::state::ThrottrState;
use crate::metrics::{Door, Metrics};
use crate::records::{self, Probe, Records};

/// Requests that are parsed, called for and executed together, which was measured to cost less than
/// one after another: calls for memory that follow closely seem to be held up together.
const GROUP: usize = 16;
/// Room for the group that is parsed, the one whose slots are called for and the one that is
/// executed. A power of two, since places are taken in turn.
const AHEAD_MAX: usize = 64;
const _: () = assert!(AHEAD_MAX >= 3 * GROUP && AHEAD_MAX.is_power_of_two());

/// With so many bytes of replies, the rest of the input waits until they are written.
pub(super) const OUTPUT_BYTES_MAX: usize = 128 << 10;

/// Why execution stopped.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Pause {
    /// Every whole request was executed.
    Starved,
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
    pub(super) lane: Arc<Lane>,
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
    probe: Probe<'a>,
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
        let lane = state.lane();
        let (encoded, tally) = (Vec::new(), Tally::default());
        Self { records, state, local, lane, metrics, size, value_max, encoded, tally }
    }

    /// Executes the whole requests at the front of `input` as of `now`, appends their replies to
    /// `out`, and says how many bytes it took and why it stopped. A later request sees what an
    /// earlier one did.
    pub(super) fn execute(
        &mut self,
        session: &mut Session,
        input: &[u8],
        now: Now,
        out: &mut Vec<u8>,
    ) -> (usize, Pause) {
        self.lane.turn(now);
        let stopped = match throttr::parse(input, self.size, self.value_max) {
            // One at a time is how most clients ask: nothing to look ahead at.
            Front::Request { request, bytes } if bytes == input.len() => {
                let records = self.records.clone();
                let probe = records.probe(key(&request));
                match self.next(session, &request, probe, now, out) {
                    Err(pause) => (0, pause),
                    Ok(pause) => (bytes, pause.unwrap_or(Pause::Starved)),
                }
            }
            Front::Request { .. } => self.stream(session, input, now, out),
            Front::Incomplete => (0, Pause::Starved),
            Front::Broken(broken) => (0, self.broken(broken)),
        };
        self.tally.settle(&session.stats, &self.lane);
        stopped
    }

    /// Executes many requests, group by group. While one group is executed, the slots of the next
    /// and the index cells of the one behind it are on their way to the cache.
    fn stream(
        &mut self,
        session: &mut Session,
        input: &[u8],
        now: Now,
        out: &mut Vec<u8>,
    ) -> (usize, Pause) {
        let records = self.records.clone();
        let nothing = Ahead { request: Request::List, probe: records.probe(&[]), end: 0 };
        let mut ahead = [nothing; AHEAD_MAX];
        // How many were parsed, had their slots called for, and were executed; and where parsing
        // goes on.
        let (mut parsed, mut called, mut done, mut at) = (0, 0, 0, 0);
        let mut end = None;
        let mut taken = 0;
        loop {
            let (cells_called, slots_called) = (parsed, called);
            while end.is_none() && parsed < cells_called + GROUP {
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
            for number in cells_called..parsed {
                ahead[number % AHEAD_MAX].probe.prefetch();
            }
            while called < cells_called {
                ahead[called % AHEAD_MAX].probe.prefetch_slot();
                called += 1;
            }
            while done < slots_called {
                let Ahead { request, probe, end } = &ahead[done % AHEAD_MAX];
                match self.next(session, request, *probe, now, out) {
                    Err(pause) => return (taken, pause),
                    Ok(Some(pause)) => return (*end, pause),
                    Ok(None) => taken = *end,
                }
                done += 1;
            }
            if end.is_some() && done == parsed {
                break;
            }
        }
        match end {
            Some(Front::Broken(broken)) => (taken, self.broken(broken)),
            _ => (taken, Pause::Starved),
        }
    }

    /// Executes a request, unless there is a reason to stop before it, which is the error. There
    /// may be one to stop behind it.
    #[inline]
    fn next(
        &mut self,
        session: &mut Session,
        request: &Request<'_>,
        probe: Probe<'_>,
        now: Now,
        out: &mut Vec<u8>,
    ) -> Result<Option<Pause>, Pause> {
        if out.len() >= OUTPUT_BYTES_MAX {
            return Err(Pause::Full);
        }
        if !out.is_empty() && self.is_event_to_self(session, request) {
            return Err(Pause::Flush);
        }
        self.tally.count(request.kind());
        Ok(self.one(session, request, probe, now, out))
    }

    /// Whether the reply begins with an event, which existing clients understand best at the
    /// front of what they read.
    fn is_event_to_self(&self, session: &Session, request: &Request<'_>) -> bool {
        match *request {
            Request::Publish { channel, .. } => session.is_subscribed(channel),
            Request::Event { payload, .. } => match self.inner(payload) {
                Some(Request::Publish { channel, .. }) => session.is_subscribed(channel),
                _ => false,
            },
            _ => false,
        }
    }

    /// The request in the payload of an EVENT.
    fn inner<'a>(&self, payload: &'a [u8]) -> Option<Request<'a>> {
        match throttr::parse(payload, self.size, self.value_max) {
            Front::Request { request, bytes } if bytes == payload.len() => Some(request),
            _ => None,
        }
    }

    #[inline]
    fn one(
        &mut self,
        session: &mut Session,
        request: &Request<'_>,
        probe: Probe<'_>,
        now: Now,
        out: &mut Vec<u8>,
    ) -> Option<Pause> {
        let (records, size) = (&*self.records, self.size);
        match *request {
            Request::Query { key } => match records.query(key, probe, now) {
                Some(counter) => {
                    let unit = unit_to_wire(counter.unit);
                    reply::query(out, size, counter.quota, unit, counter.left);
                }
                None => reply::status(out, false),
            },
            Request::Update { attribute, change, value, key } => {
                let done = self.update(attribute, change, value, key, probe, now);
                reply::status(out, done);
            }
            Request::Insert { quota, ttl, key } => {
                let life = convert::life(ttl);
                let done = life.is_some_and(|life| records.insert(key, probe, quota, life, now));
                reply::status(out, done);
            }
            Request::Purge { key } => reply::status(out, records.purge(key, probe, now)),
            Request::Set { ttl, key, value } => {
                let life = convert::life(ttl);
                let done = life.is_some_and(|life| records.set(key, probe, value, life, now));
                reply::status(out, done);
            }
            Request::Get { key } => {
                let see = |value: &[u8], unit, left| {
                    reply::get(out, size, unit_to_wire(unit), left, value);
                };
                if records.get(key, probe, now, see).is_none() {
                    reply::status(out, false);
                }
            }
            Request::Consume { cost, quota, ttl, key } => {
                self.consume(cost, quota, ttl, key, probe, now, out);
            }
            _ => return self.cold(session, request, now, out),
        }
        None
    }

    #[inline]
    fn update(
        &self,
        attribute: Option<Attribute>,
        change: Option<Change>,
        value: u64,
        key: &[u8],
        probe: Probe<'_>,
        now: Now,
    ) -> bool {
        let (Some(attribute), Some(change)) = (attribute, change) else { return false };
        let change = convert::change(change);
        match attribute {
            Attribute::Quota => {
                self.records.update_quota(key, probe, change, value, self.size.max(), now)
            }
            Attribute::Ttl => self.records.update_ttl(key, probe, change, value, now),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "a request's fields, its probe and the time")]
    fn consume(
        &self,
        cost: u64,
        quota: u64,
        ttl: Ttl,
        key: &[u8],
        probe: Probe<'_>,
        now: Now,
        out: &mut Vec<u8>,
    ) {
        let Some(life) = convert::life(ttl) else {
            return reply::consume(out, self.size, false, 0, 0);
        };
        let consumed = self.records.consume(key, probe, cost, quota, life, now);
        reply::consume(out, self.size, consumed.taken, consumed.remaining, consumed.left);
    }

    /// What nobody asks by the million.
    #[inline(never)]
    fn cold(
        &mut self,
        session: &mut Session,
        request: &Request<'_>,
        now: Now,
        out: &mut Vec<u8>,
    ) -> Option<Pause> {
        match *request {
            Request::Whoami => reply::whoami(out, &session.stats.id),
            Request::Stat { key } => match self.records.stat(key, self.records.probe(key), now) {
                Some(stat) => reply::stat(out, &convert::stat(&stat)),
                None => reply::status(out, false),
            },
            Request::Info => {
                // So that it counts what this batch has done so far, itself included.
                self.tally.settle(&session.stats, &self.lane);
                reply::info(out, &self.state.info(&self.records, self.size, now));
            }
            Request::Connection { id } => {
                self.tally.settle(&session.stats, &self.lane);
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
            | Request::Consume { .. } => unreachable!("these are asked by the million"),
            Request::ConsumeMany { takes } => self.consume_many(&takes, now, out),
        }
        None
    }

    /// All of them take, or none does; a unit that does not exist refuses all.
    fn consume_many(&self, takes: &Takes<'_>, now: Now, out: &mut Vec<u8>) {
        let records = &self.records;
        let known = takes.iter().map(|take| {
            let Take { cost, quota, ttl, key } = take;
            let life = convert::life(ttl)?;
            Some(records::Take { key, probe: records.probe(key), cost, quota, life })
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

    /// Publishes; `false` if nobody is subscribed. A publisher that is subscribed itself has its
    /// event before any byte of its reply.
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
            self.lane.add(Figure::Delivered, 1);
        }
        let published = self.state.channels.publish(channel, payload, &session.stats);
        self.lane.add(Figure::Lost, published.lost as u64);
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
        let request = match self.inner(payload) {
            // The codec lets no event through that holds another, or something else.
            Some(request) if request.kind() != Kind::Event => request,
            _ => return Some(self.broken(Broken::UnevenEvent)),
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
        self.one(session, &request, records.probe(key(&request)), now, out)
    }

    fn broken(&self, broken: Broken) -> Pause {
        self.metrics.bad_input(Door::Throttr, broken.reason());
        Pause::Broken
    }
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

/// Requests by kind that are not yet in the lane and in the connection's figures.
#[derive(Default)]
struct Tally {
    counts: [u32; Kind::COUNT],
    /// The kinds that were counted, a bit each.
    seen: u32,
}

impl Tally {
    #[inline]
    fn count(&mut self, kind: Kind) {
        self.counts[kind.index()] += 1;
        self.seen |= 1 << kind.index();
    }

    #[inline]
    fn settle(&mut self, stats: &ConnectionStats, lane: &Lane) {
        while self.seen != 0 {
            let kind = self.seen.trailing_zeros() as usize;
            self.seen &= self.seen - 1;
            let count = u64::from(std::mem::take(&mut self.counts[kind]));
            stats.count(kind, count);
            lane.requests(kind, count);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use tidegate_wire::throttr::Unit;

    use super::*;
    use crate::clock::Clock;
    use crate::doors::io::inbox::Inbox;
    use crate::doors::io::listener::Peer;

    const NOW: Now = Now { mono: 1 << 60, unix: 1 << 60 };
    const SIZE: ValueSize = ValueSize::Bits32;

    fn open(value_max: usize) -> (ThrottrHandler, Session) {
        let clock = Clock::manual(NOW);
        let settings = records::Settings { max_records: 100, max_bytes: 64 << 20 };
        let (records, state) = (Records::new(settings), ThrottrState::new(clock));
        let local = LocalSubscriptions::new(Inbox::new().expect("an eventfd"));
        let metrics = Arc::new(Metrics::new());
        let mut handler = ThrottrHandler::new(records, state, local, metrics, SIZE, value_max);
        let peer = Peer::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 1)));
        let session = Session::open(peer, 0, &handler.state, &mut handler.local, NOW);
        (handler, session.expect("randomness"))
    }

    fn written(requests: &[Request<'_>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for request in requests {
            request.encode(SIZE, &mut bytes).expect("it can be written");
        }
        bytes
    }

    #[test]
    fn an_event_to_the_publisher_starts_a_write_of_its_own() {
        let (mut handler, mut session) = open(100);
        let query = written(&[Request::Query { key: b"k" }]);
        let publish = written(&[Request::Publish { channel: b"*", payload: b"hi" }]);
        let inner = [Request::Event { channel: b"", payload: &publish }];
        let cases = [(publish.clone(), &b"*hi\x01\x00"[..]), (written(&inner), b"*hi\x01\x01\x00")];
        for (event, replies) in cases {
            let input = [&query[..], &event, &query].concat();
            let mut out = Vec::new();
            let first = handler.execute(&mut session, &input, NOW, &mut out);
            assert_eq!((first, &out[..]), ((query.len(), Pause::Flush), &[0][..]));
            out.clear();
            let rest = &input[query.len()..];
            let second = handler.execute(&mut session, rest, NOW, &mut out);
            assert_eq!(second, (rest.len(), Pause::Starved));
            assert!(out[0] == 0x19 && out.ends_with(replies), "{out:?}");
        }
        // To others it is a status like any other.
        let nobody = written(&[Request::Publish { channel: b"nobody", payload: b"hi" }]);
        let mut out = vec![1];
        let done = handler.execute(&mut session, &nobody, NOW, &mut out);
        assert_eq!((done, &out[..]), ((nobody.len(), Pause::Starved), &[1, 0][..]));
    }

    #[test]
    fn replies_of_one_write_are_bounded() {
        const VALUE: usize = 50_000;
        let (mut handler, mut session) = open(VALUE);
        let ttl = Ttl::new(9, Unit::Hours);
        let set = written(&[Request::Set { ttl, key: b"k", value: &[7; VALUE] }]);
        let mut out = Vec::new();
        handler.execute(&mut session, &set, NOW, &mut out);
        let get = written(&[Request::Get { key: b"k" }]);
        let input = get.repeat(1000);
        let (mut at, mut replies, mut writes) = (0, 0, 0);
        while at < input.len() {
            out.clear();
            let (taken, pause) = handler.execute(&mut session, &input[at..], NOW, &mut out);
            assert!(taken > 0 && out.len() < OUTPUT_BYTES_MAX + VALUE + 100);
            assert_eq!(pause == Pause::Full, at + taken < input.len());
            (at, replies, writes) = (at + taken, replies + out.len(), writes + 1);
        }
        assert_eq!(replies, 1000 * (VALUE + 10));
        assert!(writes <= 334, "as few writes as fit: {writes}");
    }

    #[test]
    fn requests_are_counted_by_kind_for_the_loop_and_the_connection() {
        let (mut handler, mut session) = open(100);
        let query = Request::Query { key: b"k" };
        let input = written(&[query, query, Request::Whoami, query]);
        // Half a request more, which does not count.
        let input = [&input[..], &[2]].concat();
        let mut out = Vec::new();
        let (taken, pause) = handler.execute(&mut session, &input, NOW, &mut out);
        assert_eq!((taken, pause), (input.len() - 1, Pause::Starved));
        let kinds = handler.state.sum().kinds();
        assert_eq!(kinds[Kind::Query.index()].total, 3);
        assert_eq!(kinds[Kind::Whoami.index()].total, 1);
        assert_eq!(session.stats.record().requests[Kind::Query.index()], 3);
    }
}
