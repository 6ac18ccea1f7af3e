//! Bodies on their way through: what a client sends, and what it is sent.
//!
//! Nothing is gathered here. What must happen once a request is over hangs on the body of its
//! answer, and happens when that is dropped, however it ended.

use std::cell::Cell;
use std::mem;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};

use super::figures::UpstreamError;
use super::finish::Finish;
use super::headers;
use super::streams::Pulse;
use super::ticks::{Deadline, Tick, Ticks};
use super::upstream::Answer;

/// Why a body ends before its end.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    /// The other side broke off, or sent nonsense.
    #[error(transparent)]
    Hyper(#[from] hyper::Error),
    /// The upstream's connection failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The upstream closed its connection before the end.
    #[error("the upstream broke off")]
    Cut,
    /// What the upstream sends is no body.
    #[error("the upstream sent nonsense")]
    Nonsense,
    /// It stood still for too long.
    #[error("the body stood still for too long")]
    Slow,
    /// It is longer than it may be.
    #[error("the body is too long")]
    TooLong,
}

/// How far a request's body has come on its way to the upstream.
pub(super) struct Progress {
    last: Cell<Tick>,
    fault: Cell<Option<Fault>>,
}

/// What a client may do wrong with a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// It broke off, or sent nonsense.
    Broken,
    /// It sent more than it may.
    TooLong,
}

impl Progress {
    /// Of a body of which nothing has come yet.
    pub(super) fn new(now: Tick) -> Rc<Self> {
        Rc::new(Self { last: Cell::new(now), fault: Cell::new(None) })
    }

    /// The upstream has taken a part of it.
    pub(super) fn moved(&self, now: Tick) {
        self.last.set(now);
    }

    /// When the upstream last took a part of it.
    pub(super) fn last(&self) -> Tick {
        self.last.get()
    }

    /// Whether it is the client's fault that it did not come through.
    pub(super) fn fault(&self) -> Option<Fault> {
        self.fault.get()
    }
}

/// The body of a request on its way to the upstream. Most requests have none, and are moved about
/// a good deal: so what there is of it lies elsewhere.
pub(super) struct Upload(Option<Box<Rest>>);

struct Rest {
    incoming: Incoming,
    progress: Rc<Progress>,
    pulse: Rc<Pulse>,
    ticks: Rc<Ticks>,
    /// How many bytes more there may be.
    left: Option<u64>,
}

impl Upload {
    /// No body.
    pub(super) fn none() -> Self {
        Self(None)
    }

    /// The body of a request; nothing to watch if it is over already.
    pub(super) fn new(
        incoming: Incoming,
        pulse: &Rc<Pulse>,
        ticks: &Rc<Ticks>,
        max: Option<u64>,
    ) -> (Self, Option<Rc<Progress>>) {
        if incoming.is_end_stream() {
            return (Self::none(), None);
        }
        // It may go on after the answer is through: until then the client is at something.
        pulse.begin();
        let progress = Progress::new(ticks.now());
        let rest = Rest {
            left: max,
            incoming,
            progress: progress.clone(),
            pulse: pulse.clone(),
            ticks: ticks.clone(),
        };
        (Self(Some(Box::new(rest))), Some(progress))
    }

    /// Whether there is nothing to send.
    pub(super) fn is_none(&self) -> bool {
        self.0.is_none()
    }
}

impl Rest {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let Some(frame) = ready!(self.next(context)?) else { return Poll::Ready(None) };
        let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
        if let Some(left) = &mut self.left {
            let Some(after) = left.checked_sub(bytes) else {
                self.progress.fault.set(Some(Fault::TooLong));
                return Poll::Ready(Some(Err(Broken::TooLong)));
            };
            *left = after;
        }
        Poll::Ready(Some(Ok(frame)))
    }

    /// What comes next.
    fn next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Frame<Bytes>>, Broken>> {
        let polled = Pin::new(&mut self.incoming).poll_frame(context);
        self.pulse.want_body(polled.is_pending());
        match ready!(polled).transpose() {
            Ok(frame) => {
                self.progress.moved(self.ticks.now());
                Poll::Ready(Ok(frame))
            }
            Err(error) => {
                self.progress.fault.set(Some(Fault::Broken));
                Poll::Ready(Err(error.into()))
            }
        }
    }
}

impl Drop for Rest {
    fn drop(&mut self) {
        self.pulse.want_body(false);
        self.pulse.end();
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        match &mut self.0 {
            Some(rest) => rest.poll(context).map_ok(harmless),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(|rest| rest.incoming.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let Some(rest) = &self.0 else { return SizeHint::with_exact(0) };
        match rest.incoming.size_hint().exact() {
            Some(more) => SizeHint::with_exact(more),
            None => SizeHint::default(),
        }
    }
}

/// A part of a request's body, without fields behind it that no server should believe.
fn harmless(frame: Frame<Bytes>) -> Frame<Bytes> {
    match frame.into_trailers() {
        Ok(mut trailers) => {
            headers::strip_trailers(&mut trailers);
            Frame::trailers(trailers)
        }
        Err(frame) => frame,
    }
}

/// The body of an answer.
pub(super) struct Reply {
    content: Content,
    finish: Option<Finish>,
}

enum Content {
    /// Our own words.
    Whole(Option<Bytes>),
    /// The upstream's.
    Relay(Relay),
}

struct Relay {
    answer: Answer,
    deadline: Deadline,
    patience: Tick,
    ended: bool,
    /// What went wrong, until what came before it is sent.
    broken: Option<Broken>,
}

impl Reply {
    /// A few words of our own.
    pub(super) fn whole(bytes: Bytes) -> Self {
        Self { content: Content::Whole(Some(bytes).filter(|b| !b.is_empty())), finish: None }
    }

    /// What the upstream says, for as long as it does not stand still for longer than `patience`.
    pub(super) fn relay(answer: Answer, deadline: Deadline, patience: Tick) -> Self {
        deadline.clear();
        let ended = answer.is_end_stream();
        let relay = Relay { answer, deadline, patience, ended, broken: None };
        Self { content: Content::Relay(relay), finish: None }
    }

    /// Hangs on it what must happen when it is over.
    pub(super) fn finishing(mut self, finish: Finish) -> Self {
        self.finish = Some(finish);
        self
    }
}

impl Body for Reply {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let polled = self.as_mut().poll_content(context);
        if let Some(finish) = &self.finish {
            finish.offered(matches!(polled, Poll::Ready(Some(Ok(_)))));
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Whole(bytes) => bytes.is_none(),
            Content::Relay(relay) => relay.answer.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Content::Relay(relay) => relay.answer.size_hint(),
        }
    }
}

impl Reply {
    fn poll_content(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let this = self.get_mut();
        let relay = match &mut this.content {
            Content::Whole(bytes) => {
                return Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes))));
            }
            Content::Relay(relay) => relay,
        };
        let polled = relay.poll(context);
        match (&polled, &mut this.finish) {
            (Poll::Ready(Some(Ok(frame))), Some(finish)) => {
                finish.sent(frame.data_ref().map_or(0, Bytes::len));
            }
            (Poll::Ready(Some(Err(_))), Some(finish)) => finish.failed(UpstreamError::Body),
            _ => {}
        }
        polled
    }
}

impl Relay {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        if let Some(broken) = self.broken.take() {
            return Poll::Ready(Some(Err(broken)));
        }
        let polled = self.answer.poll_frame(context);
        match polled {
            Poll::Pending => {
                // Set when the wait begins, and left alone until it ends.
                self.deadline.no_later(self.patience);
                self.deadline.poll(context).map(|()| Some(Err(Broken::Slow)))
            }
            Poll::Ready(Some(Err(error))) => {
                // The client gets what came until then: whoever sends it drops the rest at an
                // error, and sends it at a pause.
                self.broken = Some(error);
                context.waker().wake_by_ref();
                Poll::Pending
            }
            Poll::Ready(Some(Ok(_))) => {
                self.deadline.clear();
                polled
            }
            Poll::Ready(None) => {
                self.ended = true;
                polled
            }
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        let Some(mut finish) = self.finish.take() else { return };
        match mem::replace(&mut self.content, Content::Whole(None)) {
            Content::Whole(_) => finish.whole(),
            // A body of known length is not polled again once it has all come.
            Content::Relay(relay) if relay.ended || relay.answer.is_end_stream() => {
                finish.whole();
                if let Answer::Line(line) = relay.answer {
                    finish.keep(line);
                }
            }
            Content::Relay(_) => {}
        }
    }
}
