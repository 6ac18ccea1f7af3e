//! Holding a request until its turn. Its body stays unread, and the wait ends early if the client
//! leaves or the proxy stops.

use std::future::{Future, poll_fn};
use std::pin::pin;
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
/// For so long a request counts as waiting for a remote store's answer and not for its turn, in
/// ticks: until then its client is not given up.
const STORE_PATIENCE: Tick = 10;

/// The most KiB that bodies over HTTP/2 may take up while their requests wait. Such a client sends
/// as much as the window of its stream lets it, whether or not that is read.
const PARKED_KIB_MAX: usize = 256 << 10;
static PARKED: Semaphore = Semaphore::const_new(PARKED_KIB_MAX);

/// How a wait ends.
pub(super) enum Ended<T> {
    /// Its turn has come, or it can have none.
    Passed(T),
    /// The proxy stops.
    Stopping,
    /// The client is gone.
    Left,
}

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

/// Waits for `turn`, or for a reason not to.
pub(super) async fn hold<T>(client: &Rc<Client>, turn: impl Future<Output = T>) -> Ended<T> {
    let floor = &client.floor;
    let mut turn = pin!(turn);
    let mut watch = Watch {
        client,
        look: floor.ticks.deadline(),
        waits_from: floor.ticks.now()
            + if floor.admission.is_remote() { STORE_PATIENCE } else { 0 },
        watched: None,
    };
    poll_fn(|context| {
        if let Poll::Ready(passed) = turn.as_mut().poll(context) {
            return Poll::Ready(Ended::Passed(passed));
        }
        if floor.is_last_call() {
            return Poll::Ready(Ended::Stopping);
        }
        watch.poll(context).map(|()| Ended::Left)
    })
    .await
}

/// Looks out for a client that leaves. One that has closed its sending side counts as gone: whether
/// it still listens cannot be told before it is sent something, and others are in line behind it.
struct Watch<'a> {
    client: &'a Client,
    look: Deadline,
    /// From when on it counts as waiting, and so may be given up.
    waits_from: Tick,
    watched: Option<Watched>,
}

impl Watch<'_> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        // Also without a moment to wait for: this is where the loop finds those it must wake.
        let due = self.look.poll(context).is_ready();
        let now = self.look.ticks().now();
        if self.has_left(context, due) {
            if now >= self.waits_from {
                return Poll::Ready(());
            }
            self.look.no_later(self.waits_from - now);
        }
        Poll::Pending
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
        match client.floor.leaving.watch(socket) {
            Ok(fresh) => watched.insert(fresh).poll(context).is_ready(),
            Err(_) => {
                look.no_later(LOOK_EVERY);
                socket.borrow().left()
            }
        }
    }
}
