//! Answers that list the server's state: LIST, STATS, CONNECTIONS, CHANNELS and CHANNEL.
//!
//! Two background threads write them, so that no loop stands still during a walk through millions
//! of records. The connection that asked waits, and its loop goes on with the others. The size of
//! such an answer grows with the server's state, so a thread builds it under a permit.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread;

use tidegate_core::Now;
use tidegate_wire::throttr::figures::ConnectionRecord;
use tidegate_wire::throttr::fragments::{
    self, ChannelRow, Fragments, KeyStat, Listed, ListingRow, RecordKind,
};
use tidegate_wire::throttr::{ValueSize, reply};

use super::ThrottrInbox;
use super::channels::ChannelFigures;
use super::permits::{Permit, Permits};
use super::state::ThrottrState;
use crate::doors::io::handler::ConnectionId;
use crate::records::{self, Records};

/// The most bytes that all such answers of the process take together; further questions wait.
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

/// What a client asks.
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
        state: &ThrottrState,
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
            Question::Connections => fragmented(out, size, state.connections().iter().copied()),
            Question::Channels => {
                let channels = state.channels.all();
                fragmented(out, size, channels.iter().map(channel_row));
            }
            Question::Channel(name) => match state.channels.one(name) {
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
    fn bytes_max(&self, state: &ThrottrState, records: &Records) -> usize {
        let (rows, row_bytes) = match self {
            Question::List | Question::Stats => {
                (records.size().records(), size_of::<records::ListedRecord>() + NAME_BYTES_MAX)
            }
            Question::Connections => (state.len(), 2 * size_of::<ConnectionRecord>()),
            Question::Channels => (state.channels.size().1, size_of::<ChannelFigures>()),
            Question::Channel(_) => (state.len(), 2 * size_of::<reply::ChannelSubscriber>()),
        };
        rows.saturating_mul(row_bytes + NAME_BYTES_MAX + ROW_BYTES_MAX)
    }

    fn is_long(&self, records: &Records) -> bool {
        matches!(self, Question::List | Question::Stats) && records.size().cells >= LONG_CELLS
    }
}

fn stats_row(record: &records::ListedRecord) -> KeyStat<'_> {
    KeyStat { key: record.key(), stat: record.stat }
}

fn list_row(record: &records::ListedRecord, size: ValueSize) -> Listed<'_> {
    let bytes_used = match record.kind {
        // A counter is the one number that it holds.
        RecordKind::Counter => size.bytes(),
        RecordKind::Buffer => record.value_bytes,
    };
    Listed {
        key: record.key(),
        kind: record.kind,
        unit: record.unit,
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

fn fragmented<R: ListingRow>(
    out: &mut Vec<u8>,
    size: ValueSize,
    rows: impl Iterator<Item = R> + Clone,
) {
    let lengths = rows.clone().map(|row| row.key().len());
    let count = fragments::count::<R>(size, lengths.clone());
    // All of it at once: growing by doubling would take twice the memory.
    let rows_bytes: usize = lengths.map(|length| R::fixed_bytes(size) + length).sum();
    out.reserve_exact(HEAD_BYTES + count as usize * FRAGMENT_HEAD_BYTES + rows_bytes);
    fragments::head(out, count);
    let mut fragments = Fragments::new(size, rows);
    while fragments.append(out) {}
}

/// The whole answer to a connection.
pub(super) struct ListingAnswer {
    pub(super) bytes: Vec<u8>,
    /// Given back when the answer has been sent, or its connection is gone.
    pub(super) permit: Permit,
}

/// A question, and where its answer goes.
pub(super) struct ListingJob {
    pub(super) question: Question,
    pub(super) from: ConnectionId,
    pub(super) size: ValueSize,
    pub(super) state: Arc<ThrottrState>,
    pub(super) records: Arc<Records>,
    /// Where the answer is left.
    pub(super) inbox: Arc<ThrottrInbox>,
}

impl ListingJob {
    fn run(self, permits: &Arc<Permits>) {
        let mut permit = permits.wait(self.question.bytes_max(&self.state, &self.records));
        let mut bytes = Vec::new();
        let now = self.state.now();
        self.question.answer(&self.state, &self.records, self.size, now, &mut bytes);
        permit.set_bytes(bytes.capacity());
        self.inbox.answer(self.from, ListingAnswer { bytes, permit });
    }
}

/// The threads that write answers: one for short ones, one for long ones. They start with the
/// first job and end with the process.
pub(super) struct Background {
    permits: Arc<Permits>,
    short: OnceLock<Option<Sender<ListingJob>>>,
    long: OnceLock<Option<Sender<ListingJob>>>,
}

impl Default for Background {
    fn default() -> Self {
        let permits = Permits::new(ANSWER_BYTES_MAX);
        Self { permits, short: OnceLock::new(), long: OnceLock::new() }
    }
}

impl Background {
    /// Takes a job; `false` if the system has no thread for it.
    pub(super) fn run(&self, job: ListingJob) -> bool {
        let sender = if job.question.is_long(&job.records) {
            self.long.get_or_init(|| start("throttr-long", self.permits.clone()))
        } else {
            self.short.get_or_init(|| start("throttr-short", self.permits.clone()))
        };
        sender.as_ref().is_some_and(|sender| sender.send(job).is_ok())
    }
}

fn start(name: &str, permits: Arc<Permits>) -> Option<Sender<ListingJob>> {
    let (sender, jobs): (_, Receiver<ListingJob>) = channel();
    let work = move || jobs.iter().for_each(|job| job.run(&permits));
    match thread::Builder::new().name(name.to_owned()).spawn(work) {
        Ok(_) => Some(sender),
        Err(error) => {
            tracing::error!(%error, "throttr: cannot start the thread for listings");
            None
        }
    }
}
