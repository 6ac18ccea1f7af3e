//! Streams of a shared connection whose client stops taking what it is sent.
//!
//! A client may hold the window of one stream shut and go on with the others, so the socket does
//! not tell. hyper then does not ask for more of the body, and would wait for ever. So every
//! stream has a deadline: set when its body hands out a part, taken back when it is asked for the
//! next. When it comes the stream is dropped, which resets it; the others are left alone.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use hyper::rt::Executor;
use tokio::task::spawn_local;

use super::client::Client;
use crate::metrics::Door;

/// Runs the streams of one client.
#[derive(Clone)]
pub(super) struct Streams(pub(super) Rc<Client>);

impl<F> Executor<F> for Streams
where
    F: Future + 'static,
    F::Output: 'static,
{
    fn execute(&self, stream: F) {
        spawn_local(run(self.0.clone(), stream));
    }
}

async fn run(client: Rc<Client>, stream: impl Future) {
    let stall = Rc::new(client.worker.ticks.deadline());
    let mut stream = pin!(stream);
    let stalled = poll_fn(|context| {
        // Found by the request that this stream carries, when it is first looked at.
        client.stream.set(Some(stall.clone()));
        let polled = stream.as_mut().poll(context);
        client.stream.take();
        match polled {
            Poll::Ready(_) => Poll::Ready(false),
            Poll::Pending => stall.poll(context).map(|()| true),
        }
    });
    if stalled.await {
        client.worker.metrics.bad_input(Door::Proxy, "reader_slow");
    }
}
