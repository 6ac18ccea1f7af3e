//! One HTTP/1.1 connection to the upstream, for one request at a time.
//!
//! It has no task of its own: the task of the client's request polls it, and then the body of the
//! response. Only where the response comes before all of the request is sent, a task sends the
//! rest; then the connection is not used again.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::mem;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf as _, BytesMut};
use hyper::body::{Bytes, Frame, SizeHint};
use hyper::ext::ReasonPhrase;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode, Version};
use tidegate_wire::http1::{self, Chunks, Ending, Field, Part, ResponseHead};
use tokio::io::{AsyncReadExt as _, AsyncWrite as _, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, spawn_local};

use super::super::MaybeTls;
use super::super::bodies::{RequestBody, UploadProgress};
use super::connect::OpenConnection;
use super::sending::{Sending, Stuck};

/// The most bytes of a response's head.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// How many bytes are read at once of a head and what comes with it, and of a body in chunks.
const READ_BYTES: usize = 8 << 10;
const CHUNKS_BYTES: usize = 32 << 10;
/// How many bytes are read at once of other bodies, and the least room that is worth a read.
const BODY_BYTES: usize = 64 << 10;
const BODY_BYTES_MIN: usize = 4 << 10;
/// The most interim responses (1xx) to one request.
const INTERIM_MAX: u32 = 32;

/// Why there is no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoResponse {
    /// The body of the request did not come.
    Body,
    /// The connection ended before the whole head of a response had come.
    Closed,
    /// What came is no response.
    Invalid,
}

/// A connection.
pub(in super::super) struct UpstreamConnection {
    socket: Rc<RefCell<MaybeTls<TcpStream>>>,
    /// What was read and not used yet.
    incoming: BytesMut,
    /// Room for bodies that need no parsing.
    room: BytesMut,
    sending: Sending<RequestBody>,
    /// The upstream takes no more of the request.
    stuck: bool,
    to_head: bool,
    interim: u32,
    rest: Rest,
    keep_alive: bool,
    /// Sends the rest of a request that was answered early.
    sender: Option<SenderTask>,
    /// How far the request's body has come, if there is one.
    progress: Option<Rc<UploadProgress>>,
    _counted: OpenConnection,
}

/// What is left of a response's body.
#[derive(Clone, Copy, Debug)]
enum Rest {
    Nothing,
    Length(u64),
    Chunks(Chunks),
    UntilClose,
}

/// A task that is aborted when this is dropped.
struct SenderTask(JoinHandle<()>);

impl Drop for SenderTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl UpstreamConnection {
    pub(super) fn new(socket: MaybeTls<TcpStream>, counted: OpenConnection) -> Box<Self> {
        Box::new(Self {
            socket: Rc::new(RefCell::new(socket)),
            incoming: BytesMut::new(),
            room: BytesMut::new(),
            sending: Sending::default(),
            stuck: false,
            to_head: false,
            interim: 0,
            rest: Rest::Nothing,
            keep_alive: true,
            sender: None,
            progress: None,
            _counted: counted,
        })
    }

    /// Whether another request can be sent over it, now that the last response is read.
    pub(super) fn is_free(&self) -> bool {
        let read = matches!(self.rest, Rest::Nothing) && self.incoming.is_empty();
        self.keep_alive && read && !self.stuck && self.sender.is_none() && self.sending.is_over()
    }

    /// Closes it, with TLS's close_notify if the socket takes that at once.
    pub(super) fn close(self: Box<Self>) {
        let mut context = Context::from_waker(Waker::noop());
        let _ = Pin::new(&mut *self.socket.borrow_mut()).poll_shutdown(&mut context);
    }

    /// Frees the buffers that a large response took.
    pub(super) fn shrink(&mut self) {
        self.room = BytesMut::new();
        if self.incoming.capacity() > 2 * READ_BYTES {
            self.incoming = BytesMut::new();
        }
    }

    /// Whether it can be used: the upstream has neither closed it nor sent anything unasked.
    pub(super) fn is_alive(&self) -> bool {
        match &mut *self.socket.borrow_mut() {
            // This makes a system call only if the socket has had an event.
            MaybeTls::Left(stream) => {
                let read = stream.try_read(&mut [0]);
                read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
            }
            MaybeTls::Right(stream) => {
                let mut context = Context::from_waker(Waker::noop());
                let mut byte = [0];
                let mut room = ReadBuf::new(&mut byte);
                tokio::io::AsyncRead::poll_read(Pin::new(stream), &mut context, &mut room)
                    .is_pending()
            }
        }
    }

    /// Prepares to send a request, whose body it takes.
    pub(super) fn begin(
        &mut self,
        request: &mut Request<RequestBody>,
        progress: Option<&Rc<UploadProgress>>,
    ) {
        self.progress = progress.cloned();
        let body = mem::replace(request.body_mut(), RequestBody::none());
        self.sending.begin(request, Some(body).filter(|body| !body.is_none()));
        self.to_head = *request.method() == Method::HEAD;
        self.interim = 0;
    }

    /// Prepares to send the request that another connection did not send.
    pub(super) fn take_over(&mut self, other: &mut Self) {
        self.sending = mem::take(&mut other.sending);
        self.sending.rewind();
        (self.to_head, self.progress) = (other.to_head, other.progress.take());
    }

    /// Whether no byte of the request was sent. Over TLS that is not known.
    pub(super) fn is_untouched(&self) -> bool {
        let plain = matches!(&*self.socket.borrow(), MaybeTls::Left(_));
        plain && self.sending.is_untouched()
    }

    /// Whether the request has, or had, a body.
    pub(super) fn has_body(&self) -> bool {
        self.sending.has_body()
    }

    /// Whether anything of a response has come.
    pub(super) fn has_response_bytes(&self) -> bool {
        self.interim > 0 || !self.incoming.is_empty()
    }

    /// Sends the request and reads the head of the response, into `headers`.
    pub(super) fn poll_response(
        &mut self,
        context: &mut Context<'_>,
        headers: &mut HeaderMap,
    ) -> Poll<Result<Response<()>, NoResponse>> {
        if !self.stuck && !self.sending.is_over() {
            match self.sending.poll(context, &mut *self.socket.borrow_mut()) {
                Poll::Ready(Err(Stuck::Body)) => return Poll::Ready(Err(NoResponse::Body)),
                // It may have sent a response before it closed.
                Poll::Ready(Err(Stuck::Upstream)) => self.stuck = true,
                Poll::Ready(Ok(())) | Poll::Pending => {}
            }
        }
        loop {
            if !self.incoming.is_empty()
                && let Some(response) = self.parse_head(headers)?
            {
                self.send_rest_in_task();
                return Poll::Ready(Ok(response));
            }
            if self.incoming.len() >= HEAD_BYTES_MAX {
                return Poll::Ready(Err(NoResponse::Invalid));
            }
            if !matches!(ready!(self.read(context, READ_BYTES)), Ok(1..)) {
                return Poll::Ready(Err(NoResponse::Closed));
            }
        }
    }

    /// The head of the response, if all of it has come.
    fn parse_head(&mut self, headers: &mut HeaderMap) -> Result<Option<Response<()>>, NoResponse> {
        let invalid = |_: http1::InvalidResponse| NoResponse::Invalid;
        loop {
            let mut fields = http1::fields();
            let Some(head) = http1::head(&self.incoming, &mut fields).map_err(invalid)? else {
                return Ok(None);
            };
            let used = head.bytes;
            if used > HEAD_BYTES_MAX {
                return Err(NoResponse::Invalid);
            }
            if head.is_interim() {
                self.interim += 1;
                if self.interim > INTERIM_MAX {
                    return Err(NoResponse::Invalid);
                }
                self.incoming.advance(used);
                continue;
            }
            let (ending, keep_alive) = head.ending(self.to_head).map_err(invalid)?;
            let response = response(&head, &self.incoming[..used], mem::take(headers));
            self.keep_alive = keep_alive;
            self.rest = match ending {
                Ending::Nothing => Rest::Nothing,
                Ending::Length(length) => Rest::Length(length),
                Ending::Chunks => Rest::Chunks(Chunks::default()),
                Ending::Close => Rest::UntilClose,
            };
            self.incoming.advance(used);
            return response.map(Some).ok_or(NoResponse::Invalid);
        }
    }

    /// Reads more, up to `room` bytes. Returns how many; 0 at the end of the stream.
    fn read(&mut self, context: &mut Context<'_>, room: usize) -> Poll<io::Result<usize>> {
        self.incoming.reserve(room);
        let socket = &mut *self.socket.borrow_mut();
        pin!(socket.read_buf(&mut self.incoming)).poll(context)
    }

    /// Starts a task that sends the rest of the request while the response is read.
    fn send_rest_in_task(&mut self) {
        if self.stuck || self.sending.is_over() {
            return;
        }
        let (socket, mut sending) = (self.socket.clone(), mem::take(&mut self.sending));
        self.sender = Some(SenderTask(spawn_local(async move {
            let sent = poll_fn(|context| sending.poll(context, &mut *socket.borrow_mut()));
            if sent.await.is_err() {
                // The upstream must not take a part of a body for all of it.
                let shut = |context: &mut Context<'_>| {
                    Pin::new(&mut *socket.borrow_mut()).poll_shutdown(context)
                };
                let _ = poll_fn(shut).await;
            }
        })));
    }

    /// Waits until the rest of the request is sent, after the response was read. `None` if nothing
    /// is left to send.
    pub(super) fn rest_sent(mut self: Box<Self>) -> Option<(Rc<UploadProgress>, impl Future)> {
        let (mut sender, progress) = self.sender.take().zip(self.progress.take())?;
        Some((progress, async move {
            let _ended = (&mut sender.0).await;
            drop(self);
        }))
    }

    /// The next part of the response's body.
    pub(super) fn poll_body(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let polled = match self.rest {
            Rest::Nothing => return Poll::Ready(None),
            Rest::Chunks(chunks) => self.poll_chunks(context, chunks),
            Rest::Length(_) | Rest::UntilClose => self.poll_plain(context),
        };
        polled.map(Result::transpose)
    }

    /// A body with a length, or until the connection closes.
    fn poll_plain(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<Frame<Bytes>>>> {
        let most = match self.rest {
            Rest::Length(left) => usize::try_from(left).unwrap_or(usize::MAX),
            _ => usize::MAX,
        };
        let data = if self.incoming.is_empty() {
            if self.room.capacity() < BODY_BYTES_MIN.min(most) {
                self.room.reserve(BODY_BYTES.min(most));
            }
            let socket = &mut *self.socket.borrow_mut();
            let count = ready!(pin!(socket.read_buf(&mut self.room)).poll(context))?;
            if count == 0 {
                if matches!(self.rest, Rest::Length(_)) {
                    return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
                }
                self.rest = Rest::Nothing;
                return Poll::Ready(Ok(None));
            }
            // Bytes beyond the end belong to no response; the connection is not used again.
            self.keep_alive &= count <= most;
            self.room.split().freeze().slice(..count.min(most))
        } else {
            let here = self.incoming.len().min(most);
            let data = Bytes::copy_from_slice(&self.incoming[..here]);
            self.incoming.advance(here);
            data
        };
        if let Rest::Length(left) = &mut self.rest {
            *left -= data.len() as u64;
            if *left == 0 {
                self.rest = Rest::Nothing;
            }
        }
        Poll::Ready(Ok(Some(Frame::data(data))))
    }

    /// A body in chunks.
    fn poll_chunks(
        &mut self,
        context: &mut Context<'_>,
        mut chunks: Chunks,
    ) -> Poll<io::Result<Option<Frame<Bytes>>>> {
        // The position is stored before anything is waited for.
        loop {
            match chunks.next(&self.incoming).map_err(invalid_body)? {
                Part::More => ready!(self.read_on(context))?,
                Part::Frame(used) => self.incoming.advance(used),
                Part::Data(data) => {
                    let data = Bytes::copy_from_slice(data);
                    self.incoming.advance(data.len());
                    self.rest = Rest::Chunks(chunks);
                    return Poll::Ready(Ok(Some(Frame::data(data))));
                }
                Part::End => {
                    if let Some(trailers) = self.trailers()? {
                        self.rest = Rest::Nothing;
                        let any = !trailers.is_empty();
                        return Poll::Ready(Ok(any.then(|| Frame::trailers(trailers))));
                    }
                    ready!(self.read_on(context))?;
                }
            }
            self.rest = Rest::Chunks(chunks);
        }
    }

    /// The trailers behind the last chunk, if all of them have come.
    fn trailers(&mut self) -> io::Result<Option<HeaderMap>> {
        let mut fields = http1::trailer_fields();
        let found = http1::trailers(&self.incoming, &mut fields).map_err(invalid_body)?;
        let Some((fields, used)) = found else { return Ok(None) };
        let mut trailers = HeaderMap::new();
        add(&mut trailers, fields, &self.incoming[..used]).ok_or(io::ErrorKind::InvalidData)?;
        self.incoming.advance(used);
        Ok(Some(trailers))
    }

    /// Reads more of a body that is not over.
    fn read_on(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match ready!(self.read(context, CHUNKS_BYTES))? {
            0 => Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
            _ => Poll::Ready(Ok(())),
        }
    }

    /// Whether all of the response's body was read.
    pub(super) fn is_body_over(&self) -> bool {
        matches!(self.rest, Rest::Nothing)
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        match self.rest {
            Rest::Nothing => SizeHint::with_exact(0),
            Rest::Length(left) => SizeHint::with_exact(left),
            Rest::Chunks(_) | Rest::UntilClose => SizeHint::default(),
        }
    }

    /// Whether it can switch to another protocol: if all of the request was sent.
    pub(in super::super) fn may_switch(&self) -> bool {
        self.sender.is_none() && self.sending.is_over()
    }

    /// The socket after a switch to another protocol, and what was already read of that.
    pub(in super::super) fn into_socket(self) -> Option<(MaybeTls<TcpStream>, BytesMut)> {
        Some((Rc::into_inner(self.socket)?.into_inner(), self.incoming))
    }
}

/// Makes a response of a parsed head, with its fields in this map.
fn response(
    head: &ResponseHead<'_, '_>,
    bytes: &[u8],
    mut headers: HeaderMap,
) -> Option<Response<()>> {
    headers.clear();
    add(&mut headers, head.fields, bytes)?;
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::from_u16(head.status).ok()?;
    *response.version_mut() = if head.old { Version::HTTP_10 } else { Version::HTTP_11 };
    *response.headers_mut() = headers;
    if response.status().canonical_reason() != Some(head.reason)
        && let Ok(reason) = ReasonPhrase::try_from(head.reason.as_bytes())
    {
        response.extensions_mut().insert(reason);
    }
    Some(response)
}

fn invalid_body(_: http1::InvalidResponse) -> io::Error {
    io::ErrorKind::InvalidData.into()
}

/// Adds fields that lie in `bytes`. Their values share one copy of those.
fn add(headers: &mut HeaderMap, fields: &[Field<'_>], bytes: &[u8]) -> Option<()> {
    let kept = Bytes::copy_from_slice(bytes);
    for field in fields {
        let name = HeaderName::from_bytes(field.name.as_bytes()).ok()?;
        let value = match field.value.as_ptr().addr().checked_sub(bytes.as_ptr().addr()) {
            Some(from) if !field.value.is_empty() => kept.slice(from..from + field.value.len()),
            _ => Bytes::new(),
        };
        headers.append(name, HeaderValue::from_maybe_shared(value).ok()?);
    }
    Some(())
}
