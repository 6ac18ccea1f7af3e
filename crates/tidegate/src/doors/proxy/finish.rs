//! What must happen once a request is over, however it ended: the use is given back, the
//! connection to the upstream goes back to the pool, and the line of the log is written.

use std::rc::Rc;

use tidegate_core::Now;

use super::access::Record;
use super::client::Client;
use super::figures::UpstreamError;
use super::ticks::Deadline;
use super::upstream::Line;
use crate::limiter::TakenFrom;
use crate::waiting::Admitted;

/// A use in flight that is to be given back.
struct Held {
    key: Box<[u8]>,
    from: TakenFrom,
    started: Now,
}

/// All of it, done when dropped.
pub(super) struct Finish {
    client: Rc<Client>,
    held: Option<Held>,
    line: Option<Box<Line>>,
    record: Option<Box<Record>>,
    whole: bool,
    /// Comes when the client has not taken what it was given for too long; absent where the
    /// connection's own pulse tells.
    stall: Option<Rc<Deadline>>,
}

impl Finish {
    /// For a request that has just begun.
    pub(super) fn new(client: Rc<Client>) -> Self {
        client.pulse.begin();
        Self { client, held: None, line: None, record: None, whole: false, stall: None }
    }

    /// The stream that carries the request is being looked at, if there is one.
    pub(super) fn on_stream(&mut self) {
        self.stall = self.client.stream.take();
    }

    /// The log wants to know of it.
    pub(super) fn log(&mut self, record: Box<Record>) {
        self.record = Some(record);
    }

    /// The request was admitted: its use is given back in the end, if there is anything to give.
    pub(super) fn admitted(&mut self, key: &[u8], admitted: &Admitted) {
        let started = admitted.started;
        self.held = admitted.held.map(|from| Held { key: key.into(), from, started });
    }

    /// A connection whose answer is through.
    pub(super) fn keep(&mut self, line: Box<Line>) {
        self.line = Some(line);
    }

    /// What the log will say, if there is one.
    pub(super) fn record(&mut self) -> Option<&mut Record> {
        self.record.as_deref_mut()
    }

    /// The client is offered a part of the body, or has taken the last one and wants more.
    pub(super) fn offered(&self, offered: bool) {
        match &self.stall {
            Some(stall) if offered => stall.set(self.client.worker.patience.stall),
            Some(stall) => stall.clear(),
            None => {}
        }
    }

    /// Some of the body is on its way to the client.
    pub(super) fn sent(&mut self, bytes: usize) {
        if let Some(record) = &mut self.record {
            record.bytes += bytes as u64;
        }
    }

    /// The upstream failed within its answer.
    pub(super) fn failed(&self, error: UpstreamError) {
        self.client.worker.failures.count(error);
    }

    /// The answer was whole.
    pub(super) fn whole(&mut self) {
        self.whole = true;
    }
}

impl Drop for Finish {
    fn drop(&mut self) {
        if let Some(line) = self.line.take() {
            self.client.worker.upstream.put(line);
        }
        // Given back before the next request of this client can ask.
        if let Some(Held { key, from, started }) = self.held.take() {
            self.client.worker.handle.release_uses(&key, 1, started, from);
        }
        if let Some(record) = self.record.take() {
            self.client.worker.write(&record, self.whole);
        }
        self.client.pulse.end();
    }
}
