//! One client: its socket, and which of its requests are outstanding.
//!
//! When to send is the business of `load`.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use tidegate_core::Nanos;
use tidegate_core::time::MILLISECOND;

use super::keys::{self, Keys, REQUEST_BYTES_MAX};
use super::tally::Tally;
use crate::clock::Clock;
use crate::doors::text::grouping::Parcel;
use crate::doors::text::mmsg::{self, Address, BATCH, Inbox, Local};
use crate::doors::text::post::Post;

/// A reply that has not come after this long will not come.
pub(super) const LOST_AFTER: Nanos = 500 * MILLISECOND;

/// Bytes of replies that wait in the kernel for each client, as far as the system allows.
const BACKLOG_BYTES: usize = 1 << 20;

const FREE: Nanos = Nanos::MAX;

/// A place for one outstanding request.
#[derive(Clone, Copy)]
struct Slot {
    id: u64,
    /// When it was sent, or should have been; [`FREE`] if nothing is outstanding.
    sent: Nanos,
}

/// What the clients of one thread share.
pub(super) struct Desk {
    pub(super) inbox: Inbox,
    pub(super) post: Post,
    /// Whether what is sent at once leaves joined.
    pub(super) join: bool,
    pub(super) keys: Keys,
    pub(super) server: Address,
    pub(super) tally: Tally,
}

/// Opens a client's socket, one that takes replies joined if `join`.
pub(super) fn open(server: SocketAddr, join: bool) -> io::Result<UdpSocket> {
    let socket = if server.is_ipv4() {
        UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?
    } else {
        UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?
    };
    // The system may grant less.
    let _ = socket2::SockRef::from(&socket).set_recv_buffer_size(BACKLOG_BYTES);
    socket.set_nonblocking(true)?;
    if join {
        mmsg::receive_joined(socket.as_fd())?;
    }
    Ok(socket)
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
        desk: &mut Desk,
        socket: BorrowedFd<'_>,
        count: usize,
        due: Nanos,
    ) {
        let Desk { post, join, keys, server, tally, .. } = desk;
        let mut bytes = [0; BATCH * REQUEST_BYTES_MAX];
        let mut parcels = [Parcel { to: server, from: Local::Bound, start: 0, end: 0 }; BATCH];
        let count = count.min(BATCH).min(self.free.len());
        let mut end = 0;
        for parcel in &mut parcels[..count] {
            let Some(place) = self.free.pop() else { break };
            let window = self.slots.len() as u64;
            let slot = &mut self.slots[place];
            slot.id += window;
            slot.sent = due;
            parcel.start = end;
            end += keys::request(&mut bytes[end..], slot.id, keys.draw());
            parcel.end = end;
        }
        tally.sent += count as u64;
        post.send(socket, *join, &bytes, &parcels[..count]);
    }

    /// Takes the replies that are there. Returns whether there may be more.
    pub(super) fn receive(
        &mut self,
        desk: &mut Desk,
        socket: BorrowedFd<'_>,
        clock: &Clock,
    ) -> bool {
        let Ok(count) = desk.inbox.receive(socket, false) else { return false };
        let now = clock.now().mono;
        let replies = (0..count).filter_map(|at| desk.inbox.datagrams(at)).flatten();
        for id in replies.filter_map(keys::reply_id) {
            let place = (id % self.slots.len() as u64) as usize;
            let slot = &mut self.slots[place];
            // A reply that matches no open request is ignored.
            if slot.id == id && slot.sent != FREE {
                desk.tally.latency.saturating_record(now.saturating_sub(slot.sent).max(1));
                desk.tally.answered += 1;
                slot.sent = FREE;
                self.free.push(place);
            }
        }
        count == BATCH
    }

    /// Gives up what was sent too long ago.
    pub(super) fn give_up(&mut self, desk: &mut Desk, now: Nanos) {
        for (place, slot) in self.slots.iter_mut().enumerate() {
            if slot.sent != FREE && now.saturating_sub(slot.sent) > LOST_AFTER {
                slot.sent = FREE;
                self.free.push(place);
                desk.tally.lost += 1;
            }
        }
    }
}
