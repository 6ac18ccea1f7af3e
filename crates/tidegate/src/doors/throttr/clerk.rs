//! Answers that go over everything there is: LIST, STATS, CONNECTIONS, CHANNELS and CHANNEL.
//!
//! They are written on threads of their own, so that no loop stands still while millions of
//! records are gone over. A connection that asked waits; the loop goes on with the others. Every
//! such answer is built under a permit, since it grows with the server's state.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread;

use tidegate_core::Now;
use tidegate_wire::throttr::figures::ConnectionRecord;
use tidegate_wire::throttr::fragments::{
    self, ChannelRow, Fragments, KeyStat, Listed, RecordKind, Row,
};
use tidegate_wire::throttr::{ValueSize, reply};

use super::channels::ChannelFigures;
use super::convert;
use super::hall::Hall;
use super::permits::{Permit, Permits};
use super::post::{Letter, Post};
use crate::clock::Clock;
use crate::records::{self, Records};

/// The most bytes that all such answers of the process take together; who asks for more waits.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// The most bytes of a key or of a channel's name.
const NAME_BYTES_MAX: usize = 255;
/// A status and how many fragments or rows follow.
const HEAD_BYTES: usize = 1 + 8;
/// The index and the number of rows in front of each fragment.
const FRAGMENT_HEAD_BYTES: usize = 8 + 8;
/// A subscriber in the answer to CHANNEL.
const SUBSCRIBER_BYTES: usize = 16 + 3 * 8;
/// More than the fixed part of a row about a record or a channel takes, on the wire.
const ROW_BYTES_MAX: usize = 64;
/// From so many index cells on an answer about records is a long one.
const LONG_CELLS: usize = 1 << 16;

/// What somebody wants to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Question {
    List,
    Stats,
    Connections,
    Channels,
    Channel(Box<[u8]>),
}

impl Question {
    /// Appends the answer.
    pub(super) fn answer(
        &self,
        hall: &Hall,
        records: &Records,
        size: ValueSize,
        now: Now,
        out: &mut Vec<u8>,
    ) {
        match self {
            Question::List => {
                let listed = records.list(now);
                fragmented(out, size, listed.iter().map(|record| list_row(record, size)));
            }
            Question::Stats => {
                let listed = records.list(now);
                fragmented(out, size, listed.iter().map(stats_row));
            }
            Question::Connections => fragmented(out, size, hall.connections().iter().copied()),
            Question::Channels => {
                let channels = hall.channels.all();
                fragmented(out, size, channels.iter().map(channel_row));
            }
            Question::Channel(name) => match hall.channels.one(name) {
                None => reply::status(out, false),
                Some(subscribers) => {
                    out.reserve_exact(HEAD_BYTES + subscribers.len() * SUBSCRIBER_BYTES);
                    reply::channel(out, subscribers.len() as u64);
                    subscribers.iter().for_each(|subscriber| reply::subscriber(out, subscriber));
                }
            },
        }
    }

    /// The most bytes that building the answer takes, as of now.
    fn bytes_max(&self, hall: &Hall, records: &Records) -> usize {
        let (rows, row_bytes) = match self {
            Question::List | Question::Stats => {
                (records.size().records(), size_of::<records::Listed>() + NAME_BYTES_MAX)
            }
            Question::Connections => (hall.len(), 2 * size_of::<ConnectionRecord>()),
            Question::Channels => (hall.channels.size().1, size_of::<ChannelFigures>()),
            Question::Channel(_) => (hall.len(), 2 * size_of::<reply::Subscriber>()),
        };
        rows.saturating_mul(row_bytes + NAME_BYTES_MAX + ROW_BYTES_MAX)
    }

    fn is_long(&self, records: &Records) -> bool {
        matches!(self, Question::List | Question::Stats) && records.size().cells >= LONG_CELLS
    }
}

fn stats_row(record: &records::Listed) -> KeyStat<'_> {
    KeyStat { key: record.key(), stat: convert::stat(&record.stat) }
}

fn list_row(record: &records::Listed, size: ValueSize) -> Listed<'_> {
    let (kind, bytes_used) = match record.kind {
        // A counter is the one number that it holds.
        records::Kind::Counter => (RecordKind::Counter, size.bytes()),
        records::Kind::Buffer => (RecordKind::Buffer, record.value_bytes),
    };
    Listed {
        key: record.key(),
        kind,
        unit: convert::unit_to_wire(record.unit),
        expires_at_ns: record.expires_at,
        bytes_used: bytes_used as u64,
    }
}

fn channel_row(channel: &ChannelFigures) -> ChannelRow<'_> {
    ChannelRow {
        channel: &channel.name,
        read_bytes: channel.got_bytes,
        written_bytes: channel.published_bytes,
        connections: channel.connections,
    }
}

fn fragmented<R: Row>(out: &mut Vec<u8>, size: ValueSize, rows: impl Iterator<Item = R> + Clone) {
    let lengths = rows.clone().map(|row| row.key().len());
    let count = fragments::count::<R>(size, lengths.clone());
    // All of it at once: growing by doubling would take twice the memory.
    let rows_bytes: usize = lengths.map(|length| R::fixed_bytes(size) + length).sum();
    out.reserve_exact(HEAD_BYTES + count as usize * FRAGMENT_HEAD_BYTES + rows_bytes);
    fragments::head(out, count);
    let mut fragments = Fragments::new(size, rows);
    while fragments.append(out) {}
}

/// The whole answer for a connection, named by its place in its loop.
pub(super) struct Answer {
    pub(super) slot: u32,
    pub(super) generation: u32,
    pub(super) bytes: Vec<u8>,
    /// Given back when the answer has been sent, or nobody wants it any more.
    pub(super) permit: Permit,
}

/// A question on its way.
pub(super) struct Errand {
    pub(super) question: Question,
    pub(super) slot: u32,
    pub(super) generation: u32,
    pub(super) size: ValueSize,
    pub(super) hall: Arc<Hall>,
    pub(super) records: Arc<Records>,
    pub(super) clock: Clock,
    /// Where the answer is left.
    pub(super) post: Arc<Post>,
}

impl Errand {
    fn run(self, permits: &Arc<Permits>) {
        let mut permit = permits.wait(self.question.bytes_max(&self.hall, &self.records));
        let mut bytes = Vec::new();
        let now = self.clock.now();
        self.question.answer(&self.hall, &self.records, self.size, now, &mut bytes);
        permit.set_bytes(bytes.capacity());
        let Errand { slot, generation, post, .. } = self;
        post.leave(Letter::Answer(Answer { slot, generation, bytes, permit }));
    }
}

/// The threads that write answers: one for short ones, one for long ones. They start with the
/// first errand and end with the clerk.
pub(super) struct Clerk {
    permits: Arc<Permits>,
    short: OnceLock<Option<Sender<Errand>>>,
    long: OnceLock<Option<Sender<Errand>>>,
}

impl Default for Clerk {
    fn default() -> Self {
        let permits = Permits::new(ANSWER_BYTES_MAX);
        Self { permits, short: OnceLock::new(), long: OnceLock::new() }
    }
}

impl Clerk {
    /// Takes an errand; `false` if the system has no thread for it.
    pub(super) fn run(&self, errand: Errand) -> bool {
        let sender = if errand.question.is_long(&errand.records) {
            self.long.get_or_init(|| start("throttr-long", self.permits.clone()))
        } else {
            self.short.get_or_init(|| start("throttr-short", self.permits.clone()))
        };
        sender.as_ref().is_some_and(|sender| sender.send(errand).is_ok())
    }
}

fn start(name: &str, permits: Arc<Permits>) -> Option<Sender<Errand>> {
    let (sender, errands): (_, Receiver<Errand>) = channel();
    let work = move || errands.iter().for_each(|errand| errand.run(&permits));
    match thread::Builder::new().name(name.to_owned()).spawn(work) {
        Ok(_) => Some(sender),
        Err(error) => {
            tracing::error!(%error, "throttr: no thread for listings");
            None
        }
    }
}
