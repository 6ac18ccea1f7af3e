//! Clients that leave while nobody reads their sockets.
//!
//! The body of a request that waits is left in its socket, and so is a request that came behind one
//! that waits: the reader of the socket stops there and does not see the client leave. So epoll
//! watches these sockets, and at every tick the loop asks it for all of them at once.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use rustix::event::{Timespec, epoll};

use super::streams::Socket;

/// How many clients that have left one call of epoll reports.
const EVENTS_AT_ONCE: usize = 256;

/// The clients of one loop that are watched.
pub(super) struct Leaving {
    epoll: OwnedFd,
    places: RefCell<Places>,
}

#[derive(Default)]
struct Places {
    places: Vec<Place>,
    free: Vec<usize>,
}

#[derive(Default)]
struct Place {
    left: bool,
    waker: Option<Waker>,
}

impl Leaving {
    /// Watches nobody yet.
    pub(super) fn new() -> io::Result<Rc<Self>> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Rc::new(Self { epoll, places: RefCell::default() }))
    }

    /// Wakes those who wait for a client that has left.
    pub(super) fn look(&self) {
        while self.is_watching() && self.note_who_left() == EVENTS_AT_ONCE {}
    }

    fn is_watching(&self) -> bool {
        let places = self.places.borrow();
        places.places.len() > places.free.len()
    }

    /// Notes which clients have left since the last call, and wakes their tasks. Returns how many:
    /// at most [`EVENTS_AT_ONCE`].
    fn note_who_left(&self) -> usize {
        let mut events = Vec::with_capacity(EVENTS_AT_ONCE);
        let spare = rustix::buffer::spare_capacity(&mut events);
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        // The call does not wait, so no signal interrupts it; other errors cannot be handled here.
        let count = epoll::wait(&self.epoll, spare, Some(&at_once)).unwrap_or(0);
        let wakers: Vec<Waker> = {
            let mut places = self.places.borrow_mut();
            let left = events.iter().filter_map(|event| usize::try_from(event.data.u64()).ok());
            left.filter_map(|place| {
                places.places[place].left = true;
                places.places[place].waker.take()
            })
            .collect()
        };
        // Outside of the borrow: the last waker of a task drops the task, and what it watches.
        wakers.into_iter().for_each(Waker::wake);
        count
    }

    /// Begins to watch the client behind `socket`.
    pub(super) fn watch(self: &Rc<Self>, socket: &Rc<RefCell<Socket>>) -> io::Result<Watched> {
        let place = {
            let mut places = self.places.borrow_mut();
            places.free.pop().unwrap_or_else(|| {
                places.places.push(Place::default());
                places.places.len() - 1
            })
        };
        let watched = Watched { leaving: self.clone(), socket: socket.clone(), place };
        let data = epoll::EventData::new_u64(place as u64);
        let flags = epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        epoll::add(&self.epoll, socket.borrow().tcp(), data, flags)?;
        Ok(watched)
    }
}

/// A client that is watched until this is dropped.
pub(super) struct Watched {
    leaving: Rc<Leaving>,
    socket: Rc<RefCell<Socket>>,
    place: usize,
}

impl Watched {
    /// Whether it has left; the task is woken when it does.
    pub(super) fn poll(&self, context: &Context<'_>) -> Poll<()> {
        let stale = {
            let place = &mut self.leaving.places.borrow_mut().places[self.place];
            if place.left {
                return Poll::Ready(());
            }
            match &place.waker {
                Some(waker) if waker.will_wake(context.waker()) => None,
                _ => place.waker.replace(context.waker().clone()),
            }
        };
        // As above: outside of the borrow.
        drop(stale);
        Poll::Pending
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // Fails only for a socket that was never added.
        let _ = epoll::delete(&self.leaving.epoll, self.socket.borrow().tcp());
        let waker = {
            let mut places = self.leaving.places.borrow_mut();
            places.free.push(self.place);
            std::mem::take(&mut places.places[self.place]).waker
        };
        drop(waker);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::{Ipv4Addr, TcpListener as Listener, TcpStream as Client};

    use tokio::net::TcpStream;

    use super::*;

    /// A client, and the socket that nobody reads.
    fn pair() -> (Client, Rc<RefCell<Socket>>) {
        let listener = Listener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let client = Client::connect(listener.local_addr().unwrap()).unwrap();
        let stream = listener.accept().unwrap().0;
        stream.set_nonblocking(true).unwrap();
        let stream = TcpStream::from_std(stream).unwrap();
        (client, Rc::new(RefCell::new(Socket::Plain(stream))))
    }

    #[tokio::test]
    async fn who_leaves_is_noticed_behind_all_that_it_has_sent() {
        let context = Context::from_waker(Waker::noop());
        let leaving = Leaving::new().unwrap();
        let clients: Vec<_> = (0..2 * EVENTS_AT_ONCE).map(|_| pair()).collect();
        let watched: Vec<_> =
            clients.iter().map(|(_, socket)| leaving.watch(socket).unwrap()).collect();
        for (mut client, _) in clients.iter().map(|(client, socket)| (client, socket)) {
            client.write_all(b"unread").unwrap();
        }
        leaving.look();
        assert!(watched.iter().all(|client| client.poll(&context).is_pending()));
        let (stay, leave): (Vec<_>, Vec<_>) =
            clients.into_iter().enumerate().partition(|(number, _)| number % 2 == 0);
        drop(leave);
        // The system may take its time, and those who left first are not waited for.
        while watched.iter().filter(|client| client.poll(&context).is_ready()).count()
            < EVENTS_AT_ONCE
        {
            leaving.look();
        }
        for (number, _) in &stay {
            assert!(watched[*number].poll(&context).is_pending(), "it stays");
        }
        drop(watched);
        assert!(!leaving.is_watching());
        // A place is handed on empty.
        let again = leaving.watch(&stay[0].1.1).unwrap();
        assert!(again.poll(&context).is_pending());
    }
}
