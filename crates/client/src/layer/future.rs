//! One request: forwarded, held and then forwarded, or rejected.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use pin_project_lite::pin_project;
use tokio::time::{Sleep, sleep};
use tower_service::Service;

use crate::gatekeeper::Delay;

pin_project! {
    /// The answer to a request, after a wait perhaps.
    pub struct ResponseFuture<S, B>
    where
        S: Service<Request<B>>,
    {
        #[pin]
        state: State<S, B>,
    }
}

pin_project! {
    #[project = StateView]
    enum State<S, B>
    where
        S: Service<Request<B>>,
    {
        Passing { #[pin] future: S::Future },
        // Boxed: few requests are held, and all others would carry the room for it.
        Held { held: Option<Box<Held<S, B>>> },
        RefusedRequest { response: Option<S::Response> },
    }
}

/// A request that waits, and the service that it goes to.
struct Held<S, B> {
    sleep: Pin<Box<Sleep>>,
    /// Its place, until it goes.
    delay: Option<Delay>,
    service: S,
    request: Request<B>,
}

impl<S, B, A> ResponseFuture<S, B>
where
    S: Service<Request<B>, Response = Response<A>>,
{
    #[inline]
    pub(super) fn passing(future: S::Future) -> Self {
        Self { state: State::Passing { future } }
    }

    #[cold]
    pub(super) fn held(delay: Delay, service: S, request: Request<B>) -> Self {
        let sleep = Box::pin(sleep(delay.remaining()));
        let held = Box::new(Held { sleep, delay: Some(delay), service, request });
        Self { state: State::Held { held: Some(held) } }
    }

    #[cold]
    pub(super) fn refused(response: Response<A>) -> Self {
        Self { state: State::RefusedRequest { response: Some(response) } }
    }
}

impl<S, B, A> Future for ResponseFuture<S, B>
where
    S: Service<Request<B>, Response = Response<A>>,
{
    type Output = Result<S::Response, S::Error>;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                StateView::Passing { future } => return future.poll(context),
                StateView::Held { held } => {
                    let waiting =
                        held.as_mut().expect("a request that waits is not polled to its end");
                    if let Err(error) = ready!(waiting.poll_turn(context)) {
                        return Poll::Ready(Err(error));
                    }
                    let Held { mut service, request, .. } =
                        *held.take().expect("it was there a line ago");
                    service.call(request)
                }
                StateView::RefusedRequest { response } => {
                    let response = response.take().expect("not polled after its end");
                    return Poll::Ready(Ok(response));
                }
            };
            state.set(State::Passing { future: next });
        }
    }
}

impl<S: Service<Request<B>>, B> Held<S, B> {
    /// Whether its time has come and its service is ready.
    fn poll_turn(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        if self.delay.is_some() {
            ready!(self.sleep.as_mut().poll(context));
            self.delay = None;
        }
        self.service.poll_ready(context)
    }
}

impl<S: Service<Request<B>>, B> fmt::Debug for ResponseFuture<S, B> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
