//! What the three ways to divide a bucket (leases, slices, blanket rules) have in common.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_core::{Nanos, Now};

use super::{Action, Assignment, Bank, Grant, REQUESTS_MAX, RequestId, StreamId, Terms};

/// One turn of a bucket: the time, its key, the bank, and where assignments go.
pub(super) struct Turn<'a> {
    pub(super) now: Now,
    pub(super) key: &'a Arc<[u8]>,
    pub(super) bank: &'a mut dyn Bank,
    pub(super) out: &'a mut Vec<Assignment>,
    /// Streams that are no longer in its bucket.
    pub(super) left: &'a mut Vec<StreamId>,
    pub(super) requests: &'a mut Requests,
    /// Whether the server stood still a moment ago: reports may be older than they seem.
    pub(super) after_stall: bool,
}

/// The number of questions whose answers are not waited for.
pub(super) const UNAWAITED: RequestId = RequestId(0);

/// The questions to a bank that are not answered yet.
#[derive(Debug, Default)]
pub(super) struct Requests {
    last: u64,
    open: BTreeMap<RequestId, (Arc<[u8]>, StreamId)>,
}

impl Requests {
    /// The number of another question, unless too many are open.
    pub(super) fn number(&mut self) -> Option<RequestId> {
        if self.open.len() >= REQUESTS_MAX {
            return None;
        }
        self.last += 1;
        Some(RequestId(self.last))
    }

    /// Remembers which stream asked, for which key.
    pub(super) fn keep(&mut self, request: RequestId, key: &Arc<[u8]>, stream: StreamId) {
        self.open.insert(request, (Arc::clone(key), stream));
    }

    /// Which stream asked, and for which key; forgets the question.
    pub(super) fn answer(&mut self, request: RequestId) -> Option<(Arc<[u8]>, StreamId)> {
        self.open.remove(&request)
    }
}

impl Turn<'_> {
    pub(super) fn mono(&self) -> Nanos {
        self.now.mono
    }

    pub(super) fn send(&mut self, stream: StreamId, action: Action) {
        self.out.push(Assignment { stream, key: Arc::clone(self.key), action });
    }

    /// Counts uses that have happened without having been taken before. The key is used up by them
    /// at most: a stream that reports too many must not bury it.
    pub(super) fn count(&mut self, uses: u64) {
        if uses > 0 {
            self.bank.take_up_to(self.key, uses, UNAWAITED, self.now);
        }
    }

    /// Tells Envoy to forget the bucket, and takes the stream's seat.
    pub(super) fn abandon(&mut self, stream: StreamId) {
        self.send(stream, Action::Abandon);
        self.left.push(stream);
    }
}

/// What a stream reports of a bucket.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestCounts {
    pub(super) allowed: u64,
    pub(super) denied: u64,
    /// Whether Envoy has no assignment yet.
    pub(super) is_first: bool,
}

impl RequestCounts {
    pub(super) fn requests(self) -> u64 {
        self.allowed.saturating_add(self.denied)
    }
}

/// Divides one bucket among the streams that have a seat in it.
pub(super) trait Divider {
    /// A stream reports; a first report joins. The time this takes does not grow with the number of
    /// streams.
    fn report(&mut self, stream: StreamId, counts: RequestCounts, turn: &mut Turn<'_>);

    /// A stream is gone.
    fn leave(&mut self, stream: StreamId);

    /// Does what is due, and returns when to be called again.
    fn tick(&mut self, turn: &mut Turn<'_>) -> Nanos;

    /// A bank answers a question of this stream.
    fn granted(&mut self, _: StreamId, _: RequestId, _: Grant, _: &mut Turn<'_>) {}

    /// The server ends: writes down now what is to be written down later.
    fn settle(&mut self, _: &mut Turn<'_>) {}

    /// Takes over other terms; false if they need another divider.
    fn change(&mut self, terms: &Terms, turn: &mut Turn<'_>) -> bool;

    /// The streams that are in it.
    fn streams(&self) -> Vec<StreamId>;

    /// How many they are.
    fn seats(&self) -> usize;

    /// Whether nothing would be lost with it.
    fn is_done(&self) -> bool;
}
