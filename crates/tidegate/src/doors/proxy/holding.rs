//! Holding a request until its turn: it waits, a little of its body comes along, and it is noticed
//! if its client leaves or the proxy stops.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Incoming};

use super::bodies::Early;
use super::client::Client;
use super::ticks::{Deadline, Tick};

/// The most bytes of a body that come along while its request waits. hyper reads no further, and
/// so would not see the client leave: from here on the socket is asked instead. So it is where the
/// client has sent another request behind the one that waits, since hyper reads no further then,
/// either.
const EARLY_BYTES_MAX: u64 = 64 << 10;
/// How often the socket is asked, in ticks.
const LOOK_EVERY: Tick = 5;

/// How a wait ends.
pub(super) enum Ended<T> {
    /// Its turn, or none to be had.
    Passed(T),
    /// The proxy stops.
    Stopping,
    /// The client is gone.
    Left,
}

/// The body of a request that waits.
pub(super) struct Holding<B = Incoming> {
    body: B,
    early: Early,
    /// The body is at its end, or must not be read yet.
    closed: bool,
    /// hyper does not see the client leave.
    blind: bool,
}

impl<B: Body<Data = Bytes> + Unpin> Holding<B> {
    /// A body that is `expected` comes only once it is asked for, and that is not before its turn.
    pub(super) fn new(body: B, expected: bool) -> Self {
        let ended = body.is_end_stream();
        Self { body, early: Early::default(), closed: ended || expected, blind: expected && !ended }
    }

    pub(super) fn into_parts(self) -> (B, Early) {
        (self.body, self.early)
    }

    /// Takes in what has come. An error means that the client is gone.
    fn take_in(&mut self, context: &mut Context<'_>) -> Result<(), B::Error> {
        while !self.closed {
            match Pin::new(&mut self.body).poll_frame(context) {
                Poll::Pending => break,
                Poll::Ready(None) => self.closed = true,
                Poll::Ready(Some(frame)) => {
                    self.early.push(frame?);
                    self.blind = self.early.bytes() >= EARLY_BYTES_MAX;
                    self.closed = self.blind || self.body.is_end_stream();
                    self.blind &= !self.body.is_end_stream();
                }
            }
        }
        Ok(())
    }
}

/// Waits for `turn`, or for a reason not to.
pub(super) async fn hold<T>(
    client: &Rc<Client>,
    held: &mut Holding,
    turn: impl Future<Output = T>,
) -> Ended<T> {
    let mut turn = pin!(turn);
    let look: Deadline = client.floor.ticks.deadline();
    poll_fn(|context| {
        if let Poll::Ready(passed) = turn.as_mut().poll(context) {
            return Poll::Ready(Ended::Passed(passed));
        }
        if client.floor.is_last_call() {
            return Poll::Ready(Ended::Stopping);
        }
        if held.take_in(context).is_err() {
            return Poll::Ready(Ended::Left);
        }
        let unheard = client.socket.is_some() && (held.blind || !client.pulse.listens());
        // Also without a moment to wait for: this is where the loop finds those it must wake.
        let due = look.poll(context).is_ready();
        if unheard && due && client.left() {
            return Poll::Ready(Ended::Left);
        }
        if unheard {
            look.no_later(LOOK_EVERY);
        }
        Poll::Pending
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::task::Waker;

    use hyper::body::Frame;

    use super::*;

    /// A body that never ends, in pieces of this size.
    struct Endless(usize);

    impl Body for Endless {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Ready(Some(Ok(Frame::data(Bytes::from(vec![0; self.0])))))
        }
    }

    #[test]
    fn no_more_of_a_body_comes_along_than_there_is_room_for() {
        let mut context = Context::from_waker(Waker::noop());
        for (piece, expected, most) in [(1000, false, EARLY_BYTES_MAX + 999), (1000, true, 0)] {
            let mut held = Holding::new(Endless(piece), expected);
            for _ in 0..3 {
                assert_eq!(held.take_in(&mut context), Ok(()));
                assert!(held.early.bytes() <= most, "{} of {most}", held.early.bytes());
            }
            assert!(held.blind, "from here on the socket is asked");
        }
    }
}
