//! The requests of a client that are open: sent, and neither answered nor given up.
//!
//! An entry lives as long as its [`Ticket`] or until its reply comes. There are never more entries
//! than [`super::OUTSTANDING_MAX`]: whoever enters has a place first.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tidegate_wire::text::Stats;
use tidegate_wire::text::ask::{self, Answer, Checked, LineShown};
use tokio::sync::oneshot::Sender;

use super::SizeShown;

/// Who waits, and for which kind of answer.
#[derive(Debug)]
pub(super) enum Waiting {
    Line(Sender<LineShown>),
    Stats(Sender<Stats>),
    Checked(Sender<Vec<Checked>>),
    Size(Sender<SizeShown>),
    Pong(Sender<()>),
}

#[derive(Debug, Default)]
pub(super) struct Open {
    requests: Mutex<HashMap<u64, Waiting>>,
}

/// Keeps a request open until dropped.
pub(super) struct Ticket<'a> {
    open: &'a Open,
    id: u64,
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.open.lock().remove(&self.id);
    }
}

impl Open {
    pub(super) fn enter(&self, id: u64, waiting: Waiting) -> Ticket<'_> {
        self.lock().insert(id, waiting);
        Ticket { open: self, id }
    }

    /// Hands a reply to whoever waits for it. A reply without an id of ours, or of another kind
    /// than was asked for, matches no open request and is ignored.
    pub(super) fn deliver(&self, datagram: &[u8]) {
        let Some(reply) = ask::reply(datagram) else { return };
        let Some(id) = reply.id.and_then(own_id) else { return };
        let mut requests = self.lock();
        let Some(waiting) = requests.remove(&id) else { return };
        // Whoever waited may be gone by now. Then the answer is late, and dropped with its error.
        match (waiting, reply.answer) {
            (Waiting::Line(waiter), Answer::Line(line)) => drop(waiter.send(line)),
            (Waiting::Stats(waiter), Answer::Stats { stats, .. }) => drop(waiter.send(stats)),
            (Waiting::Checked(waiter), Answer::Checked(keys)) => drop(waiter.send(keys)),
            (Waiting::Size(waiter), Answer::Size { size, keys }) => {
                let size = String::from_utf8_lossy(size).into_owned();
                drop(waiter.send(SizeShown { size, keys }));
            }
            (Waiting::Pong(waiter), Answer::Pong) => drop(waiter.send(())),
            (waiting, _) => drop(requests.insert(id, waiting)),
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    /// Nothing that holds the lock can panic half-way, so a poisoned map is a whole map.
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Waiting>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The number behind an id's digits, if we would have written it so: `007` is nobody's id here.
fn own_id(digits: &[u8]) -> Option<u64> {
    if digits.starts_with(b"0") && digits.len() > 1 {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}
