//! The requests of a client that are open: sent, and neither answered nor given up.
//!
//! An entry lives as long as its [`OpenRequest`] or until its reply comes. There are at most
//! [`super::OUTSTANDING_MAX`] entries: a request takes a place before it is entered.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tidegate_wire::text::StatsReply as Stats;
use tidegate_wire::text::ask::{self, Checked, LineShown, ReplyBody};
use tokio::sync::oneshot::Sender;

use super::SizeShown;

/// Where the reply to a request goes, by its kind.
#[derive(Debug)]
pub(super) enum ReplySender {
    Line(Sender<LineShown>),
    Stats(Sender<Stats>),
    Checked(Sender<Vec<Checked>>),
    Size(Sender<SizeShown>),
    Pong(Sender<()>),
}

#[derive(Debug, Default)]
pub(super) struct OpenRequests {
    requests: Mutex<HashMap<u64, ReplySender>>,
}

/// Keeps a request open until dropped.
pub(super) struct OpenRequest<'a> {
    open: &'a OpenRequests,
    id: u64,
}

impl Drop for OpenRequest<'_> {
    fn drop(&mut self) {
        self.open.lock().remove(&self.id);
    }
}

impl OpenRequests {
    pub(super) fn enter(&self, id: u64, waiting: ReplySender) -> OpenRequest<'_> {
        self.lock().insert(id, waiting);
        OpenRequest { open: self, id }
    }

    /// Sends a reply to the request that waits for it. A reply without an id of ours, or of another
    /// kind than was asked for, matches no open request and is ignored.
    pub(super) fn deliver(&self, datagram: &[u8]) {
        let Some(reply) = ask::reply(datagram) else { return };
        let Some(id) = reply.id.and_then(own_id) else { return };
        let mut requests = self.lock();
        let Some(waiting) = requests.remove(&id) else { return };
        // The caller may have given up: then the reply is late, and dropped.
        match (waiting, reply.answer) {
            (ReplySender::Line(waiter), ReplyBody::Line(line)) => drop(waiter.send(line)),
            (ReplySender::Stats(waiter), ReplyBody::Stats { stats, .. }) => {
                let _ = waiter.send(stats);
            }
            (ReplySender::Checked(waiter), ReplyBody::Checked(keys)) => drop(waiter.send(keys)),
            (ReplySender::Size(waiter), ReplyBody::Size { size, keys }) => {
                let size = String::from_utf8_lossy(size).into_owned();
                drop(waiter.send(SizeShown { size, keys }));
            }
            (ReplySender::Pong(waiter), ReplyBody::Pong) => drop(waiter.send(())),
            (waiting, _) => drop(requests.insert(id, waiting)),
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    /// Nothing that holds the lock can panic half-way, so a poisoned map is a whole map.
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, ReplySender>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The number behind an id's digits, if this client writes it so: `007` is no id of ours.
fn own_id(digits: &[u8]) -> Option<u64> {
    if digits.starts_with(b"0") && digits.len() > 1 {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}
