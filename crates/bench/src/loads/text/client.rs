//! One client: which of its requests are outstanding. When to send is the business of `load`.

use std::net::UdpSocket;

use tidegate_core::Nanos;

use super::datagrams::{BATCH, Inbox, Outbox};
use super::speech;
use crate::clock;
use crate::frame::keys::Keys;
use crate::frame::tally::Tally;

const FREE: Nanos = Nanos::MAX;

/// A place for one outstanding request.
#[derive(Clone, Copy)]
struct Slot {
    id: u64,
    /// When it was sent, or should have been; [`FREE`] if nothing is outstanding.
    sent: Nanos,
}

/// What the clients of one thread share.
pub(super) struct Shared {
    pub(super) inbox: Inbox,
    pub(super) outbox: Outbox,
    pub(super) keys: Keys,
    pub(super) tally: Tally,
    /// A reply that has not come after this long will not come.
    pub(super) lost_after: Nanos,
}

/// One client.
pub(super) struct Client {
    slots: Box<[Slot]>,
    free: Vec<usize>,
}

impl Client {
    /// A client that can have `window` requests outstanding.
    pub(super) fn new(window: usize) -> Self {
        let slots = (0..window).map(|at| Slot { id: at as u64, sent: FREE }).collect();
        Self { slots, free: (0..window).rev().collect() }
    }

    /// How many more requests may be outstanding.
    pub(super) fn room(&self) -> usize {
        self.free.len()
    }

    /// Whether every request was answered or given up.
    pub(super) fn is_idle(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    /// Sends `count` requests at once, no more than there is room for nor than [`BATCH`]. `due` is
    /// when they were to be sent.
    pub(super) fn send(
        &mut self,
        shared: &mut Shared,
        socket: &UdpSocket,
        count: usize,
        due: Nanos,
    ) {
        let Shared { outbox, keys, tally, .. } = shared;
        let count = count.min(BATCH).min(self.free.len());
        for _ in 0..count {
            let Some(place) = self.free.pop() else { break };
            let window = self.slots.len() as u64;
            let slot = &mut self.slots[place];
            slot.id += window;
            slot.sent = due;
            outbox.push(|out| speech::ask(slot.id, keys.draw(), out));
        }
        tally.sent += count as u64;
        outbox.send(socket);
    }

    /// Takes the replies that are there. Returns whether there may be more.
    pub(super) fn receive(&mut self, shared: &mut Shared, socket: &UdpSocket) -> bool {
        let Shared { inbox, tally, .. } = shared;
        let mut now = None;
        inbox.receive(socket, |reply| {
            let Some((id, over)) = speech::read(reply) else { return };
            let place = (id % self.slots.len() as u64) as usize;
            let slot = &mut self.slots[place];
            // A reply that matches no open request is ignored.
            if slot.id == id && slot.sent != FREE {
                let now = *now.get_or_insert_with(clock::now);
                tally.latency.saturating_record(now.saturating_sub(slot.sent).max(1));
                tally.answered += 1;
                *tally.refused.get_or_insert(0) += u64::from(over);
                slot.sent = FREE;
                self.free.push(place);
            }
        })
    }

    /// Gives up what was sent too long ago.
    pub(super) fn give_up(&mut self, shared: &mut Shared, now: Nanos) {
        for (place, slot) in self.slots.iter_mut().enumerate() {
            if slot.sent != FREE && now.saturating_sub(slot.sent) > shared.lost_after {
                slot.sent = FREE;
                self.free.push(place);
                shared.tally.lost += 1;
            }
        }
    }
}
