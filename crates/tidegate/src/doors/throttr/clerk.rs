//! Answers that go over everything there is: LIST, STATS, CONNECTIONS, CHANNELS and CHANNEL.
//!
//! They are written on threads of their own, so that no loop stands still while millions of
//! records are gone over. A connection that asked waits; the loop goes on with the others.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread;

use parking_lot::{Condvar, Mutex};
use tidegate_core::Now;
use tidegate_wire::throttr::fragments::{
    self, ChannelRow, Fragments, KeyStat, Listed, RecordKind, Row,
};
use tidegate_wire::throttr::{ValueSize, reply};

use super::channels::ChannelFigures;
use super::convert;
use super::hall::Hall;
use super::post::{Letter, Post};
use crate::clock::Clock;
use crate::records::{self, Records};

/// The most long answers that are held in memory at once; who asks for one more waits.
const LONG_MAX: usize = 4;
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
                    reply::channel(out, subscribers.len() as u64);
                    subscribers.iter().for_each(|subscriber| reply::subscriber(out, subscriber));
                }
            },
        }
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
    fragments::head(out, fragments::count::<R>(size, lengths));
    let mut fragments = Fragments::new(size, rows);
    while fragments.append(out) {}
}

/// The whole answer for a connection, named by its place in its loop.
pub(super) struct Answer {
    pub(super) slot: u32,
    pub(super) generation: u32,
    pub(super) bytes: Vec<u8>,
    /// Given back when the answer has been sent, or nobody wants it any more.
    pub(super) permit: Option<Permit>,
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
    fn run(self, permit: Option<Permit>) {
        let mut bytes = Vec::new();
        let now = self.clock.now();
        self.question.answer(&self.hall, &self.records, self.size, now, &mut bytes);
        let Errand { slot, generation, post, .. } = self;
        post.leave(Letter::Answer(Answer { slot, generation, bytes, permit }));
    }
}

/// The right to hold one long answer in memory.
pub(super) struct Permit(Arc<Permits>);

#[derive(Default)]
struct Permits {
    given: Mutex<usize>,
    returned: Condvar,
}

impl Permits {
    fn wait(self: &Arc<Self>) -> Permit {
        let mut given = self.given.lock();
        while *given >= LONG_MAX {
            self.returned.wait(&mut given);
        }
        *given += 1;
        Permit(self.clone())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        *self.0.given.lock() -= 1;
        self.0.returned.notify_one();
    }
}

/// The threads that write answers: one for short ones, one for long ones. They start with the
/// first errand and end with the clerk.
#[derive(Default)]
pub(super) struct Clerk {
    short: OnceLock<Option<Sender<Errand>>>,
    long: OnceLock<Option<Sender<Errand>>>,
}

impl Clerk {
    /// Takes an errand; `false` if the system has no thread for it.
    pub(super) fn run(&self, errand: Errand) -> bool {
        let sender = if errand.question.is_long(&errand.records) {
            let permits = Arc::<Permits>::default();
            self.long.get_or_init(|| start("throttr-long", move || Some(permits.wait())))
        } else {
            self.short.get_or_init(|| start("throttr-short", || None))
        };
        sender.as_ref().is_some_and(|sender| sender.send(errand).is_ok())
    }
}

fn start(
    name: &str,
    permit: impl Fn() -> Option<Permit> + Send + 'static,
) -> Option<Sender<Errand>> {
    let (sender, errands): (_, Receiver<Errand>) = channel();
    let work = move || errands.iter().for_each(|errand| errand.run(permit()));
    match thread::Builder::new().name(name.to_owned()).spawn(work) {
        Ok(_) => Some(sender),
        Err(error) => {
            tracing::error!(%error, "throttr: no thread for listings");
            None
        }
    }
}
