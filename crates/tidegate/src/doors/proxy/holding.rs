//! Holding a request until its turn. Its body stays unread, and the wait ends early if the client
//! leaves or the proxy stops.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use hyper::body::Body;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::client::Client;
use super::connection::STREAM_WINDOW;
use super::leaving::Watched;
use super::problem::Problem;
use super::ticks::{Deadline, Tick};

/// How long a request waits before its client is watched, in ticks: most waits are over sooner.
const WATCH_AFTER: Tick = 1;
/// How often a client that cannot be watched is looked at instead.
const LOOK_EVERY: Tick = 10;

/// The most KiB that bodies over HTTP/2 may take up while their requests wait. Such a client sends
/// as much as the window of its stream lets it, whether or not that is read.
const PARKED_KIB_MAX: usize = 256 << 10;
static PARKED: Semaphore = Semaphore::const_new(PARKED_KIB_MAX);

/// Makes room for the body of a request that is about to wait, if that takes any.
pub(super) fn park(
    client: &Client,
    body: &impl Body,
) -> Result<Option<SemaphorePermit<'static>>, Problem> {
    if !client.pulse.is_shared() || body.is_end_stream() {
        return Ok(None);
    }
    let window = u64::from(STREAM_WINDOW);
    let bytes = body.size_hint().exact().unwrap_or(window).min(window);
    // At most a window: few enough KiB for 32 bits.
    let kib = u32::try_from(bytes.div_ceil(1 << 10)).unwrap_or(u32::MAX);
    PARKED.try_acquire_many(kib).map(Some).map_err(|_| Problem::Crowded)
}

/// Waits for `turn`, unless the proxy stops or the client leaves. The client is given up only while
/// `is_in_line` says that its request is in line: otherwise a store is soon to answer it.
pub(super) async fn hold<F: Future>(
    client: &Rc<Client>,
    mut turn: Pin<&mut F>,
    is_in_line: impl Fn(&F) -> bool,
) -> Result<F::Output, Problem> {
    let worker = &client.worker;
    let mut watch = Watch { client, look: worker.ticks.deadline(), watched: None };
    poll_fn(|context| {
        if let Poll::Ready(done) = turn.as_mut().poll(context) {
            return Poll::Ready(Ok(done));
        }
        if worker.is_last_call() {
            return Poll::Ready(Err(Problem::Stopping));
        }
        if watch.poll(context).is_ready() && is_in_line(&turn) {
            return Poll::Ready(Err(Problem::Left));
        }
        Poll::Pending
    })
    .await
}

/// Looks out for a client that leaves. One that has closed its sending side counts as gone: whether
/// it still listens cannot be told before it is sent something, and others are in line behind it.
struct Watch<'a> {
    client: &'a Client,
    look: Deadline,
    watched: Option<Watched>,
}

impl Watch<'_> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        // Also without a moment to wait for: this is where the loop finds those it must wake.
        let due = self.look.poll(context).is_ready();
        if self.has_left(context, due) { Poll::Ready(()) } else { Poll::Pending }
    }

    fn has_left(&mut self, context: &mut Context<'_>, due: bool) -> bool {
        let Self { client, look, watched, .. } = self;
        if let Some(watched) = watched {
            return watched.poll(context).is_ready();
        }
        if client.pulse.has_ended() {
            return true;
        }
        // Where many share a connection, leaving is told by the protocol; and while the socket is
        // read, by that.
        let Some(socket) = client.socket.as_ref().filter(|_| !client.pulse.listens()) else {
            return false;
        };
        if !due {
            look.no_later(WATCH_AFTER);
            return false;
        }
        match client.worker.leaving.watch(socket) {
            Ok(fresh) => watched.insert(fresh).poll(context).is_ready(),
            Err(_) => {
                look.no_later(LOOK_EVERY);
                socket.borrow().left()
            }
        }
    }
}
