//! The bodies of requests and responses on their way through the proxy, and what happens when a
//! request is over.
//!
//! Bodies are not collected. [`Finish`] hangs on the body of a response, and does its work when
//! that is dropped, however the request ended.

use std::cell::Cell;
use std::io;
use std::mem;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use tidegate_core::Now;

use super::access::AccessRecord;
use super::client_activity::ClientActivity;
use super::connection::ProxyClient;
use super::figures::UpstreamError;
use super::headers;
use super::ticks::{Deadline, Tick, Ticks};
use super::upstream::{UpstreamBody, UpstreamConnection};
use crate::limiter::TakenFrom;
use crate::waiting::Admitted;

type Polled = Poll<Option<io::Result<Frame<Bytes>>>>;

/// How far the body of a request has come on its way to the upstream.
pub(super) struct UploadProgress {
    last: Cell<Tick>,
    error: Cell<Option<UploadError>>,
}

/// What a client may do wrong with a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UploadError {
    /// It broke off, or sent something that is no body.
    Broken,
    /// It sent more than it may.
    TooLong,
}

impl UploadProgress {
    /// The progress of a body of which nothing has come yet.
    pub(super) fn new(now: Tick) -> Rc<Self> {
        Rc::new(Self { last: Cell::new(now), error: Cell::new(None) })
    }

    /// The upstream has taken a part of it.
    pub(super) fn moved(&self, now: Tick) {
        self.last.set(now);
    }

    /// When the upstream last took a part of it.
    pub(super) fn last(&self) -> Tick {
        self.last.get()
    }

    /// What the client did wrong, if it did.
    pub(super) fn error(&self) -> Option<UploadError> {
        self.error.get()
    }
}

/// The body of a request on its way to the upstream. Most requests have none.
pub(super) struct RequestBody(Option<Box<Upload>>);

struct Upload {
    incoming: Incoming,
    progress: Rc<UploadProgress>,
    activity: Rc<ClientActivity>,
    ticks: Rc<Ticks>,
    /// How many bytes more there may be.
    left: Option<u64>,
}

impl RequestBody {
    pub(super) fn none() -> Self {
        Self(None)
    }

    /// The body of a request, and its progress unless it is empty.
    pub(super) fn new(
        incoming: Incoming,
        activity: &Rc<ClientActivity>,
        ticks: &Rc<Ticks>,
        max: Option<u64>,
    ) -> (Self, Option<Rc<UploadProgress>>) {
        if incoming.is_end_stream() {
            return (Self::none(), None);
        }
        // The body may go on after the response is sent: until it ends, the client is busy.
        activity.begin_request();
        let progress = UploadProgress::new(ticks.now());
        let upload = Upload {
            left: max,
            incoming,
            progress: progress.clone(),
            activity: activity.clone(),
            ticks: ticks.clone(),
        };
        (Self(Some(Box::new(upload))), Some(progress))
    }

    pub(super) fn is_none(&self) -> bool {
        self.0.is_none()
    }
}

impl Upload {
    fn poll(&mut self, context: &mut Context<'_>) -> Polled {
        let polled = Pin::new(&mut self.incoming).poll_frame(context);
        self.activity.want_body(polled.is_pending());
        let polled = ready!(polled);
        self.progress.moved(self.ticks.now());
        let frame = match polled {
            None => return Poll::Ready(None),
            Some(Err(error)) => {
                self.progress.error.set(Some(UploadError::Broken));
                return Poll::Ready(Some(Err(io::Error::other(error))));
            }
            Some(Ok(frame)) => frame,
        };
        if let Some(left) = &mut self.left {
            let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
            let Some(after) = left.checked_sub(bytes) else {
                self.progress.error.set(Some(UploadError::TooLong));
                return Poll::Ready(Some(Err(io::ErrorKind::FileTooLarge.into())));
            };
            *left = after;
        }
        Poll::Ready(Some(Ok(without_harmful_trailers(frame))))
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        self.activity.want_body(false);
        self.activity.end_request();
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Polled {
        self.0.as_mut().map_or(Poll::Ready(None), |upload| upload.poll(context))
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(|upload| upload.incoming.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let Some(upload) = &self.0 else { return SizeHint::with_exact(0) };
        upload.incoming.size_hint().exact().map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

/// A part of a request's body, without trailers that no server should believe.
fn without_harmful_trailers(frame: Frame<Bytes>) -> Frame<Bytes> {
    match frame.into_trailers() {
        Ok(mut trailers) => {
            headers::strip_trailers(&mut trailers);
            Frame::trailers(trailers)
        }
        Err(frame) => frame,
    }
}

/// The body of a response.
pub(super) struct ResponseBody {
    content: Content,
    finish: Option<Finish>,
}

enum Content {
    /// The proxy's own words.
    Whole(Option<Bytes>),
    /// The upstream's body.
    Relay(Relay),
}

struct Relay {
    body: UpstreamBody,
    deadline: Deadline,
    timeout: Tick,
    ended: bool,
    /// An error that is passed on once what came before it is sent.
    error: Option<io::Error>,
}

impl ResponseBody {
    /// A body of the proxy's own.
    pub(super) fn whole(bytes: Bytes) -> Self {
        Self { content: Content::Whole(Some(bytes).filter(|b| !b.is_empty())), finish: None }
    }

    /// The body that the upstream sends. It breaks off if it does not move for `timeout`.
    pub(super) fn relay(body: UpstreamBody, deadline: Deadline, timeout: Tick) -> Self {
        deadline.clear();
        let ended = body.is_end_stream();
        let relay = Relay { body, deadline, timeout, ended, error: None };
        Self { content: Content::Relay(relay), finish: None }
    }

    /// The same body, with what must happen when the request is over.
    pub(super) fn finishing(mut self, finish: Finish) -> Self {
        self.finish = Some(finish);
        self
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Polled {
        let this = self.get_mut();
        let polled = match &mut this.content {
            Content::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Content::Relay(relay) => relay.poll(context),
        };
        if let Some(finish) = &mut this.finish {
            finish.polled(&polled);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Whole(bytes) => bytes.is_none(),
            Content::Relay(relay) => relay.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Content::Relay(relay) => relay.body.size_hint(),
        }
    }
}

impl Relay {
    fn poll(&mut self, context: &mut Context<'_>) -> Polled {
        if let Some(error) = self.error.take() {
            return Poll::Ready(Some(Err(error)));
        }
        let polled = self.body.poll_frame(context);
        match polled {
            Poll::Pending => {
                // Set when the wait begins, and left alone until it ends.
                self.deadline.no_later(self.timeout);
                let timed_out = || Some(Err(io::ErrorKind::TimedOut.into()));
                self.deadline.poll(context).map(|()| timed_out())
            }
            Poll::Ready(Some(Err(error))) => {
                // hyper drops what it has not sent when it gets an error, and sends it when the
                // body is pending. So the client gets what came before the error.
                self.error = Some(error);
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

impl Drop for ResponseBody {
    fn drop(&mut self) {
        let Some(mut finish) = self.finish.take() else { return };
        match mem::replace(&mut self.content, Content::Whole(None)) {
            Content::Whole(_) => finish.complete(),
            // A body of known length is not polled again once all of it has come.
            Content::Relay(relay) if relay.ended || relay.body.is_end_stream() => {
                finish.complete();
                if let UpstreamBody::Http1(connection) = relay.body {
                    finish.connection = Some(connection);
                }
            }
            Content::Relay(_) => {}
        }
    }
}

/// A use in flight that must be given back.
struct HeldUse {
    key: Box<[u8]>,
    from: TakenFrom,
    started: Now,
}

/// What must happen once a request is over, done when this is dropped: the use is given back, the
/// connection to the upstream goes back to the pool, and the line of the access log is written.
pub(super) struct Finish {
    client: Rc<ProxyClient>,
    held: Option<HeldUse>,
    connection: Option<Box<UpstreamConnection>>,
    /// What the access log will say, if there is one.
    pub(super) record: Option<Box<AccessRecord>>,
    complete: bool,
    /// Over HTTP/2, the deadline of the stream that carries the request.
    stream_stall: Option<Rc<Deadline>>,
}

impl Finish {
    /// For a request that has just begun.
    pub(super) fn new(client: Rc<ProxyClient>) -> Self {
        client.activity.begin_request();
        let (held, connection, record, stream_stall) = (None, None, None, None);
        Self { client, held, connection, record, complete: false, stream_stall }
    }

    /// Takes the deadline of the HTTP/2 stream that is being polled, if there is one.
    pub(super) fn take_stream_deadline(&mut self) {
        self.stream_stall = self.client.stream_stall.take();
    }

    /// The request was admitted: if it holds a use, that is given back in the end.
    pub(super) fn admitted(&mut self, key: &[u8], admitted: &Admitted) {
        let started = admitted.started;
        self.held = admitted.held.map(|from| HeldUse { key: key.into(), from, started });
    }

    /// The body of the response was polled.
    fn polled(&mut self, polled: &Polled) {
        match polled {
            Poll::Ready(Some(Ok(frame))) => self.sent(frame.data_ref().map_or(0, Bytes::len)),
            Poll::Ready(Some(Err(_))) => self.client.worker.upstream_failed(UpstreamError::Body),
            _ => {}
        }
        match &self.stream_stall {
            // The client must take this part before the deadline.
            Some(stall) if matches!(polled, Poll::Ready(Some(Ok(_)))) => {
                stall.set(self.client.worker.client_timeouts.stall);
            }
            Some(stall) => stall.clear(),
            None => {}
        }
    }

    /// So many bytes of the body go to the client.
    pub(super) fn sent(&mut self, bytes: usize) {
        if let Some(record) = &mut self.record {
            record.bytes += bytes as u64;
        }
    }

    /// The whole response was sent.
    pub(super) fn complete(&mut self) {
        self.complete = true;
    }
}

impl Drop for Finish {
    fn drop(&mut self) {
        let worker = &self.client.worker;
        if let Some(connection) = self.connection.take() {
            worker.upstream.put_back(connection);
        }
        // Given back before the next request of this client can ask.
        if let Some(HeldUse { key, from, started }) = self.held.take() {
            worker.handle.release_uses(&key, 1, started, from);
        }
        if let Some(record) = self.record.take() {
            worker.door.access.write(worker.door.name(), &record, self.complete);
        }
        self.client.activity.end_request();
    }
}
